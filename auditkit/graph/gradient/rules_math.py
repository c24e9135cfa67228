"""Elementwise operators: activations, arithmetic, choices."""

from collections.abc import Callable
from math import pi, sqrt

from auditkit.graph.gradient.builder import Builder, Node, RulePerOperand, rule, rule_per_operand, rules


def _gelu(b: Builder, n: Node) -> str:
    """Φ(x) + x φ(x), or the same for the approximation ½x (1 + tanh u), u = √(2/π) (x + 0.044715 x³)."""
    if n.get("approximate", "none") == "none":
        below = b.mul(b.add(b.op("Erf", b.mul(n.x, 1 / sqrt(2))), 1.0), 0.5)
        density = b.mul(b.exp(b.mul(b.square(n.x), -0.5)), 1 / sqrt(2 * pi))
        return b.add(below, b.mul(n.x, density))
    c, k = sqrt(2 / pi), 0.044715
    squared = b.square(n.x)
    tanh = b.op("Tanh", b.mul(n.x, b.add(b.mul(squared, c * k), c)))
    slope = b.mul(b.sub(1.0, b.square(tanh)), b.add(b.mul(squared, 3 * c * k), c))
    return b.mul(b.add(b.add(tanh, 1.0), b.mul(n.x, slope)), 0.5)


def _selu(b: Builder, n: Node) -> str:
    alpha, gamma = n.get("alpha", 1.6732632423543772), n.get("gamma", 1.0507009873554805)
    return b.where(b.greater(n.x, 0.0), gamma, b.add(n.y, alpha * gamma))


def _hard_swish(b: Builder, n: Node) -> str:
    """Of y = x clip(x/6 + ½, 0, 1)."""
    rising = b.where(b.greater(n.x, -3.0), b.add(b.mul(n.x, 1 / 3), 0.5), 0.0)
    return b.where(b.less(n.x, 3.0), rising, 1.0)


def _root(b: Builder, x: str, sign: float, plus: float) -> str:
    """√(plus + sign · x²)."""
    return b.op("Sqrt", b.add(b.mul(b.square(x), sign), plus))


# The derivative of y = f(x), in terms of x or of y. At a kink: the slope on the left, as in torch.
_DERIVATIVES: dict[str, Callable[[Builder, Node], str]] = {
    "Abs": lambda b, n: b.op("Sign", n.x),
    "Acos": lambda b, n: b.div(-1.0, _root(b, n.x, -1, 1)),
    "Acosh": lambda b, n: b.div(1.0, _root(b, n.x, 1, -1)),
    "Asin": lambda b, n: b.div(1.0, _root(b, n.x, -1, 1)),
    "Asinh": lambda b, n: b.div(1.0, _root(b, n.x, 1, 1)),
    "Atan": lambda b, n: b.div(1.0, b.add(b.square(n.x), 1.0)),
    "Atanh": lambda b, n: b.div(1.0, b.sub(1.0, b.square(n.x))),
    "Cos": lambda b, n: b.neg(b.op("Sin", n.x)),
    "Cosh": lambda b, n: b.op("Sinh", n.x),
    "Elu": lambda b, n: b.where(b.greater(n.x, 0.0), 1.0, b.add(n.y, n.get("alpha", 1.0))),
    "Erf": lambda b, n: b.mul(b.exp(b.neg(b.square(n.x))), 2 / sqrt(pi)),
    "Exp": lambda _, n: n.y,
    "Gelu": _gelu,
    "HardSwish": _hard_swish,
    "LeakyRelu": lambda b, n: b.where(b.greater(n.x, 0.0), 1.0, n.get("alpha", 0.01)),
    "Log": lambda b, n: b.div(1.0, n.x),
    "Reciprocal": lambda b, n: b.neg(b.square(n.y)),
    "Selu": _selu,
    "Sigmoid": lambda b, n: b.mul(n.y, b.sub(1.0, n.y)),
    "Sin": lambda b, n: b.op("Cos", n.x),
    "Sinh": lambda b, n: b.op("Cosh", n.x),
    "Softplus": lambda b, n: b.op("Sigmoid", n.x),
    "Softsign": lambda b, n: b.op("Reciprocal", b.square(b.add(b.op("Abs", n.x), 1.0))),
    "Sqrt": lambda b, n: b.div(0.5, n.y),
    "Tan": lambda b, n: b.add(b.square(n.y), 1.0),
    "Tanh": lambda b, n: b.sub(1.0, b.square(n.y)),
}


