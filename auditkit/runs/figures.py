"""Rows of figures as columns, and each metric of a source before it is averaged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from auditkit.metrics.faithfulness import best_effort, worst_per_image
from auditkit.metrics.saliency import DELTAS, tune_delta
from auditkit.runs.plan import NO_LABEL, NO_MAP

Array = np.ndarray[Any, Any]
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


class Items:
    """All rows of a run, a column at a time."""

    def __init__(self, tables: Sequence[Any]) -> None:
        import pyarrow as pa  # noqa: PLC0415 - slow to import

        self.table = pa.concat_tables(tables)
        self.images, self.image = _coded(self.table, "image")
        self.sources, self.source = _coded(self.table, "bundle")
        self.infills, self.infill = _coded(self.table, "infill")

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Array:
        """A column of numbers as float64, NaN where there is none."""
        return np.asarray(self.table.column(name).to_numpy(), np.float64)

    @cached_property
    def label(self) -> Array:
        """Label of each row."""
        return self.column("label").astype(np.int64)

    @cached_property
    def predicted(self) -> Array:
        """Whether a row is about the predicted label."""
        return np.asarray(self.table.column("predicted").to_numpy(), np.bool_)

    @cached_property
    def why(self) -> Array:
        """Why a row has no figure; empty where it has one."""
        return np.array([text or "" for text in self.table.column("error").to_pylist()])

    def of(self, source: int, infill: int) -> "Group":
        """Rows of one source under one infill."""
        return Group(self, np.flatnonzero((self.source == source) & (self.infill == infill)))

    def truth(self) -> Array:
        """The label that each image was given with, by number of the image; NaN where it has none."""
        found = np.full(len(self.images), np.nan)
        found[self.image] = self.column("truth")
        return found


def _coded(table: Any, name: str) -> tuple[list[str], Array]:
    """Distinct texts in the order in which they first come, and the number of each row's."""
    coded = table.column(name).combine_chunks().dictionary_encode()
    return coded.dictionary.to_pylist(), np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)


