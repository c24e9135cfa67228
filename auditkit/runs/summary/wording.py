"""Facts in words: the only place where flags, notes and reasons of an evaluation become sentences.

The tables are templates: `{0}` is the fact, whose fields are named.
"""

from collections.abc import Iterable, Sequence

from auditkit.data.dataset import FailedImage
from auditkit.metrics.betting import MOST_TIMES
from auditkit.metrics.curves import Steps
from auditkit.metrics.table import title
from auditkit.metrics.values import Cause, NotAssessed, Note, NoteKind
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.figures import (
    CONTROL,
    Flag,
    FlagKind,
    MetricResult,
    MoreImages,
    NotRandomised,
    Runtime,
    SamplingError,
)
from auditkit.runs.summary.sampling_error import MOST_SAMPLING_ERROR

CONTROLS = {"random": "random map", "centred-gaussian": "centred Gaussian", "constant": "constant map",
            "edges": "edges", "blurred-edges": "blurred edges", "noisy-gaussian": "Gaussian with noise",
            "noisy-edges": "edges with noise", "one-map": "one map for all labels"}  # fmt: skip
_TAKE_AN_ARTICLE = tuple(f"{CONTROL}{name}" for name in ("random", "centred-gaussian", "constant", "noisy-gaussian"))
_WHY_NOT_ASSESSED: dict[Cause, str] = {
    "no-map-for-predicted-label": "no map for the predicted label",
    "no-map-for-named-label": "no map for a named label",
    "maps-missing": "{0.count} of {0.total} maps are missing: add one for every label with "
    "Bundle.add(ids, {{label: maps}}), or name the labels you have with --labels",
    "only-predicted-label": "the label set has no label other than the predicted one",
    "no-second-label": "no image has a second label with probability {0.value:g} or more",
    "no-second-label-above": "no image has a second label with probability above {0.value:g}, so one map serves all",
    "one-image-has-no-halves": "delta is tuned on one half of the images; one image has no halves",
    "not-measured": "not measured",
    "one-label": "no image has a second label in the label set, whose map could be compared",
    "too-many-labels": "an image has more than {0.count} labels in the label set; name fewer",
}
_WHY_NOT_RANDOMISED = {
    "function": "a function has no layers that could be re-initialised",
    "supplied": "the maps were supplied, so they cannot be made again for a re-initialised model",
    "other-maps": "{0.detail} did not make these maps for this model, so it cannot make them again for a changed one",
    "few-parameters": "{0.detail} parameters are weights of layers that can be re-initialised, which is too few",
    "no-maps": "{0.detail}",
    "no-stage": "{0.detail}",
}
_NOTES: dict[NoteKind, str] = {
    "no-spread": "all images have the same value, so the bootstrap sees no spread",
    "equal-values": "all images have the same value; the interval allows for {0.value:.1%} of images that differ",
    "few-images": "too few images for an interval",
    "tuned-delta": "delta {0.value:g}, tuned on {0.count} images",
    "images-with-second-label": "{0.count} of {0.total} images have a second label in the label set",
    "clipped": "{0.count} of {0.total} images lie beyond ±{0.value:g} and are clipped",
    "images-with-region": "{0.count} of {0.total} images have a region and a map for the label they show",
}
_FLAGS: dict[FlagKind, str] = {
    "copies": "{0.count} of {0.total} images are copies of others, so the intervals are too narrow",
    "unusable-images": "{0.count} of {0.total} images cannot be used and are left out",
    "images-without-label": "{0.count} of {0.total} images have no label in '{labels}' and are left out",
    "runtime-off": "figures differ from strict float32 on the CPU by more than is acceptable",
    "strict-precision-used": "strict float32 is used",
    "tie-order-matters": "{0.bundle}: the order of tied pixels changes insertion ({0.infill}) by {0.value:.3f} (mean)",
    "maps-missing": "{0.bundle}: {0.count} maps are missing",
    "same-map-for-all-labels": "{0.bundle}: {0.count} of {0.total} maps on images with several labels are the "
                               "same for all of them, so they do not tell one label from another",
    "position-only": "{0.bundle}: {0.count} of {0.total} maps are those of other images, so they do not depend on the "
                     "image that they are for",
    "constant": "{0.bundle}: {0.count} of {0.total} maps are constant, so they mark no pixel",
    "ties": "{0.bundle}: many pixels are tied in {0.count} of {0.total} maps, so their order is drawn at random",
}  # fmt: skip


# How often chance alone gives a verdict; of maps that were made to meet the limits it says nothing.
BY_CHANCE = {
    "pass": "If a limit of the policy is not met on all images like these, a pass comes up in at most 5 % of audits, "
    "even if you add images and audit again. That is about which images were drawn, not about fakes: maps that were "
    "made to meet the limits pass.",
    "fail": "If every limit of the policy is met on all images like these, a fail comes up in at most 5 % of audits, "
    "even if you add images and audit again.",
}


def source_name(source: str | None) -> str:
    """Whose maps a figure is about, as a table names them; controls have plain names."""
    if source is None or not source.startswith(CONTROL):
        return source or "the model"
    kind, _, bundle = source.removeprefix(CONTROL).partition(":")
    return f"{CONTROLS.get(kind, kind)}{f' ({bundle})' if bundle else ''}"


def source_text(source: str) -> str:
    """The same within a sentence."""
    return f"{'a ' if source in _TAKE_AN_ARTICLE else ''}{source_name(source)}"


