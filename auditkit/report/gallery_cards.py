"""The gallery as cards: an image, and for each of its labels the map, what it keeps and its curve."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from markupsafe import Markup

from auditkit.report.load_run import Loaded
from auditkit.report.svg import sparkline
from auditkit.report.tables import class_text
from auditkit.runs.pictures.gallery_index import GalleryEntry, LabelMatrix

_MOST_BYTES = 3_000_000  # of pictures in the page; the others stay in the run's folder


class LabelCard(NamedTuple):
    """A label of an image; its pictures are data URIs, empty where a file is missing."""

    entry: GalleryEntry
    name: str
    map: str
    kept: str
    curve: Markup


class MatrixRow(NamedTuple):
    """The log-odds of a label under the map of each label; a cell's class says if it is `own` or the `highest`."""

    name: str
    cells: list[tuple[float, str]]


class Card(NamedTuple):
    """An image with its labels; its picture is a data URI."""

    picture: str
    truth: str
    labels: list[LabelCard]
    matrix: list[MatrixRow]

    @property
    def entry(self) -> GalleryEntry:
        """The entry of the first label, whose figures of the image are those of all."""
        return self.labels[0].entry

    @property
    def wrong(self) -> bool:
        """Whether the model predicts another label than the given one."""
        return self.entry.predicted and self.entry.truth not in (None, self.entry.label)

    @property
    def size(self) -> int:
        """Characters of its pictures."""
        return len(self.picture) + sum(len(label.map) + len(label.kept) for label in self.labels)


def cards(loaded: Loaded, class_names: Mapping[int, str]) -> tuple[list[Card], int]:
    """The cards that there is room for, and how many there is none for."""
    groups: dict[tuple[str, str, str], list[GalleryEntry]] = {}
    for entry in loaded.gallery.entries if loaded.gallery else ():
        groups.setdefault((entry.bundle, entry.role, entry.image), []).append(entry)
    chosen, room = list[Card](), _MOST_BYTES
    for entries in _in_turns(list(groups.values())):
        card = _card(loaded, entries, class_names)
        room -= card.size
        if room < 0:
            break
        chosen.append(card)
    return chosen, len(groups) - len(chosen)


def _in_turns(groups: list[list[GalleryEntry]]) -> list[list[GalleryEntry]]:
    """The first of every bundle and role, then the second of each: what is cut off is cut evenly."""
    seen = Counter[tuple[str, str]]()
    turns = list[int]()
    for entries in groups:
        seen[entries[0].bundle, entries[0].role] += 1
        turns.append(seen[entries[0].bundle, entries[0].role])
    return [groups[index] for index in sorted(range(len(groups)), key=turns.__getitem__)]


def _card(loaded: Loaded, entries: list[GalleryEntry], class_names: Mapping[int, str]) -> Card:
    truth = entries[0].truth
    return Card(loaded.picture(entries[0].pictures.image), "" if truth is None else class_text(truth, class_names),
                [_label(loaded, entry, class_names) for entry in entries],
                list(_matrix(entries[0].matrix, class_names)))  # fmt: skip


def _matrix(matrix: LabelMatrix | None, class_names: Mapping[int, str]) -> Iterator[MatrixRow]:
    if matrix is None:
        return
    for index, (label, odds) in enumerate(zip(matrix.labels, matrix.log_odds, strict=True)):
        tones = [" ".join(["own"] * (column == index) + ["highest"] * (value == max(odds)))
                 for column, value in enumerate(odds)]  # fmt: skip
        yield MatrixRow(class_text(label, class_names), list(zip(odds, tones, strict=True)))


def _label(loaded: Loaded, entry: GalleryEntry, class_names: Mapping[int, str]) -> LabelCard:
    text, kept = class_text(entry.label, class_names), loaded.gallery.kept if loaded.gallery else 0.0
    about = f"Insertion curve of {text}: probability against share of pixels kept"
    curve = sparkline(entry.curve.keep, entry.curve.score, kept, about)
    return LabelCard(entry, text, loaded.picture(entry.pictures.map), loaded.picture(entry.pictures.kept), curve)
