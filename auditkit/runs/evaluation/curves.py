"""Measures the curves of one unit together, so that the batches of masked images are always full."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.graph.hard_masks import BOTTOM, KEEP, MAP, TOP
from auditkit.metrics.curves import (
    ErrorLimits,
    Refinement,
    area,
    error_limits,
    log_odds,
    log_odds_areas,
    sampled_errors,
    uniform_counts,
)
from auditkit.runs.evaluation.settings import CurveRule, Evaluation, usual_points

RunRows = Callable[[Array], Iterator[tuple[slice, Array]]]
"""Runs masks, int32 [N, 4] (top, bottom, map, keep): yields probabilities [n, classes], a slice at a time."""

MOST_COUNTS = 1024  # of a curve in one round: every pixel of every curve would be gigabytes of masks
ROUNDING = 1e-12  # between two ways of summing the same points
SHARE_ROUNDING = 1e-9  # 0.29 of 100 pixels are 28.999999999999996
MOST_POINTS = 512  # of a curve that refuses to settle; its error then says so


@dataclass(frozen=True)
class CurveRequest:
    """A curve to measure: one order of pixels over one image, for some labels."""

    rule: CurveRule
    image: int  # position of the picture that pixels come from, or go to when deleting
    infills: tuple[int, ...]  # positions of the pictures whose results are averaged
    ranks: int  # position in the bank of ranks
    labels: Sequence[int]
    full_prob: Sequence[float]  # of each label on the whole image
    infill_prob: Sequence[float]  # and on the infill alone
    image_labels: "ImageLabels | None" = None  # whose log-odds are kept, too


@dataclass(frozen=True)
class ImageLabels:
    """All labels of an image, ascending, with their log-odds [L] on the whole image and on the infill alone."""

    labels: Array
    full_odds: Array
    infill_odds: Array

    @classmethod
    def of(cls, labels: Array, full_prob: Array, infill_prob: Array) -> "ImageLabels":
        """The labels, with log-odds from probabilities [classes]."""
        ends = (log_odds(prob[labels], prob.sum() - prob[labels]) for prob in (full_prob, infill_prob))
        return cls(labels, *ends)


@dataclass(frozen=True)
class MeasuredCurve:
    """The points of a curve, its area for each label, and the error of that (NaN where only the ends are known)."""

    counts: Array  # [S]
    values: Array  # [S, L]
    areas: Array  # [L]
    errors: Array  # [L]
    odds_areas: Array | None = None  # of each of the image's labels, in log-odds, where they are kept
    odds_errors: Array | None = None


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


# A sampling, _Fixed or _Adaptive, decides at which keep counts some curves are measured. Its `next_counts` are the
# curves that go on [A], and the counts [A, k] they need next; `add` takes the values [A, k, L] there.


class _Fixed:
    """Curves that are measured at the same counts, whatever their shape."""

    def __init__(self, counts: Array, span: Span, ends: dict[int, Array], areas: Callable[[Array], Array]) -> None:
        """`ends` are known values [C, L] by count; `areas` takes values at all counts, the points on the last axis."""
        self.counts, self.span, self.areas = counts, span, areas
        self.points = np.union1d(counts, (span.low, span.high))
        curves, labels = next(iter(ends.values())).shape
        self.values = np.zeros((curves, len(self.points), labels))
        for count, values in ends.items():
            self.values[:, self.points == count] = values[:, None]
        self.pending = np.flatnonzero(~np.isin(self.points, list(ends)))

    def next_counts(self) -> tuple[Array, Array]:
        counts = self.points[self.pending[:MOST_COUNTS]]
        curves = np.arange(len(self.values) if len(counts) else 0)
        return curves, np.tile(counts, (len(curves), 1))

    def add(self, values: Array) -> None:
        self.values[:, self.pending[:MOST_COUNTS]] = values
        self.pending = self.pending[MOST_COUNTS:]

    def curves(self) -> list[MeasuredCurve]:
        between_points = sampled_errors(self.points, self.values)  # what the areas [C, L] may miss there
        return [self._curve(*curve) for curve in zip(self.values, between_points, strict=True)]

    def _curve(self, points: Array, errors: Array) -> MeasuredCurve:
        values = points[np.searchsorted(self.points, self.counts)]
        areas = self.areas(values.T)
        exact = area(self.points - self.span.low, points.T)
        of_rule = np.abs(areas - exact)  # a protocol's rule of summing may differ from the exact one
        return MeasuredCurve(self.counts, values, areas, errors + np.where(of_rule > ROUNDING, of_rule, 0.0))


class _Adaptive:
    """Curves that are refined until their areas over a span are known well enough."""

    def __init__(self, span: Span, ends: dict[int, Array], limits: ErrorLimits) -> None:
        self.span, self.ends, self.limits = span, ends, limits
        self.refinement: Refinement | None = None
        self.unknown = [count for count in (span.low, span.high) if count not in ends]
        if not self.unknown:
            self._begin()

    def _begin(self) -> None:
        width = self.span.high - self.span.low
        ends = self.ends[self.span.low], self.ends[self.span.high]
        self.refinement = Refinement(width, *ends, self.limits, min(MOST_POINTS, width))

    def next_counts(self) -> tuple[Array, Array]:
        if self.refinement is None:
            curves = np.arange(len(next(iter(self.ends.values()))))
            return curves, np.tile(self.unknown, (len(curves), 1))
        active, counts = self.refinement.next_counts()
        return active, counts + self.span.low

    def add(self, values: Array) -> None:
        if self.refinement is not None:
            self.refinement.add(values)
            return
        self.ends |= {count: values[:, column] for column, count in enumerate(self.unknown)}
        self._begin()

    def curves(self) -> list[MeasuredCurve]:
        if self.refinement is None:
            raise ValueError("the ends of the curves were never measured")
        points = zip(self.refinement.counts, self.refinement.values, self.refinement.errors, strict=True)
        return [MeasuredCurve(counts + self.span.low, values, area(counts, values.T), errors)
                for counts, values, errors in points]  # fmt: skip


class _LogOdds:
    """Log-odds of all labels of the images, at the points that their curves are measured at in any case."""

    def __init__(self, images: Sequence[ImageLabels], span: Span) -> None:
        self.labels = np.stack([image.labels for image in images])
        self._points: list[tuple[Array, Array, Array]] = []  # curves [P], keep counts [P], log-odds [P, L]
        ends = {0: [image.infill_odds for image in images], span.pixels: [image.full_odds for image in images]}
        for count in {span.low, span.high} & ends.keys():
            self.add(np.arange(len(images)), np.full((len(images), 1), count), np.stack(ends[count])[:, None])

    def add(self, active: Array, counts: Array, odds: Array) -> None:
        """Take log-odds [A, k, L] at the counts [A, k] of the active curves [A]."""
        odds = odds.reshape(counts.size, -1).astype(np.float32)  # there are many, and they need no more
        self._points.append((np.repeat(active, counts.shape[1]), counts.reshape(-1), odds))

    def areas(self) -> list[tuple[Array, Array]]:
        """Area and error [L] of each curve."""
        curve, counts, odds = (np.concatenate(parts) for parts in zip(*self._points, strict=True))
        order = np.lexsort((counts, curve))
        repeated = (np.diff(curve[order]) == 0) & (np.diff(counts[order]) == 0)  # the last rounds may do that
        order = order[~np.append(repeated, False)]
        areas, errors = log_odds_areas(curve[order], counts[order], odds[order])
        return list(zip(areas.astype(np.float32), errors.astype(np.float32), strict=True))


class _Group:
    """Curves of one rule that watch equally many labels over equally many infills, on images with as many labels."""

    def __init__(self, curves: Sequence[CurveRequest], span: Span, settings: Evaluation) -> None:
        self.deletion = curves[0].rule.deletion
        self.images = np.array([curve.image for curve in curves])
        self.infills = np.array([curve.infills for curve in curves])
        self.maps = np.array([curve.ranks for curve in curves])
        self.labels = np.array([curve.labels for curve in curves])
        self.log_odds: _LogOdds | None = None
        image_labels = [curve.image_labels for curve in curves if curve.image_labels is not None]
        if image_labels:
            self.log_odds = _LogOdds(image_labels, span)
            watched = self.log_odds.labels[:, :, None] == self.labels[:, None]
            self.columns, self.labels = watched.argmax(axis=1), self.log_odds.labels
        self.full_prob = np.array([curve.full_prob for curve in curves])
        infill_prob = np.array([curve.infill_prob for curve in curves])
        self.sampling = self._sampling(curves[0].rule, infill_prob, span, settings)

    def _sampling(self, rule: CurveRule, infill_prob: Array, span: Span, settings: Evaluation) -> _Fixed | _Adaptive:
        first, last = (self.full_prob, infill_prob) if self.deletion else (infill_prob, self.full_prob)
        ends = {0: first, span.pixels: last}
        protocol = rule.protocol
        if protocol is not None:
            counts = protocol.counts(span.pixels)
            return _Fixed(counts, span, ends, lambda values: protocol.area(counts, values))
        if rule.steps.rule == "auto":
            return _Adaptive(span, ends, self._error_limits(rule, settings))
        width = span.high - span.low
        steps = uniform_counts(width, rule.steps.count if rule.steps.rule == "uniform" else width)
        return _Fixed(steps + span.low, span, ends, lambda values: area(steps, values))

    def _error_limits(self, rule: CurveRule, settings: Evaluation) -> ErrorLimits:
        tolerance, eps1, eps2 = rule.steps.tolerance, settings.eps1 or 0.0, settings.eps2 or 0.0
        if self.deletion:  # it feeds no ratio
            return lambda _active, areas: np.full(areas.shape, tolerance)
        return lambda active, areas: error_limits(areas, self.full_prob[active], tolerance, eps1, eps2)

    def masks(self, active: Array, counts: Array) -> tuple[Array, Array, Array]:
        """Rows of integers that describe the masks, and for each the labels to read and its image."""
        shape = (*counts.shape, self.infills.shape[1])
        curve = np.broadcast_to(active[:, None, None], shape).reshape(-1)
        infill = np.broadcast_to(self.infills[active][:, None, :], shape).reshape(-1)
        rows = np.empty((len(curve), 4), np.int32)
        rows[:, TOP], rows[:, BOTTOM] = (infill, self.images[curve]) if self.deletion else (self.images[curve], infill)
        rows[:, MAP] = self.maps[curve]
        rows[:, KEEP] = np.broadcast_to(counts[..., None], shape).reshape(-1)
        return rows, self.labels[curve], self.images[curve]

    def add(self, active: Array, counts: Array, prob: Array, total: Array) -> None:
        """Take the probabilities [rows, L] of the masks, and the sums [rows] over all labels; infills are averaged."""
        shape = (*counts.shape, self.infills.shape[1], -1)
        prob = prob.reshape(shape).mean(axis=2)
        if self.log_odds is not None:
            rest = total.reshape(shape).mean(axis=2) - prob
            self.log_odds.add(active, counts, log_odds(prob, rest))
            prob = np.take_along_axis(prob, self.columns[active][:, None], axis=2)
        self.sampling.add(prob)

    def measured(self) -> list[MeasuredCurve]:
        """The curves, once nothing more is needed."""
        curves = self.sampling.curves()
        if self.log_odds is None:
            return curves
        odds = zip(curves, self.log_odds.areas(), strict=True)
        return [replace(curve, odds_areas=areas, odds_errors=errors) for curve, (areas, errors) in odds]


_Step = tuple[_Group, Array, Array]  # a group, its active curves, and their next counts


def expected_rows(curves: Iterable[CurveRequest], span: Span) -> int:
    """How many masked images the curves will need, roughly where their points are not fixed."""
    rows = 0
    for curve in curves:
        protocol = curve.rule.protocol
        points = usual_points(curve.rule.steps, span.pixels) if protocol is None else len(protocol.counts(span.pixels))
        rows += points * len(curve.infills)
    return rows


def measure_curves(
    run_rows: RunRows, curves: Sequence[CurveRequest], span: Span, settings: Evaluation, label_set: Array | None = None,
    on_rows: Callable[[int], None] = lambda _count: None,
) -> list[MeasuredCurve]:  # fmt: skip
    """The curves measured, in their order; `label_set` [images, classes] has the labels to renormalise over."""
    members: dict[tuple[CurveRule, int, int, int], list[int]] = {}
    for index, curve in enumerate(curves):
        image_labels = len(curve.image_labels.labels) if curve.image_labels else 0
        members.setdefault((curve.rule, len(curve.labels), len(curve.infills), image_labels), []).append(index)
    groups = {kind: _Group([curves[index] for index in indices], span, settings) for kind, indices in members.items()}
    while steps := _next_steps(groups.values()):
        _run_round(run_rows, steps, label_set, on_rows)
    measured: dict[int, MeasuredCurve] = {}
    for kind, group in groups.items():
        measured |= dict(zip(members[kind], group.measured(), strict=True))
    return [measured[index] for index in range(len(curves))]


def _next_steps(groups: Iterable[_Group]) -> list[_Step]:
    """The groups that are not finished, with what they need next."""
    steps = [(group, *group.sampling.next_counts()) for group in groups]
    return [step for step in steps if len(step[1])]


def _run_round(
    run_rows: RunRows, steps: Sequence[_Step], label_set: Array | None, on_rows: Callable[[int], None]
) -> None:
    """One round of masks for all groups, in the same batches."""
    parts = [group.masks(active, counts) for group, active, counts in steps]
    widest = max(labels.shape[1] for _, labels, _ in parts)
    rows = np.concatenate([part for part, _, _ in parts])
    labels = np.concatenate([np.pad(part, ((0, 0), (0, widest - part.shape[1]))) for _, part, _ in parts])
    images = np.concatenate([part for _, _, part in parts])
    prob, total = np.empty(labels.shape), np.ones(len(rows))
    for done, probabilities in run_rows(rows):
        prob[done] = np.take_along_axis(probabilities, labels[done], axis=1)
        if label_set is None:
            total[done] = probabilities.sum(axis=1, dtype=np.float64)
        else:
            of_set = (probabilities * label_set[images[done]]).sum(axis=1, dtype=np.float64, keepdims=True)
            prob[done] = np.divide(prob[done], of_set, out=np.full(prob[done].shape, np.nan), where=of_set > 0)
        on_rows(len(probabilities))
    _check_finite(prob, renormalised=label_set is not None)
    start = 0
    for (group, active, counts), (masks, group_labels, _) in zip(steps, parts, strict=True):
        part = slice(start, start + len(masks))
        group.add(active, counts, prob[part, : group_labels.shape[1]], total[part])
        start += len(masks)


def _check_finite(prob: Array, *, renormalised: bool) -> None:
    if np.isfinite(prob).all():
        return
    if renormalised and not np.isinf(prob).any():
        raise RuntimeFailure("the model returned NaN for a masked image, or probability 0 for the whole label set.")
    raise RuntimeFailure("the model returned NaN or infinity for a masked image.")
