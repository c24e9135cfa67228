"""Which operator is differentiated by which rule.

Most operators have one operand that counts, and their rule maps the gradient of the result to that of this operand:

    @rule("Exp")
    def exp(b, node, grad):
        return b.mul(grad, node.y)

Where several count, the rule is asked for one at a time:

    @rule_per_operand("Mul", broadcast=True)
    def mul(b, node, grad, index):
        return b.mul(grad, node.inputs[1 - index])

`broadcast` sums each gradient down to its operand's shape. An operator with several results has a `rule_of_results`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from auditkit.graph.gradient.node import Node

if TYPE_CHECKING:
    from auditkit.graph.gradient.builder import Builder

Grads = Sequence[str | None]  # None where no gradient flows
Rule = Callable[["Builder", Node, Grads, Sequence[bool]], Grads]
OfOne = Callable[["Builder", Node, str], str]
PerOperand = Callable[["Builder", Node, str, int], str]
OfResults = Callable[["Builder", Node, Grads], str]

STANDARD = ("", "ai.onnx")
RULES: dict[str, Rule] = {}


class NoRule(Exception):
    """Why this very node cannot be differentiated, although its operator has a rule."""


def rule(*operators: str) -> Callable[[OfOne], OfOne]:
    """Register a rule for the first operand."""

    def register(found: OfOne) -> OfOne:
        def applied(b: "Builder", node: Node, grads: Grads, needed: Sequence[bool]) -> Grads:
            _only_first(needed)
            return [found(b, node, _only_result(grads))]

        RULES.update(dict.fromkeys(operators, applied))
        return found

    return register


def rule_per_operand(*operators: str, broadcast: bool = False) -> Callable[[PerOperand], PerOperand]:
    """Register a rule for any operand."""

    def register(found: PerOperand) -> PerOperand:
        def applied(b: "Builder", node: Node, grads: Grads, needed: Sequence[bool]) -> Grads:
            given: list[str | None] = [None] * len(needed)
            for index in (index for index, wanted in enumerate(needed) if wanted):
                grad = found(b, node, _only_result(grads), index)
                given[index] = b.summed_to(grad, b.shape(node.y), b.shape(node.inputs[index])) if broadcast else grad
            return given

        RULES.update(dict.fromkeys(operators, applied))
        return found

    return register


def rule_of_results(*operators: str) -> Callable[[OfResults], OfResults]:
    """Register a rule that takes a gradient for each result, some of them perhaps missing."""

    def register(found: OfResults) -> OfResults:
        def applied(b: "Builder", node: Node, grads: Grads, needed: Sequence[bool]) -> Grads:
            _only_first(needed)
            return [found(b, node, grads)]

        RULES.update(dict.fromkeys(operators, applied))
        return found

    return register


def _only_first(needed: Sequence[bool]) -> None:
    for index, wanted in enumerate(needed[1:], start=2):
        if wanted:
            raise NoRule(f"its operand {index} depends on the image")


def _only_result(grads: Grads) -> str:
    if grads[0] is None or any(grads[1:]):
        raise NoRule("a side result of it is used")
    return grads[0]
