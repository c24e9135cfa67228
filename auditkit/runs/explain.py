"""Heatmaps made for a set of images, some images at a time, into a bundle that grows and is gone on with."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.data.durable import write_whole
from auditkit.data.heatmaps import Bundle, HeatmapSet, open_bundle
from auditkit.data.images import ImageSet
from auditkit.data.usable import left_out, usable
from auditkit.errors import BadInput
from auditkit.graph.gradient import missing_rules
from auditkit.methods.request import Found, Pool, Request
from auditkit.methods.table import METHODS, Method
from auditkit.metrics.faithfulness import choose_labels, default_labels
from auditkit.model import pictures
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.runs.evaluate import Progress, silent
from auditkit.runs.prepare import Seen, look
from auditkit.runs.ready import probabilities

Array = np.ndarray[Any, Any]
MOST_POOL = 64  # images that stand in for hidden pixels; more of them change nothing and fill the memory
GRADIENTS = ("auto", "graph", "differences")
RECORD = "explained.json"  # in the bundle


@dataclass(frozen=True)
class Explanation:
    """What is to be made."""

    method: str
    labels: str | None = None  # as in an evaluation
    options: tuple[tuple[str, str], ...] = ()  # of the method, by name
    seed: int = 0
    gradient: str = "auto"  # of GRADIENTS: where a learned mask gets its direction from

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise BadInput(f"there is no method '{self.method}'; the methods are {', '.join(METHODS)}.")
        if self.gradient not in GRADIENTS:
            raise BadInput(f"gradient '{self.gradient}' is not one of {', '.join(GRADIENTS)}.")
        if self.gradient == "differences" and self.method != "mask" and METHODS[self.method].needs == "gradient":
            raise BadInput(f"{self.method} follows the gradient itself; without one, use mask or differences.")
        if self.seed < 0:
            raise BadInput(f"seed {self.seed} is negative.")

    def chosen(self) -> tuple[Method, Any]:
        """The method and its options, those given in the place of its own."""
        method = METHODS[self.method]
        kinds = {entry.name: entry for entry in fields(method.options)}
        given: dict[str, Any] = {}
        for name, text in self.options:
            if name not in kinds:
                have = f"it has {', '.join(kinds)}" if kinds else "it has none"
                raise BadInput(f"{self.method} has no option '{name}'; {have}.")
            given[name] = _typed(name, text, str(kinds[name].type))
        for name, kind in kinds.items():
            if name not in given and kind.default is MISSING:
                raise BadInput(f"{self.method} needs the option {name}, as in {name}=VALUE.")
        return method, method.options(**given)

    def fitting(self, model: AnyClassifier) -> "Explanation":
        """The same for this model: where it has no gradient to learn a mask by, differences of its answers do."""
        if self.method != "mask" or self.gradient == "graph":
            return self
        if self.gradient == "differences" or not isinstance(model, OnnxClassifier):
            return replace(self, method="differences")
        signature = model.signature
        lacking = missing_rules(model.graph, signature.input, signature.output)
        return replace(self, method="differences") if lacking else self

    def name(self) -> str:
        """The method with all its options: maps made in another way do not go into the same bundle."""
        said = {**asdict(self.chosen()[1]), "seed": self.seed}
        return f"{self.method}({', '.join(f'{name}={value}' for name, value in said.items())})"


@dataclass(frozen=True)
class Record:
    """What making a bundle's maps took, and what must be known of them."""

    images: dict[str, str] = field(default_factory=dict)  # digest of what the network saw of each image
    spent: dict[str, dict[str, Any]] = field(default_factory=dict)  # by what was asked for: passes, gradients, notes

    @classmethod
    def of(cls, out: Path) -> "Record":
        """That of a bundle; an empty one where it has none."""
        try:
            found = json.loads((out / RECORD).read_bytes())
            record = cls(dict(found["images"]), dict(found["spent"]))
            record.to_json()
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{out / RECORD} cannot be read: {error}; make a new bundle.") from None
        return record

    @property
    def passes(self) -> int:
        """Images that the model was asked about."""
        return sum(int(one["passes"]) for one in self.spent.values())

    @property
    def gradients(self) -> int:
        """Images that it was differentiated on."""
        return sum(int(one["gradients"]) for one in self.spent.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """Each of them once."""
        return tuple(dict.fromkeys(str(note) for one in self.spent.values() for note in one["notes"]))

    def with_more(self, request: Request, found: Found) -> "Record":
        """The same after some more maps; who is asked the same twice has spent it once."""
        digests = {image: _digest(pixels) for image, pixels in zip(request.ids, request.pixels, strict=True)}
        asked = hashlib.sha256(json.dumps([request.ids, request.labels]).encode()).hexdigest()
        spent = {"passes": found.passes, "gradients": found.gradients, "notes": list(found.notes)}
        return Record(self.images | digests, self.spent | {asked: spent})

    def to_json(self) -> dict[str, Any]:
        """The object of the file."""
        totals = {"passes": self.passes, "gradients": self.gradients, "notes": list(self.notes)}
        return {"images": self.images, "spent": self.spent, **totals}


def _typed(name: str, text: str, kind: str) -> Any:
    """A text as the option's type."""
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
    model: AnyClassifier, images: ImageSet, what: Explanation, out: Path, pool: ImageSet | None = None,
    progress: Progress = silent,
) -> HeatmapSet:  # fmt: skip
    """The bundle in `out` with a map for every label of every image; maps that it has already are kept."""
    what = what.fitting(model)
    method, options = what.chosen()
    images, failed = usable(images, model.card)
    pool = None if pool is None else usable(pool, model.card)[0]
    bundle = Bundle(out, model=model if hasattr(model, "file") else None, method=what.name())
    done = open_bundle(out).labels if len(bundle) else {}
    record = Record.of(out)
    rule = what.labels or str(default_labels(model.signature.classes))
    drawn = (
        drawn_pool(model, images if pool is None else pool, what.seed) if method.uses_pool else Pool((), np.zeros(0))
    )
    tick = progress(len(images))
    for start in range(0, len(images), method.images):
        unit = range(start, min(start + method.images, len(images)))
        seen = look(unit, images, model.card, model.signature)
        _same_images(seen, record.images, out)
        labels = choose_labels(probabilities(model, seen.shown), rule)
        missing = [tuple(int(k) for k in own if int(k) not in done.get(image, ()))
                   for image, own in zip(seen.ids, labels, strict=True)]  # fmt: skip
        if any(missing):
            request = request_for(model, seen, missing, drawn, what.seed, lambda rows: tick(0, rows))
            found = method.run(request, options)
            record = record.with_more(request, found)
            bundle.create()
            write_whole(out / RECORD, (json.dumps(record.to_json(), indent=1, sort_keys=True) + "\n").encode())
            add_maps(bundle, request, found.maps)
        tick(len(unit))
    made = open_bundle(out)
    return replace(made, notes=(*made.notes, *left_out(failed, len(images))))


