"""Operators that move numbers without changing them."""

from functools import reduce
from itertools import chain
from typing import Literal

import numpy as np

from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node
from auditkit.graph.gradient.registry import Grads, rule, rule_of_results, rule_per_operand

_MARGINS: dict[str, Literal["edge", "reflect", "wrap"]] = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def regrouped(b: Builder, node: Node, grad: str) -> str:
    """g in the operand's shape."""
    return b.reshape_like(grad, node.x)


@rule("Transpose")
def transpose(b: Builder, node: Node, grad: str) -> str:
    """g with its axes permuted back."""
    rank = len(b.shape(node.x))
    perm = node.get("perm", []) or list(reversed(range(rank)))
    return b.op("Transpose", grad, perm=[perm.index(axis) for axis in range(rank)])


@rule("Expand")
def expand(b: Builder, node: Node, grad: str) -> str:
    """g summed over the repeated axes."""
    return b.summed_to(grad, b.shape(node.y), b.shape(node.x))


@rule("Tile")
def tile(b: Builder, node: Node, grad: str) -> str:
    """g summed over the copies."""
    repeats = b.fixed(node.inputs[1], "its repeats")
    pairs = tuple(chain(*zip(repeats, b.shape(node.x), strict=True)))
    return b.sum(b.reshape(grad, pairs), range(0, len(pairs), 2), keep=False)


@rule_per_operand("Concat")
def concat(b: Builder, node: Node, grad: str, index: int) -> str:
    """The operand's part of g."""
    axis = node.get("axis", 0) % len(b.shape(node.y))
    sizes = [b.shape(name)[axis] for name in node.inputs]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        start, end = (b.constant([sum(known[:count])]) for count in (index, index + 1))
    else:  # images concatenated into a larger batch
        lengths = [b.op("Shape", name, start=axis, end=axis + 1) for name in node.inputs]
        start, end = (reduce(b.add, lengths[:count], b.constant([0])) for count in (index, index + 1))
    return b.op("Slice", grad, start, end, b.constant([axis]))


@rule_of_results("Split")
def split(b: Builder, node: Node, grads: Grads) -> str:
    """The gradients of the parts concatenated, with zeros where there is none."""
    parts = [grad or b.zeros_like(name) for grad, name in zip(grads, node.outputs, strict=True)]
    return b.op("Concat", *parts, axis=node.get("axis", 0))


@rule("DepthToSpace")
def depth_to_space(b: Builder, node: Node, grad: str) -> str:
    """Blocks of pixels back into channels."""
    block = node.get("blocksize", 1)
    channels, height, width = b.sizes(node.x, 1)
    blocks = b.reshape(grad, (None, channels // block**2, height, block, width, block))
    perm = [0, 1, 3, 5, 2, 4] if node.get("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    return b.reshape_like(b.op("Transpose", blocks, perm=perm), node.x)


@rule("SpaceToDepth")
def space_to_depth(b: Builder, node: Node, grad: str) -> str:
    """Channels back into blocks of pixels."""
    return b.op("DepthToSpace", grad, blocksize=node.get("blocksize", 1), mode="DCR")


@rule("Trilu")
def trilu(b: Builder, node: Node, grad: str) -> str:
    """The same triangle of g."""
    return b.op("Trilu", grad, *node.inputs[1:], upper=node.get("upper", 1))


@rule("Pad")
def pad(b: Builder, node: Node, grad: str) -> str:
    """The inside of g; with mirrored or repeated margins, their g is added where they were copied from."""
    rank = len(b.shape(node.x))
    axes = [a % rank for a in b.fixed(node.operand(3), "its axes")] if node.operand(3) else list(range(rank))
    pads = b.fixed(node.inputs[1], "its margins")
    pairs = zip(pads[: len(axes)], pads[len(axes) :], strict=True)
    margins = {axis: pair for axis, pair in zip(axes, pairs, strict=True) if any(pair)}
    mode = node.get("mode", "constant")
    if mode == "constant":
        before, after = ({axis: -pair[side] for axis, pair in margins.items()} for side in (0, 1))
        return b.pad(grad, rank, before, after)
    shape = list(b.shape(node.y))
    for axis, (first, last) in margins.items():
        size = b.size(node.x, axis)
        cropped = np.arange(size)[max(-first, 0) : size - max(-last, 0)]  # before margins are copied from the rest
        source = np.pad(cropped, (max(first, 0), max(last, 0)), mode=_MARGINS[mode])
        fold = np.zeros((size, len(source)))
        np.add.at(fold, (source, np.arange(len(source))), 1)
        grad = b.along(axis, fold, grad, tuple(shape))
        shape[axis] = size
    return grad
