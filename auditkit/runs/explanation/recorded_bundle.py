"""A bundle that grows while maps are made, with the record beside it.

`unfinished.npz` is the state of work that has not led to maps yet, and the folder `waiting` has maps that are finished
before those of earlier images. Both are gone when the bundle is finished.
"""

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Self

import numpy as np

from auditkit.arrays import Array
from auditkit.data.atomic_write import (
    append,
    open_to_append,
    remove,
    remove_folder,
    remove_left_overs,
    write_errors,
    write_whole,
)
from auditkit.data.bundle_files import HEADER, Header
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.data.file_digests import remembered
from auditkit.data.npy import read_npz
from auditkit.errors import BadInput, IntegrityFailure
from auditkit.graph.upsampling import Upsampling
from auditkit.methods.request import MethodResult, Request
from auditkit.model.classifier import AnyClassifier
from auditkit.regular_files import read_regular
from auditkit.runs.evaluation.images import picture_digest
from auditkit.runs.explanation.record import FUNCTION, MOST_BYTES, RECORD, Part, Record, encoded, map_digest
from auditkit.runs.explanation.shares import SHARES, Shares
from auditkit.runs.folder.contents import require_resumable
from auditkit.runs.folder.names import UNFINISHED, WAITING

if sys.platform != "win32":
    import fcntl


