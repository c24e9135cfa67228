"""What a saliency method receives, and what it returns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput
from auditkit.graph.upsampling import Upsampling
from auditkit.methods.notes import Note, merged
from auditkit.model.classifier import AnyClassifier
from auditkit.model.preprocessing import blurred, gaussian_blur


@dataclass(frozen=True)
class Pool:
    """Images that may replace hidden pixels."""

    ids: tuple[str, ...]
    inputs: Array  # [images, ...], as the network takes them


class Checkpoint(Protocol):
    """Arrays that outlive an interrupted run."""

    def load(self, names: Sequence[str], /) -> dict[str, Array]:
        """Those of the named arrays that were saved last; none at first."""

    def save(self, arrays: Mapping[str, Array]) -> None:
        """Replace the arrays that were saved before."""


class _NoCheckpoint:
    """Nothing outlives the run."""

    def load(self, _names: Sequence[str], /) -> dict[str, Array]:
        return {}

    def save(self, arrays: Mapping[str, Array]) -> None:
        pass


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
    expect: Callable[[int], None] = field(default=lambda _passes: None)  # called with how many there will be, at most
    keep: Callable[["MethodResult"], None] = field(default=lambda _part: None)  # see `in_parts`
    checkpoint: Checkpoint = field(default_factory=_NoCheckpoint)

    def pairs(self) -> list[tuple[int, int]]:
        """Every (position of the image, label) that needs a map."""
        classes, pairs = self.model.signature.classes, []
        for image, labels in enumerate(self.labels):
            pairs += [(image, label) for label in labels]
        bad = [label for _, label in pairs if not 0 <= label < classes]
        if bad:
            raise BadInput(f"label {bad[0]} does not exist: the model has {classes} labels, from 0 to {classes - 1}.")
        return pairs

    def generator(self, position: int, purpose: str) -> np.random.Generator:
        """A random generator for one image, independent of the other images of the request."""
        return np.random.default_rng([map_seed(self.seed, self.ids[position], -1), *purpose.encode()])

    def in_parts(self, parts: "Iterable[MethodResult]") -> "MethodResult":
        """The parts of a result as one; each is kept as soon as it is there, with every label of its images."""
        maps, passes, gradients, notes = self.empty_maps(), 0, 0, list[Note]()
        coarse: Coarse | None = None
        for part in parts:
            self.keep(part)
            _update(maps, part.maps)
            if part.coarse is not None:
                coarse = coarse or Coarse(part.coarse.upsampling, self.empty_maps())
                _update(coarse.maps, part.coarse.maps)
            passes, gradients, notes = passes + part.passes, gradients + part.gradients, [*notes, *part.notes]
        return MethodResult(maps, passes, gradients, merged(notes), coarse)

    def empty_maps(self) -> "Maps":
        """For each image, a dict for its maps by label."""
        return tuple({} for _ in self.ids)


Maps = tuple[dict[int, Array], ...]  # for each image, float32 [height, width] by label


def _update(maps: Maps, more: Maps) -> None:
    """Add maps of the same images."""
    for all_maps, some_maps in zip(maps, more, strict=True):
        all_maps.update(some_maps)


@dataclass(frozen=True)
class Coarse:
    """Maps at the resolution that they were learned at, and what makes them those of all pixels."""

    upsampling: Upsampling
    maps: Maps


@dataclass(frozen=True)
class MethodResult:
    """A map for every label of a request, and its cost."""

    maps: Maps  # higher is more important
    passes: int = 0  # images that the model was run on
    gradients: int = 0  # images that it was differentiated on
    notes: tuple[Note, ...] = ()
    coarse: Coarse | None = None  # the same maps, smaller, if they were learned so


@dataclass(frozen=True)
class Bank:
    """Pictures as the network takes them: the images first, then their infills."""

    pictures: Array
    infills: list[Array]  # for each image, the positions of its infills


def bank(request: Request, infill: str) -> Bank:
    """The images of a request, with the pictures of an infill: distractors, gray or blur."""
    count = len(request.ids)
    if infill == "gray":
        return Bank(np.concatenate([request.inputs, request.gray]), [np.array([count])] * count)
    if infill == "blur":
        return _over_own(request.inputs, blurred(request.inputs, request.model.signature))
    positions = [count + _others(request, position) for position in range(count)]
    return Bank(np.concatenate([request.inputs, request.pool.inputs]), positions)


def _others(request: Request, position: int) -> Array:
    """Positions in the pool of all pictures but the image itself, under its own name or another."""
    image, pixels = request.ids[position], request.inputs[position]
    pool = zip(request.pool.ids, request.pool.inputs, strict=True)
    others = np.flatnonzero([name != image and not np.array_equal(inputs, pixels) for name, inputs in pool])
    if not len(others):
        raise BadInput(f"the pool has no picture but that of '{image}' itself; add a --pool, or use gray as infill.")
    return others


def over_blur(request: Request, sigma: float) -> Bank:
    """Each image over its own blur, in float32; sigma is in pixels up to 224 a side, above that in proportion."""
    signature = request.model.signature
    scale = max(min(signature.height, signature.width) / 224, 1)
    infills = gaussian_blur(request.inputs, signature, sigma * scale)
    return _over_own(request.inputs.astype(np.float32), infills.astype(np.float32))


def _over_own(images: Array, infills: Array) -> Bank:
    """Each image over the infill at its own position."""
    count = len(images)
    return Bank(np.concatenate([images, infills]), [np.array([count + position]) for position in range(count)])
