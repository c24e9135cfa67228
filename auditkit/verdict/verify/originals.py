"""The files that a run was made from: found again, and compared by digest with what the run says of them."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset, FailedImage
from auditkit.errors import BadInput
from auditkit.model.classifier import OnnxClassifier, Opening, open_file
from auditkit.model.session import Device, Precision, Settings, cuda_problem
from auditkit.model.signature import Overrides
from auditkit.runs.evaluation.plan import EvaluationPlan, bundle_digest, plan_evaluation, subject
from auditkit.verdict.verify.run_record import Recorded, differences

Given = TypeVar("Given")
Images = tuple[Dataset, tuple[FailedImage, ...]]
BY_DIGEST = ("model", "images", "card_origin")  # parts of a subject: wherever they lie now, the content counts
MAPS = "maps"  # in a run's folder: the bundle that the run made itself


@dataclass(frozen=True)
class Originals:
    """Where the files are now, as far as not where the run says, and how to open the model."""

    model: Path | None = None
    images: Path | None = None
    heatmaps: Mapping[str, Path] = field(default_factory=dict)  # by the name of the bundle
    pool: Path | None = None
    opening: Opening = field(default_factory=Opening)
    device: Device = "auto"


@dataclass
class Opened:
    """The originals, and what is wrong with them."""

    count: int = 0
    problems: list[str] = field(default_factory=list)
    work: EvaluationPlan | None = None  # to compute rows with, where nothing is wrong

    def note(self, what: str, *, holds: bool) -> None:
        """Count one more original."""
        self.count += 1
        if not holds:
            self.problems.append(f"{what} is not what the run was made with: its digest is another")

    def tried(self, step: Callable[[], Given]) -> Given | None:
        """What the step gives; what is there and cannot be read any more is a problem."""
        try:
            return step()
        except BadInput as error:
            self.count += 1
            self.problems.append(str(error))
            return None


def opened(recorded: Recorded, where: Originals) -> Opened:
    """Every original with its digest taken; refused, with the option that helps, where one cannot be found."""
    if recorded.about["subject"]["model"] == "callable":
        raise BadInput("the run was made with a Python function, which verify cannot ask; --run-only checks the rest.")
    paths, found = _Paths.of(recorded, where), Opened()
    model = _model(found, recorded, where, paths.model)
    images = None if model is None else _images(found, recorded, model, paths.images)
    pool = _pool(found, recorded, model, paths.pool) if model is not None and paths.pool is not None else None
    bundles = {name: _bundle(found, recorded, name, path) for name, path in paths.bundles.items()}
    for path, known in paths.infills.items():
        found.note(f"the infill {path}", holds=_sha256(path) == known)
    if not found.problems and model is not None and images is not None:
        whole, good, left_out = {name: bundle for name, bundle in bundles.items() if bundle}, *images
        found.work = found.tried(lambda: plan_evaluation(model, good, whole, recorded.asked, pool, left_out))
    return found


@dataclass(frozen=True)
class _Paths:
    """Where the originals lie: as told, else as recorded, else refused with the option that says it."""

    model: Path
    images: Path
    bundles: Mapping[str, Path]
    pool: Path | None  # None: there is none, or it is the images
    infills: Mapping[Path, str]

    @classmethod
    def of(cls, recorded: Recorded, where: Originals) -> "_Paths":
        about, told = recorded.about, recorded.about["subject"]
        if strange := sorted(set(where.heatmaps) - set(about["bundles"])):
            raise BadInput(f"the run has no bundle '{strange[0]}'; it has {', '.join(about['bundles']) or 'none'}.")
        bundles = {
            name: _there(where.heatmaps.get(name) or _own_maps(recorded, name), f"the heatmaps '{name}'",
                         f"give --heatmaps {name}=PATH")
            for name in about["bundles"]
        }  # fmt: skip
        has_pool = about["pool"] not in (None, told["images"]["digest"])
        return cls(
            _there(where.model or told["model"]["path"], "the model", "give --model FILE"),
            _there(where.images or told["images"]["source"], "the images", "give --images PATH"), bundles,
            _there(where.pool, "the pool of random infill", "give --pool PATH") if has_pool else None,
            {_there(path, "an infill image", "put it back"): known for path, known in about["infill_images"].items()},
        )  # fmt: skip


def _own_maps(recorded: Recorded, name: str) -> "Path | str | None":
    """Where the run says that a bundle is; one that it made itself lies in its own folder."""
    listed = recorded.results.run.bundle_paths
    own = recorded.store.folder / MAPS
    return listed.get(name) or (own if own.is_dir() and list(recorded.about["bundles"]) == [name] else None)


def _there(path: "Path | str | None", what: str, way_out: str) -> Path:
    if path is not None and Path(path).exists():
        return Path(path)
    said = "the run does not say where" if path is None else f"there is no {path}"
    raise BadInput(f"{what} cannot be found, {said}: {way_out}; or check the run's folder alone with --run-only.")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


def _model(found: Opened, recorded: Recorded, where: Originals, path: Path) -> OnnxClassifier | None:
    """The model, prepared as the run says; the card beside it gives no more than the names of its classes."""
    told = recorded.about["subject"]
    if _sha256(path) != told["model"]["sha256"]:
        found.note(f"the model {path}", holds=False)
        return None
    layout = where.opening.overrides.layout or told.get("layout")
    said = Overrides(told["input"], told["output"], layout, told["kind"], recorded.card.size)
    model = open_file(path, replace(where.opening, overrides=said), _settings(recorded, where.device))
    found.note(f"the data of the model {path}", holds=model.file.identity == told["model"]["identity"])
    names = model.card.names if told["card"]["class_names"] else ()
    if len(names) != told["card"]["class_names"]:
        raise BadInput(f"the run's card names {told['card']['class_names']} classes; give that card with --card.")
    model.card = replace(recorded.card, names=names)
    return model


def _settings(recorded: Recorded, device: Device) -> Settings:
    """The run's own device and precision where they are here and nothing else is asked for; else strict float32."""
    told = recorded.about["environment"]
    if device == "auto":
        device = "cuda" if told["device"] == "cuda" and cuda_problem() is None else "cpu"
    precision: Precision = told["precision"] if device == told["device"] else "strict"
    return Settings(device, precision)


