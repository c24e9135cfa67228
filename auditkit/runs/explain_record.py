"""The record beside maps that were made here: what they cost, and the digest of each.

The digest of a map is written before the map: whenever the writer dies, every map of a bundle has its digest. The
record reveals damaged maps; SHA256SUMS, its signature and `auditkit verify` guard against those who forge both.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from auditkit.arrays import Array
from auditkit.data.atomic_write import write_errors, write_whole
from auditkit.data.bundle_files import split_reference
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.errors import BadInput, IntegrityFailure
from auditkit.methods.notes import Note, sentences
from auditkit.methods.request import MethodResult, Request
from auditkit.records import from_json, parse_object, to_json, to_object

RECORD = "explained.json"  # in the bundle
TOTALS = ("passes", "gradients", "computed", "notes")  # of all requests: written, but never read back


@dataclass(frozen=True)
class Cost:
    """What one request took."""

    passes: int
    gradients: int
    computed: str  # device and precision
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class Record:
    """What making a bundle's maps took, and what must be known of them."""

    images: Mapping[str, str] = field(default_factory=dict)  # digest of each image as the network took it
    maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # digest of each map, by image and label
    spent: Mapping[str, Cost] = field(default_factory=dict)  # by request
    infill: str = ""  # digest of the gray and of the pool that pixels are hidden behind

    @classmethod
    def of(cls, bundle: Path) -> "Record":
        """The record of a bundle; an empty one where it has none."""
        path = bundle / RECORD
        try:
            content = parse_object(path.read_bytes(), "the record")
            return from_json(cls, {name: value for name, value in content.items() if name not in TOTALS}, "the record")
        except FileNotFoundError:
            return cls()
        except (OSError, BadInput) as error:
            raise BadInput(f"{path} cannot be read: {str(error).removesuffix('.')}; make a new bundle.") from None

    @property
    def passes(self) -> int:
        """Images that the model has classified."""
        return sum(cost.passes for cost in self.spent.values())

    @property
    def gradients(self) -> int:
        """Images that it was differentiated on."""
        return sum(cost.gradients for cost in self.spent.values())

    @property
    def computed(self) -> tuple[str, ...]:
        """The devices and precisions that were used: several, where the run was resumed with others."""
        return tuple(dict.fromkeys(cost.computed for cost in self.spent.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known of the maps, over all requests."""
        return sentences(chain.from_iterable(cost.notes for cost in self.spent.values()))

    def with_more(self, request: Request, result: MethodResult, infill: str) -> "Record":
        """The record with the maps of one more request; the same request twice counts once."""
        images = {image: picture_digest(shown) for image, shown in zip(request.ids, request.inputs, strict=True)}
        maps = {
            image: {**self.maps.get(image, {}), **{str(label): map_digest(by_label[label]) for label in labels}}
            for image, labels, by_label in zip(request.ids, request.labels, result.maps, strict=True)
        }
        key = hashlib.sha256(json.dumps([request.ids, request.labels]).encode()).hexdigest()
        settings = request.model.settings
        computed = f"{settings.device}, {settings.precision}" if settings else "a function"
        cost = Cost(result.passes, result.gradients, computed, result.notes)
        return Record({**self.images, **images}, {**self.maps, **maps}, {**self.spent, key: cost}, infill)


class RecordedBundle:
    """A bundle that grows, with the record beside it."""

    def __init__(self, bundle: Bundle) -> None:
        """Refuses a bundle in which any map is not the one that was made."""
        self._bundle, self.path = bundle, bundle.path
        self.record = Record.of(bundle.path)
        stored = self.checked().labels if len(bundle) else {}
        self._labels = {image: set(labels) for image, labels in stored.items()}

    def missing(self, image: str, labels: Iterable[int]) -> tuple[int, ...]:
        """Those of the labels for which the image has no map yet."""
        return tuple(label for label in labels if label not in self._labels.get(image, ()))

    def checked(self) -> HeatmapSet:
        """The bundle as it is on the disk; refused where any map is not the one that was made."""
        bundle = open_bundle(self.path)
        for entry in bundle.entries:
            recorded = self.record.maps.get(entry.image, {}).get(str(entry.label))
            try:
                stored = map_digest(bundle.read(entry))
            except BadInput:
                stored = ""  # it cannot be read any more
            if recorded != stored:
                file = bundle.path / split_reference(entry.heatmap)[0]
                reason = "was not made here" if recorded is None else "was changed since it was made"
                what = f"{file} {reason} (image '{entry.image}', label {entry.label})"
                raise IntegrityFailure(f"{what}; delete {bundle.path} and run the command again.")
        return bundle

    def add(self, request: Request, result: MethodResult, infill: str = "") -> None:
        """Write the maps of a request, all at once, after their digests."""
        self.record = self.record.with_more(request, result, infill)
        self._bundle.create()
        totals = {name: to_json(getattr(self.record, name)) for name in TOTALS}
        text = json.dumps(to_object(self.record) | totals, indent=1, sort_keys=True) + "\n"
        with write_errors(self.path / RECORD):
            write_whole(self.path / RECORD, text.encode())
        pairs = request.pairs()
        maps = np.stack([result.maps[image][label] for image, label in pairs])
        self._bundle.add([request.ids[image] for image, _ in pairs], [label for _, label in pairs], maps, layout="NHW")
        for image, label in pairs:
            self._labels.setdefault(request.ids[image], set()).add(label)


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
