"""Decides on which side of a limit the mean over all images lies: a test by betting, and the interval that inverts it.

To show that a mean lies above a limit, a gambler bets on every image. Her capital, 1 at first, is multiplied by
1 + bet * (x - limit), where x is the value of the image. Bets are so small that she cannot lose everything. If the mean
is at or below the limit, her capital does not grow on average, whatever the distribution of the values. Hence it ever
reaches 20 with a probability of at most 5 % (Ville's inequality), even if one looks after every image and stops as one
likes. The e-value is the mean capital over several constant bets. It does not depend on the order of the images.

Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting (2024).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.metrics.faithfulness import ROUNDING
from auditkit.metrics.statistics import FEWEST_VALUES, Bounds, finite_rows

DECISIVE = 20.0  # the e-value that decides: the error is at most 1 in 20
FEWEST_IMAGES = 20  # with fewer, nothing is decided
# Shares of the largest bet. With values in [-1, 1], a mean of 0.1 above the limit and a standard deviation of 0.2, half
# of the samples are decided within 54 images; with 0.15 and 0.3 within 39 (tests/metrics/test_betting.py).
BETS = np.arange(1, 34) * 0.03
_LEAST_ROOM = 1e-12  # between a limit and the end of the range; a bet on less would be infinite
_MOST_LOG = 690.0  # of an e-value, either way, so that it stays a float
MOST_TIMES = 10  # as many images as there are: further than that, nothing is estimated
_RESAMPLES = 41
_FEWEST_RESAMPLES, _MOST_RESAMPLED = 5, 41_000  # of very many images; and images in all resamples


def e_above(values: Array, least: float, limit: float) -> float:
    """The e-value for "the mean lies above the limit", of values [images] that are never below `least`."""
    log_mean = float(_log_mean(_log_factors(values, least, limit).sum(axis=1)))
    return math.exp(min(max(log_mean, -_MOST_LOG), _MOST_LOG))


def _log_factors(values: Array, least: float, limit: float) -> Array:
    """By which the capital of each bet is multiplied, [bets, images], in logarithms."""
    gains = (values - least) / max(limit - least, _LEAST_ROOM) - 1
    return np.log1p(BETS[:, None] * gains)


def _log_mean(logs: Array) -> Array:
    """Logarithm of the mean capital over the bets, of logarithms [bets, ...]."""
    largest = logs.max(axis=0)
    return np.asarray(largest + np.log(np.exp(logs - largest).mean(axis=0)))


@dataclass(frozen=True)
class Sample:
    """One value for each image, and the range in which all possible values lie."""

    values: Array  # [images]
    bounds: Bounds

    def __post_init__(self) -> None:
        values, (least, most) = finite_rows(self.values, "values"), self.bounds
        if values.min() < least - ROUNDING or values.max() > most + ROUNDING:
            extent = f"{values.min():g} to {values.max():g}"
            raise BadInput(f"all values must lie between {least:g} and {most:g}, found {extent}.")
        # In ascending order, since sums of floats depend on the order.
        object.__setattr__(self, "values", np.sort(values.clip(least, most)))

    def e_above(self, limit: float) -> float:
        """The e-value for "the mean lies above the limit"."""
        return e_above(self.values, self.bounds[0], limit)

    def e_below(self, limit: float) -> float:
        """The e-value for "the mean lies below the limit"."""
        return e_above(-self.values, -self.bounds[1], -limit)

    @cached_property
    def interval(self) -> Bounds | None:
        """The limits that neither test rejects; None with fewer than five values."""
        if len(self.values) < FEWEST_VALUES:
            return None
        mean, (least, most) = float(self.values.mean()), self.bounds
        return _last_rejected(self.e_above, least, mean), _last_rejected(self.e_below, most, mean)


def _last_rejected(e_value: Callable[[float], float], end: float, mean: float) -> float:
    """The limit nearest to the mean that a test rejects; the end of the range where it rejects none."""
    from scipy.optimize import brentq  # noqa: PLC0415  # slow to import

    def surplus(limit: float) -> float:
        return math.log(e_value(limit) / DECISIVE)

    # An e-value falls as its limit nears the mean, where it is at most 1.
    return end if surplus(end) < 0 else float(brentq(surplus, end, mean))


def images_to_decide(sample: Sample, below: float, above: float) -> int | None:
    """How many images in all would show the mean to lie below or above these limits, if the others are like these.

    The others are drawn from the images' own values; the median over several draws. None: more than ten times as many.
    """
    values, (least, most) = sample.values, sample.bounds
    sides = (_log_factors(values, least, above), _log_factors(-values, -most, -below))
    count, rng = len(values), np.random.default_rng(0)
    resamples = max(_FEWEST_RESAMPLES, min(_RESAMPLES, _MOST_RESAMPLED // count))
    orders = [rng.integers(count, size=(MOST_TIMES - 1) * count) for _ in range(resamples)]
    numbers = list[float]()
    for order in orders:
        numbers.append(min(_first_decided(factors, order) for factors in sides))
        if numbers.count(math.inf) > resamples // 2:
            return None
    return int(sorted(numbers)[resamples // 2])


def _first_decided(log_factors: Array, order: Array) -> float:
    """After how many images the test decides when those at `order` come after all; infinite if it does not."""
    logs = log_factors.sum(axis=1, keepdims=True) + np.cumsum(log_factors.take(order, axis=1), axis=1)
    # Few means must be computed: a mean over the bets is at most that of the best bet, and at least its share.
    best, enough = logs.max(axis=0), (DECISIVE, DECISIVE * (len(BETS) + 1))
    possible, certain = (np.flatnonzero(best >= math.log(capital)) for capital in enough)
    if not len(possible):
        return math.inf
    start, stop = possible[0], certain[0] + 1 if len(certain) else len(order)
    decided = np.flatnonzero(_log_mean(logs[:, start:stop]) >= math.log(DECISIVE))
    return log_factors.shape[1] + 1 + int(start + decided[0]) if len(decided) else math.inf
