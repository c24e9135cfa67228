"""How similar maps are, by their outlines: their most important tenth of the pixels, and the pixels above their mean.

Noise changes the order of all pixels. It hardly changes the most important tenth, unless the map has a plateau there,
as learned masks have, and then it hardly changes which pixels are above the mean. So a map that is submitted again with
a little noise is recognised; noise of a tenth of its range on every pixel hides it. The maps of one image are compared
at every pixel, those of many images by fingerprints: a sample of the outline's pixels, drawn with the evaluation's
seed, which the author of the maps does not know before an audit.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.reliability import spearman

SAMPLE = 1024  # pixels in a fingerprint; smaller maps repeat some
BYTES = 2 * SAMPLE // 8  # in a fingerprint
_TOP_PART = 10  # the most important tenth
ALIKE = 0.85  # similarity of two maps that count as one: all labels of an honest method reach 0.73 on 1 image in 20
_VERY_ALIKE = 0.9  # at which more than half of the labels are enough: honest methods stay below 0.86
_REPEATED_SHARE = 0.4  # of the other pictures have a similar map; 0.25 for a model that reads a tag in a corner
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.int64)  # in each byte
_BLOCK = 250  # maps of a group compared with each other, so that the work is linear in the number of maps


def rank_correlation(first: Array, second: Array) -> float:
    """Rank correlation of two maps over the pixels; 1 if both are constant, 0 if one is or their shapes differ."""
    if first.shape != second.shape:
        return 0.0
    flat = [bool(values.min() == values.max()) for values in (first, second)]
    if any(flat):
        return float(all(flat))
    return float(spearman(np.stack([first.ravel(), second.ravel()], axis=1))[0, 1])


def outline(values: Array, ranks: Array) -> Array:
    """Packed bits uint8 [2, bytes] of a map and its ranks [H, W]: in the most important tenth, and above the mean."""
    top = ranks.ravel() < -(-values.size // _TOP_PART)
    return np.packbits([top, values.ravel() > values.mean(dtype=np.float64)], axis=1)


def fingerprint(packed: Array, pixels: int, seed: int = 0) -> bytes:
    """The bits of a sample of the pixels of an outline: in the most important tenth, then above the mean."""
    sample = _sampled_pixels(pixels, seed)
    return np.packbits((packed[:, sample >> 3] << (sample & 7).astype(np.uint8)) >> 7, axis=1).tobytes()


@cache
def _sampled_pixels(pixels: int, seed: int) -> Array:
    if pixels <= SAMPLE:
        return np.arange(SAMPLE) * pixels // SAMPLE
    return np.sort(np.random.default_rng([seed, pixels]).choice(pixels, SAMPLE, replace=False))


def similarity(first: Array, second: Array) -> Array:
    """Similarities [N, M] of fingerprints uint8 [N, BYTES] and [M, BYTES]: 1 for the same map, near 0 for others."""
    return _similarity(*_halves(first), *_halves(second))


def _similarity(top: Array, above: Array, other_top: Array, other_above: Array) -> Array:
    """The greater of the tenths' overlap, 2 |a and b| / (|a| + |b|), and the correlation of pixels above the mean."""
    overlap = 2 * (top @ other_top.T) / np.maximum(np.add.outer(top.sum(axis=1), other_top.sum(axis=1)), 1)
    return np.asarray(np.maximum(overlap, above @ other_above.T))


def _halves(fingerprints: Array) -> tuple[Array, Array]:
    """The bits [N, SAMPLE] of the most important tenths, and those above the mean as rows of mean 0 and length 1."""
    bits = np.unpackbits(fingerprints, axis=1).astype(np.float32)
    top, above = bits[:, :SAMPLE], bits[:, SAMPLE:]
    centred = above - above.mean(axis=1, keepdims=True)
    return top, centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-6)


def is_same_map(first: Array, outlines: Sequence[Array], pixels: int) -> bool:
    """Whether all outlines are similar to the first, or more than half of them are very similar."""
    similarities = np.array([_exact_similarity(first, other, pixels) for other in outlines])
    return bool((similarities >= ALIKE).all() or (similarities >= _VERY_ALIKE).mean() > 0.5)