@dataclass(frozen=True)
class Group:
    """Rows of one source under one infill."""

    items: Items
    at: Array  # positions of the rows

    @cached_property
    def _good(self) -> Array:
        return np.asarray(self.at[self.items.why[self.at] == ""])

    @cached_property
    def _chief(self) -> Array:
        return np.asarray(self._good[self.items.predicted[self._good]])

    def metrics(self) -> "list[Values | Gap]":
        """Every metric of the group."""
        found = [self._mean("insertion", "no map for the predicted label"), self._mean("deletion", "not measured")]
        found += self._saliency()
        found += self._faithful()
        return found + self._localised()

    def _values(self, name: str, rows: Array, values: Array, note: str = "") -> Values:
        images = self.items.image[rows]
        return Values(name, images * (2**31) + self.items.label[rows], images, values, note)

    def _mean(self, name: str, why_not: str, rows: Array | None = None, *, column: str = "") -> "Values | Gap":
        rows = self._chief if rows is None else rows
        values = self.items.column(column or name)[rows]
        have = np.isfinite(values)
        return self._values(name, rows[have], values[have]) if have.any() else Gap(name, why_not)

    def _saliency(self) -> "list[Values | Gap]":
        found: list[Values | Gap] = []
        metric = self._mean("saliency_metric", "not measured")
        if isinstance(metric, Values):
            found += [metric, self._mean("degenerate_boxes", "", column="box_degenerate")]
        return found + self._tuned()

    def _tuned(self) -> "list[Values | Gap]":
        """The saliency metric with a delta tuned on one half of the images and reported on the other."""
        lists = self.items.table.column("saliency_by_delta").take(self._chief).to_pylist()
        rows = np.array([row for row, held in zip(self._chief, lists, strict=True) if held], np.int64)
        if not len(rows):
            return []
        name, table = "saliency_metric_tuned", np.array([held for held in lists if held])
        tuning = self.items.image[rows] % HOLDOUT == 0
        if tuning.all() or not tuning.any():
            return [Gap(name, "delta is tuned on one half of the images; one image has no halves")]
        delta = tune_delta(table[tuning].T)
        at, note = int(np.flatnonzero(delta == DELTAS)[0]), f"delta {delta:g}, tuned on {int(tuning.sum())} images"
        flags = np.array(self.items.table.column("degenerate_by_delta").take(rows).to_pylist(), np.float64)
        return [self._values(name, rows[~tuning], table[~tuning, at], note),
                self._values("degenerate_boxes_tuned", rows[~tuning], flags[~tuning, at], note)]  # fmt: skip

    def _faithful(self) -> "list[Values | Gap]":
        items, rows = self.items, self._good
        if np.isnan(items.column("alpha")[rows]).all() and len(rows):
            return []  # the protocol has no completeness and soundness
        wanted = self.at[items.why[self.at] != NO_LABEL]
        if len(rows) < len(wanted) or items.predicted[rows].all():
            lacking = "are missing" if len(rows) < len(wanted) else "are not in the label set"
            return [Gap(name, f"maps for other labels than the predicted one {lacking}") for name in FAITHFUL]
        alphas, betas = items.column("alpha")[rows], items.column("beta")[rows]
        found: list[Values | Gap] = []
        for name, values in (("completeness", alphas), ("soundness", betas)):
            worst = worst_per_image(values, items.image[rows])
            found += [self._values(name, rows, values), _per_image(f"worst_{name}", worst.images, worst.values)]
        return [*found, self._best_effort(rows, alphas)]

    def _best_effort(self, rows: Array, alphas: Array) -> "Values | Gap":
        items = self.items
        chief = np.full(len(items.images), -1)
        chief[items.image[self._chief]] = items.label[self._chief]
        images = items.image[rows]
        effort = best_effort(alphas, items.column("prob")[rows], items.label[rows], chief[images], images)
        if not effort.counted.any():
            return Gap("best_effort", "no image has a second label with probability 0.01 or more")
        return _per_image("best_effort", effort.images[effort.counted], effort.values[effort.counted])

    def _localised(self) -> "list[Values | Gap]":
        columns = (("pointing_game", "pointing_hit"), ("iou", "iou"))
        found = [self._mean(name, "", self._good, column=column) for name, column in columns]
        return [metric for metric in found if isinstance(metric, Values)]

    def tie_spread(self) -> float | None:
        """Mean width of what the orders of tied pixels make of insertion, where they were tried."""
        low, high = (self.items.column(name)[self._chief] for name in ("insertion_low", "insertion_high"))
        return float((high - low).mean()) if len(low) and np.isfinite(low).all() else None

    def flags(self) -> list[str]:
        """What is odd about the maps, counted."""
        import pyarrow.compute as pc  # noqa: PLC0415

        said = pc.value_counts(pc.list_flatten(self.items.table.column("flags").take(self.at)))
        found = [f"{entry['values'].as_py()} ({entry['counts'].as_py()} of {len(self.at)} maps)" for entry in said]
        images = len(np.unique(self.items.image[self.at]))
        if images > 1 and self._position_only():
            found.append(f"position-only (the same map for all {images} images)")
        missing = int((self.items.why[self.at] == NO_MAP).sum())
        return found + ([f"{missing} maps are missing"] if missing else [])

    def _position_only(self) -> bool:
        digests = np.array([text or "" for text in self.items.table.column("map_digest").take(self._good).to_pylist()])
        labels = self.items.label[self._good]
        pairs = {(int(label), digest) for label, digest in zip(labels, digests, strict=True)}
        return len(self._good) > len(set(labels.tolist())) == len(pairs)


def _per_image(name: str, images: Array, values: Array) -> Values:
    return Values(name, images * (2**31), images, values)


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
