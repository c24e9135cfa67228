"""What an examination found, in sentences: what the model relies on, how it was seen, how sure, and what to do next."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from auditkit.report.formatting import count, name
from auditkit.runs.folder.examination import Examination, Example, Finding, ProbeRate, Zone
from auditkit.runs.folder.results import Comparison, FindingChange

Names = Sequence[str] | Mapping[int, str]  # of the labels, as far as they are known
HEADING = "What the model relies on"
BASELINE_SIDES = ("the baseline", "this run")  # what the two runs of a comparison are called in a report
_EVERYWHERE = 0.8  # of the predictions stay when small patches are shuffled: the evidence has no place
_SHUFFLED = "patches shuffled, 8 x 8"

_TITLES = {
    "colour": "The model relies on the colour of the whole image, such as a colour cast",
    "fine pattern": "The model relies on a fine pattern of a few pixels, which hardly shows",
    "corner": "The model relies on something in {place}, such as a tag or a stamp",
    "border": "The model relies on the border of the image, such as a frame",
    "place": "The model relies on something at {place}, such as a stripe, a caption or a watermark",
    "background": "The model relies on the background, not on what lies in the middle",
    "mark": "The model relies on a small part of the image, such as a logo or a companion object",
}
_TO_DO = {
    "colour": "Look for what gives a label its colour, such as one camera or lamp for each class. Retrain with the "
              "colours varied, and examine again.",
    "fine pattern": "Look for what leaves such a pattern, such as a sensor, a compression or a synthetic image. Smooth "
                    "or resample the images, and examine again.",
    "corner": "Look at the corners of the images of each label. Crop or cover them, and examine again.",
    "border": "Look at the borders of the images of each label. Crop the images, and examine again.",
    "place": "Look at this part of the images. Crop or cover it, and examine again.",
    "background": "Collect images of each label with other backgrounds, or cut the objects out, and examine again.",
    "mark": "Check whether the part in the pictures belongs to the object. If it does not, collect images without "
            "it, and examine again.",
}  # fmt: skip
_PARTS = {
    "mean colour": "the mean colour", "fine residual": "the finest detail, in shuffled patches,",
    "thin frame": "a thin frame", "frame": "a frame", "corners": "the four corners",
    "surround": "everything but the middle",
    "tiny window": "two small squares (2 % of the image each), where the two images have their strongest evidence,",
    "small window": "two small squares (3 % of the image each), where the two images have their strongest evidence,",
    "medium window": "two squares (6 % of the image each), where the two images have their strongest evidence,",
}  # fmt: skip


def title(finding: Finding, names: Names) -> str:
    """The finding in a short sentence."""
    text = _TITLES[finding.kind].format(place=finding.place)
    if finding.kind == "mark" and not finding.place.startswith("varying"):
        text += f", at {finding.place}" if finding.place.startswith("the") else f", {finding.place}"
    return text if finding.label is None else f"{text}, where it predicts {label(finding.label, names)}"


def seen(finding: Finding, names: Sequence[str]) -> str:
    """What was seen, compared with what, and how sure it is."""
    part = _part(finding.exchange)
    ends = (
        "" if finding.low is None or finding.high is None else f", {_percent(finding.low)} to {_percent(finding.high)}"
    )
    if finding.label is None:
        text = (f"{part[:1].upper()}{part[1:]} came from another image, and nothing else was changed. The model then "
                f"predicted the other image's label in {_percent(finding.follows)} of the exchanges "
                f"({count(finding.n, 'image')}, each with several others{ends}).")  # fmt: skip
    else:
        text = (f"{count(finding.n, 'image')} of other labels got {part} from one that the model takes for "
                f"{label(finding.label, names)}. It then predicted this label in {_percent(finding.follows)} of them"
                f"{ends.replace(',', ' (', 1) + ')' if ends else ''}.")  # fmt: skip
    return (f"{text} By chance, after exchanges between images of other labels, the same label came up in "
            f"{_percent(finding.chance)}; more than {_percent(finding.limit)} counts as reliance.")  # fmt: skip


def how_many(finding: Finding, examination: Examination) -> str:
    """How many images have the cue."""
    return (f"In {finding.images} of {count(examination.images, 'image')} this part is enough to change the prediction "
            "for most others.")  # fmt: skip


def by_group(finding: Finding) -> list[str]:
    """How many images of each group have the cue, a sentence for each column."""
    texts = []
    for column, groups in (finding.groups or {}).items():
        counts = (f"{name(group, 60)} {entry.images} of {entry.n}" for group, entry in groups.items())
        texts.append(f"By {name(column)}: {', '.join(counts)}.")
    return texts


def to_do(finding: Finding) -> str:
    """What to do next."""
    return _TO_DO[finding.kind]


def changes(comparison: Comparison, sides: tuple[str, str]) -> list[str]:
    """What became of the findings about the model between two runs, a sentence or two each; `sides` name the runs."""
    examined = {side: run.examined for side, run in zip(sides, (comparison.a, comparison.b), strict=True)}
    missing = [f"The model of {side} was not examined." for side, images in examined.items() if images is None]
    if len(missing) == len(sides):
        return ["The model was examined in neither run."]
    texts = [_finding_change(change, sides) for change in comparison.findings]
    if not texts and not missing:
        counts = ", ".join(f"{side}: {count(images or 0, 'image')}" for side, images in examined.items())
        texts = [f"No shortcut was found in either run ({counts}). This does not show that there is none."]
    return [*texts, *missing]


def _finding_change(change: FindingChange, sides: tuple[str, str]) -> str:
    """A finding that one of two runs has, or both."""
    found = {side: finding for side, finding in zip(sides, (change.before, change.after), strict=True) if finding}
    where = f"In {' and in '.join(found)}" if len(found) == len(sides) else f"Only in {next(iter(found))}"
    last_found = list(found.values())[-1]
    names = {} if change.label_name is None or last_found.label is None else {last_found.label: change.label_name}
    facts = [f"severity {finding.severity}, followed in {_percent(finding.follows)} of the exchanges"
             f"{f', allowed by the policy: {finding.allowed}' if finding.allowed else ''}"
             for finding in found.values()]  # fmt: skip
    if len(found) == len(sides):
        facts = [f"{side}: {fact}" for side, fact in zip(found, facts, strict=True)]
    return f"{where}: {title(last_found, names)} ({'; '.join(facts)})."


def summary(examination: Examination, names: Sequence[str]) -> str:
    """The answer in a sentence or two."""
    counted = [finding for finding in examination.findings if not finding.allowed]
    if counted:
        return " ".join(f"{title(finding, names)}." for finding in counted)
    return ("No shortcut was found: where parts of images were exchanged, the prediction seldom followed the part. "
            "This does not show that there is none.")  # fmt: skip


def how(examination: Examination) -> str:
    """How the examination went."""
    confirming = examination.images - examination.proposing
    if not examination.proposals:
        return (f"One half, {count(examination.proposing, 'image')}, suggested no cue, so there was none to test on "
                f"the other {confirming}. A cue that only one of these images shows cannot be found.")  # fmt: skip
    proposed = "It was" if examination.proposals == 1 else "They were"
    return (f"{count(examination.proposals, 'possible cue')} came up in {count(examination.proposing, 'image')}. "
            f"{proposed} then tested on {confirming} others; a false finding has a probability of at most 5 %."
            )  # fmt: skip


def everywhere(examination: Examination) -> str:
    """That the evidence has no place, where it has none; else empty."""
    shuffled = next((probe for probe in examination.probes if probe.probe == _SHUFFLED), None)
    if shuffled is None or shuffled.agrees < _EVERYWHERE:
        return ""
    return (f"The evidence is everywhere: with small patches shuffled, {_percent(shuffled.agrees)} of the predictions "
            "stay the same. What the model reads is colour, texture or fine detail, not a shape, and no heatmap can "
            "show where it lies.")  # fmt: skip


def probe_value(probe: ProbeRate) -> str:
    """How often the prediction stays, with its interval."""
    return f"{_percent(probe.agrees)} ({_percent(probe.low)} to {_percent(probe.high)})"


def usual(of: Literal["exchanges", "probes"], name: str, value: float) -> str:
    """Where a rate ranks among those of other models: four public ones, and honest ones of drawn shapes."""
    others = _usual_rates()[of].get(name, [])
    if not others:
        return "–"
    below = sum(other < value for other in others)
    return f"{_percent(others[0])} to {_percent(others[-1])}; above {below} of {len(others)}"


@cache
def _usual_rates() -> dict[str, dict[str, list[float]]]:
    text = (Path(__file__).parent / "usual_rates.json").read_text("utf-8")
    rates: dict[str, dict[str, list[float]]] = json.loads(text)
    return rates


def placed(zone: Zone, examination: Examination, names: Sequence[str]) -> str:
    """Where the evidence of a label lies, and how often that is so of other labels and of edges."""
    of_all = next(other for other in examination.zones if other.label is None and other.place == zone.place)
    others = (of_all.images - zone.images) / max(of_all.n - zone.n, 1)
    return (f"In {zone.images} of {count(zone.n, 'image')} of {label(zone.label or 0, names)} the strongest evidence "
            f"lies in {zone.place} (other images: {_percent(others)}); the strongest edges lie there in {zone.edges}."
            )  # fmt: skip


def captions(example: Example, names: Sequence[str]) -> tuple[str, str, str]:
    """What the three images of an example are, from left to right."""
    before, after = label(example.before, names), label(example.after, names)
    return (
        f"taken for {before}",
        f"taken for {after}",
        f"with the framed part of the second: taken for {after}",
    )


def exchanged(example: Example, names: Sequence[str]) -> str:
    """What an example shows."""
    before, after = label(example.before, names), label(example.after, names)
    return f"{before} with the part of {after}: predicted as {after}"


def label(index: int, names: Names) -> str:
    """A label by its name, or by its number."""
    known = index in names if isinstance(names, Mapping) else index < len(names)
    return f"“{name(names[index])}”" if known else f"label {index}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _part(exchange: str) -> str:
    """What an exchange takes from the donor."""
    if exchange.startswith("band"):
        _, direction, percent, *_ = exchange.split()
        sides = {"across,": ("horizontal", "height"), "down,": ("vertical", "width")}
        return f"the {sides[direction][0]} band at {percent} % of the {sides[direction][1]}"
    return _PARTS.get(exchange, f"the {exchange}")
