"""Whether a heatmap points at where the object is: pointing game, overlap (IoU), share of the kept pixels inside.

A region is a mask [H, W], true on the object. A figure that is not defined, as for an object outside the picture, is
NaN. Higher is better; none of these looks at the model, so a faithful map of a cheating model scores badly.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.metrics.saliency_metric import checked_map

Corners = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels, x1 and y1 exclusive
Ties = Literal["expected", "any"]
USUAL_TOLERANCE_PX = 15  # of Zhang et al. 2018, for pictures of 224 pixels


def box_region(corners: Corners, height: int, width: int) -> Array:
    """Mask [height, width] of the pixels whose centre lies in the box; empty for a box outside the picture."""
    x0, y0, x1, y1 = _checked_box(corners)
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    return np.asarray(((y >= y0) & (y < y1))[:, None] & ((x >= x0) & (x < x1)))


def pointing_hit(
    heatmap: npt.ArrayLike, region: npt.ArrayLike, tolerance_px: float = 0.0, ties: Ties = "expected"
) -> float:
    """Whether the map's maximum lies in the region, as 1 or 0; NaN for an empty region.

    A point within `tolerance_px` of a pixel of the region, centre to centre, counts as inside; the literature has 15
    at 224 pixels, 0 is the default. Where several pixels share the maximum, "expected" gives the share of them that
    lies inside, which is what choosing one by chance gives on average (so a constant map scores the region's area);
    "any" gives 1 if one of them does, which flatters saturated maps.
    """
    heat, inside = checked_map(heatmap), _mask(region)
    _same_shape(heat, inside)
    if ties not in ("expected", "any"):
        raise BadInput(f"there is no rule '{ties}' for ties; use expected or any.")
    if not inside.any():
        return float("nan")
    hits = _grown(inside, tolerance_px)[heat == heat.max()]
    return float(hits.mean() if ties == "expected" else hits.any())


def tolerance_at(size_px: int) -> float:
    """The usual tolerance of the pointing game, 15 pixels at 224, in proportion to a picture of another size."""
    return USUAL_TOLERANCE_PX * size_px / 224


def kept_first(rank: npt.ArrayLike, keep_count: int) -> Array:
    """Pixels [..., H, W] among the `keep_count` most important: rank below the count."""
    ranks = np.asarray(rank)
    if not 0 <= keep_count <= ranks.shape[-2] * ranks.shape[-1]:
        raise BadInput(f"keep_count lies between 0 and the {ranks.shape[-2] * ranks.shape[-1]} pixels of a map.")
    return np.asarray(ranks < keep_count)


def iou(kept: npt.ArrayLike, region: npt.ArrayLike) -> Array:
    """Pixels in both over pixels in either, for masks [..., H, W]; NaN where both are empty."""
    first, second = _mask(kept), _mask(region)
    _same_shape(first, second)
    both, either = (first & second).sum(axis=(-2, -1)), (first | second).sum(axis=(-2, -1))
    return _share(both, either)


def share_inside(rank: npt.ArrayLike, region: npt.ArrayLike, keep_count: int) -> Array:
    """Share of the `keep_count` most important pixels that lie in the region, for ranks [..., H, W].

    NaN where nothing is kept or the region is empty. A map that knows nothing scores the region's share of the image.
    """
    kept, inside = kept_first(rank, keep_count), _mask(region)
    _same_shape(kept, inside)
    share = _share((kept & inside).sum(axis=(-2, -1)), kept.sum(axis=(-2, -1)))
    return np.where(inside.any(axis=(-2, -1)), share, np.nan)


def _grown(inside: Array, tolerance_px: float) -> Array:
    if not (np.isfinite(tolerance_px) and tolerance_px >= 0):
        raise BadInput(f"a tolerance is a number of pixels from 0 up, found {tolerance_px:g}.")
    if tolerance_px == 0:
        return inside
    from scipy import ndimage  # noqa: PLC0415  # slow to import

    return np.asarray(ndimage.distance_transform_edt(~inside) <= tolerance_px)


def _checked_box(corners: Corners) -> Corners:
    x0, y0, x1, y1 = corners
    if not (x0 < x1 and y0 < y1):
        raise BadInput(f"a box needs x0 < x1 and y0 < y1, found {x0:g}, {y0:g}, {x1:g}, {y1:g}.")
    return corners


def _mask(region: npt.ArrayLike) -> Array:
    mask = np.asarray(region)
    if mask.dtype != np.bool_ or mask.ndim < 2:
        raise BadInput(f"a region is a mask of true and false, [..., H, W]; found {mask.dtype} {mask.shape}.")
    return mask


def _same_shape(first: Array, second: Array) -> None:
    if first.shape != second.shape:
        raise BadInput(f"the map is {first.shape} and the region {second.shape}; bring them to one size first.")


def _share(part: Array, whole: Array) -> Array:
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    return np.asarray(np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0))
