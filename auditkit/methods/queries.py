"""A model asked about mixtures of pictures: rows of many images run together, answers apart."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.methods.request import Request
from auditkit.model.soft_masks import Mixed


def generator(request: Request, place: int, purpose: str) -> np.random.Generator:
    """Random numbers of one image, the same whatever else is in the request."""
    return np.random.default_rng([map_seed(request.seed, request.ids[place], -1), *purpose.encode()])


def others(request: Request, place: int) -> Array:
    """Positions in the pool of pictures that may stand in for an image: not itself, by whatever name it is there."""
    own, shown = request.shown[place], request.pool.shown
    found = np.array([at for at in request.pool.without(request.ids[place]) if not np.array_equal(shown[at], own)], int)
    if not len(found):
        raise BadInput(
            f"the pool has no picture but that of '{request.ids[place]}' itself; give more images or a --pool, "
            f"or hide pixels behind gray."
        )
    return found


def answers(
    over: Mixed, banks: Any, rows: Sequence[Array], labels: Sequence[Sequence[int]], tick: Callable[[int], None]
) -> list[Array]:
    """For each image's rows, the probabilities [rows, labels] of its labels."""
    ends = np.cumsum([len(own) for own in rows])
    found = [np.empty((len(own), len(wanted)), np.float32) for own, wanted in zip(rows, labels, strict=True)]
    for part, probabilities in over.run(np.concatenate(rows).astype(np.int32), banks):
        if not np.isfinite(probabilities).all():
            raise RuntimeFailure("the model answered a mixture of two pictures with NaN or infinity.")
        for place, (target, wanted) in enumerate(zip(found, labels, strict=True)):
            first = int(ends[place]) - len(target)
            low, high = max(part.start, first), min(part.stop, int(ends[place]))
            if low < high:
                target[low - first : high - first] = probabilities[low - part.start : high - part.start, list(wanted)]
        tick(part.stop - part.start)
    return found
