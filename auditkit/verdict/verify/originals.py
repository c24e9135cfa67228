"""The files that a run was made from, as the user names them, compared with the digests that the run records.

Paths that a run records are never opened: whoever wrote the run could have written anything there.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.engines.start import Workers
from auditkit.errors import BadInput
from auditkit.model.card import Origin
from auditkit.model.classifier import OnnxClassifier, Opening, open_file
from auditkit.model.runtime import cuda_problem
from auditkit.model.session import Device, Precision, Settings
from auditkit.model.signature import Overrides
from auditkit.records import Json, to_json, to_object
from auditkit.regular_files import open_regular, reason
from auditkit.runs.evaluation.images import load_images
from auditkit.runs.evaluation.plan import EvaluationPlan, bundle_digest, plan_evaluation, subject
from auditkit.runs.evaluation.settings import IMAGE_PREFIX
from auditkit.runs.folder.names import MAPS
from auditkit.runs.folder.results import ModelFile
from auditkit.verdict.audit import refusals
from auditkit.verdict.verify.run_record import RecordedRun, differences

T = TypeVar("T")
_PRESET = re.compile(r"preset (\w+)( \(.*\))?")  # as str(Origin) writes it
BY_DIGEST = ("model", "images", "card_origin")  # parts of a subject that may have moved; their digests are compared


@dataclass(frozen=True)
class Originals:
    """Where the files are, and how to open the model."""

    model: Path | None = None
    images: Path | None = None
    heatmaps: Mapping[str, Path] = field(default_factory=dict)  # by the name of the bundle
    pool: Path | None = None
    infills: Sequence[Path] = ()  # the pictures of infills `image:FILE`
    baseline: Path | None = None
    opening: Opening = field(default_factory=Opening)
    device: Device = "auto"
    workers: Workers = Workers()

    def __post_init__(self) -> None:
        for path in (self.model, self.images, *self.heatmaps.values(), self.pool, *self.infills, self.baseline):
            if path is not None and not path.exists():
                raise BadInput(f"there is no {path}; give the file or folder that the run was made with.")

    def start_workers(self, plan: EvaluationPlan) -> None:
        """Let the work on a plan run in worker processes; BadInput if there are none, as on a cluster that is down."""
        if isinstance(plan.model, OnnxClassifier):
            self.workers.serve(plan.model)


@dataclass
class OpenedOriginals:
    """The originals, their problems, and what could not be checked about them."""

    count: int = 0
    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # of those that rows are recomputed from
    plan: EvaluationPlan | None = None  # to recompute rows with; None if something is missing or wrong
    pool: Dataset | None = None

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

    def lack(self, what: str, remedy: str) -> None:
        """Note an original that was not given."""
        self.unchecked.append(f"{what}: {remedy}")
        self.missing.append(what)

    def compare_name(self, what: str, path: Path, recorded: str, remedy: str) -> None:
        """Note where the run calls a file otherwise, since nothing shows which name it had."""
        name = Path(recorded).name
        if name not in ("", "..", path.absolute().name, path.resolve().name):  # it may be given as "." or by a link
            names = f"the run calls it '{name}', the one given is '{path.absolute().name}'"
            self.unchecked.append(f"the name of {what}: {names}; {remedy}")


def open_originals(recorded: RecordedRun, locations: Originals) -> OpenedOriginals:
    """Open every original that was given and compare its digest."""
    run, originals = recorded.results.run, OpenedOriginals()
    names = list(dict.fromkeys([*run.bundles, *(run.refused_bundles or {})]))
    unknown = sorted(set(locations.heatmaps) - set(names))
    if unknown:
        raise BadInput(f"the run has no bundle '{unknown[0]}'; it has {', '.join(names) or 'none'}.")
    model = _model(originals, recorded, locations)
    images = _images(originals, recorded, model, locations)
    originals.pool = _pool(originals, recorded, model, locations)
    bundles = {name: _bundle(originals, recorded, locations, name) for name in names}
    infills = _infills(originals, recorded, locations)
    if model is not None:
        _compare_refusals(originals, recorded, model, bundles)
    if originals.missing or originals.problems or model is None or images is None:
        return originals
    usable = {name: bundle for name, bundle in bundles.items() if bundle and name in run.bundles}
    _compare_batches(originals, recorded, images, usable)
    if recorded.results.runtime is not None:
        pool = originals.pool if "random" in recorded.requested.infills else None
        originals.plan = originals.attempt(
            lambda: plan_evaluation(model, images, usable, recorded.requested, pool, infills)
        )
    return originals


def _compare_batches(
    originals: OpenedOriginals, recorded: RecordedRun, images: Dataset, bundles: Mapping[str, HeatmapSet]
) -> None:
    """Compare the digests of the images and maps that there were after each batch but the last."""
    taken, made_here = recorded.results.run.taken, recorded.results.explained is not None
    for batch in taken.earlier if taken is not None else ():
        first = images.select(range(batch.images))
        originals.compare(f"the set of the first {batch.images} images", first.digest(), batch.digest)
        maps = {name: bundle.of_images(set(first.ids)) if made_here else bundle for name, bundle in bundles.items()}
        for name, bundle in maps.items():
            what = f"the bundle '{name}' after {batch.images} images"
            originals.compare(what, bundle_digest(bundle), batch.bundles.get(name))


def _sha256(path: Path) -> str:
    try:
        with open_regular(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {reason(error)}.") from None


def _model(originals: OpenedOriginals, recorded: RecordedRun, locations: Originals) -> OnnxClassifier | None:
    """The model, opened as the run did, with the run's card or preset."""
    about, file, path = recorded.about["subject"], recorded.results.subject.model, locations.model
    if not isinstance(file, ModelFile):
        originals.lack("the model", "the run was made with a Python function, which verify cannot call")
        return None
    if path is None:
        originals.lack("the model", "give --model FILE")
        return None
    sha256, opening = _sha256(path), _opening(originals, recorded, locations.opening, path)
    if sha256 != file.sha256:
        originals.compare(f"the model {path}", sha256, file.sha256)
    if sha256 != file.sha256 or opening is None:
        return None
    layout = locations.opening.overrides.layout or about["layout"]
    overrides = Overrides(about["input"], about["output"], layout, about["kind"], recorded.card.size)
    opening = replace(opening, overrides=overrides, ignore_exif=not recorded.card.exif_orientation)
    settings = _settings(recorded, locations.device)
    model = originals.attempt(lambda: open_file(path, opening, settings))
    if model is None:
        return None
    originals.compare(f"the data of the model {path}", model.file.identity, file.identity)
    if file.external is not None and dict(model.file.external) != file.external:
        originals.problems.append("the digests of the model's data files are not those that the run records")
    originals.compare_name("the model", path, file.path, "give --model under that name")
    if replace(model.card, names=(), origin=Origin(), warnings=()) != recorded.card:
        originals.problems.append("the preprocessing is not that of its card or preset")
    return model


