"""Operators that pick numbers from a tensor, or put numbers into one."""

from auditkit.graph.gradient.builder import AXIS_END, Builder
from auditkit.graph.gradient.node import Node, NoRule
from auditkit.graph.gradient.registry import rule, rule_per_operand


@rule("GatherND")
def gather_nd(b: Builder, node: Node, grad: str) -> str:
    """g added at the positions picked, which the operator itself picks from a tensor of positions.

    This serves any operator that picks numbers.
    """
    positions = b.op(node.operator, b.positions(node.x), *node.inputs[1:], **node.attributes)
    return b.put_back(grad, positions, node.x)


@rule("GatherElements")
def gather_elements(b: Builder, node: Node, grad: str) -> str:
    """g added at the indices."""
    zeros = b.zeros_like(node.x)
    return b.op("ScatterElements", zeros, node.inputs[1], grad, axis=node.get("axis", 0), reduction="add")


@rule("TopK")
def top_k(b: Builder, node: Node, grad: str) -> str:
    """g added at the indices of the largest, which are the operator's second result."""
    zeros = b.zeros_like(node.x)
    return b.op("ScatterElements", zeros, b.side_output(node, 1), grad, axis=node.get("axis", -1), reduction="add")


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
