"""How often the prediction follows the donor of a part, and whether that is more than a limit."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.exchanges import EXCHANGES, Exchange, Side
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.examination.material import AT_ONCE, Material, probabilities
from auditkit.runs.executor import Tick, execute_all


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


def outcomes(
    material: Material, model: AnyClassifier, advance: Callable[[int], None] = lambda _rows: None
) -> list[Outcome]:
    """The outcome of every exchange; `advance` is told how many images the model has seen."""
    pairs = range(len(material.pairs))
    parts = [pairs[start : start + AT_ONCE] for start in range(0, len(pairs), AT_ONCE)]
    units = [_Part(number, positions) for number, positions in product(range(len(EXCHANGES)), parts)]
    work = _Exchanging(model, material.sides, material.pairs)
    parts_seen = execute_all(model, work, units, lambda unit: advance(len(unit.positions)), at_once=1)
    seen = np.concatenate(parts_seen)
    return [Outcome(exchange, material, labels)
            for exchange, labels in zip(EXCHANGES, seen.reshape(len(EXCHANGES), -1), strict=True)]  # fmt: skip


@dataclass(frozen=True)
class _Part:
    """Some of the pairs of an exchange."""

    exchange: int  # its position in EXCHANGES
    positions: range  # of the pairs

    @property
    def name(self) -> str:
        """What the unit is called in the log."""
        return f"exchange '{EXCHANGES[self.exchange].name}', pairs"


@dataclass(frozen=True)
class _Exchanging:
    """Exchanges parts between images and shows them to the model."""

    model: AnyClassifier
    sides: tuple[Side, ...]
    pairs: Array

    def __call__(self, unit: _Part, device: AbstractContextManager[None], _tick: Tick) -> Array:
        """The predicted labels."""
        pairs = self.pairs[unit.positions.start : unit.positions.stop]
        mix = EXCHANGES[unit.exchange].mix
        images = [mix(self.sides[recipient], self.sides[donor]) for recipient, donor in pairs]
        return np.asarray(probabilities(self.model, np.stack(images), device).argmax(axis=1))
