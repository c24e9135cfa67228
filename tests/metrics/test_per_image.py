"""Figures and flags of rows that were made up, so that each can be told beforehand."""

from typing import Any

import numpy as np
import pytest

from auditkit.metrics.per_image import MetricRows
from auditkit.metrics.similarity import SAMPLE
from auditkit.metrics.table import METRICS, compute_all
from auditkit.metrics.values import NotAssessed, Note, Values
from auditkit.runs.evaluation.settings import NO_LABEL
from auditkit.runs.folder.figures import Flag
from auditkit.runs.folder.parquet import COLUMNS, fitted
from auditkit.runs.summary.row_table import RowTable
from auditkit.runs.summary.source_rows import map_flags
from tests.support import synthetic_runs

Row = dict[str, Any]
FAITHFUL = ("completeness", "soundness", "worst_completeness", "worst_soundness", "best_effort")


def group(rows: list[Row], source: str = "maps") -> MetricRows:
    return table(rows).metric_rows[source, "gray"]


def table(rows: list[Row]) -> RowTable:
    parts = [fitted({name: [row.get(name) for row in rows] for name in COLUMNS})]
    return RowTable(lambda _=None: parts)


def flags(rows: list[Row]) -> list[Flag]:
    return list(map_flags("maps", table(rows)))


# Images with a single label -------------------------------------------------------------------------------------------


def pairs(images: range, labels: range, alpha: float, beta: float) -> list[Row]:
    """All of them predicted to show label 0."""
    figures = {"insertion": 0.5, "alpha": alpha, "beta": beta}
    return synthetic_runs.rows(
        images, {name: lambda *_, value=value: value for name, value in figures.items()}, labels=labels
    )


def faithful(rows: list[Row]) -> dict[str, Values | NotAssessed]:
    return {one.name: one for one in compute_all(group(rows)) if METRICS[one.name].of_every_label}


def test_images_with_the_predicted_label_alone_do_not_count() -> None:
    """Of eight images two were asked about another label: the figures are theirs."""
    found = faithful(pairs(range(6), range(1), 1.0, 1.0) + pairs(range(6, 8), range(2), 0.5, 0.25))
    for name, value in (("completeness", 0.5), ("soundness", 0.25)):
        for one in (found[name], found[f"worst_{name}"]):
            assert isinstance(one, Values)
            assert set(one.values.tolist()) == {value}
            assert set(one.images.tolist()) == {6, 7}
            assert one.note == Note("images-with-second-label", 2, 8)
    assert isinstance(found["best_effort"], Values)
    assert found["best_effort"].images.tolist() == [6, 7]


def test_where_every_image_has_a_second_label_there_is_nothing_to_note() -> None:
    found = faithful(pairs(range(3), range(2), 0.5, 0.25))
    assert [one.note for one in found.values() if isinstance(one, Values)] == [None] * 5


def test_where_no_image_has_a_second_label_nothing_is_assessed() -> None:
    found = faithful(pairs(range(3), range(1), 0.5, 0.25))
    specific = {"label_specificity": "one-label", "other_label_evidence": "one-label"}
    expected = dict.fromkeys(FAITHFUL, "only-predicted-label") | specific
    assert {name: one.cause for name, one in found.items() if isinstance(one, NotAssessed)} == expected


def test_a_label_that_is_not_the_predicted_one_may_stand_alone() -> None:
    """A list of one label: images that are predicted to show it say nothing of soundness, the others do."""
    found = faithful(pairs(range(3), range(1), 1.0, 1.0) + pairs(range(3, 5), range(1, 2), 0.5, 0.25))
    assert found["worst_soundness"].images.tolist() == [3, 4]  # type: ignore[union-attr]


# Copies and maps of other images --------------------------------------------------------------------------------------


def test_images_without_a_label_in_the_set_are_no_copies_of_each_other() -> None:
    edges = synthetic_runs.edges(range(4))
    for row in edges[-6:]:
        row |= {"error": NO_LABEL, "insertion": None, "map_digest": None}
    assert table(edges).copies == 0


def test_copies_are_told_by_their_edges() -> None:
    rows = synthetic_runs.edges(range(4))
    for row in rows[:3]:
        row["map_digest"] = rows[3]["map_digest"]
    row_table = table(rows)
    assert row_table.copies == 1
    assert len(set(row_table.pictures.tolist())) == 3


