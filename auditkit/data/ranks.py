"""Ranks of a map's pixels, made once: how many pixels come before each in descending order of score.

Scores and a tie-breaker are packed into one 64-bit key, so all keys differ and the order depends on neither the
sorting algorithm nor the machine. 0.0 and -0.0 are the same score.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from auditkit.errors import BadInput

Array = np.ndarray[Any, Any]
Ties = Literal["random", "first", "last"]
TIES: tuple[Ties, ...] = ("random", "first", "last")
Seed = int | np.random.Generator
INDEX_BITS = np.uint64(32)
INDEX_MASK = np.uint64(2**32 - 1)


def map_seed(seed: int, image: str, label: int) -> int:
    """The seed of one map's shuffle: the same whatever else is in the run, and in which order."""
    digest = hashlib.blake2b(f"{seed}\0{image}\0{label}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def ranks(maps: Array, ties: Ties = "random", seed: Seed | Sequence[Seed] = 0) -> Array:
    """int32 ranks of a map [height, width] or of each map of a stack [..., height, width].

    `seed` matters to `random` only: one for every map, or one a map. A number gives a map the same ranks alone and
    in a stack.
    """
    if ties not in TIES:
        raise BadInput(f"ties='{ties}' is none of {', '.join(TIES)}.")
    rows = np.asarray(maps).reshape(-1, *np.shape(maps)[-2:])
    seeds = [seed] * len(rows) if isinstance(seed, int | np.random.Generator) else list(seed)
    if len(seeds) != len(rows):
        raise BadInput(f"there are {len(rows)} maps and {len(seeds)} seeds; give one, or one a map.")
    found = np.empty((len(rows), rows[0].size if len(rows) else 0), np.int32)
    for row, target, own in zip(rows, found, seeds, strict=True):
        target[_order(row, ties, own)] = np.arange(target.size, dtype=np.int32)
    return found.reshape(np.shape(maps))


def tied_fraction(values: Array) -> float:
    """Share of pixels that share their score with another."""
    sizes = np.diff(tie_groups(values))
    return float(sizes[sizes > 1].sum() / sizes.sum())


def tie_groups(values: Array) -> Array:
    """Where groups of equal scores begin in descending order, and the end: group g has ranks b[g] to b[g+1] - 1."""
    ordered = np.sort(_keys(values))
    starts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return np.concatenate([[0], starts, [ordered.size]])


def _keys(values: Array) -> Array:
    """uint32 numbers that rise as the scores fall."""
    scores = np.asarray(values, np.float32).ravel() + np.float32(0)  # -0.0 + 0.0 is 0.0
    if not np.isfinite(scores).all():
        raise BadInput("a map with NaN or infinite scores has no ranks.")
    bits = scores.view(np.uint32)
    return np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF))


def _order(values: Array, ties: Ties, seed: Seed) -> Array:
    """Pixel indices, most important first."""
    keys = _keys(values)
    if ties == "random":
        places = np.random.default_rng(seed).permutation(keys.size)
    elif ties == "first":
        places = np.arange(keys.size)
    else:
        places = np.arange(keys.size)[::-1]
    packed = keys[places].astype(np.uint64) << INDEX_BITS | np.arange(keys.size, dtype=np.uint64)
    packed.sort()
    return places[(packed & INDEX_MASK).astype(np.int64)]
