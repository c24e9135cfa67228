"""By how much the means of two groups of images differ, at least.

If the lower group's mean is at or above the higher group's, some limit lies at or below the one and at or above the
other. There, neither the e-value for "the lower mean lies below the limit" nor that for "the higher mean lies above it"
grows on average, and their product does not either, since the groups have no image in common. The limit is not known:
the least product over all limits is an e-value. The same holds for a gap, by which the higher group's limit is moved.
"""

import heapq
import math
from typing import NamedTuple

from auditkit.metrics.betting import DECISIVE, Sample

FEWEST_OF_GROUP = 8  # images; eight that agree can decide
_KEPT = 0.1  # of a gambler's capital, so that few images of the one group lose little of what the other group shows
_EXACT = 0.05  # of a logarithm
_HALVINGS = 12  # of the difference, to find the gap that is shown


def gap_at_least(lower: Sample, higher: Sample, tests: int) -> float:
    """The gap between two means that is shown with an error of 5 % over that many tests; 0 if none is."""
    decisive = math.log(DECISIVE * tests)
    if log_e_gap(lower, higher, 0.0) < decisive:
        return 0.0
    shown, most = 0.0, float(higher.values.mean() - lower.values.mean())
    for _ in range(_HALVINGS):
        middle = (shown + most) / 2
        shown, most = (middle, most) if log_e_gap(lower, higher, middle) >= decisive else (shown, middle)
    return shown


def log_e_gap(lower: Sample, higher: Sample, gap: float) -> float:
    """The logarithm of the e-value for "the means differ by more than the gap", to within _EXACT and never above it."""
    start, end = float(lower.values.mean()), float(higher.values.mean()) - gap
    if end <= start:
        return 0.0

    def evidence(limit: float) -> _Evidence:
        return _Evidence(limit, _hedged(lower.e_below(limit)), _hedged(higher.e_above(limit + gap)))

    first, last = evidence(start), evidence(end)
    # With its limit, the one e-value rises and the other falls: between two limits, the product has a least value.
    parts = [(first.below + last.above, first, last)]
    least = min(first.product, last.product)
    while least - parts[0][0] > _EXACT:
        _, left, right = heapq.heappop(parts)
        middle = evidence((left.limit + right.limit) / 2)
        least = min(least, middle.product)
        for one, other in ((left, middle), (middle, right)):
            heapq.heappush(parts, (one.below + other.above, one, other))
    # Beyond the two means, one of the two gamblers has at least what she kept.
    return min(parts[0][0], first.above + math.log(_KEPT), last.below + math.log(_KEPT))


class _Evidence(NamedTuple):
    """The logarithms of both e-values at a limit."""

    limit: float
    below: float
    above: float

    @property
    def product(self) -> float:
        return self.below + self.above


def _hedged(e_value: float) -> float:
    """The logarithm of the capital of a gambler who keeps a part and bets with the rest."""
    return math.log(_KEPT + (1 - _KEPT) * e_value)
