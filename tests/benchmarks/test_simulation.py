"""The simulation of verdicts uses the tests that decide them."""

import numpy as np
import pytest

from auditkit.metrics.betting import Sample
from benchmarks.calibration.simulation import DISTRIBUTIONS, drawn, e_values, number_of_tests, simulated


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_e_values_are_those_of_the_test(name: str) -> None:
    values = drawn(DISTRIBUTIONS[name], 1, 40, 3, np.random.default_rng(0))
    found = e_values(values)
    for images, test in ((20, 0), (33, 1), (40, 2)):
        sample = Sample(values[0, :images, test], (-1.0, 1.0))
        assert found[0, images - 1, test] == pytest.approx(sample.e_above(0.0))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_mean_lies_at_the_limit(name: str) -> None:
    values = DISTRIBUTIONS[name](np.random.default_rng(0), (200_000,))
    assert abs(values.mean()) < 4 * values.std() / len(values) ** 0.5
    assert np.abs(values).max() <= 1


def test_wrong_verdicts_are_rare() -> None:
    found = simulated(DISTRIBUTIONS["normal"], 100, 100, number_of_tests("standard"))
    assert max(rate["share"] for rates in found.values() for rate in rates.values()) <= 0.05
