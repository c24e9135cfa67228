"""Noisy linear imputation."""

import numpy as np
import pytest

from auditkit.arrays import Array
from auditkit.methods.controls import CONTROLS
from auditkit.runs.folder.figures import CONTROL
from benchmarks.calibration.road import FIGURE, decisions, imputed, system


@pytest.fixture
def ramp() -> Array:
    down, across = np.mgrid[:12, :16].astype(float)
    return np.stack([down, across, 3 * down - across], axis=2)


def test_a_linear_ramp_is_restored(ramp: Array) -> None:
    hidden = np.zeros((12, 16), bool)
    hidden[2:9, 3:14] = True
    assert np.allclose(imputed(np.where(hidden[..., None], 99.0, ramp), hidden), ramp)


def test_nothing_hidden_changes_nothing(ramp: Array) -> None:
    assert np.array_equal(imputed(ramp, np.zeros((12, 16), bool)), ramp)


def test_one_hidden_pixel_is_the_weighted_mean_of_its_neighbours() -> None:
    pixels, hidden = np.random.default_rng(0).random((3, 3, 1)), np.zeros((3, 3), bool)
    hidden[1, 1] = True
    weights = np.array([[1, 2, 1], [2, 0, 2], [1, 2, 1]])[..., None] / 12
    assert np.allclose(imputed(pixels, hidden)[1, 1], (weights * pixels).sum(axis=(0, 1)))


def test_one_pixel_that_is_left_fills_the_picture() -> None:
    hidden = np.ones((5, 6), bool)
    hidden[4, 0] = False
    pixels = np.random.default_rng(0).random((5, 6, 3))
    assert np.allclose(imputed(pixels, hidden), pixels[4, 0])


def test_the_system_is_symmetric_and_leaves_constants_alone() -> None:
    matrix = system(4, 5)
    assert abs(matrix - matrix.T).max() == 0
    assert np.allclose(matrix @ np.ones(20), 0)


def test_a_set_is_decided_under_each_infill() -> None:
    rng = np.random.default_rng(0)
    values = {f"{CONTROL}{name}": {FIGURE: list(rng.random(40) * 0.1)} for name in CONTROLS}
    good, weak = ({FIGURE: list(rng.random(40) * 0.1 + gain)} for gain in (0.5, -0.5))
    found = decisions({"gray": {**values, "set": good}, "road": {**values, "set": weak}}, ["set"])
    assert [found["sets"][0][infill]["status"] for infill in ("gray", "road")] == ["pass", "fail"]
