"""Convolutions and pools: windows of k taps, d apart, that move by s over an input with margins."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from math import prod

import numpy as np

from auditkit.arrays import Array
from auditkit.graph.gradient.builder import Builder, Node, NoRule, rule

_MOST_SETS = 25  # of windows that do not overlap; above, the order of additions is left to the device


@dataclass(frozen=True)
class _Windows:
    """Where the windows of a convolution or a pool lie along one spatial axis."""

    taps: int
    stride: int
    dilation: int
    size: int  # of the input
    count: int
    before: int = 0
    after: int = 0  # as declared: with ceil_mode the last window may reach further

    @property
    def reach(self) -> int:
        """The distance from the first tap of a window to its last."""
        return (self.taps - 1) * self.dilation

    @property
    def apart(self) -> int:
        """How many windows on the next one begins that does not overlap with a window."""
        return min(-(-(self.reach + 1) // self.stride), self.count)

    @property
    def uncovered(self) -> int:
        """Positions between the last window and the end of the input; negative where windows reach past it."""
        return self.size + self.before - (self.count - 1) * self.stride - self.reach - 1


def _windows(node: Node, kernel: list[int], sizes: list[int], counts: list[int]) -> list[_Windows]:
    """The windows of a Conv or pool without their margins, for each spatial axis."""
    ones = [1] * len(kernel)
    strides, dilations = node.get("strides", ones), node.get("dilations", ones)
    return [_Windows(*axis) for axis in zip(kernel, strides, dilations, sizes, counts, strict=True)]


def _padded_windows(b: Builder, node: Node, kernel: list[int]) -> list[_Windows]:
    """The windows of a Conv or pool, for each spatial axis."""
    unpadded, rank = _windows(node, kernel, b.sizes(node.x), b.sizes(node.y)), len(kernel)
    padding = node.get("auto_pad", "NOTSET")
    if padding == "VALID":
        return unpadded
    if padding == "NOTSET":
        pads = node.get("pads", [0] * 2 * rank)
        before, after = pads[:rank], pads[rank:]
    else:
        totals = [max(0, -w.uncovered) for w in unpadded]
        before = [total // 2 if padding == "SAME_UPPER" else total - total // 2 for total in totals]
        after = [total - first for total, first in zip(totals, before, strict=True)]
    return [replace(w, before=first, after=last) for w, first, last in zip(unpadded, before, after, strict=True)]


def _spread_over(b: Builder, axes: Sequence[_Windows], grad: str, weight: str, group: int) -> str:
    """The adjoint of a convolution: each output's gradient spread over the taps of its window."""
    transposed = partial(
        b.op, "ConvTranspose", grad, weight, strides=[w.stride for w in axes], dilations=[w.dilation for w in axes],
        kernel_shape=[w.taps for w in axes], group=group,
    )  # fmt: skip
    extra = [w.uncovered + w.before for w in axes]
    if all(0 <= more < max(w.stride, w.dilation) for more, w in zip(extra, axes, strict=True)):
        return transposed(pads=[w.before for w in axes] * 2, output_padding=extra)
    # The CUDA provider's ConvTranspose accepts equal margins only: compute those that differ, and crop them.
    before = {2 + axis: -w.before for axis, w in enumerate(axes)}
    after = {2 + axis: w.uncovered for axis, w in enumerate(axes)}
    return b.pad(transposed(), 2 + len(axes), before, after)


def _taps_inside(axes: Sequence[_Windows], *, with_margins: bool) -> Array:
    """For each output, how many taps of its window lie on the input (or on its declared margins)."""
    counts = np.ones(())
    for w in axes:
        starts = np.arange(w.count) * w.stride - w.before
        taps = starts[:, None] + np.arange(w.taps) * w.dilation
        low, high = (-w.before, w.size + w.after) if with_margins else (0, w.size)
        counts = counts[..., None] * ((taps >= low) & (taps < high)).sum(axis=1)
    return counts


