"""The plan of an evaluation: which model, images and maps are measured, and how."""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np

from auditkit import __version__
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset, FailedImage
from auditkit.errors import BadInput
from auditkit.metrics.faithfulness import choose_labels
from auditkit.model.card import Card
from auditkit.model.classifier import AnyClassifier
from auditkit.model.session import runtime_version
from auditkit.runs.evaluation.curves import Span
from auditkit.runs.evaluation.infills import Infills, infill_file
from auditkit.runs.evaluation.settings import (
    CONTROL,
    IMAGE_PREFIX,
    CurvePair,
    CurveRule,
    Evaluation,
    SettingValue,
    curve_pairs,
    resolved,
)
from auditkit.runs.folder.store import Store

PATHS = (("model", "path"), ("card_origin", "source"), ("images", "source"))  # entries of a subject


class ModelFile(TypedDict):
    """The file of a model."""

    path: str
    sha256: str
    identity: str


class CardOrigin(TypedDict):
    """Where a card comes from; a preset has no digest."""

    source: str
    sha256: str | None


class ImagesRecord(TypedDict):
    """Which images were used."""

    source: str
    count: int
    digest: str


class Subject(TypedDict):
    """Which model, how it is read, how its input is prepared, and on which images it runs."""

    model: ModelFile | str  # "callable"
    input: str
    output: str
    kind: str
    classes: int
    layout: str
    dtype: str
    card_origin: CardOrigin
    card: dict[str, Any]
    class_names: list[str]
    images: ImagesRecord


class Environment(TypedDict):
    """What computes the figures; each of these can change a last digit."""

    auditkit: str
    onnxruntime: str
    system: str
    device: NotRequired[str]  # of an ONNX file
    precision: NotRequired[str]


class RunRecord(TypedDict):
    """All that can change a figure, as results.json has it."""

    subject: Subject
    settings: dict[str, SettingValue]
    bundles: dict[str, str]  # digests
    bundle_paths: dict[str, str]
    pool: str | None
    infill_images: dict[str, str]
    failed_images: list[dict[str, str]]
    environment: Environment


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
    failed: tuple[FailedImage, ...] = ()  # images that cannot be used

    @property
    def curve_rules(self) -> tuple[CurveRule, ...]:
        """The rules of all curves, each once."""
        rules: dict[CurveRule, None] = {}
        for pair in self.curve_pairs:
            rules |= dict.fromkeys(pair.rules)
        return tuple(rules)

    def failures(self) -> list[dict[str, str]]:
        """The images that cannot be used, as plain objects."""
        return [asdict(image) for image in self.failed]

    def record(self) -> RunRecord:
        """All that can change a figure: a folder that holds another run is refused."""
        files = [infill_file(name) for name in self.settings.infills if name.startswith(IMAGE_PREFIX)]
        return {
            "subject": subject(self.model, self.images),
            "settings": self.settings.to_json(),
            "bundles": {name: bundle_digest(bundle) for name, bundle in self.bundles.items()},
            "bundle_paths": {name: str(bundle.path) for name, bundle in self.bundles.items()},
            "pool": self.pool.digest() if "random" in self.settings.infills else None,
            "infill_images": {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
            "failed_images": self.failures(),
            "environment": environment(self.model),
        }


def plan_evaluation(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], settings: Evaluation,
    pool: Dataset | None, failed: tuple[FailedImage, ...] = (),
) -> EvaluationPlan:  # fmt: skip
    """The plan; refused with a reason where it cannot be carried out."""
    settings = resolved(settings, model.signature.classes)
    infill_pool = images if pool is None else pool
    span = Span.of(settings, model.signature.height * model.signature.width)
    infills = Infills(model.card, model.signature, settings, infill_pool)
    plan = EvaluationPlan(
        model, images, bundles, infill_pool, settings, curve_pairs(settings), span, infills, failed
    )  # fmt: skip
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
    for name in plan.settings.infills:
        if name.startswith(IMAGE_PREFIX):
            infill_file(name)


