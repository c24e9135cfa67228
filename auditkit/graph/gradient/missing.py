"""What stands in the way of a gradient: the path it must take, and the operators on it that have no rule."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx
from onnx import inliner

from auditkit.graph import edit
from auditkit.graph.canonical import SPELLED_OUT
from auditkit.graph.dequantise import QUANTISED
from auditkit.graph.gradient.node import Node
from auditkit.graph.gradient.registry import RULES, STANDARD

# Flat almost everywhere: no gradient flows through these, and that is right.
FLAT = frozenset(
    {"Ceil", "Floor", "Round", "Sign", "Hardmax", "OneHot", "EyeLike", "ConstantOfShape", "RandomNormalLike"}
)
# What these give are whole numbers or truths.
WHOLE = frozenset({
    "Shape", "Size", "ArgMax", "ArgMin", "NonZero", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not",
    "And", "Or", "Xor", "IsNaN", "IsInf",
})  # fmt: skip
MOST_TOLD = 12


@dataclass(frozen=True)
class Missing:
    """An operator that cannot be differentiated: how often it stands in the way, where first, and why."""

    op: str
    count: int
    first_node: str
    reason: str = ""


def between(
    graph: onnx.GraphProto, sources: Iterable[str], targets: Iterable[str], carries: Callable[[str], bool]
) -> set[str]:
    """Tensors on a path from the sources to the targets along which a gradient can flow."""
    behind, before = set(sources), set(targets)
    for node in graph.node:
        if node.op_type not in FLAT | WHOLE and not behind.isdisjoint(edit.names_read(node)):
            behind.update(name for name in node.output if carries(name))
    for node in reversed(list(graph.node)):
        if node.op_type not in FLAT | WHOLE and not before.isdisjoint(node.output):
            before.update(edit.names_read(node))
    return behind & before


def missing_rules(model: onnx.ModelProto, input_name: str, output: str) -> list[Missing]:
    """Operators between the image and the scores that no rule is known for; cheap, and says nothing of attributes."""
    graph = (inliner.inline_local_functions(model) if model.functions else model).graph
    whole = {name for node in graph.node if _to_whole_numbers(node) for name in node.output}
    path = between(graph, [input_name], [output], lambda name: name not in whole)
    nodes = [Node(n) for n in graph.node if not path.isdisjoint(n.output) and not path.isdisjoint(edit.names_read(n))]
    return counted([(node, "") for node in nodes if not _is_known(node, path)])


def _is_known(node: Node, path: set[str]) -> bool:
    if node.operator in QUANTISED:
        return True
    if node.operator == "If":  # a condition that hangs on shapes alone is resolved
        return node.x not in path
    return node.proto.domain in STANDARD and (node.operator in RULES or node.operator in SPELLED_OUT)


def _to_whole_numbers(node: onnx.NodeProto) -> bool:
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
    return node.op_type == "Cast" and Node(node).get("to", 1) not in floats


def counted(gaps: Iterable[tuple[Node, str]]) -> list[Missing]:
    """Nodes in the way, by operator and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node, reason in gaps:
        domain = node.proto.domain
        name = node.operator if domain in STANDARD else f"{domain}.{node.operator}"
        groups.setdefault((name, reason), []).append(node.proto.name or node.y)
    return [Missing(op, len(names), names[0], reason) for (op, reason), names in groups.items()]


def sentence(missing: list[Missing]) -> str:
    """All that is missing, and the way out."""
    told = [
        f"{entry.op} ({entry.count} node{'s' if entry.count > 1 else ''}, first '{entry.first_node}'"
        + (f": {entry.reason})" if entry.reason else ")")
        for entry in missing
    ]
    listed = ", ".join(told[:MOST_TOLD]) + (f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else "")
    return (
        f"no gradient rule for {listed}. Use --gradient differences, or ask the vendor for an export without "
        f"{'it' if len(missing) == 1 else 'them'}."
    )