@rule("Conv")
def conv(b: Builder, node: Node, grad: str) -> str:
    """The transposed convolution of g, or a plain convolution by the flipped weight where that is faster."""
    weight, group = node.inputs[1], node.get("group", 1)
    axes = _padded_windows(b, node, b.sizes(weight))
    before = [w.reach - w.before for w in axes]
    after = [w.size + w.before - w.count * w.stride for w in axes]
    # With groups it is 3 to 9 times as fast on a CPU. With stride 1, a step of learning masks is 5 to 15 % faster,
    # and 5 to 12 % for one mask on CUDA. With a larger stride and no groups, most of its input would be zeros.
    if (group > 1 or all(w.stride == 1 for w in axes)) and min(before + after) >= 0:
        return _flipped(b, node, axes, grad, before + after)
    return _spread_over(b, axes, grad, weight, group)


def _flipped(b: Builder, node: Node, axes: list[_Windows], grad: str, margins: list[int]) -> str:
    """The convolution of the spread gradient by the flipped weight, with margins that give the input's size."""
    weight, group = node.inputs[1], node.get("group", 1)
    outputs, inputs, *kernel = b.sizes(weight, 0)
    rank = len(kernel)
    grouped = b.reshape(weight, (group, outputs // group, inputs, *kernel))
    transposed = b.op("Transpose", grouped, perm=[0, 2, 1, *range(3, 3 + rank)])
    exchanged = b.reshape(transposed, (group * inputs, outputs // group, *kernel))
    flipped = b.flipped(exchanged, range(2, 2 + rank))
    spread = b.spread(grad, b.shape(node.y), {2 + axis: w.stride for axis, w in enumerate(axes)})
    dilations = [w.dilation for w in axes]
    return b.op("Conv", spread, flipped, pads=margins, dilations=dilations, kernel_shape=kernel, group=group)


@rule("ConvTranspose")
def conv_transpose(b: Builder, node: Node, grad: str) -> str:
    """The convolution of g: the windows lie over the result, and move over it as they did over the operand."""
    weight = node.inputs[1]
    kernel = b.sizes(weight)
    axes = _windows(node, kernel, b.sizes(node.y), b.sizes(node.x))
    before = _before(node, [-w.uncovered for w in axes])
    after = [-w.uncovered - first for w, first in zip(axes, before, strict=True)]
    cropped = b.pad(grad, 2 + len(axes), {}, {2 + axis: min(0, margin) for axis, margin in enumerate(after)})
    return b.op(
        "Conv", cropped, weight, pads=[*before, *(max(0, margin) for margin in after)], kernel_shape=kernel,
        strides=[w.stride for w in axes], dilations=[w.dilation for w in axes], group=node.get("group", 1),
    )  # fmt: skip


def _before(node: Node, totals: list[int]) -> list[int]:
    """Margins that a ConvTranspose crops in front, from the totals that it crops less its output padding."""
    padding, rank = node.get("auto_pad", "NOTSET"), len(totals)
    if padding == "NOTSET" and not node.get("output_shape", []):
        return node.get("pads", [0] * 2 * rank)[:rank]
    extra = node.get("output_padding", [0] * rank)
    cropped = [max(0, total + more) for total, more in zip(totals, extra, strict=True)]
    return [total // 2 if padding == "SAME_UPPER" else total - total // 2 for total in cropped]


@rule("Col2Im")
def col2im(b: Builder, node: Node, grad: str) -> str:
    """g at the position where each number was added: the blocks become columns again."""
    image, block = b.fixed(node.inputs[1], "its image size"), b.fixed(node.inputs[2], "its block size")
    rank = len(block)
    strides, dilations = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    pads = node.get("pads", [0] * 2 * rank)
    axes = range(2, 2 + rank)
    padded = b.pad(grad, 2 + rank, dict(zip(axes, pads[:rank], strict=True)), dict(zip(axes, pads[rank:], strict=True)))
    sizes = [size + pads[axis] + pads[rank + axis] for axis, size in enumerate(image)]
    positions = np.zeros((1,) * 2 * rank, np.int64)  # taps of a block, then blocks
    for axis in range(rank):
        taps = np.arange(block[axis]) * dilations[axis]
        starts = np.arange(0, sizes[axis] - taps[-1], strides[axis])
        shape = [1] * 2 * rank
        shape[axis], shape[rank + axis] = len(taps), len(starts)
        positions = positions * sizes[axis] + (taps[:, None] + starts).reshape(shape)
    flat = b.reshape(padded, (*b.shape(node.y)[:2], prod(sizes)))
    return b.reshape_like(b.op("Gather", flat, b.constant(positions.reshape(-1)), axis=2), node.x)


def _spread(b: Builder, node: Node, axes: list[_Windows], grad: str) -> str:
    """The gradient of each output spread over the taps of its window, channel by channel."""
    kernel = [w.taps for w in axes]
    if all(w.taps == w.stride and w.dilation == 1 and not w.before and not w.uncovered for w in axes):
        # The windows tile the input.
        blocks = b.op("Unsqueeze", grad, b.constant([3 + 2 * axis for axis in range(len(axes))]))
        target = [1, 1, *chain(*((1, taps) for taps in kernel))]
        return b.reshape_like(b.op("Expand", blocks, b.constant(target)), node.x)
    single_channel = b.reshape(grad, (None, 1, *b.sizes(node.y)))
    ones = b.array(np.ones((1, 1, *kernel)))
    return b.reshape_like(_spread_over(b, axes, single_channel, ones, group=1), node.x)


@rule("MaxPool")
def max_pool(b: Builder, node: Node, grad: str) -> str:
    """g at the position of the maximum that a pool over single channels reports; the first of equal ones."""
    if node.get("storage_order", 0):
        raise NoRule("its indices are stored by column")
    # With channels last, the CUDA provider counts positions in that order; over a single channel both are the same.
    b.op("MaxPool", b.reshape(node.x, (None, 1, *b.sizes(node.x))), **node.attributes)
    positions = b.side_output(Node(b.nodes[-1]), 1)
    tensors = b.reshape(grad, (None, 1, *b.sizes(node.y))), positions
    apart = [w.apart for w in _windows(node, node.get("kernel_shape", []), b.sizes(node.x), b.sizes(node.y))]
    if b.adds_in_order or prod(apart) > _MOST_SETS:
        return b.put_back([tensors], node.x)
    # Sets of windows that do not overlap, one after another: within a set, no two numbers are added at one position.
    axes = range(2, 2 + len(apart))
    parts = [[b.every(x, axes, first, apart) for x in tensors] for first in product(*map(range, apart))]
    return b.put_back(parts, node.x)


@rule("AveragePool")
def average_pool(b: Builder, node: Node, grad: str) -> str:
    """g / n over each window."""
    axes = _padded_windows(b, node, node.get("kernel_shape", []))
    counts = _taps_inside(axes, with_margins=bool(node.get("count_include_pad", 0)))
    return _spread(b, node, axes, b.mul(grad, b.array(1 / counts)))


@rule("LpPool", "GlobalLpPool")
def lp_pool(b: Builder, node: Node, grad: str) -> str:
    """x |x|^(p-2) times g y^(1-p) over each window, and 0 where y is 0."""
    x, p = node.x, node.get("p", 2)
    powered = x if p == 2 else b.mul(b.op("Sign", x), b.op("Pow", b.op("Abs", x), float(p - 1)))
    shared = b.where(b.greater(node.y, 0.0), b.mul(grad, b.op("Pow", node.y, float(1 - p))), 0.0)
    if node.operator == "LpPool":
        shared = _spread(b, node, _padded_windows(b, node, node.get("kernel_shape", [])), shared)
    return b.mul(powered, shared)
