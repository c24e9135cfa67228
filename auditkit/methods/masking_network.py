"""Maps from a masking network that someone else has trained and exported (image in, or image and label, mask out)."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.methods.request import Found, Request
from auditkit.model.masking_network import Masker, Pictures, open_masker
from auditkit.model.read import Limits, file_size
from auditkit.model.session import Settings


@dataclass(frozen=True)
class MaskingNetwork:
    """Which file, and what may be spent on opening it."""

    path: Path
    output: str | None = None  # name of the masks, where the file has several outputs
    limits: Limits | None = None

    def __post_init__(self) -> None:
        if not str(self.path) or str(self.path) == ".":
            raise BadInput("the method masker needs the file of a masking network; name it.")


def masker(request: Request, options: MaskingNetwork) -> Found:
    """The network's mask as the map of every label, or of the label that it was asked about."""
    path = Path(options.path)
    limits = options.limits or Limits()
    file_size(path, limits)  # a folder or a missing file is told at once
    status = path.stat()
    pictures = Pictures.of(request.model.signature, options.output)
    network = _opened(path.resolve(), (status.st_mtime_ns, status.st_size), pictures, request.model.requested, limits)
    return masked_by(network, request)


@functools.lru_cache(maxsize=1)
def _opened(path: Path, _stamp: tuple[int, int], pictures: Pictures, settings: Settings, limits: Limits) -> Masker:
    """The network of the request before, if nothing has changed: a run makes many requests, and trials take seconds."""
    return open_masker(path, pictures, settings, limits)


def masked_by(network: Masker, request: Request) -> Found:
    """Maps from an opened network."""
    by_label = network.signature.label is not None
    pairs = [
        (place, label) for place, labels in enumerate(request.labels) for label in (labels if by_label else labels[:1])
    ]
    places, labels = np.array(pairs, np.int64).reshape(-1, 2).T
    if not len(places):
        return Found(tuple({} for _ in request.ids))
    masks = network.masks(request.shown[places], request.model.signature.layout, labels)
    if not np.isfinite(masks).all():
        raise RuntimeFailure("the masking network gave NaN or infinity; there is no map in that.")
    request.tick(len(places))
    size = request.model.signature.height, request.model.signature.width
    maps: list[dict[int, Array]] = [{} for _ in request.ids]
    for own, place, label in zip(masks, places.tolist(), labels.tolist(), strict=True):
        for wanted in [label] if by_label else request.labels[place]:
            maps[place][wanted] = _resized(own[wanted if len(own) > 1 else 0], size)
    same = not by_label and network.signature.maps == 1
    notes = ("the masking network gives one mask an image, used for every label",) if same else ()
    return Found(tuple(maps), len(places), notes=notes)


def _resized(mask: Array, size: tuple[int, int]) -> Array:
    """The mask at the picture's resolution, bilinear."""
    if mask.shape == size:
        return mask.astype(np.float32)
    return np.asarray(Image.fromarray(mask.astype(np.float32)).resize(size[::-1], Image.Resampling.BILINEAR))
