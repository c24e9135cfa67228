"""Reverse-mode differentiation: the walk.

Only nodes on a path from what is differentiated by to what is differentiated are visited; weights and the arithmetic of
shapes need no rules. A tensor that is read several times receives several gradients, which are summed.
"""

from collections.abc import Iterable, Mapping
from typing import NoReturn

import onnx

from auditkit.errors import BadInput
from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.missing import between, counted, sentence
from auditkit.graph.gradient.node import Node
from auditkit.graph.gradient.registry import RULES, STANDARD, NoRule

Arrived = dict[str, list[str]]


def backward(b: Builder, graph: onnx.GraphProto, seeds: Mapping[str, str], wrt: Iterable[str]) -> dict[str, str]:
    """Names of the gradients of sum(seed · tensor), over all seeded tensors, with respect to each tensor in `wrt`."""
    wanted = list(wrt)
    carrying = between(graph, wanted, seeds, b.is_float)
    arrived: Arrived = {name: [seed] for name, seed in seeds.items()}
    gaps: list[tuple[Node, str]] = []
    for proto in reversed(list(graph.node)):
        node = Node(proto)
        if carrying.isdisjoint(node.reads) or arrived.keys().isdisjoint(node.outputs):
            continue
        try:
            found = _through(b, node, arrived, carrying)
        except NoRule as reason:
            gaps.append((node, str(reason)))
            found = [node.y] * len(node.inputs)  # anything: the walk goes on, so that all gaps are told at once
        for name, grad in zip(node.inputs, found, strict=False):
            if name in carrying and grad is not None:
                arrived.setdefault(name, []).append(grad)
    if gaps:
        raise BadInput(sentence(counted(reversed(gaps))))
    return {name: _total(b, arrived, name) or unreached(name, seeds) for name in wanted}


def _through(b: Builder, node: Node, arrived: Arrived, carrying: set[str]) -> list[str | None]:
    """Gradients of a node's operands from those of its results."""
    if node.operator not in RULES or node.proto.domain not in STANDARD:
        raise NoRule
    grads = [_total(b, arrived, name) for name in node.outputs]
    return list(RULES[node.operator](b, node, grads, [name in carrying for name in node.inputs]))


def _total(b: Builder, arrived: Arrived, name: str) -> str | None:
    """All gradients that arrived at a tensor, as one."""
    parts = arrived.get(name, [])
    if len(parts) > 1:
        parts[:] = [b.op("Add" if len(parts) == 2 else "Sum", *parts)]
    return parts[0] if parts else None


def unreached(name: str, seeds: Iterable[str]) -> NoReturn:
    """Refuse what has no gradient."""
    raise BadInput(
        f"no gradient flows from '{', '.join(seeds)}' to '{name}': the one does not depend on the other, or only in "
        f"steps, as through rounding. Use --gradient differences."
    )
