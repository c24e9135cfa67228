"""Reverse-mode differentiation: the walk, and the operators on its path that have no rule.

Only nodes on a path from the tensors in `wrt` to the seeded ones are visited; weights and the arithmetic of shapes need
no rules. A tensor that several nodes read receives several gradients, which are summed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import onnx
from onnx import TensorProto

from auditkit.errors import NoGradient
from auditkit.graph import edit, fused
from auditkit.graph.canonical import SPELLED_OUT
from auditkit.graph.dequantise import QUANTISED
from auditkit.graph.float_types import FLOATS
from auditkit.graph.gradient.builder import RULES, Builder, Node, NoRule

# Piecewise constant: their gradient is 0 almost everywhere.
_FLAT = {"Ceil", "Floor", "Round", "Sign", "Hardmax", "OneHot", "EyeLike", "ConstantOfShape", "RandomNormalLike"}
# Their results are integers or booleans.
_DISCRETE = frozenset({
    "Shape", "Size", "ArgMax", "ArgMin", "NonZero", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not",
    "And", "Or", "Xor", "IsNaN", "IsInf",
})  # fmt: skip
_MOST_LISTED = 12  # operators in a message, which then still fits a terminal
_Arrived = dict[str, list[str]]


@dataclass(frozen=True)
class Missing:
    """An operator that cannot be differentiated: how many nodes, the first of them, and why."""

    op: str
    count: int
    first_node: str
    reason: str = ""

    def __str__(self) -> str:
        nodes = f"{self.count} node{'s' if self.count > 1 else ''}, first '{self.first_node}'"
        return f"{self.op} ({nodes}: {self.reason})" if self.reason else f"{self.op} ({nodes})"


def _between(
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
    """Operators between the image and the scores that have no rule; a quick check that ignores attributes.

    The model has no functions of its own.
    """
    graph = model.graph
    casts = [node for node in graph.node if node.op_type == "Cast"]
    integers = {node.output[0] for node in casts if edit.attribute(node, "to", TensorProto.FLOAT) not in FLOATS}
    path = _between(graph, [input_name], [output], lambda name: name not in integers)
    nodes = [Node(n) for n in graph.node if not path.isdisjoint(n.output) and not path.isdisjoint(edit.names_read(n))]
    version = edit.opset(model)
    return _grouped((node, "") for node in nodes if not _has_rule(node, path, version))


def _has_rule(node: Node, path: set[str], version: int) -> bool:
    if node.operator in QUANTISED or fused.is_fused(node.proto, version):
        return True
    if node.operator == "If":  # resolved where its condition depends on shapes alone
        return node.x not in path
    return node.proto.domain in edit.STANDARD_DOMAINS and (node.operator in RULES or node.operator in SPELLED_OUT)


def _grouped(gaps: Iterable[tuple[Node, str]]) -> list[Missing]:
    """Nodes without a rule, grouped by operator and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node, reason in gaps:
        domain = node.proto.domain
        name = node.operator if domain in edit.STANDARD_DOMAINS else f"{domain}.{node.operator}"
        groups.setdefault((name, reason), []).append(node.proto.name or node.y)
    return [Missing(op, len(names), names[0], reason) for (op, reason), names in groups.items()]


def _no_rules(missing: list[Missing]) -> NoGradient:
    """The error that lists all missing rules."""
    rest = len(missing) - _MOST_LISTED
    gaps = ", ".join(map(str, missing[:_MOST_LISTED])) + (f" and {rest} more" if rest > 0 else "")
    them = "it" if len(missing) == 1 else "them"
    return NoGradient(f"no gradient rule for {gaps}", f", or ask the vendor for an export without {them}")


def backward(b: Builder, graph: onnx.GraphProto, seeds: Mapping[str, str], wrt: Iterable[str]) -> dict[str, str]:
    """Names of the gradients of sum(seed · tensor), over all seeded tensors, with respect to each tensor in `wrt`."""
    targets = list(wrt)
    kinds, float_kind = b.facts.kinds, b.facts.float_kind
    carrying = _between(graph, targets, seeds, lambda name: kinds.get(name, float_kind) == float_kind)
    arrived: _Arrived = {name: [seed] for name, seed in seeds.items()}
    gaps: list[tuple[Node, str]] = []
    for proto in reversed(list(graph.node)):
        node = Node(proto)
        if carrying.isdisjoint(edit.names_read(proto)) or arrived.keys().isdisjoint(node.outputs):
            continue
        try:
            if node.operator not in RULES or proto.domain not in edit.STANDARD_DOMAINS:
                raise NoRule
            results = [_total(b, arrived, name) for name in node.outputs]
            grads = RULES[node.operator](b, node, results, [name in carrying for name in node.inputs])
        except NoRule as reason:
            gaps.append((node, str(reason)))
            grads = [node.y] * len(node.inputs)  # placeholders: the walk continues, so that one error names all gaps
        for name, grad in zip(node.inputs, grads, strict=False):
            if name in carrying and grad is not None:
                arrived.setdefault(name, []).append(grad)
    if gaps:
        raise _no_rules(_grouped(reversed(gaps)))
    return {name: _total(b, arrived, name) or unreached(name, seeds) for name in targets}


def _total(b: Builder, arrived: _Arrived, name: str) -> str | None:
    """The sum of all gradients that arrived at a tensor."""
    parts = arrived.get(name, [])
    if len(parts) > 1:
        parts[:] = [b.op("Add" if len(parts) == 2 else "Sum", *parts)]
    return parts[0] if parts else None


def unreached(name: str, seeds: Iterable[str]) -> NoReturn:
    """Refuse a tensor that has no gradient."""
    outputs = ", ".join(seeds)
    raise NoGradient(f"output '{outputs}' does not depend on '{name}', or only through rounding")
