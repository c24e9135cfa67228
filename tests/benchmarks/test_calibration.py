"""Fakes and damaged maps of the calibration."""

from pathlib import Path

import numpy as np
import pytest

from auditkit.arrays import Array
from auditkit.data.bundles import Bundle, open_bundle
from benchmarks.calibration.__main__ import TOGETHER, in_order, together
from benchmarks.calibration.fakes import BLIND, DAMAGES, FAKES, Case, bayer, damaged


@pytest.fixture
def case() -> Case:
    rng = np.random.default_rng(0)
    maps, elsewhere = ({label: rng.random((16, 20)) for label in (5, 2, 9)} for _ in range(2))
    return Case(rng.integers(0, 256, (16, 20, 3), np.uint8), maps, elsewhere, rng)


@pytest.mark.parametrize("name", [*FAKES, *BLIND])
def test_every_fake_has_a_map_for_every_label(name: str, case: Case) -> None:
    found = {**FAKES, **BLIND}[name](case)
    assert list(found) == [5, 2, 9]
    for values in found.values():
        assert values.shape == (16, 20)
        assert np.isfinite(values).all()
        assert np.ptp(values) > 0


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_changes_the_maps(name: str, case: Case) -> None:
    found = damaged(case, DAMAGES[name])
    for label, values in found.items():
        assert values.shape == (16, 20)
        assert np.isfinite(values).all()
        assert not np.array_equal(values, case.maps[label])


def order(values: Array) -> list[int]:
    return np.argsort(values, axis=None, kind="stable").tolist()


def test_one_map_is_the_same_for_all_labels_in_every_dress(case: Case) -> None:
    assert all(values is case.first for values in FAKES["one map"](case).values())
    scaled = FAKES["one map, scaled by label"](case)
    assert all(order(values) == order(case.first) for values in scaled.values())
    faint, strong = (FAKES[f"one map, noise {level}"](case)[2] for level in (0.01, 1))
    assert np.abs(faint - case.first).max() < 0.1 < np.abs(strong - case.first).max()


def test_labels_and_images_are_swapped(case: Case) -> None:
    assert FAKES["maps of other labels"](case)[5] is case.maps[2]
    assert FAKES["maps of other labels"](case)[9] is case.maps[5]
    assert FAKES["another image's"](case)[2] is case.elsewhere[2]
    assert FAKES["right for the prediction, noise else"](case)[5] is case.first


def test_a_bayer_matrix_has_every_number_once() -> None:
    assert sorted(bayer(8).ravel()) == list(range(64))


def test_values_come_in_the_order_of_the_images() -> None:
    """Units of two runs are read in different orders; sets are compared image by image."""
    assert in_order({"c": 0.3, "a": 0.1, "b": float("nan")}, ["a", "b", "c", "d"]) == [0.1, None, 0.3, None]


def test_sets_with_maps_for_other_labels_are_evaluated_apart(tmp_path: Path) -> None:
    sets = {}
    for number in range(TOGETHER + 2):
        bundle = Bundle(tmp_path / str(number))
        bundle.add(["a", "a"], [0, 2 if number == 1 else 1], np.zeros((2, 4, 4), np.float32))
        sets[str(number)] = open_bundle(tmp_path / str(number))
    first, second, third = together(sets)
    assert (first, second, third) == (["0", "2", "3", "4", "5", "6"], ["7"], ["1"])
