"""The record beside maps that were made here: what they cost, and the digest of each.

Every line of `explained.jsonl` holds some maps. It is written before them: whenever the writer dies, every map of a
bundle has its digest. The record reveals damaged maps; SHA256SUMS, its signature and `auditkit verify` guard against
those who forge both. `unfinished.npz` is the state of work that has not led to maps yet.
"""

import hashlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Self

import numpy as np

from auditkit.arrays import Array
from auditkit.data.atomic_write import append, write_errors, write_whole
from auditkit.data.bundle_files import HEADER, MAPS, Entry, Header, split_reference
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.data.file_digests import remembered
from auditkit.errors import BadInput, IntegrityFailure
from auditkit.graph.upsampling import Upsampling
from auditkit.methods.notes import Note, sentences
from auditkit.methods.request import MethodResult, Request
from auditkit.model.classifier import AnyClassifier
from auditkit.records import from_json, parse_object, to_object
from auditkit.regular_files import read_regular, reason
from auditkit.runs.explanation.shares import SHARES, Shares

if sys.platform != "win32":
    import fcntl

RECORD, UNFINISHED = "explained.jsonl", "unfinished.npz"  # in the bundle
_MOST_BYTES = 2**28  # of the record: millions of maps
FUNCTION = "a function"  # where maps are computed that no file's model made


@dataclass(frozen=True)
class Part:
    """Some maps that were written together: a line of the record."""

    images: Mapping[str, str]  # digest of each image as the network took it
    maps: Mapping[str, Mapping[str, str]]  # digest of each map, by image and label
    passes: int  # images that the model has classified
    gradients: int  # images that it was differentiated on
    computed: str  # device and precision
    notes: tuple[Note, ...]
    infill: str  # digest of the gray and of the pool that pixels are replaced with

    def pairs(self) -> list[tuple[str, int]]:
        """The image and the label of each map."""
        pairs: list[tuple[str, int]] = []
        for image, digests in self.maps.items():
            pairs += [(image, int(label)) for label in digests]
        return pairs

    def only(self, pairs: Iterable[tuple[str, int]]) -> "Part":
        """The same with some of its maps alone."""
        maps: dict[str, dict[str, str]] = {}
        for image, label in pairs:
            maps.setdefault(image, {})[str(label)] = self.maps[image][str(label)]
        return replace(self, maps=maps, images={image: self.images[image] for image in maps})


class Record:
    """What making a bundle's maps took, and what must be known of them."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.images: dict[str, str] = {}  # digests, as in the parts
        self.maps: dict[str, dict[str, str]] = {}

    @classmethod
    def of(cls, bundle: Path) -> Self:
        """The record of a bundle, without a line that a killed writer left incomplete; an empty one if it has none."""
        path, record = bundle / RECORD, cls()
        try:
            content = read_regular(path, _MOST_BYTES)  # a stranger may have written it
        except FileNotFoundError:
            return record
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {reason(error)}; make a new bundle.") from None
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                record.add(from_json(Part, parse_object(line, "the record"), "the record"))
            except BadInput as error:
                text = str(error).removesuffix(".")
                raise BadInput(f"{path}, line {number}, cannot be read: {text}; make a new bundle.") from None
        return record

    def add(self, part: Part) -> None:
        """Add a line."""
        self.parts.append(part)
        self.images.update(part.images)
        for image, digests in part.maps.items():
            self.maps.setdefault(image, {}).update(digests)

    def read(self, bundle: HeatmapSet, entry: Entry, read: Callable[[Entry], tuple[Array, str]]) -> Array:
        """A map as it is stored; IntegrityFailure where it is not the one that was made."""
        recorded = self.maps.get(entry.image, {}).get(str(entry.label))
        try:
            values, _ = read(entry)
        except BadInput:  # it cannot be read any more
            values = None
        if recorded is None or values is None or map_digest(values) != recorded:
            file = bundle.path / split_reference(entry.heatmap)[0]
            reason = "was not made here" if recorded is None else "was changed since it was made"
            raise IntegrityFailure(f"{file} {reason} (image '{entry.image}', label {entry.label})")
        return values

    @property
    def passes(self) -> int:
        """Images that the model has classified."""
        return sum(part.passes for part in self.parts)

    @property
    def gradients(self) -> int:
        """Images that it was differentiated on."""
        return sum(part.gradients for part in self.parts)

    @property
    def computed(self) -> tuple[str, ...]:
        """The devices and precisions that were used: several, where the run was resumed with others."""
        return tuple(dict.fromkeys(part.computed for part in self.parts))

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known of the maps, over all parts."""
        return sentences(chain.from_iterable(part.notes for part in self.parts))

    @property
    def infill(self) -> str:
        """Digest of what pixels are replaced with; empty before the first map."""
        return self.parts[-1].infill if self.parts else ""


