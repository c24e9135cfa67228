"""The record beside maps that were made here: what they cost, and the digest of each.

The digest of a map is on the disk before the map is. So, whenever the writer dies, every map that a bundle names has
its digest, and a digest without a map belongs to one that will be made again. The record reveals maps that were swapped
or damaged between two runs. Who can write the folder can also write this record: SHA256SUMS, a signature of it, and
`auditkit verify`, which makes maps again, guard against that.
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TypedDict

import numpy as np

from auditkit.arrays import Array
from auditkit.data.atomic_write import write_whole
from auditkit.data.bundle_files import Entry, split_reference
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.errors import BadInput, IntegrityFailure, RuntimeFailure
from auditkit.methods.notes import Note, sentences
from auditkit.methods.request import MethodResult, Request
from auditkit.records import Json, from_json, to_json

RECORD = "explained.json"  # in the bundle


class Cost(TypedDict):
    """What one request took."""

    passes: int
    gradients: int
    computed: str  # device and precision
    notes: list[Json]


class RecordFile(TypedDict):
    """The object of the file."""

    images: dict[str, str]
    maps: dict[str, dict[str, str]]
    spent: dict[str, Cost]
    infill: str
    passes: int
    gradients: int
    computed: list[str]
    notes: list[str]


@dataclass(frozen=True)
class Record:
    """What making a bundle's maps took, and what must be known of them."""

    images: dict[str, str] = field(default_factory=dict)  # digest of each image as the network took it
    maps: dict[str, dict[str, str]] = field(default_factory=dict)  # digest of each map, by image and label
    spent: dict[str, Cost] = field(default_factory=dict)  # by request
    infill: str = ""  # digest of the gray and of the pool that pixels are hidden behind

    @classmethod
    def of(cls, bundle: Path) -> "Record":
        """The record of a bundle; an empty one where it has none."""
        path = bundle / RECORD
        try:
            content: RecordFile = json.loads(path.read_bytes())
            maps = {image: dict(digests) for image, digests in content["maps"].items()}
            record = cls(dict(content["images"]), maps, dict(content["spent"]), str(content["infill"]))
            record.to_json()
        except FileNotFoundError:
            return cls()
        except (BadInput, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise BadInput(f"{path} cannot be read: {reason}; make a new bundle.") from None
        return record

    @property
    def passes(self) -> int:
        """Images that the model has classified."""
        return sum(int(cost["passes"]) for cost in self.spent.values())

    @property
    def gradients(self) -> int:
        """Images that it was differentiated on."""
        return sum(int(cost["gradients"]) for cost in self.spent.values())

    @property
    def computed(self) -> tuple[str, ...]:
        """The devices and precisions that were used: several, where the run was resumed with others."""
        return tuple(dict.fromkeys(str(cost.get("computed", "not recorded")) for cost in self.spent.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known of the maps, over all requests."""
        every = chain.from_iterable(cost["notes"] for cost in self.spent.values())
        return sentences(from_json(Note, note, "a note") for note in every)

    def with_more(self, request: Request, found: MethodResult) -> "Record":
        """The record with the maps of one more request; the same request twice counts once."""
        images = {image: picture_digest(shown) for image, shown in zip(request.ids, request.inputs, strict=True)}
        maps = {
            image: self.maps.get(image, {}) | {str(label): map_digest(by_label[label]) for label in labels}
            for image, labels, by_label in zip(request.ids, request.labels, found.maps, strict=True)
        }
        key = hashlib.sha256(json.dumps([request.ids, request.labels]).encode()).hexdigest()
        settings = request.model.settings
        cost: Cost = {
            "passes": found.passes,
            "gradients": found.gradients,
            "computed": f"{settings.device}, {settings.precision}" if settings else "a function",
            "notes": [to_json(note) for note in found.notes],
        }
        return Record(self.images | images, self.maps | maps, self.spent | {key: cost}, self.infill)

    def to_json(self) -> RecordFile:
        """The object of the file."""
        return {
            "images": self.images,
            "maps": self.maps,
            "spent": self.spent,
            "infill": self.infill,
            "passes": self.passes,
            "gradients": self.gradients,
            "computed": list(self.computed),
            "notes": list(self.notes),
        }

    def check(self, bundle: HeatmapSet) -> None:
        """Refuse a bundle in which any map is not the one that was made."""
        for entry in bundle.entries:
            recorded = self.maps.get(entry.image, {}).get(str(entry.label))
            if recorded != _stored_digest(bundle, entry):
                file = bundle.path / split_reference(entry.heatmap)[0]
                reason = "was not made here" if recorded is None else "was changed since it was made"
                raise IntegrityFailure(
                    f"{file} {reason} (image '{entry.image}', label {entry.label}); delete {bundle.path} and run the "
                    "command again."
                )


class RecordedBundle:
    """A bundle that grows, with the record beside it."""

    def __init__(self, bundle: Bundle) -> None:
        """Refuses a bundle in which any map is not the one that was made."""
        self._bundle, self.path = bundle, bundle.path
        self.record = Record.of(bundle.path)
        self._existing = self.checked().labels if len(bundle) else {}

    def labels(self) -> dict[str, tuple[int, ...]]:
        """The labels, by image, of the maps that were there at first."""
        return self._existing

    def checked(self) -> HeatmapSet:
        """The bundle as it is on the disk, each map compared with its digest."""
        bundle = open_bundle(self.path)
        self.record.check(bundle)
        return bundle

    def add(self, request: Request, found: MethodResult, infill: str = "") -> None:
        """Write the maps of a request, all at once, after their digests."""
        self.record = replace(self.record, infill=infill).with_more(request, found)
        self._bundle.create()
        text = json.dumps(self.record.to_json(), indent=1, sort_keys=True) + "\n"
        try:
            write_whole(self.path / RECORD, text.encode())
        except OSError as error:
            raise RuntimeFailure(f"{self.path / RECORD} cannot be written: {error}.") from None
        ids, labels, maps = list[str](), list[int](), list[Array]()
        for image, own, by_label in zip(request.ids, request.labels, found.maps, strict=True):
            ids += [image] * len(own)
            labels += own
            maps += [by_label[label] for label in own]
        self._bundle.add(ids, labels, np.stack(maps), layout="NHW")


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


def _stored_digest(bundle: HeatmapSet, entry: Entry) -> str:
    """Digest of the map of a line of the manifest; empty where it cannot be read any more."""
    try:
        return map_digest(bundle.read(entry))
    except BadInput:
        return ""
