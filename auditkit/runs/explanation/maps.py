"""Makes maps, some images at a time, into a bundle: in this process or in those of an engine."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import Dataset, FailedImage
from auditkit.errors import BadInput, ModelFailure
from auditkit.methods.request import MethodResult, Pool, Request
from auditkit.metrics.faithfulness import choose_labels
from auditkit.model import preprocessing
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.evaluation.images import UnitImages, load_images, picture_digest, probabilities
from auditkit.runs.executor import InOrder, Tick, UnitProgress, execute
from auditkit.runs.explanation.record import Record
from auditkit.runs.explanation.recorded_bundle import RecordedBundle
from auditkit.runs.explanation.waiting import WaitingMaps


class MapUnit(NamedTuple):
    """Images whose maps are made together."""

    positions: tuple[int, ...]
    present: tuple[tuple[int, ...], ...]  # labels that have a map already, for each image
    labels: tuple[tuple[int, ...], ...] | None = None  # to be explained; None: those that the rule chooses


OnFailure = Callable[[MapUnit], tuple[FailedImage, ...]]  # takes a unit that the model fails on; unreadable images


class MadeMaps(NamedTuple):
    """What was made for a unit."""

    digests: Mapping[str, str]  # of each image that could be read, as the network takes it
    ids: tuple[str, ...]  # of the images that lacked maps
    result: MethodResult | None  # None where there was none
    failed: tuple[FailedImage, ...]


@dataclass(frozen=True)
class Making:
    """Makes the maps of units."""

    model: AnyClassifier
    images: Dataset
    pool: Pool
    seed: int
    labels: str  # the rule that chooses them
    make: Callable[[Request], MethodResult]
    name: str = "maps of images"  # in the log

    def __call__(self, unit: MapUnit, device: AbstractContextManager[None], tick: Tick) -> MadeMaps:
        """The maps that a unit lacks."""
        loaded = self.load(unit.positions)
        with device, UnitProgress(tick, len(loaded.ids)) as progress:
            request = self.request(loaded, unit, progress)
            result = self.make(request) if request.ids else None
        return MadeMaps(_digests(loaded), request.ids, result, loaded.failed)

    def load(self, positions: Sequence[int]) -> UnitImages:
        """The images at these positions."""
        return load_images(positions, self.images, self.model.card, self.model.signature)

    def request(self, loaded: UnitImages, unit: MapUnit, progress: UnitProgress) -> Request:
        """The request for the maps that the images of a unit lack."""
        order = {position: index for index, position in enumerate(unit.positions)}
        if unit.labels is None:
            prob = probabilities(self.model, loaded.inputs) if loaded.ids else np.zeros((0, 1))
            labels = [tuple(chosen.tolist()) for chosen in choose_labels(prob, self.labels)]
        else:
            labels = [unit.labels[order[position]] for position in loaded.positions]
        present = [set(unit.present[order[position]]) for position in loaded.positions]
        missing = [tuple(label for label in chosen if label not in had)
                   for chosen, had in zip(labels, present, strict=True)]  # fmt: skip
        return request_for(self.model, loaded, missing, self.pool, self.seed, progress)


@dataclass(frozen=True)
class MapWriter:
    """Makes maps into a bundle, in this process or in those of the model's engine."""

    making: Making
    bundle: RecordedBundle
    tick: Tick
    infill: str = ""  # digest of what pixels are replaced with

    def unit(self, positions: Sequence[int], labels: tuple[tuple[int, ...], ...] | None = None) -> MapUnit:
        """A unit of these images, without the maps that the bundle has."""
        images = self.making.images.ids
        present = tuple(self._present(images[position]) for position in positions)
        return MapUnit(tuple(positions), present, labels)

    @cached_property
    def _waiting(self) -> WaitingMaps:
        signature = self.making.model.signature
        return WaitingMaps(self.bundle, (signature.height, signature.width))

    def _present(self, image: str) -> tuple[int, ...]:
        return tuple(sorted({*self.bundle.labels_of(image), *self._waiting.labels_of(image)}))

    def _check_same(self, digests: Mapping[str, str]) -> None:
        for record in (self.bundle.record, self._waiting.record):
            problem = _difference(record, digests, self.infill)
            if problem:
                remedy = "give the same images, card and --pool, or use a new bundle"
                raise BadInput(f"{self.bundle.path} has maps that were made from other inputs: {problem}; {remedy}.")

    def write_here(self, unit: MapUnit) -> tuple[FailedImage, ...]:
        """Make maps in this process, which keeps some as soon as they are finished; the images that cannot be read."""
        loaded = self.making.load(unit.positions)
        if loaded.ids:
            self._check_same(_digests(loaded))
            self._waiting.write(loaded.ids)
            with UnitProgress(self.tick, len(loaded.ids)) as progress:
                request = self.making.request(loaded, unit, progress)
                if request.ids:
                    self.bundle.make(request, self.making.make, self.infill)
        return loaded.failed

    def write(self, units: Sequence[MapUnit], on_failure: OnFailure) -> list[FailedImage]:
        """Make the maps of all units; `on_failure` takes those that the model fails on. Images that cannot be read."""
        if self.making.model.engine is None:
            failed = self._write_here(units, on_failure)
        else:
            failed = self._write_by_engine(units, on_failure)
        self._waiting.write_all()
        return failed

    def _write_here(self, units: Sequence[MapUnit], on_failure: OnFailure) -> list[FailedImage]:
        failed = list[FailedImage]()
        for unit in units:
            try:
                failed += self.write_here(unit)
            except ModelFailure:
                failed += on_failure(unit)
            self.tick(len(unit.positions))
        return failed

    def _write_by_engine(self, units: Sequence[MapUnit], on_failure: OnFailure) -> list[FailedImage]:
        failed, model = list[FailedImage](), self.making.model

        def add(to: RecordedBundle | WaitingMaps, made: MadeMaps) -> None:
            if made.result is not None:
                digests = [made.digests[image] for image in made.ids]
                to.add(made.ids, digests, made.result, model, self.infill)

        def keep(unit: MapUnit, made: MadeMaps) -> None:
            self._check_same(made.digests)
            self._waiting.write(made.digests)
            add(self.bundle, made)
            failed.extend(made.failed)
            self.tick(len(unit.positions))

        def set_aside(made: MadeMaps) -> MadeMaps:
            self._check_same(made.digests)
            add(self._waiting, made)
            return made._replace(result=None)

        in_order, pending = InOrder(units, keep, set_aside), units
        while pending:
            left, pending = execute(model, self.making, pending, in_order.keep, self.tick, at_once=1)
            for unit in left:
                failed += on_failure(unit)
                self.tick(len(unit.positions))
                in_order.leave_out(unit)
        return failed


