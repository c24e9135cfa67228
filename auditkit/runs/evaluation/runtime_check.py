"""Whether the runtime can be trusted: some rows are run twice, and again on the CPU in strict float32.

The reference shares nothing with the run but the file: masks are made with numpy, the vendor's own graph runs on the
CPU. What is recorded is the largest difference, and what it does to the figures.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed, ranks
from auditkit.errors import RuntimeFailure
from auditkit.graph.hard_masks import BOTTOM, KEEP, MAP, TOP
from auditkit.methods.controls import centred_gaussian
from auditkit.metrics.curves import area, uniform_counts
from auditkit.metrics.faithfulness import EPS1, EPS2, alpha, beta
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.hard_masks import masked
from auditkit.runs.evaluation.batch import Seen, fitted_map, look
from auditkit.runs.evaluation.measure import probabilities
from auditkit.runs.evaluation.plan import Work

STEPS = 8
MOST_BETWEEN_REPEATS = 1e-4  # of a probability: the same batch twice
MATTERS = 2e-3  # mean change of a figure from which a precision is not good enough


@dataclass(frozen=True)
class Sample:
    """Rows over a few images, with the maps that order their pixels."""

    pictures: Array  # images, then their infills
    ranks: Array
    rows: Array  # [curves * counts, 4]
    counts: Array
    labels: Array  # of each curve, the one that is predicted


@dataclass(frozen=True)
class Runtime:
    """How far the runtime is from itself and from strict float32 on the CPU."""

    rows: int
    repeated: float  # largest difference of a probability when a batch is run again
    largest: float | None = None  # and when it is run on the CPU; None: there is no file to run there
    mean: float | None = None
    insertion: float | None = None  # mean absolute change of a figure
    alpha: float | None = None
    beta: float | None = None
    note: str = ""  # what was done about it

    @property
    def most(self) -> tuple[str, float]:
        """The figure that changes most, and by how much on average."""
        changes = {"insertion": self.insertion, "alpha": self.alpha, "beta": self.beta}
        return max(((name, change or 0.0) for name, change in changes.items()), key=lambda pair: pair[1])

    @property
    def matters(self) -> bool:
        """Whether a figure changes by more than can be borne."""
        return self.most[1] > MATTERS

    def to_json(self) -> dict[str, Any]:
        """The entry of results.json."""
        return {
            "reference": None if self.largest is None else "the file on the CPU, strict float32, masks made with numpy",
            "rows": self.rows, "repeated": self.repeated, "largest": self.largest, "mean": self.mean,
            "insertion": self.insertion, "alpha": self.alpha, "beta": self.beta, "note": self.note or None,
        }  # fmt: skip


def checked(work: Work, aside: Executor, planned: Callable[[AnyClassifier], Work]) -> tuple[Work, "Future[Runtime]"]:
    """The work, and what its runtime is worth, found aside.

    Where the precision was left open, the answer is waited for: if a figure changes by more than 2e-3, the work is
    planned anew in strict float32.
    """
    sample, found = _device(work)
    pending = aside.submit(_compared, work, sample, found)
    model = work.model
    if model.file is None or model.requested.precision != "auto" or model.settings.precision == "strict":
        return work, pending
    loose = pending.result()
    if not loose.matters:
        return work, pending
    strict = OnnxClassifier(model.file, model.signature, model.card, replace(model.requested, precision="strict"))
    work = planned(strict)
    name, change = loose.most
    why = f"{model.settings.precision} changes {name} by {change:.2g} on average, so strict float32 is used"
    sample, found = _device(work)
    return work, aside.submit(lambda: replace(_compared(work, sample, found), note=why))


def _device(work: Work) -> tuple[Sample, Array]:
    """The sample and its probabilities on the device that does the work, run twice."""
    sample = _sample(work)
    over = masked(work.model)
    banks = over.load(sample.pictures, sample.ranks)
    first, again = (np.concatenate([part for _, part in over.run(sample.rows, banks)]) for _ in range(2))
    if not (np.isfinite(first).all() and np.isfinite(again).all()):
        raise RuntimeFailure("the model gives NaN or infinite probabilities for a masked image.")
    repeated = float(np.abs(first - again).max())
    if not repeated <= MOST_BETWEEN_REPEATS:
        raise RuntimeFailure(
            f"the same images got probabilities that differ by {repeated:.2g} when they were asked twice; figures of "
            f"such a classifier mean nothing."
        )
    return sample, np.stack([first, again])


def _sample(work: Work) -> Sample:
    model, lane = work.model, work.lanes[0]
    count = min(model.device.sample_images, len(work.images))
    positions = np.linspace(0, len(work.images) - 1, count).round().astype(int)
    seen = look(positions.tolist(), work.images, model.card, model.signature)
    labels = probabilities(model, seen.shown).argmax(axis=1)
    infills, places = work.infills.placed(lane.insertion.infill, seen.ids, seen.shown, count)
    orders = [_orders(work, seen, place, int(labels[place])) for place in range(count)]
    counts = uniform_counts(work.span.pixels, STEPS)
    rows, stack, watched = list[Array](), list[Array](), list[int]()
    for place, found in enumerate(orders):
        for order in found:
            rows.append(np.stack([
                np.full(len(counts), place), np.full(len(counts), places[place][0]),
                np.full(len(counts), len(stack)), counts,
            ], axis=1))  # fmt: skip
            stack.append(order)
            watched.append(int(labels[place]))
    return Sample(np.concatenate([seen.shown, infills]), np.stack(stack), np.concatenate(rows).astype(np.int32), counts,
                  np.array(watched))  # fmt: skip


def _orders(work: Work, seen: Seen, place: int, label: int) -> list[Array]:
    """Ranks of a control and of the first bundle that has a map for the predicted label."""
    image, card = seen.ids[place], work.model.card
    maps = [centred_gaussian(seen.pixels[place], 0)]
    for bundle in work.bundles.values():
        if label in bundle.labels.get(image, ()):
            maps.append(fitted_map(bundle, image, label, card, seen.sizes[place]))
            break
    return [ranks(values, "random", map_seed(work.settings.seed, image, -2)) for values in maps]


def _compared(work: Work, sample: Sample, found: Array) -> Runtime:
    """The sample on the CPU, beside what the device made of it."""
    model, (first, again) = work.model, found
    known = Runtime(len(sample.rows), float(np.abs(first - again).max()))
    if model.file is None:
        return known
    reference = model.reference()
    expected = np.concatenate([
        probabilities(reference, composed(part, sample.pictures, sample.ranks, model.signature.layout))
        for part in np.array_split(sample.rows, max(1, len(sample.rows) // 16))
    ])  # fmt: skip
    difference = np.abs(first - expected)
    before, after = (_figures(values, sample, work) for values in (expected, first))
    changes = [float(np.abs(b - a).mean()) for b, a in zip(before, after, strict=True)]
    return replace(known, largest=float(difference.max()), mean=float(difference.mean()), insertion=changes[0],
                   alpha=changes[1], beta=changes[2])  # fmt: skip


def composed(rows: Array, pictures: Array, ranks: Array, layout: str) -> Array:
    """The masked images of some rows, made in the plainest way."""
    shown = np.expand_dims(ranks[rows[:, MAP]] < rows[:, KEEP, None, None], 1 if layout == "NCHW" else -1)
    return np.where(shown, pictures[rows[:, TOP]], pictures[rows[:, BOTTOM]])


def _figures(prob: Array, sample: Sample, work: Work) -> tuple[Array, Array, Array]:
    """Insertion, alpha and beta of each curve of the sample."""
    values = prob.reshape(len(sample.labels), len(sample.counts), -1)
    curves = np.take_along_axis(values, sample.labels[:, None, None], axis=2)[..., 0]
    areas, whole = area(sample.counts, curves), curves[:, -1]
    eps1, eps2 = work.settings.eps1, work.settings.eps2
    return (
        areas,
        alpha(areas, whole, EPS1 if eps1 is None else eps1),
        beta(areas, whole, EPS2 if eps2 is None else eps2),
    )
