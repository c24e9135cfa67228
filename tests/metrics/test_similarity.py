"""Maps that were handed in twice are told from maps that are merely similar, and noise does not hide them."""

import time
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from auditkit.data.ranks import ranks
from auditkit.metrics.similarity import (
    ALIKE,
    BYTES,
    SAMPLE,
    _exact_similarity,
    _sampled_pixels,
    fingerprint,
    first_similar,
    is_repeated,
    is_same_map,
    outline,
    similarity,
)

Array = np.ndarray


def smooth(count: int, size: tuple[int, int], seed: int = 0) -> Array:
    """Hills and valleys, as saliency maps are."""
    noise = np.random.default_rng(seed).standard_normal((count, *size))
    return np.stack([ndimage.gaussian_filter(one, min(size) / 10) for one in noise]).astype(np.float32)


def noisy(maps: Array, share: float, seed: int = 1) -> Array:
    """The maps with noise of that share of their range."""
    noise = np.random.default_rng(seed).standard_normal(maps.shape)
    return (maps + share * np.ptp(maps, axis=(-2, -1), keepdims=True) * noise).astype(np.float32)


def outlines(maps: Array) -> list[Array]:
    return [outline(values, ranks(values)) for values in maps]


def prints(maps: Array, seed: int = 0) -> Array:
    held = [fingerprint(one, maps[0].size, seed) for one in outlines(maps)]
    return np.frombuffer(b"".join(held), np.uint8).reshape(-1, BYTES)


def plateaus(count: int, size: tuple[int, int]) -> Array:
    """Learned masks: nearly 1 on a blob, nearly 0 elsewhere."""
    maps = smooth(count, size, seed=3)
    height = maps - np.quantile(maps, 0.75, axis=(1, 2), keepdims=True)
    return (0.5 + 0.5 * np.tanh(50 * height / np.ptp(maps))).astype(np.float32)


# Fingerprints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "top"), [((1, 7), 1), ((6, 9), 6), ((32, 32), 103)])
def test_of_small_images_all_pixels_are_looked_at(size: tuple[int, int], top: int) -> None:
    maps = smooth(1, size)
    order = ranks(maps[0])
    halves = np.unpackbits(prints(maps)[0]).reshape(2, SAMPLE)
    for found, expected in zip(halves, (order < top, maps[0] > maps.mean()), strict=True):
        assert np.array_equal(found, expected.ravel()[_sampled_pixels(order.size, 0)])
    assert set(_sampled_pixels(order.size, 0)) == set(range(order.size))


def test_of_large_images_a_sample_is_looked_at() -> None:
    maps = smooth(2, (64, 96))
    first, second = map(ranks, maps)
    both = np.mean((first < 615) & (second < 615)) / 0.1
    tops = np.unpackbits(prints(maps), axis=1)[:, :SAMPLE]
    assert tops.sum(axis=1) == pytest.approx([SAMPLE / 10] * 2, abs=35)
    assert (tops[0] & tops[1]).sum() / (SAMPLE / 10) == pytest.approx(both, abs=0.12)


def test_the_sample_follows_the_seed() -> None:
    """Whoever made the maps does not know which pixels will be looked at."""
    maps = smooth(1, (64, 64))
    assert np.array_equal(prints(maps, 3), prints(maps, 3))
    assert not np.array_equal(prints(maps, 3), prints(maps, 4))


def test_likeness_counts_the_pixels_that_both_have() -> None:
    """Four of eight most important pixels in common; above the mean 40 each, 30 of them in common."""
    bits = np.zeros((3, 2, SAMPLE), np.bool_)
    bits[0, 0, :8], bits[1, 0, 4:12], bits[0, 1, :40], bits[1, 1, 10:50] = True, True, True, True
    found = similarity(*(np.packbits(bits.reshape(3, -1), axis=1) for _ in range(2)))
    shares = np.corrcoef(bits[0, 1], bits[1, 1])[0, 1]
    assert shares > 0.5
    np.testing.assert_allclose(found, [[1, shares, 0], [shares, 1, 0], [0, 0, 0]], atol=1e-6)
    bits[1, 1] = ~bits[0, 1]
    assert similarity(*(np.packbits(bits.reshape(3, -1), axis=1)[at : at + 1] for at in (0, 1))) == 0.5


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (224, 224)])
@pytest.mark.parametrize("share", [0.001, 0.01])
@pytest.mark.parametrize("make", [smooth, plateaus])
def test_noise_leaves_a_map_what_it_was(make: Any, size: tuple[int, int], share: float) -> None:
    maps = make(4, size)
    assert np.diag(similarity(prints(maps), prints(noisy(maps, share)))).min() > ALIKE + 0.02


def test_the_most_important_tenth_of_a_plateau_is_noise() -> None:
    """Why what lies above the mean is looked at too."""
    maps = plateaus(4, (64, 64))
    tops = [np.unpackbits(prints(one), axis=1)[:, :SAMPLE].astype(int) for one in (maps, noisy(maps, 0.01))]
    assert (2 * (tops[0] * tops[1]).sum(axis=1) / (tops[0].sum(axis=1) + tops[1].sum(axis=1))).max() < ALIKE - 0.1


@pytest.mark.parametrize("make", [smooth, plateaus])
def test_other_maps_are_not_alike(make: Any) -> None:
    found = prints(make(30, (64, 64)))
    assert (similarity(found, found) - 2 * np.eye(30)).max() < ALIKE - 0.1


