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
    """Images that may replace hidden pixels."""

    ids: tuple[str, ...]
    inputs: Array  # [images, ...], as the network takes them


@dataclass(frozen=True)
class Request:
    """Some images, and the labels of each of them to explain."""

    model: AnyClassifier
    ids: tuple[str, ...]
    pixels: Array  # uint8 [images, height, width, channels], what the network sees
    inputs: Array  # the same as the network takes it
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
        bad = [label for _, label in pairs if not 0 <= label < classes]
        if bad:
            raise BadInput(f"label {bad[0]} does not exist: the model has {classes} labels, from 0 to {classes - 1}.")
        return pairs

    def infills(self, position: int) -> Array:
        """Positions in the pool of all pictures but the image itself, under its own name or another."""
        image, candidates = self.ids[position], enumerate(zip(self.pool.ids, self.pool.inputs, strict=True))
        same = self.inputs[position]
        infills = [index for index, (name, other) in candidates if name != image and not np.array_equal(other, same)]
        if not infills:
            raise BadInput(
                f"the pool has no picture but that of '{image}' itself; add images or a --pool, or use gray as infill."
            )
        return np.array(infills, np.int64)

    def empty_maps(self) -> tuple[dict[int, Array], ...]:
        """For each image, a dict for its maps by label."""
        return tuple({} for _ in self.ids)


@dataclass(frozen=True)
class MethodResult:
    """A map for every label of a request, and its cost."""

    maps: tuple[dict[int, Array], ...]  # for each image, float32 [height, width] by label; higher is more important
    passes: int = 0  # images that the model was run on
    gradients: int = 0  # images that it was differentiated on
    notes: tuple[Note, ...] = ()
