"""Requests about classifiers that can be solved by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np

import auditkit
from auditkit.arrays import Array
from auditkit.methods.request import Pool, Request
from auditkit.model.preprocessing import flat_picture


def linear(weights: Array) -> Callable[[Array], Array]:
    """Logits [N, labels] that weigh the pixels' mean over channels by [labels, height, width]."""
    return lambda rows: np.einsum("nchw,lhw->nl", rows, weights) / 3


def patch(height: int, width: int, top: int, left: int, side: int) -> Array:
    """Ones in a square, zeros elsewhere."""
    found = np.zeros((height, width), np.float32)
    found[top : top + side, left : left + side] = 1
    return found


def request(
    function: Any, size: tuple[int, int], ids: tuple[str, ...] = ("a", "b"), labels: tuple[int, ...] = (0, 1),
    seed: int = 0, count: Callable[[int], None] = lambda _: None,
) -> Request:  # fmt: skip
    """White images (nothing but their names tell them apart) over a pool of black ones."""
    model = function if hasattr(function, "signature") else auditkit.load(function, size=size, preset="unit")
    pixels = np.full((len(ids), *size, 3), 255, np.uint8)
    black = model.preprocess(np.zeros((4, *size, 3), np.uint8))
    gray = flat_picture(model.card, model.signature, (0.0, 0.0, 0.0))
    return Request(
        model, ids, pixels, model.preprocess(pixels), (labels,) * len(ids), gray,
        Pool(("p0", "p1", "p2", "p3"), black), seed, count,
    )  # fmt: skip
