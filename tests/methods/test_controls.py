"""Control maps are what they say: seeded noise, a bump in the middle, nothing, edges; none of them asks the model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import ranks
from auditkit.methods.controls import CONTROLS, blurred_edges, centred_gaussian, constant, edges, random
from auditkit.metrics.curves import parse_steps
from auditkit.model.signature import Overrides
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.summary.summarise import Summary

SIZES = [(12, 20), (9, 5), (1, 7), (32, 32)]


def _picture(size: tuple[int, int], channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*size, channels), dtype=np.uint8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_is_a_finite_map_of_the_picture(name: str, size: tuple[int, int], channels: int) -> None:
    draw, _ = CONTROLS[name]
    found, again = (draw(_picture(size, channels), 5) for _ in range(2))
    assert (found.shape, found.dtype) == (size, np.float32)
    assert np.isfinite(found).all()
    assert np.array_equal(found, again)


def test_noise_is_seeded_and_ignores_the_picture() -> None:
    size = (40, 50)
    found = random(_picture(size), 3)
    assert np.array_equal(found, random(_picture(size, seed=1), 3))
    other = random(_picture(size), 4)
    assert abs(np.corrcoef(found.ravel(), other.ravel())[0, 1]) < 0.1
    assert len(np.unique(found)) > 0.99 * found.size
    assert abs(found.mean() - 0.5) < 0.03


@pytest.mark.parametrize("size", [(12, 20), (21, 13), (32, 32)])
def test_the_gaussian_depends_on_the_place_alone(size: tuple[int, int]) -> None:
    found = centred_gaussian(_picture(size), 1)
    assert np.array_equal(found, centred_gaussian(_picture(size, seed=9), 2))
    np.testing.assert_allclose(found, found[::-1, ::-1], rtol=1e-5)
    np.testing.assert_allclose(found, found[:, ::-1], rtol=1e-5)
    if size[0] == size[1]:
        np.testing.assert_allclose(found, found.T, rtol=1e-5)


def test_the_gaussian_falls_with_the_distance_from_the_middle() -> None:
    """exp(-d^2 / 2 sigma^2), sigma a quarter of the shorter side: at d = sigma, e^(-1/2) of the peak."""
    found = centred_gaussian(_picture((41, 81)), 0)
    assert found[20, 40] == found.max() == 1
    sigma = 41 / 4
    y, x = np.mgrid[:41, :81]
    distance = np.hypot(y - 20, x - 40)
    np.testing.assert_allclose(found, np.exp(-0.5 * (distance / sigma) ** 2), atol=1e-6)
    near = np.argsort(ranks(found, "first").ravel())  # pixels, most important first
    assert (np.diff(np.round(distance.ravel()[near], 4)) >= 0).all()


def test_a_constant_ranks_nothing() -> None:
    assert len(np.unique(constant(_picture((6, 7)), 0))) == 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("level", [0, 77, 255])
def test_a_flat_picture_has_no_edges(level: int, channels: int) -> None:
    assert not edges(np.full((8, 9, channels), level, np.uint8), 0).any()


def test_edges_lie_where_the_brightness_jumps() -> None:
    """Sobel over a jump of 100 between columns 4 and 5: 4 x 100 beside it, on both sides, and 0 elsewhere."""
    picture = np.full((7, 10, 3), 50, np.uint8)
    picture[:, 5:] = 150
    expected = np.zeros((7, 10))
    expected[:, 4:6] = 400
    np.testing.assert_allclose(edges(picture, 0), expected)
    np.testing.assert_allclose(edges(picture.transpose(1, 0, 2), 0), expected.T)
    assert np.array_equal(edges(picture, 0), edges(255 - picture, 1))


def test_one_bright_pixel_is_edged_on_all_sides() -> None:
    """The kernels by hand: 2 beside it, the root of 2 at its corners, 0 on the pixel itself."""
    picture = np.zeros((5, 5, 1), np.uint8)
    picture[2, 2] = 90
    side, corner = 180.0, 90 * np.sqrt(2)
    ring = np.array([[corner, side, corner], [side, 0, side], [corner, side, corner]])
    np.testing.assert_allclose(edges(picture, 0), np.pad(ring, 1), rtol=1e-6)


def test_edges_weigh_the_colours_alike() -> None:
    picture = np.zeros((5, 6, 3), np.uint8)
    picture[:, 3:, 0] = 120
    for turn in (1, 2):
        np.testing.assert_allclose(edges(np.roll(picture, turn, axis=2), 0), edges(picture, 0))
    assert edges(picture, 0).max() == pytest.approx(4 * 120 / 3)


def test_blurred_edges_spread_each_edge_around_it() -> None:
    """A Gaussian of a tenth of the shorter side: the ring of edges around one bright pixel becomes a bump on it."""
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[30, 40] = 255
    found = blurred_edges(picture, 0)
    y, x = np.mgrid[:64, :96]
    distance = np.hypot(y - 30, x - 40)
    assert found.argmax() == 30 * 96 + 40
    np.testing.assert_allclose(found.sum(), edges(picture, 0).sum(), rtol=1e-3)
    spread = np.sqrt((found * distance**2).sum() / found.sum() / 2)
    assert spread == pytest.approx(6.4, abs=0.3)
    assert not blurred_edges(np.full((8, 9, 3), 77, np.uint8), 0).any()


# In an evaluation ----------------------------------------------------------------------------------------------------


def _brightness(images: np.ndarray) -> np.ndarray:
    share = images.astype(np.float64).mean(axis=(1, 2, 3))
    return np.stack([0.9 * share, 0.1 * share, 1 - share], axis=1)


def _evaluated(folder: Path, images: np.ndarray, **changed: Any) -> Summary:
    model = auditkit.load(_brightness, size=(6, 9), preset="unit", overrides=Overrides(kind="probabilities"))
    names = tuple(f"image-{index}" for index in range(len(images)))
    settings = Evaluation(**{"steps": parse_steps("6"), **changed})
    bundles = {}
    if not (folder / "maps").exists():
        writer = auditkit.Bundle(folder / "maps")
        for label in range(3):
            maps = np.random.default_rng(label).random((len(names), 6, 9))
            writer.add(list(names), [label] * len(names), maps, layout="NHW")
    bundles["maps"] = auditkit.open_bundle(folder / "maps")
    return evaluate(model, Dataset(Path("images"), names, images), bundles, settings)


def _by_label(found: Summary, source: str, image: str) -> dict[int, list[float]]:
    return {
        row["label"]: [round(float(value), 6) for value in row["curve"]]
        for row in found.rows
        if (row["bundle"], row["image"]) == (source, image)
    }


SOURCES = {f"control:{name}" for name in CONTROLS} | {"control:one-map:maps"}


def test_all_controls_run_by_default_on_the_same_pairs(tmp_path: Path) -> None:
    images = _picture((3 * 6, 9)).reshape(3, 6, 9, 3)
    found = _evaluated(tmp_path, images)
    pairs = {source: [] for source in (*SOURCES, "maps")}
    for row in found.rows:
        pairs[row["bundle"]].append((row["image"], row["label"]))
    assert all(sorted(mine) == sorted(pairs["maps"]) for mine in pairs.values())
    assert len(pairs["maps"]) == 9
    assert {metric.bundle for metric in found.metrics} == {*SOURCES, "maps"}
    assert not found.flags
    assert {row["bundle"] for row in _evaluated(tmp_path, images, controls=False).rows} == {"maps"}


def test_only_the_random_control_has_a_map_for_each_label(tmp_path: Path) -> None:
    """Label 0 has nine times the probability of label 1 on every picture: one map gives curves in that proportion."""
    found = _evaluated(tmp_path, _picture((2 * 6, 9), seed=4).reshape(2, 6, 9, 3))
    for source in SOURCES:
        curves = _by_label(found, source, "image-1")
        alike = np.allclose(np.array(curves[0]), 9 * np.array(curves[1]), atol=1e-5)
        assert alike == (source != "control:random"), source


def test_controls_follow_the_seed(tmp_path: Path) -> None:
    images = _picture((2 * 6, 9), seed=6).reshape(2, 6, 9, 3)
    first, again, other = (_evaluated(tmp_path, images, seed=seed) for seed in (0, 0, 1))
    for source in SOURCES:
        assert _by_label(first, source, "image-0") == _by_label(again, source, "image-0")
    for source in ("control:random", "control:constant"):  # the constant's order is left to the shuffle of ties
        assert _by_label(first, source, "image-0") != _by_label(other, source, "image-0")
    assert _by_label(first, "control:edges", "image-0") == _by_label(other, "control:edges", "image-0")
    for source in ("control:random", "control:constant"):
        assert _by_label(first, source, "image-0") != _by_label(first, source, "image-1")


def test_the_one_map_control_shows_the_predicted_labels_map(tmp_path: Path) -> None:
    images = _picture((2 * 6, 9), seed=4).reshape(2, 6, 9, 3)
    found = _evaluated(tmp_path, images)
    chief = {row["image"]: row["label"] for row in found.rows if row["predicted"]}
    for image, label in chief.items():
        own, one = (_by_label(found, source, image) for source in ("maps", "control:one-map:maps"))
        assert own[label] == one[label]
        assert all(own[other] != one[other] for other in own if other != label)


@pytest.mark.parametrize("draw", [draw for draw, _ in CONTROLS.values()])
def test_controls_leave_the_picture_alone(draw: Callable[..., np.ndarray]) -> None:
    picture = _picture((6, 9))
    before = picture.copy()
    picture.setflags(write=False)
    draw(picture, 0)
    assert np.array_equal(picture, before)


def test_noise_on_a_map_is_a_quarter_of_its_highest_score() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name, plain in (("noisy-gaussian", centred_gaussian), ("noisy-edges", blurred_edges)):
        noisy, _ = CONTROLS[name]
        clean = plain(picture, 3)
        added = noisy(picture, 3) - clean / clean.max()
        assert added.std() == pytest.approx(0.25, rel=0.05)
        assert abs(added.mean()) < 0.02
        np.testing.assert_array_equal(noisy(picture, 3), noisy(picture, 3))
        assert not np.array_equal(noisy(picture, 3), noisy(picture, 4))
    assert np.isfinite(CONTROLS["noisy-edges"][0](np.full((8, 9, 3), 77, np.uint8), 0)).all()
