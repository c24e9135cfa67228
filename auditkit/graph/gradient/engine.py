"""Reverse-mode differentiation: the walk.

Only nodes on a path from the tensors in `wrt` to the seeded ones are visited; weights and the arithmetic of shapes need
no rules. A tensor that several nodes read receives several gradients, which are summed.
"""

from collections.abc import Iterable, Mapping
from typing import NoReturn

import onnx

from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.graph.gradient.builder import Builder, Node, NoRule
from auditkit.graph.gradient.missing import between, grouped, missing_message
from auditkit.graph.gradient.registry import RULES, Grads

_Arrived = dict[str, list[str]]


def backward(b: Builder, graph: onnx.GraphProto, seeds: Mapping[str, str], wrt: Iterable[str]) -> dict[str, str]:
    """Names of the gradients of sum(seed · tensor), over all seeded tensors, with respect to each tensor in `wrt`."""
    targets = list(wrt)
    carrying = between(graph, targets, seeds, b.is_float)
    arrived: _Arrived = {name: [seed] for name, seed in seeds.items()}
    gaps: list[tuple[Node, str]] = []
    for proto in reversed(list(graph.node)):
        node = Node(proto)
        if carrying.isdisjoint(edit.names_read(proto)) or arrived.keys().isdisjoint(node.outputs):
            continue
        try:
            grads = _operand_gradients(b, node, arrived, carrying)
        except NoRule as reason:
            gaps.append((node, str(reason)))
            grads = [node.y] * len(node.inputs)  # placeholders: the walk continues, so that one error names all gaps
        for name, grad in zip(node.inputs, grads, strict=False):
            if name in carrying and grad is not None:
                arrived.setdefault(name, []).append(grad)
    if gaps:
        raise BadInput(missing_message(grouped(reversed(gaps))))
    return {name: _total(b, arrived, name) or unreached(name, seeds) for name in targets}


def _operand_gradients(b: Builder, node: Node, arrived: _Arrived, carrying: set[str]) -> Grads:
    """Gradients of a node's operands from those of its results."""
    if node.operator not in RULES or node.proto.domain not in edit.STANDARD_DOMAINS:
        raise NoRule
    grads = [_total(b, arrived, name) for name in node.outputs]
    return RULES[node.operator](b, node, grads, [name in carrying for name in node.inputs])


def _total(b: Builder, arrived: _Arrived, name: str) -> str | None:
    """The sum of all gradients that arrived at a tensor."""
    parts = arrived.get(name, [])
    if len(parts) > 1:
        parts[:] = [b.op("Add" if len(parts) == 2 else "Sum", *parts)]
    return parts[0] if parts else None


def unreached(name: str, seeds: Iterable[str]) -> NoReturn:
    """Refuse a tensor that has no gradient."""
    raise BadInput(
        f"output '{', '.join(seeds)}' does not depend on '{name}', or only through rounding. "
        f"Use --gradient differences."
    )
