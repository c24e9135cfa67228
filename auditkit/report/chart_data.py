"""The rows of a run as the charts take them: values by source, and curves brought to one grid."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.per_image import MetricRows
from auditkit.report.load_run import Loaded
from auditkit.report.sections import best_control
from auditkit.runs.folder.figures import CONTROL
from auditkit.runs.summary.row_table import RowTable

if TYPE_CHECKING:
    import pyarrow

GRID = np.linspace(0, 1, 51)  # kept shares that every curve is read at
BAND = (0.1, 0.9)  # of the images
MOST_CURVE_IMAGES = 2000  # of a run whose curves are drawn: more do not change what is seen, and fill the memory
SEED = 0  # of the choice of points, where there are too many to draw


@dataclass(frozen=True)
class Curve:
    """Mean of many curves on the grid, and the band that most of them keep to."""

    mean: Array
    low: Array
    high: Array
    n: int


@dataclass(frozen=True)
class Rows:
    """Rows of the first infill."""

    loaded: Loaded
    table: RowTable

    @property
    def infill(self) -> str:
        """The infill that charts are about."""
        return str(self.table.infills[0]) if self.table.infills else ""

    @property
    def bundles(self) -> list[str]:
        """The maps that are judged."""
        return self.table.bundles

    @property
    def controls(self) -> list[str]:
        """Those they are judged beside."""
        return [name for name in self.table.sources if name.startswith(CONTROL)]

    def best_control(self, bundle: str) -> str | None:
        """The control beside which the insertion of a bundle looks worst."""
        results = self.loaded.results
        figures = (metric for metric in results.metrics
                   if (metric.name, metric.bundle, metric.infill) == ("insertion", bundle, self.infill))  # fmt: skip
        control = next((best_control(figure, results)[0] for figure in figures), None)
        return control.bundle if control else None

    def of(self, source: str) -> MetricRows:
        """Those of a source."""
        return self.table.metric_rows[source, self.infill]

    @cached_property
    def curve_images(self) -> list[str]:
        """The images whose curves are drawn."""
        return [self.table.images[number] for number in sample(np.arange(len(self.table.images)), MOST_CURVE_IMAGES)]

    @cached_property
    def curves(self) -> dict[tuple[str, bool], Curve]:
        """The insertion curves of each source, of predicted labels (True) and of others."""
        import pyarrow as pa  # noqa: PLC0415 - slow to import
        import pyarrow.compute as pc  # noqa: PLC0415

        curves: dict[tuple[str, bool], list[Array]] = defaultdict(list)
        images, size = pa.array(self.curve_images), self.loaded.results.subject.card.get("size")
        pixels = int(np.prod(size)) if isinstance(size, tuple) else None
        for unit in self.loaded.tables(("image", "infill", "bundle", "predicted", "keep_counts", "curve")):
            drawn = pc.and_(pc.is_in(unit.column("image"), images), pc.equal(unit.column("infill"), self.infill))
            table = unit.filter(drawn)
            columns = [table.column(name).to_pylist() for name in ("bundle", "predicted")]
            rows = zip(*columns, _lists(table.column("keep_counts")), _lists(table.column("curve")), strict=True)
            for bundle, predicted, counts, scores in rows:
                if len(counts) and len(counts) == len(scores):
                    curve = np.interp(GRID, counts / (pixels or counts.max()), scores, left=np.nan, right=np.nan)
                    curves[bundle, bool(predicted)].append(curve.astype(np.float32))
        return {key: _mean_curve(np.stack(parts)) for key, parts in curves.items()}


def _lists(column: "pyarrow.ChunkedArray") -> list[Array]:
    """The lists of a column, empty where a row has none."""
    array = column.combine_chunks()
    array = array.chunk(0) if hasattr(array, "num_chunks") else array
    values = array.values.to_numpy(zero_copy_only=False)
    return [np.asarray(values[first:end], np.float64) for first, end in pairwise(array.offsets.to_numpy())]


def _mean_curve(curves: Array) -> Curve:
    measured = np.isfinite(curves).any(axis=0)
    mean, low, high = (np.full(curves.shape[1], np.nan) for _ in range(3))
    mean[measured] = np.nanmean(curves[:, measured], axis=0)
    quantile = np.quantile if np.isfinite(curves[:, measured]).all() else np.nanquantile  # which is slow
    low[measured], high[measured] = quantile(curves[:, measured], BAND, axis=0)
    return Curve(mean, low, high, len(curves))


def rows_of(loaded: Loaded) -> Rows | None:
    """The run's rows; None where they were not kept."""
    return None if loaded.table is None or not len(loaded.table) else Rows(loaded, loaded.table)


def sample(positions: Array, most: int) -> Array:
    """At most that many of them, chosen by a fixed seed, in their order."""
    if len(positions) <= most:
        return positions
    return np.asarray(np.sort(np.random.default_rng(SEED).choice(positions, most, replace=False)))
