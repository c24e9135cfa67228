"""The plan of an evaluation: which model, images and maps are measured, and how."""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from auditkit import __version__
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.data.file_digests import remembered
from auditkit.errors import BadInput
from auditkit.metrics.faithfulness import choose_labels
from auditkit.model import runtime
from auditkit.model.classifier import AnyClassifier
from auditkit.model.device import DeviceProfile
from auditkit.recorded_names import path_name
from auditkit.records import from_json, to_json, to_object
from auditkit.runs.evaluation.curves import Span
from auditkit.runs.evaluation.images import UnitImages, load_images
from auditkit.runs.evaluation.infills import Infills
from auditkit.runs.evaluation.settings import (
    CurvePair,
    CurveRule,
    Evaluation,
    curve_pairs,
    infill_file,
    resolved,
    units,
)
from auditkit.runs.folder.figures import CONTROL, Batch
from auditkit.runs.folder.results import CardOrigin, CardValue, Images, ModelFile, Results, Settings, Subject
from auditkit.runs.folder.store import Store

# Entries of a subject that change no figure.
BESIDE_CONTENT = (
    ("model", "path"),
    ("images", "source"),
)


@dataclass(frozen=True)
class RunRecord:
    """All that can change a figure."""

    subject: Subject
    settings: Settings
    bundles: Mapping[str, str]  # digests
    bundle_paths: Mapping[str, str]
    pool: str | None
    infill_images: Mapping[str, str]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, results: Results) -> "RunRecord":
        """The record of a finished run."""
        run = results.run
        return cls(results.subject, results.settings, run.bundles, run.bundle_paths, run.pool, run.infill_images,
                   results.environment)  # fmt: skip

    def batches(self, earlier: Sequence[Batch]) -> list["RunRecord"]:
        """The record of each batch of images, this one last."""
        images = [replace(self.subject.images, count=batch.images, digest=batch.digest) for batch in earlier]
        records = [replace(self, subject=replace(self.subject, images=entry), bundles=batch.bundles)
                   for entry, batch in zip(images, earlier, strict=True)]  # fmt: skip
        return [*records, self]


@dataclass(frozen=True)
class EvaluationPlan:
    """All that an evaluation is about, its settings resolved."""

    model: AnyClassifier
    images: Dataset
    bundles: Mapping[str, HeatmapSet]
    pool: Dataset
    settings: Evaluation
    curve_pairs: tuple[CurvePair, ...]
    span: Span
    infills: Infills

    @property
    def curve_rules(self) -> tuple[CurveRule, ...]:
        """The rules of all curves, each once."""
        rules: list[CurveRule | None] = []
        for pair in self.curve_pairs:
            rules += [pair.insertion, pair.deletion]
        return tuple(filter(None, dict.fromkeys(rules)))

    def load(self, positions: Sequence[int]) -> UnitImages:
        """The images at these positions."""
        return load_images(positions, self.images, self.model.card, self.model.signature)

    def record(self, *, full_paths: bool = False) -> RunRecord:
        """All that can change a figure: a folder that holds another run is refused."""
        infills = self.infills.files.items()
        return RunRecord(
            subject(self.model, self.images, full_paths=full_paths), self.settings.to_record(),
            bundles={name: bundle_digest(bundle) for name, bundle in self.bundles.items()},
            bundle_paths={
                name: path_name(bundle.path, full=full_paths) for name, bundle in self.bundles.items()
            },
            pool=self.pool.digest() if "random" in self.settings.infills else None,
            infill_images={
                infill_file(name): hashlib.sha256(path.read_bytes()).hexdigest() for name, path in infills
            },
            environment=environment(self.model),
        )  # fmt: skip


def plan_evaluation(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], settings: Evaluation,
    pool: Dataset | None, moved_infills: Mapping[Path, Path] | None = None,
) -> EvaluationPlan:  # fmt: skip
    """The plan; refused with a reason where it cannot be carried out. Infills from files may have moved since."""
    settings = resolved(settings, model.signature.classes)
    infill_pool = images if pool is None else pool
    span = Span.of(settings, model.signature.height * model.signature.width)
    infills = Infills(model, settings, infill_pool, moved_infills or {})
    named = {name: bundle.named_as(images) for name, bundle in bundles.items()}
    plan = EvaluationPlan(model, images, named, infill_pool, settings, curve_pairs(settings), span, infills)
    _check_images(plan)
    _check_bundles(plan)
    if pool is not None and "random" not in settings.infills:
        raise BadInput("a pool is for random infill; ask for that (--infill random), or leave the pool out.")
    return plan


def _check_images(plan: EvaluationPlan) -> None:
    choose_labels(np.zeros((1, plan.model.signature.classes)), plan.settings.labels)
    images = plan.images
    if not len(images):
        raise BadInput(f"{images.source} holds no images.")
    if len(set(images.ids)) < len(images):
        twice = next(name for name in images.ids if images.ids.count(name) > 1)
        raise BadInput(f"{images.source} has the image '{twice}' twice; every image counts once.")
    if "random" in plan.settings.infills and len(set(plan.pool.ids)) < 2:
        raise BadInput("random infill needs at least two images; give more, or a --pool.")


