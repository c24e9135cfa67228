"""Whether a bundle can be used, and with these images and this model: every problem with its file and its value."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np

from auditkit.data import alignment
from auditkit.data import bundle_files as files
from auditkit.data.bundle_files import Entry
from auditkit.data.bundles import CONSTANT_NOTE, HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.data.dataset_files import size_of
from auditkit.errors import BadInput
from auditkit.model.card import Card

Progress = Callable[[int], Callable[[int], None]]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong (error) or that a reader of figures should know (warning)."""

    severity: str  # error or warning
    file: str
    message: str

    def to_json(self) -> dict[str, str]:
        """Plain object for `bundle check --json`."""
        return asdict(self)


def check(
    bundle: HeatmapSet, images: Dataset | None = None, model_identity: str | None = None, classes: int | None = None,
    card: Card | None = None, progress: Progress = lambda _total: lambda _done: None,
) -> list[Problem]:  # fmt: skip
    """All that is wrong with a bundle, on its own and beside what else is given; reads every map, one at a time."""
    found = [Problem("warning", files.HEADER, note) for note in bundle.notes if note != CONSTANT_NOTE]
    if not len(bundle):
        found.append(Problem("error", files.MANIFEST, "the bundle holds no maps"))
    found += _model_problems(bundle, model_identity)
    found += _label_problems(bundle, classes)
    if images is not None:
        found += _image_problems(bundle, images)
    found += _map_problems(bundle, images, card, progress)
    return found + [Problem("warning", name, "no line of the manifest names this file") for name in _orphans(bundle)]


def _model_problems(bundle: HeatmapSet, identity: str | None) -> Iterator[Problem]:
    said = bundle.header.model
    if said is None:
        yield Problem("warning", files.HEADER, "no model digest: nothing shows which model these maps explain")
    elif identity is not None and said.lower() != identity:
        yield Problem("error", files.HEADER, f"the maps explain the model {said}, but the model given is {identity}")


def _label_problems(bundle: HeatmapSet, classes: int | None) -> Iterator[Problem]:
    strange = [entry for entry in bundle.entries if classes is not None and entry.label >= classes]
    if strange:
        first = strange[0]
        yield Problem(
            "error", files.MANIFEST, f"image '{first.image}' has a map for label {first.label}, but the model has "
            f"classes 0 to {(classes or 0) - 1}{_more(len(strange))}",
        )  # fmt: skip


def _image_problems(bundle: HeatmapSet, images: Dataset) -> Iterator[Problem]:
    known = set(images.ids)
    unknown = [image for image in bundle.labels if image not in known]
    if unknown:
        example = f"; images are called like '{images.ids[0]}'"
        text = f"image '{unknown[0]}' is not in {images.source}{_more(len(unknown))}{example}"
        yield Problem("error", files.MANIFEST, text)
    bare = [image for image in images.ids if image not in bundle.labels]
    if bare:
        text = f"image '{bare[0]}' of {images.source} has no map{_more(len(bare))}"
        yield Problem("warning", files.MANIFEST, text)


def _map_problems(
    bundle: HeatmapSet, images: Dataset | None, card: Card | None, progress: Progress
) -> Iterator[Problem]:
    tick, frame = progress(len(bundle)), bundle.header.frame
    picture_size = _picture_sizes(images) if images is not None and frame == "original-image" else lambda _image: None
    constant: list[Entry] = []
    converted: list[tuple[Entry, str]] = []
    negative: list[Entry] = []
    for entry in bundle.entries:
        tick(1)
        try:
            values, kind = bundle.read_typed(entry)
            alignment.check_size((values.shape[0], values.shape[1]), frame, card, picture_size(entry.image))
        except BadInput as error:
            yield Problem("error", entry.heatmap, f"image '{entry.image}', label {entry.label}: {error}".rstrip("."))
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


def _picture_sizes(images: Dataset) -> Callable[[str], tuple[int, int] | None]:
    """Height and width of a picture by its id; None for an image that is not there."""
    places = {name: index for index, name in enumerate(images.ids)}

    @cache
    def size(image: str) -> tuple[int, int] | None:
        if image not in places:
            return None
        return size_of(images.read(places[image]))

    return size


def _orphans(bundle: HeatmapSet) -> list[str]:
    """Maps of an `add` that was cut short."""
    named = {files.split_reference(entry.heatmap)[0] for entry in bundle.entries}
    present = sorted(path.name for path in (bundle.path / files.MAPS).glob("*.npy"))
    return [name for name in (f"{files.MAPS}/{file}" for file in present) if name not in named]


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
