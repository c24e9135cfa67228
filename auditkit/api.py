"""What Python users call: evaluate, explain and audit, with their arguments in any of the usual forms."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.metrics.curves import parse_steps
from auditkit.metrics.faithfulness import parse_labels
from auditkit.model.classifier import AnyClassifier, CallableClassifier, OnnxClassifier, load
from auditkit.runs import evaluate as runs
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.explain import Explanation
from auditkit.runs.explain import explain as made
from auditkit.runs.summary.summarise import Summary
from auditkit.verdict.audit import Asked
from auditkit.verdict.audit import audit as whole
from auditkit.verdict.policy_file import read_policy

Model = AnyClassifier | str | Path | Callable[[Any], Any]
Pictures = Dataset | np.ndarray[Any, Any] | str | Path | Sequence[str | Path]
Labels = str | int | Sequence[int] | np.ndarray[Any, Any] | None
Maps = Bundle | HeatmapSet | str | Path
OPENED = OnnxClassifier | CallableClassifier
LISTS = (tuple, list, np.ndarray)  # in which a height and a width, or a range, may come
WHOLE, NUMBERS = ("seed", "draws", "tie_orders"), ("eps1", "eps2", "confidence")  # settings by their types
FLAGS = ("renormalise", "controls", "deletion")


def evaluate(
    model: Model, images: Pictures, heatmaps: "Maps | Sequence[Maps] | Mapping[str, Maps]" = (), *,
    out: "str | Path | None" = None, pool: "Pictures | None" = None, steps: "str | int | None" = None,
    size: tuple[int, int] | None = None, preset: str | None = None, **settings: Any,
) -> Summary:  # fmt: skip
    """Metrics of heatmaps on images, with intervals and controls; prints well in a terminal and in a notebook.

    `model` is as in `explain`, with its `size` and `preset`. `images` is a folder, CSV or .npz, a list of files, or
    uint8 [N, height, width, 3]; `heatmaps` a bundle, its path, or several. `settings` are those of `auditkit evaluate`:
    labels, renormalise, protocol, infill, range, eps1, eps2, ties, tie_orders, seed, draws, controls, deletion,
    saliency, confidence, interval.
    """
    asked = Evaluation(steps=None if steps is None else parse_steps(str(steps)), **_settings(settings))
    bundles, classifier = bundles_of(heatmaps), _opened(model, size, preset)
    chosen, others = images_of(classifier, images), None if pool is None else images_of(classifier, pool)
    return runs.evaluate(classifier, chosen, bundles, asked, None if out is None else Path(out), pool=others)


def explain(
    model: Model, images: Pictures, out: "str | Path", method: str = "mask", *, labels: Labels = None,
    pool: "Pictures | None" = None, seed: int = 0, gradient: str = "auto",
    size: tuple[int, int] | float | None = None, preset: str | None = None, **options: Any,
) -> HeatmapSet:  # fmt: skip
    """Heatmaps for every label of every image, in the bundle `out`; those it has already are kept.

    `model` is an opened classifier, an ONNX file, or a function that takes preprocessed [N, 3, height, width] float32
    and gives [N, classes]; `size` is then the height and width of its pictures, as of a file that leaves them open.
    `options` are those of the method, as is a `size` that is one number.
    """
    of_pictures, more = _two_sizes(model, size)
    given = tuple((name, str(value)) for name, value in (options | more).items())
    what = Explanation(method, None if labels is None else _label_set(labels), given, _whole("seed", seed), gradient)
    classifier = _opened(model, of_pictures, preset)
    chosen, others = images_of(classifier, images), None if pool is None else images_of(classifier, pool)
    return made(classifier, chosen, what, Path(out), others)


def audit(
    model: "AnyClassifier | str | Path", images: Any, out: "str | Path",
    heatmaps: "Maps | Sequence[Maps] | Mapping[str, Maps]" = (), *, method: str | None = None,
    policy: "str | Path" = "standard", pool: Any = None, baseline: "str | Path | None" = None,
    fail_on: str | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """The object of results.json with checks and verdict; report and all that it rests on are in the folder `out`.

    Without `heatmaps`, maps are made by `method` (mask, unless given), whose options are `options`. `policy` is the
    name of one that comes with auditkit (explore, standard, strict) or a TOML file.
    """
    rules, bundles = read_policy(policy), bundles_of(heatmaps)
    given = tuple((name, str(value)) for name, value in options.items())
    if bundles and (method or given):
        said = method or f"option {given[0][0]}"
        raise BadInput(f"give heatmaps or {said}, not both: supplied maps are not made again.")
    what = None if bundles else Explanation(method or "mask", None, given, rules.seed)
    asked = Asked(rules, what, fail_on, None if baseline is None else Path(baseline))
    opened = load(model) if isinstance(model, str | Path) else model
    others = None if pool is None else images_of(opened, pool)
    return whole(opened, images_of(opened, images), asked, Path(out), bundles, others)


def _two_sizes(model: Any, size: Any) -> tuple[Any, dict[str, Any]]:
    """The size of the pictures, if it is that, and the method's option of the same name, if it is that."""
    if size is None or isinstance(size, LISTS):
        return size, {}
    if callable(model):
        raise BadInput(
            f"size {size!r} is not the height and width of the function's pictures, such as (224, 224); for a method's "
            "own size, open the function with auditkit.load first."
        )
    return None, {"size": size}