def _exact_similarity(first: Array, second: Array, pixels: int) -> float:
    """Similarity of two outlines, over all pixels."""
    (top, above), (other_top, other_above) = (_ONES[packed].sum(axis=1) for packed in (first, second))
    both_top, both_above = _ONES[first & second].sum(axis=1)
    overlap = 2 * both_top / max(top + other_top, 1)
    spread = float(above * (pixels - above)) * float(other_above * (pixels - other_above))
    shared = float(pixels * both_above - above * other_above)
    return max(float(overlap), shared / spread**0.5 if spread else 0.0)


def first_similar(fingerprints: Array, least: float) -> Array:
    """For each of the fingerprints [N, BYTES], the index [N] of the first of similarity `least` or more.

    Similar ones differ in few bits. If these are cut into more blocks than that, two similar ones share a block, so
    that only those that do are compared, and the work hardly grows faster than their number.
    """
    _, first, inverse = np.unique(fingerprints, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    distinct, similar = first[order], np.arange(len(first))
    for group in _candidates(fingerprints[distinct], least):
        for start in range(0, len(group), _BLOCK):
            part = group[start : start + _BLOCK]
            alike = similarity(fingerprints[distinct[part]], fingerprints[distinct[group]]) >= least
            similar[part] = np.minimum(similar[part], group[alike.argmax(axis=1)])
    return np.asarray(distinct[similar][np.argsort(order)[inverse.ravel()]])


def _candidates(fingerprints: Array, least: float) -> Iterator[Array]:
    """Indices, ascending, of fingerprints that share a block of bits: all that may be similar share one."""
    shuffle = np.random.default_rng(0).permutation(SAMPLE)  # neighbouring pixels are alike on most maps
    tops, above = np.split(fingerprints, 2, axis=1)
    for half, most in ((tops, _most_tops_apart), (above, _most_above_apart)):
        counts = np.unique(_ONES.astype(np.uint8)[half].sum(axis=1, dtype=np.int64))
        differing = most(counts, least - 1e-3)  # a margin for rounding
        for block in np.array_split(shuffle, min(differing + 1, SAMPLE)):
            bits = half[:, block >> 3] >> (7 - (block & 7)).astype(np.uint8) & 1
            numbers = np.unique(np.packbits(bits, axis=1), axis=0, return_inverse=True)[1].ravel()
            order = np.argsort(numbers, kind="stable")
            groups = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
            yield from (group for group in groups if len(group) > 1)


def _most_tops_apart(counts: Array, least: float) -> int:
    """Bits that differ at most in two tenths that overlap by `least`, if they have one of these counts of bits."""
    return int(2 * (1 - least) * counts.max(initial=0))


def _most_above_apart(counts: Array, least: float) -> int:
    """Bits that differ at most where the pixels above the mean correlate by `least`."""
    first, second = counts[:, None], counts[None]
    spread = np.sqrt((first * (SAMPLE - first)).astype(np.float64) * (second * (SAMPLE - second)))
    apart = (SAMPLE * (first + second) - 2 * first * second - 2 * least * spread) / SAMPLE
    return int(apart[apart >= np.abs(first - second)].max(initial=0))


def is_repeated(fingerprints: Array, digests: Array, groups: Array, pictures: Array) -> Array:
    """Whether each map [N] is also the map of many other pictures of its group: similar, or with the same digest."""
    repeated = np.zeros(len(fingerprints), np.bool_)
    for block in _blocks(groups):
        digest, picture = digests[block], pictures[block]
        same = (similarity(fingerprints[block], fingerprints[block]) >= ALIKE) | (digest[:, None] == digest)
        other = picture[:, None] != picture
        count = other.sum(axis=1)
        repeated[block] = (count > 0) & ((same & other).sum(axis=1) >= _REPEATED_SHARE * count)
    return repeated


def _blocks(groups: Array) -> Iterator[Array]:
    """Indices of the maps of each group, at most _BLOCK at a time."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    for group in np.split(order, starts):
        yield from np.split(group, range(_BLOCK, len(group), _BLOCK))
