"""Operators that pick numbers out of a tensor, or put them into one."""

from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node
from auditkit.graph.gradient.registry import NoRule, rule, rule_per_operand


def picked(b: Builder, node: Node, grad: str) -> str:
    """For any operator that picks: let it pick positions instead, and add g there."""
    attributes = {name: node.get(name, None) for name in node.attributes}
    return b.put_back(grad, b.op(node.operator, b.positions(node.x), *node.inputs[1:], **attributes), node.x)


@rule("GatherND")
def gather_nd(b: Builder, node: Node, grad: str) -> str:
    """g added at the positions picked."""
    return picked(b, node, grad)


@rule("GatherElements")
def gather_elements(b: Builder, node: Node, grad: str) -> str:
    """g added at the indices."""
    zeros = b.zeros_like(node.x)
    return b.op("ScatterElements", zeros, node.inputs[1], grad, axis=node.get("axis", 0), reduction="add")


@rule("TopK")
def top_k(b: Builder, node: Node, grad: str) -> str:
    """g at the places of the largest, which the operator itself names."""
    zeros = b.zeros_like(node.x)
    return b.op("ScatterElements", zeros, b.side_output(node, 1), grad, axis=node.get("axis", -1), reduction="add")


@rule("Gather")
def gather(b: Builder, node: Node, grad: str) -> str:
    """g between zeros where the indices are known and run on; otherwise added at the positions picked."""
    shape, indices = b.shape(node.x), b.value(node.inputs[1])
    axis = node.get("axis", 0) % len(shape)
    size = shape[axis]
    if indices is None or size is None or indices.ndim > 1 or not indices.size:
        return picked(b, node, grad)
    listed = [int(index) % size for index in indices.reshape(-1)]
    if listed != list(range(listed[0], listed[0] + len(listed))):
        return picked(b, node, grad)
    kept = b.op("Unsqueeze", grad, b.constant([axis])) if indices.ndim == 0 else grad
    return b.pad(kept, len(shape), {axis: listed[0]}, {axis: size - listed[0] - len(listed)})


@rule("Slice")
def slice_(b: Builder, node: Node, grad: str) -> str:
    """g between zeros; a slice that skips has zeros between its numbers too, one that runs backwards is turned."""
    shape, result = b.shape(node.x), b.shape(node.y)
    ranges = _ranges(b, node)
    if ranges is None:
        return picked(b, node, grad)
    backwards = [axis for axis, taken in ranges.items() if taken.step < 0]
    if backwards:
        ends = [b.constant([number] * len(backwards)) for number in (-1, -(2**31))]
        grad = b.op("Slice", grad, *ends, b.constant(backwards), b.constant([-1] * len(backwards)))
    ordered = {axis: taken if taken.step > 0 else taken[::-1] for axis, taken in ranges.items()}
    steps = {axis: taken.step for axis, taken in ordered.items()}
    wide = b.spread(grad, result, steps)
    after = {a: (shape[a] or 0) - t[0] - len(t) * (t.step if steps[a] > 1 else 1) for a, t in ordered.items()}
    return b.pad(wide, len(shape), {axis: taken[0] for axis, taken in ordered.items()}, after)


def _ranges(b: Builder, node: Node) -> dict[int, range] | None:
    """The positions taken along each axis that is cut; None where that is not known beforehand."""
    shape, rank = b.shape(node.x), len(b.shape(node.x))
    operands = [b.value(node.operand(index)) for index in range(1, 5)]
    if any(node.operand(index) and operands[index - 1] is None for index in range(1, 5)):
        return None
    starts, ends, axes, steps = operands
    if starts is None or ends is None:
        return None
    listed = range(rank) if axes is None else [int(axis) % rank for axis in axes]
    found = {}
    for place, axis in enumerate(listed[: len(starts)]):
        size, step = shape[axis], 1 if steps is None else int(steps[place])
        if size is None and b.shape(node.y)[axis] is None and step == 1 and starts[place] == 0:
            if int(ends[place]) < 2**31 - 1:
                return None
            continue  # all of the batch
        if size is None:
            return None
        taken = range(size)[slice(int(starts[place]), int(ends[place]), step)]
        if not len(taken):
            raise NoRule("it takes nothing")
        if taken != range(size):
            found[axis] = taken
    return found


@rule_per_operand("ScatterElements", "ScatterND")
def scatter(b: Builder, node: Node, grad: str, index: int) -> str:
    """For what was put in: g at those places. For what it was put into: g elsewhere, or everywhere if it was added."""
    reduction, places = node.get("reduction", "none"), node.inputs[1]
    if reduction not in ("none", "add"):
        raise NoRule(f"it combines by '{reduction}'")
    along = {"axis": node.get("axis", 0)} if node.operator == "ScatterElements" else {}
    if index == 2:
        return b.op("GatherElements" if along else "GatherND", grad, places, **along)
    if reduction == "add":
        return grad
    return b.op(node.operator, grad, places, b.zeros_like(node.inputs[2]), **along)
