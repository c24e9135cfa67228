"""How often a classifier is right on labelled images, and whether another preprocessing would make it righter."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.model import card as cards
from auditkit.model.card import Card
from auditkit.model.classifier import CallableClassifier, OnnxClassifier

CHUNK = 64
SAMPLE = 64  # images on which the other presets are tried
HOPE = 16  # images of it after which a preset is given up that cannot be good enough any more
FAR_BETTER = 0.05  # difference in accuracy from which a preset is worth a warning, beyond chance


@dataclass(frozen=True)
class Accuracy:
    """Correct answers among n labelled images."""

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
        """That on both sets of images together."""
        return Accuracy(self.correct + other.correct, self.correct_in_five + other.correct_in_five, self.n + other.n)

    def to_json(self) -> dict[str, Any]:
        """Plain object for `inspect --json`."""
        return {"top1": self.top1, "top5": self.top5, "correct": self.correct, "n": self.n}


@dataclass(frozen=True)
class Sampled:
    """Some of the images, how often the model is right on them, and a preset with which it is so far more often."""

    positions: Array
    own: Accuracy
    better: tuple[str, Accuracy] | None


def with_card(
    model: "OnnxClassifier | CallableClassifier", card: Card, images: Dataset, positions: Array,
    tick: Callable[[int], None],
) -> Accuracy:  # fmt: skip
    """Accuracy on the chosen images when pictures are prepared as `card` says."""
    if images.labels is None:
        raise BadInput(
            f"{images.source} has no labels: give class folders, a CSV with a label column, or an .npz with labels."
        )
    before, model.card = model.card, card
    found = Accuracy(0, 0, 0)
    try:
        for start in range(0, len(positions), CHUNK):
            part = positions[start : start + CHUNK]
            found += _right(model.probabilities([images.read(int(index)) for index in part]), images.labels[part])
            tick(len(part))
    finally:
        model.card = before
    return found


def sampled(model: "OnnxClassifier | CallableClassifier", images: Dataset, tick: Callable[[int], None]) -> Sampled:
    """How the model's card does on some of the images, and whether a preset does far better."""
    positions = np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().astype(int)
    own = with_card(model, model.card, images, positions, tick)
    chance = 2 * np.sqrt(max(own.top1 * (1 - own.top1), 1 / own.n) / own.n)
    bar = own.top1 + max(FAR_BETTER, chance)
    least = sum(count / own.n <= bar for count in range(own.n + 1))  # images that a better preset gets right
    better: tuple[str, Accuracy] | None = None
    for name in cards.PRESETS:
        card = replace(cards.from_preset(name, model.signature), size=model.card.size)
        if (model.signature.dtype == "uint8" and name != "none") or card.prepares_like(model.card):
            tick(own.n)
        elif found := _at_least(least, model, card, images, positions, tick):
            better, least = (name, found), found.correct + 1
    return Sampled(positions, own, better)


def _at_least(
    least: int, model: "OnnxClassifier | CallableClassifier", card: Card, images: Dataset, positions: Array,
    tick: Callable[[int], None],
) -> Accuracy | None:  # fmt: skip
    """Accuracy with that card, unless fewer are right; no more is asked when that is certain."""
    found = Accuracy(0, 0, 0)
    for start in range(0, len(positions), HOPE):
        if found.correct + len(positions) - start < least:
            tick(len(positions) - start)
            return None
        found += with_card(model, card, images, positions[start : start + HOPE], tick)
    return found if found.correct >= least else None


def _right(probabilities: Array, truth: Array) -> Accuracy:
    rank = (probabilities > probabilities[np.arange(len(truth)), truth][:, None]).sum(axis=1)
    return Accuracy(int((probabilities.argmax(axis=1) == truth).sum()), int((rank < 5).sum()), len(truth))
