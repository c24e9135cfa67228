"""Whether a metric ranks saliency methods alike on every image, and whether metrics agree (Tomsett et al. 2020).

Inter-rater reliability: images are raters that rank the methods. Inter-method reliability: do two methods find the
same images hard, under one metric? Internal consistency: do two metrics order the images alike, under one method?
"""

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.metrics.statistics import finite

LEAST_METHODS = 3  # two methods have only two possible orders


def krippendorff_alpha(ratings: npt.ArrayLike) -> float:
    """Krippendorff's ordinal alpha of ratings [raters, units]; at most 1, which is agreement, and 0 is chance.

    NaN in the table means that this rater did not rate this unit; units with fewer than two ratings are left out. The
    ordinal distance between two values is the number of ratings from one to the other, with the ratings at either end
    counted half. That is the distance of their mid-ranks. Alpha is NaN if all ratings are equal.
    """
    table = _table(ratings, "ratings")
    rated = ~np.isnan(table)
    rated &= rated.sum(axis=0) >= 2
    unit, values = np.nonzero(rated.T)[0], table.T[rated.T]
    if not values.size:
        raise BadInput("agreement needs at least one unit with two ratings.")
    values = _midranks(values)
    values = values - values.mean()
    total = float((values**2).sum())
    if total == 0 or np.ptp(values) == 0:
        return float("nan")
    per_unit = np.bincount(unit)
    unit_means = np.bincount(unit, weights=values) / np.maximum(per_unit, 1)
    # Over all ordered pairs, the squared differences of m values sum to 2 m times their squared deviations.
    weight = per_unit[unit] / (per_unit[unit] - 1)
    observed = float((weight * (values - unit_means[unit]) ** 2).sum()) / values.size
    expected = total / (values.size - 1)
    return float(1 - observed / expected)


def inter_rater(scores: npt.ArrayLike) -> float:
    """Krippendorff's alpha over images that rank methods by scores [images, methods]; ties share their mean rank."""
    table = finite(_table(scores, "images and methods"), "scores")
    if table.shape[1] < LEAST_METHODS:
        raise BadInput(f"inter-rater reliability needs at least {LEAST_METHODS} methods, found {table.shape[1]}.")
    return krippendorff_alpha(np.stack([_midranks(row) for row in table]))


def internal_consistency(scores: npt.ArrayLike, higher_is_better: npt.ArrayLike) -> Array:
    """Spearman's correlations [metrics, metrics] of scores [images, metrics], negated where lower is better."""
    table, better = finite(_table(scores, "images and metrics"), "scores"), np.asarray(higher_is_better)
    if better.dtype != np.bool_ or better.shape != table.shape[1:]:
        raise BadInput(f"higher_is_better needs true or false for each of the {table.shape[1]} metrics.")
    return spearman(np.where(better, table, -table))


def spearman(columns: npt.ArrayLike) -> Array:
    """Spearman's correlations [columns, columns] in [-1, 1] of a table [rows, columns]; NaN for constant columns."""
    table = finite(_table(columns, "images and columns"), "scores")
    ranks = np.stack([_midranks(column) for column in table.T])
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    unit = np.divide(centred, length, out=np.full_like(centred, np.nan), where=length > 0)
    return np.asarray(np.clip(unit @ unit.T, -1.0, 1.0))


def mean_off_diagonal(correlations: npt.ArrayLike) -> float:
    """Mean over the pairs of different columns of correlations [columns, columns]; NaN if one of them is NaN."""
    table = np.asarray(correlations, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or len(table) < 2:
        raise BadInput(f"correlations need a square table of at least two columns, found shape {table.shape}.")
    return float(table[np.triu_indices(len(table), k=1)].mean())


def _midranks(values: Array) -> Array:
    """Ranks [n] of values [n], from 1; equal values share the mean of their ranks."""
    _, position, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[position])


def _table(values: npt.ArrayLike, what: str) -> Array:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 1 or len(table) < 2:
        raise BadInput(f"reliability needs a table of {what} with at least two rows, found shape {table.shape}.")
    if np.isinf(table).any():
        raise BadInput(f"the table of {what} contains infinite values, which have no distance.")
    return table
