"""Areas under insertion and deletion curves from values at some keep counts, and how far they may be off.

A curve is a probability against the number of pixels kept, s = 0..n. Its exact area is the mean over every s in 1..n.
Between known points the curve is taken as straight, and the mean over all s is then a weighted sum of the values.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.errors import BadInput

Array = np.ndarray[Any, Any]
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


def partial_area(counts: Array, values: Array, low: float, high: float) -> float:
    """Mean of one curve over the kept fractions from low to high, the trapezoid over straight pieces."""
    if not 0 <= low < high <= 1:
        raise BadInput(f"a range of kept fractions goes from 0 to 1, not from {low:g} to {high:g}.")
    fractions = counts / counts[-1]
    inner = (fractions > low) & (fractions < high)
    at = np.concatenate([[low], fractions[inner], [high]])
    return float(np.trapezoid(np.interp(at, fractions, values), at) / (high - low))


MAGNIFIED = 12  # tolerances that a ratio may be off


def needed_errors(areas: Array, prob: Array, tolerance: float, eps1: float, eps2: float) -> Array:
    """Error of each area that its figures can bear: the tolerance, or less where a ratio would magnify it.

    alpha = max(A, eps1)/f moves by 1/f and beta = max(f, eps2)/A by beta/A with the area; both may move by MAGNIFIED
    tolerances, since they are averaged over many pairs while an area is also read by itself. A ratio that lies well
    beyond its cap of 1 bears any error.
    """
    whole = np.maximum(prob, 1e-12)
    least = np.maximum(prob, eps2)
    alpha_bears = np.where((areas < whole) & (areas > eps1), MAGNIFIED * tolerance * whole, np.inf)
    beta_bears = np.where(areas > 0.5 * least, MAGNIFIED * tolerance * np.maximum(areas, least) ** 2 / least, np.inf)
    return np.asarray(np.minimum(tolerance, np.minimum(alpha_bears, beta_bears)))


# How the error of a partly known curve is judged; set on curves known at every pixel (benchmarks/steps.py).
FIRST_GAPS = 8
REFINED_SHARE = 0.25  # of the gaps, in each round
NEIGHBOURS = np.array([1.0, 1.0, 2.0, 1.0, 1.0]) / 6  # a single surprise may be small by luck
GLOBAL_SHARE = 0.15
SLOPE_SHARE = 0.4  # a step may hide anywhere in a gap across which the curve moves
SPREAD = 1.5  # from the root of summed squares to a bound that holds 95 times in 100
LEAST_SHARE = 0.1  # of the tolerance: no smaller error is claimed


class Refinement:
    """Many curves refined in step, each until its areas are known to their tolerances.

    Every curve starts with the same few gaps, all of which are split once. The surprise of a split, how far the new
    value lies off the straight line, says how far off the line is likely to be in the halves. Each round splits the
    quarter of a curve's gaps that weigh most. Curves that are settled drop out, so that those left always have equally
    many points and all work is done on whole arrays.
    """

    def __init__(self, pixels: int, first: Array, last: Array, needed: Needed, most: int) -> None:
        """Curves [C, L] from their values at no and at all pixels kept; at most `most` points between.

        `needed` is given the positions of some curves [A] and their areas so far [A, L] and says which errors of the
        areas will do.
        """
        self.pixels, self.most, self._needed = pixels, most, needed
        curves, labels = first.shape
        self.counts = [np.array([0, pixels])] * curves
        self.values: list[Array] = [np.stack([f, e]) for f, e in zip(first, last, strict=True)]
        self.errors = np.full((curves, labels), np.nan)
        self._tolerances = np.zeros((curves, labels))
        self._active = np.arange(curves)
        self._counts = np.tile(np.array([0, pixels]), (curves, 1))
        self._values = np.stack([first, last], axis=1)
        self._surprise = np.zeros((curves, 1, labels))
        self._asked = self._grid()

    def _grid(self) -> Array:
        inner = uniform_counts(self.pixels, 2 * FIRST_GAPS)[1:-1]
        return np.tile(inner, (len(self._active), 1))

    def wanted(self) -> tuple[Array, Array]:
        """The curves that go on [A], and the keep counts [A, k] whose values `add` expects next."""
        return self._active, self._asked

    def add(self, values: Array) -> None:
        """Take the values [A, k, L] just asked for, and decide what to ask next."""
        if self._counts.shape[1] == 2:
            self._start(values)
        else:
            self._merge(values)
        areas = (area_weights(self._counts)[..., None] * self._values).sum(axis=1)
        self._tolerances[self._active] = self._needed(self._active, areas)
        errors = self._errors()
        self.errors[self._active] = errors
        points = self._counts.shape[1] - 2
        done = np.all(errors <= self._tolerances[self._active], axis=1) | (points >= self.most)
        for position in np.flatnonzero(done):
            self._file(int(position))
        going = ~done
        self._active = self._active[going]
        self._counts, self._values = self._counts[going], self._values[going]
        self._surprise = self._surprise[going]
        self._asked = self._next() if len(self._active) else np.zeros((0, 0), np.int64)

    def _file(self, position: int) -> None:
        curve = int(self._active[position])
        counts, first = np.unique(self._counts[position], return_index=True)
        self.counts[curve], self.values[curve] = counts, self._values[position][first]

    def _start(self, values: Array) -> None:
        """All even points are the first grid, all odd ones the first split."""
        ends = self._values
        self._counts = np.concatenate([self._counts[:, :1], self._asked, self._counts[:, 1:]], axis=1)
        self._values = np.concatenate([ends[:, :1], values, ends[:, 1:]], axis=1)
        left, middle, right = (self._counts[:, at] for at in (slice(0, -1, 2), slice(1, None, 2), slice(2, None, 2)))
        share = ((middle - left) / np.maximum(right - left, 1))[..., None]
        straight = self._values[:, 0:-1:2] * (1 - share) + self._values[:, 2::2] * share
        self._surprise = np.abs(self._values[:, 1::2] - straight).repeat(2, axis=1)

    def _merge(self, values: Array) -> None:
        rows = np.arange(len(self._active))[:, None]
        left = self._split
        a, b = self._counts[rows, left], self._counts[rows, left + 1]
        share = ((self._asked - a) / np.maximum(b - a, 1))[..., None]
        straight = self._values[rows, left] * (1 - share) + self._values[rows, left + 1] * share
        surprise = np.abs(values - straight)
        self._surprise[rows, left] = surprise
        counts = np.concatenate([self._counts, self._asked], axis=1)
        # A new point stands right behind the left end of its gap; gaps of one pixel give the same count twice.
        place = np.concatenate(
            [np.tile(np.arange(self._counts.shape[1], dtype=float), (len(rows), 1)), left + 0.5], axis=1
        )
        order = np.argsort(place, axis=1)
        self._counts = counts[rows, order]
        self._values = np.concatenate([self._values, values], axis=1)[rows, order]
        gaps = np.concatenate([self._surprise, surprise], axis=1)
        gap_place = np.concatenate([place[:, : self._surprise.shape[1]], left + 0.5], axis=1)
        self._surprise = gaps[rows, np.argsort(gap_place, axis=1)]

    def _loads(self) -> Array:
        """What each gap [A, gaps, L] may contribute to the error of its area."""
        widths = np.diff(self._counts, axis=1)
        share = (widths / self.pixels)[..., None]
        squared = self._surprise**2
        padded = np.pad(squared, ((0, 0), (2, 2), (0, 0)), mode="reflect")
        local = sum(weight * padded[:, at : at + squared.shape[1]] for at, weight in enumerate(NEIGHBOURS))
        overall = (squared * share).sum(axis=1, keepdims=True)
        slope = np.diff(self._values, axis=1)
        rough = (1 - GLOBAL_SHARE) * local + GLOBAL_SHARE * overall + (SLOPE_SHARE * slope) ** 2
        return np.asarray(np.where((widths > 1)[..., None], share * np.sqrt(rough), 0.0))

    def _errors(self) -> Array:
        spread = SPREAD * np.sqrt((self._loads() ** 2).sum(axis=1))
        return np.asarray(np.maximum(spread, LEAST_SHARE * self._tolerances[self._active]))

    def _next(self) -> Array:
        loads = ((self._loads() / self._tolerances[self._active][:, None]) ** 2).sum(axis=2)
        count = int(np.ceil(REFINED_SHARE * loads.shape[1]))
        self._split = np.sort(np.argsort(-loads, axis=1, kind="stable")[:, :count], axis=1)
        rows = np.arange(len(loads))[:, None]
        return np.asarray((self._counts[rows, self._split] + self._counts[rows, self._split + 1]) // 2)
