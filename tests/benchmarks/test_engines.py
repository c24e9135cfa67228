"""What worker processes cost: ratios within each turn, and shares of the processor time."""

import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import engines


def _turn(bare: float, local: float, ray: float) -> dict[str, dict[str, Any]]:
    taken = dict(zip(engines._SHARES, (90.0, 6.0, 3.0, 1.0), strict=True))
    entries = {"bare": bare, "local": local, "ray": ray}
    return {name: {"rate": rate, "seconds": 60.0, "others": 0.01, "cpu_s": taken, "tries": 1}
            for name, rate in entries.items()}  # fmt: skip


def test_ratios_are_taken_within_each_turn() -> None:
    """A machine that is slow in one turn is slow for all."""
    results = engines.summed_up([_turn(100, 96, 90), _turn(50, 47, 47), _turn(100, 95, 95)])
    assert results["of_bare"] == {"local": 0.95, "ray": 0.94}
    assert results["ray_of_local"] == 1.0
    text = engines.engines_table({"model": "a.onnx", "images": 8, "steps": "64"} | results)
    assert "| two workers, local | 95.0 | 0.950 | \\- | 90.0 % | 6.0 % | 3.0 % | 1.0 % |" in text


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="processor time is read from /proc")
def test_processor_time_is_told_apart_from_that_of_other_programs() -> None:
    def busy() -> float:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        return 7.0

    entry = engines.undisturbed(busy)
    assert entry["rate"] == 7.0
    assert 0.25 < entry["cpu_s"]["main process"] < 0.5
    assert entry["tries"] <= engines._MOST_TRIES
