"""Facts about a model file before any heatmap is made, its accuracy included: what `auditkit inspect` shows."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from auditkit.arrays import Array
from auditkit.data.atomic_write import write_whole
from auditkit.data.dataset import Dataset, Decoded, FailedImage
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.graph.dequantise import is_quantised
from auditkit.graph.gradient import Missing, missing_rules
from auditkit.metrics.statistics import share_interval
from auditkit.model import card as cards
from auditkit.model import decoder, passes
from auditkit.model.card import Card, to_toml
from auditkit.model.classifier import AnyClassifier, OnnxClassifier, Opening, open_file
from auditkit.model.device import CPU, sums_may_overflow
from auditkit.model.preprocessing import normalised
from auditkit.model.session import Settings
from auditkit.model.signature import to_probabilities
from auditkit.runs.evaluation.images import none_usable
from auditkit.runs.executor import Progress, errors_naming, silent

SCHEMA_VERSION = 1
CHUNK = 64  # images classified at once
SAMPLE = 64  # images on which the other presets are tried
GIVE_UP_AFTER = 16  # images: how often a preset is checked for whether it can still be as good as the best
CONFIDENCE = 0.98  # that two presets differ: in one comparison of a hundred the worse one seems the better
LARGEST_OWN_SIDE = 512  # pixels; larger pictures are photographs, which networks take smaller
_OVERFLOW = (
    "this processor has no VNNI, so the runtime's sums of eight-bit products can overflow: scores of this quantised "
    "model may differ from those on newer processors. Audit it on one with VNNI, on ARM or on a GPU."
)
_Model = TypeVar("_Model", bound=AnyClassifier)


@dataclass(frozen=True)
class Accuracy:
    """The rank of the right label of each image that can be used, by position; 0 is the prediction."""

    ranks: Mapping[int, int] = field(default_factory=dict)
    failed: tuple[FailedImage, ...] = ()

    @property
    def n(self) -> int:
        """Labelled images that can be used."""
        return len(self.ranks)

    @property
    def correct(self) -> int:
        """Images whose best label is the right one."""
        return sum(rank == 0 for rank in self.ranks.values())

    @property
    def top1(self) -> float:
        """Share whose best label is the right one."""
        return self.correct / self.n

    @property
    def top5(self) -> float:
        """Share with the right label among the best five."""
        return sum(rank < 5 for rank in self.ranks.values()) / self.n

    def __add__(self, other: "Accuracy") -> "Accuracy":
        """Accuracy on both sets of images together."""
        return Accuracy({**self.ranks, **other.ranks}, self.failed + other.failed)

    def beats(self, other: "Accuracy") -> bool:
        """Whether this is right more often than the other, beyond chance, on images where one of them is wrong."""
        right = {position for position, rank in self.ranks.items() if rank == 0}
        differing = right ^ {position for position, rank in other.ranks.items() if rank == 0}
        differing &= self.ranks.keys() & other.ranks.keys()
        low = share_interval(len(differing & right), len(differing), CONFIDENCE).low if differing else None
        return low is not None and low > 1 / 2

    def to_json(self) -> dict[str, float]:
        """Plain object for `inspect --json`."""
        return {"top1": self.top1, "top5": self.top5, "correct": self.correct, "n": self.n}


@dataclass(frozen=True)
class PresetTrial:
    """Accuracy on some of the images with the model's card, and with the presets that do as well as any."""

    positions: Array
    accuracy: Accuracy
    card_fits: bool  # whether the card cannot be told apart from the best preset
    presets: Mapping[str, Accuracy]  # others that cannot be told apart from the best one, which comes first

    def alike(self, names: Sequence[str]) -> str:
        """The sentence that these presets cannot be told apart from the one in use; empty without any."""
        counts = [f"{name} ({self.presets[name].correct} of {self.presets[name].n})" for name in names]
        presets = " and ".join(filter(None, (", ".join(counts[:-1]), *counts[-1:])))
        return f"{presets} cannot be told apart from it with {self.accuracy.n} images" if counts else ""


