"""The functions that Python users call, with their arguments in any of the usual forms."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput, unknown
from auditkit.evidence.salt import parse_salt
from auditkit.metrics.curves import parse_steps
from auditkit.metrics.faithfulness import parse_labels
from auditkit.model.classifier import AnyClassifier, CallableClassifier, OnnxClassifier, load
from auditkit.report.examination_page import render_page
from auditkit.runs import evaluate as evaluating
from auditkit.runs import explain as explaining
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.examination import run as examining
from auditkit.runs.executor import silent_phase
from auditkit.runs.explain import Explanation
from auditkit.runs.folder.examination import Examination
from auditkit.runs.folder.figures import Taking
from auditkit.runs.folder.results import Results
from auditkit.runs.inspection import at_own_size, settle_preprocessing
from auditkit.runs.summary.summarise import Summary
from auditkit.verdict import audit as auditing
from auditkit.verdict.policy_file import read_policy

PathLike = str | Path
Model = AnyClassifier | PathLike | Callable[[Array], Any]
Images = Dataset | Array | PathLike | Sequence[PathLike]
Labels = str | int | Sequence[int] | Array | None
Maps = Bundle | HeatmapSet | PathLike
Heatmaps = Maps | Sequence[Maps] | Mapping[str, Maps]
Size = tuple[int, int]
N = TypeVar("N", int, float, bool)


def evaluate(
    model: Model, images: Images, heatmaps: Heatmaps = (), *, out: PathLike | None = None, pool: Images | None = None,
    steps: str | int | None = None, size: Size | None = None, preset: str | None = None, record_machine: bool = False,
    **settings: Any,
) -> Summary:  # fmt: skip
    """Metrics of heatmaps on images, with intervals and controls; prints well in a terminal and in a notebook.

    `model` is as in `explain`, with its `size` and `preset`. `images` is a folder, CSV or .npz, a list of files, or
    uint8 [N, height, width, 3]; `heatmaps` a bundle, its path, or several. `settings` are those of `auditkit evaluate`:
    labels, renormalise, protocol, infill, range, eps1, eps2, ties, tie_orders, seed, draws, controls, deletion,
    saliency, confidence, interval. Only with `record_machine` does `out` hold full paths and the names of machines and
    processes.
    """
    request = Evaluation(steps=None if steps is None else parse_steps(str(steps)), **_check_settings(settings))
    bundles = _open_bundles(heatmaps)
    classifier, dataset, infill_pool = _open(model, images, pool, size, preset)
    folder = None if out is None else Path(out)
    return evaluating.evaluate(
        classifier, dataset, bundles, request, folder, pool=infill_pool, record_machine=record_machine
    )


def explain(
    model: Model, images: Images, out: PathLike, method: str = "mask", *, labels: Labels = None,
    pool: Images | None = None, seed: int = 0, gradient: str = "auto", size: Size | float | None = None,
    preset: str | None = None, record_machine: bool = False, **options: Any,
) -> HeatmapSet:  # fmt: skip
    """Heatmaps for every label of every image, in the bundle `out`; maps that it already has are kept.

    `model` is an open classifier, an ONNX file, or a function that takes preprocessed [N, 3, height, width] float32
    and returns [N, classes]. `size` is the height and width of the function's images, or of a file that leaves them
    open. `options` are those of the method; so is a `size` that is one number. Only with `record_machine` does the log
    of several workers have the names of machines and processes.
    """
    image_size, method_options = _split_size(model, size, options)
    label_set = None if labels is None else _label_set("labels", labels)
    request = Explanation(method, label_set, method_options, _number("seed", seed, int), gradient)
    classifier, dataset, infill_pool = _open(model, images, pool, image_size, preset)
    return explaining.explain(classifier, dataset, request, Path(out), infill_pool, record_machine=record_machine)


def audit(
    model: Model, images: Images, out: PathLike, heatmaps: Heatmaps = (), *, method: str | None = None,
    policy: PathLike = "standard", pool: Images | None = None, baseline: PathLike | None = None,
    fail_on: str | None = None, fail_on_finding: str | None = None, until_decided: bool = False,
    limit: int | None = None, salt: str | None = None, size: Size | float | None = None, preset: str | None = None,
    record_machine: bool = False, **options: Any,
) -> Results:  # fmt: skip
    """The results with checks and verdict; the report and all evidence are in the folder `out`.

    `model`, `size` and `preset` are as in `explain`. Without `heatmaps`, maps are made by `method` (mask by default)
    with its `options`. `policy` is the name of one that comes with auditkit (explore, standard, strict) or a TOML file.
    `fail_on` is the lowest severity of a check that fails the verdict. `fail_on_finding` is the lowest severity of a
    finding about the model for which `Results.exit_code` is 1; both override the policy. With `until_decided`, images
    are taken batch by batch until every check that counts is decided; `limit` is how many are taken at most. Which
    images come first, and all else that is left to chance, follows from a salt that is drawn for the audit; give the
    `salt` of an earlier one (`results.run.salt`) to repeat it. Only with `record_machine` are full paths and the names
    of machines and processes recorded.
    """
    rules, bundles = read_policy(policy), _open_bundles(heatmaps)
    image_size, method_options = _split_size(model, size, options)
    if bundles and (method or method_options):
        extra = method or f"option {method_options[0][0]}"
        raise BadInput(f"give heatmaps or {extra}, not both: a bundle names its own method.")
    explanation = None if bundles else Explanation(method or "mask", None, method_options, rules.evaluation.seed)
    earlier = None if baseline is None else Path(baseline)
    request = auditing.AuditRequest(
        rules, explanation, fail_on, earlier, bundles=bundles, taking=Taking(until_decided, limit),
        salt=None if salt is None else parse_salt(salt),
        record_machine=record_machine,
        fail_on_finding=fail_on_finding,
    )  # fmt: skip
    classifier, dataset, infill_pool = _open(model, images, pool, image_size, preset)
    request.require_enough(len(dataset))
    return auditing.audit(classifier, dataset, replace(request, pool=infill_pool), Path(out))


def examine(
    model: Model, images: Images, out: PathLike, heatmaps: Maps | None = None, *, method: str = "differences",
    seed: int = 0, size: Size | float | None = None, preset: str | None = None, record_machine: bool = False,
    **options: Any,
) -> Examination:  # fmt: skip
    """What the model relies on; the page with pictures is in the folder `out`.

    `model`, `size` and `preset` are as in `explain`. Without `heatmaps` of the predicted labels, maps are made by
    `method` with its `options`. Only with `record_machine` are full paths and the names of machines and processes
    recorded.
    """
    image_size, method_options = _split_size(model, size, options)
    request = Explanation(method, "top1", method_options, _number("seed", seed, int))
    supplied = None if heatmaps is None else _open_bundle(heatmaps).path
    classifier, dataset, _ = _open(model, images, None, image_size, preset)
    run = examining.examine(
        classifier, dataset, request, supplied, Path(out), silent_phase, render_page, record_machine=record_machine
    )
    return run.examination


def _open(
    model: Model, images: Images, pool: Images | None, size: Size | None, preset: str | None
) -> tuple[AnyClassifier, Dataset, Dataset | None]:
    """The classifier, its images and the images to fill in with."""
    if not isinstance(model, OnnxClassifier | CallableClassifier):
        opened = load(model, preset=preset, size=size)
        dataset = _open_images(opened, images)
        opened = at_own_size(opened, dataset, lambda own: load(model, preset=preset, size=own))
        settle_preprocessing(opened, dataset)
        return opened, dataset, None if pool is None else _open_images(opened, pool)
    for name, value in (("size", size), ("preset", preset)):
        if value is not None:
            raise BadInput(f"{name} {value!r} cannot be set on an open classifier; give it to auditkit.load.")
    return model, _open_images(model, images), None if pool is None else _open_images(model, pool)


def _open_images(model: AnyClassifier, images: object) -> Dataset:
    if isinstance(images, Dataset):
        return images
    if isinstance(images, np.ndarray):
        return Dataset.from_array(images)
    if isinstance(images, str | os.PathLike):
        return Dataset.open(Path(images), model.signature.classes, model.card.names)
    files: Iterable[Any] = images if isinstance(images, list | tuple) else [images]
    wrong = [file for file in files if not isinstance(file, str | os.PathLike)]
    if wrong:
        forms = "a folder, a CSV, an .npz, a list of image files or an array uint8 [N, height, width, 3]"
        raise BadInput(f"images are given as {type(wrong[0]).__name__}; give {forms}.")
    return Dataset.from_files([Path(file) for file in files])


def _open_bundles(heatmaps: object) -> dict[str, HeatmapSet]:
    """Bundles by name."""
    if isinstance(heatmaps, Mapping):
        return {str(name): _open_bundle(bundle) for name, bundle in heatmaps.items()}
    if not isinstance(heatmaps, Iterable) or isinstance(heatmaps, HeatmapSet | str | np.ndarray):
        heatmaps = [heatmaps]
    return evaluating.open_bundles([_open_bundle(bundle).path for bundle in heatmaps])


def _open_bundle(bundle: object) -> HeatmapSet:
    if isinstance(bundle, HeatmapSet):
        return bundle
    path = bundle.path if isinstance(bundle, Bundle) else bundle
    if not isinstance(path, str | os.PathLike):
        remedy = "arrays become one with auditkit.Bundle(folder, model).add(ids, labels, array)"
        raise BadInput(f"heatmaps are {type(bundle).__name__}; give a bundle or its folder ({remedy}).")
    return open_bundle(Path(path))


def _split_size(
    model: Model, size: Size | float | None, options: Mapping[str, object]
) -> tuple[Size | None, tuple[tuple[str, str], ...]]:
    """The size of the images, if `size` is a height and a width, and the method's options, one of which it may be."""
    if size is not None and not isinstance(size, tuple | list | np.ndarray):
        if callable(model):
            remedy = "for a method's own size, open the function with auditkit.load first"
            raise BadInput(f"size {size!r} is not the height and width of the function's pictures; {remedy}.")
        size, options = None, {**options, "size": size}
    return size, tuple((name, str(value)) for name, value in options.items())


