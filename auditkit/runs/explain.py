"""Makes heatmaps for a dataset, some images at a time, into a bundle; an interrupted run can be resumed."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import MISSING, asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundles import Bundle, HeatmapSet
from auditkit.data.dataset import Dataset, FailedImage
from auditkit.data.file_digests import UNREADABLE, file_digests
from auditkit.errors import BadInput, LoadFailure, NoGradient, unknown
from auditkit.methods.notes import Note
from auditkit.methods.registry import METHODS, Method
from auditkit.methods.request import MethodResult, Pool, Request
from auditkit.metrics.faithfulness import default_labels
from auditkit.model.classifier import AnyClassifier
from auditkit.model.read import Limits, file_size
from auditkit.runs.evaluation.images import UnitImages, load_images, none_usable, picture_digest
from auditkit.runs.executor import (
    Progress,
    Shard,
    SkippedImages,
    Tick,
    UnitProgress,
    execute_all,
    retry_without_failing_images,
    silent,
)
from auditkit.runs.explanation.maps import Making, MapUnit, MapWriter, gray, request_for
from auditkit.runs.explanation.recorded_bundle import RecordedBundle
from auditkit.runs.explanation.shares import Shares
from auditkit.runs.folder.figures import ExplanationRequest, Flag
from auditkit.runs.folder.sittings import has_own_log, logged
from auditkit.runs.summary.wording import flag_text

MOST_POOL = 64  # images behind hidden pixels; more of them change nothing and fill the memory
QUALITY = "quality"  # the option that stands for several; others given with it take precedence
GRADIENTS = ("auto", "graph", "differences")
# Options of a mask, and the same ones of differences.
_OF_DIFFERENCES = {("infill", "distractors"): ("hide", "random"), ("infill", "gray"): ("hide", "gray")}
_DIGEST_DIGITS = 12  # of a file's SHA256 in a record
OptionValue = bool | int | float | str | None
_NAME = re.compile(r"(?P<method>[^(]+)\((?P<options>.*, )?seed=(?P<seed>\d{1,18})\)")  # of an explanation


@dataclass(frozen=True)
class Explanation:
    """Which maps are made, and how."""

    method: str
    labels: str | None = None  # as in an evaluation
    options: tuple[tuple[str, str], ...] = ()  # of the method, by name
    seed: int = 0
    gradient: str = "auto"  # of GRADIENTS: where a learned mask gets its direction from
    notes: tuple[Note, ...] = ()  # why another method is used than the one that was asked for, if so

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise BadInput(unknown("method", self.method, METHODS))
        if self.gradient not in GRADIENTS:
            raise BadInput(unknown("gradient", self.gradient, GRADIENTS))
        if self.gradient == "differences" and self.method != "mask" and METHODS[self.method].needs == "gradient":
            raise BadInput(f"{self.method} needs the gradient of the graph; without it, use mask or differences.")
        if self.seed < 0:
            raise BadInput(f"seed {self.seed} is negative.")

    def resolved(self) -> tuple[Method, Any]:
        """The method and its options; each option that is not given has its default."""
        if self.method == "mask" and self.gradient == "differences":
            return self._by_differences("--gradient differences").resolved()
        return METHODS[self.method], _read_options(self.method, self.options)

    def make(self, request: Request) -> MethodResult:
        """The maps of a request."""
        method, options = self.resolved()
        result = method.run(request, options)
        return replace(result, notes=(*self.notes, *result.notes))

    def adapted_to(self, model: AnyClassifier) -> "Explanation":
        """The same for this model; where it has no gradient to learn a mask by, with the method differences instead."""
        if self.method == "mask" and self.gradient == "differences":
            return self._by_differences("--gradient differences")
        if self.method == "mask" and not model.can_differentiate:
            return self._by_differences("a function has no gradient")
        method, options = self.resolved()
        if method.needs != "gradient":
            return self
        try:
            method.prepare(model, options)
        except (NoGradient, LoadFailure) as error:
            if self.method != "mask" or self.gradient == "graph":
                raise
            return self._by_differences(error.reason if isinstance(error, NoGradient) else str(error).rstrip("."))
        return self

    def _by_differences(self, reason: str) -> "Explanation":
        """The same by the method differences, with those options of the mask that it has too."""
        names = {option.name for option in fields(METHODS["differences"].options)}
        options = [_OF_DIFFERENCES.get(option, option) for option in self.options]
        used = tuple(option for option in options if option[0] in names)
        unused = tuple(option for option in options if option[0] not in names)
        _read_options("mask", unused)  # refuses those that neither method has
        notes = [Note("no-gradient", reason)]
        if unused:
            notes.append(Note("unused-options", ", ".join("=".join(option) for option in unused)))
        return replace(self, method="differences", options=used, notes=tuple(notes))

    def name(self) -> str:
        """The method with all its options: maps made with others do not go into the same bundle."""
        options = {**asdict(self.resolved()[1]), "seed": self.seed}
        texts = [f"{name}={_recorded_option(name, str(value))}" for name, value in options.items()]
        return f"{self.method}({', '.join(texts)})"

    @classmethod
    def parse(cls, name: str) -> "Explanation":
        """The explanation of this name; BadInput where a name of an unknown method, or not all options, are given."""
        parts = _NAME.fullmatch(name)
        if parts is None:
            raise BadInput(f"'{name}' does not state a method, its options and the seed.")
        options = [option.partition("=") for option in (parts["options"] or "").split(", ")[:-1]]
        explanation = cls(parts["method"], None, tuple((key, value) for key, _, value in options), int(parts["seed"]))
        if explanation.name() != name:
            raise BadInput(f"'{name}' does not state all options; with defaults it would be {explanation.name()}.")
        return explanation

    def to_record(self, pool: Dataset | None) -> ExplanationRequest:
        """The settings, so that the same maps can be made again."""
        digest = None if pool is None else pool.digest()
        options = {name: _recorded_option(name, value) for name, value in self.options}
        return ExplanationRequest(self.method, self.labels, options, self.seed, self.gradient, digest)


def _recorded_option(name: str, value: str) -> str:
    """The value of an option as records have it; a file by its name and content, wherever it is."""
    if name != "path":
        return value
    path = Path(value)
    file_size(path, Limits())  # refuses a folder or a missing file
    (digest,) = file_digests([path])
    if digest == UNREADABLE:
        raise BadInput(f"{path} cannot be read; make the file readable for yourself.")
    return f"{path.name}@sha256:{digest.hex()[:_DIGEST_DIGITS]}"


def _read_options(method: str, options: tuple[tuple[str, str], ...]) -> Any:
    """The options of a method in its own type."""
    known = {option.name: option for option in fields(METHODS[method].options)}
    qualities, quality, values = METHODS[method].qualities, None, dict[str, OptionValue]()
    for name, text in options:
        if name == QUALITY and qualities:
            quality = qualities.get(text)
            if quality is None:
                raise BadInput(unknown("quality", text, qualities))
        elif name in known:
            values[name] = _parse_option(name, text, str(known[name].type))
        else:
            raise BadInput(f"{method}: {unknown('option', name, [*known, *[QUALITY] * bool(qualities)])}")
    if quality is not None:
        values = asdict(quality.options) | values
    for name, option in known.items():
        if name not in values and option.default is MISSING:
            raise BadInput(f"{method} needs the option {name}, as in {name}=VALUE.")
    return METHODS[method].options(**values)


def _parse_option(name: str, text: str, kind: str) -> OptionValue:
    """The text as a value of the option's type."""
    if "None" in kind and text.lower() == "none":
        return None
    try:
        if "int" in kind:
            return int(text)
        if "float" in kind:
            return float(text)
    except ValueError:
        raise BadInput(f"option {name}={text} is not a number.") from None
    if "bool" in kind:
        if text.lower() not in ("true", "false"):
            raise BadInput(f"option {name}={text} is neither true nor false.")
        return text.lower() == "true"
    return text


