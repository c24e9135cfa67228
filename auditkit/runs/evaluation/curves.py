"""Curves of one unit of work, all measured together so that batches are always full."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.graph.hard_masks import BOTTOM, KEEP, MAP, TOP
from auditkit.metrics.curves import ErrorLimits, Refinement, area, error_limits, sampled_errors, uniform_counts
from auditkit.model.hard_masks import Masked
from auditkit.runs.evaluation.settings import Evaluation, Rule

AT_ONCE = 1024  # counts of a curve in one round: every pixel of every curve would be gigabytes of rows
ROUNDING = 1e-12  # between two ways of summing the same points
SHARE_ROUNDING = 1e-9  # 0.29 of 100 pixels are 28.999999999999996
MOST_POINTS = 512  # of a curve that refuses to settle; its error then says so


@dataclass(frozen=True)
class Curve:
    """One order of pixels over one image, watched for some labels."""

    rule: Rule
    image: int  # picture that pixels come from, or go to when deleting
    infills: tuple[int, ...]  # pictures whose results are averaged
    ranks: int
    labels: tuple[int, ...]
    whole: tuple[float, ...]  # probability of each label on the whole image
    empty: tuple[float, ...]  # and on the infill alone


@dataclass(frozen=True)
class Found:
    """A curve's points, its area for each label, and the error of that (NaN where the ends are all that is known)."""

    counts: Array  # [S]
    values: Array  # [S, L]
    areas: Array  # [L]
    errors: Array  # [L]


@dataclass(frozen=True)
class Span:
    """The keep counts over which areas are taken: every one above `low`, up to `high`."""

    low: int
    high: int
    pixels: int

    @classmethod
    def of(cls, settings: Evaluation, pixels: int) -> "Span":
        """The settings' range in whole pixels: every count whose share lies above its start, up to its end."""
        low, high = (math.floor(end * pixels + SHARE_ROUNDING) for end in settings.range)
        if low == high:
            raise BadInput(f"the range {settings.range[0]:g} to {settings.range[1]:g} holds no pixel of {pixels}.")
        return cls(low, high, pixels)


class _Sampling(Protocol):
    """Where some curves are asked next, and what was found of them."""

    def wanted(self) -> tuple[Array, Array]:
        """Curves that go on [A], and the counts [A, k] they need next."""

    def add(self, values: Array) -> None:
        """Take the values [A, k, L] just asked for."""

    def found(self, position: int) -> Found:
        """The curve at that position."""


class _Fixed:
    """Curves that are known at the same counts, whatever they look like."""

    def __init__(self, counts: Array, span: Span, ends: dict[int, Array], areas: Callable[[Array], Array]) -> None:
        """`ends` are values [C, L] known before; `areas` takes those at all counts, the points on the last axis."""
        self.counts, self.span, self.areas = counts, span, areas
        self.points = np.union1d(counts, (span.low, span.high))
        some = next(iter(ends.values()))
        self.values = np.zeros((len(some), len(self.points), some.shape[1]))
        for count, known in ends.items():
            self.values[:, self.points == count] = known[:, None]
        self.asked = np.flatnonzero(~np.isin(self.points, list(ends)))

    def wanted(self) -> tuple[Array, Array]:
        coming = self.points[self.asked[:AT_ONCE]]
        curves = np.arange(len(self.values) if len(coming) else 0)
        return curves, np.tile(coming, (len(curves), 1))

    def add(self, values: Array) -> None:
        self.values[:, self.asked[:AT_ONCE]] = values
        self.asked = self.asked[AT_ONCE:]

    def found(self, position: int) -> Found:
        known = self.values[position]
        values = known[np.searchsorted(self.points, self.counts)]
        areas = self.areas(values.T)
        of_rule = np.abs(areas - area(self.points - self.span.low, known.T))  # a protocol's need not be the exact one's
        return Found(self.counts, values, areas, self._hidden[position] + np.where(of_rule > ROUNDING, of_rule, 0.0))

    @cached_property
    def _hidden(self) -> Array:
        """What the areas [C, L] may miss between the points."""
        return sampled_errors(self.points, self.values)


class _Adaptive:
    """Curves that are refined until their areas over a span are known well enough."""

    def __init__(self, span: Span, ends: dict[int, Array], needed: ErrorLimits) -> None:
        self.span, self.ends, self.needed = span, ends, needed
        self.refinement: Refinement | None = None
        self.unknown = [count for count in (span.low, span.high) if count not in ends]
        if not self.unknown:
            self._begin()

    def _begin(self) -> None:
        width = self.span.high - self.span.low
        ends = self.ends[self.span.low], self.ends[self.span.high]
        self.refinement = Refinement(width, *ends, self.needed, min(MOST_POINTS, width))

    def wanted(self) -> tuple[Array, Array]:
        if self.refinement is None:
            curves = np.arange(len(next(iter(self.ends.values()))))
            return curves, np.tile(self.unknown, (len(curves), 1))
        active, counts = self.refinement.next_counts()
        return active, counts + self.span.low

    def add(self, values: Array) -> None:
        if self.refinement is not None:
            self.refinement.add(values)
            return
        self.ends |= {count: values[:, at] for at, count in enumerate(self.unknown)}
        self._begin()

    def found(self, position: int) -> Found:
        if self.refinement is None:
            raise ValueError("the ends of the curve were never asked for")
        counts, values = self.refinement.counts[position], self.refinement.values[position]
        return Found(counts + self.span.low, values, area(counts, values.T), self.refinement.errors[position])


