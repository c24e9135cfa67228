"""Maps that know nothing of the model: what any method must beat before its figures mean something."""

import functools
from collections.abc import Callable

import numpy as np

from auditkit.arrays import Array

NOISE = 0.25  # of the highest score
GAUSSIAN_SIGMA = 0.25  # of the shorter side
BLUR_SIGMA = 1 / 10  # of the shorter side: of those tried, the one that gains most over plain edges


def random(pixels: Array, seed: int) -> Array:
    """Independent noise; another map for every seed."""
    return np.asarray(np.random.default_rng(seed).random(pixels.shape[:2], dtype=np.float32))


def centred_gaussian(pixels: Array, _seed: int) -> Array:
    """A bump in the middle, where photographers put things."""
    return _bump(*pixels.shape[:2])


@functools.cache
def _bump(height: int, width: int) -> Array:
    y, x = np.mgrid[:height, :width]
    squared = (y - (height - 1) / 2) ** 2 + (x - (width - 1) / 2) ** 2
    return np.asarray(np.exp(-squared / (2 * (GAUSSIAN_SIGMA * min(height, width)) ** 2)), np.float32)


def constant(pixels: Array, _seed: int) -> Array:
    """The same score everywhere: all is left to the order in ties."""
    return np.zeros(pixels.shape[:2], np.float32)


def edges(pixels: Array, _seed: int) -> Array:
    """Sobel magnitude of the picture's brightness."""
    from scipy import ndimage  # noqa: PLC0415 - slow to import

    grey = pixels.astype(np.float32).mean(axis=2)
    return np.asarray(np.hypot(ndimage.sobel(grey, axis=0), ndimage.sobel(grey, axis=1)), np.float32)


def blurred_edges(pixels: Array, seed: int) -> Array:
    """How much edge there is around each pixel: where something is, and not only its outline."""
    from scipy import ndimage  # noqa: PLC0415 - slow to import

    sigma = BLUR_SIGMA * min(pixels.shape[:2])
    return np.asarray(ndimage.gaussian_filter(edges(pixels, seed), sigma), np.float32)


def noisy_gaussian(pixels: Array, seed: int) -> Array:
    """The bump with noise: on models that recognise an object by scattered pixels it beats both."""
    return _with_noise(centred_gaussian(pixels, seed), seed)


def noisy_edges(pixels: Array, seed: int) -> Array:
    """Blurred edges with noise, for the same reason."""
    return _with_noise(blurred_edges(pixels, seed), seed)


def _with_noise(values: Array, seed: int) -> Array:
    noise = np.random.default_rng([seed, 1]).standard_normal(values.shape, dtype=np.float32)
    return np.asarray(values / max(values.max(), np.float32(1e-30)) + np.float32(NOISE) * noise)


# Name -> map of one picture [height, width, channels] (uint8, as the network sees it), and whether every label gets
# a map of its own.
CONTROLS: dict[str, tuple[Callable[[Array, int], Array], bool]] = {
    "random": (random, True),
    "centred-gaussian": (centred_gaussian, False),
    "constant": (constant, False),
    "edges": (edges, False),
    "blurred-edges": (blurred_edges, False),
    "noisy-gaussian": (noisy_gaussian, False),
    "noisy-edges": (noisy_edges, False),
}
