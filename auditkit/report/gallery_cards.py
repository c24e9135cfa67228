"""The gallery as cards: an image, and for each of its labels the map, what it keeps and its curve."""

from collections.abc import Mapping
from typing import Any

from auditkit.report.formatting import exact, measured, name, number, percent, source
from auditkit.report.load_run import Loaded
from auditkit.report.svg import sparkline
from auditkit.report.tables import class_text

MOST_BYTES = 3_000_000  # of pictures in the page; the others stay in the run's folder
ROLES = ("worst", "median", "best")


def cards(loaded: Loaded, known: Mapping[int, str]) -> tuple[list[dict[str, Any]], int]:
    """The cards that there is room for, and how many there is none for."""
    if loaded.gallery is None:
        return [], 0
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for entry in loaded.gallery["entries"]:
        grouped.setdefault((entry["bundle"], entry["role"], entry["image"]), []).append(entry)
    kept = float(loaded.gallery.get("kept", 0.3))
    shown, left = dict[int, dict[str, Any]](), MOST_BYTES
    for at, entries in _in_turns(list(grouped.values())):
        card = _card(loaded, entries, known, kept)
        left -= card["bytes"]
        if left < 0:
            break
        shown[at] = card
    return [shown[at] for at in sorted(shown)], len(grouped) - len(shown)


def _in_turns(groups: list[list[dict[str, Any]]]) -> list[tuple[int, list[dict[str, Any]]]]:
    """The first of every bundle and role, then the second of each: what is cut off is cut evenly."""
    seen: dict[tuple[str, str], int] = {}
    turns = []
    for at, entries in enumerate(groups):
        key = (entries[0]["bundle"], entries[0]["role"])
        seen[key] = seen.get(key, 0) + 1
        turns.append((seen[key], at, entries))
    return [(at, entries) for _, at, entries in sorted(turns, key=lambda turn: turn[:2])]


def _card(loaded: Loaded, entries: list[dict[str, Any]], known: Mapping[int, str], kept: float) -> dict[str, Any]:
    first = entries[0]
    labels = [_label(loaded, entry, known, kept) for entry in entries]
    image = loaded.picture(str(first["pictures"].get("image"))) or ""
    figures = [("worst completeness", number(first.get("worst_completeness"))),
               ("worst soundness", number(first.get("worst_soundness")))]  # fmt: skip
    truth = "" if first.get("truth") is None else class_text(first["truth"], known)
    words = [name(first["image"]), truth, *(one["name"] for one in labels)]
    return {
        "image": name(first["image"]), "picture": image, "role": first["role"], "bundle": source(first["bundle"]),
        "truth": truth, "figures": figures, "labels": labels,
        "wrong": first.get("truth") is not None and bool(first["predicted"]) and first["truth"] != first["label"],
        "sort": {"completeness": _key(first.get("worst_completeness")), "soundness": _key(first.get("worst_soundness")),
                 "insertion": _key(first.get("insertion")), "probability": _key(first.get("prob"))},
        "tiny": image.startswith("data:image/png"), "search": " ".join(words).casefold(),
        "bytes": len(image) + sum(len(one["map"]) + len(one["kept"]) for one in labels),
    }  # fmt: skip


def _label(loaded: Loaded, entry: dict[str, Any], known: Mapping[int, str], kept: float) -> dict[str, Any]:
    said, pictures = class_text(entry["label"], known), entry["pictures"]
    curve = entry.get("curve") or {"keep": [], "score": []}
    about = f"Insertion curve of {said}: probability against share of pixels kept"
    return {
        "name": said, "kind": "predicted" if entry["predicted"] else "runner-up", "share": percent(kept),
        "map": loaded.picture(str(pictures.get("map"))) or "", "kept": loaded.picture(str(pictures.get("kept"))) or "",
        "curve": sparkline(curve["keep"], curve["score"], kept, about),
        "figures": [("f", measured(entry["prob"])), ("AUC", number(entry["insertion"])),
                    ("α", number(entry.get("alpha"))), ("β", number(entry.get("beta")))],
    }  # fmt: skip


def _key(value: Any) -> str:
    return "" if value is None else exact(float(value)) if value == 0 else f"{value:.6f}"
