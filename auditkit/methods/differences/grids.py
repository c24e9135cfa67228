"""Coarse grids of numbers, and their interpolation to pixels, in the form that `graph.soft_masks` takes.

Interpolation weights are multiples of 1/1024. Their sums and products are exact even in TensorFloat-32, so that a grid
of ones reproduces the top picture bit for bit, and a mask is the same on every device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import RuntimeFailure
from auditkit.model.masks import Mixed

WEIGHT_STEPS = 1024
SMALL_SIDE = 64  # pixels; larger images need finer masks and more passes


@dataclass(frozen=True)
class Spread:
    """Interpolation matrices from a grid to the pixels: one for each shift down and one for each shift across."""

    down: Array  # float32 [shifts, height, rows]
    across: Array  # float32 [shifts, columns, width]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a grid."""
        return self.down.shape[2], self.across.shape[1]


@dataclass(frozen=True)
class Grids:
    """Some grids, each with the indices of its two matrices in a spread."""

    values: Array  # float32 [grids, rows, columns]
    down: Array  # int [grids]
    across: Array  # int [grids]

    def __len__(self) -> int:
        return len(self.values)

    def part(self, chosen: slice) -> "Grids":
        """Some of the grids."""
        return Grids(self.values[chosen], self.down[chosen], self.across[chosen])

    def weighted_sum(self, spread: Spread, weights: Array) -> Array:
        """Weighted sums [..., height, width] of the masks of all grids, for weights [..., grids]."""
        flat = weights.reshape(-1, len(self)).astype(np.float64)
        (rows, columns), shifts = spread.shape, (len(spread.down), len(spread.across))
        down = spread.down.astype(np.float64).transpose(1, 0, 2).reshape(-1, shifts[0] * rows)
        across = spread.across.astype(np.float64).reshape(shifts[1] * columns, -1)
        sums = np.empty((len(flat), len(down), across.shape[1]))
        for target, factors in zip(sums, flat, strict=True):
            gathered = np.zeros((*shifts, rows, columns))  # grids summed by shift, so that no single mask is computed
            np.add.at(gathered, (self.down, self.across), factors[:, None, None] * self.values)
            target[...] = down @ gathered.transpose(0, 2, 1, 3).reshape(down.shape[1], -1) @ across
        return sums.reshape(*weights.shape[:-1], *sums.shape[1:])


def jittered(height: int, width: int, cells: int) -> Spread:
    """Bilinear interpolation of grids of `cells` a side, at every shift up to one cell in steps of about a pixel."""
    return Spread(_shifted(height, cells), np.ascontiguousarray(_shifted(width, cells).transpose(0, 2, 1)))


def _shifted(side: int, cells: int) -> Array:
    cell = side / cells
    shifts = np.arange(max(1, round(cell))) / max(1, round(cell))
    positions = (np.arange(side) + 0.5) / cell + shifts[:, None]
    return _linear(positions, cells + 2)


def stretched(height: int, width: int, rows: int, columns: int) -> Spread:
    """Bilinear interpolation between the centres of a grid's cells, constant beyond the outermost."""
    return Spread(_stretched(height, rows), np.ascontiguousarray(_stretched(width, columns).transpose(0, 2, 1)))


def _stretched(side: int, nodes: int) -> Array:
    positions = (np.arange(side) + 0.5) * nodes / side - 0.5
    return _linear(np.clip(positions, 0, nodes - 1)[None], nodes)


def _linear(positions: Array, nodes: int) -> Array:
    """Weights [..., nodes] of linear interpolation between the integers, at positions [...]."""
    before = np.minimum(np.floor(positions).astype(np.int64), nodes - 1)[..., None]
    share = np.round((positions[..., None] - before) * WEIGHT_STEPS) / WEIGHT_STEPS
    node = np.arange(nodes)
    return np.asarray((node == before) * (1 - share) + (node == before + 1) * share, np.float32)


def coin_flips(spread: Spread, count: int, keep: float, rng: np.random.Generator) -> Grids:
    """Grids of zeros and ones, ones with probability `keep`, at random shifts."""
    values = (rng.random((count, *spread.shape)) < keep).astype(np.float32)
    return Grids(values, rng.integers(0, len(spread.down), count), rng.integers(0, len(spread.across), count))


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
