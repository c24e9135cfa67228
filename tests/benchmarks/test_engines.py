"""What worker processes cost: ratios within each pair, shares of the processor time, and turns."""

import argparse
import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import engines
from tests.support import onnx_models


def _pair(rate: float, beside: float) -> engines.Pair:
    taken = dict(zip(engines._SHARES, (90.0, 6.0, 3.0, 1.0), strict=True))
    engine = {"rate": rate, "seconds": 60.0, "cpu_s": taken}
    return engine, {"rate": beside, "rates": {"8": beside}, "seconds": 60.0, "cpu_s": taken}


def test_ratios_are_taken_within_each_pair() -> None:
    """A machine that is slow for a while is slow for both sides."""
    local = [_pair(96, 100), _pair(47, 50), _pair(95, 100)]
    results = engines.summed_up(local, [_pair(90, 96), _pair(48, 48), _pair(95, 95)])
    assert results["of_bare"] == {"local": 0.95}
    assert results["ray_of_local"] == 1.0
    text = engines.engines_table({"model": "a.onnx", "images": 8, "steps": "64"} | results)
    assert "| two workers, local | 95.0 | 0.950 | \\- | 90.0 % | 6.0 % | 3.0 % | 1.0 % |" in text
    assert "| two workers, ray | 90.0 | \\- | 1.000 | 90.0 % | 6.0 % | 3.0 % | 1.0 % |" in text


def _recorded(name: str) -> dict[str, Any]:
    return dict(json.loads((Path(engines.__file__).parent / "results" / name).read_text()))


@pytest.mark.parametrize("name", ["engines-arm.json", "engines-arm-mobilenet.json"])
def test_results_of_earlier_versions_are_shown(name: str) -> None:
    assert "| two workers, local |" in engines.engines_table(_recorded(name))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are listed in /proc")
def test_both_sides_run_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation by two workers and two bare processes: both have time, and neither runs in the other's."""
    monkeypatch.setattr(engines, "_TURN_SECONDS", 0.3)
    path = onnx_models.save(onnx_models.convnet(), tmp_path)
    words = [str(path), "--preset", "unit", "--images", "4", "--steps", "8", "--rows", "4"]
    monkeypatch.setattr(sys, "argv", ["engines", *words])
    arguments = argparse.Namespace(model=path, rows=[4])
    engine, bare = engines.Engine("local"), engines.BareProcesses(arguments, (1, 3, 8, 8))
    begin = time.monotonic()
    of_engine, of_bare = engines.beside(engine, bare)
    assert of_engine["rate"] > 0
    assert of_bare["rate"] > of_engine["rate"]  # so small a model waits for all the rest
    spans = sorted(engine._turns + bare._turns)
    assert all(before[1] <= after[0] + 0.1 for before, after in pairwise(spans))
    assert of_engine["seconds"] < time.monotonic() - begin
    assert sum(of_engine["cpu_s"].values()) > 0
