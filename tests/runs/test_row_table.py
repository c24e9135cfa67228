"""Rows read part by part: the figures are those of all rows at once, and nothing is read that is not needed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from auditkit.arrays import Array
from auditkit.metrics.table import compute_all
from auditkit.metrics.values import Values
from auditkit.runs.folder.parquet import COLUMNS, fitted
from auditkit.runs.summary import row_table
from auditkit.runs.summary.columns import Column
from auditkit.runs.summary.row_table import USUAL, RowTable
from tests.support import synthetic_runs

IMAGES = range(12)


def parts() -> list[Any]:
    """A part for every two images, which have two to twelve labels, with a bundle and a control."""
    rng, tables = np.random.default_rng(0), []
    for start in IMAGES[::2]:
        rows = []
        for bundle in ("maps", "control:edges"):
            for image in (start, start + 1):
                labels = range(2 + (3 * image) % 11)
                figures = {name: lambda *_: float(rng.random()) for name in ("insertion", "alpha", "beta")}
                odds = {name: lambda *_, n=len(labels): rng.normal(size=n).astype(np.float32).tolist()
                        for name in ("log_odds", "log_odds_error")}  # fmt: skip
                rows += synthetic_runs.rows([image], figures | odds, bundle=bundle, labels=labels)
        rows[1] |= {
            "error": "no map",
            "insertion": None,
            "alpha": None,
            "beta": None,
            "log_odds": None,
            "log_odds_error": None,
        }
        tables.append(fitted({name: [row.get(name) for row in rows] for name in COLUMNS}))
    return tables


class Asked:
    """Tables, and the columns that were asked for."""

    def __init__(self, tables: Sequence[Any]) -> None:
        self.tables, self.columns = tables, list[Sequence[str]]()

    def __call__(self, columns: Sequence[str] | None = None, /) -> Sequence[Any]:
        assert columns is not None
        self.columns.append(columns)
        return [table.select(columns) for table in self.tables]


def figures(table: RowTable) -> dict[tuple[str, str, str], list[float]]:
    """All values of all sources."""
    return {(*source, metric.name): metric.values.tolist() for source, rows in table.metric_rows.items()
            for metric in compute_all(rows) if isinstance(metric, Values)}  # fmt: skip


def test_figures_do_not_depend_on_how_many_parts_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = parts()
    together = RowTable(Asked(tables))
    monkeypatch.setattr(row_table, "_ROWS_AT_ONCE", 1)
    one_by_one = RowTable(Asked(tables))
    assert "label_specificity" in {name for *_, name in figures(together)}
    assert figures(one_by_one) == figures(together)
    for shift in (0.0, USUAL, -USUAL):
        first, second = (table.metric_rows["maps", "gray"].margins(shift) for table in (one_by_one, together))
        np.testing.assert_array_equal(first, second)


def test_wide_columns_are_read_when_they_are_asked_for() -> None:
    tables = Asked(parts())
    table = RowTable(tables)
    wide = {"curve", "keep_counts", "map_top", "log_odds", "log_odds_error"}
    assert not wide & set(tables.columns[0])
    compute_all(table.metric_rows["maps", "gray"])
    compute_all(table.metric_rows["control:edges", "gray"])
    assert len(tables.columns) == 2
    assert wide & set(tables.columns[1]) == {"log_odds", "log_odds_error"}
    assert table.copies == 0
    assert wide & set(tables.columns[2]) == {"map_top"}


def test_pairs_of_all_sources_are_kept_once() -> None:
    table = RowTable(Asked(parts()))
    first, second = table.rows.values()
    assert first.pairs is second.pairs
    assert len(table) == 2 * len(first.pairs.image)


@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("gaps", [0.0, 0.5, 1.0])
def test_a_column_gives_back_what_was_added(width: int | None, gaps: float) -> None:
    rng = np.random.default_rng(0)
    added = [_with_gaps(rng, (rows, *([] if width is None else [width])), gaps) for rows in (5, 0, 7)]
    column, expected = Column(width=width), np.concatenate(added)
    for values in added:
        column.add(values)
    np.testing.assert_array_equal(column.array(), expected)
    np.testing.assert_array_equal(column.of(np.array([0, 4, 11])), expected[[0, 4, 11]])


def test_gaps_may_come_late() -> None:
    column = Column(np.int32, 0)
    for values in ([1, 2], [0, 3], [4, 0]):
        column.add(np.array(values))
    assert column.array().tolist() == [1, 2, 0, 3, 4, 0]


def _with_gaps(rng: np.random.Generator, shape: tuple[int, ...], share: float) -> Array:
    values = rng.random(shape)
    values[rng.random(shape[0]) < share] = np.nan
    return values
