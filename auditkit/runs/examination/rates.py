"""How often the prediction follows the donor of a part, and whether that is more than a limit."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.exchanges import EXCHANGES, Exchange
from auditkit.runs.examination.material import Material, Predict


@dataclass(frozen=True)
class Outcome:
    """What the model predicts after an exchange, for every pair."""

    exchange: Exchange
    material: Material
    seen: Array  # [pairs], the predicted label

    @property
    def follows(self) -> Array:
        """Whether the prediction is the donor's [pairs]."""
        return np.asarray(self.seen == self.material.predicted[self.material.pairs[:, 1]])

    @property
    def stays(self) -> Array:
        """Whether the prediction is still the recipient's [pairs]."""
        return np.asarray(self.seen == self.material.predicted[self.material.pairs[:, 0]])

    def chance(self, label: int) -> float:
        """How often this label is predicted where neither image has it: some models fall back on one label."""
        recipients, donors = self.material.predicted[self.material.pairs].T
        neither = (recipients != label) & (donors != label)
        return float((self.seen[neither] == label).mean()) if neither.any() else 0.0

    def by_donor(self, chosen: Array) -> Array:
        """Share of the partners whose prediction follows, for each of the chosen donors [N] that has partners."""
        donors = self.material.pairs[:, 1]
        counts = np.bincount(donors, minlength=len(chosen))
        sums = np.bincount(donors, weights=self.follows, minlength=len(chosen))
        used = chosen & (counts > 0)
        return np.asarray(sums[used] / counts[used])


def outcomes(material: Material, predict: Predict) -> Iterator[Outcome]:
    """The outcome of every exchange."""
    sides, pairs = material.sides, material.pairs
    for exchange in EXCHANGES:
        images = [exchange.mix(sides[recipient], sides[donor]) for recipient, donor in pairs]
        yield Outcome(exchange, material, predict(images).argmax(axis=1))
