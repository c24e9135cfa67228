"""Coarse maps become maps of all pixels, in numpy as in the graphs that learn them."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from auditkit.arrays import Array

_LONGEST = 8192  # pixels of a side; strangers write bundles, and more would fill the memory


@dataclass(frozen=True)
class Upsampling:
    """How maps that are stored at their own resolution become those of all pixels."""

    kind: Literal["bilinear"]
    factor: int  # pixels of a side for each cell
    size: tuple[int, int]  # height and width of the result

    def __post_init__(self) -> None:
        if not 0 < self.factor <= min(self.size) <= max(self.size) <= _LONGEST:
            raise ValueError(f"has a factor of {self.factor} for {self.size[0]} by {self.size[1]} pixels.")

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of a coarse map."""
        return -(-self.size[0] // self.factor), -(-self.size[1] // self.factor)

    def apply(self, small: Array) -> Array:
        """The maps float32 [M, height, width] of coarse ones [M, h, w] with values from 0 to 1."""
        rows, columns = (_bilinear(size, self.factor) for size in self.size)
        return np.asarray(np.clip(rows @ small @ columns.T, 0, 1), np.float32)


@lru_cache(8)
def _bilinear(new_size: int, factor: int) -> Array:
    """The upsampling matrix [new size, size]: each pixel lies between the centres of two coarse ones."""
    size = -(-new_size // factor)
    centres = np.clip((np.arange(new_size) + 0.5) / factor - 0.5, 0, size - 1)
    return np.asarray(np.maximum(1 - np.abs(centres[:, None] - np.arange(size)), 0))
