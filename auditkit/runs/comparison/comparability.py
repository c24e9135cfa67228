"""Whether the figures of two runs are comparable, on which images, and what must be said beside them."""

from collections.abc import Iterable, Mapping

from auditkit.errors import BadInput
from auditkit.runs.comparison.finished_run import FinishedRun
from auditkit.runs.evaluation.settings import CONVENTIONS, IMAGE_PREFIX
from auditkit.runs.folder.results import CardValue, ModelFile, Results

SIDES = ("the first run", "the second run")
_SAME_SETTINGS = ("protocol", "labels", "renormalise", "steps", "range", "eps1", "eps2", "ties")
# Of a card: how a picture reaches the network.
_FRAME = ("size", "resize", "crop", "interpolation", "channels", "exif_orientation")
_VALUES = ("scale", "mean", "std")
_SIGNATURE = ("input", "output", "kind", "layout")
_INTERVALS = ("confidence", "interval")
_COMPUTED = ("device", "precision", "auditkit", "onnxruntime", "system")
_Value = CardValue | tuple[str, ...]


def common_infills(a: Results, b: Results) -> tuple[list[str], list[str]]:
    """The infills under which two runs are comparable, and notes on the others; BadInput lists all that differs."""
    first, second = a.settings.infill, b.settings.infill
    differing = _apart(vars(a.settings), vars(b.settings), _SAME_SETTINGS)
    if a.subject.classes != b.subject.classes:
        differing.append(f"classes {_both(a.subject.classes, b.subject.classes)}")
    reasons = {name: _why_other_infill(name, a, b) for name in dict.fromkeys((*first, *second))}
    common = [name for name, reason in reasons.items() if not reason]
    apart = [f"{name} ({reason})" for name, reason in reasons.items() if reason]
    if not common:
        because = f": {', '.join(apart)}" if first == second else ""
        differing.append(f"infill {_both(first, second)}{because}")
    if differing:
        raise BadInput(f"the runs are not comparable: they differ in {', '.join(differing)}. Use the same settings.")
    return common, [f"infill {text} is not compared" for text in apart]


def _why_other_infill(name: str, a: Results, b: Results) -> str:
    """Why hidden pixels were not replaced with the same in both runs; empty when they were."""
    if name not in a.settings.infill or name not in b.settings.infill:
        return "in one run only"
    if name.startswith(IMAGE_PREFIX):
        file = name.removeprefix(IMAGE_PREFIX)
        return "" if a.run.infill_images.get(file) == b.run.infill_images.get(file) else "the file's content differs"
    if name == "random" and (a.settings.draws, a.run.pool) != (b.settings.draws, b.run.pool):
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
        raise BadInput(f"the {len(both)} images of the same name have different contents in the runs; none is shared.")
    if len(same) < len(both):
        notes.append(f"{len(both) - len(same)} images have the same name but different content and are left out")
    return same


def _edge_digests(run: FinishedRun) -> dict[str, int]:
    """A digest of what the network saw of each image: that of the edges control; empty where it was not measured."""
    table = run.table
    digests = dict[str, int]()
    for images, of_images in table.edges():
        digests |= zip((table.images[image] for image in images), of_images.tolist(), strict=True)
    return digests


def caveats(a: FinishedRun, b: FinishedRun, images: list[str]) -> list[str]:
    """What a reader of the differences must know."""
    first, second = a.results, b.results
    notes = _other_predictions(a, b, images)
    if not same_model(first, second):
        notes.append(
            f"{_why_other_model(first, second)}, so no difference says which run is better: each is "
            "one of model and maps together. Maps of a model that relies on little, such as a "
            "shortcut, often have higher figures, since little evidence is enough for it"
        )
    notes += [
        f"the preprocessing of {side} is assumed"
        for side, results in zip(SIDES, (first, second), strict=True)
        if results.subject.card_origin.assumption is not None
    ]
    before, after = vars(first.settings), vars(second.settings)
    card_keys = ("gray",) if "gray" in first.settings.infill else ()
    differences = {
        "prepared differently": _preparation(first, second),
        "the gray infill has another colour": _apart(first.subject.card, second.subject.card, card_keys),
        "computed differently": _apart(first.environment, second.environment, _COMPUTED),
        "ties and draws differ by chance": _apart(before, after, ("seed",)),
        "measured with different conventions": _apart(before["conventions"], after["conventions"], CONVENTIONS),
        "intervals are made as in the first run": _apart(before, after, _INTERVALS),
    }
    notes += [f"{what}: {', '.join(values)}" for what, values in differences.items() if values]
    if (first.policy and first.policy.sha256) != (second.policy and second.policy.sha256):
        notes.append("judged by different policies: checks of the same name may ask different things")
    return notes


def _other_predictions(a: FinishedRun, b: FinishedRun, images: list[str]) -> list[str]:
    before, after = (dict(zip(run.table.images, run.table.prediction, strict=True)) for run in (a, b))
    moved = sum(before[name] != after[name] for name in images)
    if not moved or a.table.named:
        return []
    about = "insertion, deletion and the saliency metric are about each run's own"
    return [f"the predicted label differs on {moved} of {len(images)} images; {about}"]


def same_model(a: Results, b: Results) -> bool:
    """Whether two runs are known to be of the same model, prepared alike."""
    return _same_file(a, b) and not _preparation(a, b)


def _why_other_model(a: Results, b: Results) -> str:
    """Why two runs are not of the same model, or not known to be."""
    if _same_file(a, b):
        return "the model was prepared differently"
    unknown = a.subject.model == b.subject.model == "callable"
    return "the models are functions, which may differ" if unknown else "the models differ"


def _same_file(a: Results, b: Results) -> bool:
    """Whether two models have the same content; of two functions nobody knows."""
    first, second = a.subject.model, b.subject.model
    if not isinstance(first, ModelFile) or not isinstance(second, ModelFile):
        return False
    return first.identity == second.identity


def _preparation(a: Results, b: Results) -> list[str]:
    """What differs in how pictures reach the models and in which of their outputs are read."""
    first, second = a.subject, b.subject
    cards = _apart(first.card, second.card, (*_FRAME, *_VALUES))
    return [*cards, *_apart(vars(first), vars(second), _SIGNATURE)]


def _apart(first: Mapping[str, _Value], second: Mapping[str, _Value], names: Iterable[str]) -> list[str]:
    """Each name with both values, where they differ."""
    pairs = ((name, first.get(name), second.get(name)) for name in names)
    return [f"{name} {_both(before, after)}" for name, before, after in pairs if before != after]


def _both(first: _Value, second: _Value) -> str:
    return f"({_text(first)} / {_text(second)})"


def _text(value: _Value) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else f"{value}"[:80]
