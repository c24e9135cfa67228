"""Crops of the saliency metric: what the model says of the box that a map draws, resized to its input."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.metrics.saliency_metric import Box, saliency_metric
from auditkit.model import preprocessing
from auditkit.model.card import Card
from auditkit.model.signature import Signature
from auditkit.runs.evaluation.batch import Seen, Use

LEAST_PROB = 1e-12  # a label that a crop rules out would have an infinite metric, which no mean survives
AT_ONCE = 64


@dataclass(frozen=True)
class Crop:
    """One box and its metric."""

    box: Box
    value: float


def crops(
    seen: Seen, uses: tuple[Use, ...], card: Card, signature: Signature, probabilities: Callable[[Array, Array], Array]
) -> dict[int, tuple[Crop, ...]]:
    """The metric of each use's boxes, by position of the use; equal boxes of an image are asked about once.

    `probabilities` are asked of rows as the network takes them and of the images they are about.
    """
    wanted = dict.fromkeys((use.image, found.corners) for use in uses for found in use.boxes)
    told: dict[tuple[int, tuple[int, int, int, int]], Array] = {}
    listed = list(wanted)
    for start in range(0, len(listed), AT_ONCE):
        part = listed[start : start + AT_ONCE]
        cut = np.stack([_cut(seen.pixels[image], corners) for image, corners in part])
        shown = preprocessing.normalised(card, cut, signature.layout, signature.dtype)
        about = np.array([image for image, _ in part])
        told |= dict(zip(part, probabilities(shown, about), strict=True))
    return {place: _of(use, [told[use.image, found.corners][use.label] for found in use.boxes])
            for place, use in enumerate(uses) if use.boxes}  # fmt: skip


def _of(use: Use, prob: list[float]) -> tuple[Crop, ...]:
    areas = [found.area_fraction for found in use.boxes]
    values = saliency_metric(areas, prob, prob_floor=LEAST_PROB)
    return tuple(Crop(found, float(value)) for found, value in zip(use.boxes, values, strict=True))


def _cut(pixels: Array, corners: tuple[int, int, int, int]) -> Array:
    """Part of a picture [height, width, channels] stretched to the whole, bilinear."""
    height, width, channels = pixels.shape
    picture = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    # Cut first: with resize(box=) the pixels around the box would bleed into its border.
    stretched = picture.crop(corners).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(stretched).reshape(pixels.shape)
