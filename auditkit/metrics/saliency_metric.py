"""The saliency metric, SM (Dabkowski & Gal 2017): how small a crop around the hot pixels keeps the label.

SM = log(max(area fraction, 0.05)) - log(p), lower is better; p is the label's probability on the crop, resized to the
model's input. The crop is the smallest box around the pixels whose heat, brought to [0, 1] by min-max, is above delta
times its mean.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput

Rule = Literal["paper", "largest-component"]
RULES: tuple[Rule, ...] = ("paper", "largest-component")
LEAST_AREA = 0.05  # share of the image; the metric does not reward a smaller box
DELTAS: Array = np.arange(26) / 5  # 0, 0.2, ..., 5, the grid delta is tuned over


@dataclass(frozen=True)
class Box:
    """A rectangle of pixels in an image, x to the right and y downwards; x1 and y1 lie one past its last pixel."""

    x0: int
    y0: int
    x1: int
    y1: int
    area_fraction: float  # share of the image
    degenerate: bool  # nothing was above the threshold (then the whole image), or under 5 % of the image

    @property
    def corners(self) -> tuple[int, int, int, int]:
        """x0, y0, x1, y1."""
        return self.x0, self.y0, self.x1, self.y1


def box(heatmap: npt.ArrayLike, delta: float = 1.0, rule: Rule = "paper") -> Box:
    """The box of a map [H, W]: around all pixels above the threshold, or around the largest connected group of them.

    "paper" takes all of them, with a delta tuned on a holdout; "largest-component" (Phang et al.) goes with delta 1.
    Pixels equal to the threshold are not above it, so a constant map has none and gets the whole image.
    """
    kept = above_mean(heatmap, delta)
    if rule not in RULES:
        raise BadInput(f"there is no box rule '{rule}'; use {' or '.join(RULES)}.")
    return enclosing_box(largest_component(kept) if rule == "largest-component" else kept)


def boxes(heatmap: npt.ArrayLike, deltas: npt.ArrayLike = DELTAS) -> tuple[Box, ...]:
    """The box of a map around all pixels above the threshold, for each delta.

    A row or a column has a pixel above it if its greatest heat is, so that the map is looked at once.
    """
    heat = unit_range(heatmap)
    mean, rows, columns = heat.mean(), heat.max(axis=1), heat.max(axis=0)
    return tuple(_around(rows > delta * mean, columns > delta * mean) for delta in np.asarray(deltas))


def above_mean(heatmap: npt.ArrayLike, delta: float) -> Array:
    """Whether each pixel's heat, brought to [0, 1], is above delta times its mean over the map."""
    if not (np.isfinite(delta) and delta >= 0):
        raise BadInput(f"delta is a number from 0 up, found {delta:g}.")
    heat = unit_range(heatmap)
    return np.asarray(heat > delta * heat.mean())


def unit_range(heatmap: npt.ArrayLike) -> Array:
    """The map [H, W] brought to [0, 1] by its least and greatest heat; zeros when they are equal."""
    heat = checked_map(heatmap)
    heat = heat / max(float(np.abs(heat).max()), np.finfo(np.float64).tiny)  # so that the range does not overflow
    lowest, highest = heat.min(), heat.max()
    return np.zeros_like(heat) if highest == lowest else (heat - lowest) / (highest - lowest)


def checked_map(heatmap: npt.ArrayLike) -> Array:
    """The map [H, W] in float64, when it has pixels and all of them are finite."""
    heat = np.asarray(heatmap, dtype=np.float64)
    if heat.ndim != 2 or not heat.size:
        raise BadInput(f"a map needs the shape height x width, found {heat.shape}.")
    if not np.isfinite(heat).all():
        raise BadInput("the map holds NaN or infinite heat; it has no least and greatest value to go by.")
    return heat


def enclosing_box(kept: Array) -> Box:
    """The smallest box around the kept pixels [H, W]; the whole image, degenerate, when none is kept."""
    return _around(np.asarray(kept.any(axis=1)), np.asarray(kept.any(axis=0)))


def _around(some_in_row: Array, some_in_column: Array) -> Box:
    height, width = some_in_row.size, some_in_column.size
    rows, columns = np.flatnonzero(some_in_row), np.flatnonzero(some_in_column)
    if not rows.size:
        return Box(0, 0, width, height, 1.0, degenerate=True)
    x0, x1, y0, y1 = int(columns[0]), int(columns[-1]) + 1, int(rows[0]), int(rows[-1]) + 1
    area_fraction = (x1 - x0) * (y1 - y0) / (height * width)
    return Box(x0, y0, x1, y1, area_fraction, degenerate=area_fraction < LEAST_AREA)


def largest_component(kept: Array) -> Array:
    """The largest group of kept pixels joined by their sides; of equal ones the first met in reading order."""
    from scipy import ndimage  # noqa: PLC0415  # slow to import

    groups, count = ndimage.label(kept)
    if not count:
        return np.zeros_like(kept, dtype=np.bool_)
    return np.asarray(groups == 1 + np.argmax(np.bincount(groups.ravel())[1:]))


def saliency_metric(area_fraction: npt.ArrayLike, prob: npt.ArrayLike, *, prob_floor: float = 0.0) -> Array:
    """SM of each crop; lower is better, and +inf where the label's probability on the crop is 0.

    An infinite SM has no place in a mean: a positive `prob_floor` (probabilities below it count as it) keeps the
    figure finite, and belongs into its name.
    """
    area, likely = np.asarray(area_fraction, dtype=np.float64), np.asarray(prob, dtype=np.float64)
    if not ((area > 0) & (area <= 1)).all():
        raise BadInput("each area fraction lies above 0 and up to 1.")
    if not ((likely >= 0) & (likely <= 1 + 1e-5)).all() or not 0 <= prob_floor <= 1:
        raise BadInput("each probability on a crop, and its floor, lies between 0 and 1.")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(area, LEAST_AREA)) - np.log(np.clip(likely, prob_floor, 1.0)))


def tune_delta(values_by_delta: npt.ArrayLike, deltas: npt.ArrayLike = DELTAS) -> float:
    """The delta with the least mean SM on a holdout, given SM as [deltas, images]; of equal ones the smallest delta.

    A delta with an infinite SM is never chosen. The holdout's images must not be those the figure is reported on.
    """
    table, grid = np.asarray(values_by_delta, dtype=np.float64), np.asarray(deltas, dtype=np.float64)
    if table.ndim != 2 or not table.size or grid.shape != table.shape[:1]:
        raise BadInput(f"tuning needs a row of SM for each of {grid.size} deltas, found shape {table.shape}.")
    if np.isnan(table).any() or np.isneginf(table).any():
        raise BadInput("tuning needs an SM for every delta and image; leave images with a failed crop out first.")
    means = table.mean(axis=1)
    if np.isinf(means).all():
        raise BadInput("every delta has a crop on which the label's probability is 0; set a probability floor.")
    return float(grid[means <= means.min()].min())
