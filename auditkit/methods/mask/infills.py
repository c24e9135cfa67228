"""Infills for the pixels that a learned mask hides: other images, gray, or the image itself blurred."""

from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.methods.request import Request
from auditkit.model.preprocessing import blurred, gaussian_blur


@dataclass(frozen=True)
class Bank:
    """Pictures as the network takes them: the images first, then their infills."""

    pictures: Array
    infills: list[Array]  # for each image, the positions of its infills


def bank(request: Request, infill: str) -> Bank:
    """The images of a request, with the pictures of an infill: distractors, gray or blur."""
    count = len(request.ids)
    if infill == "gray":
        return Bank(np.concatenate([request.inputs, request.gray]), [np.array([count])] * count)
    if infill == "blur":
        return _over_own(request.inputs, blurred(request.inputs, request.model.signature))
    positions = [count + request.infills(position) for position in range(count)]
    return Bank(np.concatenate([request.inputs, request.pool.inputs]), positions)


def over_blur(request: Request, sigma: float) -> Bank:
    """Each image over its own blur, in float32; sigma is in pixels up to 224 a side, above that in proportion."""
    signature = request.model.signature
    scale = max(min(signature.height, signature.width) / 224, 1)
    infills = gaussian_blur(request.inputs, signature, sigma * scale)
    return _over_own(request.inputs.astype(np.float32), infills.astype(np.float32))


def _over_own(images: Array, infills: Array) -> Bank:
    """Each image over the infill at its own position."""
    count = len(images)
    return Bank(np.concatenate([images, infills]), [np.array([count + position]) for position in range(count)])