def explain(
    model: AnyClassifier, images: Dataset, explanation: Explanation, out: Path, pool: Dataset | None = None,
    progress: Progress = silent, shard: Shard | None = None, root: Path | None = None, *, record_machine: bool = False,
) -> HeatmapSet:  # fmt: skip
    """The bundle in `out` with a map for every label of every image; maps that were made here before are kept.

    Of a `shard`, only the maps of its images are made. `root` is the run's folder, if the bundle is inside it. Only
    with `record_machine` does a log of several workers have the names of machines and processes.
    """
    explanation = explanation.adapted_to(model)
    share, left_out = share_of(model, images, explanation, shard), SkippedImages(model)
    chunks, count = _cut(share, explanation.resolved()[0].together(model)), len(share)
    tick = progress(count)
    rule = explanation.labels or str(default_labels(model.signature.classes))
    shares = None if shard is None else Shares(rule, _shares(model, images, explanation, shard.of))
    bundle = RecordedBundle(Bundle(out, model=model.identity, method=explanation.name(), root=root), shares)
    with bundle, ExitStack() as log:
        drawn = drawn_pool(model, images if pool is None else pool, explanation)
        making = Making(model, images, drawn, explanation.seed, rule, explanation.make)
        writer = MapWriter(making, bundle, tick, infill_digest(model, drawn))
        if has_own_log(model, shard=shard is not None):
            bundle.create()
            log.enter_context(logged(out, model, record_machine=record_machine))

        def without_some(unit: MapUnit) -> tuple[FailedImage, ...]:
            return retry_without_failing_images(
                unit.positions, images.ids, lambda some: writer.write_here(writer.unit(some)), left_out
            )

        failed = [*writer.write([writer.unit(chunk) for chunk in chunks], without_some), *left_out.images]
        if len(failed) == count:
            raise none_usable(count, failed)
        maps = bundle.checked()
    if not failed:
        return maps
    note = flag_text(Flag("unusable-images", count=len(failed), total=count), failed)
    return replace(maps, notes=(*maps.notes, note))


