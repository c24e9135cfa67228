"""Elementwise operators: activations, arithmetic, choices."""

from collections.abc import Callable
from math import pi, sqrt

from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node
from auditkit.graph.gradient.registry import rule, rule_per_operand

_Derivative = Callable[[Builder, Node], str]


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


def _root(b: Builder, x: str, sign: float, plus: float) -> str:
    """√(plus + sign · x²)."""
    return b.op("Sqrt", b.add(b.mul(b.square(x), sign), plus))


# The derivative of y = f(x), in terms of x or of y. At a kink: the slope on the left, as in torch.
_DERIVATIVES: dict[str, _Derivative] = {
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


def _inside(b: Builder, x: str, low: str | float | None, high: str | float | None) -> str | None:
    """Where x lies strictly between two bounds, either of which may be missing."""
    above = b.greater(x, low) if low is not None else None
    below = b.less(x, high) if high is not None else None
    return b.op("And", above, below) if above and below else above or below


# Where the gradient passes, and the slope by which it is multiplied there.
_GATES: dict[str, tuple[_Derivative, Callable[[Node], float]]] = {
    # Reads y, not x: a convolution that nothing but its Relu reads is fused with it.
    "Relu": (lambda b, n: b.greater(n.y, 0.0), lambda _: 1.0),
    "ThresholdedRelu": (lambda b, n: b.greater(n.x, n.get("alpha", 1.0)), lambda _: 1.0),
    "Shrink": (lambda b, n: b.greater(b.op("Abs", n.x), n.get("lambd", 0.5)), lambda _: 1.0),
    "HardSigmoid": (lambda b, n: _inside(b, n.y, 0.0, 1.0) or "", lambda n: n.get("alpha", 0.2)),
}


@rule(*_DERIVATIVES)
def multiplied(b: Builder, node: Node, grad: str) -> str:
    """g f'(x)."""
    return b.mul(grad, _DERIVATIVES[node.operator](b, node))


@rule(*_GATES)
def gated(b: Builder, node: Node, grad: str) -> str:
    """g times a constant where the gate is open."""
    is_open, slope = _GATES[node.operator]
    return b.where(is_open(b, node), b.mul(grad, slope(node)), 0.0)


@rule("Identity", "Dropout", "Cast", "CastLike")
def identity(_b: Builder, _node: Node, grad: str) -> str:
    """g: the graph has one float type, so a cast between floats changes nothing."""
    return grad


@rule("Neg")
def neg(b: Builder, _node: Node, grad: str) -> str:
    """-g."""
    return b.neg(grad)


@rule("Clip")
def clip(b: Builder, node: Node, grad: str) -> str:
    """g between the bounds; 0 at them, as in torch's relu6."""
    is_open = _inside(b, node.y, node.operand(1), node.operand(2))
    return b.where(is_open, grad, 0.0) if is_open else grad


@rule("HardSwish")
def hard_swish(b: Builder, node: Node, grad: str) -> str:
    """y = x clip(x/6 + ½, 0, 1)."""
    rising = b.where(b.greater(node.x, -3.0), b.add(b.mul(node.x, 1 / 3), 0.5), 0.0)
    return b.mul(grad, b.where(b.less(node.x, 3.0), rising, 1.0))


@rule("PRelu")
def prelu(b: Builder, node: Node, grad: str) -> str:
    """g, times the slope below 0."""
    return b.where(b.greater(node.x, 0.0), grad, b.mul(grad, node.inputs[1]))


@rule_per_operand("Add", "Sum", broadcast=True)
def add(_b: Builder, _node: Node, grad: str, _index: int) -> str:
    """g."""
    return grad


@rule_per_operand("Sub", broadcast=True)
def sub(b: Builder, _node: Node, grad: str, index: int) -> str:
    """g, -g."""
    return b.neg(grad) if index else grad


@rule_per_operand("Mean", broadcast=True)
def mean(b: Builder, node: Node, grad: str, _index: int) -> str:
    """g / n."""
    return b.mul(grad, 1 / len(node.inputs))


@rule_per_operand("Mul", broadcast=True)
def mul(b: Builder, node: Node, grad: str, index: int) -> str:
    """g times the other operand."""
    return b.mul(grad, node.inputs[1 - index])


@rule_per_operand("Div", broadcast=True)
def div(b: Builder, node: Node, grad: str, index: int) -> str:
    """g / x₂, -g y / x₂."""
    quotient = b.div(grad, node.inputs[1])
    return b.neg(b.mul(quotient, node.y)) if index else quotient


@rule_per_operand("Pow", broadcast=True)
def power(b: Builder, node: Node, grad: str, index: int) -> str:
    """g p x^(p-1), g y log x."""
    if index:
        return b.mul(grad, b.mul(node.y, b.op("Log", node.x)))
    value = b.value(node.inputs[1])
    if value is not None and value.size == 1:
        p = float(value.reshape(()))
        return b.mul(grad, b.mul(node.x if p == 2 else b.op("Pow", node.x, p - 1), p))
    exponent = b.as_float(node.inputs[1])
    return b.mul(grad, b.mul(exponent, b.op("Pow", node.x, b.sub(exponent, 1.0))))


@rule_per_operand("Max", "Min", broadcast=True)
def extreme(b: Builder, node: Node, grad: str, index: int) -> str:
    """g where the operand is the extreme; equal ones share it, as in torch."""
    chosen = [b.as_float(b.op("Equal", name, node.y)) for name in node.inputs]
    return b.div(b.mul(grad, chosen[index]), b.op("Sum", *chosen))


@rule_per_operand("Where", broadcast=True)
def where(b: Builder, node: Node, grad: str, index: int) -> str:
    """g where the operand was chosen."""
    condition = node.inputs[0]
    return b.where(condition, grad, 0.0) if index == 1 else b.where(condition, 0.0, grad)


@rule_per_operand("Mod", broadcast=True)
def mod(b: Builder, node: Node, grad: str, index: int) -> str:
    """y = x₁ - x₂ q with an integer quotient q: g, -g q."""
    quotient = b.div(b.sub(node.inputs[0], node.y), node.inputs[1])
    return b.neg(b.mul(grad, quotient)) if index else grad
