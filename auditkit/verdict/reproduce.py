"""Recomputes a few maps of each supplied bundle, by the method that it names, and compares them with the bundle's.

A bundle names its method in words that anyone can write. Where they state all that auditkit needs, they are tried.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.errors import AuditError, BadInput, LoadFailure, NoGradient
from auditkit.methods.registry import METHODS
from auditkit.methods.request import Maps, MethodResult, Pool
from auditkit.metrics.similarity import rank_correlation
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.evaluation.images import UnitImages, load_images, probabilities
from auditkit.runs.evaluation.maps import fitted_map
from auditkit.runs.executor import Progress, Tick, UnitProgress, silent
from auditkit.runs.explain import Explanation, drawn_pool, infill_digest, recompute_maps
from auditkit.runs.explanation.maps import other_inputs
from auditkit.runs.explanation.record import Record
from auditkit.runs.folder.figures import Obstacle, Reproduction
from auditkit.runs.folder.results import Results
from auditkit.verdict.policy import Policy

SIZES = (5, 2, 1)  # images: as many as MOST_PASSES allow; only the first for a median
MOST_PASSES = 15_000  # for a bundle; of a model with gradient or without
_LARGE = 10  # times its default, a whole-number option would fill the memory
# Limits of the rank correlation, from the demo's models, five images and two labels (benchmarks/reproduction.py). With
# weights rounded as in TF32 each map reached 0.997, but learned masks (mask, fong) medians of 0.97 and 0.96 and a least
# of 0.89 and 0.00: the search magnifies rounding. Of the maps of another method the least was 0.62 at most and the
# median 0.67, of another model 0.29 and 0.53. Two seeds of rise had a median of 0.63, of differences 0.71, of mask
# 0.82, of smoothgrad 0.85, so the seed must be known.
LIMIT = 0.95  # of every map
LEARNED_LIMIT = 0.9  # of the median, where masks are learned; less where the method repeats itself less well
LEAST_LIMIT = 0.7  # that tells maps of the method from those of another
# Masks of a ResNet-20 had medians of 0.85 with weights rounded as in TF32 and of 0.90 with brighter pictures
# (benchmarks/results/reproduction-resnet20.json); with 100 images to fill in with, both were 0.81, of two seeds 0.60.
_BRIGHTER = np.float32(1 + 2**-12)
_STEADY_SLACK = 0.1  # the median of ten maps


class _Obstacle(Exception):
    """Why maps cannot be recomputed."""

    def __init__(self, obstacle: Obstacle, detail: str = "") -> None:
        super().__init__(obstacle)
        self.obstacle, self.detail = obstacle, detail


class _Limited(UnitProgress):
    """Progress of work that does not begin where it would take too many passes."""

    def expect(self, rows: int) -> None:
        """Go on if that is not too much."""
        if rows > MOST_PASSES:
            raise _Obstacle("too-costly", f"{rows:,}, and {MOST_PASSES:,} are allowed")
        super().expect(rows)


def should_reproduce(policy: Policy | None, results: Results) -> bool:
    """Whether maps are recomputed: the policy asks for it, and the maps were supplied."""
    return policy is not None and policy.reproduce and results.explained is None


def reproduce(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], pool: Dataset | None, results: Results,
    progress: Progress = silent,
) -> tuple[Reproduction, ...]:  # fmt: skip
    """For each bundle of the results, whether its maps can be reproduced."""
    tick, reproductions = progress(len(bundles) * SIZES[0]), list[Reproduction]()
    for name, maps in bundles.items():
        try:
            entry = _reproduction(model, images, _order(images, name, maps, results), name, maps, pool, tick)
        except _Obstacle as error:
            entry = Reproduction(name, maps.header.method, error.obstacle, error.detail)
        except (AuditError, MemoryError) as error:
            entry = Reproduction(name, maps.header.method, "failed", str(error))
        reproductions.append(entry)
        tick(SIZES[0])
    return tuple(reproductions)


def steadiness(
    recompute: Callable[[UnitImages, Pool], MethodResult], unit: UnitImages, pool: Pool, maps: Maps
) -> list[float]:
    """Rank correlation of each map with the one that the method makes when last digits differ, as on another device.

    To that end, all pictures are made brighter by a four-thousandth, about as much as TF32 rounds.
    """
    moved, moved_pool = replace(unit, inputs=_brighter(unit.inputs)), replace(pool, inputs=_brighter(pool.inputs))
    correlations = list[float]()
    for by_label, twin in zip(maps, recompute(moved, moved_pool).maps, strict=True):
        correlations += [rank_correlation(values, twin[label]) for label, values in by_label.items()]
    return correlations


def _brighter(inputs: Array) -> Array:
    return inputs.astype(np.float32) * _BRIGHTER


def learned_limit(steady: Sequence[float]) -> float:
    """What the median correlation of learned masks must reach, given how well the method repeats itself."""
    return min(LEARNED_LIMIT, round(float(np.median(steady)) - _STEADY_SLACK, 2))


def _order(images: Dataset, name: str, maps: HeatmapSet, results: Results) -> list[int]:
    """Positions of the images that have maps, in the order in which they are taken.

    It depends on the maps: whoever changes some of them does not know in advance which are drawn.
    """
    failed = {entry.image for entry in results.failed_images}
    positions = [position for position, image in enumerate(images.ids) if image in maps.labels and image not in failed]
    rng = np.random.default_rng([results.settings.seed, int(results.run.bundles[name], 16)])
    return list(rng.permutation(positions).astype(int).tolist())


def _reproduction(
    model: AnyClassifier, images: Dataset, order: list[int], name: str, maps: HeatmapSet, pool: Dataset | None,
    tick: Tick,
) -> Reproduction:  # fmt: skip
    """How well the maps of a bundle agree with recomputed ones."""
    explanation = _explanation(maps.header.method, model)
    drawn = drawn_pool(model, images if pool is None else pool, explanation)
    unit, labels, recomputed = _recomputed(model, images, order, maps, drawn, explanation, tick)
    values = []
    for image, shape, by_label in zip(unit.ids, unit.sizes, recomputed, strict=True):
        values += [rank_correlation(heatmap, fitted_map(maps, image, label, model.card, shape))
                   for label, heatmap in by_label.items()]  # fmt: skip
    median = float(np.median(values))
    entry = Reproduction(name, maps.header.method, None, "", len(values), median, min(values), LIMIT)
    if not METHODS[explanation.method].learns:
        return entry
    entry = replace(entry, limit=LEARNED_LIMIT, decides="median")
    if entry.reproduced:
        return entry

    def recompute(images: UnitImages, pool: Pool) -> MethodResult:
        return recompute_maps(model, images, labels, pool, explanation, _Limited(tick, SIZES[0]))

    steady = steadiness(recompute, unit, drawn, recomputed)
    entry = replace(entry, limit=learned_limit(steady))
    if entry.reproduced and learned_limit(steady) < LEAST_LIMIT:
        raise _Obstacle("unsteady", f"the median rank correlation of its maps is {np.median(steady):.2f}")
    return entry


def _recomputed(
    model: AnyClassifier, images: Dataset, order: list[int], maps: HeatmapSet, pool: Pool, explanation: Explanation,
    tick: Tick,
) -> tuple[UnitImages, list[tuple[int, ...]], Maps]:  # fmt: skip
    """As many of the first images as are not too costly, with labels and the maps that the method makes of them."""
    method, record = METHODS[explanation.method], Record.of(maps.path)
    infill = infill_digest(model, pool) if method.uses_pool else record.infill
    if infill and not record.infill:
        raise _Obstacle("other-inputs", "the bundle does not say what pixels were replaced with")
    sizes = SIZES[:1] if method.learns else SIZES
    for size in sizes:
        unit = load_images(order[:size], images, model.card, model.signature)
        if not unit.ids:
            raise _Obstacle("no-maps")
        problem = other_inputs(record, unit, infill)
        if problem:
            raise _Obstacle("other-inputs", problem)
        labels = _labels(model, unit, maps)
        try:
            result = recompute_maps(model, unit, labels, pool, explanation, _Limited(tick, SIZES[0]))
            break
        except _Obstacle:
            if size == sizes[-1]:
                raise
    return unit, labels, result.maps


def _explanation(name: str, model: AnyClassifier) -> Explanation:
    """What the bundle names, if it can be made of this model."""
    method = name.partition("(")[0]
    if method not in METHODS:
        raise _Obstacle("unknown-method", name) if name else _Obstacle("no-method")
    if "path" in (option.name for option in fields(METHODS[method].options)):
        raise _Obstacle("file")  # of a stranger's choice
    try:
        explanation = Explanation.parse(name)
    except BadInput:
        raise _Obstacle("options") from None
    options = explanation.resolved()[1]
    for option in fields(options):
        value, usual = getattr(options, option.name), option.default if isinstance(option.default, int) else 0
        if isinstance(value, int) and value > (_LARGE * usual or MOST_PASSES):
            raise _Obstacle("too-costly", f"{option.name}={value}")
    try:
        adapted = explanation.adapted_to(model)
    except (NoGradient, LoadFailure):
        raise _Obstacle("no-gradient") from None
    if adapted.method != method:
        raise _Obstacle("no-gradient")
    return explanation


def _labels(model: AnyClassifier, unit: UnitImages, maps: HeatmapSet) -> list[tuple[int, ...]]:
    """For each image, the two likeliest of the labels that have a map."""
    scores = dict(zip(unit.ids, probabilities(model, unit.inputs), strict=True))
    return [tuple(sorted(maps.labels[image], key=lambda label: -prob[label])[:2]) for image, prob in scores.items()]