def _digests(images: UnitImages) -> dict[str, str]:
    return {image: picture_digest(shown) for image, shown in zip(images.ids, images.inputs, strict=True)}


def other_inputs(record: Record, images: UnitImages, infill: str) -> str:
    """How these images and this infill differ from those that maps were made with; empty if they do not."""
    return _difference(record, _digests(images), infill)


def _difference(record: Record, digests: Mapping[str, str], infill: str) -> str:
    for image, digest in digests.items():
        if record.images.get(image, digest) != digest:
            return f"image '{image}' has other content here, or was preprocessed differently"
    same = record.infill in ("", infill)
    return "" if same else "pixels were replaced with another gray or other images"


def request_for(
    model: AnyClassifier, images: UnitImages, labels: Sequence[tuple[int, ...]], pool: Pool, seed: int,
    progress: UnitProgress,
) -> Request:  # fmt: skip
    """The request for maps of these labels of each image; images without labels are left out."""
    kept = [position for position, image_labels in enumerate(labels) if image_labels]
    return Request(
        model, tuple(images.ids[position] for position in kept), images.pixels[kept], images.inputs[kept],
        tuple(labels[position] for position in kept), gray(model), pool, seed, progress.count, progress.expect,
    )  # fmt: skip


def gray(model: AnyClassifier) -> Array:
    """A picture [1, ...] of the card's gray, as the network takes it."""
    return preprocessing.flat_picture(model.card, model.signature, model.card.gray)
