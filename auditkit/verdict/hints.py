"""Tries whether maps that fail would fit the model if they were turned, moved or labelled otherwise.

Such mistakes are common when maps are made elsewhere, and easy to mend once they are known. Each change is tried on a
sample of the images; of those that fit clearly better the best is named.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.metrics.betting import DECISIVE, FEWEST_IMAGES, Sample
from auditkit.metrics.curves import parse_steps
from auditkit.metrics.table import METRICS
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.results import Hint, Results
from auditkit.runs.summary.source_rows import image_means
from auditkit.verdict.policy import Policy

SAMPLE = 24  # images
METRIC = "relevance_gain"
CLEARLY = 0.05  # of relevance gain
_STEPS = "16"
_SHIFTS = (1 / 32, 1 / 8)  # of the side
_AS_THEY_ARE = ""

LabelMaps = Mapping[int, Array]
Change = Callable[[LabelMaps], LabelMaps]


def _each(change: Callable[[Array], Array]) -> Change:
    return lambda maps: {label: np.ascontiguousarray(change(values)) for label, values in maps.items()}


def _moved(share: float, axis: int) -> Change:
    """Maps moved along an axis, their border repeated."""

    def move(values: Array) -> Array:
        side = values.shape[axis]
        places = np.clip(np.arange(side) - round(share * side), 0, side - 1)
        return np.asarray(np.take(values, places, axis))

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
             for share in _SHIFTS for where, (axis, sign) in directions.items()}  # fmt: skip
    return {
        "flipped left to right": _each(np.fliplr), "flipped upside down": _each(np.flipud),
        "transposed": _each(_transposed), "inverted": _each(np.negative), **moved,
        "exchanged between the labels of an image": _exchanged,
    }  # fmt: skip


CHANGES = _changes()


def wanted(policy: Policy, results: Results) -> bool:
    """Whether hints are looked for: the maps were supplied, and what they show fails a check."""
    failed = [check.metric for check in results.checks if check.status == "fail" and check.counts]
    return policy.hints and results.explained is None and any(
        metric in METRICS and METRICS[metric].curve for metric in failed
    )  # fmt: skip


def find_hints(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], settings: Evaluation
) -> tuple[Hint, ...]:
    """For each bundle, the change that makes its maps fit better, where there is one."""
    places = np.unique(np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).astype(int))
    if len(places) < FEWEST_IMAGES:
        return ()
    sample = images.select(places.tolist())
    rough = replace(settings, labels="top1", steps=parse_steps(_STEPS), infill=settings.infills[0], controls=False,
                    deletion=True, saliency="none")  # fmt: skip
    found = (_hint(model, sample, name, maps, rough) for name, maps in bundles.items())
    return tuple(hint for hint in found if hint is not None)


def _hint(model: AnyClassifier, sample: Dataset, bundle: str, maps: HeatmapSet, settings: Evaluation) -> Hint | None:
    gains = _gains(model, sample, maps, settings)
    before, low_high = gains.pop(_AS_THEY_ARE), METRICS[METRIC].limits
    bounds = (low_high[0] - low_high[1], low_high[1] - low_high[0])
    samples = {change: Sample((after - before)[np.isfinite(after - before)], bounds) for change, after in gains.items()
               if np.isfinite(after - before).sum() >= FEWEST_IMAGES}  # fmt: skip
    if not samples or fmean(one.e_above(CLEARLY) for one in samples.values()) < DECISIVE:
        return None
    change = max(samples, key=lambda name: samples[name].e_above(CLEARLY))
    count = len(samples[change].values)
    return Hint(bundle, change, float(np.nanmean(before)), float(np.nanmean(gains[change])), count)


def _gains(model: AnyClassifier, sample: Dataset, maps: HeatmapSet, settings: Evaluation) -> dict[str, Array]:
    """Relevance gain by image, of the maps as they are and after each change."""
    with tempfile.TemporaryDirectory() as folder:
        changed = {str(number): _changed(maps, sample, change, Path(folder) / str(number))
                   for number, change in enumerate((dict, *CHANGES.values()))}  # fmt: skip
        table = evaluate(model, sample, changed, settings).samples.table
    means = (image_means(table, str(number)).get(METRIC) for number in range(len(changed)))
    names = (_AS_THEY_ARE, *CHANGES)
    return {name: gains for name, gains in zip(names, means, strict=True) if gains is not None}


def _changed(maps: HeatmapSet, sample: Dataset, change: Change, folder: Path) -> HeatmapSet:
    bundle = Bundle(folder)
    for image in sample.ids:
        if labels := maps.labels.get(image, ()):
            made = change({label: maps.get(image, label) for label in labels})
            bundle.add([image] * len(made), list(made), np.stack(list(made.values())))
    return open_bundle(folder)