def _check_bundles(plan: EvaluationPlan) -> None:
    """Refuse bundles of other images, other labels or another model."""
    classes, identity = plan.model.signature.classes, plan.model.identity
    if not plan.bundles and not plan.settings.controls:
        raise BadInput("there is nothing to evaluate: give --heatmaps, or leave the controls on.")
    for name, bundle in plan.bundles.items():
        if not name or name.startswith(CONTROL):
            raise BadInput(f"a bundle cannot be named '{name}': such names are for the controls and the model itself.")
        if not bundle.entries:
            raise BadInput(f"bundle {name} has no maps yet; run the command that makes them to its end.")
        if not set(bundle.labels) & set(plan.images.ids):
            first = bundle.entries[0].listed
            raise BadInput(f"bundle {name} has no map for any of the images; its first image is '{first}'.")
        label = next((entry.label for entry in bundle.entries if entry.label >= classes), None)
        if label is not None:
            raise BadInput(f"bundle {name} has a map for label {label}; the model has classes 0 to {classes - 1}.")
        explained = bundle.header.model
        if identity and explained and explained.lower() != identity.lower():
            raise BadInput(f"bundle {name} was made for another model, {explained[:12]}..., not for {identity[:12]}...")


def subject(model: AnyClassifier, images: Dataset, *, full_paths: bool = False) -> Subject:
    """Which model, how it is read, how its input is prepared, and on which images it runs."""
    signature, card = model.signature, model.card
    file: ModelFile | Literal["callable"] = "callable"
    if model.file is not None:
        source = model.file
        path = path_name(source.path, full=full_paths)
        file = ModelFile(path, source.sha256, source.identity, dict(source.external) or None)
    card_digest, card_source = None, str(card.origin)
    if card.origin.file is not None:
        card_source = path_name(card.origin.file, full=full_paths)
        if card.origin.file.is_file():
            card_digest = hashlib.sha256(card.origin.file.read_bytes()).hexdigest()
    origin = CardOrigin(card_source, card_digest, card.origin.assumed, card.origin.assumed_size)
    values = {name: value for name, value in card.to_json().items() if name != "source"}
    return Subject(
        file, signature.input, signature.output, signature.kind, signature.classes, signature.layout, signature.dtype,
        origin, from_json(dict[str, CardValue], values, "card"), tuple(card.names),
        Images(path_name(images.source, full=full_paths), len(images), images.digest()), images.members(),
    )  # fmt: skip


def environment(model: AnyClassifier) -> dict[str, str]:
    """What computes the figures; each of these can change a last digit."""
    base = {"auditkit": __version__, "onnxruntime": runtime.build().version, "system": platform.machine()}
    if model.settings is not None:
        base |= {"device": model.settings.device, "precision": model.settings.precision}
    return base


def without_paths(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is about without paths of files, without groups, and without who stated the preprocessing.

    Digests identify files and groups, so a copy is as good. Whoever states what was assumed, as a preset or in a card
    with the same values, resumes the same run.
    """
    about = {name: value for name, value in record["subject"].items() if name not in ("groups", "card_origin")}
    for name, entry in BESIDE_CONTENT:
        if isinstance(about[name], Mapping):  # a callable has no path
            about[name] = {key: value for key, value in about[name].items() if key != entry}
    return {name: value for name, value in record.items() if name != "bundle_paths"} | {"subject": about}


def unit_keys(
    batches: Iterable[RunRecord], pixels: int, device: DeviceProfile, settings: Evaluation
) -> dict[range, str]:
    """The key of each unit of a run, a digest of all that can change its figures; each batch has its own units."""
    keys, start = dict[range, str](), 0
    for record in batches:
        about, count = without_paths(to_object(record)), record.subject.images.count
        for unit in units(range(start, count), pixels, record.subject.classes, device, settings):
            keys[unit] = Store.key({"about": about, "unit": [unit.start, unit.stop]})
        start = count
    return keys


def bundle_digest(bundle: HeatmapSet, *, fresh: bool = False) -> str:
    """Digest of a bundle's header and maps; the order and the files they were written in do not matter.

    If `fresh`, the maps are read, whatever is remembered of their files.
    """
    header = json.dumps(to_json(bundle.header), sort_keys=True)
    about = f"bundle digest {header} {bundle.entries_digest()}"
    return remembered(about, bundle.files(), lambda: _digest(bundle, header), fresh=fresh)


def _digest(bundle: HeatmapSet, header: str) -> str:
    digest, read = hashlib.sha256(header.encode()), bundle.stored_reader()
    for entry in sorted(bundle.entries, key=lambda entry: (entry.listed, entry.label)):
        values, _ = read(entry)
        digest.update(f"\0{entry.listed}\0{entry.label}\0{values.shape}\0".encode("utf-8", "surrogateescape"))
        digest.update(values.data)
    return digest.hexdigest()
