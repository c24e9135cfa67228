"""Whether maps depend on what the model has learned: the same method, asked about the model with layers re-initialised.

Layers go from the last to the first (graph.randomise). At each stage maps for the label that the true model predicts
are made anew, with the same seed, and set beside those of the true model. Pixels are ranked as the maps stand, with
their sign, since that is the order in which an evaluation shows them; `absolute` ranks them by size, which also tells
of maps that keep their outline and turn their sign. A map that stays does not depend on the model; one that changes may
still be unfaithful.
"""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from auditkit.arrays import Array
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import map_seed
from auditkit.errors import AuditError, BadInput, OutOfMemory
from auditkit.graph import edit
from auditkit.graph.randomise import Layer, layers, parameters, randomised
from auditkit.methods.request import Found, Pool, Request
from auditkit.metrics.reliability import spearman
from auditkit.metrics.statistics import mean_interval
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.runs import explain_record
from auditkit.runs.evaluation.images import load_images, probabilities
from auditkit.runs.executor import Progress, Tick, silent
from auditkit.runs.explain import Explanation, drawn_pool, request_for

VERSION = 1  # of the way in which layers are found and drawn
LEAST_SHARE = 0.5  # of the parameters that must be known before anything is said
LOOKED_AT = 16  # images asked about together while they are chosen
NO_MAP = "no map for the predicted label"
CONSTANT = "the true model's map is constant and ranks no pixel before another"


@dataclass(frozen=True)
class Original:
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
    what: Explanation
    pool: Pool
    originals: tuple[Original, ...]
    layers: tuple[Layer, ...]  # the last one first
    parameters: int  # of the whole graph
    confidence: float  # of the intervals

    def key(self, some: Sequence[Layer]) -> str:
        """Digest of all that can change a stage's maps; it stands for the changed model."""
        said = [VERSION, self.model.file.identity, self.what.seed, [name for layer in some for name in layer.tensors],
                [(one.image, one.label) for one in self.originals]]  # fmt: skip
        found = hashlib.sha256(json.dumps(said).encode())
        for one in self.originals:
            found.update(np.ascontiguousarray(one.values).data)
        return found.hexdigest()

    def changed(self, some: Sequence[Layer]) -> OnnxClassifier:
        """The classifier with these layers re-initialised; what it has learned no longer keeps it within float16.

        Its gradient is not checked anew: rules and their order are checked, and the graph has the nodes of the true
        model's, whose check it shares (model.gradient.trusted).
        """
        model, file = self.model, self.model.file
        proto, weights = randomised(self.graph, some, self.what.seed, file.weights)
        precision = "strict" if model.settings.precision == "float16" else model.settings.precision
        fresh = replace(file, proto=proto, weights=weights, sha256=self.key(some), external={})
        return OnnxClassifier(fresh, model.signature, model.card, replace(model.settings, precision=precision),
                              model.gradient_checks)  # fmt: skip


def randomisation(
    model: AnyClassifier, images: Dataset, what: Explanation, pool: Dataset | None, bundle: HeatmapSet, *,
    images_wanted: int, stages: int, confidence: float = 0.95, out: Path | None = None, progress: Progress = silent,
) -> dict[str, Any]:  # fmt: skip
    """How alike the maps of `bundle` and those of re-initialised models are, stage by stage; or why that is not known.

    With `out` the maps of each stage are kept there, and those that are there already are not made again.
    """
    if images_wanted < 1 or stages < 1:
        raise BadInput(f"{images_wanted} images and {stages} stages are to be looked at; each must be 1 or more.")
    what = what.fitting(model)
    if model.file is None:
        return {"not_assessed": "a function has no layers that could be re-initialised"}
    if bundle.header.model != model.identity or bundle.header.method != what.name():
        return {"not_assessed": f"the maps are not those that {what.name()} made for this model, so that they cannot "
                                f"be made again for a changed one"}  # fmt: skip
    output = model.signature.output
    graph = edit.with_outputs(edit.inlined(model.file.proto), [output])
    found, whole = tuple(layers(graph, output)), parameters(graph, output)
    known = sum(layer.parameters for layer in found)
    if not found or known < LEAST_SHARE * whole:
        return {"not_assessed": f"{known:,} of the model's {whole:,} parameters are weights of layers that can be "
                                f"re-initialised, which is too few"}  # fmt: skip
    originals, notes = _originals(model, images, bundle, what.seed, images_wanted)
    if not originals:
        return {"not_assessed": "; ".join(notes) or "there is no map for any of the images"}
    others = _others(model, images if pool is None else pool, what)
    check = Check(model, graph, images, what, others, originals, found, whole, confidence)
    with nullcontext(out) if out else tempfile.TemporaryDirectory() as folder:
        series, more = _series(check, _counts(len(found), stages), Path(folder), progress)
    if not series:
        return {"not_assessed": more[-1]}
    return {"method": what.name(), "images": len(originals), "label": "predicted", "seed": what.seed,
            "layers": len(found), "confidence": confidence, "series": series, "notes": notes + more}  # fmt: skip


def _originals(
    model: OnnxClassifier, images: Dataset, bundle: HeatmapSet, seed: int, wanted: int
) -> tuple[tuple[Original, ...], list[str]]:
    """The first images that serve, and how many did not and why."""
    found: list[Original] = []
    left_out: Counter[str] = Counter()
    for one in _candidates(model, images, bundle, seed):
        if isinstance(one, str):
            left_out[one] += 1
            continue
        found.append(one)
        if len(found) == wanted:
            break
    return tuple(found), [f"{count} image{'s' * (count > 1)} left out: {why}" for why, count in left_out.items()]


