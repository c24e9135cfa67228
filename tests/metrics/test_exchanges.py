"""Every exchange takes the donor's part and nothing else; squares of evidence are found wherever they are."""

from itertools import product

import numpy as np
import pytest

from auditkit.arrays import Array
from auditkit.metrics.exchanges import (
    BANDS,
    CORNERS,
    EXCHANGES,
    FRAMES,
    PATCHES,
    WINDOWS,
    Exchange,
    Side,
    band_region,
    coarse,
    corner_region,
    frame_region,
    shuffled,
    strongest_window,
    surround_region,
)

SHAPES = [(16, 16, 3), (33, 47, 3), (47, 32, 1), (28, 28, 1)]
BY_NAME = {exchange.name: exchange for exchange in EXCHANGES}
PASTED = {
    **{name: lambda h, w, share=share: frame_region(h, w, share) for name, share in FRAMES.items()},
    "corners": corner_region,
    **{name: lambda h, w, name=name: corner_region(h, w, name) for name in CORNERS},
    "surround": surround_region,
}


def side(shape: tuple[int, ...], value: int, seed: int = 0) -> Side:
    """An image of one value, with a heatmap of noise."""
    rng = np.random.default_rng(seed)
    heatmap = rng.random(shape[:2])
    windows = {name: strongest_window(heatmap, size) for name, size in WINDOWS.items()}
    elsewhere = strongest_window(rng.random(shape[:2]), WINDOWS["small"])
    return Side(np.full(shape, value, np.uint8), windows, elsewhere, rng.permutation(PATCHES * PATCHES))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
