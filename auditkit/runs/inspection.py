"""Facts about a model file before any heatmap is made, its accuracy included: what `auditkit inspect` shows."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import Dataset, FailedImage
from auditkit.errors import BadInput
from auditkit.graph.gradient import Missing, missing_rules
from auditkit.metrics.statistics import FEWEST_VALUES
from auditkit.model import card as cards
from auditkit.model.card import Card, to_toml
from auditkit.model.classifier import AnyClassifier, OnnxClassifier, Opening, open_file
from auditkit.model.session import Settings
from auditkit.model.signature import to_probabilities
from auditkit.runs.evaluation.images import none_usable
from auditkit.runs.executor import Progress, blamed_on, silent

SCHEMA_VERSION = 1
CHUNK = 64  # images classified at once
SAMPLE = 64  # images on which the other presets are tried
GIVE_UP_AFTER = 16  # images: how often a preset is checked for whether it can still be good enough
FAR_BETTER = 0.05  # difference in accuracy from which a preset is worth a warning, beyond chance


@dataclass(frozen=True)
class Accuracy:
    """Correct predictions among n labelled images, and the images that cannot be used."""

    correct: int = 0
    correct_in_five: int = 0
    n: int = 0
    failed: tuple[FailedImage, ...] = ()

    @property
    def top1(self) -> float:
        """Share whose best label is the right one."""
        return self.correct / self.n

    @property
    def top5(self) -> float:
        """Share with the right label among the best five."""
        return self.correct_in_five / self.n

    def __add__(self, other: "Accuracy") -> "Accuracy":
        """Accuracy on both sets of images together."""
        correct, in_five = self.correct + other.correct, self.correct_in_five + other.correct_in_five
        return Accuracy(correct, in_five, self.n + other.n, self.failed + other.failed)

    def to_json(self) -> dict[str, float]:
        """Plain object for `inspect --json`."""
        return {"top1": self.top1, "top5": self.top5, "correct": self.correct, "n": self.n}


@dataclass(frozen=True)
class Inspection:
    """A model and facts about it."""

    model: OnnxClassifier
    accuracy: Accuracy | None
    missing: tuple[Missing, ...]  # operators that no gradient rule is known for
    guesses: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The object that `inspect --json` prints."""
        file, signature, settings = self.model.file, self.model.signature, self.model.settings
        accuracy = {} if self.accuracy is None else {"accuracy": self.accuracy.to_json()}
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
            **accuracy,
            "guesses": list(self.guesses),
            "warnings": list(self.warnings),
        }  # fmt: skip


def inspect(
    path: Path, opening: Opening, settings: Settings, images: Path | None = None, progress: Progress = silent
) -> Inspection:
    """What a model file is; with labelled images, also how accurate it is and whether its card can be right."""
    model = open_file(path, opening, settings)
    guesses, warnings, accuracy = model.signature.guesses, model.signature.warnings, None
    if images is not None:
        labelled = Dataset.open(images, model.signature.classes, model.card.names)
        guesses += labelled.notes
        accuracy, warning = _measure_accuracy(model, labelled, progress)
        warnings += warning
        if accuracy.failed:
            counts = f"{len(accuracy.failed)} of {len(labelled)} images cannot be used and are left out"
            warnings += (f"{counts}; the first, '{accuracy.failed[0].image}': {accuracy.failed[0].reason}",)
    missing = tuple(missing_rules(model.file.proto, model.signature.input, model.signature.output))
    return Inspection(model, accuracy, missing, guesses, (*warnings, *model.card.warnings))


def _measure_accuracy(model: OnnxClassifier, images: Dataset, progress: Progress) -> tuple[Accuracy, tuple[str, ...]]:
    """Accuracy on all images, and a warning where a preset does far better; it replaces a card that was assumed."""
    tick = progress(len(images) + min(SAMPLE, len(images)) * len(cards.PRESETS))
    positions, accuracy, better_preset = accuracy_on_sample(model, images, tick)
    warnings: tuple[str, ...] = ()
    if better_preset is not None:
        name, better = better_preset
        figures = f"{better.correct} of {better.n} right with preset '{name}', {accuracy.correct} with"
        if model.card.origin.assumed:
            origin = cards.Origin(preset=name, assumed="assumed, by accuracy")
            model.card, accuracy = replace(_preset(name, model), origin=origin), better
            warning = f"preset '{name}' was chosen by accuracy ({figures} the usual one); write a card to settle it."
        else:
            warning = f"the card is probably wrong: {figures} {model.card.origin}."
        warnings = (warning,)
    rest = np.setdiff1d(np.arange(len(images)), positions)
    return accuracy + _accuracy_with_card(model, model.card, images, rest, tick), warnings