def test_one_map_for_all_is_one_map_whatever_noise_is_on_each() -> None:
    maps = noisy(np.repeat(smooth(1, (64, 64)), 5, axis=0), 0.01)
    held = outlines(maps)
    assert is_same_map(held[0], held[1:], 64 * 64)
    other = [outlines(smooth(1, (64, 64), seed=seed))[0] for seed in (8, 9, 10, 11)]
    assert is_same_map(held[0], [*held[1:], other[0]], 64 * 64)  # one label apart does not make it another method
    assert not is_same_map(held[0], [*held[1:3], *other[:2]], 64 * 64)  # half of them may be chance
    assert not is_same_map(held[0], other, 64 * 64)


def test_noise_on_the_sampled_pixels_alone_does_not_hide_one_map() -> None:
    """Whoever knows the seed knows which pixels the fingerprints look at."""
    (plain,) = smooth(1, (64, 64))
    at, rng = _sampled_pixels(plain.size, 5), np.random.default_rng(0)
    maps = np.repeat(plain[None], 6, axis=0).reshape(6, -1)
    maps[1:, at] = rng.choice(plain.ravel(), (5, len(at)))
    maps = maps.reshape(6, 64, 64)
    found = prints(maps, 5)
    assert similarity(found[:1], found[1:]).max() < 0.3
    first, *others = outlines(maps)
    assert not is_same_map(first, others, plain.size)  # a fourth of all pixels: another map, which costs its figures
    maps = np.repeat(np.repeat(np.repeat(plain[None], 6, axis=0), 3, axis=1), 3, axis=2).reshape(6, -1)
    at = _sampled_pixels(maps.shape[1], 5)
    maps[1:, at] = rng.choice(plain.ravel(), (5, len(at)))
    maps = maps.reshape(6, 192, 192)
    found = prints(maps, 5)
    assert similarity(found[:1], found[1:]).max() < 0.3
    first, *others = outlines(maps)
    assert is_same_map(first, others, first.size)


@pytest.mark.parametrize("size", [(4, 8), (16, 32), (32, 32)])
@pytest.mark.parametrize("make", [smooth, plateaus])
def test_counting_exact_similarity_is_what_fingerprints_of_all_pixels_say(make: Any, size: tuple[int, int]) -> None:
    maps = make(4, size)
    expected, held = similarity(prints(maps), prints(maps)), outlines(maps)
    found = [[_exact_similarity(one, other, maps[0].size) for other in held] for one in held]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_copies_are_told_by_the_first_of_them() -> None:
    maps = smooth(4, (64, 64))
    tops = prints(np.concatenate([maps, noisy(maps[1:2], 0.001)]))
    assert first_similar(tops, 0.95).tolist() == [0, 1, 2, 3, 1]
    assert first_similar(tops[:0], 0.95).tolist() == []


@pytest.mark.parametrize("make", [smooth, plateaus])
@pytest.mark.parametrize("least", [0.8, 0.95])
def test_comparing_those_that_share_bits_finds_what_comparing_all_finds(make: Any, least: float) -> None:
    """Copies with more and more noise, so that some are just similar and some are just not."""
    maps, rng = make(30, (40, 40)), np.random.default_rng(0)
    copies = [noisy(maps[number : number + 1], level) for number in range(30) for level in (0.001, 0.05, 0.1, 0.5)]
    tops = prints(np.concatenate([maps, *copies]))[rng.permutation(150)]
    tops[-1] = tops[3]
    expected = (similarity(tops, tops) >= least).argmax(axis=1)
    assert 30 < len(np.unique(expected)) < 140
    assert first_similar(tops, least).tolist() == expected.tolist()


def test_a_fingerprint_costs_next_to_nothing_beside_ranking() -> None:
    maps = smooth(8, (224, 224))
    start = time.process_time()
    orders = [ranks(values) for values in maps]
    middle = time.process_time()
    for values, order in zip(maps, orders, strict=True):
        fingerprint(outline(values, order), values.size)
    assert time.process_time() - middle < 0.2 * (middle - start)


# Maps of other images -------------------------------------------------------------------------------------------------


def found(
    maps: Array, groups: list[int], pictures: list[int] | None = None, digests: list[int] | None = None
) -> list[bool]:
    count = len(maps)
    given = [np.array(one) for one in (digests or range(count), groups, pictures or range(count))]
    return is_repeated(prints(maps), *given).tolist()


def test_a_map_handed_in_again_is_found_with_noise_on_it() -> None:
    maps = smooth(4, (32, 32))
    maps[1:3] = noisy(np.repeat(maps[:1], 2, axis=0), 0.01)
    assert found(maps, [5, 5, 5, 5]) == [True, True, True, False]
    assert found(maps, [5, 6, 7, 8]) == [False] * 4  # those of other labels
    assert found(maps, [5] * 4, pictures=[7, 7, 7, 9]) == [False] * 4  # those of copies of the image


def test_a_map_that_a_fourth_of_the_images_share_may_be_honest() -> None:
    """A model that reads a tag has the same map wherever the tag lies in the same corner."""
    corners = noisy(np.tile(smooth(4, (32, 32)), (10, 1, 1)), 0.01)
    assert not any(found(corners, [0] * 40))
    assert all(found(corners[[at for at in range(40) if at % 4 < 2]], [0] * 20))  # two maps in turn


def test_the_same_order_is_the_same_map_however_its_ties_fall() -> None:
    maps = smooth(3, (32, 32))
    assert found(maps, [0] * 3, digests=[4, 5, 4]) == [True, False, True]  # one of two others is half of them


def test_a_thousand_images_with_ten_labels_take_about_a_second() -> None:
    rng = np.random.default_rng(0)
    tops = np.packbits(rng.random((10_000, 2 * SAMPLE)) < 0.1, axis=1)
    labels, images = np.tile(np.arange(10), 1000), np.repeat(np.arange(1000), 10)
    start = time.process_time()
    assert not is_repeated(tops, np.arange(10_000), labels, images).any()
    assert time.process_time() - start < 5
