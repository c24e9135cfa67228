"""Ranks of a map's pixels: how many pixels come before each in descending order of score.

Scores and a tie-breaker are packed into one 64-bit key, so all keys differ and the order depends on neither the
sorting algorithm nor the machine. 0.0 and -0.0 are the same score.
"""

import functools
import hashlib
from typing import Literal

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput

Ties = Literal["random", "first", "last"]
TIES: tuple[Ties, ...] = ("random", "first", "last")
_INDEX_BITS = np.uint64(32)
_INDEX_MASK = np.uint64(2**32 - 1)


def map_seed(seed: int, image: str, label: int) -> int:
    """The seed of what is drawn for one map; `image` is a digest, or the name where a method draws."""
    digest = hashlib.blake2b(f"{seed}\0{image}\0{label}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def ranks(values: Array, ties: Ties = "random", seed: int = 0) -> Array:
    """int32 ranks of a map [height, width]; `seed` matters to `random` only."""
    if ties not in TIES:
        raise BadInput(f"ties='{ties}' is none of {', '.join(TIES)}.")
    return Order(values).ranks(ties, seed)


class Order:
    """The pixels of one map [height, width] in descending order of score, sorted once for every tie rule."""

    def __init__(self, values: Array) -> None:
        scores = np.asarray(values, np.float32).ravel() + np.float32(0)  # -0.0 + 0.0 is 0.0
        if not np.isfinite(scores).all():
            raise BadInput("a map with NaN or infinite scores has no ranks.")
        bits = scores.view(np.uint32)
        keys = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF))  # they rise as the scores fall
        packed = keys.astype(np.uint64) << _INDEX_BITS | np.arange(keys.size, dtype=np.uint64)
        packed.sort()
        self.shape = np.shape(values)
        self.pixels = (packed & _INDEX_MASK).astype(np.int64)  # equal scores by lower index
        keys = packed >> _INDEX_BITS
        starts = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        # Group g of equal scores has ranks groups[g] to groups[g + 1] - 1.
        self.groups = np.concatenate([[0], starts, [keys.size]])

    @functools.cached_property
    def tied(self) -> float:
        """Share of pixels that share their score with another."""
        sizes = np.diff(self.groups)
        return float(sizes[sizes > 1].sum() / self.pixels.size)

    def digest(self) -> str:
        """A digest of the order with its ties; maps that differ only in scale share it."""
        digest = hashlib.blake2b(self.pixels.astype(np.int32).data, digest_size=16)
        sizes = np.diff(self.groups)
        digest.update(np.stack([self.groups[:-1], sizes])[:, sizes > 1].tobytes())
        return digest.hexdigest()

    def ranks(self, ties: Ties, seed: int = 0) -> Array:
        """int32 ranks [height, width] under a tie rule."""
        ranks = np.empty(self.pixels.size, np.int32)
        ranks[self._ordered(ties, seed)] = np.arange(ranks.size, dtype=np.int32)
        return ranks.reshape(self.shape)

    def _ordered(self, ties: Ties, seed: int) -> Array:
        if ties == "first" or not self.tied:
            return self.pixels
        sizes = np.diff(self.groups)
        tied = np.flatnonzero(np.repeat(sizes > 1, sizes))
        group = np.repeat(np.arange(sizes.size, dtype=np.uint64), sizes)[tied]
        count = tied.size
        shuffle = np.random.default_rng(seed).permutation(count) if ties == "random" else np.arange(count)[::-1]
        packed = group[shuffle] << _INDEX_BITS | np.arange(count, dtype=np.uint64)
        packed.sort()
        ordered = self.pixels.copy()
        ordered[tied] = self.pixels[tied][shuffle[(packed & _INDEX_MASK).astype(np.int64)]]
        return ordered
