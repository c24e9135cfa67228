"""How often a classifier is right on labelled images, and whether another preprocessing would make it righter."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auditkit.data.images import ImageSet
from auditkit.errors import BadInput
from auditkit.model import card as cards
from auditkit.model.card import Card
from auditkit.model.classifier import CallableClassifier, OnnxClassifier

CHUNK = 64
SAMPLE = 64  # images on which the other presets are tried
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

    def to_json(self) -> dict[str, Any]:
        """Plain object for `inspect --json`."""
        return {"top1": self.top1, "top5": self.top5, "correct": self.correct, "n": self.n}


def with_card(
    model: "OnnxClassifier | CallableClassifier", card: Card, images: ImageSet, positions: "np.ndarray[Any, Any]",
    tick: Callable[[int], None],
) -> Accuracy:  # fmt: skip
    """Accuracy on the chosen images when pictures are prepared as `card` says."""
    if images.labels is None:
        raise BadInput(
            f"{images.source} has no labels: give class folders, a CSV with a label column, or an .npz with labels."
        )
    before, model.card = model.card, card
    correct = correct_in_five = 0
    try:
        for start in range(0, len(positions), CHUNK):
            part = positions[start : start + CHUNK]
            probabilities = model.probabilities([images.picture(int(index)) for index in part])
            truth = images.labels[part]
            rank = (probabilities > probabilities[np.arange(len(part)), truth][:, None]).sum(axis=1)
            correct += int((probabilities.argmax(axis=1) == truth).sum())
            correct_in_five += int((rank < 5).sum())
            tick(len(part))
    finally:
        model.card = before
    return Accuracy(correct, correct_in_five, len(positions))


def better_preset(
    model: "OnnxClassifier | CallableClassifier", images: ImageSet, tick: Callable[[int], None]
) -> tuple[str, Accuracy, Accuracy] | None:
    """A preset that does far better than the model's card on a sample, with both accuracies; None when none does."""
    positions = np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().astype(int)
    own = with_card(model, model.card, images, positions, tick)
    if own.top1 > 1 - FAR_BETTER:
        return None
    best: tuple[str, Accuracy] | None = None
    for name in cards.PRESETS:
        card = replace(cards.from_preset(name, model.signature), size=model.card.size)
        if model.signature.dtype == "uint8" and name != "none":
            continue
        found = with_card(model, card, images, positions, tick)
        if best is None or found.correct > best[1].correct:
            best = name, found
    if best is None:
        return None
    chance = 2 * np.sqrt(max(own.top1 * (1 - own.top1), 1 / own.n) / own.n)
    return (best[0], best[1], own) if best[1].top1 > own.top1 + max(FAR_BETTER, chance) else None
