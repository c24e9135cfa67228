"""Resize: a matrix along each axis; the gradient takes its transpose."""

from collections.abc import Callable
from math import ceil

import numpy as np

from auditkit.arrays import Array
from auditkit.graph.gradient.builder import Builder, Node, NoRule
from auditkit.graph.gradient.registry import rule

# Where output position o lies on the input's axis, for a scale, an input of size n and an output of size m.
_COORDINATES: dict[str, Callable[[Array, np.float32, int, int], Array]] = {
    "half_pixel": lambda o, scale, _n, _m: (o + 0.5) / scale - 0.5,
    "half_pixel_symmetric": lambda o, scale, n, m: n / 2 * (1 - m / (scale * n)) + (o + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda o, scale, _n, m: (o + 0.5) / scale - 0.5 if m > 1 else o * 0.0,
    "align_corners": lambda o, _scale, n, m: o * (n - 1) / (m - 1) if m > 1 else o * 0.0,
    "asymmetric": lambda o, scale, _n, _m: o / scale,
}
_ROUNDING: dict[str, Callable[[Array], Array]] = {
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
        size, new_size = b.size(node.x, axis), b.size(node.y, axis)
        matrix = _interpolation(node, size, new_size, scales.get(axis, new_size / size))
        grad = b.along(axis, matrix.T, grad, tuple(after))
        after[axis] = size
    return grad


def _scales(b: Builder, node: Node) -> dict[int, float]:
    """The scale of each axis, where it is an operand or common to all axes; elsewhere it is the ratio of the sizes."""
    rank = len(b.shape(node.x))
    axes = [axis % rank for axis in node.get("axes", list[int]())] or range(rank)
    scales = b.value(node.operand(2))
    if scales is not None and scales.size:
        return dict(zip(axes, map(float, scales), strict=True))
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return {}
    sizes = b.fixed(node.operand(3), "its sizes")
    ratios = [size / b.size(node.x, axis) for axis, size in zip(axes, sizes, strict=True)]
    return dict.fromkeys(axes, min(ratios) if policy == "not_larger" else max(ratios))


def _interpolation(node: Node, size: int, new_size: int, scale: float) -> Array:
    """The matrix [new size, size] that a Resize applies along one axis."""
    transformation, mode = node.get("coordinate_transformation_mode", "half_pixel"), node.get("mode", "nearest")
    if transformation not in _COORDINATES:
        raise NoRule(f"its coordinates are '{transformation}'")
    # In float32, as in the runtime: the last bit can decide which neighbour is nearest.
    x = _COORDINATES[transformation](np.arange(new_size, dtype=np.float32), np.float32(scale), size, new_size)
    if mode == "nearest":
        nearest = _ROUNDING[node.get("nearest_mode", "round_prefer_floor")](x)
        return np.asarray(np.eye(size)[np.clip(nearest, 0, size - 1).astype(int)])
    shrink = min(scale, 1.0) if node.get("antialias", 0) else 1.0
    reach = (2 if mode == "cubic" else 1) / shrink
    first = np.floor(x).astype(int) - ceil(reach) + 1
    taps = first[:, None] + np.arange(2 * ceil(reach))
    distance = np.abs(taps - x[:, None].astype(float)) * shrink
    weights = _cubic(distance, node.get("cubic_coeff_a", -0.75)) if mode == "cubic" else np.maximum(1 - distance, 0)
    if node.get("exclude_outside", 0):
        weights = weights * ((taps >= 0) & (taps < size))
    matrix = np.zeros((new_size, size))
    np.add.at(matrix, (np.arange(new_size)[:, None], np.clip(taps, 0, size - 1)), weights)
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def _cubic(distance: Array, a: float) -> Array:
    """Keys' kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
