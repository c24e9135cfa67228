"""Whether the figures of two runs are comparable, on which images, and what must be said beside them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from auditkit.errors import BadInput
from auditkit.runs.comparison.finished_run import FinishedRun
from auditkit.runs.evaluation.settings import CONVENTIONS, IMAGE_PREFIX
from auditkit.runs.folder.figures import CONTROL
from auditkit.runs.folder.results import CardValue, ModelFile, Results, Settings

_SAME_SETTINGS = ("protocol", "labels", "renormalise", "steps", "range", "eps1", "eps2", "ties")
_FRAME = ("size", "resize", "crop", "interpolation", "channels")  # of a card: how a picture reaches the network
_INTERVALS = ("confidence", "interval")
_COMPUTED = ("device", "precision", "auditkit", "onnxruntime", "system")
_EDGES = f"{CONTROL}edges"
_Value = CardValue | tuple[str, ...]


@dataclass(frozen=True)
class Conditions:
    """What must agree for the figures of two runs to be comparable."""

    settings: Settings
    classes: int
    pool: str | None
    infill_images: Mapping[str, str]

    @classmethod
    def of(cls, results: Results) -> "Conditions":
        """The conditions of a finished run."""
        return cls(results.settings, results.subject.classes, results.run.pool, results.run.infill_images)


def common_infills(a: Conditions, b: Conditions) -> tuple[list[str], list[str]]:
    """The infills under which two runs are comparable, and notes on the others; BadInput lists all that differs."""
    first, second = a.settings.infill, b.settings.infill
    differing = _settings_apart(a.settings, b.settings, _SAME_SETTINGS)
    if a.classes != b.classes:
        differing.append(f"classes {_both(a.classes, b.classes)}")
    reasons = {name: _why_other_infill(name, a, b) for name in dict.fromkeys((*first, *second))}
    common = [name for name, reason in reasons.items() if not reason]
    apart = [f"{name} ({reason})" for name, reason in reasons.items() if reason]
    if not common:
        because = f": {', '.join(apart)}" if first == second else ""
        differing.append(f"infill {_both(first, second)}{because}")
    if differing:
        raise BadInput(
            f"the runs are not comparable: they differ in {', '.join(differing)}. Measure both with the same settings."
        )
    return common, [f"infill {text} is not compared" for text in apart]


def _why_other_infill(name: str, a: Conditions, b: Conditions) -> str:
    """Why hidden pixels were not replaced with the same in both runs; empty when they were."""
    if name not in a.settings.infill or name not in b.settings.infill:
        return "in one run only"
    if name.startswith(IMAGE_PREFIX):
        file = name.removeprefix(IMAGE_PREFIX)
        return "" if a.infill_images.get(file) == b.infill_images.get(file) else "the file has another content"
    if name == "random" and (a.settings.draws, a.pool) != (b.settings.draws, b.pool):
        return "another pool or number of draws"
    return ""


def shared_images(a: FinishedRun, b: FinishedRun, notes: list[str]) -> list[str]:
    """The images that both runs have: the same name, and the same content as far as the runs can tell."""
    in_second = set(b.table.images)
    both = [name for name in a.table.images if name in in_second]
    if not both:
        names = f"'{a.table.images[0]}' in the first, '{b.table.images[0]}' in the second"
        raise BadInput(f"no image has the same name in both runs ({names}); measure both on the same images.")
    first, second = a.results.subject, b.results.subject
    if first.images.digest == second.images.digest:
        return both
    before, after = _edge_digests(a), _edge_digests(b)
    if _apart(first.card, second.card, _FRAME) or not (before and after):
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


def _edge_digests(run: FinishedRun) -> dict[str, int]:
    """A digest of what the network saw of each image: that of the edges control; empty where it was not measured."""
    table = run.table
    if _EDGES not in table.sources:
        return {}
    rows = np.flatnonzero((table.source == table.sources.index(_EDGES)) & ~table.failed())
    return {table.images[table.image[row]]: int(table.column("map_digest")[row]) for row in rows}


def caveats(a: FinishedRun, b: FinishedRun, images: list[str]) -> list[str]:
    """What a reader of the differences must know."""
    first, second = a.results, b.results
    notes = _other_predictions(a, b, images)
    if _model(first) != _model(second):
        notes.append(
            "the models differ: a difference is that of model and maps together, and says nothing of the maps alone"
        )
    gray = _apart(first.subject.card, second.subject.card, ("gray",))
    if gray and "gray" in first.settings.infill:
        notes.append(f"the gray infill is another colour: {', '.join(gray)}")
    if computed := _apart(first.environment, second.environment, _COMPUTED):
        notes.append(f"computed differently: {', '.join(computed)}")
    if seeds := _settings_apart(first.settings, second.settings, ("seed",)):
        notes.append(f"ties and draws differ by chance: {', '.join(seeds)}")
    if conventions := _apart(first.settings.conventions, second.settings.conventions, CONVENTIONS):
        notes.append(f"measured by other conventions: {', '.join(conventions)}")
    if intervals := _settings_apart(first.settings, second.settings, _INTERVALS):
        notes.append(f"intervals are made as in the first run: {', '.join(intervals)}")
    if _policy(first) != _policy(second):
        notes.append("judged by different policies: checks of the same name may ask different things")
    return notes


def _other_predictions(a: FinishedRun, b: FinishedRun, images: list[str]) -> list[str]:
    before, after = (dict(zip(run.table.images, run.table.prediction, strict=True)) for run in (a, b))
    moved = sum(before[name] != after[name] for name in images)
    if not moved or a.table.named:
        return []
    about = "insertion, deletion and the saliency metric are about each run's own"
    return [f"the predicted label is another on {moved} of {len(images)} images; {about}"]


def _model(results: Results) -> str:
    model = results.subject.model
    return model.identity if isinstance(model, ModelFile) else model


def _policy(results: Results) -> str | None:
    return None if results.policy is None else results.policy.sha256


def _settings_apart(first: Settings, second: Settings, names: tuple[str, ...]) -> list[str]:
    return _apart(vars(first), vars(second), names)


def _apart(first: Mapping[str, _Value], second: Mapping[str, _Value], names: Iterable[str]) -> list[str]:
    """Each name with both values, where they differ."""
    pairs = ((name, first.get(name), second.get(name)) for name in names)
    return [f"{name} {_both(before, after)}" for name, before, after in pairs if before != after]


def _both(first: _Value, second: _Value) -> str:
    return f"({_text(first)} / {_text(second)})"


def _text(value: _Value) -> str:
    if isinstance(value, tuple):
        return " ".join(_text(held) for held in value)
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else f"{value}"[:80]
