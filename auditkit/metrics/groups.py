"""By how much the means of two groups of images differ, at least.

If the lower group's mean is at or above the higher group's, some limit lies at or below the one and at or above the
other. There, neither the e-value for "the lower mean lies below the limit" nor that for "the higher mean lies above it"
grows on average, and their product does not either, since the groups have no image in common. The limit is not known:
the least product over all limits is an e-value. The same holds for a gap, by which the higher group's limit is moved.
"""

import math

import numpy as np

from auditkit.metrics.betting import DECISIVE, Sample

FEWEST_OF_GROUP = 8  # images; eight that agree can decide
_LIMITS = 25  # between the two means; the product between two of them is bounded from below
_HALVINGS = 12  # of the difference, to find the gap that is shown


def gap_at_least(lower: Sample, higher: Sample, tests: int) -> float:
    """The gap between two means that is shown with an error of 5 % over so many tests; 0 where none is."""
    decisive = math.log(DECISIVE * tests)
    if log_e_gap(lower, higher, 0.0) < decisive:
        return 0.0
    shown, most = 0.0, float(higher.values.mean() - lower.values.mean())
    for _ in range(_HALVINGS):
        middle = (shown + most) / 2
        shown, most = (middle, most) if log_e_gap(lower, higher, middle) >= decisive else (shown, middle)
    return shown


def log_e_gap(lower: Sample, higher: Sample, gap: float) -> float:
    """The logarithm of the e-value for "the means differ by more than the gap"."""
    start, end = float(lower.values.mean()), float(higher.values.mean()) - gap
    if end <= start:
        return 0.0
    limits = np.linspace(start, end, _LIMITS)
    below = [_hedged(lower.e_below(limit)) for limit in limits]
    above = [_hedged(higher.e_above(limit + gap)) for limit in limits]
    # With its limit, the one e-value rises and the other falls; beyond the means, one of the two is 1 / 2 at least.
    between = (first + second for first, second in zip(below, above[1:], strict=False))
    return min(above[0] - math.log(2), below[-1] - math.log(2), *between)


def _hedged(e_value: float) -> float:
    """The logarithm of the capital of a gambler who bets with one half and keeps the other."""
    return math.log((1 + e_value) / 2)