class RecordedBundle:
    """A bundle that grows, with the record beside it; meanwhile no other process adds maps.

    It is also the checkpoint of the method that makes the maps.
    """

    def __init__(self, bundle: Bundle, shares: Shares | None = None) -> None:
        """`shares` are those of the command, if the bundle is a shard."""
        self._bundle, self.path, self.root, self._shares = bundle, bundle.path, bundle.root, shares
        self.record = Record()
        self._labels: dict[str, set[int]] = {}  # of the maps, by image
        self._lock: IO[bytes] | None = None

    @classmethod
    def like(cls, header: Header, path: Path, root: Path | None = None) -> Self:
        """A bundle in a folder, of the model and method of a header."""
        return cls(Bundle(path, model=header.model, method=header.method, frame=header.frame, root=root))

    def __enter__(self) -> Self:
        """Refuses a bundle in which any map is not the one that was made."""
        if (self.path / HEADER).exists():
            require_resumable(self.path)
            self._lock = self._locked()
            try:
                self.record = Record.of(self.path)
                bundle = self.checked()
                self._labels = {image: set(labels) for image, labels in bundle.labels.items()}
                self._drop_unwritten(self._lock)
                self._write_shares()
                with write_errors(self.path):
                    for path in bundle.unnamed_files():
                        remove(path, root=self.root)
                    remove_left_overs(self.path, root=self.root)
            except BaseException:
                self._lock.close()
                raise
        return self

    def __exit__(self, error: type[BaseException] | None, *_details: object) -> None:
        if self._lock is None:
            return
        with self._lock, write_errors(self.path):
            if error is None:
                remove(self.path / UNFINISHED, root=self.root)
                if (self.path / WAITING).exists():
                    remove_folder(self.path / WAITING, root=self.root)

    def create(self) -> None:
        """Create the bundle if it is new."""
        if self._lock is None:
            self._bundle.create()
            self._lock = self._locked()
            self._write_shares()

    def _write_shares(self) -> None:
        if self._shares is not None:
            write_whole(self.path / SHARES, self._shares.encoded(), root=self.root)

    def _locked(self) -> IO[bytes]:
        """The record, open, so that other processes are kept out of the bundle."""
        with write_errors(self.path / RECORD):
            stream = open_to_append(self.path / RECORD, root=self.root)
            if sys.platform != "win32":
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    stream.close()
                    raise BadInput(f"{self.path} is in use by another process; wait for it to end.") from None
        return stream

    def _drop_unwritten(self, stream: IO[bytes]) -> None:
        """Drop the last line of the record if it is incomplete or its maps were never written; they are made again."""
        content = read_regular(self.path / RECORD, MOST_BYTES)
        end = content.rfind(b"\n") + 1
        if self.record.parts and not self._has_maps_of(self.record.parts[-1]):
            end = content.rfind(b"\n", 0, end - 1) + 1
        if end < len(content):
            with write_errors(self.path / RECORD):
                stream.truncate(end)
            self.record = Record.of(self.path)

    def _has_maps_of(self, part: Part) -> bool:
        labels = ((digests, map(str, self._labels.get(image, ()))) for image, digests in part.maps.items())
        return any(digests.keys() & set(stored) for digests, stored in labels)

    def labels_of(self, image: str) -> tuple[int, ...]:
        """The labels of an image's maps."""
        return tuple(sorted(self._labels.get(image, ())))

    def checked(self) -> HeatmapSet:
        """The bundle as it is on the disk; refused where any map is not the one that was made."""
        bundle = open_bundle(self.path)
        about = f"maps of the record {bundle.entries_digest()}"
        remembered(about, [self.path / RECORD, *bundle.files()], lambda: self._check(bundle))
        return bundle

    @property
    def header(self) -> Header:
        """The bundle's header."""
        return self._bundle.header

    def __len__(self) -> int:
        return len(self._bundle)

    def fitting(self, result: MethodResult) -> MethodResult:
        """The result as the bundle takes it: a bundle that was started with maps of all pixels continues with them."""
        fine = len(self) > 0 and self.header.upsampling is None
        return replace(result, coarse=None) if fine else result

    def _check(self, bundle: HeatmapSet) -> str:
        try:
            self.record.check(bundle)
        except IntegrityFailure as error:
            raise IntegrityFailure(f"{error}; delete {bundle.path} and run the command again.") from None
        return "sound"

    def make(self, request: Request, run: Callable[[Request], MethodResult], infill: str = "") -> None:
        """Write the maps of a request, some of them as soon as they are finished if the method can."""
        ids, digests = request.ids, tuple(map(picture_digest, request.inputs))

        def add(part: MethodResult) -> None:
            self.add(ids, digests, part, request.model, infill)

        add(run(replace(request, keep=add, checkpoint=self)))

    def add(
        self, images: Sequence[str], digests: Sequence[str], result: MethodResult, model: AnyClassifier, infill: str
    ) -> None:
        """Write the maps that the bundle lacks, all at once, after their digests; those of the images are given."""
        new: list[tuple[int, int]] = []  # position of the image, and label
        for position, by_label in enumerate(result.maps):
            present = self._labels.get(images[position], ())
            new += [(position, label) for label in by_label if label not in present]
        if not new:
            return
        coarse = self.fitting(result).coarse
        maps = result.maps if coarse is None else coarse.maps
        maps_of: dict[str, dict[str, str]] = {}
        for position, label in new:
            maps_of.setdefault(images[position], {})[str(label)] = map_digest(maps[position][label])
        shown = {image: digest for image, digest in zip(images, digests, strict=True) if image in maps_of}
        settings = model.settings
        computed = f"{settings.device}, {settings.precision}" if settings else FUNCTION
        part = Part(shown, maps_of, result.passes, result.gradients, computed, result.notes, infill)
        stored = [maps[position][label] for position, label in new]
        self.add_part(part, stored, None if coarse is None else coarse.upsampling)

    def add_part(self, part: Part, maps: Sequence[Array], upsampling: Upsampling | None = None) -> None:
        """Write the maps that a part names, in its order, after the part itself."""
        self.create()
        with write_errors(self.path / RECORD):
            append(self.path / RECORD, encoded(part), root=self.root)
        self.record.add(part)
        pairs = part.pairs()
        ids, labels = [image for image, _ in pairs], [label for _, label in pairs]
        self._bundle.add(ids, labels, np.stack(maps), layout="NHW", upsampling=upsampling)
        for image, label in zip(ids, labels, strict=True):
            self._labels.setdefault(image, set()).add(label)

    def load(self, names: Sequence[str]) -> dict[str, Array]:
        """The arrays that were saved last; none where they cannot be read, which costs time only."""
        try:
            return read_npz(self.path / UNFINISHED, names)
        except BadInput:
            return {}

    def save(self, arrays: Mapping[str, Array]) -> None:
        """Replace the arrays that were saved before."""
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **arrays)
        self.create()
        write_whole(self.path / UNFINISHED, content.getbuffer(), root=self.root)
