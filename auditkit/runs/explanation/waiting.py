"""Maps that are finished before those of earlier images wait on the disk, where a killed run does not lose them.

The maps of a bundle are in the order of the images, however many workers make them. Until it is their turn, the maps of
each unit are a bundle of their own in the folder `waiting`.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path

from auditkit.data.atomic_write import remove_folder, write_errors
from auditkit.data.bundle_files import Header
from auditkit.errors import AuditError, BadInput, RuntimeFailure
from auditkit.methods.request import MethodResult
from auditkit.model.classifier import AnyClassifier
from auditkit.regular_files import reason
from auditkit.runs.explanation.record import Record
from auditkit.runs.explanation.recorded_bundle import RecordedBundle
from auditkit.runs.explanation.shard import MapShard
from auditkit.runs.folder.names import WAITING


class WaitingMaps:
    """The maps that wait for their turn, also those that a killed run has left."""

    def __init__(self, bundle: RecordedBundle, size: tuple[int, int]) -> None:
        """They join this bundle, which is open; the maps of all pixels have this size."""
        self._bundle, self._folder = bundle, bundle.path / WAITING
        self.record = Record()  # of all that wait, or have waited
        self._units: dict[str, MapShard] = {}  # by the name of their folder
        self._names: dict[str, set[str]] = {}  # of the units that have maps of an image
        self._number = 0  # of the last unit that was added
        for unit in waiting_units(bundle.path, bundle.header, empty=not len(bundle)).values():
            upsampling = None if unit is None else unit.maps.header.upsampling
            right_size = upsampling is None or upsampling.size == size
            if unit is not None and right_size and unit.is_sound():  # others are made again
                self._register(unit)

    def _register(self, unit: MapShard) -> None:
        name = unit.maps.path.name
        self._units[name] = unit
        for image in unit.maps.labels:
            self._names.setdefault(image, set()).add(name)
        for part in unit.record.parts:
            self.record.add(part)

    def labels_of(self, image: str) -> set[int]:
        """The labels of an image's maps."""
        return set(chain.from_iterable(self._units[name].maps.labels[image] for name in self._names.get(image, ())))

    def add(
        self, images: Sequence[str], digests: Sequence[str], result: MethodResult, model: AnyClassifier, infill: str
    ) -> None:
        """Let the maps of a unit wait."""
        self._bundle.create()
        path = self._next_path()
        with RecordedBundle.like(self._bundle.header, path, self._bundle.root) as unit:
            unit.add(images, digests, self._bundle.fitting(result), model, infill)
        self._register(MapShard.read(path))

    def _next_path(self) -> Path:
        """A folder that does not exist."""
        while True:
            self._number += 1
            path = self._folder / f"{self._number:06d}"
            if not path.exists():
                return path

    def write(self, images: Collection[str]) -> None:
        """Move the maps of all units that have one of these images to the bundle."""
        for name in sorted(set().union(*(self._names.get(image, ()) for image in images))):
            self._write(name)

    def write_all(self) -> None:
        """Move all maps to the bundle, also those of images that are not explained any more."""
        for name in list(self._units):
            self._write(name)

    def _write(self, name: str) -> None:
        problem = self._units[name].add_to(self._bundle)
        if problem:
            raise RuntimeFailure(f"{problem}; run the command again.")
        path = self._folder / name
        with write_errors(path):
            remove_folder(path, root=self._bundle.root)
        for image in self._units.pop(name).maps.labels:
            self._names[image].remove(name)


def waiting_units(bundle: Path, header: Header, *, empty: bool) -> Mapping[Path, MapShard | None]:
    """The units that wait in a bundle with this header, which may have no maps yet; None for one that is no part of it.

    Their maps are not read.
    """
    units: dict[Path, MapShard | None] = {}
    for path in _folders(bundle / WAITING):
        try:
            unit = MapShard.read(path)
        except AuditError:
            units[path] = None
            continue
        if unit.fits(header, empty=empty):
            header, empty = unit.maps.header, False
            units[path] = unit
        else:
            units[path] = None
    return units


def _folders(folder: Path) -> list[Path]:
    """The folders of the units; BadInput where something else is in their place."""
    try:
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
    except FileNotFoundError:  # removed meanwhile by the process that explains
        return []
    except OSError as error:
        raise BadInput(f"{folder} cannot be read: {reason(error)}.") from None
    for path in (folder, *paths):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise BadInput(f"{path} is not a folder that auditkit made; delete it.")
    return [path for path in paths if not path.name.startswith(".")]  # a bundle that is being created
