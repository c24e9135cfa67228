"""One unit of work prepared for measuring: images and infills seen by the model, maps ranked, banks on the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.faithfulness import as_probable, choose_labels
from auditkit.metrics.label_specificity import MOST_LABELS
from auditkit.model.masks import masked
from auditkit.runs.evaluation.crops import Crop, measure_crops
from auditkit.runs.evaluation.curves import CurveRequest, ImageLabels, RunRows
from auditkit.runs.evaluation.images import UnitImages, probabilities, renormalised
from auditkit.runs.evaluation.infills import Positions
from auditkit.runs.evaluation.maps import MapUse, MissingMap, rank_maps
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.evaluation.settings import CurveRule

CurveKey = tuple[CurveRule, int, int]  # the rule, the image, the position of the ranks in the bank

# How far labels that count as equally probable may be apart: a share of their probability (False: in TF32 or float16;
# True: in strict float32), and a difference that `verify` allows for.
TIED = {False: 0.02, True: 1e-5}
MOST_TIED = 2e-3


@dataclass(frozen=True)
class Batch:
    """All that is needed to measure a unit."""

    ids: tuple[str, ...]
    truth: tuple[int | None, ...]
    prob: Array  # [images, classes]
    predicted: Array  # [images]
    label_set: Array | None  # bool [images, classes]: labels that probabilities are renormalised over
    uses: Sequence[MapUse]
    missing: Sequence[MissingMap]
    crops: Mapping[int, tuple[Crop, ...]]  # of the saliency metric, by position of the use
    curves: Mapping[CurveKey, CurveRequest]
    run_rows: RunRows  # over the banks of pictures and ranks


@dataclass(frozen=True)
class Choice:
    """What is measured on an image: some labels, and the one that counts as predicted."""

    labels: tuple[int, ...]
    prediction: int


def prepare(plan: EvaluationPlan, images: UnitImages, choices: Mapping[str, Choice] | None = None) -> Batch:
    """All that is measured of these images but their curves; `choices` by image overrule those of the model."""
    model, settings, choices = plan.model, plan.settings, choices or {}
    prob = probabilities(model, images.inputs)
    labels = [np.array(choices[image].labels, np.int64) if image in choices else _mapped(plan, image, scores, chosen)
              for image, scores, chosen in zip(images.ids, prob, choose_labels(prob, settings.labels), strict=True)
              ]  # fmt: skip
    label_set = _label_set(labels, prob.shape[1]) if settings.renormalise else None
    prob = renormalised(prob, label_set)
    predicted = np.array([choices[image].prediction if image in choices else best
                          for image, best in zip(images.ids, prob.argmax(axis=1), strict=True)])  # fmt: skip
    ranks, uses, missing = rank_maps(plan, images, labels, predicted)
    pictures, infills, infill_prob = _with_infills(plan, images, label_set)

    crops = measure_crops(plan, images, uses, label_set)
    requests = {}
    reshuffled = set(chain.from_iterable(use.map.reshuffles for use in uses))
    for (rule, image, order), watched in _watched_labels(uses, plan.curve_rules).items():
        full, hidden = prob[image], infill_prob[rule.infill][image]
        image_labels = None
        if not rule.deletion and order not in reshuffled and 1 < len(labels[image]) <= MOST_LABELS:
            image_labels = ImageLabels.of(np.sort(labels[image]), full, hidden)
        requests[rule, image, order] = CurveRequest(
            rule, image, infills[rule.infill][image], order, watched, full[watched].tolist(), hidden[watched].tolist(),
            image_labels,
        )  # fmt: skip
    classifier = masked(model)
    banks = classifier.load(pictures, ranks)
    return Batch(images.ids, images.truth, prob, predicted, label_set, uses, missing, crops, requests,
                 lambda rows: classifier.run(rows, banks))  # fmt: skip


def _mapped(plan: EvaluationPlan, image: str, scores: Array, chosen: Array) -> Array:
    """The chosen labels, or those that a bundle has maps of, if rounding alone tells one choice from the other.

    Maps are made in other batches than they are measured in. On a GPU, two labels of nearly the same probability can
    then change places, and the map of the one that is chosen here would be missing.
    """
    strict = plan.model.settings is None or plan.model.settings.precision == "strict"
    for bundle in plan.bundles.values():
        mapped = [label for label in bundle.labels.get(image, ()) if label < len(scores)]
        if set(chosen.tolist()) <= set(mapped):
            continue
        taken = sorted(mapped, key=lambda label: -scores[label])[: len(chosen)]
        slack = TIED[strict] * float(scores[chosen].min(initial=1.0))
        if as_probable(plan.settings.labels, scores, chosen.tolist(), set(taken), min(slack, MOST_TIED)):
            return np.array(taken, np.int64)
    return chosen


def _label_set(labels: Sequence[Array], classes: int) -> Array:
    """Bool [images, classes]: which labels share an image's probability."""
    label_set = np.zeros((len(labels), classes), np.bool_)
    for position, image_labels in enumerate(labels):
        label_set[position, image_labels] = True
    label_set[~label_set.any(axis=1)] = True  # an image without a label in the set has no figure, but a prediction
    return label_set


def _with_infills(
    plan: EvaluationPlan, images: UnitImages, label_set: Array | None
) -> tuple[Array, dict[str, Positions], dict[str, Array]]:
    """The bank of pictures, images before infills; by infill, each image's positions and prob [images, classes]."""
    pictures, positions, prob = [images.inputs], dict[str, Positions](), dict[str, Array]()
    for name in dict.fromkeys(rule.infill for rule in plan.curve_rules):
        start = sum(map(len, pictures))
        infills, positions[name] = plan.infills.pictures(name, images, start)
        rows, means = plan.infills.probabilities(name, infills), list[Array]()
        for image, image_positions in enumerate(positions[name]):
            image_rows = rows[np.array(image_positions) - start]
            means.append(renormalised(image_rows, None if label_set is None else label_set[image]).mean(axis=0))
        prob[name] = np.stack(means)
        pictures.append(infills)
    return np.concatenate(pictures), positions, prob


def _watched_labels(uses: Sequence[MapUse], rules: Sequence[CurveRule]) -> dict[CurveKey, list[int]]:
    """The labels that each curve serves: insertion all, deletion the targets; reshuffled ties serve insertion alone."""
    watched: dict[CurveKey, set[int]] = {}
    for use in uses:
        for rule in rules:
            if rule.deletion and not use.is_target:
                continue
            reshuffles = () if rule.deletion else use.map.reshuffles
            for position in (use.map.positions[rule.ties], *reshuffles):
                watched.setdefault((rule, use.image, position), set()).add(use.label)
    return {key: sorted(labels) for key, labels in watched.items()}