_NUMBERS: dict[type, tuple[tuple[type, ...], str]] = {
    int: ((int, np.integer), "not a whole number, such as 7"),
    float: ((int, float, np.integer, np.floating), "not a number, such as 0.5"),
    bool: ((bool, np.bool_), "neither True nor False"),
}


def _number(name: str, value: Any, kind: type[N]) -> N:
    """A number or truth value of Python or numpy; True is not taken for 1."""
    types, problem = _NUMBERS[kind]
    fits = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    if not fits:
        raise BadInput(f"{name} {value!r} is {problem}.")
    return kind(value)


def _kept_range(name: str, value: object) -> tuple[float, float]:
    if not isinstance(value, tuple | list | np.ndarray) or len(value) != 2:
        raise BadInput(f"{name} {value!r} is not two kept fractions, such as (0.2, 0.6).")
    return _number(name, value[0], float), _number(name, value[1], float)


def _infills(name: str, value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if not isinstance(value, tuple | list) or not all(isinstance(item, str) for item in value):
        raise BadInput(f"{name} {value!r} is neither the name of an infill, such as 'gray', nor a list of names.")
    return tuple(value)


def _label_set(_name: str, value: object) -> str:
    """The text of a label set: a text as it is; 3 or [3, 7] as a list of class indices."""
    labels = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(labels, Iterable) and not isinstance(labels, str):
        labels = ",".join(map(str, labels))
    parse_labels(str(labels))
    return str(labels)


_CHECKS: dict[str, Callable[[str, object], object]] = {
    **dict.fromkeys(("seed", "draws", "tie_orders"), partial(_number, kind=int)),
    **dict.fromkeys(("eps1", "eps2", "confidence"), partial(_number, kind=float)),
    **dict.fromkeys(("renormalise", "controls", "deletion"), partial(_number, kind=bool)),
    "range": _kept_range, "infill": _infills, "labels": _label_set,
}  # fmt: skip


def _check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an evaluation, each checked and converted to its type; others are refused."""
    defaults = {field.name: field.default for field in fields(Evaluation)}
    checked = dict(settings)
    for name, value in settings.items():
        if name not in defaults:
            raise BadInput(unknown("setting", name, defaults))
        if name in _CHECKS and (value is not None or defaults[name] is not None):
            checked[name] = _CHECKS[name](name, value)
    return checked
