"""Normalisations and softmax."""

from collections.abc import Sequence

import numpy as np

from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node, NoRule
from auditkit.graph.gradient.registry import rule


@rule("Softmax")
def softmax(b: Builder, node: Node, grad: str) -> str:
    """y (g - Σ g y)."""
    weighted = b.mul(grad, node.y)
    return b.sub(weighted, b.mul(node.y, b.sum(weighted, [node.get("axis", -1)])))


@rule("LogSoftmax")
def log_softmax(b: Builder, node: Node, grad: str) -> str:
    """g - exp(y) Σ g."""
    return b.sub(grad, b.mul(b.exp(node.y), b.sum(grad, [node.get("axis", -1)])))


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
