"""Protocols of the paper and of its peers, so that their published figures can be met digit by digit.

Each preset says, for insertion and for deletion, at which counts the curve is known, how its area is taken, what
stands in for hidden pixels and who goes first in a tie. A count is the number of most important pixels that have been
put in (insertion) or taken out (deletion). Every curve is of a probability: where a peer plots whatever the model
returns (Xplique, OpenVINO-XAI, torchcam), give it a softmax.

RISE, Xplique, OpenVINO-XAI and the paper's code sort with numpy's default, which leaves ties in an order of its own
that changes with the processor. Their rule here is the order a stable sort would leave, the one they can be held to.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import Ties
from auditkit.errors import BadInput

Infill = Literal["gray", "zero", "black", "rise-blur"]
Rule = Literal["mean", "trapezoid", "equal-trapezoid"]
BLUR_WIDTH, BLUR_SIGMA = 11, 5.0  # RISE's, in pixels


def _every(pixels: int, _: int) -> Array:
    return np.arange(1, pixels + 1)


def _strides(pixels: int, steps: int) -> Array:
    """0, a stride, two strides, ..., all: the last step may be shorter."""
    stride = max(1, pixels // steps)
    return np.minimum(np.arange(0, pixels + stride, stride), pixels)


def _few_strides(pixels: int, steps: int) -> Array:
    """0, a stride, two strides, ..., all, with a stride so long that at most `steps` are needed."""
    return np.append(np.arange(0, pixels, -(-pixels // steps)), pixels)


def _even(pixels: int, steps: int) -> Array:
    """Truncated equal steps; a count is there once, however many steps end at it."""
    return np.unique(np.linspace(0, pixels, steps + 1, dtype=np.int32)).astype(np.int64)


def _even_repeated(pixels: int, steps: int) -> Array:
    """Truncated equal steps; a count is there as often as steps end at it."""
    return np.arange(steps + 1) * pixels // steps


def _through_fraction(counts: Array, pixels: int) -> Array:
    """Counts after the paper's code has turned them into fractions and back, which costs some of them a pixel.

    At 224x224 and 28 steps that is the 17th. A count that falls to 0 becomes all pixels, as a slice from -0 is.
    """
    kept = (counts / pixels * pixels).astype(np.int64)
    return np.where((kept == 0) & (counts > 0), pixels, kept)


def _whole_strides(pixels: int, steps: int) -> Array:
    """A stride, two strides, ...: neither nothing, nor what is left after the last whole stride."""
    stride = max(1, pixels // steps)
    return np.sort(_through_fraction(np.arange(stride, pixels + 1, stride), pixels))


def _whole_strides_left(pixels: int, steps: int) -> Array:
    """As many pixels out as leave nothing, a stride, two strides, ..., but not the last whole stride."""
    stride = max(1, pixels // steps)
    return np.sort(pixels - _through_fraction(np.arange(0, pixels + 1, stride)[:-1], pixels))


POINTS: dict[str, Callable[[int, int], Array]] = {
    "every": _every, "strides": _strides, "few-strides": _few_strides, "even": _even, "even-repeated": _even_repeated,
    "whole-strides": _whole_strides, "whole-strides-left": _whole_strides_left,
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """How one curve is sampled and its area taken."""

    infill: Infill
    ties: Ties
    points: str  # a key of POINTS
    rule: Rule
    steps: int | None  # None: every pixel count

    def counts(self, pixels: int) -> Array:
        """Ascending counts of most important pixels put in or taken out, one a point."""
        if pixels < 1:
            raise BadInput(f"a curve needs a picture of at least one pixel, found {pixels}.")
        return POINTS[self.points](pixels, self.steps or pixels).astype(np.int64)

    def weights(self, counts: Array) -> Array:
        """Share of each point in the area; they sum to 1."""
        if self.rule == "mean":
            return np.full(len(counts), 1 / len(counts))
        # RISE and those after it count each step alike, also a shorter one.
        gaps = np.diff(counts) if self.rule == "trapezoid" else np.ones(len(counts) - 1)
        return np.asarray((np.append(gaps, 0) + np.append(0, gaps)) / (2 * gaps.sum()))

    def area(self, counts: Array, values: Array) -> Array:
        """Area under the points, whose values stand along the last axis.

        It is linear: the area of an average curve (Xplique) is the average of the areas.
        """
        if np.shape(values)[-1] != len(counts):
            raise BadInput(f"a curve of {len(counts)} points has {np.shape(values)[-1]} values; give one a point.")
        return np.asarray(np.asarray(values, np.float64) @ self.weights(counts))


@dataclass(frozen=True)
class Preset:
    """One protocol; eps1 and eps2 are None where it knows no completeness and soundness."""

    about: str
    insertion: Curve
    deletion: Curve
    labels: Literal["all", "listed", "predicted"] = "predicted"
    renormalise: bool = False  # probabilities over the listed labels alone
    eps1: float | None = None
    eps2: float | None = None

    def with_steps(self, steps: int) -> "Preset":
        """The same protocol with another number of steps; its own is the peer's default."""
        if steps < 1:
            raise BadInput(f"a curve has at least one step, found {steps}.")
        if self.insertion.steps is None or self.deletion.steps is None:
            raise BadInput("this preset takes every pixel count; leave the steps out, or the preset.")
        insertion, deletion = (replace(curve, steps=steps) for curve in (self.insertion, self.deletion))
        return replace(self, insertion=insertion, deletion=deletion)


