"""Each metric from the rows of one source: a value for every image or (image, label) pair, not yet averaged.

A function takes the rows and the metric's name. It returns None if the evaluation does not have the metric, and
NotAssessed where it is but has no figure.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics import faithfulness
from auditkit.metrics.saliency_metric import DELTAS, tune_delta
from auditkit.metrics.values import LABELS_PER_IMAGE, NotAssessed, Note, Values

Result = Values | NotAssessed | None
_HOLDOUT = 2  # every second image tunes delta, the others are reported


@dataclass(frozen=True)
class MetricRows:
    """Rows of one source under one infill."""

    image: Array  # [rows] number of the image
    label: Array
    keys: Array  # of (image, label) pairs, as Values have them
    predicted: Array  # whether the row's label is the predicted one
    prediction: Array  # [images] the predicted label
    column: Callable[[str], Array]  # a column of numbers, NaN where a row has none
    lists: Callable[[str, Array], Array]  # the lists of some rows in a column [rows, length]
    margins: Callable[[float], Array | None]  # label_specificity's [images, MARGINS], by errors that areas are moved by
    measured: Array  # positions of the rows that have figures
    in_label_set: Array  # positions of those whose image has a label in the label set
    targets_listed_labels: bool  # insertion, deletion and the saliency metric are about every label, not the predicted
    shift: float = 0.0  # errors that areas are moved by

    @cached_property
    def target_rows(self) -> Array:
        """Positions of the labels that insertion, deletion and the saliency metric are about."""
        return self.measured if self.targets_listed_labels else np.asarray(self.measured[self.predicted[self.measured]])

    def per_pair(self, name: str, positions: Array, values: Array, note: Note | None = None) -> Values:
        """A value for each (image, label) pair."""
        return Values(name, taken(self.keys, positions), taken(self.image, positions), values, note)

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
            return None  # the protocol has figures of the predicted label alone
        expected = len(self.in_label_set)
        if len(self.measured) < expected or self.predicted[self.measured].all():
            if self.predicted[self.in_label_set].all():
                return NotAssessed("", "only-predicted-label")
            return NotAssessed("", "maps-missing", expected - len(self.measured), expected)
        several = np.unique(self.image[self.measured[~self.predicted[self.measured]]])
        total = len(np.unique(self.image))
        note = None if len(several) == total else Note("images-with-second-label", len(several), total)
        return taken(self.measured, np.flatnonzero(np.isin(self.image[self.measured], several))), note


def taken(array: Array, positions: Array) -> Array:
    """The entries at some positions, distinct and ascending; the array itself, not copied, where these are all."""
    return array if len(positions) == len(array) else np.asarray(array[positions])


def insertion(rows: MetricRows, name: str) -> Result:
    """Area under the insertion curve."""
    return rows.finite(name, "insertion", rows.target_rows) or _no_map(rows, name)


def deletion(rows: MetricRows, name: str) -> Result:
    """Area under the deletion curve."""
    missing = NotAssessed(name, "not-measured") if len(rows.target_rows) else _no_map(rows, name)
    return rows.finite(name, "deletion", rows.target_rows) or missing


def relevance_gain(rows: MetricRows, name: str) -> Result:
    """Insertion less deletion: 0 in expectation for a random map, whatever the model and the infill."""
    gains = (rows.column("insertion") - rows.column("deletion"))[rows.target_rows]
    known = np.isfinite(gains)
    return rows.per_pair(name, rows.target_rows[known], gains[known]) if known.any() else deletion(rows, name)


def _no_map(rows: MetricRows, name: str) -> NotAssessed:
    return NotAssessed(name, "no-map-for-named-label" if rows.targets_listed_labels else "no-map-for-predicted-label")


def tie_spread(rows: MetricRows, name: str) -> Result:
    """Width of what the orders of tied pixels make of insertion, where several were tried."""
    low, high = (rows.column(column)[rows.target_rows] for column in ("insertion_low", "insertion_high"))
    return rows.per_pair(name, rows.target_rows, high - low) if np.isfinite(low).any() else None


def saliency_metric(rows: MetricRows, name: str) -> Result:
    """The saliency metric by the largest connected component."""
    return rows.finite(name, "saliency_metric", rows.target_rows)


def degenerate_boxes(rows: MetricRows, name: str) -> Result:
    """Share of boxes that are empty or tiny."""
    return rows.finite(name, "box_degenerate", rows.target_rows) if saliency_metric(rows, name) else None


def saliency_metric_tuned(rows: MetricRows, name: str, column: str = "saliency_by_delta") -> Result:
    """The saliency metric with a delta tuned on one half of the images and reported on the other."""
    by_delta = rows.lists("saliency_by_delta", rows.target_rows)
    has = np.isfinite(by_delta).any(axis=1)
    positions = rows.target_rows[has]
    if not len(positions):
        return None
    tuning = np.unique(rows.image[positions], return_inverse=True)[1] % _HOLDOUT == 0
    if tuning.all():
        return NotAssessed(name, "one-image-has-no-halves")
    delta = tune_delta(by_delta[has][tuning].T)
    images = len(np.unique(rows.image[positions[tuning]]))
    index = int(np.flatnonzero(delta == DELTAS)[0])
    values = rows.lists(column, positions)[~tuning, index]
    return rows.per_pair(name, positions[~tuning], values, Note("tuned-delta", images, value=float(delta)))


def degenerate_boxes_tuned(rows: MetricRows, name: str) -> Result:
    """Share of degenerate boxes with the tuned delta."""
    tuned = saliency_metric_tuned(rows, name, "degenerate_by_delta")
    return None if isinstance(tuned, NotAssessed) else tuned


def every_pair(rows: MetricRows, name: str, column: str) -> Result:
    """A stored score of every (image, label) pair: `faithfulness.completeness` or `soundness`."""
    chosen = rows.rows_with_second_label
    if not isinstance(chosen, tuple):
        return chosen and replace(chosen, metric=name)
    positions, note = chosen
    return rows.per_pair(name, positions, taken(rows.column(column), positions), note)


def worst_label(rows: MetricRows, name: str, column: str) -> Result:
    """The least alpha or beta among the labels of each image."""
    pairs = every_pair(rows, name, column)
    if not isinstance(pairs, Values):
        return pairs
    images, least = faithfulness.worst_per_image(pairs.values, pairs.images)
    return Values(name, images * LABELS_PER_IMAGE, images, least, pairs.note)


def best_effort(rows: MetricRows, name: str) -> Result:
    """The least alpha among the likely labels that are not the prediction, on images that have one."""
    chosen = rows.rows_with_second_label
    if not isinstance(chosen, tuple):
        return chosen and replace(chosen, metric=name)
    positions, row_images = chosen[0], rows.image[chosen[0]]
    alphas, probs, labels = rows.column("alpha")[positions], rows.column("prob")[positions], rows.label[positions]
    images, least = faithfulness.best_effort(alphas, probs, labels, rows.prediction[row_images], row_images)
    if not len(images):
        return NotAssessed(name, "no-second-label", value=faithfulness.FLOOR)
    return Values(name, images * LABELS_PER_IMAGE, images, least)


def localised(rows: MetricRows, name: str, column: str) -> Result:
    """A stored score of how well the given region is met, on images that have one."""
    positions = rows.measured[np.isfinite(rows.column("pointing_hit")[rows.measured])]
    if not len(positions):
        return None
    count, total = (len(np.unique(images)) for images in (rows.image[positions], rows.image))
    note = None if count == total else Note("images-with-region", count, total)
    return rows.per_pair(name, positions, taken(rows.column(column), positions), note)
