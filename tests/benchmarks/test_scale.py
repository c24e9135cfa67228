"""The benchmark of many images, on few of them."""

from pathlib import Path

import pytest

from benchmarks import scale


def test_every_phase_runs_on_a_run_that_is_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    material = scale._Material(tmp_path)
    material.make(40)
    lines = [{"images": 40, **scale._measure_here(phase, tmp_path)} for phase in scale._WORK]
    assert [line["phase"] for line in lines] == list(scale._WORK)
    assert lines[0]["units"] == 3
    assert lines[-2]["rows"] == 40 * 10 * 9  # a bundle, seven controls, and one map for all labels
    found = {
        "lines": lines,
        "labels": 10,
        "idle_mb": 1,
        "time_exponents": {"plan": 1.0},
        "memory_exponents": {"plan": 0.5},
    }
    assert "| plan | 1.00 | 0.50 |  |  |" in scale.scale_table(found)


def test_the_power_of_growth_is_that_of_a_straight_line_through_logarithms() -> None:
    lines = [{"images": count, "phase": "plan", "seconds": 3.0 * count**1.5} for count in (10, 100, 1000)]
    assert scale.exponents(lines, "seconds") == {"plan": 1.5}
