"""The planted-truth demo: two models that look alike, audited on images whose truth is known, being drawn here."""

import importlib.resources
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.atomic_write import write_whole
from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import ranks
from auditkit.demo.draw import TAG_SIDE_PX, Planted, draw
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.metrics.localisation import pointing_hit, share_inside
from auditkit.metrics.statistics import Interval, mean_interval
from auditkit.model.classifier import OnnxClassifier, Opening, open_file
from auditkit.model.session import Settings
from auditkit.runs.explain import Explanation
from auditkit.verdict.audit import Asked, Phase, audit
from auditkit.verdict.policy_file import read_policy

MODELS = ("honest", "shortcut")
CHUNK = 64
FIRST = TAG_SIDE_PX**2  # pixels that evidence is looked for in: as many as the tag has
MASKS = (("infill", "gray"), ("steps", "150"))


def bundled(name: str) -> Path:
    """Path of a model that comes with auditkit; beside the package in an installation, in models/ in a checkout."""
    package = Path(str(importlib.resources.files("auditkit")))
    for folder in (package / "models", package.parent / "models"):
        if (folder / f"{name}.onnx").is_file():
            return folder / f"{name}.onnx"
    raise BadInput(f"the bundled model '{name}' is missing from this installation; install auditkit again.")


@dataclass(frozen=True)
class Place:
    """How much of a model's evidence lies in one place."""

    share: Interval  # of the most important pixels
    pointed: Interval  # share of the images whose most important pixel it holds


@dataclass(frozen=True)
class Vendor:
    """What was found about one model."""

    model: str
    verdict: str
    correct_when_agree: float
    correct_when_disagree: float
    followed_tag: float  # share of the disagreeing images on which the answer is what the tag says
    on_object: Place
    on_tag: Place

    @property
    def reads_the_tag(self) -> bool:
        """Whether more of its evidence lies on the tag than on the object, beyond chance."""
        low, high = self.on_tag.share.low, self.on_object.share.high
        return low is not None and high is not None and low > high

    def to_json(self) -> dict[str, Any]:
        """Plain object for --json."""
        places = {name: {"share": _object(place.share), "pointing_game": _object(place.pointed)}
                  for name, place in (("object", self.on_object), ("tag", self.on_tag))}  # fmt: skip
        return {
            "model": self.model, "verdict": self.verdict, "reads_the_tag": self.reads_the_tag, "evidence": places,
            "correct_when_agree": self.correct_when_agree, "correct_when_disagree": self.correct_when_disagree,
            "followed_tag": self.followed_tag,
        }  # fmt: skip


def _object(found: Interval) -> dict[str, float | int | None]:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


@dataclass(frozen=True)
class Demo:
    """What the demo found and where its files lie."""

    vendors: tuple[Vendor, ...]
    folder: Path
    audited: Planted  # tags agree with shapes, as in the pictures that a vendor shows
    answered: int  # images that the answers were counted on, of each kind
    seed: int

    @property
    def cheats(self) -> list[str]:
        """The models that read the tag."""
        return [vendor.model for vendor in self.vendors if vendor.reads_the_tag]

    def to_json(self) -> dict[str, Any]:
        """Plain object for --json."""
        return {
            "schema_version": 1, "images": len(self.audited.images), "answered": self.answered, "seed": self.seed,
            "report": str(self.folder / "report.html"), "cheats": self.cheats,
            "models": [vendor.to_json() for vendor in self.vendors],
        }  # fmt: skip


def run(out: Path, count: int, answered: int, seed: int, settings: Settings, phase: Phase) -> Demo:
    """Audit both bundled models on images with true tags, and ask both about images whose tags lie."""
    if os.path.lexists(out) and not out.is_dir():
        raise BadInput(f"{out} is not a folder; give a new one.")
    audited = draw(count, seed=seed, tags="agree")
    kinds = draw(answered, seed=seed + 1, tags="agree"), draw(answered, seed=seed + 1, tags="disagree")
    path = out / "images.npz"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _save(path, audited)
    except OSError as error:
        raise RuntimeFailure(f"{path} cannot be written: {error.strerror}.") from None
    vendors = tuple(_vendor(name, path, audited, kinds, settings, phase) for name in MODELS)
    return Demo(vendors, out, audited, answered, seed)


def _save(path: Path, planted: Planted) -> None:
    import io  # noqa: PLC0415

    content = io.BytesIO()
    np.savez_compressed(content, images=planted.images, labels=planted.labels, masks=planted.objects)
    write_whole(path, content.getvalue())


def _vendor(
    name: str, images: Path, audited: Planted, kinds: tuple[Planted, Planted], settings: Settings, phase: Phase
) -> Vendor:
    """One model, audited as a user would and looked at where the truth is known."""
    model = open_file(bundled(name), Opening(), settings)
    policy = read_policy(Path(str(importlib.resources.files("auditkit") / "demo" / "policy.toml")))
    asked = Asked(policy, Explanation("mask", None, MASKS), command=("auditkit", "demo"))
    chosen = Dataset.open(images, model.signature.classes, model.card.names)
    found = audit(model, chosen, asked, images.parent / name, {}, None, lambda what: phase(f"{name}: {what}"))
    maps = open_bundle(images.parent / name / "maps")
    agree, disagree = (_answers(model, planted) for planted in kinds)
    return Vendor(
        name, found["verdict"], float(np.mean(agree == kinds[0].labels)), float(np.mean(disagree == kinds[1].labels)),
        float(np.mean(disagree == kinds[1].tags)), *(_place(maps, audited, region)
                                                     for region in (audited.objects, audited.tag_regions)),
    )  # fmt: skip


def _answers(model: OnnxClassifier, planted: Planted) -> Array:
    """The label that the model finds likeliest for each image."""
    starts = range(0, len(planted.images), CHUNK)
    return np.concatenate([model.predict(planted.images[start : start + CHUNK]).argmax(axis=1) for start in starts])


def _place(maps: HeatmapSet, planted: Planted, regions: Array) -> Place:
    """How much of the evidence for the true label lies in a region of each image."""
    values = [maps.get(str(index), int(label)) for index, label in enumerate(planted.labels)]
    order = np.stack([ranks(one, "random", seed=index) for index, one in enumerate(values)])
    shares = share_inside(order, regions, FIRST)
    hits = np.array([float(pointing_hit(one, region)) for one, region in zip(values, regions, strict=True)])
    return Place(*(mean_interval(values, bounds=(0.0, 1.0)) for values in (shares, hits)))