@dataclass(frozen=True)
class Inspection:
    """A model and facts about it."""

    model: OnnxClassifier
    accuracy: Accuracy | None
    trial: PresetTrial | None
    missing: tuple[Missing, ...]  # operators that no gradient rule is known for
    guesses: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The object that `inspect --json` prints."""
        file, signature, settings = self.model.file, self.model.signature, self.model.settings
        measured: dict[str, object] = {}
        if self.accuracy is not None and self.trial is not None:
            presets = {name: accuracy.to_json() for name, accuracy in self.trial.presets.items()}
            measured = {"accuracy": self.accuracy.to_json(), "presets_alike": presets}
        return {
            "schema_version": SCHEMA_VERSION,
            "model": {
                "path": str(file.path), "sha256": file.sha256, "opset": file.opset,
                "ir_version": file.proto.ir_version, "bytes": file.bytes, "producer": file.producer,
                "external": dict(file.external),
            },
            "input": {
                "name": signature.input, "layout": signature.layout, "dtype": signature.dtype,
                "shape": list(signature.shape), "size": [signature.height, signature.width],
                "channels": signature.channels, "batch": signature.batch, "rows": signature.rows,
            },
            "output": {"name": signature.output, "kind": signature.kind, "classes": signature.classes},
            "card": self.model.card.to_json(),
            "device": {
                "device": settings.device, "precision": settings.precision, "threads": settings.threads,
                "batch": settings.batch or "measured", "arena": settings.arena, "memory_bytes": settings.memory_bytes,
            },
            "gradient": {"supported": not self.missing, "missing": [asdict(entry) for entry in self.missing]},
            **measured,
            "guesses": list(self.guesses),
            "warnings": list(self.warnings),
        }  # fmt: skip


def inspect(
    path: Path, opening: Opening, settings: Settings, images: Path | None = None, progress: Progress = silent
) -> Inspection:
    """What a model file is; with labelled images, also how accurate it is and whether its card can be right."""
    if images is not None:
        decoder.start_for(images)
    model = open_file(path, opening, settings)
    warnings, accuracy, trial, notes = tuple[str, ...](), None, None, tuple[str, ...]()
    if images is not None:
        labelled = Dataset.open(images, model.signature.classes, model.card.names)
        model = at_own_size(model, labelled, lambda size: open_file(path, opening.at(size), settings))
        accuracy, trial, warnings = _measure_accuracy(model, labelled, progress)
        notes = labelled.notes
        if accuracy.failed:
            counts = f"{len(accuracy.failed)} of {len(labelled)} images cannot be used and are left out"
            warnings += (f"{counts}; the first, '{accuracy.failed[0].image}': {accuracy.failed[0].reason}",)
    graph = passes.inlined(model.file.proto, model.settings)
    missing = tuple(missing_rules(graph, model.signature.input, model.signature.output))
    if model.device is CPU and is_quantised(model.file.proto) and sums_may_overflow():
        warnings += (_OVERFLOW,)
    origin = model.card.origin
    if origin.assumption and origin.assumed != "assumed, by accuracy":  # that has a warning of its own
        warnings += (str(origin.assumption),)
    warnings = (*model.signature.warnings, *warnings, *model.card.warnings)
    return Inspection(model, accuracy, trial, missing, model.signature.guesses + notes, warnings)


def at_own_size(model: _Model, images: Dataset, reopen: Callable[[tuple[int, int]], _Model]) -> _Model:
    """The model reopened at the images' size where nobody stated one and all images share it; else as it is."""
    size = images.common_size(model.card.exif_orientation) if model.signature.guessed_size else None
    if size is None or max(size) > LARGEST_OWN_SIDE or size == model.card.size:
        return model
    try:
        resized = reopen(size)
    except BadInput:  # it does not run at that size
        return model
    guess = f"input size {size[0]}x{size[1]}, that of the images: the file leaves it open; --size sets another"
    resized.card = replace(resized.card, origin=replace(resized.card.origin, assumed_size=size))
    resized.signature = replace(resized.signature, guesses=(*resized.signature.guesses, guess))
    return resized


def _measure_accuracy(
    model: OnnxClassifier, images: Dataset, progress: Progress
) -> tuple[Accuracy, PresetTrial, tuple[str, ...]]:
    """Accuracy on all images, and warnings; a preset that does better replaces a card that was assumed."""
    tick = progress(len(images) + min(SAMPLE, len(images)) * len(cards.PRESETS))
    trial, warnings = try_presets(model, images, tick), list[str]()
    accuracy = trial.accuracy
    if not accuracy.n:
        raise none_usable(len(trial.positions), accuracy.failed)
    if not trial.card_fits:
        name, *others = trial.presets
        better, alike = trial.presets[name], trial.alike(others)
        figures = f"{better.correct} of {better.n} right with preset '{name}', {accuracy.correct} with"
        if model.card.origin.assumed:
            model.card, accuracy = _chosen_by_accuracy(name, model), better
            text = f"preset '{name}' was chosen by accuracy ({figures} the usual one); write a card to settle it"
        else:
            text = f"the card is probably wrong: {figures} {model.card.origin}"
        warnings.append(f"{text}{alike and '; '}{alike}.")
    rest = np.setdiff1d(np.arange(len(images)), trial.positions)
    accuracy += _accuracy_with_card(model, model.card, images, rest, tick)
    low, guessing = share_interval(accuracy.correct, accuracy.n).low, 1 / model.signature.classes
    if low is not None and low <= guessing:
        counts = f"{accuracy.correct} of {accuracy.n} right is no better than guessing ({100 * guessing:.2g} %)"
        warnings.append(f"{counts}: check the order of the labels, the preset and --size.")
    return accuracy, trial, tuple(warnings)


