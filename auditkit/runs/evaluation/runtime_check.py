"""Checks that the runtime can be trusted: some rows are run twice, and again on the CPU in strict float32.

The reference shares nothing with the run but the file: numpy makes the masks, and the vendor's own graph runs on the
CPU. The largest difference is recorded, and how much it changes the figures.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TypeVar

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed, ranks
from auditkit.errors import ModelFailure, RuntimeFailure
from auditkit.graph.hard_masks import BOTTOM, KEEP, MAP, TOP
from auditkit.methods.controls import centred_gaussian
from auditkit.metrics.curves import area, log_odds, uniform_counts
from auditkit.metrics.faithfulness import EPS1, EPS2, completeness, soundness
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.device import device_name
from auditkit.model.masks import masked
from auditkit.model.worker import WorkerLost
from auditkit.runs.evaluation.images import UnitImages, load_sample, probabilities
from auditkit.runs.evaluation.maps import fitted_map
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.executor import Tick, errors_naming
from auditkit.runs.folder.figures import Runtime

Result = TypeVar("Result")

STEPS = 8  # of each curve of the sample
MAP_SEED = -2  # stands where a label would: the order of ties in the sample
REFERENCE_ROWS = 16  # run on the CPU at once
MOST_BETWEEN_REPEATS = 1e-4  # of a probability: the same batch twice
MOST_BETWEEN_GROUPS = 0.02  # of a probability: the same row beside others; float16 kernels depend on the batch
REFERENCE = "the file on the CPU, strict float32, masks made with numpy"


@dataclass(frozen=True)
class _Sample:
    """Rows over a few images, with the maps that order their pixels."""

    pictures: Array  # images, then their infills
    ranks: Array
    rows: Array  # [curves * counts, 4]
    counts: Array
    labels: Array  # of each curve, the predicted one


def checked(
    plan: EvaluationPlan, aside: Executor, plan_for: Callable[[AnyClassifier], EvaluationPlan]
) -> tuple[EvaluationPlan, "Future[Runtime]"]:
    """The plan to carry out, and how accurate its runtime is, which the executor `aside` measures.

    Where the precision was left open and a figure changes too much, `plan_for` makes a new plan in strict float32.
    """
    pending = aside.submit(_compared_again, plan, *_run_twice(plan))
    model = plan.model
    if model.file is None or model.requested.precision != "auto" or model.settings.precision == "strict":
        return plan, pending
    runtime = pending.result()
    if not runtime.matters:
        return plan, pending
    requested = replace(model.requested, precision="strict")
    strict = plan_for(OnnxClassifier(model.file, model.signature, model.card, requested))
    name, change = max(runtime.changes.items(), key=itemgetter(1))
    note = f"{model.settings.precision} changes {name} by {change:.2g} on average, so strict float32 is used"
    repeats = _run_twice(strict)
    return strict, aside.submit(lambda: replace(_compared_again(strict, *repeats), note=note))


@dataclass(frozen=True)
class _Comparing:
    """Compares the device of another process with strict float32 on its CPU."""

    plan: EvaluationPlan

    def __call__(self, _unit: None, device: AbstractContextManager[None], _tick: Tick) -> Runtime:
        """What the runtime is worth there."""
        with device:
            return _compared_again(self.plan, *_run_twice(self.plan))


def check_other_kinds(plan: EvaluationPlan) -> None:
    """RuntimeFailure if an engine has a kind of device besides this process's on which a figure changes too much."""
    settings, engine = plan.model.settings, plan.model.engine
    if settings is None or engine is None:
        return
    subject = f"{plan.model.identity} in {settings.precision}"
    runtimes = engine.on_each_kind(_Comparing(plan), device_name(settings.device), subject)
    for kind, runtime in runtimes.items():
        if runtime.matters:
            name, change = max(runtime.changes.items(), key=itemgetter(1))
            raise RuntimeFailure(f"on {kind}, {settings.precision} changes {name} by {change:.2g} on average; give "
                                 "--precision strict and a new folder.")  # fmt: skip


def _run_twice(plan: EvaluationPlan) -> tuple[_Sample, Array, float]:
    """The sample, its probabilities [rows, classes] on the plan's device, and how far they are off the second time.

    Where the model may fail on some images, those that it fails on are not sampled.
    """
    model, skipped = plan.model, set[str]()
    while True:
        images = load_sample(model.device.sample_images, plan.images, skipped, model.card, model.signature)
        try:
            return _retried_once(partial(_run_sample_twice, plan, images))
        except ModelFailure as error:
            skipped.update(images.ids)
            if len(skipped) > model.requested.allow_failed or len(skipped) == len(plan.images):
                with errors_naming(images.ids):
                    raise error


