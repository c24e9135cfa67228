"""Probabilities of mixtures of two pictures, for the rows of many images in shared batches."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import RuntimeFailure
from auditkit.methods.request import Request
from auditkit.model.masks import Mixed

SMALL_SIDE = 64  # pixels; larger images need finer masks and more passes


def generator(request: Request, position: int, purpose: str) -> np.random.Generator:
    """A random generator for one image, independent of the other images of the request."""
    return np.random.default_rng([map_seed(request.seed, request.ids[position], -1), *purpose.encode()])


def default_passes(height: int, width: int) -> int:
    """Passes per image, for all its labels: 1,024 up to 64 pixels a side, 4,000 above."""
    return 1024 if max(height, width) <= SMALL_SIDE else 4000


def answers(
    over: Mixed, banks: Any, rows: Sequence[Array], labels: Sequence[Sequence[int]], tick: Callable[[int], None]
) -> list[Array]:
    """For each image's rows [N, 5], the probabilities [N, labels] of its labels."""
    ends = np.cumsum([len(image_rows) for image_rows in rows])
    results = [np.empty((len(r), len(targets)), np.float32) for r, targets in zip(rows, labels, strict=True)]
    for part, probabilities in over.run(np.concatenate(rows).astype(np.int32), banks):
        if not np.isfinite(probabilities).all():
            raise RuntimeFailure("the model returned NaN or infinity for a mixture of two pictures.")
        for end, result, targets in zip(ends.tolist(), results, labels, strict=True):
            first = end - len(result)
            low, high = max(part.start, first), min(part.stop, end)
            if low < high:
                result[low - first : high - first] = probabilities[low - part.start : high - part.start, list(targets)]
        tick(part.stop - part.start)
    return results
