"""Whether a heatmap points at the object: pointing game, overlap (IoU), share of the kept pixels inside.

A region is a boolean mask [H, W], true on the object. Every score is in [0, 1], higher is better, and NaN where it is
not defined, as for an object outside the picture. No score uses the model: a faithful map of a cheating model is bad.
"""

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.metrics.saliency_metric import checked_map

_Corners = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels, x1 and y1 exclusive


def box_region(corners: _Corners, height: int, width: int) -> Array:
    """Boolean mask [height, width] of the pixels whose centre is in the box; empty for a box outside the picture."""
    x0, y0, x1, y1 = _checked_box(corners)
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    return np.asarray(((y >= y0) & (y < y1))[:, None] & ((x >= x0) & (x < x1)))


def pointing_hit(heatmap: npt.ArrayLike, region: npt.ArrayLike, tolerance_px: float = 0.0) -> float:
    """Whether the maximum of a map [H, W] is in the region [H, W], as 1 or 0; NaN for an empty region.

    A point within `tolerance_px` of a pixel of the region, centre to centre, counts as inside; Zhang et al. 2018 allow
    15 at 224 pixels. If several pixels share the maximum, the score is the share of them inside: the mean score of
    choosing one at random. A constant map therefore scores the region's share of the image.
    """
    heat, inside = checked_map(heatmap), _mask(region)
    _check_same_shape(heat, inside)
    if not inside.any():
        return float("nan")
    return float(_grown(inside, tolerance_px)[heat == heat.max()].mean())


def kept_first(rank: npt.ArrayLike, keep_count: int) -> Array:
    """Boolean mask [..., H, W] of the `keep_count` most important pixels, for ranks [..., H, W] from 0."""
    ranks = np.asarray(rank)
    pixels = ranks.shape[-2] * ranks.shape[-1]
    if not 0 <= keep_count <= pixels:
        raise BadInput(f"keep_count must be between 0 and the {pixels} pixels of a map, found {keep_count}.")
    return np.asarray(ranks < keep_count)


def iou(kept: npt.ArrayLike, region: npt.ArrayLike) -> Array:
    """Intersection over union [...] of boolean masks [..., H, W]; NaN where both are empty."""
    first, second = _mask(kept), _mask(region)
    _check_same_shape(first, second)
    return _ratio((first & second).sum(axis=(-2, -1)), (first | second).sum(axis=(-2, -1)))


def share_inside(rank: npt.ArrayLike, region: npt.ArrayLike, keep_count: int) -> Array:
    """Share [...] of the `keep_count` most important pixels that are in the region, for ranks and regions [..., H, W].

    NaN where nothing is kept or the region is empty. A random map scores the region's share of the image on average.
    """
    kept, inside = kept_first(rank, keep_count), _mask(region)
    _check_same_shape(kept, inside)
    share = _ratio((kept & inside).sum(axis=(-2, -1)), kept.sum(axis=(-2, -1)))
    return np.where(inside.any(axis=(-2, -1)), share, np.nan)


def _grown(inside: Array, tolerance_px: float) -> Array:
    """The region [H, W] and all pixels within the tolerance of it."""
    if not (np.isfinite(tolerance_px) and tolerance_px >= 0):
        raise BadInput(f"a tolerance must be a number of pixels from 0, found {tolerance_px:g}.")
    if tolerance_px == 0:
        return inside
    from scipy import ndimage  # noqa: PLC0415  # slow to import

    return np.asarray(ndimage.distance_transform_edt(~inside) <= tolerance_px)


def _checked_box(corners: _Corners) -> _Corners:
    x0, y0, x1, y1 = corners
    if not (x0 < x1 and y0 < y1):
        raise BadInput(f"a box needs x0 < x1 and y0 < y1, found {x0:g}, {y0:g}, {x1:g}, {y1:g}.")
    return corners


def _mask(region: npt.ArrayLike) -> Array:
    mask = np.asarray(region)
    if mask.dtype != np.bool_ or mask.ndim < 2:
        raise BadInput(f"a region must be a boolean mask [..., H, W], found {mask.dtype} {mask.shape}.")
    return mask


def _check_same_shape(first: Array, second: Array) -> None:
    if first.shape != second.shape:
        raise BadInput(f"the map is {first.shape} and the region {second.shape}; resize one of them first.")


def _ratio(part: Array, whole: Array) -> Array:
    """part / whole, NaN where whole is 0."""
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    return np.asarray(np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0))
