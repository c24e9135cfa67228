"""The rows of one source under one infill: what metrics take, and what is odd about its maps."""

from collections.abc import Iterator

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.per_image import taken
from auditkit.metrics.similarity import is_repeated
from auditkit.metrics.table import compute_all
from auditkit.metrics.values import Values
from auditkit.runs.evaluation.settings import NO_MAP
from auditkit.runs.folder.figures import Flag, FlagKind
from auditkit.runs.summary.row_table import CONSTANT, SAME_MAP_FLAG, TIES, RowTable


def map_flags(bundle: str, table: RowTable) -> Iterator[Flag]:
    """What is odd about a bundle's maps, counted."""
    source = bundle, table.infills[0]
    rows, measured = table.rows[source], table.metric_rows[source].measured
    total, maps_of_image = len(measured), np.unique(rows.pairs.image[measured], return_counts=True)[1]
    with_company = int(maps_of_image[maps_of_image > 1].sum())
    totals: dict[FlagKind, int] = {SAME_MAP_FLAG: with_company, CONSTANT: total, TIES: total}
    for kind, maps in totals.items():
        if count := int(rows.flagged(kind)[measured].sum()):
            yield Flag(kind, bundle, count, maps)
    if repeats := _repeats(bundle, table):
        yield Flag("position-only", bundle, repeats, total)
    if missing := int(rows.failed(NO_MAP).sum()):
        yield Flag("maps-missing", bundle, missing)


def _repeats(bundle: str, table: RowTable) -> int:
    """Maps that equal those of the same label of other images; labels that one image alone has are compared as one.

    Maps of copies of an image may well be alike, and constant maps have a flag of their own.
    """
    rows, (positions, fingerprints) = table.rows[bundle, table.infills[0]], table.tops(bundle)
    compared = np.flatnonzero(~(rows.flagged(CONSTANT) | rows.failed())[positions])
    positions, fingerprints = positions[compared], taken(fingerprints, compared)
    labels = rows.pairs.label[positions]
    distinct, images = np.unique(labels, return_counts=True)
    groups = np.where(np.isin(labels, distinct[images > 1]), labels, -1)
    digests, pictures = rows.column("map_digest")[positions], table.pictures[rows.pairs.image[positions]]
    return int(is_repeated(fingerprints, digests, groups, pictures).sum())


def image_means(table: RowTable, source: str, infill: int = 0) -> dict[str, Array]:
    """Each metric of a source by number of the image, under the infill of that number; NaN where an image has none."""
    if source not in table.sources:
        return {}
    results = compute_all(table.metric_rows[source, table.infills[infill]])
    metrics = [result for result in results if isinstance(result, Values)]
    return {metric.name: metric.image_means(len(table.images)) for metric in metrics}
