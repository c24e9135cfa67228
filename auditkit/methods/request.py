"""What a saliency method receives, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.methods.notes import Note
from auditkit.model.classifier import AnyClassifier


@dataclass(frozen=True)
class Pool:
    """Images that may replace hidden pixels, as the network takes them."""

    ids: tuple[str, ...]
    shown: Array  # [images, ...]

    def others(self, image: str, shown: Array) -> Array:
        """Positions in the pool of all pictures but the image itself, under its own name or another."""
        candidates = [position for position, name in enumerate(self.ids) if name != image]
        positions = [position for position in candidates if not np.array_equal(self.shown[position], shown)]
        if not positions:
            raise BadInput(
                f"the pool has no picture but that of '{image}' itself; add images or a --pool, or use gray as infill."
            )
        return np.array(positions, np.int64)


@dataclass(frozen=True)
class Request:
    """Some images, and the labels of each of them to explain."""

    model: AnyClassifier
    ids: tuple[str, ...]
    pixels: Array  # uint8 [images, height, width, channels], what the network sees
    shown: Array  # the same as the network takes it
    labels: tuple[tuple[int, ...], ...]
    gray: Array  # one picture [1, ...] of the card's gray, as the network takes it
    pool: Pool
    seed: int = 0
    tick: Callable[[int], None] = field(default=lambda _passes: None)  # called with the number of images just run

    def pairs(self) -> list[tuple[int, int]]:
        """Every (position of the image, label) that needs a map."""
        classes, pairs = self.model.signature.classes, []
        for image, labels in enumerate(self.labels):
            pairs += [(image, label) for label in labels]
        for _, label in pairs:
            if not 0 <= label < classes:
                raise BadInput(
                    f"label {label} does not exist: the model has {classes} labels, from 0 to {classes - 1}."
                )
        return pairs

    def others(self, position: int) -> Array:
        """Positions in the pool of the pictures that may replace hidden pixels of an image."""
        return self.pool.others(self.ids[position], self.shown[position])


@dataclass(frozen=True)
class Found:
    """A map for every label of a request, and its cost."""

    maps: tuple[dict[int, Array], ...]  # for each image, float32 [height, width] by label; higher is more important
    passes: int = 0  # images that the model was run on
    gradients: int = 0  # images that it was differentiated on
    notes: tuple[Note, ...] = ()
