"""Estimates how long work takes from a trial of a second or two, whose results are thrown away."""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from auditkit.data.dataset import Dataset
from auditkit.methods.request import Pool
from auditkit.metrics.faithfulness import choose_labels, default_labels
from auditkit.model.classifier import AnyClassifier
from auditkit.model.session import Engine
from auditkit.runs.evaluation.batch import Batch, prepare
from auditkit.runs.evaluation.curves import measure_curves
from auditkit.runs.evaluation.images import load_sample, probabilities
from auditkit.runs.evaluation.plan import EvaluationPlan, plan_evaluation
from auditkit.runs.evaluation.settings import Evaluation, units, usual_points
from auditkit.runs.examination.examine import FEWEST_IMAGES, MOST_IMAGES, passes
from auditkit.runs.executor import UnitProgress, silent
from auditkit.runs.explain import Explanation
from auditkit.runs.explanation.maps import request_for

SECONDS = 1.5  # of a trial, at most
SHARE = 0.02  # of the work itself; more is not spent on a trial of short work
_FORWARD_ROWS = 8  # images in a batch
USUAL_WEIGHT = 3  # curves that the usual number of points counts for, where few were measured


@dataclass(frozen=True)
class Cost:
    """What a phase of a run takes."""

    phase: str  # as its progress is called
    rows: float  # images that the model is run on, for each image of the run
    rate: float  # rows per second in this process
    least: int = 0  # images without which the phase is left out
    most: int | None = None  # images that it takes at most
    engine: Engine | None = None  # whose processes share the work
    together: float = 1.0  # images in a unit, which one process works on

    def _taken(self, images: int) -> int:
        """How many of the images the phase takes."""
        if images < self.least:
            return 0
        return images if self.most is None else min(images, self.most)

    def rows_for(self, images: int) -> float:
        """Rows for that many images."""
        return self.rows * self._taken(images)

    def seconds(self, images: int) -> float:
        """Seconds for that many images; with an engine, until its last process is done."""
        seconds = self.rows_for(images) / self.rate if self.rate else 0.0
        if self.engine is None or not seconds:
            return seconds
        number, processes = math.ceil(self._taken(images) / self.together), self.engine.count
        rounds = math.ceil(number / processes)
        return seconds / self.engine.speedup * rounds * processes / number


class _Enough(Exception):
    """The trial has taken its time."""


class _Trial(UnitProgress):
    """Counts rows, and ends the work when they show how fast it is.

    They count from the second report on: the first one includes what is done once.
    """

    def __init__(self, images: int, together: int, known_rate: float | None) -> None:
        super().__init__(silent(0), together)
        self.images, self.together, self.known_rate = images, together, known_rate
        self.rows = self.first_rows = self.expected_rows = 0
        self.began = self.first = self.last = time.perf_counter()

    def expect(self, rows: int) -> None:
        """Learn how many rows the images of the trial need."""
        self.expected_rows = rows
        if self.known_rate is not None:
            raise _Enough

    def count(self, rows: int) -> None:
        """Count rows; _Enough once the time is up."""
        self.last = time.perf_counter()
        if not self.first_rows:
            self.first, self.first_rows = self.last, rows
            return
        self.rows += rows
        spent, all_rows = self.last - self.first, self.expected_rows * self.images / self.together
        if spent >= SECONDS or spent >= SHARE * all_rows / self.rate:
            raise _Enough

    @property
    def rate(self) -> float:
        """Rows per second."""
        if self.known_rate is not None:
            return self.known_rate
        if self.rows:
            return self.rows / max(self.last - self.first, 1e-6)
        return self.first_rows / max(self.first - self.began, 1e-6)


