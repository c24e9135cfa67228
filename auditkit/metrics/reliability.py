"""Whether a metric ranks saliency methods alike on every image, and whether metrics agree (Tomsett et al. 2020).

Inter-rater reliability: images are raters who rank the methods. Inter-method reliability: do two methods find the same
images hard, under one metric? Internal consistency: do two metrics order the images alike, under one method?
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput

Level = Literal["ordinal", "interval"]
LEAST_METHODS = 3  # two methods can only be ranked one way or the other


def krippendorff_alpha(ratings: npt.ArrayLike, level: Level = "ordinal") -> float:
    """Krippendorff's alpha of ratings [raters, units]: 1 agreement, 0 chance, below 0 discord; NaN where none differ.

    NaN in the table means that this rater did not rate this unit; a unit with fewer than two ratings is left out.
    At the ordinal level the distance between two values is the number of ratings from one to the other, each end's
    own ratings by half: that is the distance of their mid-ranks, so alpha is the interval alpha of the mid-ranks.
    """
    table = _table(ratings, "ratings")
    if level not in ("ordinal", "interval"):
        raise BadInput(f"there is no level '{level}' of ratings; use ordinal or interval.")
    rated = ~np.isnan(table)
    rated &= rated.sum(axis=0) >= 2
    unit, values = np.nonzero(rated.T)[0], table.T[rated.T]
    if not values.size:
        raise BadInput("agreement needs a unit that two raters have rated.")
    if level == "ordinal":
        values = _midranks(values)
    values = values - values.mean()
    total = float((values**2).sum())
    if total == 0 or np.ptp(values) == 0:
        return float("nan")
    per_unit = np.bincount(unit)
    per_unit_mean = np.bincount(unit, weights=values) / np.maximum(per_unit, 1)
    # The squared differences of m values, over all ordered pairs, sum to 2 m times their squared deviations.
    weight = per_unit[unit] / (per_unit[unit] - 1)
    observed = float((weight * (values - per_unit_mean[unit]) ** 2).sum()) / values.size
    expected = total / (values.size - 1)
    return float(1 - observed / expected)


def inter_rater(scores: npt.ArrayLike) -> float:
    """Krippendorff's ordinal alpha over images that rank the methods by a metric, given scores [images, methods].

    Each image gives ranks, equal scores sharing their mean rank. Whether high or low is better does not matter.
    """
    table = _complete(scores, "methods")
    if table.shape[1] < LEAST_METHODS:
        raise BadInput(f"inter-rater reliability needs at least {LEAST_METHODS} methods, found {table.shape[1]}.")
    return krippendorff_alpha(np.stack([_midranks(row) for row in table]))


def inter_method(scores: npt.ArrayLike) -> Array:
    """Spearman's correlation over images between each two methods under one metric, given scores [images, methods]."""
    return spearman(_complete(scores, "methods"))


def internal_consistency(scores: npt.ArrayLike, higher_is_better: npt.ArrayLike) -> Array:
    """Spearman's correlation over images between each two metrics of one method, given scores [images, metrics].

    `higher_is_better` says so for each metric; the others are turned round, so that agreement is always positive.
    """
    table, better = _complete(scores, "metrics"), np.asarray(higher_is_better)
    if better.dtype != np.bool_ or better.shape != table.shape[1:]:
        raise BadInput(f"higher_is_better needs true or false for each of the {table.shape[1]} metrics.")
    return spearman(np.where(better, table, -table))


def spearman(columns: npt.ArrayLike) -> Array:
    """Spearman's rank correlation between each two columns of [rows, columns]; NaN for a column without differences."""
    table = _complete(columns, "columns")
    ranks = np.stack([_midranks(column) for column in table.T])
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    unit = np.divide(centred, length, out=np.full_like(centred, np.nan), where=length > 0)
    return np.asarray(np.clip(unit @ unit.T, -1.0, 1.0))


def mean_off_diagonal(correlations: npt.ArrayLike) -> float:
    """Mean correlation over the pairs of two different columns; NaN when one of them is not defined."""
    table = np.asarray(correlations, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or len(table) < 2:
        raise BadInput(f"correlations come as a square table of at least two columns, found shape {table.shape}.")
    return float(table[np.triu_indices(len(table), k=1)].mean())


def _midranks(values: Array) -> Array:
    """Rank of each value from 1 up, equal values sharing the mean of theirs."""
    _, position, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[position])


def _complete(scores: npt.ArrayLike, what: str) -> Array:
    table = _table(scores, f"images and {what}")
    bad = int(np.count_nonzero(~np.isfinite(table)))
    if bad:
        raise BadInput(f"{bad} of {table.size} scores are NaN or infinite; leave those images out and say how many.")
    return table


def _table(values: npt.ArrayLike, what: str) -> Array:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 1 or len(table) < 2:
        raise BadInput(f"reliability needs a table of {what} with at least two rows, found shape {table.shape}.")
    if np.isinf(table).any():
        raise BadInput(f"the table of {what} holds infinite values, between which there is no distance.")
    return table
