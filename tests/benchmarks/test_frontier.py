"""The study of cheaper masks, on a bundled model."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from benchmarks import frontier


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["frontier", *map(str, arguments)])
    frontier.main()


def test_schedules_are_measured_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {"full": frontier._single(4, 3), "coarse": frontier.Schedule((frontier.Phase(2, 1, coarser=2),
                                                                          frontier.Phase(2, 2)))}  # fmt: skip
    monkeypatch.setattr(frontier, "SCHEDULES", quick)
    np.savez(tmp_path / "images.npz", images=draw(25, seed=0, tags="agree").images)
    measure = ("measure", bundled_model("honest"), tmp_path / "images.npz", "-o", tmp_path / "out", "--images", 5,
               "--pictures", 25, "--device", "cpu")  # fmt: skip
    run(monkeypatch, *measure)
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "out").iterdir())]
    assert [record["rows"] for record in records] == [6.0, 12.0]
    capsys.readouterr()
    run(monkeypatch, "table", tmp_path / "out", "--plot", tmp_path / "plot.svg")
    found = json.loads(capsys.readouterr().out)
    assert {one["schedule"]: one["completeness"]["n"] for one in found["schedules"]} == {"coarse": 5, "full": 5}
    full = next(one for one in found["schedules"] if one["schedule"] == "full")
    assert full["insertion"]["difference"] == 0
    assert "| coarse | 6 |" in frontier.frontier_table(found)
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")


def test_few_images_have_differences_without_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"image": ["a", "a"], "label": [0, 1], "predicted": [True, False], "insertion": [0.5, 0.2],
               "alpha": [0.5, 0.7], "beta": [0.9, 0.8], "log_odds": [[1.0, -1.0], [-1.0, 1.0]]}  # fmt: skip
    twice = {key: [*values, *values] for key, values in columns.items()}
    for schedule, gain in (("full", 0.0), ("fast", 0.1)):
        results = twice | {"infill": [infill for infill in frontier.INFILLS for _ in "ab"],
                           "insertion": [value + gain for value in twice["insertion"]]}  # fmt: skip
        record = {**frontier.origin("benchmarks.frontier"), "schedule": schedule, "model": "m", "labels": "top2",
                  "rows": 10, "masks": 2, "results": results}  # fmt: skip
        (tmp_path / f"{schedule}.json").write_text(json.dumps(record))
    run(monkeypatch, "table", tmp_path, "--plot", tmp_path / "plot.svg")
    found = json.loads(capsys.readouterr().out)
    assert "| fast | 10 | +0.000 | +0.000 | +0.100 | +0.000 |" in frontier.frontier_table(found)


def test_pooling_is_the_mean_over_models() -> None:
    one = {metric: {"difference": 0.1, "standard_error": 0.03} for metric in frontier.METRICS}
    two = {metric: {"difference": 0.3, "standard_error": 0.04} for metric in frontier.METRICS}
    rows = frontier.pooled([{"schedule": "fast", "model": "a", "rows": 10, **one},
                            {"schedule": "fast", "model": "b", "rows": 20, **two},
                            {"schedule": "on one alone", "model": "b", "rows": 20, **two}])  # fmt: skip
    assert [row["schedule"] for row in rows] == ["fast"]
    assert rows[0]["insertion"] == pytest.approx({"difference": 0.2, "low": 0.151, "high": 0.249})