def request_for(
    model: AnyClassifier, seen: Seen, labels: Sequence[tuple[int, ...]], pool: Pool, seed: int,
    tick: Callable[[int], None],
) -> Request:  # fmt: skip
    """What is missing; images that lack nothing are left out."""
    some = [place for place, own in enumerate(labels) if own]
    gray = pictures.flat_picture(model.card, model.signature, model.card.gray)
    return Request(
        model, tuple(seen.ids[place] for place in some), seen.pixels[some], seen.shown[some],
        tuple(labels[place] for place in some), gray, pool, seed, tick,
    )  # fmt: skip


def add_maps(bundle: Bundle, request: Request, maps: Sequence[dict[int, Array]]) -> None:
    """Write the maps of a request into a bundle, all at once."""
    pairs = [(image, label) for image, own in zip(request.ids, request.labels, strict=True) for label in own]
    stack = np.stack([maps[place][label] for place, own in enumerate(request.labels) for label in own])
    bundle.add([image for image, _ in pairs], [label for _, label in pairs], stack, layout="NHW")


def drawn_pool(model: AnyClassifier, images: ImageSet, seed: int) -> Pool:
    """Some of the images, drawn once for the whole run."""
    rng = np.random.default_rng([seed, len(images)])
    chosen = np.sort(rng.permutation(len(images))[:MOST_POOL])
    seen = np.stack([pictures.pixels(model.card, images.picture(int(index))) for index in chosen])
    shown = pictures.normalised(model.card, seen, model.signature.layout, model.signature.dtype)
    return Pool(tuple(images.ids[int(index)] for index in chosen), shown)


def _digest(pixels: Array) -> str:
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16).hexdigest()


def _same_images(seen: Seen, known: dict[str, str], out: Path) -> None:
    for place, image in enumerate(seen.ids):
        if known.get(image, digest := _digest(seen.pixels[place])) != digest:
            raise BadInput(
                f"image '{image}' is another picture than the one that {out} has maps for; use a new bundle."
            )
