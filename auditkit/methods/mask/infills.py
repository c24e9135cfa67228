"""What stands in for the pixels that a learned mask hides: other images, gray, or the image itself out of focus."""

import hashlib
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.methods.request import Request
from auditkit.model.preprocessing import blurred


@dataclass(frozen=True)
class Bank:
    """Pictures as the network takes them, in float32: the images first, then what stands in for their pixels."""

    pictures: Array
    infills: tuple[Array, ...]  # for each image, the places of its infills


def bank(request: Request, infill: str) -> Bank:
    """The pictures for one request."""
    count = len(request.ids)
    if infill == "gray":
        new, places = request.gray, [np.array([count])] * count
    elif infill == "blur":
        new, places = (
            blurred(request.shown, request.model.signature),
            [np.array([count + place]) for place in range(count)],
        )
    else:
        new, places = request.pool.shown, _others(request)
    return Bank(np.concatenate([request.shown, new]).astype(np.float32), tuple(places))


def over_blur(request: Request, sigma: float) -> Bank:
    """Each image over itself out of focus; sigma is in pixels up to 224 on the shorter side, then in proportion."""
    from scipy import ndimage  # noqa: PLC0415 - slow to import

    signature, count = request.model.signature, len(request.ids)
    width = sigma * max(min(signature.height, signature.width) / 224, 1)
    axes = (2, 3) if signature.layout == "NCHW" else (1, 2)
    soft = ndimage.gaussian_filter(request.shown.astype(np.float64), width, axes=axes)
    places = tuple(np.array([count + place]) for place in range(count))
    return Bank(np.concatenate([request.shown, soft]).astype(np.float32), places)


def _others(request: Request) -> list[Array]:
    """For each image the pictures of the pool that are not that image, by whatever name it is there."""
    first = len(request.ids)
    contents = np.array([_digest(picture) for picture in request.pool.shown])
    found = []
    for image, shown in zip(request.ids, request.shown, strict=True):
        named_otherwise = request.pool.without(image)
        others = named_otherwise[contents[named_otherwise] != _digest(shown)] if len(contents) else named_otherwise
        if not len(others):
            raise BadInput(
                f"the pool has no picture but that of '{image}' itself; give more images, or infill gray or blur."
            )
        found.append(first + others)
    return found


def _digest(picture: Array) -> str:
    return hashlib.blake2b(np.ascontiguousarray(picture).tobytes(), digest_size=16).hexdigest()
