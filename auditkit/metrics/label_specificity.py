"""Whether the map of a label shows that label more than the maps of other labels do: the cross-label matrix.

S[a, b] is the mean of label a's log-odds over the insertion curve of label b's map. Every masked image has scores of
all labels, so the matrix needs no further run of the model. Log-odds differ on images that the model is sure of, too.
"""

from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.per_image import MetricRows, Result
from auditkit.metrics.statistics import Bounds
from auditkit.metrics.values import LABELS_PER_IMAGE, NotAssessed, Note, Values

MOST_LABELS = 100  # of an image whose matrix is kept: its size grows with their square
# Of an image's margin, so that no single image decides. Half the range halves the images that it takes to show that one
# map serves all labels: with a limit of 0.25, 52 instead of 105.
CLIPPED: Bounds = (-3.0, 3.0)


@dataclass(frozen=True)
class Matrices:
    """S [images, labels a, labels b], the labels of each image ascending; NaN beyond the number of its labels."""

    images: Array
    log_odds: Array
    predicted: Array  # bool [images, labels]

    @classmethod
    def of(cls, rows: MetricRows) -> "Matrices":
        """The matrices of a source."""
        odds = rows.lists("log_odds", rows.measured)
        has_odds = rows.place[rows.measured] < odds.shape[1]
        positions, odds = rows.measured[has_odds], odds[has_odds]
        images, number = np.unique(rows.image[positions], return_inverse=True)
        matrices = np.full((len(images), odds.shape[1], odds.shape[1]), np.nan)
        matrices[number, :, rows.place[positions]] = odds
        predicted = np.zeros(matrices.shape[:2], np.bool_)
        predicted[number, rows.place[positions]] = rows.predicted[positions]
        return cls(images, matrices, predicted)

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
    if rows.rows_with_second_label is None:
        return None
    matrices = Matrices.of(rows)
    return _missing(rows, name) or _values(name, matrices, matrices.own_label_margins())


def other_label_evidence(rows: MetricRows, name: str) -> Result:
    """How much more their own maps show labels that are not predicted than the predicted label's map does."""
    if rows.rows_with_second_label is None:
        return None
    matrices = Matrices.of(rows)
    margins = matrices.over_prediction()
    own = _label_means(np.where(np.isfinite(margins), matrices.own, np.nan))
    return _missing(rows, name) or _values(name, matrices, margins, own)


def _label_means(margins: Array) -> Array:
    """The mean over the labels of each image; NaN where none has a margin."""
    counts = np.isfinite(margins).sum(axis=1)
    return np.asarray(np.divide(np.nansum(margins, axis=1), counts, out=np.full(len(counts), np.nan), where=counts > 0))


def _values(name: str, matrices: Matrices, margins: Array, over_controls: Array | None = None) -> Result:
    if not matrices.log_odds.size:
        return None
    means = _label_means(margins)
    chosen = np.isfinite(means)
    if not chosen.any():
        return NotAssessed(name, "no-map-for-predicted-label")
    images, means = matrices.images[chosen], means[chosen]
    beyond = int(np.sum(np.abs(means) > CLIPPED[1]))
    note = Note("clipped", beyond, len(images), CLIPPED[1]) if beyond else None
    levels = None if over_controls is None else over_controls[chosen]
    return Values(name, images * LABELS_PER_IMAGE, images, np.clip(means, *CLIPPED), note, levels)


def _missing(rows: MetricRows, name: str) -> NotAssessed | None:
    """Why there is no matrix."""
    labels = np.bincount(rows.image[rows.in_label_set], minlength=1)
    expected, measured = len(rows.in_label_set), len(rows.measured)
    if labels.max() <= 1:
        return NotAssessed(name, "one-label")
    if labels.max() > MOST_LABELS:
        return NotAssessed(name, "too-many-labels", MOST_LABELS)
    return NotAssessed(name, "maps-missing", expected - measured, expected) if measured < expected else None
