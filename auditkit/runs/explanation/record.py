"""The record beside maps that were made here: what they cost, and the digest of each.

Every line of `explained.jsonl` holds some maps. It is written before them: whenever the writer dies, every map of a
bundle has its digest. The record reveals damaged maps; SHA256SUMS, its signature and `auditkit verify` guard against
those who forge both.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundle_files import Entry, is_index, split_reference
from auditkit.data.bundles import HeatmapSet
from auditkit.errors import BadInput, IntegrityFailure
from auditkit.methods.notes import Note, sentences
from auditkit.records import from_json, parse_object, to_object
from auditkit.regular_files import read_regular, reason

RECORD = "explained.jsonl"  # in the bundle
MOST_BYTES = 2**28  # of the record: millions of maps
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

    def __post_init__(self) -> None:
        if not self.maps.keys() <= self.images.keys():
            raise ValueError("has maps of an image without its digest.")
        for label in chain.from_iterable(self.maps.values()):
            if not is_index(label) or str(int(label)) != label:
                raise ValueError(f"has {label[:20]!r} for a label.")

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
            content = read_regular(path, MOST_BYTES)  # a stranger may have written it
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
            problem = "was changed since it was made" if file.exists() else "is missing"
            if recorded is None:
                problem = "was not made here"
            raise IntegrityFailure(f"{file} {problem} (image '{entry.image}', label {entry.label})")
        return values

    def check(self, bundle: HeatmapSet) -> None:
        """IntegrityFailure where a map of the bundle is not the one that was made."""
        read = bundle.stored_reader()
        for entry in bundle.entries:
            self.read(bundle, entry, read)

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


def encoded(part: Part) -> bytes:
    """The line of the record that holds a part."""
    return json.dumps(to_object(part)).encode() + b"\n"


def map_digest(values: Array) -> str:
    """Digest of a map as it is stored, and of its shape."""
    stored = np.ascontiguousarray(values, "<f4")
    digest = hashlib.blake2b(str(stored.shape).encode(), digest_size=16)
    digest.update(stored.data)
    return digest.hexdigest()
