"""Occlusion and RISE against slow loops, and models whose evidence is known."""

from typing import Any

import numpy as np
import pytest

from auditkit.errors import BadInput
from auditkit.methods.blackbox import Occlusion, Rise, occlusion, rise
from auditkit.methods.differences.grids import coin_flips, default_passes, jittered
from auditkit.methods.request import Request
from auditkit.model.signature import to_probabilities
from tests.support import method_requests

SIZE = (16, 20)
METHODS: Any = pytest.mark.parametrize(("method", "options"), [(occlusion, Occlusion()), (rise, Rise(passes=200))])


def _two_patches() -> Any:
    weights = np.stack([method_requests.patch(*SIZE, 2, 3, 4), method_requests.patch(*SIZE, 10, 12, 4), np.zeros(SIZE)])
    return method_requests.linear(weights.astype(np.float32) * 0.3)


def _noisy(request: Request) -> Request:
    """The same request with images that differ from pixel to pixel."""
    pixels = np.random.default_rng(0).integers(0, 256, request.pixels.shape, dtype=np.uint8)
    shown = request.model.preprocess(pixels)
    return Request(request.model, request.ids, pixels, shown, request.labels, request.gray + 0.3, request.pool)


def _probabilities(request: Request, rows: np.ndarray) -> np.ndarray:
    return to_probabilities(request.model.scores(rows.astype(np.float32)), request.model.signature.kind)


@pytest.mark.parametrize(("options", "side", "step"), [
    (Occlusion(), 4, 1), (Occlusion(size=0.3, stride=0.2), 5, 3), (Occlusion(size=1.0, stride=1.0), 16, 16),
])  # fmt: skip
def test_occlusion_is_what_a_slow_loop_gives(options: Occlusion, side: int, step: int) -> None:
    request = _noisy(method_requests.request(_two_patches(), SIZE))
    found = occlusion(request, options)
    tops, lefts = ([*range(0, length - side, step), length - side] for length in SIZE)
    for place, maps in enumerate(found.maps):
        image = request.inputs[place : place + 1]
        whole = _probabilities(request, image)[0]
        lost, covered = np.zeros((3, *SIZE)), np.zeros(SIZE)
        for top in tops:
            for left in lefts:
                hidden = image.copy()
                hidden[..., top : top + side, left : left + side] = request.gray[..., :1, :1]
                drop = whole - _probabilities(request, hidden)[0]
                lost[:, top : top + side, left : left + side] += drop[:, None, None]
                covered[top : top + side, left : left + side] += 1
        for label in request.labels[place]:
            np.testing.assert_allclose(maps[label], lost[label] / covered, atol=1e-6)
    assert found.passes == 2 * (len(tops) * len(lefts) + 1)


def test_rise_is_what_a_slow_loop_gives() -> None:
    request, options = _noisy(method_requests.request(_two_patches(), SIZE)), Rise(passes=60, cells=3, keep=0.4)
    found, spread = rise(request, options), jittered(*SIZE, 3)
    for place, maps in enumerate(found.maps):
        grids = coin_flips(spread, 60, 0.4, request.generator(place, "rise"))
        masks, shown = [], []
        for number in range(60):
            mask = spread.down[grids.down[number]] @ grids.values[number] @ spread.across[grids.across[number]]
            mixture = mask * request.inputs[place] + (1 - mask) * request.gray[0]
            masks.append(mask)
            shown.append(_probabilities(request, mixture[None])[0])
        for label in request.labels[place]:
            probabilities = np.array(shown)[:, label]
            mean = probabilities.mean()
            total = sum((one - mean) * mask for one, mask in zip(probabilities, masks, strict=True))
            np.testing.assert_allclose(maps[label], total / (60 * 0.4) + mean, atol=1e-5)
    assert found.passes == 120


@METHODS
def test_each_label_peaks_where_it_looks(method: Any, options: Any) -> None:
    for maps in method(method_requests.request(_two_patches(), SIZE), options).maps:
        for label, middle in ((0, (4, 5)), (1, (12, 14))):
            field = maps[label]
            assert field.dtype == np.float32
            assert field.shape == SIZE
            assert np.abs(np.subtract(np.unravel_index(field.argmax(), SIZE), middle)).max() <= 3


@METHODS
def test_a_map_is_the_same_alone_and_in_company(method: Any, options: Any) -> None:
    together = method(method_requests.request(_two_patches(), SIZE, ("a", "b", "c")), options)
    alone = method(method_requests.request(_two_patches(), SIZE, ("b",)), options)
    for label in (0, 1):
        np.testing.assert_allclose(alone.maps[0][label], together.maps[1][label], atol=1e-6)


@METHODS
def test_every_pass_is_counted(method: Any, options: Any) -> None:
    ticked: list[int] = []
    found = method(method_requests.request(_two_patches(), SIZE, labels=(2, 0, 1), count=ticked.append), options)
    assert found.passes == sum(ticked)
    assert all(list(maps) == [2, 0, 1] for maps in found.maps)


def test_masks_grow_with_the_picture() -> None:
    assert default_passes(32, 32) == 1024
    assert default_passes(224, 224) == 4000


@pytest.mark.parametrize(("options", "given", "said"), [
    (Occlusion, {"size": 0.0}, "size"), (Occlusion, {"stride": 2.0}, "stride"),
    (Occlusion, {"size": 0.1, "stride": 0.2}, "left out"), (Rise, {"passes": 0}, "passes"),
    (Rise, {"cells": 0}, "cells"), (Rise, {"keep": 1.0}, "keep"),
])  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        options(**given)
