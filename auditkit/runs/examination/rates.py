"""How often the prediction follows the donor of a part, and whether that is more than a limit."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

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

    @cached_property
    def follows(self) -> Array:
        """Whether the prediction is the donor's, and was not before [pairs]."""
        return np.asarray((self.seen == self.material.pair_labels[:, 1]) & self.material.differ)

    @property
    def stays(self) -> float:
        """How often the prediction is still the recipient's, where the donor's is another."""
        return float((self.seen == self.material.pair_labels[:, 0])[self.material.differ].mean())

    def chances(self, labels: Array, donors: Array) -> Array:
        """How often each label is predicted where neither image has it: some models fall back on one label."""
        chosen = donors[self.material.pairs[:, 1]]
        neither = (self.material.pair_labels[chosen, :, None] != labels).all(axis=1)
        seen = (self.seen[chosen, None] == labels) & neither
        return np.asarray(seen.sum(axis=0) / np.maximum(neither.sum(axis=0), 1))

    def mean_chance(self, donors: Array) -> float:
        """The same for the donors' own labels, on average."""
        labels, counts = np.unique(self.material.predicted[donors], return_counts=True)
        return float(np.average(self.chances(labels, donors), weights=counts))

    @cached_property
    def rates(self) -> Array:
        """Share of its partners whose prediction follows, of each donor [N]; NaN where it has none."""
        donors, images = self.material.pairs[:, 1], len(self.material.ids)
        counts = np.bincount(donors, weights=self.material.differ, minlength=images)
        sums = np.bincount(donors, weights=self.follows, minlength=images)
        return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))

    def by_donor(self, chosen: Array) -> Array:
        """The rates of the chosen donors [N] that have partners."""
        return np.asarray(self.rates[chosen & ~np.isnan(self.rates)])


def outcomes(material: Material, predict: Predict) -> Iterator[Outcome]:
    """The outcome of every exchange."""
    sides, pairs = material.sides, material.pairs
    for exchange in EXCHANGES:
        images = [exchange.mix(sides[recipient], sides[donor]) for recipient, donor in pairs]
        yield Outcome(exchange, material, predict(images).argmax(axis=1))
