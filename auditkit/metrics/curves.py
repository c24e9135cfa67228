"""Areas under insertion and deletion curves from values at some keep counts, and estimates of their errors.

A curve is a probability as a function of the number of pixels kept, s = 0..n. Its exact area is the mean over every s
in 1..n. Interpolated linearly between known points, that mean is a weighted sum of the values.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput

# Indices of curves [A] and their areas so far [A, L] -> errors [A, L] that are small enough
ErrorLimits = Callable[[Array, Array], Array]
_DEFAULT_TOLERANCE = 5e-3  # of an area, for "auto"


@dataclass(frozen=True)
class Steps:
    """How a curve is sampled: in equal steps, at every pixel count, or at as many points as a tolerance needs."""

    rule: str  # uniform | exact | auto
    count: int = 0
    tolerance: float = 0.0

    def __str__(self) -> str:
        return {"uniform": str(self.count), "exact": "exact", "auto": f"auto:{self.tolerance:g}"}[self.rule]


def parse_steps(text: str) -> Steps:
    """The steps that a text names: a number as in 28, exact, auto, or auto:TOLERANCE as in auto:1e-3."""
    if text == "exact":
        return Steps("exact")
    if re.fullmatch(r"[1-9]\d{0,6}", text):
        return Steps("uniform", count=int(text))
    match = re.fullmatch(r"auto(?::(.+))?", text)
    try:
        tolerance = float(match[1] or _DEFAULT_TOLERANCE) if match else 0.0
    except ValueError:
        tolerance = 0.0
    if not 1e-5 <= tolerance <= 0.5:
        raise BadInput(f"steps '{text}' is not a number of steps, 'exact', 'auto' or 'auto:TOLERANCE' (1e-5 to 0.5).")
    return Steps("auto", tolerance=tolerance)


def uniform_counts(pixels: int, steps: int) -> Array:
    """Ascending keep counts [at most steps + 1] from 0 to pixels, as equally spaced as integers allow."""
    return np.unique(np.round(np.linspace(0, pixels, min(steps, pixels) + 1)).astype(np.int64))


def area_weights(counts: Array) -> Array:
    """Weight [..., P] of each point in the mean over every s in 1..n, for counts [..., P] that ascend from 0 to n."""
    gaps = np.diff(counts, axis=-1).astype(np.float64)
    weights = np.zeros(counts.shape)
    weights[..., :-1] += (gaps - 1) / 2 * (gaps > 0)
    weights[..., 1:] += (gaps + 1) / 2 * (gaps > 0)
    return np.asarray(weights / counts[..., -1:])


def area(counts: Array, values: Array) -> Array:
    """Area [...] under each curve in [0, 1]: the mean over every s in 1..n, for counts and values [..., P]."""
    return np.asarray((area_weights(counts) * values).sum(axis=-1))


MAGNIFIED = 20  # tolerances that a ratio may be off; it is averaged over many rows, while an area is read by itself


def error_limits(areas: Array, prob: Array, tolerance: float, eps1: float, eps2: float) -> Array:
    """Largest acceptable error of each area: the tolerance, or less where alpha or beta would magnify it.

    alpha = min(max(A, eps1)/f, 1) changes by 1/f with the area A while A is between eps1 and f; beta = min(max(f,
    eps2)/A, 1) changes by max(f, eps2)/A^2. Below max(f, eps2) beta is constant, yet the slope there is used: spikes of
    an unlikely label between the points make an area too small, rarely but then by much.
    """
    ratio_error = MAGNIFIED * tolerance
    before_alpha_changes = np.abs(areas - np.clip(areas, eps1, np.maximum(prob, eps1)))
    for_alpha = np.where(prob > eps1, before_alpha_changes + ratio_error * prob, np.inf)
    least = np.maximum(np.maximum(prob, eps2), _LEAST_PROB)
    for_beta = ratio_error * np.maximum(areas, least) ** 2 / least
    return np.asarray(np.minimum(tolerance, np.minimum(for_alpha, for_beta)))


# Between known points, the log-odds of a probability are modelled as a random walk: over real models, the surprise of
# a split (the distance of the log-odds at the new point from the straight line) grows with the power ROUGHNESS / 2 of
# the gap and is similar along a curve, from labels near 0 to those near 1. So the odds at a few points tell what may
# hide anywhere, even the narrow spikes of a label that looks like 0. All set and checked with benchmarks/steps.py.
_ROUGHNESS = 0.8
_LEAST_PROB, _MOST_PROB = 1e-12, 1 - 1e-7  # float32 has nothing closer to 1
_TAILS = ((0.9, 0.6), (0.1, 4.6))  # shares and variances of two normals: surprises have heavier tails than one
_NEIGHBOURS = np.array([1.0, 1.0, 2.0, 1.0, 1.0]) / 6  # a single surprise may be small by chance
_GLOBAL_SHARE = 0.85  # of a gap's roughness is the curve's mean, the rest its neighbours'
_BRIDGE = 1 / 3  # variance of a random walk's mean between two known points, in variances of its middle
_SPREAD = 2.2  # from a standard deviation to a bound that holds in 95 of 100 curves
_ODDS_SPREAD = 2.2  # the same for areas of log-odds
_FEW_POINTS = 10  # widens bounds from few points: curves that look smooth by chance stop first
_LEAST_SHARE = 0.1  # of the tolerance: the least error claimed while a pixel is unknown
FIRST_GAPS = 12  # of every curve, before the first split
_REFINED_SHARE = 0.15  # of the gaps are split in each round


def _nodes() -> list[tuple[float, float]]:
    """Quadrature points and weights for the distribution of a surprise of variance 1."""
    points, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    nodes: list[tuple[float, float]] = []
    for share, variance in _TAILS:
        nodes += zip((points * variance**0.5).tolist(), (share * weights).tolist(), strict=True)
    return nodes


_NODES = _nodes()


def _log_odds(values: Array) -> Array:
    inside = np.clip(values, _LEAST_PROB, _MOST_PROB)
    return np.asarray(np.log(inside / (1 - inside)))


def _rates(counts: Sequence[Array], values: Sequence[Array]) -> Array:
    """Squared surprise of a middle point between two others, scaled to the middle of a gap of one pixel."""
    return _surprise_rates(counts, [_log_odds(value) for value in values])


def _surprise_rates(counts: Sequence[Array], odds: Sequence[Array]) -> Array:
    (low, count, high), (left, middle, right) = counts, odds
    width = np.maximum(high - low, 1)
    share = ((count - low) / width)[..., None]
    surprise = middle - left * (1 - share) - right * share
    scale = 4 * share * (1 - share) * width[..., None] ** _ROUGHNESS
    return np.asarray(np.divide(surprise**2, scale, out=np.zeros(surprise.shape), where=scale > 0))


def _first_rates(counts: Array, values: Array) -> Array:
    """Rates [A, gaps, L] from the points [A, P, L] alone: every second point is a split of its neighbours' gap."""
    last = counts.shape[1] - 1  # if it is odd, the last gap takes its rate from the point before it
    middle = np.unique(np.append(np.arange(1, last, 2), last - 1))
    triples = (middle - 1, middle, middle + 1)
    rates = _rates([counts[:, point] for point in triples], [values[:, point] for point in triples])
    return rates[:, np.minimum(np.arange(last) // 2, len(middle) - 1)]


def _loads(counts: Array, values: Array, rates: Array) -> Array:
    """Standard deviation of what each gap [A, gaps, L] may add to its area."""
    widths = np.diff(counts, axis=1)[..., None]
    padded = np.pad(rates, ((0, 0), (2, 2), (0, 0)), mode="reflect")
    local = sum(weight * padded[:, shift : shift + rates.shape[1]] for shift, weight in enumerate(_NEIGHBOURS))
    pooled = (1 - _GLOBAL_SHARE) * local + _GLOBAL_SHARE * rates.mean(axis=1, keepdims=True)
    deviation = np.sqrt(pooled * widths**_ROUGHNESS)
    odds = _log_odds(values)
    middle = (odds[:, :-1] + odds[:, 1:]) / 2
    straight = (values[:, :-1] + values[:, 1:]) / 2
    hidden = np.zeros(middle.shape)
    for point, weight in _NODES:
        likely = 0.5 + 0.5 * np.tanh((middle + point * deviation) / 2)  # never overflows
        hidden += weight * (likely - straight) ** 2
    pixels = (counts[:, -1:] - counts[:, :1])[..., None]
    return np.asarray(np.where(widths > 1, widths / pixels * np.sqrt(_BRIDGE * hidden), 0.0))


def _bounds(loads: Array) -> Array:
    """Bounds [A, L] that hold for the errors of 95 in 100 areas."""
    spread = _SPREAD * (1 + _FEW_POINTS / (loads.shape[1] - 1))
    return np.asarray(spread * np.sqrt((loads**2).sum(axis=1)))


def sampled_errors(counts: Array, values: Array) -> Array:
    """Errors [C, L] of the areas under curves [C, P, L] at counts [P], estimated from those points alone.

    Every second point shows how rough the curve is, as in the first round of a refinement: with 6 to 128 steps the
    error held in 91 to 100 of 100 curves of two models (benchmarks/results/steps-*.json), least often with 128. The
    difference to the area over every second point is too often small by chance: to hold as often, it would need a
    factor between 3 and 700. The error is 0 if every count is sampled, and NaN if none between the ends is.
    """
    if len(counts) == counts[-1] - counts[0] + 1:
        return np.zeros((len(values), values.shape[2]))
    if len(counts) <= 2:
        return np.full((len(values), values.shape[2]), np.nan)
    tiled = np.broadcast_to(counts, values.shape[:2])
    return _bounds(_loads(tiled, values, _first_rates(tiled, values)))


def log_odds(prob: Array, rest: Array) -> Array:
    """log p - log of all other labels' sum. Unlike log p/(1 - p), it tells sure predictions apart in any precision."""
    return np.asarray(np.log(np.maximum(prob, _LEAST_PROB)) - np.log(np.maximum(rest, _LEAST_PROB)))


def log_odds_areas(curve: Array, counts: Array, odds: Array) -> tuple[Array, Array]:
    """Areas [C, L] of log-odds, and bounds of their errors: 0 if every count is known, NaN if only the ends are.

    Points are sorted by their curve [P], then by their count [P]; `odds` are [P, L]. The surprise at each point between
    two others shows how rough a curve is; a gap then adds the variance of a random walk's mean between known points.
    """
    starts = np.flatnonzero(np.diff(curve, prepend=-1))
    same = np.diff(curve) == 0
    gaps = np.where(same, np.diff(counts), 0).astype(np.float64)
    weights = np.zeros(len(counts))
    weights[:-1] += (gaps - 1) / 2 * same
    weights[1:] += (gaps + 1) / 2 * same
    spans = np.add.reduceat(np.append(gaps, 0.0), starts)[:, None]
    areas = np.add.reduceat(weights[:, None] * odds, starts) / spans

    middle = np.flatnonzero(same[:-1] & same[1:]) + 1
    triple = (middle - 1, middle, middle + 1)
    rates = np.zeros(odds.shape)
    rates[middle] = _surprise_rates([counts[point] for point in triple], [odds[point] for point in triple])
    points = np.diff(starts, append=len(curve))[:, None]
    with np.errstate(invalid="ignore"):  # 0 / 0 for a curve whose ends alone are known
        rough = np.add.reduceat(rates, starts) / np.maximum(points - 2, 0)
    unknown = np.add.reduceat(np.append(np.where(gaps > 1, gaps ** (2 + _ROUGHNESS), 0.0), 0.0), starts)[:, None]
    spread = _ODDS_SPREAD * (1 + _FEW_POINTS / points)
    return areas, np.where(unknown > 0, spread * np.sqrt(_BRIDGE * rough * unknown) / spans, 0.0)


class Refinement:
    """Many curves refined together, each until the errors of its areas are within their limits.

    Every curve starts with the same few gaps, all of which are split once. Each round splits the gaps of a curve that
    contribute most to its error. Finished curves drop out; the active ones all have the same number of points, so that
    the work is done on arrays. The counts of a curve do not depend on the other curves.
    """

    def __init__(self, pixels: int, first: Array, last: Array, limits: ErrorLimits, max_points: int) -> None:
        """Curves [C, L] by their values with no pixels and with all pixels kept; at most `max_points` in between."""
        self._limits = limits
        # Without a maximum, a curve ends when all its pixels are known: late rounds may repeat counts, see _merge.
        self._max_points = max_points if max_points < pixels - 1 else None
        curves, labels = first.shape
        self.counts = [np.array([0, pixels])] * curves
        self.values: list[Array] = [np.stack(ends) for ends in zip(first, last, strict=True)]
        self.errors = np.zeros((curves, labels))
        self._active = np.arange(curves if pixels > 1 else 0)
        self._counts = np.tile(np.array([0, pixels]), (len(self._active), 1))
        self._values = np.stack([first, last], axis=1)[self._active]
        self._roughness: Array = np.zeros((len(self._active), 2, labels))
        steps = max(min(2 * FIRST_GAPS, pixels, max_points + 1) // 2 * 2, 2)
        self._next_counts = np.tile(uniform_counts(pixels, steps)[1:-1], (len(self._active), 1))
        self._split: Array | None = None  # gaps [A, k] that the next counts lie in; None: the first round

    def next_counts(self) -> tuple[Array, Array]:
        """The active curves [A], and the keep counts [A, k] whose values `add` expects next."""
        return self._active, self._next_counts

    def add(self, values: Array) -> None:
        """Add the values [A, k, L] at the next counts, and choose the counts after them."""
        if self._split is None:
            self._start(values)
        else:
            self._merge(values, self._split)
        areas = (area_weights(self._counts)[..., None] * self._values).sum(axis=1)
        limits = self._limits(self._active, areas)
        loads = _loads(self._counts, self._values, self._roughness[:, :-1])
        complete = np.all(np.diff(self._counts, axis=1) <= 1, axis=1, keepdims=True)
        errors = np.where(complete, 0.0, np.maximum(_bounds(loads), _LEAST_SHARE * limits))
        self.errors[self._active] = errors
        full = self._max_points is not None and self._counts.shape[1] - 2 >= self._max_points
        done = np.all(errors <= limits, axis=1) | full
        for position in np.flatnonzero(done):
            curve = int(self._active[position])
            self.counts[curve], first = np.unique(self._counts[position], return_index=True)
            self.values[curve] = self._values[position][first]
        self._active, self._counts = self._active[~done], self._counts[~done]
        self._values, self._roughness = self._values[~done], self._roughness[~done]
        self._next_counts = self._split_gaps(loads[~done] / limits[~done][:, None])

    def _start(self, values: Array) -> None:
        """Even points are the first grid, odd points the first split."""
        self._counts = np.concatenate([self._counts[:, :1], self._next_counts, self._counts[:, 1:]], axis=1)
        self._values = np.concatenate([self._values[:, :1], values, self._values[:, 1:]], axis=1)
        rates = _first_rates(self._counts, self._values)
        # One entry per point, for the gap behind it, so that a merge sorts points and gaps alike.
        self._roughness = np.concatenate([rates, rates[:, -1:]], axis=1)

    def _merge(self, values: Array, left: Array) -> None:
        """Insert the new points behind the left ends of their gaps; a gap of one pixel repeats its left end."""
        rows = np.arange(len(self._active))[:, None]
        low, high = self._counts[rows, left], self._counts[rows, left + 1]
        first, last = self._values[rows, left], self._values[rows, left + 1]
        rates = _rates((low, self._next_counts, high), (first, values, last))
        rates = np.where((self._next_counts > low)[..., None], rates, self._roughness[rows, left])
        self._roughness[rows, left] = rates
        counts = np.concatenate([self._counts, self._next_counts], axis=1)
        order = np.argsort(counts, axis=1, kind="stable")
        self._counts = counts[rows, order]
        self._values = np.concatenate([self._values, values], axis=1)[rows, order]
        self._roughness = np.concatenate([self._roughness, rates], axis=1)[rows, order]

    def _split_gaps(self, loads: Array) -> Array:
        """Counts in the middle of the gaps with the greatest load over all labels; gaps of one pixel come last."""
        unknown = np.diff(self._counts, axis=1) > 1
        order = np.argsort(np.where(unknown, -(loads**2).sum(axis=2), 1.0), axis=1, kind="stable")
        count = math.ceil(_REFINED_SHARE * order.shape[1])
        if self._max_points is not None:
            count = min(count, self._max_points - self._counts.shape[1] + 2)
        self._split = np.sort(order[:, :count], axis=1)
        rows = np.arange(len(order))[:, None]
        return np.asarray((self._counts[rows, self._split] + self._counts[rows, self._split + 1]) // 2)
