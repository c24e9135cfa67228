"""Checks a bundle, alone or against images and a model; every problem names its file and value."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from auditkit.data import alignment
from auditkit.data import bundle_files as files
from auditkit.data.bundle_files import Entry
from auditkit.data.bundles import CONSTANT_NOTE, HeatmapSet, Progress
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput, ColourPicture
from auditkit.model.card import Card

ONE_LABEL = (
    "every image has maps for one label only; completeness, soundness and label specificity need one for each label "
    "that is evaluated, which Bundle.add(ids, {label: maps}) adds"
)


@dataclass(frozen=True)
class Problem:
    """What makes a bundle unusable (error), or what a reader of its figures should know (warning)."""

    severity: str  # error or warning
    file: str
    message: str
    kind: str = "other"  # or colour-picture


def check(
    bundle: HeatmapSet, images: Dataset | None = None, model_identity: str | None = None, classes: int | None = None,
    card: Card | None = None, progress: Progress = lambda _total: lambda _done: None,
) -> list[Problem]:  # fmt: skip
    """The problems of a bundle, checked against whatever else is given. Every map is read."""
    problems = [Problem("warning", files.HEADER, note) for note in bundle.notes if note != CONSTANT_NOTE]
    if not len(bundle):
        problems.append(Problem("error", files.MANIFEST, "the bundle holds no maps"))
    problems += _model_problems(bundle, model_identity, classes)
    if images is not None:
        bundle = bundle.named_as(images)
        problems += _image_problems(bundle, images)
    problems += _map_problems(bundle, images, card, progress)
    orphans = [path.name for path in bundle.unnamed_files() if path.suffix == ".npy"]
    unnamed = "no line of the manifest names this file"
    return problems + [Problem("warning", f"{files.MAPS}/{name}", unnamed) for name in orphans]


def _model_problems(bundle: HeatmapSet, identity: str | None, classes: int | None) -> Iterator[Problem]:
    digest = bundle.header.model
    if digest is None:
        yield Problem("warning", files.HEADER, "no model digest: nothing shows which model these maps explain")
    elif identity is not None and digest.lower() != identity:
        yield Problem("error", files.HEADER, f"the maps explain the model {digest}, but the model given is {identity}")
    if classes is not None and all(len(labels) == 1 for labels in bundle.labels.values()):
        yield Problem("warning", files.MANIFEST, ONE_LABEL)
    last = math.inf if classes is None else classes - 1
    outside = [entry for entry in bundle.entries if entry.label > last]
    if outside:
        image, label = outside[0].image, outside[0].label
        text = f"image '{image}' has a map for label {label}, but the model has classes 0 to {last}"
        yield Problem("error", files.MANIFEST, f"{text}{_more(len(outside))}")


def _image_problems(bundle: HeatmapSet, images: Dataset) -> Iterator[Problem]:
    ids = set(images.ids)
    unknown = [image for image in bundle.labels if image not in ids]
    if unknown:
        text = f"image '{unknown[0]}' is not in {images.source}{_more(len(unknown))}"
        yield Problem("error", files.MANIFEST, f"{text}; image names look like '{images.ids[0]}'")
    unmapped = [image for image in images.ids if image not in bundle.labels]
    if unmapped:
        text = f"image '{unmapped[0]}' of {images.source} has no map{_more(len(unmapped))}"
        yield Problem("warning", files.MANIFEST, text)


def _map_problems(
    bundle: HeatmapSet, images: Dataset | None, card: Card | None, progress: Progress
) -> Iterator[Problem]:
    tick, frame = progress(len(bundle)), bundle.header.frame
    shown = images if frame == "original-image" else None
    picture_size, read = _picture_sizes(shown, card), bundle.reader()
    constant, negative = list[Entry](), list[Entry]()
    converted = list[tuple[Entry, str]]()
    for entry in bundle.entries:
        tick(1)
        try:
            values, kind = read(entry)
            alignment.check_size((values.shape[0], values.shape[1]), frame, card, picture_size(entry.image))
        except BadInput as error:
            kind = "colour-picture" if isinstance(error, ColourPicture) else "other"
            text = f"image '{entry.image}', label {entry.label}: {error}".rstrip(".")
            yield Problem("error", entry.heatmap, text, kind)
            continue
        if (values == values[0, 0]).all():
            constant.append(entry)
        if (values < 0).any():
            negative.append(entry)
        if np.dtype(kind).newbyteorder("=") != np.float32:
            converted.append((entry, kind))
    if constant:
        text = f"a constant map, which ranks no pixel before another: {len(constant)} of {len(bundle)} maps"
        yield Problem("warning", constant[0].heatmap, text)
    if negative and bundle.header.sign == "unsigned":
        text = f"negative scores in a bundle that says sign 'unsigned'{_more(len(negative))}"
        yield Problem("warning", negative[0].heatmap, text)
    if converted:
        entry, kind = converted[0]
        yield Problem("warning", entry.heatmap, f"{np.dtype(kind)} values, read as float32{_more(len(converted))}")


def _picture_sizes(images: Dataset | None, card: Card | None) -> Callable[[str], tuple[int, int] | None]:
    """Looks up the height and width of an image by its id; None for an unknown image."""
    if images is None:
        return lambda _image: None
    positions = {name: index for index, name in enumerate(images.ids)}
    upright = card is None or card.exif_orientation
    return cache(lambda image: images.size(positions[image], upright) if image in positions else None)


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
