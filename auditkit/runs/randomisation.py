"""Whether maps depend on what the model has learned: the same method, applied to the model with layers re-initialised.

Layers are re-initialised from the last to the first, and maps for the label that the true model predicts are compared
with its own. Pixels are ranked by score, sign included, as in an evaluation; `absolute` ranks them by size, which also
reveals maps that only turn their sign. A map that stays does not depend on the model; one that changes may still be
unfaithful.
"""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import onnx

from auditkit.arrays import Array
from auditkit.data.atomic_write import remove_folder
from auditkit.data.bundles import Bundle, HeatmapSet
from auditkit.data.dataset import Dataset, FailedImage
from auditkit.errors import AuditError, BadInput, OutOfMemory
from auditkit.graph import edit
from auditkit.graph.randomise import Layer, layers, parameters, randomised
from auditkit.methods.request import MethodResult, Pool, Request
from auditkit.metrics.reliability import spearman
from auditkit.metrics.statistics import mean_interval
from auditkit.model import passes
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.model.worker import WorkerLost
from auditkit.runs.evaluation.images import load_images, probabilities
from auditkit.runs.executor import Progress, Tick, errors_naming, silent
from auditkit.runs.explain import Explanation, drawn_pool
from auditkit.runs.explanation.maps import Making, MapUnit, MapWriter
from auditkit.runs.explanation.recorded_bundle import RecordedBundle
from auditkit.runs.folder.figures import NotRandomised, Randomisation, RandomisationStage

VERSION = 1  # of the way in which layers are found and drawn
LEAST_SHARE = 0.5  # of the parameters must be weights that can be re-initialised; with fewer, most of the model stays
CHUNK = 16  # images classified together while they are chosen
NO_MAP = "no map for the predicted label"
CONSTANT = "the true model's map is constant and ranks no pixel before another"


@dataclass(frozen=True)
class _Original:
    """An image, the label that the true model predicts, and its map."""

    position: int
    image: str
    label: int
    values: Array


@dataclass(frozen=True)
class Check:
    """What all stages share."""

    model: OnnxClassifier
    graph: onnx.ModelProto  # the file's own, cut to the scores
    images: Dataset
    explanation: Explanation
    seed: int  # of the random weights and of the choice of images; the method has its own
    pool: Pool
    originals: tuple[_Original, ...]
    layers: tuple[Layer, ...]  # the last one first
    parameters: int  # of the whole graph
    counts: tuple[int, ...]  # of layers that each stage re-initialises
    confidence: float  # of the intervals
    notes: tuple[str, ...]  # on images that were left out

    def stage(self, stage: int, maps: Sequence[Array]) -> RandomisationStage:
        """The figures of a stage with these maps."""
        changed = self.layers[: self.counts[stage - 1]]
        names, share = tuple(layer.name for layer in changed), sum(layer.parameters for layer in changed)
        originals = [original.values for original in self.originals]
        return stage_result(stage, names, share / self.parameters, originals, maps, self.confidence)

    def result(self, series: Sequence[RandomisationStage], stage_notes: Sequence[str]) -> Randomisation:
        """The result with these stages."""
        return Randomisation(None, self.explanation.name(), len(self.originals), "predicted", self.seed,
                             len(self.layers), self.confidence, tuple(series), (*self.notes, *stage_notes))  # fmt: skip

    def key(self, changed: Sequence[Layer]) -> str:
        """Digest of all that can change a stage's maps; it identifies the changed model."""
        tensors = list(chain.from_iterable(layer.tensors for layer in changed))
        pairs = [(original.image, original.label) for original in self.originals]
        facts = [VERSION, self.model.file.identity, self.seed, self.explanation.seed, tensors, pairs]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for original in self.originals:
            digest.update(np.ascontiguousarray(original.values).data)
        return digest.hexdigest()

    def reinitialised(self, changed: Sequence[Layer]) -> OnnxClassifier:
        """The classifier with these layers re-initialised; random weights no longer keep it within float16.

        It shares the true model's check of the gradient, since the graph has the same nodes (model.gradient.trusted).
        """
        model, file = self.model, self.model.file
        proto, weights = randomised(self.graph, changed, self.seed, file.weights)
        precision = "strict" if model.settings.precision == "float16" else model.settings.precision
        fresh = replace(file, proto=proto, weights=weights, sha256=self.key(changed), external={})
        return OnnxClassifier(fresh, model.signature, model.card, replace(model.settings, precision=precision),
                              model.gradient_checks)  # fmt: skip


