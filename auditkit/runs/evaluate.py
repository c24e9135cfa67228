"""Heatmaps evaluated over a set of images: every unit run once, its rows kept, and all of them summed up."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.data.heatmaps import HeatmapSet
from auditkit.data.images import ImageSet
from auditkit.errors import BadInput
from auditkit.metrics.faithfulness import choose_labels
from auditkit.model.classifier import CallableClassifier, OnnxClassifier
from auditkit.model.masked import masked
from auditkit.runs.plan import Evaluation, units
from auditkit.runs.prepare import Prepared, prepare
from auditkit.runs.summary import Summary, summarise
from auditkit.runs.unit import Row, run_unit

Array = np.ndarray[Any, Any]
AnyClassifier = OnnxClassifier | CallableClassifier
Progress = Callable[[int], Callable[[int], None]]
CHUNK = 64


@dataclass(frozen=True)
class Answers:
    """What the model says of the whole images."""

    prob: Array  # [images, classes]
    predicted: Array  # [images]
    labels: list[Array]  # label set of each image


def answers(model: AnyClassifier, images: ImageSet, settings: Evaluation) -> Answers:
    """Probabilities, predictions and label sets; one forward pass an image."""
    parts = [model.probabilities(pictures) for _, pictures in images.chunks(CHUNK)]
    prob = np.concatenate(parts).astype(np.float32).astype(np.float64)
    labels = choose_labels(prob, settings.labels)
    predicted = prob.argmax(axis=1)
    return Answers(prob, predicted, labels)


def evaluate(
    model: AnyClassifier, images: ImageSet, bundles: Mapping[str, HeatmapSet], settings: Evaluation,
    progress: Progress = lambda _total: lambda _done: None, pool: ImageSet | None = None,
) -> Summary:  # fmt: skip
    """Every metric of every bundle and control, with intervals over the images."""
    if settings.infill == "random" and len(pool or images) < 2:
        raise BadInput("random infill needs at least two images; give more, or a --pool.")
    known = answers(model, images, settings)
    tick = progress(sum(len(unit) for unit in units(len(images))))
    rows: list[Row] = []
    over = masked(model)
    for unit, ready in _prepared(model, images, bundles, settings, known, pool or images):
        ids = [images.ids[position] for position in unit]
        at = np.array(unit)
        rows += run_unit(over, ready, ids, known.prob[at], known.predicted[at], settings, lambda _passes: None)
        tick(len(unit))
    return summarise(rows, settings)


def _prepared(
    model: AnyClassifier, images: ImageSet, bundles: Mapping[str, HeatmapSet], settings: Evaluation, known: Answers,
    pool: ImageSet,
) -> Iterator[tuple[range, Prepared]]:  # fmt: skip
    """Units in order, the next one being prepared while the one before is in use."""

    def ready(unit: Sequence[int]) -> Prepared:
        return prepare(
            unit, images, model.card, model.signature, known.labels, known.predicted, bundles, settings, pool
        )

    todo = list(units(len(images)))
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(ready, todo[0])
        for place, unit in enumerate(todo):
            current = coming.result()
            if place + 1 < len(todo):
                coming = worker.submit(ready, todo[place + 1])
            yield unit, current
