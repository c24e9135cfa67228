"""Maps that do not depend on the model: a method's figures mean something only if they beat these."""

import functools
from collections.abc import Callable

import numpy as np

from auditkit.arrays import Array

# From an image uint8 [height, width, channels] and a seed to a map float32 [height, width]
Control = Callable[[Array, int], Array]
_NOISE = 0.25  # standard deviation, as a share of the highest score
_GAUSSIAN_SIGMA = 0.25  # of the shorter side
_BLUR_SIGMA = 1 / 10  # of the shorter side: of the widths tried, it improves most on plain edges


def random(pixels: Array, seed: int) -> Array:
    """Independent uniform noise in [0, 1)."""
    return np.asarray(np.random.default_rng(seed).random(pixels.shape[:2], dtype=np.float32))


def centred_gaussian(pixels: Array, _seed: int) -> Array:
    """A Gaussian in the centre, where photographers place objects."""
    return _gaussian(*pixels.shape[:2])


@functools.cache
def _gaussian(height: int, width: int) -> Array:
    y, x = np.mgrid[:height, :width]
    squared = (y - (height - 1) / 2) ** 2 + (x - (width - 1) / 2) ** 2
    return np.asarray(np.exp(-squared / (2 * (_GAUSSIAN_SIGMA * min(height, width)) ** 2)), np.float32)


def constant(pixels: Array, _seed: int) -> Array:
    """The same score everywhere, so that only the order of ties matters."""
    return np.zeros(pixels.shape[:2], np.float32)


def edges(pixels: Array, _seed: int) -> Array:
    """Sobel magnitude of the image's brightness."""
    from scipy import ndimage  # noqa: PLC0415 - slow to import

    grey = pixels.astype(np.float32).mean(axis=2)
    return np.asarray(np.hypot(ndimage.sobel(grey, axis=0), ndimage.sobel(grey, axis=1)), np.float32)


def blurred_edges(pixels: Array, seed: int) -> Array:
    """Amount of edges around each pixel: the inside of objects, not only their outlines."""
    from scipy import ndimage  # noqa: PLC0415 - slow to import

    sigma = _BLUR_SIGMA * min(pixels.shape[:2])
    return np.asarray(ndimage.gaussian_filter(edges(pixels, seed), sigma), np.float32)


def _noisy(control: Control, pixels: Array, seed: int) -> Array:
    """A control with noise, which beats both on models that recognise an object by scattered pixels."""
    values, rng = control(pixels, seed), np.random.default_rng([seed, 1])
    noise = rng.standard_normal(values.shape, dtype=np.float32)
    return np.asarray(values / max(values.max(), np.float32(1e-30)) + np.float32(_NOISE) * noise)


CONTROLS: dict[str, tuple[Control, bool]] = {  # with whether each label has its own map
    "random": (random, True), "centred-gaussian": (centred_gaussian, False), "constant": (constant, False),
    "edges": (edges, False), "blurred-edges": (blurred_edges, False),
    "noisy-gaussian": (functools.partial(_noisy, centred_gaussian), False),
    "noisy-edges": (functools.partial(_noisy, blurred_edges), False),
}  # fmt: skip
