"""Maps that an audit made itself, made once more as they were asked for, and set beside those that it keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.methods.request import Pool
from auditkit.metrics.faithfulness import choose_labels, default_labels
from auditkit.metrics.reliability import spearman
from auditkit.model.classifier import OnnxClassifier
from auditkit.runs.evaluation.images import load_images, probabilities
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.executor import Progress
from auditkit.runs.explain import Explanation, drawn_pool, request_for
from auditkit.verdict.verify.run_record import Recorded

Maps = Mapping[tuple[str, int], Array]  # by image and label
# Rank correlation of two maps made alike. On the CPU, gradients, grad-cam, rise, occlusion and differences gave equal
# bits alone and in a batch, and a mask 0.99999 after 1,500 steps; with weights rounded as in TF32 the least was 0.997.
ALIKE = 0.99
SUPPLIED = "how the maps were made: they were supplied, and cannot be made again"


@dataclass(frozen=True)
class Agreement:
    """Maps made again, and what of them is not as the run has it."""

    maps: int
    images: int
    least: float  # rank correlation
    problems: list[str]


def made_by(recorded: Recorded) -> str:
    """The method that the audit made its maps by; empty where it was given them."""
    return "" if recorded.results.explained is None else recorded.results.explained.method


def again(
    recorded: Recorded, work: EvaluationPlan, order: Sequence[int], wanted: int, pool: Path | None, exact: bool,
    progress: Progress,
) -> Agreement:  # fmt: skip
    """The maps of the first images in `order` that have some, made again and compared.

    What was drawn by chance is drawn again alike, but fewer images share a batch than in the run, so the last digits
    may differ. `exact`: it is the same environment, in which an image's labels come out alike too.
    """
    what, pool_digest = _asked(recorded)
    (bundle,) = work.bundles.values()
    positions = [place for place in order if work.images.ids[place] in bundle.labels][:wanted]
    model = _classifier(recorded, work)
    made, missing = _made(model, work, what, _pool(recorded, work, pool, pool_digest), positions, bundle, progress)
    problems = [
        f"image '{image}' has no map for label {label}, which was asked for" for image, label in missing if exact
    ]
    alike = {pair: correlation(values, bundle.get(*pair)) for pair, values in made.items()}
    problems += [
        f"the map of image '{image}', label {label}, is not the one that {what.name()} makes: their rank correlation "
        f"is {found:.3f}, at least {ALIKE} is expected"
        for (image, label), found in alike.items() if not found >= ALIKE
    ]  # fmt: skip
    return Agreement(len(alike), len(positions), min(alike.values(), default=1.0), problems)


def _asked(recorded: Recorded) -> tuple[Explanation, str | None]:
    """What was asked for, and the digest of the pictures behind hidden pixels, where they are not the images."""
    explained = recorded.results.explained
    if explained is None:
        raise ValueError("the run did not make its maps")
    request = explained.request
    what = Explanation(request.method, request.labels, tuple(request.options.items()), request.seed, request.gradient)
    if what.name() != explained.method:
        raise ValueError(f"what was asked for is {what.name()}, but the maps are said to be of {explained.method}")
    return what, request.pool


def _classifier(recorded: Recorded, work: EvaluationPlan) -> OnnxClassifier:
    """The model in the precision that maps were made in; figures may have been taken in a better one."""
    model, then = work.model, recorded.run["environment"]
    if model.file is None:
        raise TypeError("a function is never asked again")
    if then["device"] != model.device.name or then["precision"] == model.settings.precision:
        return model
    settings = replace(model.settings, precision=then["precision"])
    return OnnxClassifier(model.file, model.signature, model.card, settings)


def _pool(recorded: Recorded, work: EvaluationPlan, given: Path | None, known: str | None) -> Dataset:
    """The pictures behind hidden pixels."""
    if known is None:
        return work.images
    path = given or recorded.results.run.pool_path
    if path is None or not Path(path).exists():
        raise BadInput(f"the pool that maps were made with cannot be found ({path}): give --pool PATH, or --maps 0.")
    pool = Dataset.open(Path(path), work.model.signature.classes, work.model.card.names)
    if pool.digest() != known:
        raise ValueError(f"{path} is not the pool that they were made with: its digest is another")
    return pool.usable(work.model.card)[0]


def _made(
    model: OnnxClassifier, work: EvaluationPlan, what: Explanation, pool: Dataset, positions: Sequence[int],
    bundle: HeatmapSet, progress: Progress,
) -> tuple[Maps, list[tuple[str, int]]]:  # fmt: skip
    """The maps of images and the labels that the bundle has maps for; and labels that it lacks."""
    if not positions:
        return {}, []
    method, options = what.chosen()
    seen, tick = load_images(positions, work.images, model.card, model.signature), progress(len(positions))
    drawn = drawn_pool(model, pool, what.seed) if method.uses_pool else Pool((), np.zeros(0))
    rule = what.labels or str(default_labels(model.signature.classes))
    chosen = choose_labels(probabilities(model, seen.inputs), rule)
    missing = [(image, int(label)) for image, own in zip(seen.ids, chosen, strict=True)
               for label in own if int(label) not in bundle.labels[image]]  # fmt: skip
    labels = [bundle.labels[image] for image in seen.ids]
    found = method.run(request_for(model, seen, labels, drawn, what.seed, lambda rows: tick(0, rows)), options)
    tick(len(positions))
    return {(image, label): values for image, own in zip(seen.ids, found.maps, strict=True)
            for label, values in own.items()}, missing  # fmt: skip


def correlation(first: Array, second: Array) -> float:
    """Rank correlation of two maps over the pixels; two that rank none before another are alike."""
    if first.shape != second.shape:
        return 0.0
    flat = [bool(values.min() == values.max()) for values in (first, second)]
    if any(flat):
        return float(all(flat))
    return float(spearman(np.stack([first.ravel(), second.ravel()], axis=1))[0, 1])
