"""Brings heatmaps to the model's resolution: one score for each pixel of the model's input.

A map over the model's input is resized to it. A map over the photograph is resized and cropped like the photograph.
Both are bilinear in float32 with half-pixel centres; shrinking averages over the area that a pixel covers.
"""

from typing import Literal

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.model.card import Card
from auditkit.model.pictures import crop_box, resized_size

Frame = Literal["model-input", "original-image"]  # what a map lies over: the model's input, or the photograph


def to_model_input(values: Array, frame: Frame, card: Card, picture: tuple[int, int] | None = None) -> Array:
    """The map as float32 [height, width] of the model; `picture` is the photograph's height and width."""
    if frame == "original-image" and picture is None:
        raise BadInput("a map over the original image needs that image; give the images that the maps explain.")
    shape = (values.shape[0], values.shape[1])
    check_size(shape, frame, card, picture)
    if frame == "model-input":
        return resized(values, card.size)
    height, width = resized_size(card.geometry, *shape)
    left, top, right, bottom = crop_box(card.geometry, height, width)
    return resized(values, (height, width))[top:bottom, left:right].copy()


def check_size(shape: tuple[int, int], frame: Frame, card: Card | None, picture: tuple[int, int] | None = None) -> None:
    """Refuse a map whose size does not fit its frame, as far as the card and the photograph are known."""
    if frame == "model-input":
        # The sides are in proportion to within one cell, as those of a network's last grid are after rounding.
        if card is not None and abs(shape[1] * card.size[0] - shape[0] * card.size[1]) >= max(card.size):
            raise BadInput(
                f"a map of {_by(shape)} does not fit the model's input of {_by(card.size)}: the aspect ratios "
                f"differ. Maps over the photograph need the frame original-image."
            )
    elif picture is not None and shape != picture:
        raise BadInput(
            f"a map of {_by(shape)} does not fit a photograph of {_by(picture)}: in the frame original-image both "
            f"have the same size. Maps over the model's input need the frame model-input."
        )
    elif card is not None:
        crop_box(card.geometry, *resized_size(card.geometry, *shape))


def resized(values: Array, size: tuple[int, int]) -> Array:
    """The map as float32 at another height and width."""
    single = np.ascontiguousarray(values, np.float32)
    if single.shape == size:
        return single
    height, width = size
    return np.array(Image.fromarray(single).resize((width, height), Image.Resampling.BILINEAR))


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
