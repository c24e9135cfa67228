"""Reductions, global pools, running sums, softmax and normalisations."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from auditkit.graph.gradient.builder import Builder, Node, NoRule, rule, rules


def _axes(b: Builder, node: Node) -> list[int]:
    """The reduced axes, counted from the front."""
    rank = len(b.shape(node.x))
    if node.operator.startswith("Global"):
        return list(range(2, rank))
    axes = b.fixed(node.operand(1), "its axes") if node.operand(1) else []
    if not axes and node.get("noop_with_empty_axes", 0):
        raise NoRule("it has no axes and sets noop_with_empty_axes")
    return [axis % rank for axis in axes] or list(range(rank))


def _mean(b: Builder, n: Node, g: str, y: str, axes: list[int]) -> str:
    sizes = [b.shape(n.x)[axis] for axis in axes]
    fixed_sizes = [size for size in sizes if size is not None]
    share: str | float = 1 / prod(fixed_sizes)
    if len(fixed_sizes) < len(sizes):  # a mean over the batch
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
    "GlobalAveragePool": _mean,
    "ReduceMax": _extreme,
    "ReduceMin": _extreme,
    "GlobalMaxPool": _extreme,
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


def _softmax(b: Builder, node: Node, grad: str) -> str:
    """y (g - Σ g y)."""
    weighted = b.mul(grad, node.y)
    return b.sub(weighted, b.mul(node.y, b.sum(weighted, [node.get("axis", -1)])))


rules(
    Softmax=_softmax,
    LogSoftmax=lambda b, n, g: b.sub(g, b.mul(b.exp(n.y), b.sum(g, [n.get("axis", -1)]))),
    # The running sum from the other end.
    CumSum=lambda b, n, g: b.op(
        "CumSum", g, n.inputs[1], exclusive=n.get("exclusive", 0), reverse=1 - n.get("reverse", 0)
    ),
)


@rule("BatchNormalization")
def batch_normalization(b: Builder, node: Node, grad: str) -> str:
    """g times the channel's scale / √(variance + ε)."""
    if node.get("training_mode", 0):
        raise NoRule("it is in training mode")
    scale, variance = node.inputs[1], node.inputs[4]
    factor = b.div(scale, b.op("Sqrt", b.add(variance, node.get("epsilon", 1e-5))))
    return b.mul(grad, _per_channel(b, factor, len(b.shape(node.x))))


def _per_channel(b: Builder, x: str, rank: int) -> str:
    return b.reshape(x, (None, *[1] * (rank - 2)))


def _centred(b: Builder, grad: str, normal: str, inverse: str, axes: Sequence[int]) -> str:
    """For x̂ = (x - mean) r, r = 1/√(variance + ε): r (g - mean g - x̂ mean(g x̂))."""
    projection = b.mul(normal, b.mean(b.mul(grad, normal), axes))
    return b.mul(inverse, b.sub(b.sub(grad, b.mean(grad, axes)), projection))


@rule("LayerNormalization")
def layer_normalization(b: Builder, node: Node, grad: str) -> str:
    """As `_centred`; the mean and 1/√(variance + ε) are side results of the operator."""
    rank = len(b.shape(node.x))
    axes = range(node.get("axis", -1) % rank, rank)
    mean, inverse = b.side_output(node, 1), b.side_output(node, 2)
    return _centred(b, b.mul(grad, node.inputs[1]), b.mul(b.sub(node.x, mean), inverse), inverse, axes)


@rule("InstanceNormalization")
def instance_normalization(b: Builder, node: Node, grad: str) -> str:
    """As `_centred`, for each channel of each image."""
    rank = len(b.shape(node.x))
    axes = range(2, rank)
    centred = b.sub(node.x, b.mean(node.x, axes))
    variance = b.mean(b.square(centred), axes)
    inverse = b.op("Reciprocal", b.op("Sqrt", b.add(variance, node.get("epsilon", 1e-5))))
    scaled = b.mul(grad, _per_channel(b, node.inputs[1], rank))
    return _centred(b, scaled, b.mul(centred, inverse), inverse, axes)


@rule("LpNormalization")
def lp_normalization(b: Builder, node: Node, grad: str) -> str:
    """y = x / |x|: (g - d|x| Σ g y) / |x|, where d|x| is y for p = 2 and the sign for p = 1."""
    p, axes = node.get("p", 2), [node.get("axis", -1)]
    length = b.op(f"ReduceL{p}", node.x, b.constant(axes), keepdims=1)
    slope = node.y if p == 2 else b.op("Sign", node.x)
    return b.div(b.sub(grad, b.mul(slope, b.sum(b.mul(grad, node.y), axes))), length)


@rule("LRN")
def lrn(b: Builder, node: Node, grad: str) -> str:
    """y = x s^-β, s = k + α/n Σ x² over n neighbouring channels: g s^-β - 2αβ/n x Σ' (g x s^(-β-1))."""
    alpha, beta, size = node.get("alpha", 1e-4), node.get("beta", 0.75), node.get("size", 1)
    shape = b.shape(node.x)
    channels = np.arange(b.size(node.x, 1))
    distance = channels[None, :] - channels[:, None]
    window = ((distance >= -((size - 1) // 2)) & (distance <= size // 2)).astype(float)
    s = b.add(b.along(1, window * alpha / size, b.square(node.x), shape), node.get("bias", 1.0))
    direct = b.mul(grad, b.op("Pow", s, -beta))
    through_sum = b.along(1, window.T * 2 * alpha * beta / size, b.div(b.mul(direct, node.x), s), shape)
    return b.sub(direct, b.mul(node.x, through_sum))
