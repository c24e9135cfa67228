"""Maps that were made apart from others, in a bundle of their own, and how they join the others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from auditkit.arrays import Array
from auditkit.data.bundle_files import Header
from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.errors import IntegrityFailure
from auditkit.runs.explanation.record import Record
from auditkit.runs.explanation.recorded_bundle import RecordedBundle
from auditkit.runs.explanation.shares import Shares


@dataclass(frozen=True)
class MapShard:
    """A shard of maps, as far as it is finished."""

    maps: HeatmapSet
    record: Record
    shares: Shares | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """The shard in a folder."""
        maps = open_bundle(path)  # before the record, which names maps before they are written
        return cls(maps, Record.of(path), Shares.of(path))

    def fits(self, header: Header, *, empty: bool) -> bool:
        """Whether its maps are those of the model and method of a bundle, which may have none yet."""
        same_resolution = empty or self.maps.header.upsampling == header.upsampling
        return same_resolution and explained(self.maps.header) == explained(header)

    def is_sound(self) -> bool:
        """Whether every map is the one that was made."""
        try:
            self.record.check(self.maps)
        except IntegrityFailure:
            return False
        return True

    def add_to(self, bundle: RecordedBundle) -> str:
        """Add the sound maps that a bundle lacks, with their record; which were left out and why, in a sentence."""
        unread, problems = {(entry.image, entry.label): entry for entry in self.maps.entries}, list[str]()
        read, upsampling = self.maps.stored_reader(), self.maps.header.upsampling
        for part in self.record.parts:
            sound: dict[tuple[str, int], Array] = {}
            for image, label in part.pairs():
                latest = part.maps[image][str(label)] == self.record.maps[image][str(label)]
                entry = unread.pop((image, label), None) if latest else None
                if entry is None or label in bundle.labels_of(image):
                    continue
                try:
                    sound[image, label] = self.record.read(self.maps, entry, read)
                except IntegrityFailure as error:
                    problems.append(str(error))
            if sound:
                bundle.add_part(part.only(sound), list(sound.values()), upsampling)
        problems += [f"image '{image}', label {label}, was not made here" for image, label in unread]
        if not problems:
            return ""
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        return f"maps of {self.maps.path} were left out: {problems[0]}{more}"


def explained(header: Header) -> tuple[str | None, str, str]:
    """What all maps of a bundle have in common: the model, the method and the frame."""
    return header.model, header.method, header.frame