def _candidates(model: OnnxClassifier, images: Dataset, bundle: HeatmapSet, seed: int) -> Iterator[Original | str]:
    """Images that have maps, ordered by their names and the seed alone; for one that does not serve, the reason."""
    mapped = [position for position, image in enumerate(images.ids) if image in bundle.labels]
    mapped.sort(key=lambda position: map_seed(seed, images.ids[position], -4))
    for start in range(0, len(mapped), LOOKED_AT):
        seen = load_images(mapped[start : start + LOOKED_AT], images, model.card, model.signature)
        labels = probabilities(model, seen.inputs).argmax(axis=1).tolist()
        for position, image, label in zip(mapped[start:], seen.ids, labels, strict=False):
            if label not in bundle.labels[image]:
                yield NO_MAP
                continue
            values = bundle.get(image, label)
            yield CONSTANT if _is_constant(values) else Original(position, image, label, values)


def _others(model: OnnxClassifier, images: Dataset, what: Explanation) -> Pool:
    """The pictures behind hidden pixels, the same that the true model's maps were made with."""
    method, _ = what.chosen()
    return drawn_pool(model, images.usable(model.card)[0], what.seed) if method.uses_pool else Pool((), np.zeros(0))


def _counts(layers_found: int, stages: int) -> list[int]:
    """How many layers are re-initialised at each stage: one, evenly more, and in the end all."""
    if stages == 1:
        return [layers_found]
    return sorted({round(count) for count in np.linspace(1, layers_found, stages).tolist()})


def _series(
    check: Check, counts: Sequence[int], folder: Path, progress: Progress
) -> tuple[list[dict[str, Any]], list[str]]:
    """The figures of each stage that has some, and what must be known of the stages."""
    tick = progress(len(counts) * len(check.originals))
    series: list[dict[str, Any]] = []
    notes: list[str] = []
    for stage, count in enumerate(counts, start=1):
        some = check.layers[:count]
        maps, failure = _maps(check, some, folder / f"stage-{stage}", tick)
        if failure:
            notes.append(f"stage {stage}, {count} of {len(check.layers)} layers, has no figure: {failure}")
            continue
        share = sum(layer.parameters for layer in some) / check.parameters
        series.append({"stage": stage, "layers": [layer.name for layer in some], "share": share,
                       **figures([one.values for one in check.originals], maps, check.confidence)})  # fmt: skip
        if constant := series[-1]["constant"]:
            notes.append(f"stage {stage}: {constant} of {len(maps)} maps are constant; they have no ranks and count as "
                         f"a correlation of 0")  # fmt: skip
    return series, notes


def _maps(check: Check, some: Sequence[Layer], out: Path, tick: Tick) -> tuple[list[Array], str]:
    """The maps of a stage, in the order of the originals; or why the changed model gives none.

    Maps that are there already must be the ones that were made (runs.made), here as for the true model.
    """
    method, _ = check.what.chosen()
    bundle = Bundle(out, model=check.key(some), method=check.what.name())
    changed: OnnxClassifier | None = None
    record, done = explain_record.Record.of(out), set[str]()
    if len(bundle):
        record.check(there := open_bundle(out))
        done = set(there.labels)
    together = method.together(check.model)
    for start in range(0, len(check.originals), together):
        part = check.originals[start : start + together]
        missing = [one for one in part if one.image not in done]
        if missing:
            changed = changed or check.changed(some)
            seen = load_images([one.position for one in missing], check.images, changed.card, changed.signature)
            labels = [(one.label,) for one in missing]
            request = request_for(changed, seen, labels, check.pool, check.what.seed, lambda rows: tick(0, rows))
            found, failure = _asked(check.what, request)
            if found is None:
                return [], failure
            record = explain_record.add(bundle, record, request, found)
        tick(len(part))
    record.check(kept := open_bundle(out))
    return [kept.get(one.image, one.label) for one in check.originals], ""


def _asked(what: Explanation, request: Request) -> tuple[Found | None, str]:
    """What the method finds, or why it finds nothing: a network of random numbers may overflow, or hardly answer."""
    method, options = what.chosen()
    try:
        with np.errstate(all="ignore"):
            found = method.run(request, options)
    except OutOfMemory:
        raise
    except AuditError as error:
        return None, str(error).removesuffix(".")
    if not all(np.isfinite(values).all() for own in found.maps for values in own.values()):
        return None, "its maps hold NaN or infinity"
    return found, ""


def figures(originals: Sequence[Array], maps: Sequence[Array], confidence: float) -> dict[str, Any]:
    """Mean rank correlation over the images, with its interval; a constant map has no ranks and counts as 0."""
    pairs = list(zip(originals, maps, strict=True))
    ranks = [_correlation(first, second) for first, second in pairs]
    mean = mean_interval(ranks, confidence=confidence, bounds=(-1.0, 1.0))
    by_size = np.mean([_correlation(abs(first), abs(second)) for first, second in pairs])
    constant = sum(map(_is_constant, maps))
    return {"spearman": mean.value, "low": mean.low, "high": mean.high, "n": mean.n, "absolute": float(by_size),
            "constant": constant}  # fmt: skip


def _correlation(first: Array, second: Array) -> float:
    found = float(spearman(np.stack([first.ravel(), second.ravel()], axis=1))[0, 1])
    return 0.0 if np.isnan(found) else found


def _is_constant(values: Array) -> bool:
    return bool(values.min() == values.max())
