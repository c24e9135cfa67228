"""The saliency metric, SM (Dabkowski & Gal 2017): how small a crop around the hot pixels keeps the label.

SM = log(max(area fraction, 0.05)) - log(p), lower is better; p is the label's probability on the crop, resized to the
model's input. The crop is the smallest box around the pixels whose heat, scaled to [0, 1] by min-max, is above delta
times its mean. Pixels equal to the threshold are not above it, so a constant map has none and gets the whole image.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput

_LEAST_AREA = 0.05  # share of the image; the metric does not reward a smaller box
_ROUNDING = 1e-5  # a float32 sum of probabilities may exceed 1 by this much
DELTAS: Array = np.arange(26) / 5  # 0, 0.2, ..., 5, the grid on which delta is tuned


@dataclass(frozen=True)
class Box:
    """A rectangle of pixels."""

    corners: tuple[int, int, int, int]  # x0, y0, x1, y1, x to the right and y downwards; x1 and y1 are exclusive
    area_fraction: float  # of the image, in (0, 1]
    degenerate: bool  # no pixel is above the threshold (then it is the whole image), or it is under 5 % of the image


def component_box(heatmap: npt.ArrayLike) -> Box:
    """The box around the largest connected group of pixels above the mean of a map [H, W] (Phang et al.; delta 1)."""
    heat = _unit_range(heatmap)
    kept = _largest_component(np.asarray(heat > heat.mean()))
    return _enclosing_box(np.asarray(kept.any(axis=1)), np.asarray(kept.any(axis=0)))


def boxes(heatmap: npt.ArrayLike, deltas: npt.ArrayLike = DELTAS) -> tuple[Box, ...]:
    """For each delta, the box around all pixels of a map [H, W] that are above the threshold."""
    heat = _unit_range(heatmap)  # scanned once: a row or column has such a pixel if its maximum is above the threshold
    mean, rows, columns = heat.mean(), heat.max(axis=1), heat.max(axis=0)
    return tuple(_enclosing_box(rows > delta * mean, columns > delta * mean) for delta in np.asarray(deltas))


def _unit_range(heatmap: npt.ArrayLike) -> Array:
    """The map [H, W] scaled to [0, 1] by its minimum and maximum; zeros if they are equal."""
    heat = checked_map(heatmap)
    heat = heat / max(float(np.abs(heat).max()), np.finfo(np.float64).tiny)  # so that the range does not overflow
    lowest, highest = heat.min(), heat.max()
    return np.zeros_like(heat) if highest == lowest else (heat - lowest) / (highest - lowest)


def checked_map(heatmap: npt.ArrayLike) -> Array:
    """The map [H, W] in float64, if it has pixels and all of them are finite."""
    heat = np.asarray(heatmap, dtype=np.float64)
    if heat.ndim != 2 or not heat.size:
        raise BadInput(f"a map needs the shape height x width, found {heat.shape}.")
    if not np.isfinite(heat).all():
        raise BadInput("the map contains NaN or infinite values, so it has no minimum and maximum.")
    return heat


def _enclosing_box(kept_rows: Array, kept_columns: Array) -> Box:
    """The smallest box around the kept rows [H] and columns [W]; the whole image, degenerate, if none is kept."""
    height, width = kept_rows.size, kept_columns.size
    rows, columns = np.flatnonzero(kept_rows), np.flatnonzero(kept_columns)
    if not rows.size:
        return Box((0, 0, width, height), 1.0, degenerate=True)
    x0, x1, y0, y1 = int(columns[0]), int(columns[-1]) + 1, int(rows[0]), int(rows[-1]) + 1
    area_fraction = (x1 - x0) * (y1 - y0) / (height * width)
    return Box((x0, y0, x1, y1), area_fraction, degenerate=area_fraction < _LEAST_AREA)


def _largest_component(kept: Array) -> Array:
    """The largest group of kept pixels [H, W] connected by their sides; of equal ones the first in reading order."""
    from scipy import ndimage  # noqa: PLC0415  # slow to import

    groups, count = ndimage.label(kept)
    if not count:
        return np.zeros_like(kept, dtype=np.bool_)
    return np.asarray(groups == 1 + np.argmax(np.bincount(groups.ravel())[1:]))


def saliency_metric(area_fraction: npt.ArrayLike, prob: npt.ArrayLike, *, prob_floor: float = 0.0) -> Array:
    """SM of each crop, from log(0.05) up; lower is better, and +inf where the label's probability on the crop is 0.

    The arguments have one entry per crop, area fractions in (0, 1] and probabilities in [0, 1]. Probabilities below
    `prob_floor` are raised to it: a positive floor keeps means finite, and belongs in the metric's name.
    """
    areas, probs = np.asarray(area_fraction, dtype=np.float64), np.asarray(prob, dtype=np.float64)
    if not ((areas > 0) & (areas <= 1)).all():
        raise BadInput("each area fraction must be above 0 and at most 1.")
    if not ((probs >= 0) & (probs <= 1 + _ROUNDING)).all() or not 0 <= prob_floor <= 1:
        raise BadInput("each probability on a crop, and its floor, must be between 0 and 1.")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(areas, _LEAST_AREA)) - np.log(np.clip(probs, prob_floor, 1.0)))


def tune_delta(values_by_delta: npt.ArrayLike) -> float:
    """The smallest delta with the least mean SM [DELTAS, images] on a holdout; report the SM of other images."""
    table = np.asarray(values_by_delta, dtype=np.float64)
    if table.ndim != 2 or not table.size or len(table) != len(DELTAS):
        raise BadInput(f"tuning needs a row of SM for each of {len(DELTAS)} deltas, found shape {table.shape}.")
    if np.isnan(table).any() or np.isneginf(table).any():
        raise BadInput("tuning needs an SM for every delta and image; leave out images with a failed crop.")
    means = table.mean(axis=1)
    if np.isinf(means).all():
        raise BadInput("every delta has a crop on which the label's probability is 0; set a probability floor.")
    return float(DELTAS[means <= means.min()].min())