def _images(found: Opened, recorded: Recorded, model: OnnxClassifier, path: Path) -> Images | None:
    images = found.tried(lambda: _usable(model, path))
    if images is None:
        return None
    told, now = recorded.about["subject"], subject(model, images[0])
    found.note(f"the set of images {path}", holds=now["images"]["digest"] == told["images"]["digest"])
    rest = {name: value for name, value in now.items() if name not in BY_DIGEST}
    found.problems += [f"the model opens otherwise than in the run: {said}" for said in differences(told, rest)]
    left_out, said = {one.image for one in images[1]}, {one["image"] for one in recorded.about["failed_images"]}
    found.problems += [f"image '{image}' is left out by the run, but can be used" for image in sorted(said - left_out)]
    return images


def _usable(model: OnnxClassifier, path: Path) -> Images:
    return Dataset.open(path, model.signature.classes, model.card.names).usable(model.card)


def _pool(found: Opened, recorded: Recorded, model: OnnxClassifier, path: Path) -> Dataset | None:
    pool = found.tried(lambda: _usable(model, path)[0])
    if pool is not None:
        found.note(f"the pool {path}", holds=pool.digest() == recorded.about["pool"])
    return pool


def _bundle(found: Opened, recorded: Recorded, name: str, path: Path) -> HeatmapSet | None:
    bundle = found.tried(lambda: open_bundle(path))
    if bundle is not None:
        taken = found.tried(lambda: bundle_digest(bundle))
        found.note(f"the bundle {path}", holds=taken is None or taken == recorded.about["bundles"][name])
    return bundle
