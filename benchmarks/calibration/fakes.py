"""Heatmaps that a verdict should see through: made from honest ones, or without looking at the model at all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import ndimage

from auditkit.arrays import Array
from auditkit.methods import controls

LabelMaps = Mapping[int, Array]  # of one image by label, the predicted one first
NOISE_LEVELS = (0.01, 0.03, 0.1, 0.3, 1.0)  # in shares of the map's range
STEP = 1 / 16  # of the side: how far maps are moved from label to label
BAYER_SIDE = 8


@dataclass(frozen=True)
class Case:
    """One image of a study."""

    pixels: Array  # uint8 [height, width, channels]
    maps: LabelMaps
    elsewhere: LabelMaps  # the maps of another image
    rng: np.random.Generator

    @property
    def first(self) -> Array:
        """The map of the predicted label."""
        return next(iter(self.maps.values()))

    @property
    def side(self) -> int:
        """The shorter side in pixels."""
        return min(self.first.shape)

    def noise(self) -> Array:
        """Standard normal numbers in the shape of a map."""
        return self.rng.standard_normal(self.first.shape)


Fake = Callable[[Case], LabelMaps]


def _for_each(make: Callable[[Case, int], Array]) -> Fake:
    """A fake whose maps depend on the number of the label alone."""
    return lambda case: {label: make(case, number) for number, label in enumerate(case.maps)}


def _noisy(case: Case, _number: int, level: float) -> Array:
    return case.first + level * np.ptp(case.first) * case.noise()


def _moved(case: Case, number: int) -> Array:
    return moved(case.first, round(STEP * case.side) * number)


def _smoothed(case: Case, number: int) -> Array:
    return np.asarray(ndimage.gaussian_filter(case.first, number * case.side / 64)) if number else case.first


def _scaled(case: Case, number: int) -> Array:
    return np.asarray((1 + number) * case.first)


def _right_for_prediction(case: Case, number: int) -> Array:
    return case.noise() if number else case.first


def _next_label(case: Case) -> LabelMaps:
    values = list(case.maps.values())
    return dict(zip(case.maps, values[1:] + values[:1], strict=True))


def _another_images(case: Case) -> LabelMaps:
    return dict(zip(case.maps, case.elsewhere.values(), strict=False))


def _gaussian(case: Case, _number: int) -> Array:
    """A bump anywhere."""
    grids = np.indices(case.first.shape)
    centre = case.rng.uniform(0.2, 0.8, 2) * case.first.shape
    squared = sum((grid - middle) ** 2 for grid, middle in zip(grids, centre, strict=True))
    return np.asarray(np.exp(-squared / (2 * (case.side / 5) ** 2)))


def _ellipse(case: Case, _number: int) -> Array:
    """A turned ellipse anywhere, falling off from its centre."""
    down, across = np.indices(case.first.shape) - (case.rng.uniform(0.2, 0.8, 2) * case.first.shape)[:, None, None]
    angle, (long, short) = case.rng.uniform(0, np.pi), case.rng.uniform(0.15, 0.45, 2) * case.side
    along = np.cos(angle) * down + np.sin(angle) * across
    beside = np.cos(angle) * across - np.sin(angle) * down
    return np.asarray(-np.hypot(along / long, beside / short))


def _blobs(case: Case, _number: int) -> Array:
    return np.asarray(ndimage.gaussian_filter(case.noise(), case.side / 8))


def bayer(side: int) -> Array:
    """The order of a Bayer matrix, which spreads pixels as evenly as can be."""
    order = np.zeros((1, 1))
    while len(order) < side:
        order = np.block([[4 * order, 4 * order + 2], [4 * order + 3, 4 * order + 1]])
    return order


def _bayer(case: Case, _number: int) -> Array:
    order = -bayer(BAYER_SIDE)
    height, width = case.first.shape
    return np.tile(order, (-(-height // BAYER_SIDE), -(-width // BAYER_SIDE)))[:height, :width]


def _control(case: Case, _number: int, name: str) -> Array:
    return controls.CONTROLS[name][0](case.pixels, int(case.rng.integers(2**31)))


FAKES: dict[str, Fake] = {
    "one map": _for_each(lambda case, _number: case.first),
    **{f"one map, noise {level:g}": _for_each(partial(_noisy, level=level)) for level in NOISE_LEVELS},
    "one map, moved by label": _for_each(_moved),
    "one map, smoothed by label": _for_each(_smoothed),
    "one map, scaled by label": _for_each(_scaled),
    "right for the prediction, noise else": _for_each(_right_for_prediction),
    "maps of other labels": _next_label,
    "inverted": lambda case: {label: -values for label, values in case.maps.items()},
    "another image's": _another_images,
}
BLIND: dict[str, Fake] = {
    "edges": _for_each(partial(_control, name="edges")),
    "blurred edges": _for_each(partial(_control, name="blurred-edges")),
    "a Gaussian anywhere": _for_each(_gaussian),
    "blobs": _for_each(_blobs),
    "an ellipse anywhere": _for_each(_ellipse),
    "Bayer order": _for_each(_bayer),
}  # that do not look at the model


def moved(values: Array, pixels: int) -> Array:
    """A map moved down and to the right, its borders repeated."""
    return np.asarray(ndimage.shift(values, (pixels, pixels), order=0, mode="nearest"))


def _zoomed(values: Array) -> Array:
    """A map of the centre, as if its image had been cropped."""
    height, width = values.shape
    top, left = height // 16, width // 16
    inner = values[top : height - top, left : width - left]
    zoom = (height / inner.shape[0], width / inner.shape[1])
    return np.asarray(ndimage.zoom(inner, zoom, order=1, mode="nearest", grid_mode=True))


def _levels(values: Array, count: int) -> Array:
    """A map in so many levels of equal width."""
    low, high = float(values.min()), float(values.max())
    return np.asarray(np.floor((values - low) / max(high - low, 1e-12) * count).clip(0, count - 1))


def _tied(values: Array) -> Array:
    """A map whose lower 60 % are the same."""
    return np.maximum(values, np.quantile(values, 0.6))


DAMAGES: dict[str, Callable[[Array], Array]] = {
    "moved by 2 pixels": lambda values: moved(values, 2),
    "moved by 5 pixels": lambda values: moved(values, 5),
    "flipped left to right": lambda values: values[:, ::-1],
    "of a closer crop": _zoomed,
    "in 8 levels": lambda values: _levels(values, 8),
    "binary": lambda values: (values >= np.quantile(values, 0.7)).astype(np.float32),
    "tied below the top 40 %": _tied,
}  # of every map in the same way


def rivals_inverted(case: Case) -> LabelMaps:
    """For each label what the map of its strongest rival leaves out."""
    labels = list(case.maps)
    return {label: -case.maps[labels[1] if number == 0 else labels[0]] for number, label in enumerate(labels)}


def damaged(case: Case, damage: Callable[[Array], Array]) -> LabelMaps:
    """The maps of an image, all damaged in the same way."""
    return {label: damage(values) for label, values in case.maps.items()}
