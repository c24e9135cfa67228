"""Tries whether maps that do not pass would fit the model if they were turned, moved or labelled otherwise.

Such mistakes are common when maps are made elsewhere, and easy to mend once they are known. Each change is tried on a
sample of the images; of those that fit clearly better the best is named.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.metrics.betting import FEWEST_IMAGES
from auditkit.metrics.curves import parse_steps
from auditkit.metrics.table import METRICS
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.figures import Hint
from auditkit.runs.folder.results import Results
from auditkit.runs.summary.source_rows import image_means
from auditkit.verdict.policy import Policy

SAMPLE = 24  # images
METRIC = "relevance_gain"
CLEARLY = 0.05  # of relevance gain
_ERROR = 0.05  # that a hint is chance, over all changes
_STEPS = "16"
_SHIFTS = (1 / 32, 1 / 8)  # of the side
_AS_THEY_ARE = "as they are"

LabelMaps = Mapping[int, Array]
Change = Callable[[LabelMaps], LabelMaps]


def _each(change: Callable[[Array], Array]) -> Change:
    return lambda maps: {label: np.ascontiguousarray(change(values)) for label, values in maps.items()}


def _moved(share: float, axis: int) -> Change:
    """Maps moved along an axis, their border repeated."""

    def move(values: Array) -> Array:
        side = values.shape[axis]
        indices = np.clip(np.arange(side) - round(share * side), 0, side - 1)
        return np.asarray(np.take(values, indices, axis))

    return _each(move)


def _exchanged(maps: LabelMaps) -> LabelMaps:
    """The maps of the labels, each under the next label."""
    labels = sorted(maps)
    return {label: maps[labels[number - 1]] for number, label in enumerate(labels)}


def _transposed(values: Array) -> Array:
    return values.T if values.shape[0] == values.shape[1] else values


def _changes() -> dict[str, Change]:
    directions = {"down": (0, 1), "up": (0, -1), "to the right": (1, 1), "to the left": (1, -1)}
    moved = {f"moved {where} by {share:.0%} of the side": _moved(sign * share, axis)
             for share, (where, (axis, sign)) in product(_SHIFTS, directions.items())}  # fmt: skip
    return {
        "flipped left to right": _each(np.fliplr), "flipped upside down": _each(np.flipud),
        "transposed": _each(_transposed), "inverted": _each(np.negative), **moved,
        "exchanged between the labels of an image": _exchanged,
    }  # fmt: skip


CHANGES = _changes()


def should_search(policy: Policy, results: Results) -> bool:
    """Whether hints are looked for: the maps were supplied, and what they show fails a check or leaves it open."""
    not_passed = {check.metric for check in results.checks if check.status in ("fail", "inconclusive") and check.counts}
    of_curves = any(metric in METRICS and METRICS[metric].curve for metric in not_passed)
    return policy.hints and results.explained is None and of_curves


def find_hints(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], settings: Evaluation
) -> tuple[Hint, ...]:
    """For each bundle, the change that makes its maps fit better, where there is one."""
    indices = np.unique(np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).astype(int))
    if len(indices) < FEWEST_IMAGES:
        return ()
    sample = images.select(indices.tolist())
    rough = replace(
        settings,
        labels="top1",
        steps=parse_steps(_STEPS),
        infill=settings.infill_options[0],
        controls=False,
        deletion=True,
        saliency="none",
    )
    hints = (_hint(model, sample, name, maps, rough) for name, maps in bundles.items())
    return tuple(hint for hint in hints if hint is not None)


def _hint(model: AnyClassifier, sample: Dataset, bundle: str, maps: HeatmapSet, settings: Evaluation) -> Hint | None:
    gains = _gains(model, sample, maps, settings)
    before = gains.pop(_AS_THEY_ARE)
    differences = {change: (after - before)[np.isfinite(after - before)] for change, after in gains.items()}
    better = [change for change, values in differences.items() if _clearly_positive(values)]
    if not better:
        return None
    change = max(better, key=lambda name: float(differences[name].mean()))
    return Hint(bundle, change, float(np.nanmean(before)), float(np.nanmean(gains[change])), len(differences[change]))


def _clearly_positive(differences: Array) -> bool:
    """Whether a difference matters, and is positive on so many images that chance does not explain it (sign test)."""
    positive, count = int((differences > 0).sum()), int((differences != 0).sum())
    chance = sum(math.comb(count, number) for number in range(positive, count + 1)) / 2**count
    enough = len(differences) >= FEWEST_IMAGES and float(differences.mean()) >= CLEARLY
    return enough and chance < _ERROR / len(CHANGES)


def _gains(model: AnyClassifier, sample: Dataset, maps: HeatmapSet, settings: Evaluation) -> dict[str, Array]:
    """Relevance gain by image, of the maps as they are and after each change."""
    changed = {change: _Changed(maps.path, maps.header, maps.entries, maps.notes, change) for change in CHANGES}
    bundles = {_AS_THEY_ARE: maps, **changed}
    table = evaluate(model, sample, bundles, settings).table
    means = {name: image_means(table, name).get(METRIC) for name in bundles}
    return {name: gains for name, gains in means.items() if gains is not None}


@dataclass(frozen=True, repr=False)
class _Changed(HeatmapSet):
    """The maps of a bundle, changed as they are read."""

    change: str = ""  # its name, since a function cannot be pickled

    def get(self, image: str, label: int) -> Array:
        """The map of one image and label, after the change."""
        read = super().get
        return CHANGES[self.change]({each: read(image, each) for each in self.labels.get(image, ())})[label]
