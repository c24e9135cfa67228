"""Evaluations and explanations as Python users call them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.data.heatmaps import Bundle, HeatmapSet, open_bundle
from auditkit.data.images import ImageSet, open_images
from auditkit.errors import BadInput
from auditkit.metrics.curves import parse_steps
from auditkit.model.classifier import AnyClassifier, CallableClassifier, OnnxClassifier, load
from auditkit.runs import evaluate as runs
from auditkit.runs.explain import Explanation
from auditkit.runs.explain import explain as made
from auditkit.runs.plan import Evaluation
from auditkit.runs.summary import Summary

Maps = Bundle | HeatmapSet | str | Path


def evaluate(
    model: AnyClassifier, images: "ImageSet | np.ndarray[Any, Any] | str | Path",
    heatmaps: "Maps | Sequence[Maps] | Mapping[str, Maps]" = (), *, out: "str | Path | None" = None,
    pool: "ImageSet | np.ndarray[Any, Any] | str | Path | None" = None, steps: "str | int | None" = None,
    **settings: Any,
) -> Summary:  # fmt: skip
    """Metrics of heatmaps on images, with intervals and controls; prints well in a terminal and in a notebook.

    `images` is a folder, CSV or .npz, or uint8 [N, height, width, 3]; `heatmaps` a bundle, its path, or several.
    `settings` are those of `auditkit evaluate`: labels, renormalise, protocol, infill, range, eps1, eps2, ties,
    tie_orders, seed, draws, controls, deletion, saliency, confidence, interval.
    """
    if unknown := set(settings) - {field.name for field in fields(Evaluation)}:
        raise BadInput(f"there is no setting '{min(unknown)}'; the settings are those of auditkit evaluate --help.")
    if not isinstance(settings.get("labels"), str | None):  # 3 or [3, 7], as Python has it
        settings["labels"] = ",".join(str(label) for label in np.atleast_1d(settings["labels"]))
    chosen = images_of(model, images)
    others = None if pool is None else images_of(model, pool)
    asked = Evaluation(steps=None if steps is None else parse_steps(str(steps)), **settings)
    return runs.evaluate(model, chosen, bundles_of(heatmaps), asked, None if out is None else Path(out), pool=others)


def explain(
    model: "AnyClassifier | str | Path | Callable[[Any], Any]", images: "ImageSet | np.ndarray[Any, Any] | str | Path",
    out: "str | Path", method: str = "mask", *, labels: "str | Sequence[int] | None" = None,
    pool: "ImageSet | np.ndarray[Any, Any] | str | Path | None" = None, seed: int = 0, gradient: str = "auto",
    size: tuple[int, int] | None = None, preset: str | None = None, **options: Any,
) -> HeatmapSet:  # fmt: skip
    """Heatmaps for every label of every image, in the bundle `out`; those it has already are kept.

    `model` is an opened classifier, an ONNX file, or a function that takes preprocessed [N, 3, height, width] float32
    (then `size` is its height and width). `options` are those of the method.
    """
    opened = model if isinstance(model, OnnxClassifier | CallableClassifier) else load(model, preset=preset, size=size)
    given = ",".join(map(str, labels)) if labels is not None and not isinstance(labels, str) else labels
    what = Explanation(method, given, tuple((name, str(value)) for name, value in options.items()), seed, gradient)
    chosen, others = images_of(opened, images), None if pool is None else images_of(opened, pool)
    return made(opened, chosen, what, Path(out), others)


def images_of(model: AnyClassifier, images: Any) -> ImageSet:
    """Images in any of the forms that Python users have them in."""
    if isinstance(images, ImageSet):
        return images
    if isinstance(images, np.ndarray):
        return ImageSet(Path("array"), tuple(str(index) for index in range(len(images))), lambda index: images[index])
    return open_images(Path(images), model.signature.classes, model.card.names)


def bundles_of(heatmaps: Any) -> dict[str, HeatmapSet]:
    """Bundles by name, in any of the forms that Python users have them in."""
    if isinstance(heatmaps, Mapping):
        return {str(name): _bundle(given) for name, given in heatmaps.items()}
    listed = [heatmaps] if isinstance(heatmaps, Bundle | HeatmapSet | str | Path) else list(heatmaps)
    return runs.named([_bundle(given).path for given in listed])


def _bundle(given: Any) -> HeatmapSet:
    return given if isinstance(given, HeatmapSet) else open_bundle(given.path if isinstance(given, Bundle) else given)
