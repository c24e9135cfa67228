"""Infills for the pixels that a learned mask hides: other images, gray, or the image itself blurred."""

from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.methods.request import Request
from auditkit.model.preprocessing import blurred, gaussian_blur


@dataclass(frozen=True)
class Bank:
    """Pictures as the network takes them, in float32: the images first, then their infills."""

    pictures: Array
    infills: tuple[Array, ...]  # for each image, the positions of its infills


def bank(request: Request, infill: str) -> Bank:
    """The images of a request, with the pictures of an infill: distractors, gray or blur."""
    count = len(request.ids)
    if infill == "gray":
        return _bank(request, request.gray, [np.array([count])] * count)
    if infill == "blur":
        return _over_own(request, blurred(request.inputs, request.model.signature))
    return _bank(request, request.pool.inputs, [count + request.infills(position) for position in range(count)])


def over_blur(request: Request, sigma: float) -> Bank:
    """Each image over its own blur; sigma is in pixels up to 224 on the shorter side, then in proportion."""
    signature = request.model.signature
    scale = max(min(signature.height, signature.width) / 224, 1)
    return _over_own(request, gaussian_blur(request.inputs, signature, sigma * scale))


def _over_own(request: Request, infills: Array) -> Bank:
    """Each image over the infill at its own position."""
    count = len(request.ids)
    return _bank(request, infills, [np.array([count + position]) for position in range(count)])


def _bank(request: Request, infills: Array, positions: list[Array]) -> Bank:
    return Bank(np.concatenate([request.inputs, infills]).astype(np.float32), tuple(positions))