def test_copies_that_differ_in_a_few_pixels_are_copies() -> None:
    rows, rng = synthetic_runs.edges(range(4)), np.random.default_rng(0)
    bits = {row["image"]: rng.random(2048) < 0.1 for row in rows}
    first, last = rows[0]["image"], rows[-1]["image"]
    bits[last] = bits[first].copy()
    bits[last][np.flatnonzero(bits[first])[:2]] = False
    for row in rows:
        row["map_top"] = np.packbits(bits[row["image"]]).tobytes()
    row_table = table(rows)
    assert row_table.copies == 1


def with_maps(images: int, labels: int, template: int | None = None, noise: int = 0, seed: int = 0) -> list[Row]:
    """Rows with fingerprints of 100 pixels: their own, or a template's with some pixels moved."""
    rng = np.random.default_rng(seed)
    made = synthetic_runs.rows(range(images), {"insertion": lambda *_: 0.5}, labels=range(labels))
    for place, row in enumerate(made):
        chosen = rng.permutation(1000)[:100] if template is None else np.arange(100) * template
        bits = np.zeros((2, SAMPLE), np.bool_)
        bits[:, chosen] = True
        bits[:, rng.permutation(chosen)[:noise]] = False
        bits[:, 1001 : 1001 + noise] = True
        row |= {"map_top": np.packbits(bits).tobytes(), "map_digest": synthetic_runs.digest(f"{seed} {place}")}
    return made


def position(rows: list[Row]) -> list[tuple[int | None, int | None]]:
    """Count and total of the flag of maps that repeat."""
    return [(flag.count, flag.total) for flag in flags(rows) if flag.kind == "position-only"]


@pytest.mark.parametrize("labels", [1, 3])
def test_one_map_for_all_images_is_counted(labels: int) -> None:
    whole = 20 * labels
    assert position(with_maps(20, labels, template=3, noise=2)) == [(whole, whole)]
    assert not position(with_maps(20, labels))


def test_some_fixed_maps_among_others_are_counted() -> None:
    """One map for label 0 on 11 of 20 images, each of which finds it on 10 of 19 others; label 1 has its own maps."""
    rows = with_maps(20, 2)
    for row in rows[:22:2]:
        row["map_top"] = rows[0]["map_top"]
    assert position(rows) == [(11, 40)]


def test_labels_that_one_image_has_alone_are_compared_with_each_other() -> None:
    """As where the ten most probable of a thousand labels are asked: no label is met twice."""
    rows = with_maps(10, 1, template=3)
    for place, row in enumerate(rows):
        row["label"] = place
    assert position(rows) == [(10, 10)]


def test_maps_of_copies_of_an_image_may_be_alike() -> None:
    rows = with_maps(10, 2, template=3)
    same = synthetic_runs.edges(range(10))
    for row in same:
        row["map_digest"] = synthetic_runs.digest("one picture")
    assert not position(rows + same)
    assert position(rows + synthetic_runs.edges(range(10)))


def test_labels_of_one_image_are_not_those_of_another() -> None:
    assert not position(with_maps(1, 5, template=3))


def test_constant_maps_have_a_flag_of_their_own() -> None:
    rows = with_maps(10, 1, template=3)
    for row in rows:
        row["flags"] = ["constant"]
    assert flags(rows) == [Flag("constant", "maps", 10, 10)]


def test_maps_that_are_missing_do_not_dilute_a_flag() -> None:
    rows = with_maps(10, 1, template=3)
    gone = synthetic_runs.rows(range(10), {}, labels=range(1, 6))
    for row in gone:
        row |= {"error": "no map for this label", "map_digest": None}
    assert position(rows + gone) == [(10, 10)]


def test_images_with_one_label_do_not_dilute_the_flag_of_one_map_for_all_labels() -> None:
    shared = [row | {"image": "last.png", "flags": ["same-map-for-all-labels"]} for row in with_maps(1, 2, seed=1)]
    assert flags(with_maps(20, 1) + shared) == [Flag("same-map-for-all-labels", "maps", 2, 2)]
