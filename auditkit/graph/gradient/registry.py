"""Which rule differentiates which operator.

Most operators have one operand that a gradient flows to. Their rule maps the gradient of the result to its gradient:

    @rule("Exp")
    def exp(b, node, grad):
        return b.mul(grad, node.y)

Where there are several, the rule is called for each operand that needs a gradient:

    @rule_per_operand("Mul", broadcast=True)
    def mul(b, node, grad, index):
        return b.mul(grad, node.inputs[1 - index])

`broadcast` sums each gradient to its operand's shape. An operator with several results has a `rule_of_results`.
"""

from collections.abc import Callable, Sequence

from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node, NoRule

Grads = Sequence[str | None]  # None where no gradient flows
Rule = Callable[[Builder, Node, Grads, Sequence[bool]], Grads]
_RuleOfFirst = Callable[[Builder, Node, str], str]
_RulePerOperand = Callable[[Builder, Node, str, int], str]
_RuleOfResults = Callable[[Builder, Node, Grads], str]

RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[_RuleOfFirst], _RuleOfFirst]:
    """Register a rule for the first operand of operators with one result."""

    def register(function: _RuleOfFirst) -> _RuleOfFirst:
        rule_of_results(*operators)(lambda b, node, grads: function(b, node, _only_result(grads)))
        return function

    return register


def rule_of_results(*operators: str) -> Callable[[_RuleOfResults], _RuleOfResults]:
    """Register a rule for the first operand that takes a gradient for each result; some may be missing."""

    def register(function: _RuleOfResults) -> _RuleOfResults:
        def apply(b: Builder, node: Node, grads: Grads, needed: Sequence[bool]) -> Grads:
            _only_first(needed)
            return [function(b, node, grads)]

        RULES.update(dict.fromkeys(operators, apply))
        return function

    return register


def rule_per_operand(*operators: str, broadcast: bool = False) -> Callable[[_RulePerOperand], _RulePerOperand]:
    """Register a rule for any operand."""

    def register(function: _RulePerOperand) -> _RulePerOperand:
        def gradient(b: Builder, node: Node, grads: Grads, index: int) -> str:
            grad = function(b, node, _only_result(grads), index)
            return b.summed_to(grad, b.shape(node.y), b.shape(node.inputs[index])) if broadcast else grad

        def apply(b: Builder, node: Node, grads: Grads, needed: Sequence[bool]) -> Grads:
            return [gradient(b, node, grads, index) if need else None for index, need in enumerate(needed)]

        RULES.update(dict.fromkeys(operators, apply))
        return function

    return register


def _only_first(needed: Sequence[bool]) -> None:
    if any(needed[1:]):
        raise NoRule(f"its operand {needed.index(True, 1) + 1} depends on the image")


def _only_result(grads: Grads) -> str:
    if grads[0] is None or any(grads[1:]):
        raise NoRule("a side result of it is used")
    return grads[0]
