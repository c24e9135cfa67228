"""What is written down beside maps that are made here: what they took, and what they were when they were made.

The digest of a map is on the disk before the map is. So, whenever the writer dies, every map that a bundle names has
its digest, and a digest without a map belongs to one that will be made again. This finds maps that were swapped or
damaged between two sittings. Who can write the folder can write this record as well: SHA256SUMS, a signature of it,
and `auditkit verify`, which makes maps again, are for that.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.atomic_write import write_whole
from auditkit.data.bundle_files import split_reference
from auditkit.data.bundles import Bundle, HeatmapSet
from auditkit.errors import BadInput, IntegrityFailure, RuntimeFailure
from auditkit.methods import notes
from auditkit.methods.request import Found, Request

RECORD = "explained.json"  # in the bundle


@dataclass(frozen=True)
class Record:
    """What making a bundle's maps took, and what must be known of them."""

    images: dict[str, str] = field(default_factory=dict)  # digest of each image as the network took it
    maps: dict[str, dict[str, str]] = field(default_factory=dict)  # digest of each map, by image and label
    spent: dict[str, dict[str, Any]] = field(default_factory=dict)  # by request: what it took, on what, notes
    infill: str = ""  # digest of the gray and of the pool that pixels are hidden behind

    @classmethod
    def of(cls, out: Path) -> "Record":
        """That of a bundle; an empty one where it has none."""
        try:
            found = json.loads((out / RECORD).read_bytes())
            maps = {image: dict(own) for image, own in found["maps"].items()}
            record = cls(dict(found["images"]), maps, dict(found["spent"]), str(found["infill"]))
            record.to_json()
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise BadInput(f"{out / RECORD} cannot be read: {said}; make a new bundle.") from None
        return record

    @property
    def passes(self) -> int:
        """Images that the model was asked about."""
        return sum(int(one["passes"]) for one in self.spent.values())

    @property
    def gradients(self) -> int:
        """Images that it was differentiated on."""
        return sum(int(one["gradients"]) for one in self.spent.values())

    @property
    def computed(self) -> tuple[str, ...]:
        """On which devices and in which precisions: several, where another sitting went on with others."""
        return tuple(dict.fromkeys(str(one.get("computed", "not recorded")) for one in self.spent.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known of the maps, over all of them."""
        return notes.sentences(notes.from_json(note) for one in self.spent.values() for note in one["notes"])

    def with_more(self, request: Request, found: Found) -> "Record":
        """The same after some more maps; who is asked the same twice has spent it once."""
        images = {image: digest(shown) for image, shown in zip(request.ids, request.shown, strict=True)}
        maps = {
            image: self.maps.get(image, {}) | {str(label): map_digest(own[label]) for label in labels}
            for image, labels, own in zip(request.ids, request.labels, found.maps, strict=True)
        }
        asked = hashlib.sha256(json.dumps([request.ids, request.labels]).encode()).hexdigest()
        settings = request.model.settings
        spent = {
            "passes": found.passes,
            "gradients": found.gradients,
            "computed": f"{settings.device}, {settings.precision}" if settings else "a function",
            "notes": [notes.to_json(note) for note in found.notes],
        }
        return Record(self.images | images, self.maps | maps, self.spent | {asked: spent}, self.infill)

    def to_json(self) -> dict[str, Any]:
        """The object of the file."""
        totals = {"passes": self.passes, "gradients": self.gradients, "computed": list(self.computed),
                  "notes": list(self.notes)}  # fmt: skip
        return {"images": self.images, "maps": self.maps, "spent": self.spent, "infill": self.infill, **totals}

    def check(self, bundle: HeatmapSet) -> None:
        """Refuse a bundle in which any map is not the one that was made."""
        for entry in bundle.entries:
            known = self.maps.get(entry.image, {}).get(str(entry.label))
            if known != _digest_in(bundle, entry):
                file, why = bundle.path / split_reference(entry.heatmap)[0], "was changed since it was made"
                if known is None:
                    why = "was not made here"
                raise IntegrityFailure(
                    f"{file} {why} (image '{entry.image}', label {entry.label}); delete {bundle.path} and give the "
                    f"command again."
                )


def add(bundle: Bundle, record: Record, request: Request, found: Found) -> Record:
    """Write the maps of a request into a bundle, all at once, after their digests; returns the record with them."""
    record = record.with_more(request, found)
    bundle.create()
    text = json.dumps(record.to_json(), indent=1, sort_keys=True) + "\n"
    try:
        write_whole(bundle.path / RECORD, text.encode())
    except OSError as error:
        raise RuntimeFailure(f"{bundle.path / RECORD} cannot be written: {error}.") from None
    pairs = [(place, label) for place, own in enumerate(request.labels) for label in own]
    stack = np.stack([found.maps[place][label] for place, label in pairs])
    bundle.add([request.ids[place] for place, _ in pairs], [label for _, label in pairs], stack, layout="NHW")
    return record


def digest(*pictures: Array) -> str:
    """Digest of pictures as the network takes them."""
    found = hashlib.blake2b(digest_size=16)
    for picture in pictures:
        found.update(np.ascontiguousarray(picture).data)
    return found.hexdigest()


def map_digest(values: Array) -> str:
    """Digest of a map as it is stored, and of its shape."""
    stored = np.ascontiguousarray(values, "<f4")
    found = hashlib.blake2b(str(stored.shape).encode(), digest_size=16)
    found.update(stored.data)
    return found.hexdigest()


def _digest_in(bundle: HeatmapSet, entry: Any) -> str:
    """Digest of the map of a line of the manifest; none where it cannot be read any more."""
    try:
        return map_digest(bundle.read(entry))
    except BadInput:
        return ""
