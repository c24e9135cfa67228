"""Pools."""

from itertools import chain
from math import prod

import numpy as np

from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node, NoRule
from auditkit.graph.gradient.registry import rule
from auditkit.graph.gradient.windows import Windows, padded_windows, spread_over, taps_inside


def _spread(b: Builder, node: Node, axes: list[Windows], grad: str) -> str:
    """The gradient of each output spread over the taps of its window, channel by channel."""
    kernel = [w.taps for w in axes]
    if all(w.taps == w.stride and w.dilation == 1 and not w.before and not w.uncovered for w in axes):
        # The windows tile the input.
        blocks = b.op("Unsqueeze", grad, b.constant([3 + 2 * axis for axis in range(len(axes))]))
        target = [1, 1, *chain(*((1, taps) for taps in kernel))]
        return b.reshape_like(b.op("Expand", blocks, b.constant(target)), node.x)
    single_channel = b.reshape(grad, (None, 1, *b.sizes(node.y)))
    ones = b.array(np.ones((1, 1, *kernel)))
    return b.reshape_like(spread_over(b, axes, single_channel, ones, group=1), node.x)


@rule("MaxPool")
def max_pool(b: Builder, node: Node, grad: str) -> str:
    """g at the position of the maximum that a pool over single channels reports; the first of equal ones.

    The CUDA provider may compute with channels last, and then counts positions in that order. With a single channel,
    both orders give the same positions.
    """
    if node.get("storage_order", 0):
        raise NoRule("its indices are stored by column")
    b.op("MaxPool", b.reshape(node.x, (None, 1, *b.sizes(node.x))), **node.attributes)
    return b.put_back(grad, b.side_output(Node(b.nodes[-1]), 1), node.x)


@rule("AveragePool")
def average_pool(b: Builder, node: Node, grad: str) -> str:
    """g / n over each window."""
    axes = padded_windows(b, node, node.get("kernel_shape", []))
    counts = taps_inside(axes, with_margins=bool(node.get("count_include_pad", 0)))
    return _spread(b, node, axes, b.mul(grad, b.array(1 / counts)))


@rule("LpPool")
def lp_pool(b: Builder, node: Node, grad: str) -> str:
    """x |x|^(p-2) times g y^(1-p) over each window."""
    axes, p = padded_windows(b, node, node.get("kernel_shape", [])), node.get("p", 2)
    return b.mul(_powered(b, node.x, p), _spread(b, node, axes, _shared(b, node, p, grad)))


def _powered(b: Builder, x: str, p: int) -> str:
    return x if p == 2 else b.mul(b.op("Sign", x), b.op("Pow", b.op("Abs", x), float(p - 1)))


def _shared(b: Builder, node: Node, p: int, grad: str) -> str:
    """g y^(1-p), and 0 where y is 0."""
    return b.where(b.greater(node.y, 0.0), b.mul(grad, b.op("Pow", node.y, float(1 - p))), 0.0)


@rule("GlobalAveragePool")
def global_average_pool(b: Builder, node: Node, grad: str) -> str:
    """g / n everywhere."""
    sizes = b.sizes(node.x)
    return b.expand_like(b.mul(grad, 1 / prod(sizes)), node.x, range(2, 2 + len(sizes)))


@rule("GlobalMaxPool")
def global_max_pool(b: Builder, node: Node, grad: str) -> str:
    """g at the maximum; equal ones share it."""
    chosen = b.as_float(b.op("Equal", node.x, node.y))
    axes = range(2, len(b.shape(node.x)))
    return b.mul(chosen, b.div(grad, b.sum(chosen, axes)))


@rule("GlobalLpPool")
def global_lp_pool(b: Builder, node: Node, grad: str) -> str:
    """As LpPool, with one window."""
    p = node.get("p", 2)
    return b.mul(_powered(b, node.x, p), _shared(b, node, p, grad))
