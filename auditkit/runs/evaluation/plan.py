"""All that an evaluation is about: what is asked of which model, on which images, of which maps."""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
from auditkit.runs.evaluation.infills import Infills, given_image
from auditkit.runs.evaluation.settings import CONTROL, GIVEN_IMAGE, Evaluation, Lane, lanes, resolved
from auditkit.runs.folder.store import Store

PRESET = "preset "  # begins the source of a card that is no file


@dataclass(frozen=True)
class Work:
    """All that an evaluation is about, its settings resolved."""

    model: AnyClassifier
    images: Dataset
    bundles: Mapping[str, HeatmapSet]
    pool: Dataset
    settings: Evaluation
    lanes: tuple[Lane, ...]
    span: Span
    infills: Infills
    failed: tuple[FailedImage, ...] = ()  # images that were given and cannot be used

    def failures(self) -> list[dict[str, str]]:
        """The images that cannot be used, as plain objects."""
        return [asdict(one) for one in self.failed]

    def about(self) -> dict[str, Any]:
        """All that can change a number: a folder with a run about something else is refused."""
        given = [given_image(name) for name in self.settings.infills if name.startswith(GIVEN_IMAGE)]
        return {
            "subject": subject(self.model, self.images),
            "settings": self.settings.to_json(),
            "bundles": {name: digest(bundle) for name, bundle in self.bundles.items()},
            "bundle_paths": {name: str(bundle.path) for name, bundle in self.bundles.items()},
            "pool": self.pool.digest() if "random" in self.settings.infills else None,
            "infill_images": {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in given},
            "failed_images": self.failures(),
            "environment": environment(self.model),
        }


def planned(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], settings: Evaluation,
    pool: Dataset | None, failed: tuple[FailedImage, ...] = (),
) -> Work:  # fmt: skip
    """The work, refused with a reason where it cannot be done."""
    settings = resolved(settings, model.signature.classes)
    others = images if pool is None else pool
    span = Span.of(settings, model.signature.height * model.signature.width)
    infills = Infills(model.card, model.signature, settings, others)
    work = Work(model, images, bundles, others, settings, lanes(settings), span, infills, failed)
    check(work)
    if pool is not None and "random" not in settings.infills:
        raise BadInput("a pool is for random infill; ask for that (--infill random), or leave the pool out.")
    return work


def subject(model: AnyClassifier, images: Dataset) -> dict[str, Any]:
    """Which model, read how, prepared how and by whose word, on which images."""
    signature = model.signature
    file = model.file
    return {
        "model": {"path": str(file.path), "sha256": file.sha256, "identity": file.identity} if file else "callable",
        "input": signature.input, "output": signature.output, "kind": signature.kind, "classes": signature.classes,
        "layout": signature.layout, "dtype": signature.dtype, "card_origin": _origin(model.card),
        "card": {key: value for key, value in model.card.to_json().items() if key != "source"},
        "class_names": list(model.card.names),
        "images": {"source": str(images.source), "count": len(images), "digest": images.digest()},
    }  # fmt: skip


PLACES = (("model", "path"), ("card_origin", "source"), ("images", "source"))


def placeless(about: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is about without the places of its files, whose digests tell which they are: a copy will do."""
    told = dict(about["subject"])
    for name, place in PLACES:
        if isinstance(told[name], Mapping):  # a callable is not
            told[name] = {key: value for key, value in told[name].items() if key != place}
    return {name: value for name, value in about.items() if name != "bundle_paths"} | {"subject": told}


def unit_keys(about: Mapping[str, Any], units: Iterable[range]) -> dict[range, str]:
    """The name of each unit of a run: a digest of all that can change its numbers."""
    decisive = placeless(about)
    return {unit: Store.key({"about": decisive, "unit": [unit.start, unit.stop]}) for unit in units}


def _origin(card: Card) -> dict[str, str | None]:
    """Where a card comes from: the file with its digest, or the preset, which has none."""
    path, digest = Path(card.source), None
    if not card.source.startswith(PRESET) and path.is_file():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"source": card.source, "sha256": digest}


def environment(model: AnyClassifier) -> dict[str, Any]:
    """What computed it; all of this can change a last digit."""
    base = {"auditkit": __version__, "onnxruntime": runtime_version(), "system": platform.machine()}
    if model.settings is not None:
        base |= {"device": model.settings.device, "precision": model.settings.precision}
    return base


def check(work: Work) -> None:
    """Refuse what cannot be evaluated, before any work is done."""
    classes = work.model.signature.classes
    choose_labels(np.zeros((1, classes)), work.settings.labels)
    if not len(work.images):
        raise BadInput(f"{work.images.source} holds no images.")
    if len(set(work.images.ids)) < len(work.images):
        twice = next(name for name in work.images.ids if work.images.ids.count(name) > 1)
        raise BadInput(f"{work.images.source} has the image '{twice}' twice; every image counts once.")
    if "random" in work.settings.infills and len(set(work.pool.ids)) < 2:
        raise BadInput("random infill needs at least two images; give more, or a --pool.")
    for name in work.settings.infills:
        if name.startswith(GIVEN_IMAGE):
            given_image(name)
    if not work.bundles and not work.settings.controls:
        raise BadInput("there is nothing to evaluate: give --heatmaps, or leave the controls on.")
    identity = work.model.identity
    for name, bundle in work.bundles.items():
        if not name or name.startswith(CONTROL):
            raise BadInput(f"a bundle cannot be named '{name}': such names are for the controls and the model itself.")
        if not set(bundle.labels) & set(work.images.ids):
            first = next(iter(bundle.labels), "none")
            raise BadInput(f"bundle {name} has no map for any of the images; its first image is '{first}'.")
        if strange := [label for own in bundle.labels.values() for label in own if label >= classes]:
            raise BadInput(f"bundle {name} has a map for label {strange[0]}; the model has classes 0 to {classes - 1}.")
        if identity and bundle.header.model and bundle.header.model.lower() != identity.lower():
            raise BadInput(
                f"bundle {name} was made for the model {bundle.header.model[:12]}..., but this one is "
                f"{identity[:12]}...; maps of another model say nothing about this one."
            )


def digest(bundle: HeatmapSet) -> str:
    """Digest of what a bundle says and of its every map, in whichever order and files they were written."""
    found = hashlib.sha256(json.dumps(bundle.header.to_json(), sort_keys=True).encode())
    for entry in sorted(bundle.entries, key=lambda entry: (entry.image, entry.label)):
        values = bundle.read(entry)
        found.update(f"\0{entry.image}\0{entry.label}\0{values.shape}\0".encode("utf-8", "surrogateescape"))
        found.update(values.data)
    return found.hexdigest()
