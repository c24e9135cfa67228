"""Whether what is read from results.json has the form that audit and evaluate write."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from auditkit.errors import BadInput

FIGURE = ("name", "bundle", "infill", "value", "low", "high", "n")
ENTRIES: dict[str, tuple[str, ...]] = {  # lists of objects, with what each object must say
    "checks": ("id", "status"), "metrics": FIGURE, "controls": FIGURE, "comparisons": FIGURE,
    "classes": (*FIGURE, "class"), "reliability": ("name",), "failed_images": ("image", "reason"),
    "points": ("bundle", "infill", "error"),
}  # fmt: skip
SENTENCES = ("flags", "limitations")  # lists of them
TEXTS = ("verdict", "verdict_reason")  # or null
PARTS: dict[str, tuple[str, ...]] = {  # objects or null, with what each must say
    "tool": ("name", "version"), "subject": ("model", "images"), "settings": ("labels", "infill"),
    "policy": ("name", "sha256"), "run": (), "environment": (), "software": (), "randomisation": (), "explained": (),
    "baseline": (), "runtime": (),
}  # fmt: skip
NUMBERS = ("value", "low", "high", "observed", "limit")  # of an entry; null where there is none


def well_formed(results: Mapping[str, Any], where: Path) -> None:
    """Refuse results whose parts are not of the kind that readers count on; those that are absent are not missed."""
    for name in (*PARTS, *TEXTS, *SENTENCES, *ENTRIES):
        if name in results and (wrong := _wrong(name, results[name])):
            raise BadInput(f"{where}: {name} {wrong}; it is not what audit or evaluate wrote.")


def _wrong(name: str, value: Any) -> str:
    """What is wrong with a part, empty where nothing is."""
    if name in PARTS:
        return _wrong_part(name, value)
    if name in TEXTS:
        return "" if isinstance(value, str | None) else "is not a text"
    if not isinstance(value, list):
        return "is not a list"
    if name in SENTENCES:
        return "" if all(isinstance(one, str) for one in value) else "is not a list of sentences"
    return next(filter(None, (_wrong_entry(name, place, one) for place, one in enumerate(value))), "")


def _wrong_part(name: str, value: Any) -> str:
    if not isinstance(value, dict | None):
        return "is not an object"
    lacking = [] if value is None else [key for key in PARTS[name] if key not in value]
    return f"has no {lacking[0]}" if lacking else ""


def _wrong_entry(name: str, place: int, entry: Any) -> str:
    if not isinstance(entry, dict):
        return f"has an entry, number {place}, that is not an object"
    if lacking := [key for key in ENTRIES[name] if key not in entry]:
        return f"has an entry, number {place}, without {lacking[0]}"
    odd = [key for key in NUMBERS if not isinstance(entry.get(key), int | float | None)]
    return f"has an entry, number {place}, whose {odd[0]} is not a number" if odd else ""
