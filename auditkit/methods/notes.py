"""Facts that users must know about maps: typed, so that the notes of many requests can be merged into one of each."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

# Kind of note -> its sentence; a share's begins with "3 of 20", a range's ends with its values. {detail} is filled in.
_SENTENCES = {
    "surrogate-gradient": "the gradient is a surrogate: that of the graph without its rounding",
    "surrogate-masks": "the model rounds; its masks were learned on the same model without rounding",
    "layer": "grad-cam at '{detail}'",
    "one-mask": "the masking network gives one mask an image, used for every label",
    "refined": "masks refined with {detail} passes a label",
    "unsettled": "masks had not settled after {detail} steps",
    "idle": "masks delete nothing: blur takes nothing that is worth it from their labels",
    "blur-proof": "labels keep more than half their probability when the whole image is blurred, so that little can be "
    "deleted from them; try a larger blur",
    "early": "images stopped early",
    "passes": "passes an image",
    "agreement": "split-half agreement of ranks",
}


class NoteJson(TypedDict, total=False):
    """A note in a bundle's record; hits and total for a share, values for a range."""

    kind: str
    detail: str
    hits: int
    total: int
    values: list[float]


@dataclass(frozen=True)
class Note:
    """Something that holds for all maps of a request."""

    kind: str  # a key of _SENTENCES
    detail: str = ""

    def __post_init__(self) -> None:
        if self.kind not in _SENTENCES:
            raise ValueError(f"there is no note '{self.kind}'")

    def __str__(self) -> str:
        return _SENTENCES[self.kind].format(detail=self.detail)

    def merged(self, _other: "Note") -> "Note":
        """This note and another of the same kind and detail."""
        return self


@dataclass(frozen=True)
class Share(Note):
    """Something that holds for some of the maps or images."""

    hits: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.hits:,} of {self.total:,} {super().__str__()}"

    def merged(self, other: Note) -> Note:
        """The share over both."""
        if not isinstance(other, Share):
            return self
        return Share(self.kind, self.detail, self.hits + other.hits, self.total + other.total)


@dataclass(frozen=True)
class Range(Note):
    """A value that every image has."""

    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        form = ",.0f" if all(float(value).is_integer() for value in self.values) else ".2f"
        low, high = f"{min(self.values):{form}}", f"{max(self.values):{form}}"
        spread = low if low == high else f"{low} to {high}, median {statistics.median(self.values):{form}}"
        return f"{super().__str__()}: {spread}"

    def merged(self, other: Note) -> Note:
        """The values of both."""
        return Range(self.kind, self.detail, self.values + other.values) if isinstance(other, Range) else self


def sentences(notes: Iterable[Note]) -> tuple[str, ...]:
    """One sentence for each kind and detail, in order of first appearance; shares of none are left out."""
    merged: dict[tuple[str, str], Note] = {}
    for note in notes:
        key = (note.kind, note.detail)
        merged[key] = merged[key].merged(note) if key in merged else note
    return tuple(str(note) for note in merged.values() if not isinstance(note, Share) or note.hits)


def to_json(note: Note) -> NoteJson:
    """A note as `from_json` reads it."""
    data: NoteJson = {"kind": note.kind, "detail": note.detail}
    if isinstance(note, Share):
        data |= {"hits": note.hits, "total": note.total}
    if isinstance(note, Range):
        data["values"] = list(note.values)
    return data


def from_json(data: NoteJson) -> Note:
    """The note that `to_json` wrote."""
    kind, detail = str(data["kind"]), str(data["detail"])
    if "values" in data:
        return Range(kind, detail, tuple(float(value) for value in data["values"]))
    if "hits" in data:
        return Share(kind, detail, int(data["hits"]), int(data["total"]))
    return Note(kind, detail)