def settle_preprocessing(model: AnyClassifier, images: Dataset, progress: Progress = silent) -> None:
    """Replace a preset that was assumed by one with which the model predicts more of the given labels."""
    if not model.card.origin.assumed or images.labels is None:
        return
    with suppress(RuntimeFailure):  # the work itself says on which image the model fails
        trial = try_presets(model, images, progress(min(SAMPLE, len(images)) * (1 + len(cards.PRESETS))))
        if not trial.card_fits:
            model.card = _chosen_by_accuracy(next(iter(trial.presets)), model)


def _chosen_by_accuracy(name: str, model: AnyClassifier) -> Card:
    origin = replace(model.card.origin, preset=name, assumed="assumed, by accuracy")
    return replace(_preset(name, model), origin=origin)


def try_presets(model: AnyClassifier, images: Dataset, tick: Callable[[int], None]) -> PresetTrial:
    """The accuracy with the model's card and with the presets on some of the images."""
    positions = np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().astype(int)
    own = best = _accuracy_with_card(model, model.card, images, positions, tick)
    candidates = dict[str, Accuracy]()
    for name in cards.PRESETS:
        card = replace(_preset(name, model), size=model.card.size)
        if (model.signature.dtype == "uint8" and name != "none") or card.prepares_like(model.card):
            tick(len(positions))
            continue
        accuracy = _unless_beaten(best, model, card, images, positions, tick)
        if accuracy is not None:
            candidates[name] = accuracy
            best = max(best, accuracy, key=lambda one: one.correct)
    order = sorted(candidates, key=lambda name: -candidates[name].correct)
    alike = {name: candidates[name] for name in order if not best.beats(candidates[name])}
    return PresetTrial(positions, own, not best.beats(own), alike)


def _preset(name: str, model: AnyClassifier) -> Card:
    """The card of a preset; pictures are turned or not as the model's own card says."""
    return replace(cards.from_preset(name, model.signature), exif_orientation=model.card.exif_orientation)


def _unless_beaten(
    best: Accuracy, model: AnyClassifier, card: Card, images: Dataset, positions: Array, tick: Callable[[int], None]
) -> Accuracy | None:
    """Accuracy with that card; None as soon as the best so far beats it."""
    accuracy = Accuracy()
    for start in range(0, len(positions), GIVE_UP_AFTER):
        if best.beats(accuracy):
            tick(len(positions) - start)
            return None
        accuracy += _accuracy_with_card(model, card, images, positions[start : start + GIVE_UP_AFTER], tick)
    return accuracy


def _accuracy_with_card(
    model: AnyClassifier, card: Card, images: Dataset, positions: Array, tick: Callable[[int], None]
) -> Accuracy:
    """Accuracy on the images at these positions when they are preprocessed as `card` says."""
    if images.labels is None:
        raise BadInput(f"{images.source} has no labels: give class folders, or a CSV or .npz with labels.")
    accuracy = Accuracy()
    for start in range(0, len(positions), CHUNK):
        every = positions[start : start + CHUNK].tolist()
        decoded, failed = dict[int, Decoded](), list[FailedImage]()
        for position, image in images.decode_many(every, card).items():
            if isinstance(image, FailedImage):
                failed.append(image)
            else:
                decoded[position] = image
        tick(len(every))
        with errors_naming([images.ids[position] for position in decoded]):
            ranks = _ranks(model, card, decoded, images.labels[[*decoded]])
        accuracy += Accuracy(ranks, tuple(failed))
    return accuracy


def _ranks(model: AnyClassifier, card: Card, decoded: Mapping[int, Decoded], labels: Array) -> dict[int, int]:
    """How many classes the model ranks before the label of each image."""
    if not decoded:
        return {}
    pixels = np.stack([image.pixels for image in decoded.values()])
    scores = model.scores(normalised(card, pixels, model.signature.layout, model.signature.dtype))
    prob = to_probabilities(scores, model.signature.kind)
    ranks = np.argsort(-prob, axis=1, kind="stable").argsort(axis=1)[np.arange(len(labels)), labels]
    return dict(zip(decoded, ranks.tolist(), strict=True))


def write_card(inspection: Inspection, target: Path, *, force: bool) -> None:
    """Write the card in use beside the model, unless there is one already."""
    model = inspection.model
    text = to_toml(model.card, model.signature, model.file.path.name)
    if os.path.lexists(target) and not force:
        raise BadInput(f"{target} already exists; edit it, or overwrite it with --force.")
    write_whole(target, text.encode(), BadInput)
