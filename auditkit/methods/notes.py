"""What must be known of maps, in a form in which the notes of many units of work become one."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Share:
    """Something that holds of so many among so many; where it is none, it counts but is not told."""

    words: str
    hits: int
    total: int

    def __str__(self) -> str:
        return f"{self.hits:,} of {self.total:,} {self.words}"


@dataclass(frozen=True)
class Range:
    """A figure that every image has."""

    words: str
    values: tuple[float, ...]

    def __str__(self) -> str:
        form = ",.0f" if all(float(value).is_integer() for value in self.values) else ".2f"
        low, high = f"{min(self.values):{form}}", f"{max(self.values):{form}}"
        return f"{self.words}: " + (low if low == high else
                                    f"{low} to {high}, median {statistics.median(self.values):{form}}")  # fmt: skip


Note = str | Share | Range


def told(notes: Iterable[Note]) -> tuple[str, ...]:
    """Each of them once, in the order in which they came; under the same words, shares and ranges are joined."""
    found: dict[str, Note] = {}
    for note in notes:
        words = note if isinstance(note, str) else note.words
        found[words] = _joined(found[words], note) if words in found else note
    return tuple(str(note) for note in found.values() if not isinstance(note, Share) or note.hits)


def _joined(first: Note, second: Note) -> Note:
    if isinstance(first, Share) and isinstance(second, Share):
        return Share(first.words, first.hits + second.hits, first.total + second.total)
    if isinstance(first, Range) and isinstance(second, Range):
        return Range(first.words, first.values + second.values)
    return first


def to_json(note: Note) -> str | dict[str, Any]:
    """A note as it is written down."""
    return note if isinstance(note, str) else asdict(note)


def from_json(said: str | Mapping[str, Any]) -> Note:
    """What `to_json` gave."""
    if isinstance(said, str):
        return said
    if "values" in said:
        return Range(str(said["words"]), tuple(float(value) for value in said["values"]))
    return Share(str(said["words"]), int(said["hits"]), int(said["total"]))
