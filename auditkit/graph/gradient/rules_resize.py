"""Resize: along each axis a matrix, whose transpose the gradient takes."""

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node
from auditkit.graph.gradient.registry import NoRule, rule

# Where output position o lies on the input's axis.
COORDINATES: dict[str, Callable[[Array, Any, int, int], Array]] = {
    "half_pixel": lambda o, scale, _n, _m: (o + 0.5) / scale - 0.5,
    "half_pixel_symmetric": lambda o, scale, n, m: n / 2 * (1 - m / (scale * n)) + (o + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda o, scale, _n, m: (o + 0.5) / scale - 0.5 if m > 1 else o * 0.0,
    "align_corners": lambda o, _scale, n, m: o * (n - 1) / (m - 1) if m > 1 else o * 0.0,
    "asymmetric": lambda o, scale, _n, _m: o / scale,
}
ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@rule("Resize")
def resize(b: Builder, node: Node, grad: str) -> str:
    """g mapped back axis by axis."""
    before, after = b.shape(node.x), list(b.shape(node.y))
    scales = _scales(b, node)
    for axis in range(len(before)):
        if before[axis] == after[axis] and scales.get(axis, 1.0) == 1.0:
            continue
        size, wide = b.size(node.x, axis), b.size(node.y, axis)
        matrix = interpolation(node, size, wide, scales.get(axis, wide / size))
        grad = b.along(axis, matrix.T, grad, tuple(after))
        after[axis] = size
    return grad


def _scales(b: Builder, node: Node) -> dict[int, float]:
    """The scale of each axis where it may differ from the ratio of the sizes: it is given, or common to all axes."""
    rank = len(b.shape(node.x))
    axes = [axis % rank for axis in node.get("axes", [])] or range(rank)
    known = b.value(node.operand(2))
    if known is not None and known.size:
        return dict(zip(axes, (float(scale) for scale in known), strict=True))
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return {}
    wanted = zip(axes, b.fixed(node.operand(3), "its sizes"), strict=True)
    ratios = [size / b.size(node.x, axis) for axis, size in wanted]
    return dict.fromkeys(axes, min(ratios) if policy == "not_larger" else max(ratios))


def interpolation(node: Node, size: int, wide: int, scale: float) -> Array:
    """The matrix [wide, size] that a Resize applies along one axis."""
    where, mode = node.get("coordinate_transformation_mode", "half_pixel"), node.get("mode", "nearest")
    if where not in COORDINATES:
        raise NoRule(f"its coordinates are '{where}'")
    # In float32, as the runtime computes them: which neighbour is nearest can hang on the last bit.
    x = COORDINATES[where](np.arange(wide, dtype=np.float32), np.float32(scale), size, wide)
    if mode == "nearest":
        nearest = ROUNDING[node.get("nearest_mode", "round_prefer_floor")](x)
        return np.asarray(np.eye(size)[np.clip(nearest, 0, size - 1).astype(int)])
    shrink = min(scale, 1.0) if node.get("antialias", 0) else 1.0
    reach = (2 if mode == "cubic" else 1) / shrink
    first = np.floor(x).astype(int) - ceil(reach) + 1
    taps = first[:, None] + np.arange(2 * ceil(reach))
    distance = np.abs(taps - x[:, None].astype(float)) * shrink
    weights = _cubic(distance, node.get("cubic_coeff_a", -0.75)) if mode == "cubic" else np.maximum(1 - distance, 0)
    if node.get("exclude_outside", 0):
        weights = weights * ((taps >= 0) & (taps < size))
    matrix = np.zeros((wide, size))
    np.add.at(matrix, (np.arange(wide)[:, None], np.clip(taps, 0, size - 1)), weights)
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def _cubic(distance: Array, a: float) -> Array:
    """Keys' kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
