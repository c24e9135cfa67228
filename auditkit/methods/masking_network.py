"""Maps from an exported masking network, which takes an image, or an image and a label, and returns masks."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from auditkit.data.alignment import resized
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.methods.notes import Note
from auditkit.methods.request import MethodResult, Request
from auditkit.model.masking_network import Masker, Requirements, open_masker
from auditkit.model.read import Limits, file_size
from auditkit.model.session import Settings


@dataclass(frozen=True)
class MaskingNetwork:
    """The network's file, and the limits for opening it."""

    path: Path
    output: str | None = None  # name of the masks, where the file has several outputs
    limits: Limits | None = None

    def __post_init__(self) -> None:
        if not str(self.path) or str(self.path) == ".":
            raise BadInput("the method masker needs the file of a masking network; give it as path=FILE.")


def masker(request: Request, options: MaskingNetwork) -> MethodResult:
    """The network's masks as maps, one for each label or one for all of them."""
    path = Path(options.path)
    limits = options.limits or Limits()
    file_size(path, limits)  # refuses a folder or a missing file at once
    status = path.stat()
    signature, maps, settings = request.model.signature, request.empty_maps(), request.model.requested
    requirements = Requirements(signature, options.output)
    network = _opened(path.resolve(), (status.st_mtime_ns, status.st_size), requirements, settings, limits)
    takes_label = network.signature.label is not None
    runs: list[tuple[int, int]] = []  # (position of the image, label)
    for image, of_image in enumerate(request.labels):
        runs += [(image, label) for label in (of_image if takes_label else of_image[:1])]
    if not runs:
        return MethodResult(maps)
    images, labels = np.array(runs, np.int64).T
    masks = network.masks(request.inputs[images], signature.layout, labels)
    if not np.isfinite(masks).all():
        raise RuntimeFailure("the masking network returned NaN or infinity.")
    request.tick(len(runs))
    for channels, (image, label) in zip(masks, runs, strict=True):
        for target in [label] if takes_label else request.labels[image]:
            channel = channels[target if len(channels) > 1 else 0]
            maps[image][target] = resized(channel, (signature.height, signature.width))
    one_mask = not takes_label and network.signature.maps == 1
    return MethodResult(maps, len(runs), notes=(Note("one-mask"),) * one_mask)


@functools.lru_cache(maxsize=1)
def _opened(
    path: Path, _stamp: tuple[int, int], requirements: Requirements, settings: Settings, limits: Limits
) -> Masker:
    """The network of the last request, if nothing has changed: opening one takes seconds, and a run makes many."""
    return open_masker(path, requirements, settings, limits)