def _opening(
    originals: OpenedOriginals, recorded: RecordedRun, opening: Opening, model: Path
) -> Opening | None:  # fmt: skip
    """How to open the model with the run's card or preset; None, and noted, where the card is not at hand."""
    origin = recorded.results.subject.card_origin
    preset = _PRESET.fullmatch(origin.source)
    if origin.sha256 is None and preset is not None:
        return replace(opening, card=None, preset=preset[1])
    file = opening.card or model.with_suffix(".toml")
    if not file.is_file() or _sha256(file) != origin.sha256:
        originals.lack(
            "the card", f"the run's is '{Path(origin.source).name}', sha256 {origin.sha256}; give --card FILE"
        )
        return None
    originals.compare_name("the card", file, origin.source, "give --card under that name")
    return replace(opening, card=file)


def _settings(recorded: RecordedRun, device: Device) -> Settings:
    """The run's device and precision if this machine has them and the user does not override; else strict float32."""
    environment = recorded.about["environment"]
    if device == "auto":
        device = "cuda" if environment["device"] == "cuda" and cuda_problem() is None else "cpu"
    precision: Precision = environment["precision"] if device == environment["device"] else "strict"
    return Settings(device, precision, allow_failed=recorded.results.subject.images.count)  # each is looked at


def _images(
    originals: OpenedOriginals, recorded: RecordedRun, model: OnnxClassifier | None, locations: Originals
) -> Dataset | None:
    about, path = recorded.results.subject.images, locations.images
    if path is None:
        originals.lack("the images", "give --images PATH")
        return None
    classes = recorded.results.subject.classes
    images = originals.attempt(lambda: Dataset.open(path, classes, recorded.results.subject.class_names))
    if images is None:
        return None
    taken, digest = recorded.results.run.taken, images.digest(fresh=True)  # by which images are also drawn
    if taken is not None:
        originals.compare(f"the set of images {path}", digest, taken.digest)
        images = images.sample(about.count, recorded.settings.seed)
    elif recorded.results.policy is None and about.count < len(images):  # an evaluation of some of them
        images = images.sample(about.count)
    originals.compare(f"the set of images {path}", images.digest(), about.digest)
    originals.compare_name("the images", path, about.source, "give --images under that name")
    if model is None:
        return None
    plain = {name: value for name, value in to_object(subject(model, images)).items() if name not in BY_DIGEST}
    recorded_plain = {name: value for name, value in recorded.about["subject"].items() if name not in BY_DIGEST}
    changes = chain(differences(recorded_plain, plain), differences(about.count, len(images), "images.count"))
    originals.problems += [f"the model does not open as in the run: {change}" for change in changes]
    _compare_failed(originals, recorded, model, images)
    return images