def why_not_assessed(missing: NotAssessed) -> str:
    """Why there is no figure, as the end of a sentence."""
    return _WHY_NOT_ASSESSED[missing.cause].format(missing)


def why_not_randomised(missing: NotRandomised) -> str:
    """Why nothing is known about the dependence on the model, as the end of a sentence."""
    return _WHY_NOT_RANDOMISED[missing.cause].format(missing)


def note_text(note: Note) -> str:
    """What a figure rests on, as the end of a sentence."""
    return _NOTES[note.kind].format(note)


def remark(result: MetricResult) -> str:
    """Why a figure is missing or what it rests on; empty where nothing must be said."""
    if result.not_assessed is not None:
        return why_not_assessed(result.not_assessed)
    return "" if result.note is None else note_text(result.note)


def flag_text(flag: Flag, failed: Sequence[FailedImage] = (), runtime: Runtime | None = None, labels: str = "") -> str:
    """A flag as a sentence without its full stop; a bundle's name comes first."""
    text = _FLAGS[flag.kind].format(flag, labels=labels)
    if flag.kind == "unusable-images" and failed:
        return f"{text}, such as '{failed[0].image}': {failed[0].reason.removesuffix('.')}"
    if flag.kind == "runtime-off" and runtime is not None and runtime.insertion is not None:
        changes = ", ".join(f"{name} {change:.2g}" for name, change in runtime.changes.items())
        return f"{text}: {changes} on average"
    if flag.kind == "strict-precision-used" and runtime is not None:
        return runtime.note or text
    return text


def more_images_text(more: MoreImages) -> str:
    """How many images would decide one check, beside its result."""
    if more.total is None:
        return f"Even {MOST_TIMES} times as many images like these would hardly decide it."
    return f"{_about(more.total, each_group=more.each_group)} would decide it, one way or the other."


def images_to_add(open_checks: Sequence[tuple[str, MoreImages]]) -> str:
    """How many images would decide open checks, each of which is named, in a sentence or two."""
    parts = [[entry for entry in open_checks if entry[1].each_group is each_group] for each_group in (False, True)]
    return " ".join(_images_to_add(part) for part in parts if part)


def _images_to_add(open_checks: Sequence[tuple[str, MoreImages]]) -> str:
    totals = [more.total for _, more in open_checks if more.total is not None]
    decidable = " and ".join(f"“{name}”" for name, more in open_checks if more.total is not None)
    hopeless = " and ".join(f"“{name}”" for name, more in open_checks if more.total is None)
    about = _about(max(totals, default=0), each_group=open_checks[0][1].each_group)
    even = f"even {MOST_TIMES} times as many would hardly decide {hopeless}"
    if not hopeless:
        return f"{about} would decide {decidable}, one way or the other."
    if not totals:
        return f"More images would hardly help: {even}."
    return f"{about} would decide {decidable}, but {even}: more images may lead to a fail, and hardly to a pass."


def _about(images: int, *, each_group: bool) -> str:
    return f"About {images:,} images {'of each group' if each_group else 'like these in total'}"


def remarks(metrics: Iterable[MetricResult]) -> list[tuple[str, str]]:
    """Why figures of the bundles are not assessed and what others rest on: the kind of remark, and the sentence."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for result in metrics:
        text = remark(result) if result.bundle and not result.is_control else ""
        if text:
            kind = "not assessed" if result.value is None else "note"
            grouped.setdefault((kind, result.bundle or "", text), []).append(title(result.name))
    return [(kind, f"{bundle}, {', '.join(dict.fromkeys(names))}: {text}")
            for (kind, bundle, text), names in grouped.items()]  # fmt: skip


def sampling_remarks(errors: Sequence[SamplingError], settings: Evaluation) -> list[str]:
    """A sentence for each bundle whose figures may be off by more than matters, or by an unknown amount."""
    by_bundle: dict[str, list[float | None]] = {}
    for entry in errors:
        if not entry.bundle.startswith(CONTROL) and entry.n:
            by_bundle.setdefault(entry.bundle, []).append(entry.error)
    steps, remedy = _points(settings)
    sentences = []
    for bundle, bundle_errors in by_bundle.items():
        largest = max((error for error in bundle_errors if error is not None), default=0.0)
        if None in bundle_errors:
            sentences.append(f"points: with {steps}, it is unknown how far figures of {bundle} are off; {remedy}")
        elif largest > MOST_SAMPLING_ERROR:
            sentences.append(f"points: with {steps}, a figure of {bundle} may be off by {largest:.3f}; {remedy}")
    return sentences


def _points(settings: Evaluation) -> tuple[str, str]:
    """How many points curves have, in words, and what would give better figures."""
    steps = settings.steps or Steps("exact")
    if settings.protocol is not None:
        return f"the points and areas of {settings.protocol}", "without --protocol, --steps auto finds what it needs"
    if steps.rule == "auto":
        return f"steps {steps}", f"--steps auto:{steps.tolerance / 5:g} asks for more points"
    return f"{steps.count} step{'s' if steps.count > 1 else ''}", "--steps auto finds what it needs"


def figure_text(result: MetricResult) -> str:
    """Value and interval for a table."""
    if result.value is None:
        return "not assessed"
    if result.low is None or result.high is None:
        return f"{result.value:.3f}"
    low, high = (_short(end) for end in (result.low, result.high))
    return f"{result.value:.3f} ({low}{' to ' if result.low < 0 else '-'}{high})"


def _short(value: float) -> str:
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text
