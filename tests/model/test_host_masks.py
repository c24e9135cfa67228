"""Masked images made on the host equal those made in the plainest way, whatever order the rows come in."""

from typing import Any

import numpy as np
import pytest

from auditkit.model.composer import Composer
from auditkit.runs.evaluation.runtime_check import composed

HEIGHT, WIDTH = 7, 11
PIXELS = HEIGHT * WIDTH


def banks(layout: str, dtype: Any = np.float32, channels: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    shape = (channels, HEIGHT, WIDTH) if layout == "NCHW" else (HEIGHT, WIDTH, channels)
    ranks = np.stack([rng.permutation(PIXELS).reshape(HEIGHT, WIDTH) for _ in range(4)])
    return rng.integers(0, 256, (6, *shape)).astype(dtype), ranks


def curves(counts: list[int]) -> Any:
    """Insertion over one infill, deletion, and insertion over two infills in turns."""
    rows = [(0, 5, 1, keep) for keep in counts] + [(5, 0, 1, keep) for keep in counts]
    return np.array(rows + [(1, bottom, 2, keep) for keep in counts for bottom in (4, 5)], np.int32)


@pytest.mark.parametrize("reuses_memory", [False, True])
@pytest.mark.parametrize("batch", [1, 3, 1000])
@pytest.mark.parametrize("order", ["up", "down", "any"])
@pytest.mark.parametrize(("layout", "dtype", "channels"), [
    ("NCHW", np.float32, 3), ("NHWC", np.float32, 3), ("NCHW", np.uint8, 1), ("NHWC", np.float16, 1),
])  # fmt: skip
def test_curves(layout: str, dtype: Any, channels: int, order: str, batch: int, reuses_memory: bool) -> None:
    pictures, ranks = banks(layout, dtype, channels)
    counts = list(range(PIXELS + 1))
    if order == "any":
        np.random.default_rng(1).shuffle(counts)
    rows = curves(counts[::-1] if order == "down" else counts)
    compose = Composer(pictures, ranks, layout, reuses_memory=reuses_memory)
    found = np.concatenate([compose(rows[start : start + batch]).copy() for start in range(0, len(rows), batch)])
    assert found.dtype == pictures.dtype
    assert np.array_equal(found, composed(rows, pictures, ranks, layout))


@pytest.mark.parametrize("reuses_memory", [False, True])
def test_rows_by_chance(reuses_memory: bool) -> None:
    pictures, ranks = banks("NCHW")
    rng = np.random.default_rng(2)
    compose = Composer(pictures, ranks, "NCHW", reuses_memory=reuses_memory)
    for _ in range(80):
        count = int(rng.integers(1, 12))
        rows = np.stack([rng.integers(0, most, count) for most in (3, 3, 2, PIXELS + 1)], axis=1).astype(np.int32)
        assert np.array_equal(compose(rows), composed(rows, pictures, ranks, "NCHW"))


def test_images_are_overwritten_only_where_memory_is_reused() -> None:
    pictures, ranks = banks("NCHW")
    rows = curves(list(range(0, PIXELS, 5)))
    for reuses_memory in (False, True):
        compose = Composer(pictures, ranks, "NCHW", reuses_memory=reuses_memory)
        first = compose(rows[:6])
        copy, second = first.copy(), compose(rows[6:12])
        assert np.shares_memory(first, second) == reuses_memory
        assert np.array_equal(first, copy) != reuses_memory
    assert np.array_equal(pictures, banks("NCHW")[0])


def test_keeping_more_than_there_is_keeps_all() -> None:
    pictures, ranks = banks("NCHW")
    rows = np.array([[0, 1, 0, PIXELS + 9], [0, 1, 0, PIXELS - 1], [2, 1, 0, -3]], np.int32)
    assert np.array_equal(Composer(pictures, ranks, "NCHW")(rows), composed(rows, pictures, ranks, "NCHW"))
