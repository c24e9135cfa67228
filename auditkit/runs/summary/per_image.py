"""Each metric of a source before it is averaged."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.faithfulness import best_effort, worst_per_image
from auditkit.metrics.saliency_metric import DELTAS, tune_delta
from auditkit.metrics.similarity import is_repeated
from auditkit.runs.evaluation.settings import NO_LABEL, NO_MAP
from auditkit.runs.summary.row_table import CONSTANT, ONE_MAP, Items

HOLDOUT = 2  # every second image tunes delta, the others are reported
FAITHFUL = ("completeness", "soundness", "worst_completeness", "worst_soundness", "best_effort")


@dataclass(frozen=True)
class Values:
    """A metric before it is averaged: a value for each key, which is an image or an (image, label) pair."""

    name: str
    keys: Array  # [V] distinct integers; equal ones of two sources are about the same pair
    images: Array  # [V] image of each
    values: Array  # [V]
    note: str = ""


@dataclass(frozen=True)
class Gap:
    """A metric that is not assessed, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Group:
    """Rows of one source under one infill."""

    items: Items
    at: Array  # positions of the rows

    @cached_property
    def _good(self) -> Array:
        return np.asarray(self.at[~self.items.failed()[self.at]])

    @cached_property
    def _chief(self) -> Array:
        """Rows of the labels that insertion, deletion and the saliency metric are about."""
        return self._good if self.items.named else np.asarray(self._good[self.items.predicted[self._good]])

    def metrics(self) -> "list[Values | Gap]":
        """Every metric of the group."""
        why_not = "no map for a named label" if self.items.named else "no map for the predicted label"
        deletion = self._mean("deletion", "not measured" if len(self._chief) else why_not)
        found = [self._mean("insertion", why_not), deletion]
        return found + self._tie_spread() + self._saliency() + self._faithful() + self._localised()

    def _values(self, name: str, rows: Array, values: Array, note: str = "") -> Values:
        images = self.items.image[rows]
        return Values(name, images * (2**31) + self.items.label[rows], images, values, note)

    def _mean(self, name: str, why_not: str, rows: Array | None = None, *, column: str = "") -> "Values | Gap":
        rows = self._chief if rows is None else rows
        values = self.items.column(column or name)[rows]
        have = np.isfinite(values)
        return self._values(name, rows[have], values[have]) if have.any() else Gap(name, why_not)

    def _tie_spread(self) -> "list[Values | Gap]":
        """Width of what the orders of tied pixels make of insertion, where they were tried."""
        low, high = (self.items.column(name)[self._chief] for name in ("insertion_low", "insertion_high"))
        return [self._values("tie_spread", self._chief, high - low)] if np.isfinite(low).any() else []

    def _saliency(self) -> "list[Values | Gap]":
        found: list[Values | Gap] = []
        metric = self._mean("saliency_metric", "not measured")
        if isinstance(metric, Values):
            found += [metric, self._mean("degenerate_boxes", "", column="box_degenerate")]
        return found + self._tuned()

    def _tuned(self) -> "list[Values | Gap]":
        """The saliency metric with a delta tuned on one half of the images and reported on the other."""
        held = self.items.lists("saliency_by_delta")
        rows = self._chief[np.isfinite(held[self._chief]).any(axis=1)]
        if not len(rows):
            return []
        name, table = "saliency_metric_tuned", held[rows]
        tuning = np.unique(self.items.image[rows], return_inverse=True)[1] % HOLDOUT == 0
        if tuning.all():
            return [Gap(name, "delta is tuned on one half of the images; one image has no halves")]
        delta, images = tune_delta(table[tuning].T), len(np.unique(self.items.image[rows[tuning]]))
        at, note = int(np.flatnonzero(delta == DELTAS)[0]), f"delta {delta:g}, tuned on {images} images"
        flags = self.items.lists("degenerate_by_delta")[rows]
        return [self._values(name, rows[~tuning], table[~tuning, at], note),
                self._values("degenerate_boxes_tuned", rows[~tuning], flags[~tuning, at], note)]  # fmt: skip

    def _faithful(self) -> "list[Values | Gap]":
        items, rows = self.items, self._good
        if np.isnan(items.column("alpha")[rows]).all() and len(rows):
            return []  # the protocol has no completeness and soundness
        wanted = self.at[~items.failed(NO_LABEL)[self.at]]
        if len(rows) < len(wanted) or items.predicted[rows].all():
            why = f"{len(wanted) - len(rows)} of {len(wanted)} maps are missing, and every label needs its own"
            if items.predicted[wanted].all():
                why = "the label set holds no other label than the predicted one"
            return [Gap(name, why) for name in FAITHFUL]
        rows, note = self._with_second_label(rows)
        alphas, betas = items.column("alpha")[rows], items.column("beta")[rows]
        pairs = (("completeness", alphas), ("soundness", betas))
        worst = [(name, worst_per_image(values, items.image[rows])) for name, values in pairs]
        return [
            *(self._values(name, rows, values, note) for name, values in pairs),
            *(_per_image(f"worst_{name}", least.images, least.values, note) for name, least in worst),
            self._best_effort(rows, alphas),
        ]

    def _with_second_label(self, rows: Array) -> tuple[Array, str]:
        """Rows of the images that were asked about a label other than the predicted one, and how many those are.

        On the others no map was asked to show evidence against the prediction; they would only dilute the figures.
        """
        images = self.items.image
        asked = np.unique(images[rows[~self.items.predicted[rows]]])
        whole = len(np.unique(images[self.at]))
        note = "" if len(asked) == whole else f"{len(asked)} of {whole} images have a second label in the label set"
        return rows[np.isin(images[rows], asked)], note

    def _best_effort(self, rows: Array, alphas: Array) -> "Values | Gap":
        items, images = self.items, self.items.image[rows]
        effort = best_effort(alphas, items.column("prob")[rows], items.label[rows], items.prediction[images], images)
        if not effort.counted.any():
            return Gap("best_effort", "no image has a second label with probability 0.01 or more")
        return _per_image("best_effort", effort.images[effort.counted], effort.values[effort.counted])

    def _localised(self) -> "list[Values | Gap]":
        rows = self._good[np.isfinite(self.items.column("pointing_hit")[self._good])]
        if not len(rows):
            return []
        here, whole = (len(np.unique(self.items.image[some])) for some in (rows, self.at))
        note = "" if here == whole else f"{here} of {whole} images have a region and a map for the label they show"
        columns = (("pointing_game", "pointing_hit"), ("iou", "iou"))
        return [self._values(name, rows, self.items.column(column)[rows], note) for name, column in columns]

    def unsure(self, floor: float) -> Array:
        """Images with a label, not the predicted one, whose probability is above a floor."""
        others = self._good[~self.items.predicted[self._good]]
        return np.unique(self.items.image[others[self.items.column("prob")[others] > floor]])

    def flags(self) -> list[str]:
        """What is odd about the maps, counted."""
        whole, several, said = len(self._good), self._in_company(), self.items.flags(self._good)
        found = [f"{flag} ({count} of {whole} maps)" for flag, count in said.items() if flag != ONE_MAP]
        if count := said.get(ONE_MAP):
            where = "" if several == whole else " on images with several labels"
            found.insert(0, f"{ONE_MAP} ({count} of {several} maps{where})")
        if repeats := self._repeats():
            found.append(f"position-only ({repeats} of {whole} maps are those of other images)")
        missing = int(self.items.failed(NO_MAP)[self.at].sum())
        return found + ([f"{missing} maps are missing"] if missing else [])

    def _in_company(self) -> int:
        """Maps on images that have another one."""
        count = np.unique(self.items.image[self._good], return_counts=True)[1]
        return int(count[count > 1].sum())

    def _repeats(self) -> int:
        """Maps that are those of the same label of other images; labels of one image alone are compared as one.

        Maps of copies of an image may well be alike, and constant maps have a flag of their own.
        """
        items = self.items
        rows, tops = items.tops(self._good[~items.flagged(CONSTANT)[self._good]])
        labels = items.label[rows]
        known, images = np.unique(labels, return_counts=True)
        groups = np.where(np.isin(labels, known[images > 1]), labels, -1)
        return int(is_repeated(tops, items.column("map_digest")[rows], groups, items.pictures[items.image[rows]]).sum())


def _per_image(name: str, images: Array, values: Array, note: str = "") -> Values:
    return Values(name, images * (2**31), images, values, note)


def on_images(metric: Values, images: Array) -> Values:
    """A metric on some of its images."""
    here = np.isin(metric.images, images)
    return replace(metric, keys=metric.keys[here], images=metric.images[here], values=metric.values[here])


def paired(first: Values, second: Values, take: Callable[[Array, Array, Array], Any]) -> Any:
    """`take` of both sources' values and the images, over the keys that both have; None where there are none."""
    _, mine, theirs = np.intersect1d(first.keys, second.keys, assume_unique=True, return_indices=True)
    if not len(mine):
        return None
    return take(first.values[mine], second.values[theirs], first.images[mine])


def image_means(metric: Values, images: int) -> Array:
    """Mean of a metric's values on each image; NaN on images without one."""
    total = np.bincount(metric.images, weights=metric.values, minlength=images)
    count = np.bincount(metric.images, minlength=images)
    return np.asarray(np.divide(total, count, out=np.full(images, np.nan), where=count > 0))
