"""Whether figures of two runs are of the same kind, on which images, and what must be said beside them."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from auditkit.errors import BadInput
from auditkit.runs.evaluation.settings import CONTROL, CONVENTIONS, IMAGE_PREFIX

if TYPE_CHECKING:
    from auditkit.runs.comparison.compare import Run

SAME = ("protocol", "labels", "renormalise", "steps", "range", "eps1", "eps2", "ties")  # parts of a figure's name
FRAME = ("size", "resize", "crop", "interpolation", "channels")  # of a card: how a picture reaches the network
INTERVALS = ("confidence", "interval")
COMPUTED = ("device", "precision", "auditkit", "onnxruntime", "system")
EDGES = f"{CONTROL}edges"


def infills(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The infills under which two runs compare, and notes on the others; refused with all that differs at once."""
    mine, theirs = a["settings"], b["settings"]
    differ = _apart(mine, theirs, SAME) + _apart(a["subject"], b["subject"], ("classes",))
    known = {name: _other_infill(name, a, b) for name in dict.fromkeys((*mine["infill"], *theirs["infill"]))}
    kept, alone = [name for name, why in known.items() if not why], [f"{n} ({why})" for n, why in known.items() if why]
    if not kept:
        differ.append(f"infill {_both(mine['infill'], theirs['infill'])}" + _because(alone, mine, theirs))
    if differ:
        raise BadInput(f"the runs do not compare: they differ in {', '.join(differ)}. Measure both with the same.")
    return kept, [f"infill {said} is not compared" for said in alone]


def _because(alone: list[str], mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    return f": {', '.join(alone)}" if mine["infill"] == theirs["infill"] else ""


def _other_infill(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Why hidden pixels were not replaced with the same in both runs; empty when they were."""
    if not all(name in run["settings"]["infill"] for run in (a, b)):
        return "in one run only"
    if name.startswith(IMAGE_PREFIX):
        first, second = ((run["run"].get("infill_images") or {}).get(name.removeprefix(IMAGE_PREFIX)) for run in (a, b))
        return "" if first == second else "the file has another content"
    if name == "random":
        drawn = _apart(a["settings"], b["settings"], ("draws",)) + _apart(a["run"], b["run"], ("pool",))
        return "another pool or number of draws" if drawn else ""
    return ""


def images(a: "Run", b: "Run", notes: list[str]) -> list[str]:
    """The images that both runs have: the same name, and the same content as far as the runs can tell."""
    theirs = set(b.items.images)
    both = [name for name in a.items.images if name in theirs]
    if not both:
        named = f"'{a.items.images[0]}' in the first, '{b.items.images[0]}' in the second"
        raise BadInput(f"no image has the same name in both runs ({named}); measure both on the same images.")
    subjects = a.results["subject"], b.results["subject"]
    if subjects[0]["images"]["digest"] == subjects[1]["images"]["digest"]:
        return both
    before, after = _edges(a), _edges(b)
    if _apart(subjects[0]["card"], subjects[1]["card"], FRAME) or not (before and after):
        notes.append(
            "the runs were given different sets of images, and nothing in them proves that an image of the same name "
            "has the same content"
        )
        return both
    same = [name for name in both if name in before and before[name] == after.get(name)]
    if not same:
        raise BadInput(f"the {len(both)} images of the same name have other contents in the two runs; none is shared.")
    if len(same) < len(both):
        notes.append(f"{len(both) - len(same)} images have the same name but another content and are left out")
    return same


def _edges(run: "Run") -> dict[str, int]:
    """A digest of what the network saw of each image, for the edges control draws nothing else; empty without it."""
    items = run.items
    if EDGES not in items.sources:
        return {}
    rows = np.flatnonzero((items.source == items.sources.index(EDGES)) & ~items.failed())
    return {items.images[items.image[row]]: int(items.column("map_digest")[row]) for row in rows}


def doubts(a: "Run", b: "Run", shared: list[str]) -> list[str]:
    """What a reader of the differences must know."""
    first, second = a.results, b.results
    cards, settings = [run["subject"]["card"] for run in (first, second)], (first["settings"], second["settings"])
    conventions = settings[0].get("conventions") or {}, settings[1].get("conventions") or {}
    policies = [run.get("policy") or {} for run in (first, second)]
    grays = _apart(cards[0], cards[1], ("gray",)) if "gray" in settings[0]["infill"] else []
    said = (
        ("the models differ: a difference is that of model and maps together, and says nothing of the maps alone",
         _model(first) != _model(second)),
        ("the gray infill is another colour: {}", grays),
        ("computed differently: {}", _apart(first["environment"], second["environment"], COMPUTED)),
        ("measured by other conventions: {}", _apart(*conventions, CONVENTIONS)),
        ("ties and draws differ by chance: {}", _apart(*settings, ("seed",))),
        ("intervals are made as in the first run: {}", _apart(*settings, INTERVALS)),
        ("judged by different policies: checks of the same name may ask different things",
         policies[0].get("sha256") != policies[1].get("sha256")),
    )  # fmt: skip
    listed = [text.format(", ".join(why) if isinstance(why, list) else "") for text, why in said if why]
    return _other_labels(a, b, shared) + listed


def _other_labels(a: "Run", b: "Run", shared: list[str]) -> list[str]:
    before, after = (dict(zip(run.items.images, run.items.prediction, strict=True)) for run in (a, b))
    moved = sum(before[name] != after[name] for name in shared)
    if not moved or a.items.named:
        return []
    about = "insertion, deletion and the saliency metric are about each run's own"
    return [f"the predicted label is another on {moved} of {len(shared)} images; {about}"]


def _model(results: Mapping[str, Any]) -> Any:
    model = results["subject"]["model"]
    return model["identity"] if isinstance(model, dict) else model


def _apart(mine: Mapping[str, Any], theirs: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Each name with both values, where they differ."""
    return [f"{name} {_both(mine.get(name), theirs.get(name))}" for name in names if mine.get(name) != theirs.get(name)]


def _both(mine: Any, theirs: Any) -> str:
    return "({} / {})".format(*(_said(value) for value in (mine, theirs)))


def _said(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_said, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else f"{value}"[:80]
