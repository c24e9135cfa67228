"""Curves of one unit of work, all refined together so that batches are always full."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.errors import RuntimeFailure
from auditkit.graph.masking import BOTTOM, KEEP, MAP, TOP
from auditkit.metrics.curves import Needed, Refinement, Steps, needed_errors, uniform_counts
from auditkit.model.masked import Masked

Array = np.ndarray[Any, Any]
AT_ONCE = 1024  # counts of a curve in one round: every pixel of every curve would be gigabytes of rows
MOST_POINTS = 512  # of a curve that refuses to settle; its error then says so


@dataclass(frozen=True)
class Curve:
    """One order of pixels over one image, watched for some labels."""

    image: int  # picture that pixels come from, or go to when deleting
    infills: tuple[int, ...]  # pictures whose results are averaged
    ranks: int
    labels: tuple[int, ...]
    whole: tuple[float, ...]  # probability of each label on the whole image
    empty: tuple[float, ...]  # and on the infill alone
    deletion: bool = False


@dataclass(frozen=True)
class Found:
    """A curve's points, and the error of its area for each label (NaN where it is not estimated)."""

    counts: Array  # [S]
    values: Array  # [S, L]
    errors: Array  # [L]


class _Group:
    """Curves that watch equally many labels over equally many infills."""

    def __init__(self, curves: Sequence[Curve], pixels: int, steps: Steps, eps1: float, eps2: float) -> None:
        self.images = np.array([curve.image for curve in curves])
        self.infills = np.array([curve.infills for curve in curves])
        self.maps = np.array([curve.ranks for curve in curves])
        self.labels = np.array([curve.labels for curve in curves])
        self.deletion = np.array([curve.deletion for curve in curves])
        self.whole = np.array([curve.whole for curve in curves])
        empty = np.array([curve.empty for curve in curves])
        turned = self.deletion[:, None]
        first, last = np.where(turned, self.whole, empty), np.where(turned, empty, self.whole)
        self.fixed = None
        if steps.rule == "auto":
            self.refinement = Refinement(pixels, first, last, self._needed(steps, eps1, eps2), min(MOST_POINTS, pixels))
        else:
            self.fixed = uniform_counts(pixels, steps.count if steps.rule == "uniform" else pixels)
            self.values = np.stack([first, *[np.zeros_like(first)] * (len(self.fixed) - 2), last], axis=1)
            self.taken = 0
        self.error = 0.0 if steps.rule == "exact" else np.nan

    def _needed(self, steps: Steps, eps1: float, eps2: float) -> Needed:
        def needed(active: Array, areas: Array) -> Array:
            ratios = needed_errors(areas, self.whole[active], steps.tolerance, eps1, eps2)
            # Deletion feeds no ratio.
            return np.where(self.deletion[active][:, None], steps.tolerance, ratios)

        return needed

    def wanted(self) -> tuple[Array, Array]:
        """Curves that go on, and the counts they need next."""
        if self.fixed is None:
            return self.refinement.wanted()
        coming = self.fixed[1:-1][self.taken :][:AT_ONCE]
        if not len(coming):
            return np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
        return np.arange(len(self.maps)), np.tile(coming, (len(self.maps), 1))

    def rows(self, active: Array, counts: Array) -> tuple[Array, Array]:
        """Rows for the masks, and the labels to read from each."""
        draws = self.infills.shape[1]
        shape = (*counts.shape, draws)
        curve = np.broadcast_to(active[:, None, None], shape)
        image = np.broadcast_to(self.images[active][:, None, None], shape)
        infill = np.broadcast_to(self.infills[active][:, None, :], shape)
        turned = np.broadcast_to(self.deletion[active][:, None, None], shape)
        rows = np.empty((curve.size, 4), np.int32)
        rows[:, TOP] = np.where(turned, infill, image).reshape(-1)
        rows[:, BOTTOM] = np.where(turned, image, infill).reshape(-1)
        rows[:, MAP] = self.maps[curve].reshape(-1)
        rows[:, KEEP] = np.broadcast_to(counts[..., None], shape).reshape(-1)
        return rows, self.labels[curve.reshape(-1)]

    def take(self, active: Array, counts: Array, picked: Array) -> None:
        """Probabilities [rows, L] of the rows just asked for."""
        values = picked.reshape(*counts.shape, self.infills.shape[1], -1).mean(axis=2)
        if self.fixed is None:
            self.refinement.add(values)
        else:
            self.values[active, 1 + self.taken : 1 + self.taken + counts.shape[1]] = values
            self.taken += counts.shape[1]

    def found(self, position: int) -> Found:
        """The curve at that position."""
        if self.fixed is None:
            done = self.refinement
            return Found(done.counts[position], done.values[position], done.errors[position])
        return Found(self.fixed, self.values[position], np.full(self.labels.shape[1], self.error))


def run_curves(
    masked: Masked, curves: Sequence[Curve], pixels: int, steps: Steps, eps1: float, eps2: float
) -> list[Found]:
    """Points and errors of every curve."""
    kinds = sorted({(len(curve.labels), len(curve.infills)) for curve in curves})
    members = {kind: [i for i, c in enumerate(curves) if (len(c.labels), len(c.infills)) == kind] for kind in kinds}
    groups = {kind: _Group([curves[i] for i in members[kind]], pixels, steps, eps1, eps2) for kind in kinds}
    while True:
        asked = [(group, *group.wanted()) for group in groups.values()]
        asked = [(group, active, counts) for group, active, counts in asked if len(active)]
        if not asked:
            break
        _round(masked, asked)
    found: list[Found | None] = [None] * len(curves)
    for kind, group in groups.items():
        for position, index in enumerate(members[kind]):
            found[index] = group.found(position)
    return [result for result in found if result is not None]


def _round(masked: Masked, asked: list[tuple[_Group, Array, Array]]) -> None:
    """One round of passes for all groups, their rows in the same batches."""
    parts = [group.rows(active, counts) for group, active, counts in asked]
    widest = max(labels.shape[1] for _, labels in parts)
    rows = np.concatenate([part for part, _ in parts])
    labels = np.concatenate([np.pad(part, ((0, 0), (0, widest - part.shape[1]))) for _, part in parts])
    picked: Array = np.empty(labels.shape)
    for done, probabilities in masked.run(rows):
        picked[done] = np.take_along_axis(probabilities, labels[done], axis=1)
    if not np.isfinite(picked).all():
        raise RuntimeFailure("the model gives NaN or infinite probabilities for a masked image.")
    start = 0
    for (group, active, counts), (part, own) in zip(asked, parts, strict=True):
        group.take(active, counts, picked[start : start + len(part), : own.shape[1]])
        start += len(part)
