"""The demo: two models that look alike, audited on drawn images whose truth is known. Also `doctor`'s self-test."""

import io
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from auditkit.arrays import Array
from auditkit.data.atomic_write import write_errors, write_whole
from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import ranks
from auditkit.demo.draw import TAG_SIDE_PX, Planted, draw
from auditkit.errors import AuditError, BadInput
from auditkit.metrics.localisation import pointing_hit, share_inside
from auditkit.metrics.statistics import Interval, mean_interval
from auditkit.model.classifier import OnnxClassifier, Opening, open_file
from auditkit.model.session import Settings
from auditkit.report.examination import title
from auditkit.runs.executor import Phase
from auditkit.runs.explain import Explanation
from auditkit.verdict.audit import AuditRequest, audit
from auditkit.verdict.policy_file import read_policy

_PACKAGE = Path(__file__).parents[1]
POLICY = "standard"
MODELS = ("honest", "shortcut")
TOP_PIXELS = TAG_SIDE_PX**2  # the most important pixels, where evidence is looked for: as many as the tag has
_BATCH = 64
_TESTED = 100  # images of the self-test
_MIN_CORRECT = 90  # of them; the model is right on 97 or more
_SALT = f"{7:032x}"  # fixed, so that every demo has the same figures
_MASK_OPTIONS = (("infill", "gray"), ("steps", "150"))  # fewer steps than by default, so that the demo is quick


def bundled_model(name: str) -> Path:
    """Path of a model that comes with auditkit: in the package if installed, in models/ in a checkout."""
    for path in (_PACKAGE / "models" / f"{name}.onnx", _PACKAGE.parent / "models" / f"{name}.onnx"):
        if path.is_file():
            return path
    raise BadInput(f"the bundled model '{name}' is missing from this installation; install auditkit again.")


@dataclass(frozen=True)
class Evidence:
    """How much of a model's evidence lies in one region of the images."""

    share: Interval  # of the most important pixels
    pointing_game: Interval  # share of the images whose most important pixel lies in the region

    @classmethod
    def of(cls, shares: Array, hits: Array) -> "Evidence":
        """The means over the images."""
        return cls(mean_interval(shares, bounds=(0.0, 1.0)), mean_interval(hits, bounds=(0.0, 1.0)))

    def to_json(self) -> dict[str, dict[str, float | int | None]]:
        """Plain object for --json."""
        return {name: {"value": i.value, "low": i.low, "high": i.high, "n": i.n} for name, i in vars(self).items()}


@dataclass(frozen=True)
class Vendor:
    """Results of one model."""

    model: str
    verdict: str
    correct_when_agree: float
    correct_when_disagree: float
    followed_tag: float  # share of the disagreeing images for which the answer is the class that the tag names
    on_object: Evidence
    on_tag: Evidence
    relies_on: tuple[str, ...]  # findings of the examination, which knows nothing of tags and shapes

    def sentence(self) -> str:
        """The results in words."""
        correct = (
            f"{self.correct_when_agree:.0%} right on ordinary images, {self.correct_when_disagree:.0%} when tags lie"
        )
        on_object, on_tag = self.on_object.share.value, self.on_tag.share.value
        relies_on = "; ".join(self.relies_on) or "No shortcut was found"
        truth = f"in truth {on_object:.0%} of its evidence lies on the shape, {on_tag:.0%} on the tag"
        return f"{correct}. {relies_on}; {truth}"

    def to_json(self) -> dict[str, object]:
        """Plain object for --json."""
        evidence = {"object": self.on_object.to_json(), "tag": self.on_tag.to_json()}
        figures = {name: value for name, value in vars(self).items() if not isinstance(value, Evidence)}
        return figures | {"evidence": evidence}


@dataclass(frozen=True)
class Demo:
    """Results of the demo, and the folder of its files."""

    vendors: tuple[Vendor, ...]
    folder: Path
    audited: Planted  # tags agree with shapes, as in the pictures that a vendor shows
    answered: int  # images of each kind (tags agree, tags disagree) on which correct answers were counted
    seed: int

    @property
    def cheats(self) -> list[str]:
        """The models that take a shortcut, by the examination."""
        return [vendor.model for vendor in self.vendors if vendor.relies_on]

    def to_json(self) -> dict[str, object]:
        """Plain object for --json."""
        return {
            "schema_version": 1, "images": len(self.audited.images), "answered": self.answered, "seed": self.seed,
            "report": str(self.folder / "report.html"), "cheats": self.cheats,
            "models": [vendor.to_json() for vendor in self.vendors],
        }  # fmt: skip