def _run_sample_twice(plan: EvaluationPlan, images: UnitImages) -> tuple[_Sample, Array, float]:
    sample = _sample(plan, images)
    classifier = masked(plan.model)
    banks = classifier.load(sample.pictures, sample.ranks)
    first, again = (np.concatenate([part for _, part in classifier.run(sample.rows, banks)]) for _ in range(2))
    if not (np.isfinite(first).all() and np.isfinite(again).all()):
        raise RuntimeFailure("the model gives NaN or infinite probabilities for a masked image.")
    repeated = float(np.abs(first - again).max())
    if not repeated <= MOST_BETWEEN_REPEATS:
        raise RuntimeFailure(f"the model gave probabilities that differ by {repeated:.2g} for the same images.")
    groups = _regrouped(len(sample.rows))
    apart = [np.concatenate([part for _, part in classifier.run(sample.rows[group], banks)]) for group in groups]
    moved = float(np.abs(np.concatenate(apart) - first[np.concatenate(groups)]).max())
    if not moved <= MOST_BETWEEN_GROUPS:
        reason = f"its probabilities for an image change by up to {moved:.2g} with the other images of a batch"
        raise RuntimeFailure(f"the model cannot be measured: {reason}, although they did not on noise.")
    return sample, first, repeated


def _regrouped(count: int) -> list[Array]:
    """Some positions of rows in another order: the last one alone, then two, then four."""
    order = np.concatenate([np.arange(count)[::-2], np.arange(count)[-2::-2]])
    return [group for group in (order[:1], order[1:3], order[3:7]) if len(group)]


def _sample(plan: EvaluationPlan, images: UnitImages) -> _Sample:
    model, infill = plan.model, plan.curve_pairs[0].insertion.infill
    predicted = probabilities(model, images.inputs).argmax(axis=1).tolist()
    infills, infill_positions = plan.infills.pictures(infill, images, len(images.ids))
    counts = uniform_counts(plan.span.pixels, STEPS)
    rows, bank, labels = list[Array](), list[Array](), list[int]()
    for image, label in enumerate(predicted):
        for ranks_of_map in _ranks(plan, images, image, label):
            columns = image, infill_positions[image][0], len(bank)
            rows.append(np.column_stack([np.tile(columns, (len(counts), 1)), counts]))
            bank.append(ranks_of_map)
            labels.append(label)
    pictures = np.concatenate([images.inputs, infills])
    return _Sample(pictures, np.stack(bank), np.concatenate(rows).astype(np.int32), counts, np.array(labels))


def _ranks(plan: EvaluationPlan, images: UnitImages, image: int, label: int) -> list[Array]:
    """Ranks of a control and of the first bundle that has a map for the predicted label."""
    name = images.ids[image]
    maps = [centred_gaussian(images.pixels[image], 0)]
    for bundle in plan.bundles.values():
        if label in bundle.labels.get(name, ()):
            maps.append(fitted_map(bundle, name, label, plan.model.card, images.sizes[image]))
            break
    seed = map_seed(plan.settings.seed, images.digests[image], MAP_SEED)
    return [ranks(values, "random", seed) for values in maps]


def _compared_again(plan: EvaluationPlan, sample: _Sample, prob: Array, repeated: float) -> Runtime:
    return _retried_once(partial(_compared, plan, sample, prob, repeated))


def _retried_once(work: Callable[[], Result]) -> Result:
    """The result of some work, done once more if its worker is lost: another image may have ended that."""
    try:
        return work()
    except WorkerLost:
        return work()


def _compared(plan: EvaluationPlan, sample: _Sample, prob: Array, repeated: float) -> Runtime:
    """The sample's probabilities on the device beside those on the CPU."""
    model, rows = plan.model, len(sample.rows)
    if model.file is None:
        return Runtime(None, rows, repeated, largest=None, mean=None, insertion=None, alpha=None, beta=None, note=None)
    reference = model.reference()
    chunks = np.array_split(sample.rows, max(1, len(sample.rows) // REFERENCE_ROWS))
    inputs = (composed(chunk, sample.pictures, sample.ranks, model.signature.layout) for chunk in chunks)
    expected = np.concatenate([probabilities(reference, chunk) for chunk in inputs])
    difference = np.abs(prob - expected)
    before, after = _figures(expected, sample, plan), _figures(prob, sample, plan)
    insertion, complete, sound, odds = (float(np.abs(b - a).mean()) for b, a in zip(before, after, strict=True))
    largest, mean = float(difference.max()), float(difference.mean())
    return Runtime(REFERENCE, rows, repeated, largest, mean, insertion, complete, sound, note=None, log_odds=odds)


def composed(rows: Array, pictures: Array, ranks: Array, layout: str) -> Array:
    """The masked images of some rows, made in the plainest way."""
    kept = np.expand_dims(ranks[rows[:, MAP]] < rows[:, KEEP, None, None], 1 if layout == "NCHW" else -1)
    return np.where(kept, pictures[rows[:, TOP]], pictures[rows[:, BOTTOM]])


def _figures(prob: Array, sample: _Sample, plan: EvaluationPlan) -> tuple[Array, Array, Array, Array]:
    """Insertion, alpha, beta and the area of the log-odds of each curve of the sample."""
    values = prob.reshape(len(sample.labels), len(sample.counts), -1)
    curves = np.take_along_axis(values, sample.labels[:, None, None], axis=2)[..., 0]
    insertion, full_prob = area(sample.counts, curves), curves[:, -1]
    eps1 = EPS1 if plan.settings.eps1 is None else plan.settings.eps1
    eps2 = EPS2 if plan.settings.eps2 is None else plan.settings.eps2
    odds = log_odds(curves, values.sum(axis=2, dtype=np.float64) - curves)
    return (insertion, completeness(insertion, full_prob, eps1), soundness(insertion, full_prob, eps2),
            area(sample.counts, odds))  # fmt: skip
