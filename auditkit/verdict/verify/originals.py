"""The files that a run was made from, located and compared with the digests that the run records."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.model.classifier import OnnxClassifier, Opening, open_file
from auditkit.model.runtime import cuda_problem
from auditkit.model.session import Device, Precision, Settings
from auditkit.model.signature import Overrides
from auditkit.records import to_object
from auditkit.runs.evaluation.images import load_images
from auditkit.runs.evaluation.plan import EvaluationPlan, bundle_digest, plan_evaluation, subject
from auditkit.runs.folder.results import ModelFile
from auditkit.verdict.audit import MAPS
from auditkit.verdict.verify.run_record import RecordedRun, differences

T = TypeVar("T")
BY_DIGEST = ("model", "images", "card_origin")  # parts of a subject that may have moved; their digests are compared


@dataclass(frozen=True)
class Originals:
    """Where the files are now, if not where the run recorded them, and how to open the model."""

    model: Path | None = None
    images: Path | None = None
    heatmaps: Mapping[str, Path] = field(default_factory=dict)  # by the name of the bundle
    pool: Path | None = None
    opening: Opening = field(default_factory=Opening)
    device: Device = "auto"


@dataclass
class OpenedOriginals:
    """The originals and their problems."""

    count: int = 0
    problems: list[str] = field(default_factory=list)
    plan: EvaluationPlan | None = None  # to recompute rows with; None if there are problems

    def compare(self, what: str, digest: str | None, recorded: str | None) -> None:
        """Count one more original, and note if its digest is not the recorded one."""
        self.count += 1
        if digest != recorded:
            self.problems.append(f"{what} is not the one that the run was made with: the digests differ")

    def attempt(self, step: Callable[[], T]) -> T | None:
        """The value of the step; None, and a problem, if a file cannot be read."""
        try:
            return step()
        except BadInput as error:
            self.count += 1
            self.problems.append(str(error))
            return None


def open_originals(recorded: RecordedRun, locations: Originals) -> OpenedOriginals:
    """Open every original and compare its digest; BadInput names the option that locates a missing one."""
    file, run, dataset = recorded.results.subject.model, recorded.results.run, recorded.results.subject.images
    if file == "callable":
        raise BadInput("the run was made with a Python function, which verify cannot call; --run-only checks the rest.")
    unknown = sorted(set(locations.heatmaps) - set(run.bundles))
    if unknown:
        raise BadInput(f"the run has no bundle '{unknown[0]}'; it has {', '.join(run.bundles) or 'none'}.")
    bundle_paths = {name: _bundle_path(recorded, locations, name) for name in run.bundles}
    model_path = _existing(locations.model or file.path, "the model", "give --model FILE")
    images_path = _existing(locations.images or dataset.source, "the images", "give --images PATH")
    has_pool = run.pool not in (None, dataset.digest)
    pool_path = _existing(locations.pool, "the pool of random infill", "give --pool PATH") if has_pool else None
    infills = {_existing(path, "an infill image", "put it back"): sha256 for path, sha256 in run.infill_images.items()}
    originals = OpenedOriginals()
    model = _model(originals, recorded, file, locations, model_path)
    images = None if model is None else _images(originals, recorded, model, images_path)
    pool = _pool(originals, recorded, model, pool_path) if model is not None and pool_path is not None else None
    bundles = {name: _bundle(originals, path, run.bundles[name]) for name, path in bundle_paths.items()}
    for path, sha256 in infills.items():
        originals.compare(f"the infill {path}", _sha256(path), sha256)
    if not originals.problems and model is not None and images is not None:
        opened = {name: bundle for name, bundle in bundles.items() if bundle}
        originals.plan = originals.attempt(lambda: plan_evaluation(model, images, opened, recorded.requested, pool))
    return originals


def _bundle_path(recorded: RecordedRun, locations: Originals, name: str) -> Path:
    """Where a bundle is: as the user says, as recorded, or in the run's own folder if the run made it."""
    run, created = recorded.results.run, recorded.store.folder / MAPS
    path = locations.heatmaps.get(name) or run.bundle_paths.get(name)
    if path is None and created.is_dir() and list(run.bundles) == [name]:
        path = created
    return _existing(path, f"the heatmaps '{name}'", f"give --heatmaps {name}=PATH")


def _existing(path: Path | str | None, what: str, way_out: str) -> Path:
    if path is not None and Path(path).exists():
        return Path(path)
    reason = "the run does not say where" if path is None else f"there is no {path}"
    raise BadInput(f"{what} cannot be found, {reason}: {way_out}; or check the run's folder alone with --run-only.")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


def _model(
    originals: OpenedOriginals, recorded: RecordedRun, file: ModelFile, locations: Originals, path: Path
) -> OnnxClassifier | None:
    """The model with the recorded preprocessing; the card beside it only gives the names of its classes."""
    about = recorded.about["subject"]
    sha256 = _sha256(path)
    if sha256 != file.sha256:
        originals.compare(f"the model {path}", sha256, file.sha256)
        return None
    layout = locations.opening.overrides.layout or about["layout"]
    overrides = Overrides(about["input"], about["output"], layout, about["kind"], recorded.card.size)
    model = open_file(path, replace(locations.opening, overrides=overrides), _settings(recorded, locations.device))
    originals.compare(f"the data of the model {path}", model.file.identity, file.identity)
    class_names = about["card"]["class_names"]
    names = model.card.names if class_names else ()
    if len(names) != class_names:
        raise BadInput(f"the run's card names {class_names} classes; give that card with --card.")
    model.card = replace(recorded.card, names=names)
    return model


def _settings(recorded: RecordedRun, device: Device) -> Settings:
    """The run's device and precision if this machine has them and the user does not override; else strict float32."""
    environment = recorded.about["environment"]
    if device == "auto":
        device = "cuda" if environment["device"] == "cuda" and cuda_problem() is None else "cpu"
    precision: Precision = environment["precision"] if device == environment["device"] else "strict"
    return Settings(device, precision)


def _images(originals: OpenedOriginals, recorded: RecordedRun, model: OnnxClassifier, path: Path) -> Dataset | None:
    images = originals.attempt(lambda: Dataset.open(path, model.signature.classes, model.card.names))
    if images is None:
        return None
    originals.compare(f"the set of images {path}", images.digest(), recorded.results.subject.images.digest)
    about = {name: value for name, value in to_object(subject(model, images)).items() if name not in BY_DIGEST}
    changes = differences(recorded.about["subject"], about)
    originals.problems += [f"the model does not open as in the run: {change}" for change in changes]
    left_out = {entry.image for entry in recorded.results.failed_images}
    usable = load_images([position for position, image in enumerate(images.ids) if image in left_out], images,
                         model.card, model.signature)  # fmt: skip
    originals.problems += [f"image '{image}' is left out by the run, but can be used" for image in usable.ids]
    return images


def _pool(originals: OpenedOriginals, recorded: RecordedRun, model: OnnxClassifier, path: Path) -> Dataset | None:
    pool = originals.attempt(lambda: Dataset.open(path, model.signature.classes, model.card.names))
    if pool is not None:
        originals.compare(f"the pool {path}", pool.digest(), recorded.results.run.pool)
    return pool


def _bundle(originals: OpenedOriginals, path: Path, recorded: str) -> HeatmapSet | None:
    bundle = originals.attempt(lambda: open_bundle(path))
    digest = None if bundle is None else originals.attempt(lambda: bundle_digest(bundle))
    if digest is not None:
        originals.compare(f"the bundle {path}", digest, recorded)
    return bundle