def accuracy_on_sample(
    model: AnyClassifier, images: Dataset, tick: Callable[[int], None]
) -> tuple[Array, Accuracy, tuple[str, Accuracy] | None]:
    """Positions of some of the images, the accuracy on them, and a preset that does far better, with its accuracy."""
    positions = np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().astype(int)
    accuracy = _accuracy_with_card(model, model.card, images, positions, tick)
    if not accuracy.n:
        raise none_usable(len(positions), accuracy.failed)
    chance = 1.0  # few images show no difference
    if accuracy.n >= FEWEST_VALUES:
        chance = 2 * np.sqrt(max(accuracy.top1 * (1 - accuracy.top1), 1 / accuracy.n) / accuracy.n)
    bar = accuracy.top1 + max(FAR_BETTER, chance)
    least = sum(count / accuracy.n <= bar for count in range(accuracy.n + 1))  # images a better preset gets right
    better_preset: tuple[str, Accuracy] | None = None
    for name in cards.PRESETS:
        card = replace(_preset(name, model), size=model.card.size)
        if (model.signature.dtype == "uint8" and name != "none") or card.prepares_like(model.card):
            tick(accuracy.n)
            continue
        candidate = _at_least(least, model, card, images, positions, tick)
        if candidate is not None:
            better_preset, least = (name, candidate), candidate.correct + 1
    return positions, accuracy, better_preset


def _preset(name: str, model: AnyClassifier) -> Card:
    """The card of a preset; pictures are turned or not as the model's own card says."""
    return replace(cards.from_preset(name, model.signature), exif_orientation=model.card.exif_orientation)


def _at_least(
    least: int, model: AnyClassifier, card: Card, images: Dataset, positions: Array, tick: Callable[[int], None]
) -> Accuracy | None:
    """Accuracy with that card, or None as soon as fewer than `least` images can be right."""
    accuracy = Accuracy()
    for start in range(0, len(positions), GIVE_UP_AFTER):
        if accuracy.correct + len(positions) - start < least:
            tick(len(positions) - start)
            return None
        accuracy += _accuracy_with_card(model, card, images, positions[start : start + GIVE_UP_AFTER], tick)
    return accuracy if accuracy.correct >= least else None


def _accuracy_with_card(
    model: AnyClassifier, card: Card, images: Dataset, positions: Array, tick: Callable[[int], None]
) -> Accuracy:
    """Accuracy on the images at these positions when they are preprocessed as `card` says."""
    if images.labels is None:
        raise BadInput(f"{images.source} has no labels: give class folders, or a CSV or .npz with labels.")
    before, model.card = model.card, card
    accuracy = Accuracy()
    try:
        for start in range(0, len(positions), CHUNK):
            every = positions[start : start + CHUNK]
            inputs, failed = _inputs(model, images, every)
            tick(len(every))
            if not inputs:
                accuracy += Accuracy(failed=failed)
                continue
            with blamed_on([images.ids[position] for position in inputs]):
                scores = model.scores(np.concatenate(list(inputs.values())))
            prob, truth = to_probabilities(scores, model.signature.kind), images.labels[list(inputs)]
            rank = (prob > prob[np.arange(len(truth)), truth][:, None]).sum(axis=1)
            accuracy += Accuracy(int((prob.argmax(axis=1) == truth).sum()), int((rank < 5).sum()), len(truth), failed)
    finally:
        model.card = before
    return accuracy


def _inputs(
    model: AnyClassifier, images: Dataset, positions: Array
) -> tuple[dict[int, Array], tuple[FailedImage, ...]]:
    """The network's input [1, ...] for each image at these positions, and the images that cannot be used."""
    inputs, failed = dict[int, Array](), list[FailedImage]()
    for position in positions.tolist():
        try:
            inputs[position] = model.preprocess([images.read(position)])
        except BadInput as error:
            failed.append(FailedImage(images.ids[position], str(error)))
    return inputs, tuple(failed)


def write_card(inspection: Inspection, target: Path, *, force: bool) -> None:
    """Write the card in use beside the model, unless there is one already."""
    model = inspection.model
    text = to_toml(model.card, model.signature, model.file.path.name)
    if target.is_symlink():  # --force would write to whatever it points at
        raise BadInput(f"{target} is a symbolic link; name another place with --card.")
    try:
        with target.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise BadInput(f"{target} exists already; edit it, or overwrite it with --force.") from None
    except OSError as error:
        raise BadInput(f"the card {target} cannot be written: {error.strerror}.") from None
