"""The path that a gradient takes through a graph, and the operators on it that have no rule."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from auditkit.graph import edit
from auditkit.graph.canonical import SPELLED_OUT
from auditkit.graph.dequantise import QUANTISED
from auditkit.graph.float_types import FLOATS
from auditkit.graph.gradient.builder import Node
from auditkit.graph.gradient.registry import RULES

# Piecewise constant: their gradient is 0 almost everywhere.
_FLAT = frozenset(
    {"Ceil", "Floor", "Round", "Sign", "Hardmax", "OneHot", "EyeLike", "ConstantOfShape", "RandomNormalLike"}
)
# Their results are integers or booleans.
_DISCRETE = frozenset({
    "Shape", "Size", "ArgMax", "ArgMin", "NonZero", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not",
    "And", "Or", "Xor", "IsNaN", "IsInf",
})  # fmt: skip
_MOST_LISTED = 12  # operators in a message, which then still fits a terminal


@dataclass(frozen=True)
class Missing:
    """An operator that cannot be differentiated: how many nodes, the first of them, and why."""

    op: str
    count: int
    first_node: str
    reason: str = ""


def between(
    graph: onnx.GraphProto, sources: Iterable[str], targets: Iterable[str], carries: Callable[[str], bool]
) -> set[str]:
    """Tensors on a path from the sources to the targets along which a gradient can flow."""
    downstream, upstream = set(sources), set(targets)
    nodes = [node for node in graph.node if node.op_type not in _FLAT | _DISCRETE]
    for node in nodes:
        if not downstream.isdisjoint(edit.names_read(node)):
            downstream.update(name for name in node.output if carries(name))
    for node in reversed(nodes):
        if not upstream.isdisjoint(node.output):
            upstream.update(edit.names_read(node))
    return downstream & upstream


def missing_rules(model: onnx.ModelProto, input_name: str, output: str) -> list[Missing]:
    """Operators between the image and the scores that have no rule; a quick check that ignores attributes."""
    graph = edit.inlined(model).graph
    integers = {node.output[0] for node in graph.node if _casts_to_integers(node)}
    path = between(graph, [input_name], [output], lambda name: name not in integers)
    nodes = [Node(n) for n in graph.node if not path.isdisjoint(n.output) and not path.isdisjoint(edit.names_read(n))]
    return grouped((node, "") for node in nodes if not _has_rule(node, path))


def _has_rule(node: Node, path: set[str]) -> bool:
    if node.operator in QUANTISED:
        return True
    if node.operator == "If":  # resolved where its condition depends on shapes alone
        return node.x not in path
    return node.proto.domain in edit.STANDARD_DOMAINS and (node.operator in RULES or node.operator in SPELLED_OUT)


def _casts_to_integers(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and edit.attribute(node, "to", TensorProto.FLOAT) not in FLOATS


def grouped(gaps: Iterable[tuple[Node, str]]) -> list[Missing]:
    """Nodes without a rule, grouped by operator and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node, reason in gaps:
        domain = node.proto.domain
        name = node.operator if domain in edit.STANDARD_DOMAINS else f"{domain}.{node.operator}"
        groups.setdefault((name, reason), []).append(node.proto.name or node.y)
    return [Missing(op, len(names), names[0], reason) for (op, reason), names in groups.items()]


def missing_message(missing: list[Missing]) -> str:
    """The error message that lists all missing rules and a way out."""
    entries = [_entry(gap) for gap in missing]
    rest = len(entries) - _MOST_LISTED
    listed = ", ".join(entries[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "")
    return (
        f"no gradient rule for {listed}. Use --gradient differences, or ask the vendor for an export without "
        f"{'it' if len(missing) == 1 else 'them'}."
    )


def _entry(gap: Missing) -> str:
    nodes = f"{gap.count} node{'s' if gap.count > 1 else ''}, first '{gap.first_node}'"
    return f"{gap.op} ({nodes}: {gap.reason})" if gap.reason else f"{gap.op} ({nodes})"
