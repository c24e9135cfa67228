"""Maps from the gradient of a label's score with respect to the image."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput
from auditkit.methods import option_values
from auditkit.methods.notes import Note
from auditkit.methods.request import Found, Request
from auditkit.model.gradient_session import Slopes, slopes

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
        option_values.whole(self, "samples", most=_MOST_COPIES)
        if not 0 <= self.noise < _MOST_NOISE:
            raise BadInput(f"noise {self.noise} is not a number from 0 up to {_MOST_NOISE}.")


@dataclass(frozen=True)
class Integrated:
    """Options of integrated gradients."""

    steps: int = 32

    def __post_init__(self) -> None:
        option_values.whole(self, "steps", most=_MOST_COPIES)


def gradient(request: Request, _options: Plain) -> Found:
    """The largest absolute gradient over the colours (Simonyan et al. 2014)."""
    return _explain(request, lambda shown, _id: shown[None], _strongest)


def gradient_input(request: Request, _options: Plain) -> Found:
    """Gradient times input, summed over the colours (Shrikumar et al. 2016)."""
    return _explain(request, lambda shown, _id: shown[None], lambda slope, shown: (slope * shown).sum(axis=0))


def smoothgrad(request: Request, options: Smooth) -> Found:
    """The mean gradient over noisy copies, then as `gradient` (Smilkov et al. 2017)."""

    def noisy(shown: Array, image: str) -> Array:
        rng = np.random.default_rng(map_seed(request.seed, image, -3))  # the same copies for every label
        noise = rng.standard_normal((options.samples, *shown.shape)).astype(np.float32)
        return np.asarray(shown + options.noise * float(np.ptp(shown)) * noise)

    return _explain(request, noisy, _strongest)


def integrated_gradients(request: Request, options: Integrated) -> Found:
    """Mean gradient on the path from gray to the image, times their difference, over colours (Sundararajan et al.)."""
    gray = request.gray[0].astype(np.float32)
    shares = (np.arange(options.steps, dtype=np.float32) + 0.5) / options.steps

    def path(shown: Array, _id: str) -> Array:
        return np.asarray(gray + shares.reshape(-1, *[1] * shown.ndim) * (shown - gray))

    return _explain(request, path, lambda slope, shown: (slope * (shown - _channels_first(request, gray))).sum(axis=0))


def _strongest(slope: Array, _shown: Array) -> Array:
    return np.asarray(np.abs(slope).max(axis=0))


def _channels_first(request: Request, picture: Array) -> Array:
    return picture if request.model.signature.layout == "NCHW" else np.moveaxis(picture, -1, 0)


def _explain(request: Request, copies: Callable[[Array, str], Array], to_map: Callable[[Array, Array], Array]) -> Found:
    """A map for each pair: `to_map` of the mean gradient over copies of its image and of the image, channels first."""
    follow, pairs = slopes(request.model), request.pairs()
    maps: list[dict[int, Array]] = [{} for _ in request.ids]
    gradients, start = 0, 0
    while start < len(pairs):
        first = copies(request.shown[pairs[start][0]].astype(np.float32), request.ids[pairs[start][0]])
        part = pairs[start : start + max(1, follow.rows // len(first))]
        rows = [first, *(copies(request.shown[i].astype(np.float32), request.ids[i]) for i, _ in part[1:])]
        labels = np.repeat([label for _, label in part], len(first))
        all_slopes = follow.of(np.concatenate(rows).astype(request.shown.dtype), labels).gradients
        means = all_slopes.reshape(len(part), len(first), *all_slopes.shape[1:]).mean(axis=1, dtype=np.float64)
        for (image, label), mean in zip(part, means, strict=True):
            slope, shown = (_channels_first(request, array) for array in (mean, request.shown[image]))
            maps[image][label] = np.asarray(to_map(slope, shown), np.float32)
        gradients, start = gradients + len(labels), start + len(part)
        request.tick(len(labels))
    return Found(tuple(maps), gradients=gradients, notes=gradient_notes(follow))


def gradient_notes(follow: Slopes) -> tuple[Note, ...]:
    """A note for the gradient of a model without its rounding."""
    return (Note("surrogate-gradient"),) if follow.surrogate else ()
