"""How often the examination finds something where there is nothing to find.

Simulated predictions follow the donor just as often as the limit allows: no finding may say more. On a real model, the
labels of the donors are permuted: the predictions are the model's, but they have nothing to do with the donors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

import auditkit
from auditkit.arrays import Array
from auditkit.data.bundles import open_bundle
from auditkit.data.dataset import Dataset
from auditkit.metrics.exchanges import CONTROL, EXCHANGES, Exchange
from auditkit.report.markdown import table
from auditkit.runs.examination.examine import material_of
from auditkit.runs.examination.material import Material, predictor
from auditkit.runs.examination.proposals import (
    ADDED_MARGIN,
    MARGIN,
    MOST_LIMIT,
    MOST_LIMIT_OF_LABEL,
    Proposal,
    Tested,
    proposals,
    tested,
)
from auditkit.runs.examination.rates import Outcome, outcomes
from benchmarks.reporting import log

SEED = 4712
IMAGES = (40, 120, 200)
PERMUTATIONS = 200
MARKED = 0  # the label whose parts are added to other images


@dataclass(frozen=True)
class World:
    """A model that relies on nothing by more than the limit."""

    name: str
    labels: int
    fallback: float  # how often a prediction that does not follow is a label of chance
    margin: float  # over chance and breadth: how often the prediction follows the donor
    spread: float | None  # concentration of the beta distribution of rates; None: all are the same
    of_label: bool = False  # whether the donors of one label alone are followed
    varies: int = 1  # whose rates differ: 1 the donors', 0 the recipients'


WORLDS = (
    World("all images, equal donors", 10, 0.0, MARGIN, None),
    World("all images, different donors", 10, 0.0, MARGIN, 1.0),
    World("all images, different donors, four labels and predictions by chance", 4, 1.0, MARGIN, 1.0),
    World("all images, different donors, two labels and predictions by chance", 2, 1.0, MARGIN, 1.0),
    World("all images, different recipients", 10, 0.0, MARGIN, 1.0, varies=0),
    World("one label, equal donors", 4, 0.0, ADDED_MARGIN, None, of_label=True),
    World("one label, equal donors, predictions by chance", 4, 1.0, ADDED_MARGIN, None, of_label=True),
    World("one label, different donors", 4, 0.0, ADDED_MARGIN, 4.0, of_label=True),
    World("one label, different recipients", 4, 0.0, ADDED_MARGIN, 1.0, of_label=True, varies=0),
)


class Simulation:
    """One set of images of a world, with the predictions after every exchange."""

    def __init__(self, world: World, images: int, rng: np.random.Generator) -> None:
        self.world, self.rng = world, rng
        empty = np.zeros((images, 1, 1, 1), np.uint8)
        labels = rng.permutation(np.arange(images) % world.labels)
        ids, seed = tuple(map(str, range(images))), int(rng.integers(1 << 30))
        self.material = Material(ids, empty, labels, empty[..., 0], seed)
        self.rates = {exchange.name: self._rates(exchange, images) for exchange in EXCHANGES}

    def outcomes(self) -> list[Outcome]:
        """What is predicted after every exchange."""
        pairs, labels = self.material.pairs, self.material.pair_labels
        return [Outcome(exchange, self.material, self._seen(self._follow(exchange, pairs), labels))
                for exchange in EXCHANGES if exchange.kind != CONTROL]  # fmt: skip

    def tested(self, proposal: Proposal) -> Tested:
        """The proposal on the confirming half, where the part of one donor is added to all recipients."""
        if proposal.donor is None:
            return tested(proposal, _never)
        material = self.material
        recipients = np.flatnonzero(~material.proposes & (material.predicted != proposal.label))
        pairs = np.stack([recipients, np.full(len(recipients), proposal.donor)], axis=1)
        seen = self._seen(self._follow(proposal.outcome.exchange, pairs), material.predicted[pairs])
        return Tested(proposal, (seen == proposal.label).astype(np.float64), recipients)

    def above_limit(self, proposal: Proposal) -> bool:
        """Whether the part of the chosen donor is truly followed more often than the limit allows."""
        if proposal.donor is None or self.world.varies == 0:
            return False
        name = proposal.outcome.exchange.name
        return bool(self.rates[name][proposal.donor] > self._true_rate(proposal.outcome.exchange) + 1e-9)

    def _true_rate(self, exchange: Exchange) -> float:
        """How often the donor is followed beside chance, so that the rate lies just at the limit."""
        by_chance = self.world.fallback / self.world.labels
        # Where all donors are followed, they leave less to chance; where those of one label are, chance is as it was.
        share = exchange.breadth + self.world.margin
        rate = share / (1 - by_chance) if self.world.of_label else share
        most = MOST_LIMIT_OF_LABEL if self.world.of_label else MOST_LIMIT
        return min(rate, (most - by_chance) / (1 - by_chance))

    def _rates(self, exchange: Exchange, images: int) -> Array:
        rate, spread = self._true_rate(exchange), self.world.spread
        drawn = np.full(images, rate) if spread is None else self.rng.beta(rate * spread, (1 - rate) * spread, images)
        return np.asarray(drawn)

    def _follow(self, exchange: Exchange, pairs: Array) -> Array:
        rates = self.rates[exchange.name][pairs[:, self.world.varies]]
        followed = self.rng.random(len(pairs)) < rates
        return followed & (self.material.predicted[pairs[:, 1]] == MARKED) if self.world.of_label else followed

    def _seen(self, follow: Array, labels: Array) -> Array:
        by_chance = self.rng.integers(self.world.labels, size=len(labels))
        otherwise = np.where(self.rng.random(len(labels)) < self.world.fallback, by_chance, labels[:, 0])
        return np.where(follow, labels[:, 1], otherwise)


def _never(images: Sequence[Array]) -> Array:
    raise AssertionError(f"{len(images)} images reached a model that there is not.")


def simulated(world: World, images: int, runs: int) -> dict[str, Any]:
    """In how many runs something is found that is not above its limit."""
    proposed = false = true = 0
    for run in range(runs):
        simulation = Simulation(world, images, np.random.default_rng([SEED, images, run]))
        tests = [simulation.tested(proposal) for proposal in proposals(simulation.outcomes())]
        confirmed = [test.proposal for test in tests if test.confirms(len(tests))]
        proposed += bool(tests)
        false += any(not simulation.above_limit(proposal) for proposal in confirmed)
        true += any(simulation.above_limit(proposal) for proposal in confirmed)
    entry = {"world": world.name, "labels": world.labels, "images": images, "proposed": proposed,
             "found above the limit": true, **_share(false, runs)}  # fmt: skip
    log(entry)
    return entry


def _share(false: int, runs: int) -> dict[str, Any]:
    interval = binomtest(false, runs).proportion_ci()
    low, high = (round(float(end), 4) for end in (interval.low, interval.high))
    return {"runs": runs, "false findings": false, "share": false / runs, "low": low, "high": high}


def null_table(results: dict[str, Any]) -> str:
    """The shares by world and number of images, and for permuted labels."""
    shares = {(entry["world"], entry["images"]): _cell(entry) for entry in results["simulated"]}
    lines = [
        [world, *(shares[world, images] for images in IMAGES)] for world in dict.fromkeys(name for name, _ in shares)
    ]
    about = (
        f"{results['simulated'][0]['runs']:,} simulated examinations each, where predictions follow the donor just as "
        "often as the limit allows: the share with a finding, with exact 95 % intervals. At most 5 % is promised. "
        "Where the donors of one label differ, the best of them may truly lie above the limit, though their mean does "
        "not; such findings are counted apart."
    )
    parts = [about, table(["what is followed at the limit", *(f"{images} images" for images in IMAGES)], lines)]
    if found := results.get("permuted"):
        parts.append(
            f"{found['model']}, {found['images']} images: {found['false findings']} of {found['runs']} permutations of "
            f"the donors' labels give a finding ({found['low']:.1%} to {found['high']:.1%}); "
            f"{found['findings without permutation']} without permutation."
        )
    return "\n\n".join(parts)


def _cell(entry: dict[str, Any]) -> str:
    above = entry["found above the limit"] / entry["runs"]
    share = f"{entry['share']:.1%} ({entry['low']:.1%} to {entry['high']:.1%})"
    return f"{share}; above the limit {above:.0%}" if above else share


def permuted(model_file: Path, images: Path, preset: str | None, maps: Path) -> dict[str, Any]:
    """How many permutations of the donors' labels give a finding, with the predictions of a real model."""
    model = auditkit.load(model_file, preset=preset, settings=auditkit.Settings(device="cpu", threads=1))
    dataset = Dataset.open(images, model.signature.classes)
    predict, material = predictor(model), material_of(model, dataset, open_bundle(maps), 0)
    seen = outcomes(material, model)
    unpermuted, false, proposed = _found(seen, predict), 0, 0
    for labels in _permutations(material):
        confirmed, tests = _found([replace(outcome, material=labels) for outcome in seen], predict)
        false, proposed = false + bool(confirmed), proposed + bool(tests)
    entry = {"model": model_file.name, "images": len(material.ids), "labels": len(np.unique(material.predicted)),
             "findings without permutation": unpermuted[0], "proposed": proposed,
             **_share(false, PERMUTATIONS)}  # fmt: skip
    log(entry)
    return entry


def _found(seen: Sequence[Outcome], predict: Any) -> tuple[int, int]:
    """How many proposals are confirmed, of how many."""
    tests = [tested(proposal, predict) for proposal in proposals(seen)]
    return sum(test.confirms(len(tests)) for test in tests), len(tests)


def _permutations(material: Material) -> Iterator[Material]:
    """The same images, halves and pairs, with the donors' labels permuted."""
    rng, recipients = np.random.default_rng(SEED), material.pair_labels[:, 0]
    for _ in range(PERMUTATIONS):
        labels = rng.permutation(material.predicted)
        made = replace(material, predicted=labels)
        pair_labels = np.stack([recipients, labels[material.pairs[:, 1]]], axis=1)
        vars(made).update(proposes=material.proposes, pairs=material.pairs, pair_labels=pair_labels)
        yield made
