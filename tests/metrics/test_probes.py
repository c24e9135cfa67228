"""Each probe removes one kind of information and keeps the others."""

import numpy as np
import pytest

from auditkit.arrays import Array
from auditkit.metrics.exchanges import corner_region, frame_region, surround_region
from auditkit.metrics.probes import PROBES

SHAPES = [(16, 16, 3), (33, 47, 3), (47, 32, 1)]


def noise(shape: tuple[int, ...] = (32, 32, 3)) -> Array:
    """Pixels of chance."""
    return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)


def probed(name: str, pixels: Array) -> Array:
    """The image after a probe."""
    return PROBES[name](pixels, np.random.default_rng(2))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PROBES)
def test_the_shape_and_the_type_stay(name: str, shape: tuple[int, ...]) -> None:
    pixels = noise(shape)
    result = probed(name, pixels)
    assert (result.shape, result.dtype) == (shape, np.uint8)
    assert np.array_equal(pixels, noise(shape))


@pytest.mark.parametrize("name", [name for name in PROBES if name not in ("colour removed", "hues rotated")])
def test_something_is_removed(name: str) -> None:
    assert not np.array_equal(probed(name, noise()), noise())


def test_without_colour_all_channels_are_their_mean() -> None:
    result = probed("colour removed", noise())
    assert (np.ptp(result, axis=2) == 0).all()
    assert result[..., 0] == pytest.approx(noise().mean(axis=2), abs=0.51)


def test_hues_are_rotated() -> None:
    assert np.array_equal(probed("hues rotated", noise())[..., [1, 2, 0]], noise())


@pytest.mark.parametrize("name", ["fine detail removed", "more detail removed"])
def test_blurring_takes_a_fine_pattern_away_and_leaves_the_mean(name: str) -> None:
    checker = np.repeat(np.indices((64, 64), np.uint8).sum(axis=0)[..., None] % 2 * 100 + 50, 3, axis=2).astype(
        np.uint8
    )
    result = probed(name, checker)
    assert result.mean() == pytest.approx(100, abs=1)
    assert result.std() < 5 < checker.std()


def test_only_detail_is_left() -> None:
    halves = np.zeros((64, 64, 3), np.uint8)
    halves[:, 32:] = 200
    result = probed("only detail left", halves)
    assert np.ptp(result[:, :16]) == np.ptp(result[:, 48:]) == 0
    assert abs(int(result[0, 0, 0]) - int(result[0, -1, 0])) <= 1


@pytest.mark.parametrize(
    ("name", "region"),
    [("border hidden", frame_region), ("corners hidden", corner_region), ("surroundings hidden", surround_region)],
)
def test_what_is_hidden_is_gray_and_the_rest_stays(name: str, region: object) -> None:
    assert callable(region)
    hidden, result = region(33, 47), probed(name, noise((33, 47, 3)))
    assert (result[hidden] == 128).all()
    assert np.array_equal(result[~hidden], noise((33, 47, 3))[~hidden])


def test_the_centre_and_its_surroundings_are_complementary() -> None:
    both = np.stack([probed(name, noise((33, 47, 3))) for name in ("centre hidden", "surroundings hidden")])
    assert np.array_equal((both != 128).any(axis=(0, 3)), (noise((33, 47, 3)) != 128).any(axis=2))
    assert not ((both[0] != 128) & (both[1] != 128)).any()


def test_mirroring_twice_changes_nothing() -> None:
    assert np.array_equal(probed("mirrored", probed("mirrored", noise())), noise())


@pytest.mark.parametrize("seed", range(4))
def test_a_shift_moves_all_pixels_by_a_sixteenth(seed: int) -> None:
    pixels = noise((32, 48, 3))
    result = PROBES["shifted"](pixels, np.random.default_rng(seed))
    moves = [(down, across) for down in (-2, 2) for across in (-3, 3)
             if np.array_equal(result[4:-4, 6:-6], np.roll(pixels, (down, across), (0, 1))[4:-4, 6:-6])]  # fmt: skip
    assert len(moves) == 1