def test_the_shape_and_the_type_stay(exchange: Exchange, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    recipient, donor = side(shape, 0), side(shape, 0, 1)
    donor.pixels[:] = rng.integers(256, size=shape)
    before = donor.pixels.copy()
    mixed = exchange.mix(recipient, donor)
    assert (mixed.shape, mixed.dtype) == (shape, np.uint8)
    assert not recipient.pixels.any()
    assert np.array_equal(donor.pixels, before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PASTED)
def test_a_region_comes_from_the_donor_and_the_rest_does_not(name: str, shape: tuple[int, ...]) -> None:
    mixed = BY_NAME[name].mix(side(shape, 10), side(shape, 200, 1))
    region = PASTED[name](*shape[:2])
    assert (mixed[region] == 200).all()
    assert (mixed[~region] == 10).all()
    assert 0 < region.mean() < 1
    assert region.mean() == pytest.approx(BY_NAME[name].breadth, abs=0.13)  # of 16 pixels, one more is 12 % of the area


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_four_corners_are_apart_and_make_up_the_corners(shape: tuple[int, ...]) -> None:
    regions = [corner_region(*shape[:2], corner) for corner in CORNERS]
    assert np.array_equal(np.sum(regions, axis=0), corner_region(*shape[:2]).astype(int))
    tips = [regions[index][row, column] for index, (row, column) in enumerate(product((0, -1), (0, -1)))]
    assert all(tips)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_regions_leave_the_middle_alone(shape: tuple[int, ...]) -> None:
    height, width = shape[:2]
    for region in (frame_region(height, width), corner_region(height, width), surround_region(height, width)):
        assert not region[height // 2, width // 2]
    for region in (frame_region(height, width), surround_region(height, width)):
        assert np.array_equal(region, region[::-1, ::-1])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("across", [True, False])
def test_bands_cover_both_ends_and_leave_the_middle(shape: tuple[int, ...], across: bool) -> None:
    bands = [band_region(*shape[:2], start, across=across) for start in BANDS]
    lines = np.any(bands, axis=(0, 2 if across else 1))
    size = len(lines)
    assert lines[0]
    assert lines[-1]
    assert not lines[size // 2]
    assert all(band.any() for band in bands)


def test_every_exchange_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(EXCHANGES)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", WINDOWS)
def test_the_squares_of_both_images_come_from_the_donor(name: str, shape: tuple[int, ...]) -> None:
    recipient, donor = side(shape, 10), side(shape, 200, 1)
    expected = np.zeros(shape[:2], dtype=np.bool_)
    for window in (recipient.windows[name], donor.windows[name]):
        expected[window] = True
    assert np.array_equal(BY_NAME[f"{name} window"].mix(recipient, donor)[..., 0] == 200, expected)


def test_controls_take_squares_without_the_donors_evidence() -> None:
    recipient, donor = side((32, 32, 3), 10), side((32, 32, 3), 200, 1)
    mixed = BY_NAME["the recipient's small window"].mix(recipient, donor)
    assert (mixed[recipient.windows["small"]] == 200).all()
    assert (mixed == 200).sum() == mixed[recipient.windows["small"]].size
    assert (BY_NAME["small windows elsewhere"].mix(recipient, donor)[donor.elsewhere] == 200).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_mean_colour_is_the_donors_and_the_details_are_not(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    recipient, donor = side(shape, 0), side(shape, 0)
    recipient.pixels[:], donor.pixels[:] = rng.integers(90, 110, size=shape), rng.integers(140, 180, size=shape)
    mixed = BY_NAME["mean colour"].mix(recipient, donor)
    assert mixed.mean(axis=(0, 1)) == pytest.approx(donor.pixels.mean(axis=(0, 1)), abs=0.6)
    shift = mixed.astype(int) - recipient.pixels
    assert (np.ptp(shift, axis=(0, 1)) <= 1).all()


def test_the_fine_residual_is_the_donors_and_the_outline_is_not() -> None:
    checker = np.indices((64, 64)).sum(axis=0)[..., None] % 2
    recipient, donor = side((64, 64, 1), 100), side((64, 64, 1), 0, 1)
    recipient.pixels[16:48, 16:48] = 150
    donor.pixels[:] = 100 + 20 * checker
    mixed = BY_NAME["fine residual"].mix(recipient, donor).astype(float)
    assert np.abs(coarse(mixed, 2.0) - coarse(recipient.pixels, 2.0)).max() < 6
    assert np.abs(np.diff(mixed[2:14, :, 0])).mean() > 10
    assert np.diff(recipient.pixels[2:14, :, 0].astype(float)).any() == 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shuffling_keeps_all_pixels(shape: tuple[int, ...]) -> None:
    pixels = np.arange(np.prod(shape)).reshape(shape)
    moved = shuffled(pixels, np.random.default_rng(0).permutation(PATCHES * PATCHES))
    assert np.array_equal(np.sort(moved.ravel()), pixels.ravel())
    assert not np.array_equal(moved, pixels)
    assert np.array_equal(shuffled(pixels, np.arange(PATCHES * PATCHES)), pixels)


def test_shuffling_moves_whole_patches() -> None:
    pixels = np.arange(16).reshape(4, 4, 1)
    moved = shuffled(pixels, np.array([3, 2, 1, 0]))
    assert moved[..., 0].tolist() == [[10, 11, 8, 9], [14, 15, 12, 13], [2, 3, 0, 1], [6, 7, 4, 5]]


@pytest.mark.parametrize("shape", [(16, 16), (33, 47), (96, 64)])
@pytest.mark.parametrize("size", WINDOWS.values())
def test_the_strongest_square_is_found(shape: tuple[int, int], size: float) -> None:
    rows, columns = (max(1, round(length * size)) for length in shape)
    for top, left in ((0, 0), (shape[0] - rows, shape[1] - columns), (3, 5)):
        heatmap = np.full(shape, -1.0, np.float32)
        heatmap[top : top + rows, left : left + columns] = 1.0
        assert strongest_window(heatmap, size) == (slice(top, top + rows), slice(left, left + columns))


def test_negative_evidence_does_not_count() -> None:
    heatmap = np.zeros((32, 32), np.float32)
    heatmap[4, 4], heatmap[5, 5] = 2.0, -100.0
    heatmap[20, 20] = 1.0
    rows, columns = strongest_window(heatmap, 1 / 8)
    assert rows.start <= 4 < rows.stop
    assert columns.start <= 4 < columns.stop


@pytest.mark.parametrize("heatmap", [np.zeros((16, 20)), np.full((16, 20), 3.0), np.full((16, 20), -3.0)])
def test_a_map_without_a_peak_has_a_square_all_the_same(heatmap: Array) -> None:
    rows, columns = strongest_window(heatmap, 1 / 8)
    assert (rows.stop - rows.start, columns.stop - columns.start) == (2, 2)
