"""Pointing game, overlap and the share of kept pixels inside a region, by hand and against plain loops."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from auditkit.errors import BadInput
from auditkit.metrics.localisation import box_region, iou, kept_first, pointing_hit, share_inside

REGION = box_region((2, 1, 4, 3), height=5, width=6)  # 2 x 2 pixels
NOWHERE = np.zeros((5, 6), dtype=bool)


def _peak(*places: tuple[int, int]) -> np.ndarray:
    heat = np.full((5, 6), -1.0)
    for y, x in places:
        heat[y, x] = -0.5
    return heat


def test_a_box_covers_the_pixels_whose_centre_it_holds() -> None:
    assert np.argwhere(REGION).tolist() == [[1, 2], [1, 3], [2, 2], [2, 3]]
    assert np.argwhere(box_region((1.6, 0, 3.6, 1), 5, 6)).tolist() == [[0, 2], [0, 3]]
    assert not box_region((9, 9, 12, 12), 5, 6).any()


def test_the_maximum_inside_and_outside() -> None:
    assert pointing_hit(_peak((2, 3)), REGION) == 1
    assert pointing_hit(_peak((2, 4)), REGION) == 0
    assert pointing_hit(_peak((3, 2)), REGION) == 0


def test_tolerance_is_a_distance_between_centres() -> None:
    """(4, 5) lies 2 rows and 2 columns from (2, 3): 2.83 pixels."""
    assert [pointing_hit(_peak((4, 5)), REGION, tolerance_px=t) for t in (0, 2, 2.8, 2.9)] == [0, 0, 0, 1]
    assert [pointing_hit(_peak((2, 5)), REGION, tolerance_px=t) for t in (1.9, 2)] == [0, 1]


def test_ties_score_the_share_inside() -> None:
    tied = _peak((1, 2), (0, 0), (4, 4), (4, 5))
    assert pointing_hit(tied, REGION) == 0.25
    assert pointing_hit(np.ones((5, 6)), REGION) == pytest.approx(4 / 30)  # a constant map scores the area


def test_heats_that_differ_in_the_last_bit_are_no_tie() -> None:
    heat = np.full((5, 6), -1e6)
    heat[0, 0], heat[1, 2] = 1.0, np.nextafter(1.0, 2.0)
    assert pointing_hit(heat, REGION) == 1


def test_an_object_outside_the_picture_has_no_figure() -> None:
    assert math.isnan(pointing_hit(_peak((0, 0)), NOWHERE))
    assert math.isnan(share_inside(np.arange(30).reshape(5, 6), NOWHERE, 3))
    assert math.isnan(share_inside(np.arange(30).reshape(5, 6), REGION, 0))
    assert math.isnan(iou(NOWHERE, NOWHERE))


def test_overlap_by_hand() -> None:
    kept = box_region((3, 1, 5, 3), 5, 6)
    assert iou(kept, REGION) == pytest.approx(2 / 6)
    assert iou(NOWHERE, REGION) == 0


def test_what_is_kept() -> None:
    assert kept_first([[2, 0], [1, 3]], 2).tolist() == [[False, True], [True, False]]


def test_the_share_of_kept_pixels_inside_by_hand() -> None:
    rank = np.arange(30).reshape(5, 6)  # reading order: (1, 2) has rank 8, (1, 3) rank 9, (2, 2) 14, (2, 3) 15
    assert [float(share_inside(rank, REGION, s)) for s in (8, 9, 10, 16, 30)] == [0, 1 / 9, 2 / 10, 4 / 16, 4 / 30]


def test_one_pixel_too_many_is_seen() -> None:
    """`rank <= keep_count` would keep ten pixels for nine."""
    rank = np.arange(30).reshape(5, 6)
    assert share_inside(rank, REGION, 9) != ((rank <= 9) & REGION).sum() / 10


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_stacks_agree_with_plain_loops(seed: int, keep_count: int) -> None:
    chance = np.random.default_rng(seed)
    rank = np.stack([chance.permutation(20).reshape(4, 5) for _ in range(3)])
    region = chance.random((3, 4, 5)) < 0.2
    kept = kept_first(rank, keep_count)
    shares, overlaps = [], []
    for one in range(3):
        inside = both = either = 0
        for place in np.ndindex(4, 5):
            inside += bool(region[one][place]) and int(rank[one][place]) < keep_count
            both += bool(region[one][place] and kept[one][place])
            either += bool(region[one][place] or kept[one][place])
        shares.append(inside / keep_count if region[one].any() else math.nan)
        overlaps.append(both / either)
    assert share_inside(rank, region, keep_count).tolist() == pytest.approx(shares, nan_ok=True)
    assert iou(kept, region).tolist() == pytest.approx(overlaps)


@settings(deadline=None)
@given(
    npst.arrays(np.int64, (5, 6), elements=st.integers(0, 3)),
    npst.arrays(np.bool_, (5, 6)),
    st.sampled_from([0, 1, 1.5, 3]),
)
def test_pointing_agrees_with_plain_loops(heat: np.ndarray, region: np.ndarray, tolerance: float) -> None:
    if not region.any():
        return
    hits = [
        any(math.dist(place, other) <= tolerance for other in np.argwhere(region).tolist())
        for place in np.argwhere(heat == heat.max()).tolist()
    ]
    assert pointing_hit(heat, region, tolerance) == pytest.approx(sum(hits) / len(hits))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pointing_hit(np.full((5, 6), np.nan), REGION), "NaN"),
        (lambda: pointing_hit(np.ones((4, 6)), REGION), "resize one"),
        (lambda: pointing_hit(np.ones((5, 6)), REGION.astype(float)), "boolean mask"),
        (lambda: pointing_hit(np.ones((5, 6)), REGION, tolerance_px=-1), "tolerance"),
        (lambda: kept_first(np.ones((5, 6)), 31), "30 pixels"),
        (lambda: box_region((4, 1, 2, 3), 5, 6), "x0 < x1"),
    ],
)
def test_what_cannot_be_located_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()
