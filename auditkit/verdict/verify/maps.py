"""Recreates maps that an audit made itself, and compares them with those that it stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.metrics.faithfulness import choose_labels, default_labels
from auditkit.metrics.reliability import spearman
from auditkit.model.classifier import OnnxClassifier
from auditkit.runs.evaluation.images import load_images, probabilities
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.executor import Progress
from auditkit.runs.explain import Explanation, drawn_pool, request_for
from auditkit.verdict.verify.run_record import RecordedRun

Maps = Mapping[tuple[str, int], Array]  # by image and label
# Least rank correlation of like maps. On the CPU, gradients, grad-cam, rise, occlusion and differences gave equal
# bits alone and in a batch, and a mask 0.99999 after 1,500 steps; with weights rounded as in TF32 the least was 0.997.
ALIKE = 0.99
SUPPLIED = "how the maps were made: they were supplied, and cannot be made again"


@dataclass(frozen=True)
class Agreement:
    """Recreated maps and how they differ from those of the run."""

    maps: int
    images: int
    least: float  # rank correlation
    problems: list[str]


def method_name(recorded: RecordedRun) -> str:
    """The method that made the maps; empty if they were supplied."""
    return "" if recorded.results.explained is None else recorded.results.explained.method


def recreate_maps(
    recorded: RecordedRun, plan: EvaluationPlan, order: Sequence[int], wanted: int, pool: Path | None, exact: bool,
    progress: Progress,
) -> Agreement:  # fmt: skip
    """Recreate and compare the maps of the first images in `order` that have some.

    Random draws repeat, but fewer images share a batch than in the run, so the last digits may differ. `exact`: the
    environment is the same, so that the labels of an image must be the same too.
    """
    explanation, digest = _explanation(recorded)
    (bundle,) = plan.bundles.values()
    positions = [position for position in order if plan.images.ids[position] in bundle.labels][:wanted]
    model = _classifier(recorded, plan)
    images = _pool(recorded, plan, pool, digest)
    made, missing = _make_maps(model, plan, explanation, images, positions, bundle, progress)
    problems = [
        f"image '{image}' has no map for label {label}, which was asked for" for image, label in missing if exact
    ]
    correlations = {pair: correlation(values, bundle.get(*pair)) for pair, values in made.items()}
    problems += [
        f"the map of image '{image}', label {label}, is not the one that {explanation.name()} makes: their rank "
        f"correlation is {value:.3f}, at least {ALIKE} is expected"
        for (image, label), value in correlations.items()
        if not value >= ALIKE
    ]
    return Agreement(len(correlations), len(positions), min(correlations.values(), default=1.0), problems)


def _explanation(recorded: RecordedRun) -> tuple[Explanation, str | None]:
    """The recorded request, and the digest of the infill pool if it is not the images."""
    explained = recorded.results.explained
    if explained is None:
        raise ValueError("the run did not make its maps")
    request = explained.request
    options = tuple(request.options.items())
    explanation = Explanation(request.method, request.labels, options, request.seed, request.gradient)
    if explanation.name() != explained.method:
        raise ValueError(
            f"what was asked for is {explanation.name()}, but the maps are said to be of {explained.method}"
        )
    return explanation, request.pool


def _classifier(recorded: RecordedRun, plan: EvaluationPlan) -> OnnxClassifier:
    """The model in the precision that made the maps; figures may have been measured in a better one."""
    model, then = plan.model, recorded.run["environment"]
    if model.file is None:
        raise TypeError("a function is never asked again")
    if then["device"] != model.device.name or then["precision"] == model.settings.precision:
        return model
    settings = replace(model.settings, precision=then["precision"])
    return OnnxClassifier(model.file, model.signature, model.card, settings)


def _pool(recorded: RecordedRun, plan: EvaluationPlan, location: Path | None, digest: str | None) -> Dataset:
    """The images that infills are drawn from."""
    if digest is None:
        return plan.images
    path = location or recorded.results.run.pool_path
    if path is None or not Path(path).exists():
        raise BadInput(f"the pool that maps were made with cannot be found ({path}): give --pool PATH, or --maps 0.")
    pool = Dataset.open(Path(path), plan.model.signature.classes, plan.model.card.names)
    if pool.digest() != digest:
        raise ValueError(f"{path} is not the pool that they were made with: its digest is another")
    return pool


def _make_maps(
    model: OnnxClassifier, plan: EvaluationPlan, explanation: Explanation, pool: Dataset, positions: Sequence[int],
    bundle: HeatmapSet, progress: Progress,
) -> tuple[Maps, list[tuple[str, int]]]:  # fmt: skip
    """The maps of the labels that the bundle has; and the labels that it lacks."""
    if not positions:
        return {}, []
    method, options = explanation.chosen()
    batch, tick = load_images(positions, plan.images, model.card, model.signature), progress(len(positions))
    drawn = drawn_pool(model, pool, explanation)
    rule = explanation.labels or str(default_labels(model.signature.classes))
    chosen = choose_labels(probabilities(model, batch.inputs), rule)
    missing = []
    for image, expected in zip(batch.ids, chosen, strict=True):
        missing += [(image, int(label)) for label in expected if int(label) not in bundle.labels[image]]
    labels = [bundle.labels[image] for image in batch.ids]
    result = method.run(request_for(model, batch, labels, drawn, explanation.seed, lambda rows: tick(0, rows)), options)
    tick(len(positions))
    maps: dict[tuple[str, int], Array] = {}
    for image, by_label in zip(batch.ids, result.maps, strict=True):
        maps |= {(image, label): values for label, values in by_label.items()}
    return maps, missing


def correlation(first: Array, second: Array) -> float:
    """Rank correlation of two maps over the pixels; 1 if both are constant."""
    if first.shape != second.shape:
        return 0.0
    flat = [bool(values.min() == values.max()) for values in (first, second)]
    if any(flat):
        return float(all(flat))
    return float(spearman(np.stack([first.ravel(), second.ravel()], axis=1))[0, 1])
