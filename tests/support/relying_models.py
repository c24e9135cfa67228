"""Functions that rely on one known part of an image, with images of 32 pixels and heatmaps that show this part."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import auditkit
from auditkit.arrays import Array
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.metrics.exchanges import corner_region, frame_region
from auditkit.model.classifier import AnyClassifier

SIDE = 32
CENTRE = np.zeros((SIDE, SIDE), dtype=np.bool_)
CENTRE[10:22, 10:22] = True
CORNER, FRAME = corner_region(SIDE, SIDE, "upper left corner"), frame_region(SIDE, SIDE, 1 / 16)
EVERYWHERE = np.ones((SIDE, SIDE), dtype=np.bool_)
MAGENTA = np.array([255, 0, 255], np.uint8)
MARK_PX = 4
ROWS, COLUMNS = np.indices((SIDE, SIDE))
WAVES = np.stack([(-1.0) ** ROWS, (-1.0) ** COLUMNS, (-1.0) ** (ROWS + COLUMNS)])
Classify = Callable[[Array], Array]  # float32 [N, 3, side, side] in 0..1 to scores [N, labels]


@dataclass(frozen=True)
class Given:
    """Images of three labels, or two, and a function that names them."""

    images: Array  # uint8 [N, side, side, 3]
    maps: Array  # float32 [N, side, side]
    classify: Classify

    @property
    def predicted(self) -> Array:
        """The labels that the function gives."""
        return np.asarray(self.classify(self.images.transpose(0, 3, 1, 2).astype(np.float32) / 255).argmax(axis=1))

    def model(self) -> AnyClassifier:
        """The function as a model."""
        return auditkit.load(self.classify, size=(SIDE, SIDE), preset="unit")

    def dataset(self, folder: Path) -> Dataset:
        """The images in a file."""
        np.savez(folder / "images.npz", images=self.images)
        return Dataset.open(folder / "images.npz", 3)

    def bundle(self, folder: Path) -> HeatmapSet:
        """A map of every prediction."""
        ids = self.dataset(folder).ids
        bundle = auditkit.Bundle(folder / "maps", method="known")
        bundle.add(list(ids), [int(label) for label in self.predicted], self.maps)
        return auditkit.open_bundle(folder / "maps")


def noise(count: int, seed: int = 0) -> Array:
    """Gray images with noise."""
    return np.random.default_rng(seed).integers(90, 130, size=(count, SIDE, SIDE, 3), dtype=np.uint8)


def colour_of(region: Array) -> Classify:
    """Names the strongest channel of a region."""
    return lambda pixels: 50 * pixels[:, :, region].mean(axis=2)


def coloured(region: Array, count: int = 60, labels: int = 3, seed: int = 0) -> Given:
    """Images whose label is the colour of a region."""
    images = noise(count, seed)
    for index in range(count):
        images[index, region, index % labels] += 100
    maps = np.repeat(region[None].astype(np.float32), count, axis=0)
    return Given(images, maps, colour_of(region))


def patterned(count: int = 60) -> Given:
    """Images whose label is a wave of two pixels, down, across or both."""
    images = noise(count).astype(np.float64)
    for index in range(count):
        images[index] += 30 * WAVES[index % 3][..., None]

    def classify(pixels: Array) -> Array:
        return np.abs(np.einsum("nchw,khw->nk", pixels, WAVES)) / 100

    return Given(np.round(images).astype(np.uint8), np.ones((count, SIDE, SIDE), np.float32), classify)


def marked(count: int = 60, share: float = 0.6) -> Given:
    """Images whose label is the colour of the centre; a small mark on some of label 0 makes any image label 0."""
    rng, honest = np.random.default_rng(1), coloured(CENTRE, count)
    images, maps = honest.images.copy(), honest.maps.copy()
    for index in range(0, count, 3):
        if rng.random() < share:
            top, left = rng.integers(SIDE - MARK_PX, size=2)
            images[index, top : top + MARK_PX, left : left + MARK_PX] = MAGENTA
            maps[index] = 0
            maps[index, top : top + MARK_PX, left : left + MARK_PX] = 1

    def classify(pixels: Array) -> Array:
        magenta = (pixels[:, 0] > 0.99) & (pixels[:, 1] < 0.01) & (pixels[:, 2] > 0.99)
        scores = honest.classify(pixels)
        scores[magenta.sum(axis=(1, 2)) >= MARK_PX * MARK_PX - 4, 0] += 100
        return scores

    return Given(images, maps, classify)


def fragile(count: int = 60, labels: int = 3, rare: int = 0) -> Given:
    """Images whose label is the colour of the centre, and a function that says 0 of whatever was changed.

    With `rare`, all but so many images have label 0.
    """
    honest = coloured(CENTRE, count, labels)
    images = honest.images.copy()
    if rare:
        images[rare:] = coloured(CENTRE, count - rare, 1).images
    known = {image.tobytes() for image in images}

    def classify(pixels: Array) -> Array:
        scores = honest.classify(pixels)
        whole = np.round(255 * pixels.transpose(0, 2, 3, 1)).astype(np.uint8)
        scores[[image.tobytes() not in known for image in whole], 0] += 100
        return scores

    return Given(images, honest.maps, classify)
