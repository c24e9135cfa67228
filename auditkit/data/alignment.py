"""Heatmaps come to the model's resolution: one score for each pixel that the network saw.

A map over the model's input is stretched to it; a map over the photograph gets the resize and the crop that the
photograph gets. Both bilinear in float32 with half-pixel centres (shrinking averages over what a pixel covers).
"""

from typing import Any

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.model.card import Card
from auditkit.model.preprocessing import crop_box, resized_size

FRAMES = ("model-input", "original-image")


def checked_frame(frame: Any) -> str:
    """The frame, if it is one."""
    if frame not in FRAMES:
        raise BadInput(
            f"frame {frame!r} is none of {', '.join(FRAMES)}: say whether maps lie over what the network saw or over "
            f"the photograph."
        )
    return str(frame)


def to_model_input(values: Array, frame: str, card: Card, picture: tuple[int, int] | None = None) -> Array:
    """float32 [height, width] of the model; `picture` is the photograph's height and width (original-image only)."""
    if checked_frame(frame) == "original-image" and picture is None:
        raise BadInput("a map over the original image needs that image; give the images that the maps explain.")
    shape = (values.shape[0], values.shape[1])
    check_size(shape, frame, card, picture)
    if frame == "model-input":
        return resized(values, card.size)
    height, width = resized_size(card, *shape)
    left, top, right, bottom = crop_box(card, height, width)
    return resized(values, (height, width))[top:bottom, left:right].copy()


def check_size(
    shape: tuple[int, int], frame: str, card: Card | None = None, picture: tuple[int, int] | None = None
) -> None:
    """Refuses a map whose size cannot lie over what the frame says, as far as card and photograph are known."""
    if frame == "model-input":
        if card is not None and not _same_aspect(shape, card.size):
            raise BadInput(
                f"a map of {_by(shape)} cannot lie over the model's input of {_by(card.size)}: the sides are not in "
                f"proportion. Maps over the photograph need the frame original-image."
            )
        return
    if picture is not None and shape != picture:
        raise BadInput(
            f"a map of {_by(shape)} cannot lie over a photograph of {_by(picture)}: in the frame original-image both "
            f"have the same size. Maps over what the network saw have the frame model-input."
        )
    if card is not None:
        crop_box(card, *resized_size(card, *shape))


def change(shape: tuple[int, int], frame: str, card: Card) -> str:
    """What is done to a map of that size, for the record; empty when nothing is."""
    if frame == "model-input":
        return "" if shape == card.size else f"bilinear {_by(shape)} to {_by(card.size)}"
    between = resized_size(card, *shape)
    steps = [f"bilinear {_by(shape)} to {_by(between)}"] if between != shape else []
    return ", ".join(steps + ([f"centre crop to {_by(card.size)}"] if between != card.size else []))


def resized(values: Array, size: tuple[int, int]) -> Array:
    """The map at another height and width."""
    single = np.ascontiguousarray(values, np.float32)
    if single.shape == size:
        return single
    height, width = size
    return np.array(Image.fromarray(single).resize((width, height), Image.Resampling.BILINEAR))


def _same_aspect(shape: tuple[int, int], size: tuple[int, int]) -> bool:
    """In proportion to less than one cell: a network's last grid is its input over a stride, rounded."""
    (height, width), (full_height, full_width) = shape, size
    off = abs(width * full_height - height * full_width)
    return off < max(full_height, full_width)


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