def randomisation(
    model: AnyClassifier, images: Dataset, explanation: Explanation, pool: Dataset | None, bundle: HeatmapSet, *,
    images_wanted: int, stages: int, seed: int, confidence: float = 0.95, out: Path | None = None,
    progress: Progress = silent,
) -> Randomisation:  # fmt: skip
    """How alike the maps of `bundle` and re-initialised models are; a later call reuses the maps of stages in `out`."""
    prepared = prepare(
        model, images, explanation, pool, bundle, images_wanted=images_wanted, stages=stages, seed=seed,
        confidence=confidence,
    )  # fmt: skip
    if isinstance(prepared, NotRandomised):
        return Randomisation(prepared)
    with nullcontext(out) if out else tempfile.TemporaryDirectory() as folder:
        series, stage_notes = _series(prepared, Path(folder), progress)
    if not series:
        return Randomisation(NotRandomised("no-stage", stage_notes[-1]))
    return prepared.result(series, stage_notes)


def prepare(
    model: AnyClassifier, images: Dataset, explanation: Explanation, pool: Dataset | None, bundle: HeatmapSet, *,
    images_wanted: int, stages: int, seed: int, confidence: float = 0.95,
) -> "Check | NotRandomised":  # fmt: skip
    """What all stages share; or why there can be none."""
    if images_wanted < 1 or stages < 1:
        raise BadInput(f"{images_wanted} images and {stages} stages were requested; each must be 1 or more.")
    if model.file is None:
        return NotRandomised("function")
    explanation = explanation.adapted_to(model)
    if bundle.header.model != model.identity or bundle.header.method != explanation.name():
        return NotRandomised("other-maps", explanation.name())
    output = model.signature.output
    graph = edit.with_outputs(passes.inlined(model.file.proto, model.settings), [output])
    model_layers, total = tuple(layers(graph, output)), parameters(graph, output)
    weights = sum(layer.parameters for layer in model_layers)
    if not model_layers or weights < LEAST_SHARE * total:
        return NotRandomised("few-parameters", f"{weights:,} of the model's {total:,}")
    originals, unfit = _originals(model, images, bundle, seed, images_wanted)
    notes = [f"{number} image{'s' * (number > 1)} left out: {reason}" for reason, number in unfit.items()]
    if not originals:
        return NotRandomised("no-maps", "; ".join(notes) or "there is no map for any of the images")
    infills = drawn_pool(model, images if pool is None else pool, explanation)
    counts = tuple(_layer_counts(len(model_layers), stages))
    return Check(
        model, graph, images, explanation, seed, infills, originals, model_layers, total, counts, confidence,
        tuple(notes),
    )  # fmt: skip


def _originals(
    model: OnnxClassifier, images: Dataset, bundle: HeatmapSet, seed: int, count: int
) -> tuple[tuple[_Original, ...], Counter[str]]:
    """The first images that serve, in the order of the seed; and why how many others do not."""
    originals, unfit = list[_Original](), Counter[str]()
    mapped = [position for position in images.order(seed) if images.ids[position] in bundle.labels]
    while mapped and len(originals) < count:
        chunk, mapped = mapped[:CHUNK], mapped[CHUNK:]
        loaded = load_images(chunk, images, model.card, model.signature)
        with errors_naming(loaded.ids):
            labels = probabilities(model, loaded.inputs).argmax(axis=1).tolist()
        for position, image, label in zip(loaded.positions, loaded.ids, labels, strict=True):
            if len(originals) == count:
                break
            values = bundle.get(image, label) if label in bundle.labels[image] else None
            if values is None or _is_constant(values):
                unfit[NO_MAP if values is None else CONSTANT] += 1
            else:
                originals.append(_Original(position, image, label, values))
    return tuple(originals), unfit


def _layer_counts(total: int, stages: int) -> list[int]:
    """How many layers are re-initialised at each stage: one, evenly more, and in the end all."""
    if stages == 1:
        return [total]
    return sorted({round(count) for count in np.linspace(1, total, stages).tolist()})


