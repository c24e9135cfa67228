"""The rows of a run as the charts take them: values by source, and curves brought to one grid."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from auditkit.arrays import Array
from auditkit.report.load_run import Loaded
from auditkit.runs.folder.figures import CONTROL
from auditkit.runs.summary.row_table import RowTable
from auditkit.runs.summary.source_rows import image_means

if TYPE_CHECKING:
    import pyarrow

GRID = np.linspace(0, 1, 51)  # kept shares that every curve is read at
BAND = (0.1, 0.9)  # of the images
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
        return [name for name in self.table.sources if not name.startswith(CONTROL)]

    @property
    def controls(self) -> list[str]:
        """Those they are judged beside."""
        return [name for name in self.table.sources if name.startswith(CONTROL)]

    def at(self, source: str) -> Array:
        """Places of a source's rows."""
        table = self.table
        return np.flatnonzero((table.source == table.sources.index(source)) & (table.infill == 0))

    def good(self, source: str) -> Array:
        """Places of those that have a figure."""
        at = self.at(source)
        return np.asarray(at[~self.table.failed()[at]])

    def per_image(self, source: str) -> dict[str, Array]:
        """Each metric's value by number of the image; NaN where an image has none."""
        return image_means(self.table, source)

    @cached_property
    def curves(self) -> dict[tuple[str, bool], Curve]:
        """The insertion curves of each source, of predicted labels (True) and of others."""
        curves: dict[tuple[str, bool], list[Array]] = defaultdict(list)
        for table in self.loaded.tables():
            named = zip(*(table.column(name).to_pylist() for name in ("bundle", "infill", "predicted")), strict=True)
            counts, scores = (_Lists(table.column(name)) for name in ("keep_counts", "curve"))
            for row, (bundle, infill, predicted) in enumerate(named):
                x, y = counts.row(row), scores.row(row)
                if infill == self.infill and len(x) and len(x) == len(y):
                    read = np.interp(GRID, x / self._pixels(x), y, left=np.nan, right=np.nan)
                    curves[bundle, bool(predicted)].append(read.astype(np.float32))
        return {key: _mean_curve(np.stack(parts)) for key, parts in curves.items()}

    def _pixels(self, counts: Array) -> int:
        size = self.loaded.results.subject.card.get("size")
        return int(np.prod(size)) if isinstance(size, tuple) else int(counts.max())


class _Lists:
    """A column of lists, one at a time without making Python numbers of all."""

    def __init__(self, column: "pyarrow.ChunkedArray") -> None:
        array = column.combine_chunks()
        array = array.chunk(0) if hasattr(array, "num_chunks") else array
        self.offsets, self.values = array.offsets.to_numpy(), array.values.to_numpy(zero_copy_only=False)

    def row(self, row: int) -> Array:
        """The list of a row; empty where it has none."""
        return np.asarray(self.values[self.offsets[row] : self.offsets[row + 1]], np.float64)


def _mean_curve(curves: Array) -> Curve:
    known = np.isfinite(curves).any(axis=0)
    mean, low, high = (np.full(curves.shape[1], np.nan) for _ in range(3))
    mean[known] = np.nanmean(curves[:, known], axis=0)
    low[known], high[known] = np.nanquantile(curves[:, known], BAND, axis=0)
    return Curve(mean, low, high, len(curves))


def rows_of(loaded: Loaded) -> Rows | None:
    """The run's rows; None where they were not kept."""
    return None if loaded.table is None or not len(loaded.table) else Rows(loaded, loaded.table)


def some(places: Array, most: int) -> Array:
    """At most so many of them, chosen by a fixed seed, in their order."""
    if len(places) <= most:
        return places
    return np.asarray(np.sort(np.random.default_rng(SEED).choice(places, most, replace=False)))