def share_of(model: AnyClassifier, images: Dataset, explanation: Explanation, shard: Shard | None) -> range:
    """Positions of a shard's images, or of all; the boundaries are the same on every device, with any engine."""
    every_image = range(len(images))
    return every_image if shard is None else _span(shard.part(_indivisible(model, every_image, explanation)))


def _shares(model: AnyClassifier, images: Dataset, explanation: Explanation, of: int) -> tuple[tuple[str, ...], ...]:
    """The names of each shard's images."""
    chunks = _indivisible(model, range(len(images)), explanation)
    spans = (_span(Shard(number, of).part(chunks)) for number in range(1, of + 1))
    return tuple(images.ids[span.start : span.stop] for span in spans)


def _indivisible(model: AnyClassifier, images: range, explanation: Explanation) -> list[range]:
    return _cut(images, explanation.resolved()[0].indivisible(model))


def _cut(images: range, size: int) -> list[range]:
    return [images[start : start + size] for start in range(0, len(images), size)]


def _span(chunks: Sequence[range]) -> range:
    return range(chunks[0].start, chunks[-1].stop)


def infill_digest(model: AnyClassifier, pool: Pool) -> str:
    """Digest of what pixels are replaced with."""
    return picture_digest(gray(model), pool.inputs)


def recompute_maps(
    model: AnyClassifier, images: UnitImages, labels: Sequence[tuple[int, ...]], pool: Pool, explanation: Explanation,
    progress: UnitProgress,
) -> MethodResult:  # fmt: skip
    """The maps of some images without a bundle, to compare them with maps that were made before.

    Random draws repeat; in a batch of another size, the last digits may differ.
    """
    method, options = explanation.resolved()
    with progress:
        return method.run(request_for(model, images, labels, pool, explanation.seed, progress), options)


def recompute_in_units(
    model: AnyClassifier, images: UnitImages, labels: Sequence[tuple[int, ...]], pool: Pool, explanation: Explanation,
    tick: Tick = silent(0),
) -> MethodResult:  # fmt: skip
    """The same for any number of images, as many together as when maps are made, by all workers."""
    units = _cut(range(len(images.ids)), explanation.resolved()[0].together(model))
    work = _Recomputing(model, images, tuple(labels), pool, explanation)
    results = execute_all(model, work, units, lambda unit: tick(len(unit)))
    maps = tuple(chain.from_iterable(result.maps for result in results))
    return MethodResult(maps, notes=tuple(chain.from_iterable(result.notes for result in results)))


@dataclass(frozen=True)
class _Recomputing:
    """Makes maps of some of the images again."""

    model: AnyClassifier
    images: UnitImages
    labels: tuple[tuple[int, ...], ...]
    pool: Pool
    explanation: Explanation

    def __call__(self, unit: range, device: AbstractContextManager[None], tick: Tick) -> MethodResult:
        """The maps of a unit."""
        images, labels = self.images.part(unit), self.labels[unit.start : unit.stop]
        with device:
            return recompute_maps(
                self.model, images, labels, self.pool, self.explanation, UnitProgress(tick, len(unit))
            )


def drawn_pool(model: AnyClassifier, images: Dataset, explanation: Explanation) -> Pool:
    """Some of the images, drawn once for the whole run; none where the method uses none."""
    if not METHODS[explanation.method].uses_pool:
        return Pool((), np.zeros(0))
    rng = np.random.default_rng([explanation.seed, len(images)])
    order, drawn = rng.permutation(len(images)).tolist(), dict[int, Array]()
    failed: list[FailedImage] = []
    while len(drawn) < MOST_POOL and order:
        missing = MOST_POOL - len(drawn)
        loaded = load_images(order[:missing], images, model.card, model.signature)
        drawn |= dict(zip(loaded.positions, loaded.inputs, strict=True))
        order, failed = order[missing:], failed + list(loaded.failed)
    if not drawn:
        raise none_usable(len(images), failed)
    positions = sorted(drawn)
    return Pool(tuple(images.ids[position] for position in positions), np.stack([drawn[each] for each in positions]))
