"""Accuracy of a classifier on labelled images, and whether another preprocessing would raise it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.model import card as cards
from auditkit.model.card import Card
from auditkit.model.classifier import AnyClassifier

CHUNK = 64  # images classified at once
SAMPLE = 64  # images on which the other presets are tried
GIVE_UP_AFTER = 16  # images: how often a preset is checked for whether it can still be good enough
FAR_BETTER = 0.05  # difference in accuracy from which a preset is worth a warning, beyond chance


@dataclass(frozen=True)
class Accuracy:
    """Correct predictions among n labelled images."""

    correct: int
    correct_in_five: int
    n: int

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
        return Accuracy(self.correct + other.correct, self.correct_in_five + other.correct_in_five, self.n + other.n)

    def to_json(self) -> dict[str, float]:
        """Plain object for `inspect --json`."""
        return {"top1": self.top1, "top5": self.top5, "correct": self.correct, "n": self.n}


@dataclass(frozen=True)
class SampleAccuracy:
    """How often the model is right on some of the images, and a preset with which it is right far more often."""

    positions: Array
    accuracy: Accuracy
    better_preset: tuple[str, Accuracy] | None


def accuracy_with_card(
    model: AnyClassifier, card: Card, images: Dataset, positions: Array, tick: Callable[[int], None]
) -> Accuracy:
    """Accuracy on the images at these positions when they are preprocessed as `card` says."""
    if images.labels is None:
        raise BadInput(
            f"{images.source} has no labels: give class folders, a CSV with a label column, or an .npz with labels."
        )
    before, model.card = model.card, card
    accuracy = Accuracy(0, 0, 0)
    try:
        for start in range(0, len(positions), CHUNK):
            chunk = positions[start : start + CHUNK]
            prob = model.probabilities([images.read(int(position)) for position in chunk])
            accuracy += _accuracy(prob, images.labels[chunk])
            tick(len(chunk))
    finally:
        model.card = before
    return accuracy


def accuracy_on_sample(model: AnyClassifier, images: Dataset, tick: Callable[[int], None]) -> SampleAccuracy:
    """Accuracy of the model's card on some of the images, and whether a preset does far better."""
    positions = np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().astype(int)
    accuracy = accuracy_with_card(model, model.card, images, positions, tick)
    chance = 2 * np.sqrt(max(accuracy.top1 * (1 - accuracy.top1), 1 / accuracy.n) / accuracy.n)
    bar = accuracy.top1 + max(FAR_BETTER, chance)
    least = sum(count / accuracy.n <= bar for count in range(accuracy.n + 1))  # images a better preset gets right
    better_preset: tuple[str, Accuracy] | None = None
    for name in cards.PRESETS:
        card = replace(cards.from_preset(name, model.signature), size=model.card.size)
        if (model.signature.dtype == "uint8" and name != "none") or card.prepares_like(model.card):
            tick(accuracy.n)
            continue
        candidate = _at_least(least, model, card, images, positions, tick)
        if candidate is not None:
            better_preset, least = (name, candidate), candidate.correct + 1
    return SampleAccuracy(positions, accuracy, better_preset)


def _at_least(
    least: int, model: AnyClassifier, card: Card, images: Dataset, positions: Array, tick: Callable[[int], None]
) -> Accuracy | None:
    """Accuracy with that card, or None as soon as fewer than `least` images can be right."""
    accuracy = Accuracy(0, 0, 0)
    for start in range(0, len(positions), GIVE_UP_AFTER):
        if accuracy.correct + len(positions) - start < least:
            tick(len(positions) - start)
            return None
        accuracy += accuracy_with_card(model, card, images, positions[start : start + GIVE_UP_AFTER], tick)
    return accuracy if accuracy.correct >= least else None


def _accuracy(probabilities: Array, truth: Array) -> Accuracy:
    rank = (probabilities > probabilities[np.arange(len(truth)), truth][:, None]).sum(axis=1)
    return Accuracy(int((probabilities.argmax(axis=1) == truth).sum()), int((rank < 5).sum()), len(truth))
