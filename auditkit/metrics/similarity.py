"""How alike maps are, by their outlines: which pixels a map puts first, and which lie above its mean.

Noise changes the whole order of a map's pixels. It hardly changes the most important tenth, unless the map has a
plateau there, as learned masks have, and then it hardly changes what lies above the mean. So a map that is handed in
again with a little noise on it is recognised; a tenth of its range on every pixel hides it. The maps of one image are
compared at every pixel. Those of many images are compared by fingerprints, a sample of the outline drawn with the
evaluation's seed, which whoever made the maps need not know.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from auditkit.arrays import Array

SAMPLE = 1024  # pixels that are looked at; where there are fewer, all of them, some more than once
BYTES = 2 * SAMPLE // 8
TENTH = 10
ALIKE = 0.85  # likeness from which two maps count as one: all labels of an honest method reach 0.73 on one image in 20
VERY = 0.9  # from which more than half of the labels are enough: honest methods stay below 0.86
OFTEN = 0.4  # share of the other pictures whose map is alike; a model that reads a tag in a corner has a fourth
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.int64)  # in each byte
BLOCK = 250  # maps of a group that are compared with each other: the work grows with the maps, not with their square


def outline(values: Array, ranks: Array) -> Array:
    """Two bits for each pixel, packed [2, bytes]: those of the most important tenth, and those above the mean."""
    top = ranks.ravel() < -(-values.size // TENTH)
    return np.packbits([top, values.ravel() > values.mean(dtype=np.float64)], axis=1)


def fingerprint(held: Array, pixels: int, seed: int = 0) -> bytes:
    """The bits of a sample of an outline's pixels: those of the most important tenth, then those above the mean."""
    at = _sampled(pixels, seed)
    bits = np.packbits((held[:, at >> 3] << (at & 7).astype(np.uint8)) >> 7, axis=1)
    return bits.tobytes()


@cache
def _sampled(pixels: int, seed: int) -> Array:
    if pixels <= SAMPLE:
        return np.arange(SAMPLE) * pixels // SAMPLE
    return np.sort(np.random.default_rng([seed, pixels]).choice(pixels, SAMPLE, replace=False))


def likeness(first: Array, second: Array) -> Array:
    """[N, M] of fingerprints [N, BYTES] and [M, BYTES] in uint8: 1 for the same map, about 0 for unrelated ones.

    The larger of the overlap of the most important tenths, 2 |a and b| / (|a| + |b|), and the correlation of what lies
    above the mean.
    """
    return _likeness(*_halves(first), *_halves(second))


def _likeness(top: Array, above: Array, other_top: Array, other_above: Array) -> Array:
    overlap = 2 * (top @ other_top.T) / np.maximum(np.add.outer(top.sum(axis=1), other_top.sum(axis=1)), 1)
    return np.asarray(np.maximum(overlap, above @ other_above.T))


def _halves(tops: Array) -> tuple[Array, Array]:
    """The most important tenths, and what lies above the mean as rows whose products are correlations."""
    bits = np.unpackbits(tops, axis=1).astype(np.float32)
    return bits[:, :SAMPLE], _centred(bits[:, SAMPLE:])


def _centred(bits: Array) -> Array:
    """Rows of mean 0 and length 1."""
    rows = bits - bits.mean(axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6))


def one_map(first: Array, others: Sequence[Array], pixels: int) -> bool:
    """Whether all outlines are of the same map as the first, or most of them very much so."""
    found = np.array([_at_all_pixels(first, other, pixels) for other in others])
    return bool((found >= ALIKE).all() or (found >= VERY).mean() > 0.5)


def _at_all_pixels(first: Array, second: Array, pixels: int) -> float:
    """Likeness of two outlines, by counting."""
    (top, above), (other_top, other_above) = (_ONES[held].sum(axis=1) for held in (first, second))
    both_top, both_above = _ONES[first & second].sum(axis=1)
    overlap = 2 * both_top / max(top + other_top, 1)
    spread = float(above * (pixels - above)) * float(other_above * (pixels - other_above))
    shared = float(pixels * both_above - above * other_above)
    return max(float(overlap), shared / spread**0.5 if spread else 0.0)


def first_alike(tops: Array, least: float) -> Array:
    """For each fingerprint, the place of the first that is so much like it; its own where none is before it."""
    top, above = _halves(tops)
    found = [np.zeros(0, np.int64)]
    for start in range(0, len(tops), BLOCK):
        block = slice(start, start + BLOCK)
        found.append((_likeness(top[block], above[block], top, above) >= least).argmax(axis=1))
    return np.concatenate(found)


def repeated(tops: Array, digests: Array, groups: Array, pictures: Array) -> Array:
    """Whether each map is also that of many other pictures: alike, or the same order to the last pixel.

    Maps are compared with those of their group, a block at a time.
    """
    found = np.zeros(len(tops), np.bool_)
    for block in _blocks(groups):
        digest, picture = digests[block], pictures[block]
        same = (likeness(tops[block], tops[block]) >= ALIKE) | (digest[:, None] == digest)
        other = picture[:, None] != picture
        count = other.sum(axis=1)
        found[block] = (count > 0) & ((same & other).sum(axis=1) >= OFTEN * count)
    return found


def _blocks(groups: Array) -> Iterator[Array]:
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    for group in np.split(order, starts):
        yield from np.split(group, range(BLOCK, len(group), BLOCK))
