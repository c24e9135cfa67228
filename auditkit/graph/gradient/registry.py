"""Which rule differentiates which operator.

Most operators have one operand that a gradient flows to. Their rule maps the gradient of the result to its gradient:

    @rule("Exp")
    def exp(b, node, grad):
        return b.mul(grad, node.y)

Where there are several, the rule is called for each operand that needs a gradient:

    @rule_per_operand("Mul")
    def mul(b, node, grad, index):
        return b.mul(grad, node.inputs[1 - index])

Rules of one line stand in tables. A rule for several results goes into `RULES` directly.
"""

from collections.abc import Callable, Sequence

from auditkit.graph.gradient.builder import Builder, Node, NoRule

Grads = Sequence[str | None]  # None where no gradient flows
RULES: dict[str, Callable[[Builder, Node, Grads, Sequence[bool]], Grads]] = {}
_RuleOfFirst = Callable[[Builder, Node, str], str]
RulePerOperand = Callable[[Builder, Node, str, int], str]


def rule(*operators: str) -> Callable[[_RuleOfFirst], _RuleOfFirst]:
    """Register a rule for the first operand of operators with one result."""

    def register(function: _RuleOfFirst) -> _RuleOfFirst:
        def apply(b: Builder, node: Node, grads: Grads, needed: Sequence[bool]) -> Grads:
            if any(needed[1:]):
                raise NoRule(f"its operand {needed.index(True, 1) + 1} depends on the image")
            return [function(b, node, _only_result(grads))]

        RULES.update(dict.fromkeys(operators, apply))
        return function

    return register


def rules(**table: _RuleOfFirst) -> None:
    """Register a rule for the first operand of each operator."""
    for operator, function in table.items():
        rule(operator)(function)


def rule_per_operand(*operators: str) -> Callable[[RulePerOperand], RulePerOperand]:
    """Register a rule for any operand."""

    def register(function: RulePerOperand) -> RulePerOperand:
        def apply(b: Builder, node: Node, grads: Grads, needed: Sequence[bool]) -> Grads:
            grad = _only_result(grads)
            return [function(b, node, grad, index) if need else None for index, need in enumerate(needed)]

        RULES.update(dict.fromkeys(operators, apply))
        return function

    return register


def _only_result(grads: Grads) -> str:
    if grads[0] is None or any(grads[1:]):
        raise NoRule("a side result of it is used")
    return grads[0]
