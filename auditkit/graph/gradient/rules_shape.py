"""Operators that move numbers, pick them from a tensor, or put them into one."""

from collections.abc import Sequence
from functools import reduce
from itertools import chain
from typing import Literal

import numpy as np

from auditkit.graph.gradient.builder import AXIS_END, RULES, Builder, Grads, Node, NoRule, rule, rule_per_operand, rules


def _put_at(b: Builder, node: Node, indices: str, grad: str, axis: int) -> str:
    """g added to zeros at indices along an axis."""
    return b.op("ScatterElements", b.zeros_like(node.x), indices, grad, axis=axis, reduction="add")


rules(
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), lambda b, n, g: b.reshape_like(g, n.x)),
    Expand=lambda b, n, g: b.summed_to(g, b.shape(n.y), b.shape(n.x)),
    SpaceToDepth=lambda b, n, g: b.op("DepthToSpace", g, blocksize=n.get("blocksize", 1), mode="DCR"),
    Trilu=lambda b, n, g: b.op("Trilu", g, *n.inputs[1:], upper=n.get("upper", 1)),
    GatherElements=lambda b, n, g: _put_at(b, n, n.inputs[1], g, axis=n.get("axis", 0)),
    TopK=lambda b, n, g: _put_at(b, n, b.side_output(n, 1), g, axis=n.get("axis", -1)),
)


@rule("Transpose")
def transpose(b: Builder, node: Node, grad: str) -> str:
    """g with its axes permuted back."""
    rank = len(b.shape(node.x))
    perm = node.get("perm", []) or list(reversed(range(rank)))
    return b.op("Transpose", grad, perm=[perm.index(axis) for axis in range(rank)])


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
    fixed_sizes = [size for size in sizes if size is not None]
    if len(fixed_sizes) == len(sizes):
        start, end = (b.constant([sum(fixed_sizes[:count])]) for count in (index, index + 1))
    else:  # images concatenated into a larger batch
        lengths = [b.op("Shape", name, start=axis, end=axis + 1) for name in node.inputs]
        start, end = (reduce(b.add, lengths[:count], b.constant([0])) for count in (index, index + 1))
    return b.op("Slice", grad, start, end, b.constant([axis]))


def _split(b: Builder, node: Node, grads: Grads, _needed: Sequence[bool]) -> Grads:
    """The gradients of the parts concatenated, with zeros where there is none."""
    parts = [grad or b.zeros_like(name) for grad, name in zip(grads, node.outputs, strict=True)]
    return [b.op("Concat", *parts, axis=node.get("axis", 0))]


RULES["Split"] = _split


