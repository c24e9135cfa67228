"""Whether the map of a label shows that label more than the maps of other labels do: the cross-label matrix.

S[a, b] is the mean of label a's log-odds over the insertion curve of label b's map. Every masked image has scores of
all labels, so the matrix needs no further run of the model. Log-odds differ on images that the model is sure of, too.
"""

from dataclasses import dataclass, replace

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.per_image import MetricRows, Result
from auditkit.metrics.statistics import Bounds
from auditkit.metrics.values import LABELS_PER_IMAGE, NotAssessed, Note, Values

MARGINS = 3  # figures of an image's matrix: see Matrices.margins
MOST_LABELS = 100  # of an image whose matrix is kept: its size grows with their square
# Of an image's margin, so that no single image decides. Half the range halves the images that it takes to show that one
# map serves all labels: with a limit of 0.25, 52 instead of 105.
CLIPPED: Bounds = (-3.0, 3.0)


@dataclass(frozen=True)
class Matrices:
    """S [images, labels a, labels b], the labels of each image ascending; NaN beyond the number of its labels."""

    images: Array
    log_odds: Array
    errors: Array  # of the areas; NaN where unknown
    predicted: Array  # bool [images, labels]

    @classmethod
    def of(cls, image: Array, rank: Array, predicted: Array, odds: Array, errors: Array) -> "Matrices":
        """From rows: each label's rank among those of its image, and areas of log-odds [rows, labels]."""
        has_odds = rank < odds.shape[1]
        images, number = np.unique(image[has_odds], return_inverse=True)
        shape, at = (len(images), odds.shape[1], odds.shape[1]), (number, slice(None), rank[has_odds])
        matrices, widths, is_predicted = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape[:2], np.bool_)
        matrices[at], widths[at], is_predicted[at[::2]] = odds[has_odds], errors[has_odds], predicted[has_odds]
        return cls(images, matrices, widths, is_predicted)

    def shifted(self, errors: float) -> "Matrices":
        """Areas of own labels and of others moved apart by so many errors, which changes margins most."""
        apart = np.where(np.eye(self.log_odds.shape[1], dtype=np.bool_), errors, -errors)
        return replace(self, log_odds=self.log_odds + apart * np.nan_to_num(self.errors)) if errors else self

    def margins(self) -> Array:
        """Means over the labels of each image [images, MARGINS]: both margins, and S[a, a] where the second is."""
        over_prediction = self.over_prediction()
        levels = np.where(np.isfinite(over_prediction), self.own, np.nan)
        return np.stack([_label_means(each) for each in (self.own_label_margins(), over_prediction, levels)], axis=1)

    @property
    def own(self) -> Array:
        """S[a, a] as [images, labels]."""
        return np.asarray(np.diagonal(self.log_odds, axis1=1, axis2=2))

    def own_label_margins(self) -> Array:
        """S[a, a] less the mean of S[a, b] over the other labels b, as [images, labels]."""
        others = np.isfinite(self.log_odds).sum(axis=2) - 1
        rest = np.nansum(self.log_odds, axis=2) - self.own
        return np.asarray(self.own - np.divide(rest, others, out=np.full(rest.shape, np.nan), where=others > 0))

    def over_prediction(self) -> Array:
        """S[a, a] less S[a, map of the predicted label], as [images, labels]; NaN for the predicted label itself."""
        shown = np.where(self.predicted[:, None], self.log_odds, 0.0).sum(axis=2)
        asked = self.predicted.any(axis=1, keepdims=True) & ~self.predicted
        return np.asarray(np.where(asked, self.own - shown, np.nan))


def label_specificity(rows: MetricRows, name: str) -> Result:
    """The mean of the own-label margins of each image."""
    return _values(rows, name, 0)


def other_label_evidence(rows: MetricRows, name: str) -> Result:
    """How much more their own maps show labels that are not predicted than the predicted label's map does."""
    return _values(rows, name, 1, levels=2)


def _label_means(margins: Array) -> Array:
    """The mean over the labels of each image; NaN where none has a margin."""
    counts = np.isfinite(margins).sum(axis=1)
    return np.asarray(np.divide(np.nansum(margins, axis=1), counts, out=np.full(len(counts), np.nan), where=counts > 0))


def _values(rows: MetricRows, name: str, margin: int, levels: int | None = None) -> Result:
    """A column of the margins, clipped; None where the evaluation has none."""
    if rows.rows_with_second_label is None:
        return None
    margins, missing = rows.margins(rows.shift), _missing(rows, name)
    if missing or margins is None:
        return missing
    images = np.flatnonzero(np.isfinite(margins[:, margin]))
    if not len(images):
        return NotAssessed(name, "no-map-for-predicted-label")
    means = margins[images, margin]
    beyond = int(np.sum(np.abs(means) > CLIPPED[1]))
    note = Note("clipped", beyond, len(images), CLIPPED[1]) if beyond else None
    over_controls = None if levels is None else margins[images, levels]
    return Values(name, images * LABELS_PER_IMAGE, images, np.clip(means, *CLIPPED), note, over_controls)


def _missing(rows: MetricRows, name: str) -> NotAssessed | None:
    """Why there is no matrix."""
    labels = np.bincount(rows.image[rows.in_label_set], minlength=1)
    expected, measured = len(rows.in_label_set), len(rows.measured)
    if labels.max() <= 1:
        return NotAssessed(name, "one-label")
    if labels.max() > MOST_LABELS:
        return NotAssessed(name, "too-many-labels", MOST_LABELS)
    return NotAssessed(name, "maps-missing", expected - measured, expected) if measured < expected else None
