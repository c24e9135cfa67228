"""One value per image of a metric or of a margin over a control: what the tests of a verdict take."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.betting import FEWEST_IMAGES, Sample
from auditkit.metrics.faithfulness import ROUNDING
from auditkit.metrics.per_image import MetricRows
from auditkit.metrics.statistics import Bounds
from auditkit.metrics.table import METRICS, SHARE
from auditkit.metrics.values import NotAssessed, Values, paired
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.figures import CONTROL, ONE_MAP_PREFIX
from auditkit.runs.summary.row_table import RowTable, Source

Assessed = Mapping[Source, Mapping[str, Values]]


@dataclass(frozen=True)
class Difference:
    """A metric of one source less that of another, on what both have."""

    values: Array  # [pairs]
    images: Array  # [pairs] image of each value
    bounds: Bounds | None  # None: any number


def paired_difference(
    values: Values, other: Values, bundle: str, against: str, rows: MetricRows, settings: Evaluation
) -> Difference | NotAssessed | None:
    """A paired difference, over the bundle's own map of one label on the images where another label counts."""
    name, one_map = values.name, against == f"{ONE_MAP_PREFIX}{bundle}"
    if one_map and METRICS[name].rests_on_predicted_label and settings.eps1 is not None:
        values = values.on_images(rows.unsure_images(settings.eps1))
        if not len(values.keys):
            return NotAssessed(name, "no-second-label-above", value=settings.eps1)
    same_map = one_map and METRICS[name].needs == "one label" and not settings.targets_listed_labels
    low, high = METRICS[name].bounds or (None, None)
    bounds = (
        None if same_map or low is None or high is None else METRICS[name].margin_bounds or (low - high, high - low)
    )
    if against.startswith(CONTROL) and values.over_controls is not None and other.over_controls is not None:
        bounds = METRICS[name].bounds
        values, other = replace(values, values=values.over_controls), replace(other, values=other.over_controls)
    return paired(values, other, lambda mine, theirs, images: Difference(
        mine - theirs if bounds is None else np.clip(mine - theirs, *bounds), images, bounds
    ))  # fmt: skip


@dataclass(frozen=True)
class Samples:
    """The values of each image of a run, by metric and source."""

    assessed: Assessed
    table: RowTable
    settings: Evaluation
    chosen: Array | None = None  # images that count, by number; None: all

    def of_images(self, chosen: Array) -> "Samples":
        """The same of some images."""
        return replace(self, chosen=chosen)

    def of_metric(self, name: str, bundle: str, infill: str) -> Sample | None:
        """A metric of a bundle or control; None where it has no values, or no bounds."""
        if name == "accuracy":
            return self._accuracy()
        values, bounds = self.assessed.get((bundle, infill), {}).get(name), METRICS[name].bounds
        return None if values is None or bounds is None else self._sample(values.values, values.images, bounds)

    def of_margin(self, name: str, bundle: str, infill: str, control: str) -> Sample | None:
        """How far a metric of a bundle lies above that of a control; None where it has no values, or no bounds."""
        values, other = (self.assessed.get((source, infill), {}).get(name) for source in (bundle, control))
        if values is None or other is None:
            return None
        rows = self.table.metric_rows[bundle, infill]
        difference = paired_difference(values, other, bundle, control, rows, self.settings)
        if not isinstance(difference, Difference) or difference.bounds is None:
            return None
        return self._sample(difference.values, difference.images, difference.bounds)

    def same_curves(self, bundle: str, infill: str, control: str) -> bool:
        """Whether every insertion curve of a bundle has the area of the control's: the maps rank pixels alike.

        Areas near 0 and 1 show nothing, since most maps have them on images without evidence or without doubt.
        """
        rows = self.table.metric_rows
        if (bundle, infill) not in rows or (control, infill) not in rows:
            return False
        mine, theirs = (_areas(rows[source, infill]) for source in (bundle, control))
        return bool(paired(mine, theirs, _all_equal))

    def _accuracy(self) -> Sample | None:
        labelled = np.flatnonzero(np.isfinite(self.table.truth))
        hits = (self.table.truth == self.table.prediction)[labelled]
        return self._sample(hits.astype(np.float64), labelled, SHARE)

    def _sample(self, values: Array, images: Array, bounds: Bounds) -> Sample | None:
        """The mean over the values of each image that counts; None where none does."""
        if self.chosen is not None:
            values, images = values[self.chosen[images]], images[self.chosen[images]]
        _, position = np.unique(images, return_inverse=True)
        means = np.bincount(position, weights=values) / np.bincount(position)
        return Sample(means, bounds) if len(means) else None


def _areas(rows: MetricRows) -> Values:
    return rows.per_pair("insertion", rows.measured, rows.column("insertion")[rows.measured])


def _all_equal(areas: Array, others: Array, images: Array) -> bool:
    """Whether all areas are equal, and enough images have one that is neither near 0 nor near 1."""
    telling = images[(areas > ROUNDING) & (areas < 1 - ROUNDING)]
    return len(np.unique(telling)) >= FEWEST_IMAGES and bool(np.all(np.abs(areas - others) <= ROUNDING))
