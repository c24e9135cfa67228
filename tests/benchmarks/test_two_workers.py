"""Comparisons of two runs: equal ones, ones that differ, and curves with other points."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.runs.folder.store import Store
from benchmarks import two_workers
from tests.support.commands import auditkit


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    drawn = draw(4, seed=4, tags="random")
    images, out = folder / "images.npz", folder / "run"
    np.savez(images, images=drawn.images, labels=drawn.labels)
    done = auditkit("evaluate", bundled_model("honest"), images, "-o", out, "--labels", "top2", "--steps", 6, "--quiet")
    assert done.returncode == 0, done
    return out


def test_runs_are_compared_column_by_column(run: Path, tmp_path: Path) -> None:
    alike = two_workers.rows_alike(run, run)
    assert alike["equal"]
    assert (alike["columns"], alike["figures"]) == ({}, 0.0)
    assert two_workers._in_words(alike) == f"all {alike['rows']} rows equal"
    changed = shutil.copytree(run, tmp_path / "run")
    (key,) = Store(changed).keys()
    table = Store(run).read(key)
    column = table.column_names.index("insertion")
    with Store.open(changed, Store(run).settings()) as store:
        store.write(key, table.set_column(column, "insertion", [np.array(table["insertion"]) + 0.25]))
    alike = two_workers.rows_alike(run, changed)
    assert not alike["equal"]
    assert alike["columns"] == {"insertion": pytest.approx(0.25)}


def test_curves_with_other_points_are_not_compared_by_value() -> None:
    assert two_workers._largest_difference(np.array([1.0, np.nan]), np.array([1.5, np.nan])) == 0.5
    assert two_workers._largest_difference(np.array([1.0, 2.0]), np.array([1.0])) is None
    assert two_workers._largest_difference(np.array([1.0, np.nan]), np.array([1.0, 2.0])) is None
    alike = {
        "equal": False,
        "rows": 3,
        "columns": {"insertion": 0.001, "curve": None},
        "figures": 0.0005,
        "stated": 0.006,
    }
    assert two_workers._in_words(alike) == ("figures differ by up to 0.0005, areas of rows by 0.001, some curves have "
                                            "other points; an error of 0.006 is stated")  # fmt: skip
