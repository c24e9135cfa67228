"""The rows of one source under one infill: what metrics take, and what is odd about its maps."""

from collections.abc import Iterator

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.per_image import MetricRows
from auditkit.metrics.similarity import is_repeated
from auditkit.metrics.table import compute_all
from auditkit.metrics.values import Values
from auditkit.runs.evaluation.settings import NO_LABEL, NO_MAP
from auditkit.runs.folder.figures import Flag, FlagKind
from auditkit.runs.summary.row_table import CONSTANT, SAME_MAP_FLAG, TIES, RowTable

Source = tuple[str, str]  # a bundle or control, and an infill


def sources(table: RowTable) -> dict[Source, MetricRows]:
    """The rows of every source under every infill, infill by infill."""
    rows = {}
    for infill_index, infill in enumerate(table.infills):
        for source in table.sources:
            rows[source, infill] = metric_rows(table, table.positions(source, infill_index))
    return rows


def metric_rows(table: RowTable, positions: Array) -> MetricRows:
    """Rows at these positions, as metrics take them."""
    return MetricRows(
        table.image, table.label, table.place, table.predicted, table.prediction, table.column, table.lists, positions,
        measured=np.asarray(positions[~table.failed()[positions]]),
        in_label_set=positions[~table.failed(NO_LABEL)[positions]], targets_listed_labels=table.named,
    )  # fmt: skip


def map_flags(bundle: str, rows: MetricRows, table: RowTable) -> Iterator[Flag]:
    """What is odd about a bundle's maps, counted."""
    total, counts = len(rows.measured), table.flags(rows.measured)
    maps_of_image = np.unique(rows.image[rows.measured], return_counts=True)[1]
    with_company = int(maps_of_image[maps_of_image > 1].sum())
    totals: dict[FlagKind, int] = {SAME_MAP_FLAG: with_company, CONSTANT: total, TIES: total}
    for kind, maps in totals.items():
        if kind in counts:
            yield Flag(kind, bundle, counts[kind], maps)
    if repeats := _repeats(rows, table):
        yield Flag("position-only", bundle, repeats, total)
    if missing := int(table.failed(NO_MAP)[rows.positions].sum()):
        yield Flag("maps-missing", bundle, missing)


def _repeats(rows: MetricRows, table: RowTable) -> int:
    """Maps that equal those of the same label of other images; labels that one image alone has are compared as one.

    Maps of copies of an image may well be alike, and constant maps have a flag of their own.
    """
    positions, fingerprints = table.tops(rows.measured[~table.flagged(CONSTANT)[rows.measured]])
    labels = table.label[positions]
    distinct, images = np.unique(labels, return_counts=True)
    groups = np.where(np.isin(labels, distinct[images > 1]), labels, -1)
    digests, pictures = table.column("map_digest")[positions], table.pictures[table.image[positions]]
    return int(is_repeated(fingerprints, digests, groups, pictures).sum())


def image_means(table: RowTable, source: str, infill: int = 0) -> dict[str, Array]:
    """Each metric of a source by number of the image, under the infill of that number; NaN where an image has none."""
    if source not in table.sources:
        return {}
    results = compute_all(metric_rows(table, table.positions(source, infill)))
    metrics = [result for result in results if isinstance(result, Values)]
    return {metric.name: metric.image_means(len(table.images)) for metric in metrics}
