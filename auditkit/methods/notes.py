"""Facts that users must know about maps: typed, so that the notes of many requests can be merged into one of each."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from auditkit.records import optional

# Kind of note -> its sentence, after "3 of 20" in a share and before the values in a range. {detail} is filled in.
_SENTENCES = {
    "no-gradient": "the method differences is used instead of mask: {detail}",
    "unused-options": "these options of mask do not apply to differences: {detail}",
    "surrogate-gradient": "the gradient is a surrogate: that of the graph without its rounding",
    "surrogate-masks": "the model rounds; its masks were learned on the same model without rounding",
    "quality": "masks of quality {detail}",
    "layer": "grad-cam at '{detail}'",
    "one-mask": "the masking network gives one mask per image, used for every label",
    "refined": "masks refined with {detail} passes per label",
    "idle": "masks delete nothing: blurring lowers the probability of their labels too little",
    "blur-proof": "labels keep more than half their probability when the whole image is blurred, so little can be "
    "deleted from them; try a larger blur",
    "early": "images stopped early",
    "passes": "passes an image",
    "agreement": "split-half agreement of ranks",
}


@dataclass(frozen=True)
class Note:
    """Something that holds for all maps of a request, for a share of them, or a value that each image has."""

    kind: str  # a key of _SENTENCES
    detail: str = ""
    hits: int | None = optional()
    total: int | None = optional()
    values: tuple[float, ...] | None = optional()

    def __post_init__(self) -> None:
        if self.kind not in _SENTENCES:
            raise ValueError(f"there is no note '{self.kind}'")

    def __str__(self) -> str:
        sentence = _SENTENCES[self.kind].format(detail=self.detail)
        if self.values:
            return f"{sentence}: {_spread(self.values)}"
        return sentence if self.total is None else f"{self.hits:,} of {self.total:,} {sentence}"


def _spread(values: tuple[float, ...]) -> str:
    form = ",.0f" if all(float(value).is_integer() for value in values) else ".2f"
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}, median {statistics.median(values):{form}}"


def merged(notes: Iterable[Note]) -> tuple[Note, ...]:
    """One note for each kind and detail, in order of first appearance."""
    by_kind: dict[tuple[str, str], Note] = {}
    for note in notes:
        key = (note.kind, note.detail)
        by_kind[key] = _merge(by_kind[key], note) if key in by_kind else note
    return tuple(by_kind.values())


def sentences(notes: Iterable[Note]) -> tuple[str, ...]:
    """The merged notes in words; shares of none are left out."""
    return tuple(str(note) for note in merged(notes) if note.hits != 0)


def _merge(first: Note, second: Note) -> Note:
    """Two notes of the same kind and detail as one."""
    hits, total = (first.hits or 0) + (second.hits or 0), (first.total or 0) + (second.total or 0)
    shares = first if first.total is None else replace(first, hits=hits, total=total)
    return replace(shares, values=(*(first.values or ()), *(second.values or ())) or None)