def _series(check: Check, folder: Path, progress: Progress) -> tuple[list[RandomisationStage], list[str]]:
    """The figures of each stage that has some, and notes on the stages."""
    tick, notes = progress(len(check.counts) * len(check.originals)), list[str]()
    series = list[RandomisationStage]()
    for stage, count in enumerate(check.counts, start=1):
        out = folder / f"stage-{stage}"
        try:
            maps = stage_maps(check, stage, out, tick)
        except NoMaps as error:
            if out.exists():
                remove_folder(out, root=_root(out))  # what was begun leads to no figure
            notes.append(f"stage {stage}, {count} of {len(check.layers)} layers, has no figure: {error}")
            continue
        series.append(check.stage(stage, maps))
        notes += constant_note(series[-1])
    return series, notes


def _root(stage: Path) -> Path:
    """The run's folder."""
    return stage.parent.parent


def constant_note(stage: RandomisationStage) -> list[str]:
    """A note on the constant maps of a stage, if it has some."""
    what = "maps are constant; they have no ranks and count as a correlation of 0"
    return [f"stage {stage.stage}: {stage.constant} of {stage.n} {what}"] if stage.constant else []


class NoMaps(AuditError):
    """The method finds no maps of a changed model."""


def stage_maps(check: Check, stage: int, out: Path, tick: Tick) -> list[Array]:
    """The maps of a stage, in the order of the originals; NoMaps where the changed model gives none."""
    changed, size = check.layers[: check.counts[stage - 1]], check.explanation.resolved()[0].together(check.model)
    new = Bundle(out, model=check.key(changed), method=check.explanation.name(), root=_root(out))
    with RecordedBundle(new) as bundle:
        chunks = [check.originals[start : start + size] for start in range(0, len(check.originals), size)]
        lacking = [chunk for chunk in chunks
                   if any(each.label not in bundle.labels_of(each.image) for each in chunk)]  # fmt: skip
        tick(len(check.originals) - sum(map(len, lacking)))
        if lacking:
            make = partial(_maps, check.explanation)
            making = Making(check.reinitialised(changed), check.images, check.pool, check.explanation.seed, "", make,
                            f"maps of stage {stage} of the randomisation, images")  # fmt: skip
            writer = MapWriter(making, bundle, tick)
            units = [writer.unit([each.position for each in chunk], tuple((each.label,) for each in chunk))
                     for chunk in lacking]  # fmt: skip
            writer.write(units, lambda unit: _blamed(writer, unit))
        maps = bundle.checked()
    return [maps.get(original.image, original.label) for original in check.originals]


def _blamed(writer: MapWriter, unit: MapUnit) -> tuple[FailedImage, ...]:
    """Try a unit once more, and name its images if the model fails again."""
    with errors_naming([writer.making.images.ids[position] for position in unit.positions]):
        return writer.write_here(unit)


def _maps(explanation: Explanation, request: Request) -> MethodResult:
    """The method's maps; NoMaps where it finds none: a network of random numbers may overflow, or hardly answer."""
    method, options = explanation.resolved()
    try:
        with np.errstate(all="ignore"):
            result = method.run(request, options)
    except (OutOfMemory, WorkerLost):
        raise
    except AuditError as error:
        raise NoMaps(str(error).removesuffix(".")) from None
    every = chain.from_iterable(by_label.values() for by_label in result.maps)
    if not all(np.isfinite(values).all() for values in every):
        raise NoMaps("its maps hold NaN or infinity")
    return result


def stage_result(
    stage: int, layers: tuple[str, ...], share: float, originals: Sequence[Array], maps: Sequence[Array],
    confidence: float,
) -> RandomisationStage:  # fmt: skip
    """Mean rank correlation over the images, with its interval; a constant map has no ranks and counts as 0."""
    pairs = list(zip(originals, maps, strict=True))
    correlations = [_correlation(first, second) for first, second in pairs]
    mean = mean_interval(correlations, confidence=confidence, bounds=(-1.0, 1.0))
    absolute = float(np.mean([_correlation(abs(first), abs(second)) for first, second in pairs]))
    return RandomisationStage(stage, layers, share, mean.value, mean.low, mean.high, mean.n, absolute,
                              sum(map(_is_constant, maps)), tuple(correlations))  # fmt: skip


def _correlation(first: Array, second: Array) -> float:
    correlation = float(spearman(np.stack([first.ravel(), second.ravel()], axis=1))[0, 1])
    return 0.0 if np.isnan(correlation) else correlation


def _is_constant(values: Array) -> bool:
    return bool(values.min() == values.max())