def _opened(model: Any, size: Any, preset: str | None) -> AnyClassifier:
    """The classifier in any of the forms that Python users have it in."""
    if not isinstance(model, OPENED):
        return load(model, preset=preset, size=size)
    for name, given in (("size", size), ("preset", preset)):
        if given is not None:
            raise BadInput(f"{name} {given!r} comes too late for a classifier that is open; give it to auditkit.load.")
    return model


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an evaluation, each of its type."""
    own = {field.name: field.default for field in fields(Evaluation)}
    if unknown := set(given) - set(own):
        raise BadInput(f"there is no setting '{min(unknown)}'; the settings are those of auditkit evaluate --help.")
    return {name: None if value is None and own[name] is None else _typed(name, value) for name, value in given.items()}


def _typed(name: str, value: Any) -> Any:
    """A setting's value as its type."""
    if name == "labels":
        return _label_set(value)
    if name in WHOLE:
        return _whole(name, value)
    if name in NUMBERS:
        return _number(name, value)
    if name in FLAGS and not isinstance(value, bool | np.bool_):
        raise BadInput(f"{name} {value!r} is neither True nor False.")
    if name == "range":
        if not isinstance(value, LISTS) or len(value) != 2:
            raise BadInput(f"range {value!r} is not two kept fractions, such as (0.2, 0.6).")
        return _number(name, value[0]), _number(name, value[1])
    if name == "infill" and not isinstance(value, str):
        if not isinstance(value, tuple | list) or not all(isinstance(one, str) for one in value):
            raise BadInput(f"infill {value!r} is neither the name of an infill, such as 'gray', nor a list of names.")
        return tuple(value)
    return value


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise BadInput(f"{name} {value!r} is not a whole number, such as 7.")
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise BadInput(f"{name} {value!r} is not a number, such as 0.5.")
    return float(value)


def _label_set(labels: Any) -> str:
    """The text of a label set: a text as it is, 3 or [3, 7] as a list of class indices."""
    given = labels.tolist() if isinstance(labels, np.ndarray) else labels
    listed = given if isinstance(given, Iterable) else [given]
    text = given if isinstance(given, str) else ",".join(map(str, listed))
    parse_labels(text)
    return text


def images_of(model: AnyClassifier, images: Any) -> Dataset:
    """Images in any of the forms that Python users have them in."""
    if isinstance(images, Dataset):
        return images
    if isinstance(images, np.ndarray):
        return Dataset.from_array(images)
    listed = images if isinstance(images, list | tuple) else [images]
    if strange := [type(one).__name__ for one in listed if not isinstance(one, str | os.PathLike)]:
        raise BadInput(
            f"images are given as {strange[0]}; give a folder, a CSV, an .npz, a list of image files or an array uint8 "
            "[N, height, width, 3]."
        )
    if listed is images:
        return Dataset.from_files([Path(one) for one in images])
    return Dataset.open(Path(images), model.signature.classes, model.card.names)


def bundles_of(heatmaps: Any) -> dict[str, HeatmapSet]:
    """Bundles by name, in any of the forms that Python users have them in."""
    if isinstance(heatmaps, Mapping):
        return {str(name): _bundle(given) for name, given in heatmaps.items()}
    several = isinstance(heatmaps, Iterable) and not isinstance(heatmaps, HeatmapSet | str | np.ndarray)
    listed = list(heatmaps) if several else [heatmaps]
    return runs.open_bundles([_bundle(given).path for given in listed])


def _bundle(given: Any) -> HeatmapSet:
    if isinstance(given, HeatmapSet):
        return given
    if not isinstance(given, Bundle | str | os.PathLike):
        raise BadInput(
            f"heatmaps are {type(given).__name__}; give a bundle or its folder (arrays become one with "
            "auditkit.Bundle(folder, model).add(ids, labels, array))."
        )
    return open_bundle(given.path if isinstance(given, Bundle) else Path(given))
