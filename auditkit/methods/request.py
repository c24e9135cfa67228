"""What a saliency method is given, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from auditkit.arrays import Array
from auditkit.methods.notes import Note
from auditkit.model.classifier import AnyClassifier


@dataclass(frozen=True)
class Pool:
    """Images that may stand in for hidden pixels, as the network takes them."""

    ids: tuple[str, ...]
    shown: Array  # [images, ...]

    def without(self, image: str) -> Array:
        """Positions of all but that image."""
        return np.array([place for place, name in enumerate(self.ids) if name != image], np.int64)


@dataclass(frozen=True)
class Request:
    """Some images, and the labels for which each of them wants a map."""

    model: AnyClassifier
    ids: tuple[str, ...]
    pixels: Array  # uint8 [images, height, width, channels], what the network sees
    shown: Array  # the same as the network takes it
    labels: tuple[tuple[int, ...], ...]
    gray: Array  # one picture [1, ...] of the card's gray, as the network takes it
    pool: Pool
    seed: int = 0
    tick: Callable[[int], None] = field(default=lambda _passes: None)  # told of every so many images asked about


@dataclass(frozen=True)
class Found:
    """A map for every label asked for, and what it took."""

    maps: tuple[dict[int, Array], ...]  # for each image, float32 [height, width] by label; higher is more important
    passes: int = 0  # images that the model was asked about
    gradients: int = 0  # images that it was differentiated on
    notes: tuple[Note, ...] = ()