def _alike(infill: Infill, ties: Ties, points: str, rule: Rule, steps: int | None) -> tuple[Curve, Curve]:
    """Insertion and deletion by the same rule."""
    curve = Curve(infill, ties, points, rule, steps)
    return curve, curve


PRESETS: dict[str, Preset] = {
    # For deletion the paper points to RISE's code; here it gets the same mean, so that both curves are exact.
    "paper": Preset(
        "Gupta et al. 2022, Sections 3.1 and 6: mean over every pixel count, gray",
        *_alike("gray", "random", "every", "mean", None), labels="all", eps1=0.01, eps2=0.001,
    ),
    # Deletion keeps the last of the negated map's argsort, so ties are left in the opposite order.
    "paper-code": Preset(
        "agup/soundness_saliency, certificate_methods.py: mean of 28 points without the empty image, zero",
        insertion=Curve("zero", "last", "whole-strides", "mean", 28),
        deletion=Curve("zero", "first", "whole-strides-left", "mean", 28),
        labels="listed", renormalise=True, eps1=0.1, eps2=0.1,
    ),
    # Its 224 pixels a step are 224 steps of its 224x224 pictures; its figures over a dataset take 28.
    "rise": Preset(
        "eclique/RISE, evaluation.py and Evaluation.ipynb: 224 steps, blur for insertion, zero for deletion",
        insertion=Curve("rise-blur", "last", "strides", "equal-trapezoid", 224),
        deletion=Curve("zero", "last", "strides", "equal-trapezoid", 224),
    ),
    "xplique": Preset(
        "deel-ai/xplique 2.0, xplique/metrics/fidelity.py: 10 truncated steps, zero",
        *_alike("zero", "last", "even", "equal-trapezoid", 10),
    ),
    # It masks the picture before it is normalised, so its 0 is black.
    "openvino": Preset(
        "openvino_xai 1.1, metrics/insertion_deletion_auc.py: 30 truncated steps, black",
        *_alike("black", "first", "even-repeated", "equal-trapezoid", 30),
    ),
    "torchcam": Preset(
        "frgfm/torch-cam 0.5, torchcam/metrics.py: at most 20 steps, trapezoid over fractions, zero",
        *_alike("zero", "first", "few-strides", "trapezoid", 20),
    ),
}  # fmt: skip


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise BadInput(f"there is no preset '{name}'; the presets are {', '.join(PRESETS)}.")
    return PRESETS[name]


def rise_blur(pictures: Array, *, channels_last: bool = False) -> Array:
    """RISE's blur of pictures [..., C, H, W] (or [..., H, W, C]), channel by channel.

    Its kernel of 11 pixels is a Gaussian of deviation 5 whose tails are folded back at the kernel's own ends, so it
    is nearly flat and sums to 1. Outside the picture there are zeros, so borders fade.
    """
    from scipy.ndimage import correlate1d, gaussian_filter1d  # noqa: PLC0415 - slow to import

    spike = np.zeros(BLUR_WIDTH)
    spike[BLUR_WIDTH // 2] = 1
    kernel = gaussian_filter1d(spike, BLUR_SIGMA, mode="reflect")
    rows, columns = (-3, -2) if channels_last else (-2, -1)
    down = correlate1d(pictures.astype(np.float64), kernel, axis=rows, mode="constant")
    both = correlate1d(down, kernel, axis=columns, mode="constant")
    return np.asarray((both if pictures.dtype.kind == "f" else np.rint(both)).astype(pictures.dtype))
