"""Interventions that each remove one kind of information from an image and keep the others."""

from collections.abc import Callable

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.exchanges import coarse, corner_region, frame_region, shuffled, surround_region

Probe = Callable[[Array, np.random.Generator], Array]  # of uint8 pixels [height, width, channels]
_GRAY = 128
_SHIFT = 1 / 16  # of the side


def _bytes(values: Array) -> Array:
    return np.clip(np.round(values), 0, 255).astype(np.uint8)


def _without_colour(pixels: Array, _rng: np.random.Generator) -> Array:
    return _bytes(np.broadcast_to(pixels.mean(axis=2, keepdims=True), pixels.shape))


def _blurred(times: float) -> Probe:
    return lambda pixels, _rng: _bytes(coarse(pixels, times))


def _fine_only(pixels: Array, _rng: np.random.Generator) -> Array:
    return _bytes(pixels - coarse(pixels, 2.0) + pixels.mean(axis=(0, 1)))


def _patches(count: int) -> Probe:
    return lambda pixels, rng: shuffled(pixels, rng.permutation(count * count))


def _hidden(region: Callable[[int, int], Array]) -> Probe:
    return lambda pixels, _rng: np.where(region(*pixels.shape[:2])[..., None], np.uint8(_GRAY), pixels)


def _shifted(pixels: Array, rng: np.random.Generator) -> Array:
    rows, columns = (max(1, round(size * _SHIFT)) * int(rng.choice([-1, 1])) for size in pixels.shape[:2])
    padded = np.pad(pixels, ((abs(rows),) * 2, (abs(columns),) * 2, (0, 0)), mode="edge")
    height, width = pixels.shape[:2]
    return padded[abs(rows) + rows :, abs(columns) + columns :][:height, :width]


PROBES: dict[str, Probe] = {
    "colour removed": _without_colour,
    "hues rotated": lambda pixels, _rng: np.roll(pixels, 1, axis=2),
    "fine detail removed": _blurred(1.0),
    "more detail removed": _blurred(2.0),
    "only detail left": _fine_only,
    "patches shuffled, 2 x 2": _patches(2),
    "patches shuffled, 4 x 4": _patches(4),
    "patches shuffled, 8 x 8": _patches(8),
    "border hidden": _hidden(frame_region),
    "corners hidden": _hidden(corner_region),
    "centre hidden": _hidden(lambda height, width: ~surround_region(height, width)),
    "surroundings hidden": _hidden(surround_region),
    "mirrored": lambda pixels, _rng: pixels[:, ::-1],
    "shifted": _shifted,
}