class _Group:
    """Curves of one rule that watch equally many labels over equally many infills."""

    def __init__(self, curves: Sequence[Curve], span: Span, settings: Evaluation) -> None:
        self.deletion = curves[0].rule.deletion
        self.images = np.array([curve.image for curve in curves])
        self.infills = np.array([curve.infills for curve in curves])
        self.maps = np.array([curve.ranks for curve in curves])
        self.labels = np.array([curve.labels for curve in curves])
        self.whole = np.array([curve.whole for curve in curves])
        self.sampling = self._sampling(curves[0].rule, np.array([curve.empty for curve in curves]), span, settings)

    def _sampling(self, rule: Rule, empty: Array, span: Span, settings: Evaluation) -> _Sampling:
        first, last = (self.whole, empty) if self.deletion else (empty, self.whole)
        ends = {0: first, span.pixels: last}
        if (known := rule.protocol) is not None:
            counts = known.counts(span.pixels)
            return _Fixed(counts, span, ends, lambda values: known.area(counts, values))
        if rule.steps.rule == "auto":
            return _Adaptive(span, ends, self._needed(rule, settings))
        width = span.high - span.low
        steps = uniform_counts(width, rule.steps.count if rule.steps.rule == "uniform" else width)
        return _Fixed(steps + span.low, span, ends, lambda values: area(steps, values))

    def _needed(self, rule: Rule, settings: Evaluation) -> ErrorLimits:
        tolerance, eps1, eps2 = rule.steps.tolerance, settings.eps1 or 0.0, settings.eps2 or 0.0
        if self.deletion:  # it feeds no ratio
            return lambda _active, areas: np.full(areas.shape, tolerance)
        return lambda active, areas: error_limits(areas, self.whole[active], tolerance, eps1, eps2)

    def rows(self, active: Array, counts: Array) -> tuple[Array, Array, Array]:
        """Rows for the masks, and for each the labels to read and the image it is about."""
        shape = (*counts.shape, self.infills.shape[1])
        curve = np.broadcast_to(active[:, None, None], shape).reshape(-1)
        infill = np.broadcast_to(self.infills[active][:, None, :], shape).reshape(-1)
        rows = np.empty((len(curve), 4), np.int32)
        rows[:, TOP], rows[:, BOTTOM] = (infill, self.images[curve]) if self.deletion else (self.images[curve], infill)
        rows[:, MAP] = self.maps[curve]
        rows[:, KEEP] = np.broadcast_to(counts[..., None], shape).reshape(-1)
        return rows, self.labels[curve], self.images[curve]

    def take(self, counts: Array, picked: Array) -> None:
        """Probabilities [rows, L] of the rows just asked for."""
        self.sampling.add(picked.reshape(*counts.shape, self.infills.shape[1], -1).mean(axis=2))


def run_curves(
    masked: Masked, banks: Any, curves: Sequence[Curve], span: Span, settings: Evaluation,
    among: Array | None = None, on_rows: Callable[[int], None] = lambda _count: None,
) -> list[Found]:  # fmt: skip
    """Points and areas of every curve; `among` [images, classes] says which labels share each image's probability."""
    members: dict[tuple[Rule, int, int], list[int]] = {}
    for index, curve in enumerate(curves):
        members.setdefault((curve.rule, len(curve.labels), len(curve.infills)), []).append(index)
    groups = {kind: _Group([curves[index] for index in indices], span, settings) for kind, indices in members.items()}
    while asked := [(group, *wanted) for group in groups.values() if len((wanted := group.sampling.wanted())[0])]:
        _round(masked, banks, asked, among, on_rows)
    found: dict[int, Found] = {}
    for kind, group in groups.items():
        found |= {index: group.sampling.found(position) for position, index in enumerate(members[kind])}
    return [found[index] for index in range(len(curves))]


def _round(
    masked: Masked, banks: Any, asked: list[tuple[_Group, Array, Array]], among: Array | None,
    on_rows: Callable[[int], None],
) -> None:  # fmt: skip
    """One round of passes for all groups, their rows in the same batches."""
    parts = [group.rows(active, counts) for group, active, counts in asked]
    widest = max(labels.shape[1] for _, labels, _ in parts)
    rows = np.concatenate([part for part, _, _ in parts])
    labels = np.concatenate([np.pad(part, ((0, 0), (0, widest - part.shape[1]))) for _, part, _ in parts])
    images = np.concatenate([part for _, _, part in parts])
    picked: Array = np.empty(labels.shape)
    for done, probabilities in masked.run(rows, banks):
        picked[done] = np.take_along_axis(probabilities, labels[done], axis=1)
        if among is not None:
            whole = (probabilities * among[images[done]]).sum(axis=1, dtype=np.float64, keepdims=True)
            picked[done] = np.divide(picked[done], whole, out=np.full(picked[done].shape, np.nan), where=whole > 0)
        on_rows(len(probabilities))
    if not np.isfinite(picked).all():
        shared = among is not None and not np.isinf(picked).any()
        none = (
            "every label of the set may have probability 0 on it, with nothing to renormalise over; or "
            if shared
            else ""
        )
        raise RuntimeFailure(f"there is no figure for a masked image: {none}the model gives NaN or infinity there.")
    start = 0
    for (group, _, counts), (part, own, _) in zip(asked, parts, strict=True):
        group.take(counts, picked[start : start + len(part), : own.shape[1]])
        start += len(part)
