"""Recreates maps that an audit made itself, and compares them with those that it stored."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.metrics.faithfulness import choose_labels, default_labels
from auditkit.metrics.reliability import spearman
from auditkit.model.classifier import OnnxClassifier
from auditkit.runs.evaluation.images import load_images, probabilities
from auditkit.runs.evaluation.plan import EvaluationPlan, environment
from auditkit.runs.executor import Progress, UnitProgress
from auditkit.runs.explain import Explanation, drawn_pool, request_for
from auditkit.verdict.verify.run_record import Outcome, RecordedRun

# Least rank correlation of like maps. On the CPU, gradients, grad-cam, rise, occlusion and differences gave equal
# bits alone and in a batch, and a mask 0.99999 after 1,500 steps; with weights rounded as in TF32 the least was 0.997.
ALIKE = 0.99
SUPPLIED = "how the maps were made: they were supplied, and cannot be made again"


def check_maps(
    recorded: RecordedRun, plan: EvaluationPlan, positions: Sequence[int], pool: Path | None, progress: Progress
) -> Outcome:
    """Recreate the maps of some images and compare them with those of the run.

    Random draws repeat, but fewer images share a batch than in the run, so the last digits may differ.
    """
    explanation, digest = _explanation(recorded)
    (bundle,) = plan.bundles.values()
    model, images = _classifier(recorded, plan), _pool(recorded, plan, pool, digest)
    method, options = explanation.chosen()
    batch, tick = load_images(positions, plan.images, model.card, model.signature), progress(len(positions))
    drawn = drawn_pool(model, images, explanation)
    labels = [bundle.labels[image] for image in batch.ids]
    with UnitProgress(tick, len(positions)) as unit_progress:
        result = method.run(request_for(model, batch, labels, drawn, explanation.seed, unit_progress), options)
    tick(len(positions))
    problems, correlations = list[str](), list[float]()
    if recorded.run["environment"] == environment(plan.model):  # so that the same labels are chosen
        rule = explanation.labels or str(default_labels(model.signature.classes))
        chosen = choose_labels(probabilities(model, batch.inputs), rule)
        for image, expected in zip(batch.ids, chosen, strict=True):
            missing = [int(label) for label in expected if int(label) not in bundle.labels[image]]
            problems += [f"image '{image}' has no map for label {label}, which was requested" for label in missing]
    for image, by_label in zip(batch.ids, result.maps, strict=True):
        for label, values in by_label.items():
            correlations.append(correlation(values, bundle.get(image, label)))
            if not correlations[-1] >= ALIKE:
                problems.append(
                    f"the map of image '{image}', label {label}, is not the one that {explanation.name()} makes: their "
                    f"rank correlation is {correlations[-1]:.3f}, at least {ALIKE} is expected"
                )
    return (
        f"{len(correlations)} maps of {len(positions)} of {len(plan.images)} images, made again by "
        f"{explanation.name()}, rank pixels alike (least rank correlation {min(correlations, default=1.0):.4f}; at "
        f"least {ALIKE} is expected)"
    ), problems


def _explanation(recorded: RecordedRun) -> tuple[Explanation, str | None]:
    """The recorded request, and the digest of the infill pool if it is not the images."""
    explained = recorded.results.explained
    if explained is None:
        raise ValueError("the run did not make its maps")
    request = explained.request
    options = tuple(request.options.items())
    explanation = Explanation(request.method, request.labels, options, request.seed, request.gradient)
    if explanation.name() != explained.method:
        raise ValueError(f"the request is for {explanation.name()}, but the maps are said to be of {explained.method}")
    return explanation, request.pool


def _classifier(recorded: RecordedRun, plan: EvaluationPlan) -> OnnxClassifier:
    """The model in the precision that made the maps; figures may have been measured in a better one."""
    model, then = plan.model, recorded.run["environment"]
    if model.file is None:
        raise TypeError("a Python function cannot be called again")
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
        raise ValueError(f"{path} is not the pool that the maps were made with: the digests differ")
    return pool


def correlation(first: Array, second: Array) -> float:
    """Rank correlation of two maps over the pixels; 1 if both are constant."""
    if first.shape != second.shape:
        return 0.0
    flat = [bool(values.min() == values.max()) for values in (first, second)]
    if any(flat):
        return float(all(flat))
    return float(spearman(np.stack([first.ravel(), second.ravel()], axis=1))[0, 1])
