"""Maps that are finished before those of earlier images wait on the disk, where a killed run does not lose them.

The maps of a bundle are in the order of the images, however many workers make them. Until it is their turn, the maps of
each unit are a bundle of their own in the folder `waiting`.
"""

import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from auditkit.data.atomic_write import write_errors
from auditkit.errors import AuditError, BadInput, RuntimeFailure
from auditkit.methods.request import MethodResult
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.explanation.record import Record, RecordedBundle
from auditkit.runs.explanation.shard import MapShard

WAITING = "waiting"  # the folder in the bundle


class WaitingMaps:
    """The maps that wait for their turn, also those that a killed run has left."""

    def __init__(self, bundle: RecordedBundle) -> None:
        """They join this bundle, which is open."""
        self._bundle, self._folder = bundle, bundle.path / WAITING
        units = waiting_units(bundle.path)
        self._units = {unit.maps.path.name: unit for unit in units if bundle.takes(unit.maps.header)}
        self._number = 0  # of the last unit that was added

    @property
    def records(self) -> list[Record]:
        """What is known of the units."""
        return [unit.record for unit in self._units.values()]

    def labels_of(self, image: str) -> set[int]:
        """The labels of an image's maps."""
        return set(chain.from_iterable(unit.maps.labels.get(image, ()) for unit in self._units.values()))

    def add(
        self, images: Sequence[str], digests: Sequence[str], result: MethodResult, model: AnyClassifier, infill: str
    ) -> None:
        """Let the maps of a unit wait."""
        self._bundle.create()
        path = self._next_path()
        with self._bundle.like(path) as unit:
            unit.add(images, digests, self._bundle.fitting(result), model, infill)
        self._units[path.name] = MapShard.read(path)

    def _next_path(self) -> Path:
        """A folder that does not exist."""
        while True:
            self._number += 1
            path = self._folder / f"{self._number:06d}"
            if not path.exists():
                return path

    def write(self, images: Collection[str]) -> None:
        """Move the maps of all units that have one of these images to the bundle."""
        for name in [name for name, unit in self._units.items() if not unit.maps.labels.keys().isdisjoint(images)]:
            self._write(name)

    def write_all(self) -> None:
        """Move all maps to the bundle, also those of images that are not explained any more."""
        for name in list(self._units):
            self._write(name)
        _remove(self._folder)

    def _write(self, name: str) -> None:
        problem = self._units[name].add_to(self._bundle)
        if problem:
            raise RuntimeFailure(f"{problem}; run the command again.")
        _remove(self._folder / name)
        del self._units[name]


def waiting_units(bundle: Path) -> list[MapShard]:
    """The units that wait in a bundle, without those whose maps cannot be used and are made again."""
    folder, units = bundle / WAITING, list[MapShard]()
    if folder.is_symlink():
        raise BadInput(f"{folder} is a link to another place; delete it.")
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with suppress(AuditError):
            unit = MapShard.read(path)
            unit.check()
            units.append(unit)
    return units


def _remove(folder: Path) -> None:
    with write_errors(folder):
        if folder.exists():
            shutil.rmtree(folder)