def run(out: Path, count: int, answered: int, seed: int, settings: Settings, phase: Phase) -> Demo:
    """Audit both bundled models on images with true tags, and count their correct answers where tags lie."""
    if os.path.lexists(out) and not out.is_dir():
        raise BadInput(f"{out} is not a folder; name a new one.")
    for path in (out / name for name in MODELS):
        if path.is_symlink():
            raise BadInput(f"{path} is a link; name a new folder.")
    audited = draw(count, seed=seed, tags="agree")
    test_sets = draw(answered, seed=seed + 1, tags="agree"), draw(answered, seed=seed + 1, tags="disagree")
    path = out / "images.npz"
    with write_errors(path):
        out.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            content = io.BytesIO()
            np.savez_compressed(content, images=audited.images, labels=audited.labels)
            write_whole(path, content.getvalue())
    vendors = tuple(_audit(name, path, audited, test_sets, settings, phase) for name in MODELS)
    return Demo(vendors, out, audited, answered, seed)


def _audit(
    name: str, images: Path, audited: Planted, test_sets: tuple[Planted, Planted], settings: Settings, phase: Phase
) -> Vendor:
    """Audit one model as a user would, and compare the results with the planted truth."""
    model, folder = open_file(bundled_model(name), Opening(), settings), images.parent / name
    request = AuditRequest(
        read_policy(POLICY), Explanation("mask", None, _MASK_OPTIONS), command=("auditkit", "demo"), salt=_SALT
    )
    dataset = Dataset.open(images, model.signature.classes, model.card.names)
    results = audit(model, dataset, request, folder, lambda what: phase(f"{name}: {what}"))
    maps, examination = open_bundle(folder / "maps"), results.examination
    agreeing, disagreeing = test_sets
    misled = _answers(model, disagreeing)
    object_shares, object_hits = _inside(maps, audited, audited.objects)
    tag_shares, tag_hits = _inside(maps, audited, audited.tag_regions)
    return Vendor(
        model=name, verdict=results.verdict or "measured",
        correct_when_agree=float(np.mean(_answers(model, agreeing) == agreeing.labels)),
        correct_when_disagree=float(np.mean(misled == disagreeing.labels)),
        followed_tag=float(np.mean(misled == disagreeing.tags)),
        on_object=Evidence.of(object_shares, object_hits), on_tag=Evidence.of(tag_shares, tag_hits),
        relies_on=tuple(title(finding, ()) for finding in examination.findings) if examination else (),
    )  # fmt: skip


@dataclass(frozen=True)
class SelfTest:
    """Whether the bundled model opened, ran and was right."""

    passed: bool
    device: str
    correct: int
    seconds: float
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain object for `doctor --json`."""
        return vars(self) | {"n": _TESTED, "seconds": round(self.seconds, 3)}

    def sentence(self) -> str:
        """The result in words."""
        if self.reason:
            return f"FAILED: {self.reason}"
        verdict = "passed" if self.passed else "FAILED"
        return f"{verdict} on {self.device}: {self.correct} of {_TESTED} drawn images right, {self.seconds:.1f} s"


def self_test(settings: Settings) -> SelfTest:
    """Open the bundled honest model as any vendor's file, and count its correct answers, for about two seconds."""
    start = time.perf_counter()
    try:
        model = open_file(bundled_model("honest"), Opening(), settings)
        planted = draw(_TESTED, seed=11, tags="random")
        correct = int(np.sum(model.predict(planted.images).argmax(axis=1) == planted.labels))
    except AuditError as error:
        return SelfTest(False, settings.device, 0, time.perf_counter() - start, str(error))
    return SelfTest(correct >= _MIN_CORRECT, model.settings.device, correct, time.perf_counter() - start)


def _answers(model: OnnxClassifier, planted: Planted) -> Array:
    """The most likely label of each image."""
    starts = range(0, len(planted.images), _BATCH)
    return np.concatenate([model.predict(planted.images[start : start + _BATCH]).argmax(axis=1) for start in starts])


def _inside(maps: HeatmapSet, planted: Planted, regions: Array) -> tuple[Array, Array]:
    """For each image, the share of the evidence for the true label in a region, and whether the region has the most."""
    heatmaps = [maps.get(str(index), int(label)) for index, label in enumerate(planted.labels)]
    order = np.stack([ranks(heatmap, "random", seed=index) for index, heatmap in enumerate(heatmaps)])
    hits = np.array([float(pointing_hit(*pair)) for pair in zip(heatmaps, regions, strict=True)])
    return share_inside(order, regions, TOP_PIXELS), hits