@rule(*_DERIVATIVES)
def multiplied(b: Builder, node: Node, grad: str) -> str:
    """g f'(x)."""
    return b.mul(grad, _DERIVATIVES[node.operator](b, node))


def _between(b: Builder, x: str, low: str | float | None, high: str | float | None, grad: str) -> str:
    """g where x lies strictly between two bounds, either of which may be missing; 0 elsewhere."""
    above = b.greater(x, low) if low is not None else None
    below = b.less(x, high) if high is not None else None
    is_open = b.op("And", above, below) if above and below else above or below
    return b.where(is_open, grad, 0.0) if is_open else grad


rules(
    **dict.fromkeys(("Identity", "Dropout", "Cast", "CastLike"), lambda _b, _n, g: g),  # there is one float type
    Neg=lambda b, _n, g: b.neg(g),
    # Reads y, not x: a convolution that nothing but its Relu reads is fused with it.
    Relu=lambda b, n, g: b.where(b.greater(n.y, 0.0), g, 0.0),
    ThresholdedRelu=lambda b, n, g: b.where(b.greater(n.x, n.get("alpha", 1.0)), g, 0.0),
    Shrink=lambda b, n, g: b.where(b.greater(b.op("Abs", n.x), n.get("lambd", 0.5)), g, 0.0),
    PRelu=lambda b, n, g: b.where(b.greater(n.x, 0.0), g, b.mul(g, n.inputs[1])),
    HardSigmoid=lambda b, n, g: _between(b, n.y, 0.0, 1.0, b.mul(g, n.get("alpha", 0.2))),
    Clip=lambda b, n, g: _between(b, n.y, n.operand(1), n.operand(2), g),  # 0 at the bounds, as in torch's relu6
)


def _power(b: Builder, node: Node, grad: str, index: int) -> str:
    """g p x^(p-1), g y log x."""
    if index:
        return b.mul(grad, b.mul(node.y, b.op("Log", node.x)))
    value = b.value(node.inputs[1])
    if value is not None and value.size == 1:
        p = float(value.reshape(()))
        return b.mul(grad, b.mul(node.x if p == 2 else b.op("Pow", node.x, p - 1), p))
    exponent = b.as_float(node.inputs[1])
    return b.mul(grad, b.mul(exponent, b.op("Pow", node.x, b.sub(exponent, 1.0))))


def _extreme(b: Builder, node: Node, grad: str, index: int) -> str:
    """g where the operand is the extreme; equal ones share it, as in torch."""
    chosen = [b.as_float(b.op("Equal", name, node.y)) for name in node.inputs]
    return b.div(b.mul(grad, chosen[index]), b.op("Sum", *chosen))


# The gradient of an operand, before it is summed to the operand's shape.
_ARITHMETIC: dict[str, RulePerOperand] = {
    "Add": lambda _b, _n, g, _i: g,
    "Sum": lambda _b, _n, g, _i: g,
    "Sub": lambda b, _n, g, i: b.neg(g) if i else g,
    "Mean": lambda b, n, g, _i: b.mul(g, 1 / len(n.inputs)),
    "Mul": lambda b, n, g, i: b.mul(g, n.inputs[1 - i]),
    "Div": lambda b, n, g, i: b.neg(b.mul(b.div(g, n.inputs[1]), n.y)) if i else b.div(g, n.inputs[1]),
    "Pow": _power,
    "Max": _extreme,
    "Min": _extreme,
    # y = x₁ - x₂ q with an integer quotient q
    "Mod": lambda b, n, g, i: b.neg(b.mul(g, b.div(b.sub(n.x, n.y), n.inputs[1]))) if i else g,
    "Where": lambda b, n, g, i: b.where(n.x, g, 0.0) if i == 1 else b.where(n.x, 0.0, g),
}


@rule_per_operand(*_ARITHMETIC)
def arithmetic(b: Builder, node: Node, grad: str, index: int) -> str:
    """As in the table; summed over the axes along which the operand was broadcast."""
    grad = _ARITHMETIC[node.operator](b, node, grad, index)
    return b.summed_to(grad, b.shape(node.y), b.shape(node.inputs[index]))
