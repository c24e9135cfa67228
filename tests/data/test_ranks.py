"""Ranks: against a slow sort written another way, and by hand on ties."""

import numpy as np
import pytest

from auditkit.data.ranks import Order, map_seed, ranks
from auditkit.errors import BadInput

TIED = np.array([[2.0, 5.0, 2.0], [5.0, -1.0, 2.0]], np.float32)


def _slowly(values: np.ndarray, sign: int) -> np.ndarray:
    order = sorted(range(values.size), key=lambda index: (-float(values.flat[index]), sign * index))
    found = np.empty(values.size, np.int32)
    found[order] = np.arange(values.size)
    return found.reshape(values.shape)


def test_ties_by_the_named_rule() -> None:
    assert ranks(TIED, "first").tolist() == [[2, 0, 3], [1, 5, 4]]
    assert ranks(TIED, "last").tolist() == [[4, 1, 3], [0, 5, 2]]


@pytest.mark.parametrize("levels", [2, 7, 1000])
def test_against_a_plain_sort(levels: int) -> None:
    rng = np.random.default_rng(levels)
    values = (rng.integers(-levels, levels, (17, 23)) / 7).astype(np.float32)
    assert (ranks(values, "first") == _slowly(values, 1)).all()
    assert (ranks(values, "last") == _slowly(values, -1)).all()


def test_random_shuffles_inside_ties_only() -> None:
    """Every order of three tied pixels comes up equally often, and no pixel leaves its group."""
    seen = [tuple(ranks(TIED, "random", seed)[[0, 0, 1], [0, 2, 2]]) for seed in range(1200)]
    assert all(sorted(order) == [2, 3, 4] for order in seen)
    counts = [seen.count(order) for order in set(seen)]
    assert len(counts) == 6
    assert min(counts) > 140


def test_random_without_ties_is_the_only_order() -> None:
    values = np.random.default_rng(1).standard_normal((30, 30)).astype(np.float32)
    assert (ranks(values, "random", 5) == _slowly(values, 1)).all()


def test_a_seed_gives_the_same_ranks_again() -> None:
    values = np.random.default_rng(0).integers(0, 4, (8, 8)).astype(np.float32)
    order = ranks(values, "random", 9)
    assert (order.dtype, order.shape) == (np.int32, values.shape)
    assert (order == ranks(values, "random", 9)).all()
    assert (order != ranks(values, "random", 8)).any()


def test_zero_and_minus_zero_tie() -> None:
    values = np.array([[0.0, -0.0], [-0.0, 0.0]], np.float32)
    assert ranks(values, "first").tolist() == [[0, 1], [2, 3]]
    assert Order(values).tied == 1.0


def test_extremes_keep_their_order() -> None:
    values = np.array([[3.4e38, 1e-45, 0.0], [-1e-45, -3.4e38, 1.0]], np.float32)
    assert ranks(values, "first").tolist() == [[0, 2, 3], [4, 5, 1]]


def test_tied_fraction_and_groups() -> None:
    assert Order(TIED).tied == pytest.approx(5 / 6)
    assert Order(TIED).groups.tolist() == [0, 2, 5, 6]
    assert Order(np.arange(6.0).reshape(2, 3)).tied == 0.0


def test_maps_that_order_alike_have_one_digest() -> None:
    values = np.random.default_rng(2).integers(0, 9, (12, 12)).astype(np.float32)
    assert Order(values).digest() == Order(3 * values - 7).digest() == Order(np.exp(values)).digest()
    split = values.copy()
    split.flat[int(np.flatnonzero(values == 4)[0])] += 0.5  # first in its tie before, and first now: the tie is smaller
    assert (ranks(values, "first") == ranks(split, "first")).all()
    assert Order(values).digest() != Order(split).digest()
    assert Order(values).digest() != Order(-values).digest()


def test_seeds_differ_by_image_label_and_seed() -> None:
    seeds = {map_seed(*key) for key in [(0, "a", 1), (0, "a", 2), (0, "b", 1), (1, "a", 1)]}
    assert len(seeds) == 4
    # printf '0\0a\0001' | b2sum -l 64; stored results depend on it
    assert map_seed(0, "a", 1).to_bytes(8, "little").hex() == "bdc99f29f5f3a911"


def test_what_has_no_ranks() -> None:
    with pytest.raises(BadInput, match="NaN"):
        ranks(np.array([[np.nan, 1.0]]))
    with pytest.raises(BadInput, match="'middle' is none of"):
        ranks(TIED, "middle")  # type: ignore[arg-type]