def _check_bundles(plan: EvaluationPlan) -> None:
    if not plan.bundles and not plan.settings.controls:
        raise BadInput("there is nothing to evaluate: give --heatmaps, or leave the controls on.")
    for name, bundle in plan.bundles.items():
        if not name or name.startswith(CONTROL):
            raise BadInput(f"a bundle cannot be named '{name}': such names are for the controls and the model itself.")
        _check_bundle(name, bundle, plan)


def _check_bundle(name: str, bundle: HeatmapSet, plan: EvaluationPlan) -> None:
    """Refuse a bundle of other images, other labels or another model."""
    classes = plan.model.signature.classes
    if not set(bundle.labels) & set(plan.images.ids):
        first = next(iter(bundle.labels), "none")
        raise BadInput(f"bundle {name} has no map for any of the images; its first image is '{first}'.")
    for labels in bundle.labels.values():
        if max(labels, default=0) >= classes:
            label = next(label for label in labels if label >= classes)
            raise BadInput(f"bundle {name} has a map for label {label}; the model has classes 0 to {classes - 1}.")
    identity = plan.model.identity
    explained = bundle.header.model
    if identity and explained and explained.lower() != identity.lower():
        raise BadInput(
            f"bundle {name} was made for the model {explained[:12]}..., but this one is {identity[:12]}...; maps of "
            "another model say nothing about this one."
        )


def subject(model: AnyClassifier, images: Dataset) -> Subject:
    """Which model, how it is read, how its input is prepared, and on which images it runs."""
    signature = model.signature
    file: ModelFile | str = "callable"
    if model.file is not None:
        file = {"path": str(model.file.path), "sha256": model.file.sha256, "identity": model.file.identity}
    return {
        "model": file,
        "input": signature.input,
        "output": signature.output,
        "kind": signature.kind,
        "classes": signature.classes,
        "layout": signature.layout,
        "dtype": signature.dtype,
        "card_origin": _card_origin(model.card),
        "card": {key: value for key, value in model.card.to_json().items() if key != "source"},
        "class_names": list(model.card.names),
        "images": {"source": str(images.source), "count": len(images), "digest": images.digest()},
    }


def _card_origin(card: Card) -> CardOrigin:
    file, digest = card.origin.file, None
    if file is not None and file.is_file():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"source": str(card.origin), "sha256": digest}


def environment(model: AnyClassifier) -> Environment:
    """What computes the figures."""
    base: Environment = {"auditkit": __version__, "onnxruntime": runtime_version(), "system": platform.machine()}
    if model.settings is not None:
        base |= {"device": model.settings.device, "precision": model.settings.precision}
    return base


def without_paths(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is about without the paths of its files: their digests identify them, so a copy is as good."""
    about = dict(record["subject"])
    for name, path in PATHS:
        if isinstance(about[name], Mapping):  # a callable has no path
            about[name] = {key: value for key, value in about[name].items() if key != path}
    return {name: value for name, value in record.items() if name != "bundle_paths"} | {"subject": about}


def unit_keys(record: Mapping[str, Any], units: Iterable[range]) -> dict[range, str]:
    """The key of each unit of a run: a digest of all that can change its figures."""
    about = without_paths(record)
    return {unit: Store.key({"about": about, "unit": [unit.start, unit.stop]}) for unit in units}


def bundle_digest(bundle: HeatmapSet) -> str:
    """Digest of a bundle's header and maps; the order and the files they were written in do not matter."""
    digest = hashlib.sha256(json.dumps(bundle.header.to_json(), sort_keys=True).encode())
    for entry in sorted(bundle.entries, key=lambda entry: (entry.image, entry.label)):
        values = bundle.read(entry)
        digest.update(f"\0{entry.image}\0{entry.label}\0{values.shape}\0".encode("utf-8", "surrogateescape"))
        digest.update(values.data)
    return digest.hexdigest()
