"""Points of a curve against every pixel: the whole way on a small model, and what the table says."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import steps
from tests.support import onnx_models


def curves(count: int, pixels: int, rough: float) -> np.ndarray[Any, Any]:
    """Probabilities that rise along a curve and jump from pixel to pixel."""
    rng = np.random.default_rng(0)
    odds = np.linspace(-4, 4, pixels + 1) + rough * rng.standard_normal((count, pixels + 1))
    return np.asarray(1 / (1 + np.exp(-odds)))


def test_smooth_curves_need_few_points_and_rough_ones_many() -> None:
    found = {rough: steps.measure(curves(40, 400, rough), np.full(40, 0.9), 5e-3) for rough in (0.0, 0.8)}
    assert found[0.0]["passes_median"] < found[0.8]["passes_median"]
    assert found[0.0]["jump"] < 0.01 < found[0.8]["jump"]
    assert all(one["holds"] >= 0.8 for one in found.values())
    assert found[0.8]["uniform_within"] > found[0.0]["uniform_within"]


def test_a_fixed_number_of_steps_has_an_error_that_holds() -> None:
    found = steps.fixed(curves(40, 400, 0.1), 16)
    assert found["off"] < found["said"]
    assert found["holds"] >= 0.9


def test_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On 256 pixels, of which every count is asked about."""
    model = onnx_models.save(onnx_models.convnet(size=16), tmp_path, "small.onnx")
    pictures = np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "drawn.npz", images=pictures)
    words = [str(model), str(tmp_path / "drawn.npz"), "-o", str(tmp_path / "out"), "--images", "2",
             "--labels", "top1", "--method", "edges", "random", "--device", "cpu"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["steps", *words])
    monkeypatch.setattr(steps, "STEPS", (8, 32))
    steps.main()
    found = json.loads(capsys.readouterr().out)
    assert {one["curves"] for one in found["auto"]} == {4, 2}
    assert [one["steps"] for one in found["fixed"]] == [8, 32]
    assert "small.onnx, 2 images, top1, edges, random." in steps.steps_table(found)
