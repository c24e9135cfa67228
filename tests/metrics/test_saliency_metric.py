"""The saliency metric: boxes by hand and against plain loops, the figure, the tuning of delta."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from auditkit.errors import BadInput
from auditkit.metrics.saliency_metric import DELTAS, Box, boxes, component_box, saliency_metric, tune_delta

# Hot in the rows 1-2 and columns 2-4, with one stray hot pixel in the corner.
HOT = np.zeros((6, 8))
HOT[1:3, 2:5] = 4.0
STRAY = HOT.copy()
STRAY[5, 7] = 4.0


def box(heat: npt.ArrayLike, delta: float = 1.0) -> Box:
    (single,) = boxes(heat, [delta])
    return single


def test_the_box_around_the_hot_pixels() -> None:
    assert box(HOT) == Box((2, 1, 5, 3), 6 / 48, degenerate=False)
    assert box(STRAY).corners == (2, 1, 8, 6)
    assert component_box(STRAY).corners == (2, 1, 5, 3)


def test_pixels_that_touch_at_a_corner_are_apart() -> None:
    kept = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0]], dtype=float)
    assert component_box(kept).corners == (2, 1, 4, 3)


def test_delta_moves_the_threshold() -> None:
    """Heats 0, 1, 2, 5 have mean 2: at delta 1 only what is above 2 is kept, at 0 all but the coldest."""
    heat = np.array([[0.0, 1.0, 2.0, 5.0]])
    assert [box(heat, delta).corners for delta in (0, 0.4, 1, 2)] == [
        (1, 0, 4, 1),
        (1, 0, 4, 1),
        (3, 0, 4, 1),
        (3, 0, 4, 1),
    ]
    assert box(heat, 2.6) == Box((0, 0, 4, 1), 1.0, degenerate=True)  # nothing above 5.2


@pytest.mark.parametrize("heat", [np.zeros((4, 4)), np.full((4, 4), 7.0), np.full((4, 4), -0.3)])
def test_a_constant_map_has_the_whole_image_and_is_degenerate(heat: np.ndarray) -> None:
    whole_image = Box((0, 0, 4, 4), 1.0, degenerate=True)
    assert box(heat, 0) == component_box(heat) == whole_image


def test_a_box_is_degenerate_below_five_percent_and_not_at_it() -> None:
    heat = np.zeros((10, 10))
    heat[0, :5] = 1
    assert not box(heat).degenerate
    heat[0, 4] = 0
    assert box(heat).degenerate


def _looped_box(heat: np.ndarray, delta: float) -> tuple[int, int, int, int] | None:
    low, high = float(heat.min()), float(heat.max())
    scaled = [[(float(h) - low) / (high - low) if high > low else 0.0 for h in row] for row in heat]
    mean = sum(map(sum, scaled)) / heat.size
    kept = [(x, y) for y, row in enumerate(scaled) for x, h in enumerate(row) if h > delta * mean]
    if not kept:
        return None
    x, y = zip(*kept, strict=True)
    return min(x), min(y), max(x) + 1, max(y) + 1


def _looped_largest(kept: np.ndarray) -> set[tuple[int, int]]:
    """Flood fill; of equal groups the first met in reading order."""
    left = {(y, x) for y, x in np.argwhere(kept).tolist()}
    groups = []
    for start in sorted(left):
        group, edge = set(), [start] if start in left else []
        while edge:
            y, x = edge.pop()
            if (y, x) in left:
                left.remove((y, x))
                group.add((y, x))
                edge += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
        groups.append(group)
    return max(groups, key=len)


# Small integers, and deltas that put no pixel exactly on the threshold, where rounding would decide.
maps = npst.arrays(np.int64, npst.array_shapes(min_dims=2, max_dims=2, max_side=7), elements=st.integers(-4, 4))


@settings(deadline=None)
@given(maps, st.sampled_from([0.0, 0.4142, 1.1547, 2.3137]))
def test_boxes_agree_with_plain_loops(heat: np.ndarray, delta: float) -> None:
    expected = _looped_box(heat, delta)
    found = box(heat, delta)
    height, width = heat.shape
    assert found.corners == (expected or (0, 0, width, height))
    x0, y0, x1, y1 = found.corners
    assert found.area_fraction == pytest.approx((x1 - x0) * (y1 - y0) / heat.size)
    assert found.degenerate == (expected is None or (x1 - x0) * (y1 - y0) * 20 < heat.size)


@settings(deadline=None)
@given(npst.arrays(np.bool_, npst.array_shapes(min_dims=2, max_dims=2, max_side=6)))
def test_the_largest_component_agrees_with_a_flood_fill(kept: np.ndarray) -> None:
    if kept.all() or not kept.any():
        return
    y, x = zip(*_looped_largest(kept), strict=True)
    corners = (min(x), min(y), max(x) + 1, max(y) + 1)
    assert component_box(kept).corners == corners


def test_the_order_of_heat_and_its_scale_are_all_that_counts() -> None:
    heat = np.random.default_rng(0).normal(size=(9, 9))
    assert box(heat, 1.7).corners == box(3 * heat - 8, 1.7).corners == box(heat * 1e300, 1.7).corners


def test_the_figure() -> None:
    assert saliency_metric(1.0, 1.0) == 0
    assert saliency_metric([0.5, 0.01], [0.25, 1.0]).tolist() == pytest.approx([math.log(2), math.log(0.05)])
    assert saliency_metric(0.01, 0.1) == pytest.approx(-0.693, abs=1e-3)  # an uninformative crop on ten classes


def test_a_label_that_vanishes_from_the_crop() -> None:
    assert saliency_metric([0.5, 0.5], [0.0, 0.5]).tolist() == [math.inf, 0.0]
    assert saliency_metric(0.5, 0.0, prob_floor=1e-6) == pytest.approx(math.log(0.5) + 6 * math.log(10))


def test_the_boxes_of_all_deltas_at_once() -> None:
    y, x = np.mgrid[:15, :12]
    heat = np.exp(-((y - 7) ** 2) / 30 - (x - 4) ** 2 / 9)
    expected = [_looped_box(heat, delta) for delta in DELTAS]
    assert [found.corners for found in boxes(heat)] == [corners or (0, 0, 12, 15) for corners in expected]
    assert len({found.corners for found in boxes(heat)}) > 3


def test_tuning_takes_the_least_mean_and_the_smaller_delta() -> None:
    assert DELTAS[[0, 1, 25]].tolist() == [0, 0.2, 5]
    table = np.ones((26, 3))
    table[7] = table[9] = [0, 2, 0]
    assert tune_delta(table) == 1.4
    table[3] = [-9, -9, math.inf]  # cannot be chosen
    assert tune_delta(table) == 1.4


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (np.full((26, 2), math.inf), "probability floor"),
        (np.full((26, 2), math.nan), "failed crop"),
        (np.zeros((25, 2)), "26 deltas"),
        (np.zeros((26, 0)), "26 deltas"),
    ],
)
def test_a_holdout_without_a_figure_is_refused(table: np.ndarray, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        tune_delta(table)


def test_bad_input_is_refused() -> None:
    with pytest.raises(BadInput, match="NaN or infinite"):
        box([[0.0, math.nan]])
    with pytest.raises(BadInput, match="height x width"):
        box(np.zeros((2, 2, 3)))
    with pytest.raises(BadInput, match="probability"):
        saliency_metric(0.5, math.nan)
    with pytest.raises(BadInput, match="area"):
        saliency_metric(0.0, 0.5)