def _compare_failed(originals: OpenedOriginals, recorded: RecordedRun, model: OnnxClassifier, images: Dataset) -> None:
    """Images that cannot be read must be unreadable here too, for the same reasons; others the model must fail on."""
    failed = {entry.image: entry for entry in recorded.results.failed_images}
    positions = [position for position, image in enumerate(images.ids) if image in failed]
    loaded = load_images(positions, images, model.card, model.signature)
    originals.problems += [f"image '{image}' is left out by the run, but can be used" for image in loaded.ids
                           if not failed[image].by_model]  # fmt: skip
    unknown = sorted(set(failed) - set(images.ids))
    originals.problems += [f"image '{image}', which the run left out, is none of the images" for image in unknown]
    for entry in loaded.failed:
        if failed[entry.image].by_model:
            originals.problems.append(f"image '{entry.image}' is said to fail in the model, but cannot be read at all")
        elif entry.reason != failed[entry.image].reason:
            reason = f"the reason is '{entry.reason}' here"
            originals.unchecked.append(f"why image '{entry.image}' was left out: {reason}; look at it yourself")


def _pool(
    originals: OpenedOriginals, recorded: RecordedRun, model: OnnxClassifier | None, locations: Originals
) -> Dataset | None:
    """The pool of infills, of rows or of the audit's own maps, where it is not the images."""
    results, path, taken = recorded.results, locations.pool, recorded.results.run.taken
    digests = {results.run.pool, results.explained.request.pool if results.explained else None}
    digests -= {None, results.subject.images.digest}
    if not digests:
        return None
    if taken is not None and digests == {taken.digest}:
        path = locations.images
    if path is None:
        originals.lack("the pool of infills", "give --pool PATH")
        return None
    pool = originals.attempt(lambda: Dataset.open(path, results.subject.classes, results.subject.class_names))
    if pool is None or model is None:
        return None
    for digest in digests:
        originals.compare(f"the pool {path}", pool.digest(fresh=True), digest)
    if results.run.pool_path is not None:
        originals.compare_name("the pool", path, results.run.pool_path, "give --pool under that name")
    return pool


def _bundle(originals: OpenedOriginals, recorded: RecordedRun, locations: Originals, name: str) -> HeatmapSet | None:
    """A supplied bundle, or the one that the run made in its own folder."""
    run, path = recorded.results.run, locations.heatmaps.get(name)
    if path is None and recorded.results.explained is not None:
        path = recorded.store.folder / MAPS
    if path is None:
        originals.lack(f"the heatmaps '{name}'", f"give --heatmaps {name}=PATH")
        return None
    bundle = originals.attempt(lambda: open_bundle(path))
    if bundle is None:
        return None
    if name in run.bundles:
        digest = originals.attempt(lambda: bundle_digest(bundle, fresh=True))
        if digest is not None:
            originals.compare(f"the bundle {path}", digest, run.bundles[name])
    if name in run.bundle_paths:
        originals.compare_name(f"the heatmaps '{name}'", path, run.bundle_paths[name], "give them under that name")
    for values, expected in ((run.bundle_methods, bundle.header.method), (run.bundle_models, bundle.header.model)):
        if values is not None and values.get(name) != expected:
            what = f"the heatmaps '{name}' are said to be '{values.get(name)}'"
            originals.problems.append(f"{what}, but their header says '{expected}'")
    return bundle


def _infills(originals: OpenedOriginals, recorded: RecordedRun, locations: Originals) -> dict[Path, Path]:
    """Where the picture of each recorded infill is now, found by its digest."""
    present, infills = {_sha256(path): path for path in locations.infills}, dict[Path, Path]()
    for name in recorded.requested.infills:
        if not name.startswith(IMAGE_PREFIX):
            continue
        path = name.removeprefix(IMAGE_PREFIX)
        sha256 = recorded.results.run.infill_images.get(str(Path(path)), "")
        if sha256 in present:
            originals.count += 1
            infills[Path(path)] = present[sha256]
            originals.compare_name("the infill", present[sha256], path, "give --infill under that name")
        else:
            originals.lack(f"the infill '{Path(path).name}'", f"give the file with sha256 {sha256} with --infill FILE")
    return infills


def _compare_refusals(
    originals: OpenedOriginals, recorded: RecordedRun, model: OnnxClassifier, bundles: Mapping[str, HeatmapSet | None]
) -> None:
    """The reasons for which an audit refused bundles must be those that are found here."""
    run, opened = recorded.results.run, {name: bundle for name, bundle in bundles.items() if bundle is not None}
    if run.refused_bundles is None:
        return
    expected = to_json(refusals(model, opened))
    here = {str(bundle.path): run.bundle_paths.get(name, "") for name, bundle in opened.items()}
    recorded_refusals = {name: value for name, value in run.refused_bundles.items() if name in opened}
    for difference in differences(to_json(recorded_refusals), _moved(expected, here), "run.refused_bundles"):
        originals.problems.append(f"results.json: {difference}")


def _moved(value: Json, paths: Mapping[str, str]) -> Json:
    """Refusals as the run words them, which names its own paths."""
    if isinstance(value, str):
        for path, recorded in paths.items():
            value = value.replace(path, recorded)
        return value
    if isinstance(value, list):
        return [_moved(entry, paths) for entry in value]
    return {name: _moved(entry, paths) for name, entry in value.items()} if isinstance(value, dict) else value
