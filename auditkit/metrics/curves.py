"""Areas under insertion and deletion curves from values at some keep counts, and how far they may be off.

A curve is a probability against the number of pixels kept, s = 0..n. Its exact area is the mean over every s in 1..n.
Between known points the curve is taken as straight, and the mean over all s is then a weighted sum of the values.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput

Needed = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Steps:
    """How many points a curve gets: a number of equal steps, every pixel count, or as many as a tolerance needs."""

    rule: str  # uniform | exact | auto
    count: int = 0
    tolerance: float = 0.0

    def __str__(self) -> str:
        return {"uniform": str(self.count), "exact": "exact", "auto": f"auto:{self.tolerance:g}"}[self.rule]


def parse_steps(text: str) -> Steps:
    """The steps that a text such as 28, exact, auto or auto:1e-3 asks for."""
    if text == "exact":
        return Steps("exact")
    if re.fullmatch(r"[1-9]\d{0,6}", text):
        return Steps("uniform", count=int(text))
    match = re.fullmatch(r"auto(?::(.+))?", text)
    try:
        tolerance = float(match[1] or 5e-3) if match else 0.0
    except ValueError:
        tolerance = 0.0
    if not 1e-5 <= tolerance <= 0.5:
        raise BadInput(f"steps '{text}' is not a number of steps, 'exact', 'auto' or 'auto:TOLERANCE' (1e-5 to 0.5).")
    return Steps("auto", tolerance=tolerance)


def uniform_counts(pixels: int, steps: int) -> Array:
    """Keep counts 0..pixels in equal steps, as nearly as whole pixels allow."""
    return np.unique(np.round(np.linspace(0, pixels, min(steps, pixels) + 1)).astype(np.int64))


def area_weights(counts: Array) -> Array:
    """Weight of each point in the mean over every s in 1..n; counts [..., P] ascend from 0 to n."""
    gaps = np.diff(counts, axis=-1).astype(np.float64)
    weights = np.zeros(counts.shape)
    weights[..., :-1] += (gaps - 1) / 2 * (gaps > 0)
    weights[..., 1:] += (gaps + 1) / 2 * (gaps > 0)
    return np.asarray(weights / counts[..., -1:])


def area(counts: Array, values: Array) -> Array:
    """Mean over every s in 1..n of the curve through the points; the last axis holds them."""
    return np.asarray((area_weights(counts) * values).sum(axis=-1))


TINY = 1e-12
MAGNIFIED = 20  # tolerances that a ratio may be off; it is averaged over many pairs, while an area is read by itself


def needed_errors(areas: Array, prob: Array, tolerance: float, eps1: float, eps2: float) -> Array:
    """Error of each area that its figures can bear: the tolerance, or less where a ratio would magnify it.

    alpha = min(max(A, eps1)/f, 1) moves by 1/f with the area while A lies between eps1 and f, and beta =
    min(max(f, eps2)/A, 1) by max(f, eps2)/A^2. Below max(f, eps2) beta stays 1, yet the slope there is kept: spikes of
    an unlikely label that hide between the points make an area too small, rarely but then by much.
    """
    moved = MAGNIFIED * tolerance
    until_it_moves = np.abs(areas - np.clip(areas, eps1, np.maximum(prob, eps1)))
    alpha_bears = np.where(prob > eps1, until_it_moves + moved * prob, np.inf)
    least = np.maximum(np.maximum(prob, eps2), TINY)
    beta_bears = moved * np.maximum(areas, least) ** 2 / least
    return np.asarray(np.minimum(tolerance, np.minimum(alpha_bears, beta_bears)))


# Between known points the log-odds of a probability are taken to wander like a random walk: over real models the
# surprise of a split, how far the log-odds at the new point lie off the straight line, grows by the power ROUGHNESS / 2
# of the gap and is alike along a curve, from labels near 0 to those near 1. So the odds at a few points tell what may
# hide anywhere, also the narrow spikes of a label that looks like 0. Set and checked with benchmarks/steps.py.
ROUGHNESS = 0.8
LEAST_PROB, MOST_PROB = 1e-12, 1 - 1e-7  # float32 has nothing closer to 1
TAILS = ((0.9, 0.6), (0.1, 4.6))  # shares and variances of two normals: surprises have heavier tails than one
NEIGHBOURS = np.array([1.0, 1.0, 2.0, 1.0, 1.0]) / 6  # a single surprise may be small by luck
GLOBAL_SHARE = 0.85
BRIDGE = 1 / 3  # variance of a random walk's mean between two known points, in variances of its middle
SPREAD = 2.2  # from a standard deviation to a bound that holds 95 times in 100
FEW_POINTS = 10  # a roughness seen at few points is uncertain, and curves that look calm by luck stop first
LEAST_SHARE = 0.1  # of the tolerance: no smaller error is claimed while a pixel is unknown
FIRST_GAPS = 12
REFINED_SHARE = 0.15  # of the gaps, in each round


def _nodes() -> list[tuple[float, float]]:
    """Points and weights that stand for the distribution of a surprise of variance 1."""
    points, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    return [
        (float(point * variance**0.5), float(share * weight))
        for share, variance in TAILS
        for point, weight in zip(points, weights, strict=True)
    ]


NODES = _nodes()


def _log_odds(values: Array) -> Array:
    inside = np.clip(values, LEAST_PROB, MOST_PROB)
    return np.asarray(np.log(inside / (1 - inside)))


def _rates(counts: tuple[Array, Array, Array], values: tuple[Array, Array, Array]) -> Array:
    """Squared surprise of a middle point between two others, as it would be in the middle of a gap of one pixel."""
    (low, at, high), (left, middle, right) = counts, (_log_odds(value) for value in values)
    width = np.maximum(high - low, 1)
    share = ((at - low) / width)[..., None]
    surprise = middle - left * (1 - share) - right * share
    scale = 4 * share * (1 - share) * width[..., None] ** ROUGHNESS
    return np.asarray(np.divide(surprise**2, scale, out=np.zeros(surprise.shape), where=scale > 0))


def _first_rates(counts: Array, values: Array) -> Array:
    """Rates [A, gaps, L] from a single look at the points [A, P, L]: every second one is a surprise to its neighbours.

    Of an odd number of gaps the last is told by the point before it.
    """
    last = counts.shape[1] - 1
    at = np.unique(np.append(np.arange(1, last, 2), last - 1))
    low, high = at - 1, at + 1
    rates = _rates((counts[:, low], counts[:, at], counts[:, high]), (values[:, low], values[:, at], values[:, high]))
    return rates[:, np.minimum(np.arange(last) // 2, len(at) - 1)]


def _loads(counts: Array, values: Array, rates: Array) -> Array:
    """Standard deviation of what each gap [A, gaps, L] may add to its area."""
    widths = np.diff(counts, axis=1)[..., None]
    padded = np.pad(rates, ((0, 0), (2, 2), (0, 0)), mode="reflect")
    local = sum(weight * padded[:, at : at + rates.shape[1]] for at, weight in enumerate(NEIGHBOURS))
    pooled = (1 - GLOBAL_SHARE) * local + GLOBAL_SHARE * rates.mean(axis=1, keepdims=True)
    deviation = np.sqrt(pooled * widths**ROUGHNESS)
    odds = _log_odds(values)
    middle = (odds[:, :-1] + odds[:, 1:]) / 2
    straight = (values[:, :-1] + values[:, 1:]) / 2
    hidden = np.zeros(middle.shape)
    for point, weight in NODES:
        likely = 0.5 + 0.5 * np.tanh((middle + point * deviation) / 2)  # never overflows
        hidden += weight * (likely - straight) ** 2
    pixels = (counts[:, -1:] - counts[:, :1])[..., None]
    return np.asarray(np.where(widths > 1, widths / pixels * np.sqrt(BRIDGE * hidden), 0.0))


def _bounds(loads: Array) -> Array:
    """Errors [A, L] that areas keep to 95 times in 100."""
    spread = SPREAD * (1 + FEW_POINTS / (loads.shape[1] - 1))
    return np.asarray(spread * np.sqrt((loads**2).sum(axis=1)))


def sampled_errors(counts: Array, values: Array) -> Array:
    """Errors [C, L] of the areas under curves [C, P, L] at given counts [P], estimated from those points alone.

    Every second point tells how rough the curve is, as the first round of a refinement does: with 6 to 128 steps the
    error held in 91 to 100 of 100 curves of two models (benchmarks/results/steps-*.json), least with 128. The mere
    difference to the area over every second point is small by luck too often: to hold as often it would need a factor
    between 3 and 700. The error is 0 where the points are all that there are, and NaN where none lies between the ends.
    """
    if len(counts) == counts[-1] - counts[0] + 1:
        return np.zeros((len(values), values.shape[2]))
    if len(counts) <= 2:
        return np.full((len(values), values.shape[2]), np.nan)
    every = np.broadcast_to(counts, values.shape[:2])
    return _bounds(_loads(every, values, _first_rates(every, values)))


class Refinement:
    """Many curves refined in step, each until its areas are known to their tolerances.

    Every curve starts with the same few gaps, all of which are split once. Each round splits the gaps of a curve that
    weigh most. Curves that are settled drop out, so that those left always have equally many points and all work is
    done on whole arrays. What is asked of a curve does not depend on the others.
    """

    def __init__(self, pixels: int, first: Array, last: Array, needed: Needed, most: int) -> None:
        """Curves [C, L] from their values at no and at all pixels kept; at most `most` points between.

        `needed` is given the positions of some curves [A] and their areas so far [A, L] and says which errors of the
        areas will do.
        """
        self.pixels, self._needed = pixels, needed
        # With all pixels allowed, a curve ends when it knows them all: late rounds may repeat counts, see _merge.
        self._most = most if most < pixels - 1 else None
        curves, labels = first.shape
        self.counts = [np.array([0, pixels])] * curves
        self.values: list[Array] = [np.stack(ends) for ends in zip(first, last, strict=True)]
        self.errors = np.zeros((curves, labels))
        self._active = np.arange(curves if pixels > 1 else 0)
        self._counts = np.tile(np.array([0, pixels]), (len(self._active), 1))
        self._values = np.stack([first, last], axis=1)[self._active]
        self._roughness: Array = np.zeros((len(self._active), 2, labels))
        steps = max(min(2 * FIRST_GAPS, pixels, most + 1) // 2 * 2, 2)
        self._asked = np.tile(uniform_counts(pixels, steps)[1:-1], (len(self._active), 1))
        self._split: Array | None = None

    def wanted(self) -> tuple[Array, Array]:
        """The curves that go on [A], and the keep counts [A, k] whose values `add` expects next."""
        return self._active, self._asked

    def add(self, values: Array) -> None:
        """Take the values [A, k, L] just asked for, and decide what to ask next."""
        if self._split is None:
            self._start(values)
        else:
            self._merge(values, self._split)
        areas = (area_weights(self._counts)[..., None] * self._values).sum(axis=1)
        tolerances = self._needed(self._active, areas)
        loads = _loads(self._counts, self._values, self._roughness[:, :-1])
        errors = self._bounds(loads, tolerances)
        self.errors[self._active] = errors
        full = self._most is not None and self._counts.shape[1] - 2 >= self._most
        done = np.all(errors <= tolerances, axis=1) | full
        for position in np.flatnonzero(done):
            self._file(int(position))
        self._keep(~done)
        self._asked = self._next(loads[~done] / tolerances[~done][:, None])

    def _file(self, position: int) -> None:
        curve = int(self._active[position])
        counts, first = np.unique(self._counts[position], return_index=True)
        self.counts[curve], self.values[curve] = counts, self._values[position][first]

    def _keep(self, going: Array) -> None:
        self._active, self._counts = self._active[going], self._counts[going]
        self._values, self._roughness = self._values[going], self._roughness[going]

    def _start(self, values: Array) -> None:
        """All even points are the first grid, all odd ones the first split."""
        ends = self._values
        self._counts = np.concatenate([self._counts[:, :1], self._asked, self._counts[:, 1:]], axis=1)
        self._values = np.concatenate([ends[:, :1], values, ends[:, 1:]], axis=1)
        rates = _first_rates(self._counts, self._values)
        # One entry a point, for the gap behind it, so that a merge moves points and gaps alike.
        self._roughness = np.concatenate([rates, rates[:, -1:]], axis=1)

    def _merge(self, values: Array, left: Array) -> None:
        """Put the new points behind the left ends of their gaps; a gap of one pixel gives its left end again."""
        rows = np.arange(len(self._active))[:, None]
        low, high = self._counts[rows, left], self._counts[rows, left + 1]
        ends = self._values[rows, left], self._values[rows, left + 1]
        rates = _rates((low, self._asked, high), (ends[0], values, ends[1]))
        rates = np.where((self._asked > low)[..., None], rates, self._roughness[rows, left])
        self._roughness[rows, left] = rates
        counts = np.concatenate([self._counts, self._asked], axis=1)
        order = np.argsort(counts, axis=1, kind="stable")
        self._counts = counts[rows, order]
        self._values = np.concatenate([self._values, values], axis=1)[rows, order]
        self._roughness = np.concatenate([self._roughness, rates], axis=1)[rows, order]

    def _bounds(self, loads: Array, tolerances: Array) -> Array:
        bounds = np.maximum(_bounds(loads), LEAST_SHARE * tolerances)
        complete = np.all(np.diff(self._counts, axis=1) <= 1, axis=1, keepdims=True)
        return np.where(complete, 0.0, bounds)

    def _next(self, loads: Array) -> Array:
        """Counts in the middle of the gaps that weigh most over all labels; known gaps come last."""
        unknown = np.diff(self._counts, axis=1) > 1
        order = np.argsort(np.where(unknown, -(loads**2).sum(axis=2), 1.0), axis=1, kind="stable")
        count = math.ceil(REFINED_SHARE * order.shape[1])
        if self._most is not None:
            count = min(count, self._most - self._counts.shape[1] + 2)
        self._split = np.sort(order[:, :count], axis=1)
        rows = np.arange(len(order))[:, None]
        return np.asarray((self._counts[rows, self._split] + self._counts[rows, self._split + 1]) // 2)
