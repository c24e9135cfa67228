"""The saliency metric of a unit: the box that a map draws is cropped, resized to the model's input, and classified."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.metrics.saliency_metric import Box, saliency_metric
from auditkit.model import preprocessing
from auditkit.runs.evaluation.images import UnitImages, probabilities, renormalised
from auditkit.runs.evaluation.maps import MapUse
from auditkit.runs.evaluation.plan import EvaluationPlan

LEAST_PROB = 1e-12  # a label that a crop rules out would have an infinite metric, which no mean survives
CHUNK = 64  # crops classified at once
# How crops are resized: as Phang et al. do for the largest component, and the usual way for tuned thresholds.
COMPONENT, TUNED = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR

_Cut = tuple[int, tuple[int, int, int, int], Image.Resampling]  # the image, the box in it, how its crop is resized


@dataclass(frozen=True)
class Crop:
    """A box and its metric."""

    box: Box
    value: float


def measure_crops(
    plan: EvaluationPlan, images: UnitImages, uses: Sequence[MapUse], label_set: Array | None
) -> dict[int, tuple[Crop, ...]]:
    """The metric of each use's boxes, by position of the use; equal crops of an image are classified once."""
    saliency, card, signature = plan.settings.saliency, plan.model.card, plan.model.signature
    cuts = {position: _cuts(use, saliency) for position, use in enumerate(uses) if use.boxes}
    distinct = list(dict.fromkeys(chain.from_iterable(cuts.values())))
    prob: dict[_Cut, Array] = {}
    for start in range(0, len(distinct), CHUNK):
        chunk = distinct[start : start + CHUNK]
        pixels = np.stack([_crop(images.pixels[image], corners, resizing) for image, corners, resizing in chunk])
        inputs = preprocessing.normalised(card, pixels, signature.layout, signature.dtype)
        crop_labels = None if label_set is None else label_set[[image for image, *_ in chunk]]
        prob |= dict(zip(chunk, renormalised(probabilities(plan.model, inputs), crop_labels), strict=True))
    crops: dict[int, tuple[Crop, ...]] = {}
    for position, use_cuts in cuts.items():
        boxes, label_prob = uses[position].boxes, [prob[cut][uses[position].label] for cut in use_cuts]
        values = saliency_metric([box.area_fraction for box in boxes], label_prob, prob_floor=LEAST_PROB)
        crops[position] = tuple(map(Crop, boxes, values.tolist()))
    return crops


def _cuts(use: MapUse, saliency: str) -> list[_Cut]:
    """The crop of each box of a use; the largest component's box comes first, where the setting asks for it."""
    first = COMPONENT if saliency in ("component", "both") else TUNED
    resizings = [first, *[TUNED] * len(use.boxes)]
    return [(use.image, box.corners, resizing) for box, resizing in zip(use.boxes, resizings, strict=False)]


def _crop(pixels: Array, corners: tuple[int, int, int, int], resizing: Image.Resampling) -> Array:
    """Part of a picture [height, width, channels], stretched to its whole size."""
    height, width, channels = pixels.shape
    picture = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    # Crop first: with resize(box=) the pixels around the box would bleed into its border.
    stretched = picture.crop(corners).resize((width, height), resizing)
    return np.asarray(stretched).reshape(pixels.shape)