def explaining(
    model: AnyClassifier, images: Dataset, explanation: Explanation, pool: Dataset | None, forward: float | None = None
) -> Cost:
    """The cost of the maps of an explanation that fits the model, whose forward passes a second may be known."""
    method, options = explanation.resolved()
    if method.needs == "nothing":
        return Cost("explaining", 0.0, 0.0)
    rule = explanation.labels or str(default_labels(model.signature.classes))
    together = method.together(model)
    unit = load_sample(together + 1, images, (), model.card, model.signature)  # one more, to hide pixels behind
    labels = [tuple(chosen.tolist()) for chosen in choose_labels(probabilities(model, unit.inputs), rule)]
    if len(labels) > together:
        labels[-1] = ()
    others = unit if pool is None else load_sample(together + 1, pool, (), model.card, model.signature)
    drawn = Pool(others.ids, others.inputs) if method.uses_pool else Pool((), unit.inputs[:0])
    trial = _Trial(len(images), max(sum(map(bool, labels)), 1), forward if method.needs == "passes" else None)
    with suppress(_Enough):
        method.run(request_for(model, unit, labels, drawn, explanation.seed, trial), options)
    rows = trial.expected_rows or trial.first_rows + trial.rows
    return Cost("explaining", rows / trial.together, trial.rate, engine=model.engine, together=together)


def evaluating(
    model: AnyClassifier, images: Dataset, settings: Evaluation, bundles: int, pool: Dataset | None = None
) -> Cost:
    """The cost of measuring that many bundles that have every map."""
    plan = plan_evaluation(model, images, {}, replace(settings, controls=True), pool)
    batches = _batches(plan)
    first = next(batches)
    deque(first.run_rows(np.zeros((1, 4), np.int32)), maxlen=0)  # what is done once
    needed = _curves_needed(plan, first, bundles, controls=settings.controls)
    curves, rows, spent, rate, more = 0, 0, 0.0, 0.0, 1
    for batch in chain([first, first], batches):
        begin, counted = time.perf_counter(), list[int]()
        part = list(batch.curves.values())[:more]
        measure_curves(batch.run_rows, part, plan.span, plan.settings, batch.label_set, counted.append)
        latest = time.perf_counter() - begin
        curves, rows, spent = curves + len(part), rows + sum(counted), spent + latest
        # The latest part has the fullest batches, and is the fastest unless something else held it up.
        rate = max(rate, sum(counted) / max(latest, 1e-6))
        in_all = len(images) * needed * spent / curves
        more = int((min(SECONDS, SHARE * in_all) - spent) * curves / spent)
        if more < 1:
            break
    pieces = units(range(len(images)), plan.span.pixels, model.signature.classes, model.device, plan.settings)
    together = len(images) / len(pieces)
    return Cost("evaluating", needed * _points(plan, rows, curves), rate, engine=model.engine, together=together)


def _batches(plan: EvaluationPlan) -> Iterator[Batch]:
    """Images that can be used, one by one, with the controls as maps; none_usable if there is none."""
    yield prepare(plan, load_sample(1, plan.images, (), plan.model.card, plan.model.signature))
    for position in range(len(plan.images)):
        unit = plan.load([position])
        if unit.ids:
            yield prepare(plan, unit)


def _curves_needed(plan: EvaluationPlan, batch: Batch, bundles: int, *, controls: bool) -> int:
    """Curves of an image, with those of the bundles."""
    labels = len({use.label for use in batch.uses})
    of_bundle = sum(1 if rule.deletion else labels for rule in plan.curve_rules)
    return len(batch.curves) * controls + bundles * of_bundle


def _points(plan: EvaluationPlan, rows: int, curves: int) -> float:
    """Rows of a curve: those seen, and where it is refined and few were seen, also the usual number."""
    refined = [rule.steps for rule in plan.curve_rules if rule.steps.rule == "auto"]
    if refined:
        rows, curves = rows + USUAL_WEIGHT * usual_points(refined[0], plan.span.pixels), curves + USUAL_WEIGHT
    return rows / curves


def examining(rate: float, engine: Engine | None) -> Cost:
    """The cost of exchanges and probes, at that many rows per second in this process."""
    return Cost("examining", passes(1), rate, FEWEST_IMAGES, MOST_IMAGES, engine)


def forward_rate(model: AnyClassifier, images: Dataset) -> float:
    """Rows per second of the bare model."""
    inputs = load_sample(_FORWARD_ROWS, images, (), model.card, model.signature).inputs
    model.scores(inputs)  # what is done once
    begin, rows = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS / 4:
        model.scores(inputs)
        rows += len(inputs)
    return rows / (time.perf_counter() - begin)