class RecordedBundle:
    """A bundle that grows, with the record beside it; meanwhile no other process adds maps.

    It is also the checkpoint of the method that makes the maps.
    """

    def __init__(self, bundle: Bundle, shares: Shares | None = None) -> None:
        """`shares` are those of the command, if the bundle is a shard."""
        self._bundle, self.path, self._shares = bundle, bundle.path, shares
        self.record = Record()
        self._labels: dict[str, set[int]] = {}  # of the maps, by image
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Refuses a bundle in which any map is not the one that was made."""
        if (self.path / HEADER).exists():
            self._lock = self._locked()
            try:
                self.record = Record.of(self.path)
                bundle = self.checked()
                self._labels = {image: set(labels) for image, labels in bundle.labels.items()}
                self._drop_unwritten()
                self._write_shares()
                with write_errors(self.path):
                    for path in unnamed_files(bundle):
                        path.unlink()
            except BaseException:
                self._lock.close()
                raise
        return self

    def __exit__(self, error: type[BaseException] | None, *_details: object) -> None:
        if self._lock is None:
            return
        with self._lock, write_errors(self.path):
            for name in (UNFINISHED, f"{UNFINISHED}.part") if error is None else ():
                (self.path / name).unlink(missing_ok=True)

    def create(self) -> None:
        """Create the bundle if it is new."""
        if self._lock is None:
            self._bundle.create()
            self._lock = self._locked()
            self._write_shares()

    def _write_shares(self) -> None:
        if self._shares is not None:
            write_whole(self.path / SHARES, self._shares.encoded())

    def _locked(self) -> IO[bytes]:
        """The record, open, so that other processes are kept out of the bundle."""
        with write_errors(self.path / RECORD):
            stream = (self.path / RECORD).open("ab")
            if sys.platform != "win32":
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    stream.close()
                    raise BadInput(f"{self.path} is in use by another process; wait for it to end.") from None
        return stream

    def _drop_unwritten(self) -> None:
        """Drop the last line of the record if it is incomplete or its maps were never written; they are made again."""
        content = (self.path / RECORD).read_bytes()
        end = content.rfind(b"\n") + 1
        if self.record.parts and not self._has_maps_of(self.record.parts[-1]):
            end = content.rfind(b"\n", 0, end - 1) + 1
        if end < len(content):
            with write_errors(self.path / RECORD):
                os.truncate(self.path / RECORD, end)
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

    def like(self, path: Path) -> "RecordedBundle":
        """A bundle of the same model and method in another folder."""
        header = self._bundle.header
        return RecordedBundle(Bundle(path, model=header.model, method=header.method, frame=header.frame))

    def takes(self, header: Header) -> bool:
        """Whether maps under this header are of the same model and method."""
        own = self._bundle.header
        return (header.model, header.method, header.frame) == (own.model, own.method, own.frame)

    def fitting(self, result: MethodResult) -> MethodResult:
        """The result as the bundle takes it: one that was started with maps of all pixels continues with them."""
        fine = len(self._bundle) > 0 and self._bundle.header.upsampling is None
        return replace(result, coarse=None) if fine else result

    def _check(self, bundle: HeatmapSet) -> str:
        read = bundle.stored_reader()
        for entry in bundle.entries:
            try:
                self.record.read(bundle, entry, read)
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
            append(self.path / RECORD, encoded(part))
        self.record.add(part)
        pairs = part.pairs()
        ids, labels = [image for image, _ in pairs], [label for _, label in pairs]
        self._bundle.add(ids, labels, np.stack(maps), layout="NHW", upsampling=upsampling)
        for image, label in zip(ids, labels, strict=True):
            self._labels.setdefault(image, set()).add(label)

    def load(self) -> dict[str, Array]:
        """The arrays that were saved last; none where they cannot be read, which costs time only."""
        try:
            with np.load(self.path / UNFINISHED, allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            return {}

    def save(self, arrays: Mapping[str, Array]) -> None:
        """Replace the arrays that were saved before."""
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **arrays)
        self.create()
        write_whole(self.path / UNFINISHED, content.getvalue())


def encoded(part: Part) -> bytes:
    """The line of the record that holds a part."""
    return json.dumps(to_object(part)).encode() + b"\n"


def unnamed_files(bundle: HeatmapSet) -> list[Path]:
    """Files of maps that the manifest does not name: a writer was killed before it could add their names."""
    named = set(bundle.files())
    return [path for path in sorted((bundle.path / MAPS).iterdir()) if path not in named]


def picture_digest(*pictures: Array) -> str:
    """Digest of pictures as the network takes them."""
    digest = hashlib.blake2b(digest_size=16)
    for picture in pictures:
        digest.update(np.ascontiguousarray(picture).data)
    return digest.hexdigest()


def map_digest(values: Array) -> str:
    """Digest of a map as it is stored, and of its shape."""
    stored = np.ascontiguousarray(values, "<f4")
    digest = hashlib.blake2b(str(stored.shape).encode(), digest_size=16)
    digest.update(stored.data)
    return digest.hexdigest()
