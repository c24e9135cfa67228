"""The gallery as cards: an image, and for each of its labels the map, what it keeps and its curve."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from auditkit.report.formatting import exact, measured, name, number, percent, source
from auditkit.report.load_run import Loaded
from auditkit.report.svg import sparkline
from auditkit.report.tables import class_text

if TYPE_CHECKING:
    from auditkit.runs.pictures.gallery import GalleryEntry

_MOST_BYTES = 3_000_000  # of pictures in the page; the others stay in the run's folder
_DEFAULT_KEPT = 0.3  # share of the pixels, where the gallery does not say
ROLES = ("worst", "median", "best")


class LabelCard(NamedTuple):
    """A label of an image; its pictures are data URIs."""

    name: str
    kind: str
    share: str
    map: str
    kept: str
    curve: Markup
    figures: list[tuple[str, str]]


class Card(NamedTuple):
    """An image with its labels; its picture is a data URI."""

    image: str
    picture: str
    role: str
    bundle: str
    truth: str
    figures: list[tuple[str, str]]
    labels: list[LabelCard]
    wrong: bool
    sort: dict[str, str]

    @property
    def tiny(self) -> bool:
        """Whether the picture is so small that it was kept as PNG."""
        return self.picture.startswith("data:image/png")

    @property
    def search(self) -> str:
        """The words that the reader can find the card by."""
        return " ".join([self.image, self.truth, *(label.name for label in self.labels)]).casefold()

    @property
    def size(self) -> int:
        """Characters of its pictures."""
        return len(self.picture) + sum(len(label.map) + len(label.kept) for label in self.labels)


def cards(loaded: Loaded, class_names: Mapping[int, str]) -> tuple[list[Card], int]:
    """The cards that there is room for, and how many there is none for."""
    if loaded.gallery is None:
        return [], 0
    groups: dict[tuple[str, str, str], list[GalleryEntry]] = {}
    for entry in loaded.gallery["entries"]:
        groups.setdefault((entry["bundle"], entry["role"], entry["image"]), []).append(entry)
    kept = float(loaded.gallery.get("kept", _DEFAULT_KEPT))
    chosen, room = dict[int, Card](), _MOST_BYTES
    for position, entries in _in_turns(list(groups.values())):
        card = _card(loaded, entries, class_names, kept)
        room -= card.size
        if room < 0:
            break
        chosen[position] = card
    return [chosen[position] for position in sorted(chosen)], len(groups) - len(chosen)


def _in_turns(groups: "list[list[GalleryEntry]]") -> "list[tuple[int, list[GalleryEntry]]]":
    """The first of every bundle and role, then the second of each: what is cut off is cut evenly."""
    seen: dict[tuple[str, str], int] = {}
    turns = []
    for position, entries in enumerate(groups):
        key = (entries[0]["bundle"], entries[0]["role"])
        seen[key] = seen.get(key, 0) + 1
        turns.append((seen[key], position, entries))
    return [(position, entries) for _, position, entries in sorted(turns, key=lambda turn: turn[:2])]


def _card(loaded: Loaded, entries: "list[GalleryEntry]", class_names: Mapping[int, str], kept: float) -> Card:
    first = entries[0]
    truth, complete, sound = first.get("truth"), first.get("worst_completeness"), first.get("worst_soundness")
    return Card(
        name(first["image"]), loaded.picture(str(first["pictures"].get("image"))) or "", first["role"],
        source(first["bundle"]), truth="" if truth is None else class_text(truth, class_names),
        figures=[("worst completeness", number(complete)), ("worst soundness", number(sound))],
        labels=[_label(loaded, entry, class_names, kept) for entry in entries],
        wrong=truth is not None and bool(first["predicted"]) and truth != first["label"],
        sort={"completeness": _sort_key(complete), "soundness": _sort_key(sound),
              "insertion": _sort_key(first.get("insertion")), "probability": _sort_key(first.get("prob"))},
    )  # fmt: skip


def _label(loaded: Loaded, entry: "GalleryEntry", class_names: Mapping[int, str], kept: float) -> LabelCard:
    text, pictures = class_text(entry["label"], class_names), entry["pictures"]
    about = f"Insertion curve of {text}: probability against share of pixels kept"
    return LabelCard(
        text, "predicted" if entry["predicted"] else "runner-up", percent(kept),
        map=loaded.picture(str(pictures.get("map"))) or "", kept=loaded.picture(str(pictures.get("kept"))) or "",
        curve=sparkline(entry["curve"]["keep"], entry["curve"]["score"], kept, about),
        figures=[("f", measured(entry["prob"])), ("AUC", number(entry["insertion"])),
                 ("α", number(entry.get("alpha"))), ("β", number(entry.get("beta")))],
    )  # fmt: skip


def _sort_key(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.6f}" if value else exact(float(value))