@rule("DepthToSpace")
def depth_to_space(b: Builder, node: Node, grad: str) -> str:
    """Blocks of pixels back into channels."""
    block = node.get("blocksize", 1)
    channels, height, width = b.sizes(node.x, 1)
    blocks = b.reshape(grad, (None, channels // block**2, height, block, width, block))
    perm = [0, 1, 3, 5, 2, 4] if node.get("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    return b.reshape_like(b.op("Transpose", blocks, perm=perm), node.x)


@rule("Pad")
def pad(b: Builder, node: Node, grad: str) -> str:
    """The inside of g; with mirrored or repeated margins, their g is added where they were copied from."""
    rank = len(b.shape(node.x))
    axes = [a % rank for a in b.fixed(node.operand(3), "its axes")] if node.operand(3) else list(range(rank))
    pads = b.fixed(node.inputs[1], "its margins")
    pairs = zip(pads[: len(axes)], pads[len(axes) :], strict=True)
    margins = {axis: pair for axis, pair in zip(axes, pairs, strict=True) if any(pair)}
    mode: Literal["constant", "edge", "reflect", "wrap"] = node.get("mode", "constant")
    if mode == "constant":
        before, after = ({axis: -pair[side] for axis, pair in margins.items()} for side in (0, 1))
        return b.pad(grad, rank, before, after)
    shape = list(b.shape(node.y))
    for axis, (first, last) in margins.items():
        size = b.size(node.x, axis)
        cropped = np.arange(size)[max(-first, 0) : size - max(-last, 0)]  # before margins are copied from the rest
        source = np.pad(cropped, (max(first, 0), max(last, 0)), mode=mode)
        fold = np.zeros((size, len(source)))
        np.add.at(fold, (source, np.arange(len(source))), 1)
        grad = b.along(axis, fold, grad, tuple(shape))
        shape[axis] = size
    return grad


@rule("GatherND")
def gather_nd(b: Builder, node: Node, grad: str) -> str:
    """g added where numbers were picked: the operator, whichever it is, also picks from a tensor of positions."""
    count = b.op("ReduceProd", b.shape_of(node.x), keepdims=0)
    positions = b.reshape_like(b.op("Range", b.constant(0), count, b.constant(1)), node.x)
    return b.put_back([(grad, b.op(node.operator, positions, *node.inputs[1:], **node.attributes))], node.x)


@rule("Gather")
def gather(b: Builder, node: Node, grad: str) -> str:
    """g between zeros where the indices are constant and consecutive; otherwise as GatherND."""
    shape, values = b.shape(node.x), b.value(node.inputs[1])
    axis = node.get("axis", 0) % len(shape)
    size = shape[axis]
    if values is None or size is None or values.ndim > 1 or not values.size:
        return gather_nd(b, node, grad)
    indices = [int(index) % size for index in values.reshape(-1)]
    if indices != list(range(indices[0], indices[0] + len(indices))):
        return gather_nd(b, node, grad)
    rows = b.op("Unsqueeze", grad, b.constant([axis])) if values.ndim == 0 else grad
    return b.pad(rows, len(shape), {axis: indices[0]}, {axis: size - indices[0] - len(indices)})


@rule("Slice")
def slice_(b: Builder, node: Node, grad: str) -> str:
    """g between zeros; with a step there are zeros between its numbers too, a negative step flips it."""
    shape, ranges = b.shape(node.x), _ranges(b, node)
    if ranges is None:
        return gather_nd(b, node, grad)
    backwards = [axis for axis, positions in ranges.items() if positions.step < 0]
    if backwards:
        grad = b.flipped(grad, backwards)
        ranges |= {axis: ranges[axis][::-1] for axis in backwards}
    spread = b.spread(grad, b.shape(node.y), {axis: positions.step for axis, positions in ranges.items()})
    before = {axis: positions[0] for axis, positions in ranges.items()}
    after = {axis: b.size(node.x, axis) - p[0] - len(p) * p.step for axis, p in ranges.items()}
    return b.pad(spread, len(shape), before, after)


def _ranges(b: Builder, node: Node) -> dict[int, range] | None:
    """The positions taken along each axis that is cut; None where they depend on the input."""
    shape, rank = b.shape(node.x), len(b.shape(node.x))
    names = [node.operand(index) for index in range(1, 5)]
    operands = [b.value(name) for name in names]
    if any(name and values is None for name, values in zip(names, operands, strict=True)):
        return None
    starts, ends, named_axes, steps = operands
    if starts is None or ends is None:
        return None
    axes = range(len(starts)) if named_axes is None else [int(axis) % rank for axis in named_axes]
    ranges = {}
    for axis, start, end, step in zip(axes, starts, ends, [1] * rank if steps is None else steps, strict=False):
        size = shape[axis]
        if size is None:
            if b.shape(node.y)[axis] is None and step == 1 and start == 0 and end >= AXIS_END:
                continue  # the whole batch
            return None
        positions = range(size)[slice(int(start), int(end), int(step))]
        if not len(positions):
            raise NoRule("it takes nothing")
        if positions != range(size):
            ranges[axis] = positions
    return ranges


@rule_per_operand("ScatterElements", "ScatterND")
def scatter(b: Builder, node: Node, grad: str, index: int) -> str:
    """For the updates, g at their indices; for the data, g elsewhere, or everywhere if updates were added."""
    reduction, indices = node.get("reduction", "none"), node.inputs[1]
    if reduction not in ("none", "add"):
        raise NoRule(f"it combines by '{reduction}'")
    axis = {"axis": node.get("axis", 0)} if node.operator == "ScatterElements" else {}
    if index == 2:
        return b.op("GatherElements" if axis else "GatherND", grad, indices, **axis)
    if reduction == "add":
        return grad
    return b.op(node.operator, grad, indices, b.zeros_like(node.inputs[2]), **axis)
