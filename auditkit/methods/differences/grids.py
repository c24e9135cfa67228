"""Coarse grids of numbers and how they are spread over pixels, in the form that graph.mixing takes.

Weights are multiples of 1/1024. Sums and products of them are exact even in TensorFloat-32, so that a grid of ones
shows the top picture bit for bit, and a mask is the same on every device.
"""

from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array

WEIGHT_STEPS = 1024


@dataclass(frozen=True)
class Spread:
    """The ways in which a grid may lie over the pixels: one matrix for each shift down and for each across."""

    down: Array  # float32 [shifts, height, rows]
    across: Array  # float32 [shifts, columns, width]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a grid."""
        return self.down.shape[2], self.across.shape[1]


@dataclass(frozen=True)
class Grids:
    """Some grids, each with the place of its two matrices in a spread."""

    values: Array  # float32 [grids, rows, columns]
    down: Array  # int [grids]
    across: Array  # int [grids]

    def __len__(self) -> int:
        return len(self.values)

    def part(self, chosen: slice) -> "Grids":
        """Some of them."""
        return Grids(self.values[chosen], self.down[chosen], self.across[chosen])


def jittered(height: int, width: int, cells: int) -> Spread:
    """Bilinear grids of that many cells a side, at every shift up to one cell by about a pixel."""
    return Spread(_shifted(height, cells), np.ascontiguousarray(_shifted(width, cells).transpose(0, 2, 1)))


def _shifted(side: int, cells: int) -> Array:
    cell = side / cells
    shifts = np.arange(max(1, round(cell))) / max(1, round(cell))
    at = (np.arange(side) + 0.5) / cell + shifts[:, None]
    return _linear(at, cells + 2)


def stretched(height: int, width: int, rows: int, columns: int) -> Spread:
    """A grid of numbers in the middles of its cells, bilinear between them and constant beyond."""
    return Spread(_stretched(height, rows), np.ascontiguousarray(_stretched(width, columns).transpose(0, 2, 1)))


def _stretched(side: int, nodes: int) -> Array:
    at = (np.arange(side) + 0.5) * nodes / side - 0.5
    return _linear(np.clip(at, 0, nodes - 1)[None], nodes)


def _linear(at: Array, nodes: int) -> Array:
    """Weights [..., nodes] of linear interpolation between whole numbers, at positions [...]."""
    before = np.minimum(np.floor(at).astype(np.int64), nodes - 1)
    share = np.round((at - before) * WEIGHT_STEPS) / WEIGHT_STEPS
    number = np.arange(nodes)
    found = (number == before[..., None]) * (1 - share[..., None]) + (number == before[..., None] + 1) * share[
        ..., None
    ]
    return np.asarray(found, np.float32)


def coin_flips(spread: Spread, count: int, keep: float, rng: np.random.Generator) -> Grids:
    """Grids of zeros and of ones with that chance, at random shifts."""
    values = (rng.random((count, *spread.shape)) < keep).astype(np.float32)
    return Grids(values, rng.integers(0, len(spread.down), count), rng.integers(0, len(spread.across), count))


def weighted_sum(grids: Grids, spread: Spread, weights: Array) -> Array:
    """Sum over all grids of a weight times the mask, [..., height, width] for weights [..., grids].

    Grids at one shift are summed before they are spread, so that no mask is ever built.
    """
    flat = weights.reshape(-1, len(grids)).astype(np.float64)
    (rows, columns), shifts = spread.shape, (len(spread.down), len(spread.across))
    down = spread.down.astype(np.float64).transpose(1, 0, 2).reshape(-1, shifts[0] * rows)
    across = spread.across.astype(np.float64).reshape(shifts[1] * columns, -1)
    found = np.empty((len(flat), len(down), across.shape[1]))
    for target, own in zip(found, flat, strict=True):
        gathered = np.zeros((*shifts, rows, columns))
        np.add.at(gathered, (grids.down, grids.across), own[:, None, None] * grids.values)
        target[...] = down @ gathered.transpose(0, 2, 1, 3).reshape(down.shape[1], -1) @ across
    return found.reshape(*weights.shape[:-1], *found.shape[1:])
