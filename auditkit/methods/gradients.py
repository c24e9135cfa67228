"""Maps from the gradient of a label's score with respect to the image."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput
from auditkit.methods import option_values
from auditkit.methods.notes import Note
from auditkit.methods.request import MethodResult, Request
from auditkit.model.gradient_session import slopes as slopes_of

_MOST_COPIES = 1000  # of one image, all in memory
_MOST_NOISE = 10  # ranges of the image's values; nothing of the image is left


@dataclass(frozen=True)
class Plain:
    """No options."""


@dataclass(frozen=True)
class Smooth:
    """Options of smoothgrad."""

    samples: int = 25
    noise: float = 0.15  # standard deviation, as a share of the range of the image's values

    def __post_init__(self) -> None:
        option_values.require_whole(self, "samples", most=_MOST_COPIES)
        if not 0 <= self.noise < _MOST_NOISE:
            raise BadInput(f"noise {self.noise} is not a number from 0 up to {_MOST_NOISE}.")


@dataclass(frozen=True)
class Integrated:
    """Options of integrated gradients."""

    steps: int = 32

    def __post_init__(self) -> None:
        option_values.require_whole(self, "steps", most=_MOST_COPIES)


def gradient(request: Request, _options: Plain) -> MethodResult:
    """The largest absolute gradient over the colours (Simonyan et al. 2014)."""
    return _explain(request, _strongest)


def gradient_input(request: Request, _options: Plain) -> MethodResult:
    """Gradient times input, summed over the colours (Shrikumar et al. 2016)."""
    return _explain(request, lambda slope, image: (slope * image).sum(axis=0))


def smoothgrad(request: Request, options: Smooth) -> MethodResult:
    """The mean gradient over noisy copies, then as `gradient` (Smilkov et al. 2017)."""

    def noisy(image: Array, name: str) -> Array:
        rng = np.random.default_rng(map_seed(request.seed, name, -3))  # the same copies for every label
        noise = rng.standard_normal((options.samples, *image.shape)).astype(np.float32)
        return np.asarray(image + options.noise * float(np.ptp(image)) * noise)

    return _explain(request, _strongest, noisy, options.samples)


def integrated_gradients(request: Request, options: Integrated) -> MethodResult:
    """Mean gradient on the path from gray to the image, times their difference, over colours (Sundararajan et al.)."""
    gray = request.gray[0].astype(np.float32)
    shares = (np.arange(options.steps, dtype=np.float32) + 0.5) / options.steps

    def path(image: Array, _name: str) -> Array:
        return np.asarray(gray + shares.reshape(-1, *[1] * image.ndim) * (image - gray))

    def to_map(slope: Array, image: Array) -> Array:
        return np.asarray((slope * (image - _channels_first(request, gray))).sum(axis=0))

    return _explain(request, to_map, path, options.steps)


def _strongest(slope: Array, _image: Array) -> Array:
    return np.asarray(np.abs(slope).max(axis=0))


def _channels_first(request: Request, picture: Array) -> Array:
    return picture if request.model.signature.layout == "NCHW" else np.moveaxis(picture, -1, 0)


def _explain(
    request: Request, to_map: Callable[[Array, Array], Array],
    copies: Callable[[Array, str], Array] = lambda image, _name: image[None], count: int = 1,
) -> MethodResult:  # fmt: skip
    """Maps from the mean gradient over `count` copies of an image and from the image itself, channels first."""
    slopes, pairs, maps = slopes_of(request.model), request.pairs(), request.empty_maps()
    size = max(1, slopes.rows // count)
    for start in range(0, len(pairs), size):
        part = pairs[start : start + size]
        rows = np.concatenate([copies(request.inputs[i].astype(np.float32), request.ids[i]) for i, _ in part])
        labels = np.repeat([label for _, label in part], count)
        gradients = slopes.of(rows.astype(request.inputs.dtype), labels).gradients
        means = gradients.reshape(len(part), count, *gradients.shape[1:]).mean(axis=1, dtype=np.float64)
        for (position, label), mean in zip(part, means, strict=True):
            slope, image = (_channels_first(request, array) for array in (mean, request.inputs[position]))
            maps[position][label] = np.asarray(to_map(slope, image), np.float32)
        request.tick(len(labels))
    return MethodResult(maps, gradients=count * len(pairs), notes=(Note("surrogate-gradient"),) * slopes.surrogate)
