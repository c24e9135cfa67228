"""Whether a heatmap points at the object: pointing game, overlap (IoU), share of the kept pixels inside.

A region is a boolean mask [H, W], true on the object. Every score is in [0, 1], higher is better, and NaN where it is
not defined, as for an object outside the picture. No score uses the model: a faithful map of a cheating model is bad.
"""

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.metrics.saliency_metric import checked_map


def box_region(corners: tuple[float, float, float, float], height: int, width: int) -> Array:
    """Boolean mask [height, width] of the pixels whose centre is in the box x0, y0, x1, y1, in pixels."""
    x0, y0, x1, y1 = corners
    if not (x0 < x1 and y0 < y1):
        raise BadInput(f"a box needs x0 < x1 and y0 < y1, found {x0:g}, {y0:g}, {x1:g}, {y1:g}.")
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    return np.asarray(((y >= y0) & (y < y1))[:, None] & ((x >= x0) & (x < x1)))


def pointing_hit(heatmap: npt.ArrayLike, region: npt.ArrayLike, tolerance_px: float = 0.0) -> float:
    """Whether the maximum of a map [H, W] is in the region [H, W], as 1 or 0; NaN for an empty region.

    A point within `tolerance_px` of a pixel of the region, centre to centre, counts as inside; Zhang et al. 2018 allow
    15 at 224 pixels. If several pixels share the maximum, the score is the share of them inside: the mean score of
    choosing one at random. A constant map therefore scores the region's share of the image.
    """
    heat = checked_map(heatmap)
    inside = _region(region, heat.shape)
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
    first = _region(kept, np.shape(kept))
    second = _region(region, first.shape)
    return _ratio((first & second).sum(axis=(-2, -1)), (first | second).sum(axis=(-2, -1)))


def share_inside(rank: npt.ArrayLike, region: npt.ArrayLike, keep_count: int) -> Array:
    """Share [...] of the `keep_count` most important pixels that lie in the region; NaN where either is empty."""
    kept = kept_first(rank, keep_count)
    inside = _region(region, kept.shape)
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


def _region(region: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    """The boolean mask of a region, if it has the shape of the map."""
    mask = np.asarray(region)
    if mask.dtype != np.bool_ or mask.ndim < 2:
        raise BadInput(f"a region must be a boolean mask [..., H, W], found {mask.dtype} {mask.shape}.")
    if mask.shape != shape:
        raise BadInput(f"the map is {shape} and the region {mask.shape}; resize one of them first.")
    return mask


def _ratio(part: Array, whole: Array) -> Array:
    """part / whole, NaN where whole is 0."""
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    return np.asarray(np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0))
