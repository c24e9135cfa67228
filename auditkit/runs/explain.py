"""Heatmaps made for a set of images, some images at a time, into a bundle that grows and is gone on with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset, left_out
from auditkit.errors import BadInput
from auditkit.graph.gradient import missing_rules
from auditkit.methods.registry import METHODS, Method
from auditkit.methods.request import Pool, Request
from auditkit.metrics.faithfulness import choose_labels, default_labels
from auditkit.model import preprocessing
from auditkit.model.classifier import AnyClassifier
from auditkit.runs import explain_record
from auditkit.runs.evaluation.images import UnitImages, load_images, probabilities
from auditkit.runs.executor import Progress, silent

MOST_POOL = 64  # images that stand in for hidden pixels; more of them change nothing and fill the memory
GRADIENTS = ("auto", "graph", "differences")


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
        if self.gradient == "differences" or not model.can_differentiate:
            return replace(self, method="differences")
        signature = model.signature
        lacking = missing_rules(model.graph, signature.input, signature.output)
        return replace(self, method="differences") if lacking else self

    def name(self) -> str:
        """The method with all its options: maps made in another way do not go into the same bundle."""
        said = {**asdict(self.chosen()[1]), "seed": self.seed}
        return f"{self.method}({', '.join(f'{name}={value}' for name, value in said.items())})"

    def to_json(self) -> dict[str, Any]:
        """What was asked for, so that the same can be asked for again."""
        return asdict(self) | {"options": dict(self.options)}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> "Explanation":
        """What `to_json` gave."""
        given = {entry.name: said[entry.name] for entry in fields(cls)}
        options = tuple((str(name), str(text)) for name, text in given.pop("options").items())
        return cls(options=options, **given)


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
    model: AnyClassifier, images: Dataset, what: Explanation, out: Path, pool: Dataset | None = None,
    progress: Progress = silent,
) -> HeatmapSet:  # fmt: skip
    """The bundle in `out` with a map for every label of every image; maps that it has already are kept.

    Those must be the ones that were made, and in the end all are looked at once more (runs.made).
    """
    what = what.fitting(model)
    method, options = what.chosen()
    images, failed = images.usable(model.card)
    pool = None if pool is None else pool.usable(model.card)[0]
    bundle = Bundle(out, model=model.identity, method=what.name())
    record = explain_record.Record.of(out)
    done: Mapping[str, tuple[int, ...]] = {}
    if len(bundle):
        record.check(kept := open_bundle(out))
        done = kept.labels
    rule = what.labels or str(default_labels(model.signature.classes))
    drawn = (
        drawn_pool(model, images if pool is None else pool, what.seed) if method.uses_pool else Pool((), np.zeros(0))
    )
    infill = explain_record.digest(_gray(model), drawn.shown)
    tick = progress(len(images))
    together = method.together(model)
    for start in range(0, len(images), together):
        unit = range(start, min(start + together, len(images)))
        seen = load_images(unit, images, model.card, model.signature)
        _same_images(seen, record.images, out)
        _same_infill(infill, record.infill, out)
        labels = choose_labels(probabilities(model, seen.inputs), rule)
        missing = [tuple(int(k) for k in own if int(k) not in done.get(image, ()))
                   for image, own in zip(seen.ids, labels, strict=True)]  # fmt: skip
        if any(missing):
            request = request_for(model, seen, missing, drawn, what.seed, lambda rows: tick(0, rows))
            record = explain_record.add(bundle, replace(record, infill=infill), request, method.run(request, options))
        tick(len(unit))
    record.check(whole := open_bundle(out))
    return replace(whole, notes=(*whole.notes, *left_out(failed, len(images))))


def request_for(
    model: AnyClassifier, seen: UnitImages, labels: Sequence[tuple[int, ...]], pool: Pool, seed: int,
    tick: Callable[[int], None],
) -> Request:  # fmt: skip
    """What is missing; images that lack nothing are left out."""
    some = [place for place, own in enumerate(labels) if own]
    return Request(
        model, tuple(seen.ids[place] for place in some), seen.pixels[some], seen.inputs[some],
        tuple(labels[place] for place in some), _gray(model), pool, seed, tick,
    )  # fmt: skip


def _gray(model: AnyClassifier) -> Array:
    return preprocessing.flat_picture(model.card, model.signature, model.card.gray)


def drawn_pool(model: AnyClassifier, images: Dataset, seed: int) -> Pool:
    """Some of the images, drawn once for the whole run."""
    rng = np.random.default_rng([seed, len(images)])
    chosen = np.sort(rng.permutation(len(images))[:MOST_POOL])
    seen = np.stack([images.decode(int(index), model.card).pixels for index in chosen])
    shown = preprocessing.normalised(model.card, seen, model.signature.layout, model.signature.dtype)
    return Pool(tuple(images.ids[int(index)] for index in chosen), shown)


def _same_images(seen: UnitImages, known: dict[str, str], out: Path) -> None:
    for place, image in enumerate(seen.ids):
        if known.get(image, digest := explain_record.digest(seen.inputs[place])) != digest:
            raise BadInput(
                f"image '{image}' is another picture, or prepared otherwise, than the one that {out} has maps for; use "
                "a new bundle."
            )


def _same_infill(digest: str, known: str, out: Path) -> None:
    if known and known != digest:
        raise BadInput(
            f"{out} has maps for which pixels were hidden behind another gray or other pictures; give the same card "
            "and --pool (or images), or use a new bundle."
        )
