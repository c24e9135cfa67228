"""Each metric from the rows of one source: a value for every image or (image, label) pair, not yet averaged.

A function returns None where its metric is no part of the evaluation, and NotAssessed where it is but has no figure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.faithfulness import FLOOR, worst_per_image
from auditkit.metrics.faithfulness import best_effort as _best_effort
from auditkit.metrics.saliency_metric import DELTAS, tune_delta
from auditkit.metrics.values import LABELS_PER_IMAGE, NotAssessed, Note, Values

Result = Values | NotAssessed | None
_HOLDOUT = 2  # every second image tunes delta, the others are reported


@dataclass(frozen=True)
class MetricRows:
    """Rows of one source under one infill; positions index the columns of the whole run."""

    image: Array  # [rows of the run] number of the image
    label: Array
    predicted: Array  # whether the row's label is the predicted one
    prediction: Array  # [images] the predicted label
    column: Callable[[str], Array]  # a column of numbers, NaN where a row has none
    lists: Callable[[str], Array]  # a column of lists [rows, length]
    positions: Array  # of the source's rows
    measured: Array  # positions of those that have figures
    in_label_set: Array  # positions of those whose image has a label in the label set
    targets_listed_labels: (
        bool  # whether insertion, deletion and the saliency metric are about every label, not the predicted one
    )

    @cached_property
    def target_rows(self) -> Array:
        """Positions of the labels that insertion, deletion and the saliency metric are about."""
        return self.measured if self.targets_listed_labels else np.asarray(self.measured[self.predicted[self.measured]])

    def per_pair(self, name: str, positions: Array, values: Array, note: Note | None = None) -> Values:
        """A value for each (image, label) pair."""
        images = self.image[positions]
        return Values(name, images * LABELS_PER_IMAGE + self.label[positions], images, values, note)

    def finite(self, name: str, column: str, positions: Array) -> Values | None:
        """The finite values of a column; None where there are none."""
        values = self.column(column)[positions]
        finite = np.isfinite(values)
        return self.per_pair(name, positions[finite], values[finite]) if finite.any() else None

    def unsure_images(self, floor: float) -> Array:
        """Images with a label, not the predicted one, whose probability is above a floor."""
        other_labels = self.measured[~self.predicted[self.measured]]
        return np.unique(self.image[other_labels[self.column("prob")[other_labels] > floor]])

    @cached_property
    def rows_with_second_label(self) -> "tuple[Array, Note | None] | NotAssessed | None":
        """Positions that completeness and soundness are taken over: images with a label besides the predicted one.

        On the others no map was asked to show evidence against the prediction; they would only dilute the figures.
        """
        if np.isnan(self.column("alpha")[self.measured]).all() and len(self.measured):
            return None  # the protocol has no completeness and soundness
        wanted = len(self.in_label_set)
        if len(self.measured) < wanted or self.predicted[self.measured].all():
            if self.predicted[self.in_label_set].all():
                return NotAssessed("", "only-predicted-label")
            return NotAssessed("", "maps-missing", wanted - len(self.measured), wanted)
        several = np.unique(self.image[self.measured[~self.predicted[self.measured]]])
        total = len(np.unique(self.image[self.positions]))
        note = None if len(several) == total else Note("images-with-second-label", len(several), total)
        return self.measured[np.isin(self.image[self.measured], several)], note


def insertion(rows: MetricRows) -> Result:
    """Area under the insertion curve."""
    return rows.finite("insertion", "insertion", rows.target_rows) or _no_map("insertion", rows)


def deletion(rows: MetricRows) -> Result:
    """Area under the deletion curve."""
    missing = NotAssessed("deletion", "not-measured") if len(rows.target_rows) else _no_map("deletion", rows)
    return rows.finite("deletion", "deletion", rows.target_rows) or missing


def _no_map(name: str, rows: MetricRows) -> NotAssessed:
    return NotAssessed(name, "no-map-for-named-label" if rows.targets_listed_labels else "no-map-for-predicted-label")


def tie_spread(rows: MetricRows) -> Result:
    """Width of what the orders of tied pixels make of insertion, where several were tried."""
    low, high = (rows.column(name)[rows.target_rows] for name in ("insertion_low", "insertion_high"))
    return rows.per_pair("tie_spread", rows.target_rows, high - low) if np.isfinite(low).any() else None


def saliency_metric(rows: MetricRows) -> Result:
    """The saliency metric by the largest connected component."""
    return rows.finite("saliency_metric", "saliency_metric", rows.target_rows)


def degenerate_boxes(rows: MetricRows) -> Result:
    """Share of boxes that are empty or tiny."""
    if saliency_metric(rows) is None:
        return None
    return rows.finite("degenerate_boxes", "box_degenerate", rows.target_rows)


def saliency_metric_tuned(rows: MetricRows) -> Result:
    """The saliency metric with a delta tuned on one half of the images and reported on the other."""
    return _tuned("saliency_metric_tuned", "saliency_by_delta", rows)


def degenerate_boxes_tuned(rows: MetricRows) -> Result:
    """Share of degenerate boxes with the tuned delta."""
    tuned = _tuned("degenerate_boxes_tuned", "degenerate_by_delta", rows)
    return None if isinstance(tuned, NotAssessed) else tuned


def _tuned(name: str, column: str, rows: MetricRows) -> Result:
    by_delta = rows.lists("saliency_by_delta")
    positions = rows.target_rows[np.isfinite(by_delta[rows.target_rows]).any(axis=1)]
    if not len(positions):
        return None
    tuning = np.unique(rows.image[positions], return_inverse=True)[1] % _HOLDOUT == 0
    if tuning.all():
        return NotAssessed(name, "one-image-has-no-halves")
    delta = tune_delta(by_delta[positions][tuning].T)
    images = len(np.unique(rows.image[positions[tuning]]))
    index = int(np.flatnonzero(delta == DELTAS)[0])
    values = rows.lists(column)[positions][~tuning, index]
    return rows.per_pair(name, positions[~tuning], values, Note("tuned-delta", images, value=float(delta)))


def completeness(rows: MetricRows) -> Result:
    """The stored alpha (`faithfulness.alpha`) of every (image, label) pair."""
    return _stored("completeness", "alpha", rows)


def soundness(rows: MetricRows) -> Result:
    """The stored beta (`faithfulness.beta`) of every (image, label) pair."""
    return _stored("soundness", "beta", rows)


def worst_completeness(rows: MetricRows) -> Result:
    """The least alpha among the labels of each image."""
    return _worst("worst_completeness", "alpha", rows)


def worst_soundness(rows: MetricRows) -> Result:
    """The least beta among the labels of each image."""
    return _worst("worst_soundness", "beta", rows)


def _stored(name: str, column: str, rows: MetricRows) -> Result:
    chosen = rows.rows_with_second_label
    if not isinstance(chosen, tuple):
        return _named(name, chosen)
    positions, note = chosen
    return rows.per_pair(name, positions, rows.column(column)[positions], note)


def _worst(name: str, column: str, rows: MetricRows) -> Result:
    chosen = rows.rows_with_second_label
    if not isinstance(chosen, tuple):
        return _named(name, chosen)
    positions, note = chosen
    least = worst_per_image(rows.column(column)[positions], rows.image[positions])
    return _per_image(name, least.images, least.values, note)


def best_effort(rows: MetricRows) -> Result:
    """The least alpha among the likely labels that are not the prediction, on images that have one."""
    chosen = rows.rows_with_second_label
    if not isinstance(chosen, tuple):
        return _named("best_effort", chosen)
    positions, images = chosen[0], rows.image[chosen[0]]
    effort = _best_effort(
        rows.column("alpha")[positions], rows.column("prob")[positions], rows.label[positions], rows.prediction[images],
        images,
    )  # fmt: skip
    if not effort.counted.any():
        return NotAssessed("best_effort", "no-second-label", value=FLOOR)
    return _per_image("best_effort", effort.images[effort.counted], effort.values[effort.counted])


def pointing_game(rows: MetricRows) -> Result:
    """Whether the most important pixel lies in the given region."""
    return _localised("pointing_game", "pointing_hit", rows)


def iou(rows: MetricRows) -> Result:
    """Overlap of the given region with as many of the most important pixels."""
    return _localised("iou", "iou", rows)


def _localised(name: str, column: str, rows: MetricRows) -> Result:
    positions = rows.measured[np.isfinite(rows.column("pointing_hit")[rows.measured])]
    if not len(positions):
        return None
    count, total = (len(np.unique(rows.image[chosen])) for chosen in (positions, rows.positions))
    note = None if count == total else Note("images-with-region", count, total)
    return rows.per_pair(name, positions, rows.column(column)[positions], note)


def _named(name: str, missing: NotAssessed | None) -> NotAssessed | None:
    if missing is None:
        return None
    return NotAssessed(name, missing.cause, missing.count, missing.total, missing.value)


def _per_image(name: str, images: Array, values: Array, note: Note | None = None) -> Values:
    return Values(name, images * LABELS_PER_IMAGE, images, values, note)
