"""The rows of one source under one infill: what metrics take, and what is odd about its maps."""

from collections.abc import Iterator

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.per_image import MetricRows
from auditkit.metrics.similarity import is_repeated
from auditkit.metrics.table import compute_all
from auditkit.metrics.values import Values
from auditkit.runs.evaluation.settings import NO_LABEL, NO_MAP
from auditkit.runs.folder.figures import Flag
from auditkit.runs.summary.row_table import CONSTANT, ONE_MAP, TIES, Items

Source = tuple[str, str]  # a bundle or control, and an infill


def sources(items: Items) -> dict[Source, MetricRows]:
    """The rows of every source under every infill, infill by infill."""
    rows = {}
    for infill_index, infill in enumerate(items.infills):
        for source_index, source in enumerate(items.sources):
            positions = np.flatnonzero((items.source == source_index) & (items.infill == infill_index))
            rows[source, infill] = metric_rows(items, positions)
    return rows


def metric_rows(items: Items, positions: Array) -> MetricRows:
    """Rows at these positions, as metrics take them."""
    return MetricRows(
        items.image, items.label, items.predicted, items.prediction, items.column, items.lists, positions,
        measured=np.asarray(positions[~items.failed()[positions]]),
        in_label_set=positions[~items.failed(NO_LABEL)[positions]], targets_listed_labels=items.named,
    )  # fmt: skip


def map_flags(bundle: str, rows: MetricRows, items: Items) -> Iterator[Flag]:
    """What is odd about a bundle's maps, counted."""
    total, counts = len(rows.measured), items.flags(rows.measured)
    if shared := counts.get(ONE_MAP):
        yield Flag(ONE_MAP, bundle, shared, _maps_with_company(rows))
    if constant := counts.get(CONSTANT):
        yield Flag(CONSTANT, bundle, constant, total)
    if tied := counts.get(TIES):
        yield Flag(TIES, bundle, tied, total)
    if repeats := _repeats(rows, items):
        yield Flag("position-only", bundle, repeats, total)
    if missing := int(items.failed(NO_MAP)[rows.positions].sum()):
        yield Flag("maps-missing", bundle, missing)


def _maps_with_company(rows: MetricRows) -> int:
    """Maps on images that have another map."""
    count = np.unique(rows.image[rows.measured], return_counts=True)[1]
    return int(count[count > 1].sum())


def _repeats(rows: MetricRows, items: Items) -> int:
    """Maps that equal those of the same label of other images; labels that one image alone has are compared as one.

    Maps of copies of an image may well be alike, and constant maps have a flag of their own.
    """
    positions, fingerprints = items.tops(rows.measured[~items.flagged(CONSTANT)[rows.measured]])
    labels = items.label[positions]
    distinct, images = np.unique(labels, return_counts=True)
    groups = np.where(np.isin(labels, distinct[images > 1]), labels, -1)
    digests, pictures = items.column("map_digest")[positions], items.pictures[items.image[positions]]
    return int(is_repeated(fingerprints, digests, groups, pictures).sum())


def image_means(items: Items, source: str, infill: int = 0) -> dict[str, Array]:
    """Each metric of a source by number of the image, under the infill of that number; NaN where an image has none."""
    if source not in items.sources:
        return {}
    positions = np.flatnonzero((items.source == items.sources.index(source)) & (items.infill == infill))
    metrics = (metric for metric in compute_all(metric_rows(items, positions)) if isinstance(metric, Values))
    return {metric.name: metric.image_means(len(items.images)) for metric in metrics}
