"""Reductions and running sums."""

from collections.abc import Callable
from math import prod

from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node, NoRule
from auditkit.graph.gradient.registry import rule


def _axes(b: Builder, node: Node) -> list[int]:
    """The reduced axes, counted from the front."""
    rank = len(b.shape(node.x))
    axes = b.fixed(node.operand(1), "its axes") if node.operand(1) else []
    if not axes and node.get("noop_with_empty_axes", 0):
        raise NoRule("it has no axes and sets noop_with_empty_axes")
    return [axis % rank for axis in axes] or list(range(rank))


def _mean(b: Builder, n: Node, g: str, y: str, axes: list[int]) -> str:
    sizes = [b.shape(n.x)[axis] for axis in axes]
    known = [size for size in sizes if size is not None]
    share: str | float = 1 / prod(known)
    if len(known) < len(sizes):  # a mean over the batch
        share = b.div(*(b.as_float(b.op("Size", name)) for name in (y, n.x)))
    return b.expand_like(b.mul(g, share), n.x, axes)


def _extreme(b: Builder, n: Node, g: str, y: str, axes: list[int]) -> str:
    """Equal extremes share the gradient, as in torch's amax."""
    chosen = b.as_float(b.op("Equal", n.x, y))
    return b.mul(chosen, b.div(g, b.sum(chosen, axes)))


def _product(b: Builder, n: Node, g: str, y: str, axes: list[int]) -> str:
    """y / x, but at a single zero the product of the rest, and 0 at one of several zeros."""
    zero = b.op("Equal", n.x, 0.0)
    rest = b.where(zero, 1.0, n.x)
    rest_product = b.op("ReduceProd", rest, b.constant(axes), keepdims=1)
    zeros = b.sum(b.as_float(zero), axes)
    at_zero = b.where(b.op("Equal", zeros, 1.0), rest_product, 0.0)
    return b.mul(g, b.where(zero, at_zero, b.div(y, rest)))


# The gradient of x, from g and y with the reduced axes kept.
_REDUCTIONS: dict[str, Callable[[Builder, Node, str, str, list[int]], str]] = {
    "ReduceSum": lambda b, n, g, _y, axes: b.expand_like(g, n.x, axes),
    "ReduceMean": _mean,
    "ReduceMax": _extreme,
    "ReduceMin": _extreme,
    "ReduceProd": _product,
    "ReduceL1": lambda b, n, g, _y, _a: b.mul(b.op("Sign", n.x), g),
    # 0 where the norm is 0, as in torch
    "ReduceL2": lambda b, n, g, y, _a: b.mul(n.x, b.where(b.greater(y, 0.0), b.div(g, y), 0.0)),
    "ReduceSumSquare": lambda b, n, g, _y, _a: b.mul(n.x, b.mul(g, 2.0)),
    "ReduceLogSum": lambda b, n, g, y, axes: b.expand_like(b.mul(g, b.exp(b.neg(y))), n.x, axes),
    "ReduceLogSumExp": lambda b, n, g, y, _a: b.mul(b.exp(b.sub(n.x, y)), g),
}


@rule(*_REDUCTIONS)
def reduced(b: Builder, node: Node, grad: str) -> str:
    """As in the table."""
    axes, y = _axes(b, node), node.y
    if not node.get("keepdims", 1):
        grad, y = (b.op("Unsqueeze", x, b.constant(axes)) for x in (grad, y))
    return _REDUCTIONS[node.operator](b, node, grad, y, axes)


@rule("CumSum")
def cum_sum(b: Builder, node: Node, grad: str) -> str:
    """The running sum from the other end."""
    exclusive, reverse = node.get("exclusive", 0), 1 - node.get("reverse", 0)
    return b.op("CumSum", grad, node.inputs[1], exclusive=exclusive, reverse=reverse)
