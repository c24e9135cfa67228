"""Facts in words: the only place where flags, notes and reasons of an evaluation become sentences."""

from collections.abc import Iterable, Sequence

from auditkit.data.dataset import FailedImage
from auditkit.metrics.curves import Steps
from auditkit.metrics.values import NotAssessed, Note
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.figures import CONTROL, Flag, MetricResult, NotRandomised, Runtime, SamplingError
from auditkit.runs.summary.sampling_error import MATTERS


def why_not_assessed(missing: NotAssessed) -> str:
    """Why there is no figure, as the end of a sentence."""
    match missing.cause:
        case "no-map-for-predicted-label":
            return "no map for the predicted label"
        case "no-map-for-named-label":
            return "no map for a named label"
        case "maps-missing":
            return f"{missing.count} of {missing.total} maps are missing, and every label needs its own"
        case "only-predicted-label":
            return "the label set holds no other label than the predicted one"
        case "no-second-label":
            return f"no image has a second label with probability {missing.value:g} or more"
        case "no-second-label-above":
            return f"no image has a second label with probability above {missing.value:g}, so one map does for all"
        case "one-image-has-no-halves":
            return "delta is tuned on one half of the images; one image has no halves"
        case "not-measured":
            return "not measured"


def why_not_randomised(missing: NotRandomised) -> str:
    """Why nothing is known about the dependence on the model, as the end of a sentence."""
    match missing.cause:
        case "function":
            return "a function has no layers that could be re-initialised"
        case "supplied":
            return "the maps were supplied, so they cannot be made again for a re-initialised model"
        case "other-maps":
            return (
                f"the maps are not those that {missing.detail} made for this model, so that they cannot be made again "
                "for a changed one"
            )
        case "few-parameters":
            return f"{missing.detail} parameters are weights of layers that can be re-initialised, which is too few"
        case "no-maps" | "no-stage":
            return missing.detail


def note_text(note: Note) -> str:
    """What a figure rests on, as the end of a sentence."""
    match note.kind:
        case "one-image":
            return "one image shows no spread, so there is no interval"
        case "no-spread":
            return "all images have the same value, so the bootstrap sees no spread"
        case "equal-values":
            return f"all images have the same value; the interval allows for {note.value:.1%} of images that differ"
        case "few-images":
            return "too few images for an interval"
        case "tuned-delta":
            return f"delta {note.value:g}, tuned on {note.count} images"
        case "images-with-second-label":
            return f"{note.count} of {note.total} images have a second label in the label set"
        case "images-with-region":
            return f"{note.count} of {note.total} images have a region and a map for the label they show"


def remark(result: MetricResult) -> str:
    """Why a figure is missing or what it rests on; empty where nothing must be said."""
    if result.not_assessed is not None:
        return why_not_assessed(result.not_assessed)
    return "" if result.note is None else note_text(result.note)


def flag_text(flag: Flag, failed: Sequence[FailedImage] = (), runtime: Runtime | None = None, labels: str = "") -> str:
    """A flag as a sentence without its full stop; a bundle's name comes first."""
    share = f"{flag.count} of {flag.total}"
    match flag.kind:
        case "copies":
            return f"{share} images are copies of others"
        case "unusable-images":
            example = f", such as '{failed[0].image}': {failed[0].reason.removesuffix('.')}" if failed else ""
            return f"{share} images cannot be used and are left out{example}"
        case "images-without-label":
            return f"{share} images have no label in '{labels}' and are left out"
        case "runtime-off":
            return f"the runtime is off from strict float32 on the CPU by more than it may be{_changes(runtime)}"
        case "strict-precision-used":
            return (runtime.note if runtime else None) or "strict float32 is used"
        case "tie-order-matters":
            return f"{flag.bundle}: the order in ties moves insertion ({flag.infill}) by {flag.value:.3f} on average"
        case "maps-missing":
            return f"{flag.bundle}: {flag.count} maps are missing"
        case "same-map-for-all-labels":
            return f"{flag.bundle}: same-map-for-all-labels ({share} maps on images with several labels)"
        case "position-only":
            return f"{flag.bundle}: position-only ({share} maps are those of other images)"
        case "constant" | "ties":
            return f"{flag.bundle}: {flag.kind} ({share} maps)"


def _changes(runtime: Runtime | None) -> str:
    if runtime is None or runtime.insertion is None:
        return ""
    changes = (runtime.insertion, runtime.alpha or 0.0, runtime.beta or 0.0)
    return ": insertion {:.2g}, alpha {:.2g}, beta {:.2g} on average".format(*changes)


def remarks(metrics: Iterable[MetricResult]) -> list[tuple[str, str]]:
    """Why figures of the bundles are not assessed and what others rest on: the kind of remark, and the sentence."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for result in metrics:
        text = remark(result) if result.bundle and not result.is_control else ""
        if text:
            kind = "not assessed" if result.value is None else "note"
            grouped.setdefault((kind, result.bundle or "", text), []).append(result.name.replace("_", " "))
    return [(kind, f"{bundle}, {', '.join(dict.fromkeys(names))}: {text}")
            for (kind, bundle, text), names in grouped.items()]  # fmt: skip


def sampling_remarks(errors: Sequence[SamplingError], settings: Evaluation) -> list[str]:
    """A sentence for each bundle whose figures may be off by more than matters, or nobody knows by how much."""
    worst: dict[str, float | None] = {}
    for entry in errors:
        if not entry.bundle.startswith(CONTROL) and entry.n:
            before = worst.get(entry.bundle, 0.0)
            unknown = entry.error is None or before is None
            worst[entry.bundle] = None if unknown else max(before or 0.0, entry.error or 0.0)
    steps, way_out = _points(settings)
    sentences = []
    for bundle, error in worst.items():
        if error is None:
            sentences.append(f"points: with {steps} nobody knows how far a figure of {bundle} is off; {way_out}")
        elif error > MATTERS:
            sentences.append(f"points: with {steps} a figure of {bundle} may be off by {error:.3f}; {way_out}")
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
