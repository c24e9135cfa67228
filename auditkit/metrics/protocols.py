"""Protocols of the paper and of its peers, so that their published figures can be reproduced digit by digit.

For insertion and for deletion, each preset gives the counts at which the curve is sampled, the rule for its area, the
infill of hidden pixels and the order of ties. A count is the number of most important pixels that have been inserted
or deleted. Every curve is of a probability: where a peer plots any output of the model (Xplique, OpenVINO-XAI,
torchcam), give it a softmax.

RISE, Xplique, OpenVINO-XAI and the paper's code use numpy's default sort, whose order of ties depends on the
processor. The presets have the order of a stable sort instead, which is reproducible.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from auditkit.arrays import Array
from auditkit.data.ranks import Ties
from auditkit.errors import BadInput, unknown

_BLUR_WIDTH, _BLUR_SIGMA = 11, 5.0  # RISE's, in pixels


def _every(pixels: int, _: int) -> Array:
    return np.arange(1, pixels + 1)


def _strides(pixels: int, steps: int) -> Array:
    """0, a stride, two strides, ..., all; the last step may be shorter."""
    stride = max(1, pixels // steps)
    return np.minimum(np.arange(0, pixels + stride, stride), pixels)


def _few_strides(pixels: int, steps: int) -> Array:
    """0, a stride, two strides, ..., all, with the shortest stride that needs at most `steps`."""
    return np.append(np.arange(0, pixels, -(-pixels // steps)), pixels)


def _even(pixels: int, steps: int) -> Array:
    """Truncated equal steps without repeated counts."""
    return np.unique(np.linspace(0, pixels, steps + 1, dtype=np.int32)).astype(np.int64)


def _even_repeated(pixels: int, steps: int) -> Array:
    """Truncated equal steps; a count is repeated if several steps end at it."""
    return np.arange(steps + 1) * pixels // steps


def _through_fraction(counts: Array, pixels: int) -> Array:
    """Counts after the paper's code has converted them to fractions and back, by which some lose a pixel."""
    kept = (counts / pixels * pixels).astype(np.int64)  # at 224x224 and 28 steps, the 17th loses one
    # A count that becomes 0 keeps all pixels, as a slice from -0 does.
    return np.where((kept == 0) & (counts > 0), pixels, kept)


def _whole_strides(pixels: int, steps: int) -> Array:
    """A stride, two strides, ...; without 0, and without the rest after the last whole stride."""
    stride = max(1, pixels // steps)
    return np.sort(_through_fraction(np.arange(stride, pixels + 1, stride), pixels))


def _whole_strides_left(pixels: int, steps: int) -> Array:
    """Counts that leave nothing, a stride, two strides, ..., but not the last whole stride."""
    stride = max(1, pixels // steps)
    return np.sort(pixels - _through_fraction(np.arange(0, pixels + 1, stride)[:-1], pixels))


POINTS: dict[str, Callable[[int, int], Array]] = {
    "every": _every, "strides": _strides, "few-strides": _few_strides, "even": _even, "even-repeated": _even_repeated,
    "whole-strides": _whole_strides, "whole-strides-left": _whole_strides_left,
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """How one curve is sampled, and how its area is computed."""

    infill: Literal["gray", "zero", "black", "rise-blur"]
    ties: Ties
    points: str  # a key of POINTS
    rule: Literal["mean", "trapezoid", "equal-trapezoid"]
    steps: int | None  # None: every pixel count

    def counts(self, pixels: int) -> Array:
        """Ascending counts [points] of most important pixels that are inserted or deleted, from 0 to pixels."""
        if pixels < 1:
            raise BadInput(f"a curve needs an image of at least one pixel, found {pixels}.")
        return POINTS[self.points](pixels, self.steps or pixels).astype(np.int64)

    def weights(self, counts: Array) -> Array:
        """Weight [points] of each point in the area; they sum to 1."""
        if self.rule == "mean":
            return np.full(len(counts), 1 / len(counts))
        # RISE and its successors give every step the same weight, even a shorter one.
        gaps = np.diff(counts) if self.rule == "trapezoid" else np.ones(len(counts) - 1)
        return np.asarray((np.append(gaps, 0) + np.append(0, gaps)) / (2 * gaps.sum()))

    def area(self, counts: Array, values: Array) -> Array:
        """Areas [...] under curves [..., points]; linear, so an average curve (Xplique) has the average area."""
        if np.shape(values)[-1] != len(counts):
            raise BadInput(f"a curve of {len(counts)} points needs one value per point, found {np.shape(values)[-1]}.")
        return np.asarray(np.asarray(values, np.float64) @ self.weights(counts))


@dataclass(frozen=True)
class Preset:
    """One protocol; eps1 and eps2 are None if it does not define completeness and soundness."""

    about: str
    insertion: Curve
    deletion: Curve
    labels: Literal["all", "listed", "predicted"] = "predicted"
    renormalise: bool = False  # probabilities over the listed labels alone
    eps1: float | None = None
    eps2: float | None = None

    def with_steps(self, steps: int) -> "Preset":
        """The same protocol with another number of steps than the peer's default."""
        if steps < 1:
            raise BadInput(f"a curve needs at least one step, found {steps}.")
        if self.insertion.steps is None or self.deletion.steps is None:
            raise BadInput("this preset samples every pixel count; leave out either the steps or the preset.")
        insertion, deletion = (replace(curve, steps=steps) for curve in (self.insertion, self.deletion))
        return replace(self, insertion=insertion, deletion=deletion)


PRESETS: dict[str, Preset] = {
    # For deletion the paper refers to RISE's code; here it has the same mean, so that both curves are exact.
    "paper": Preset(
        "Gupta et al. 2022, Sections 3.1 and 6: mean over every pixel count, gray",
        *(Curve("gray", "random", "every", "mean", None),) * 2, labels="all", eps1=0.01, eps2=0.001,
    ),
    # Deletion keeps the last of the negated map's argsort, so its ties have the opposite order.
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
        *(Curve("zero", "last", "even", "equal-trapezoid", 10),) * 2,
    ),
    # It masks the image before normalisation, so its 0 is black.
    "openvino": Preset(
        "openvino_xai 1.1, metrics/insertion_deletion_auc.py: 30 truncated steps, black",
        *(Curve("black", "first", "even-repeated", "equal-trapezoid", 30),) * 2,
    ),
    "torchcam": Preset(
        "frgfm/torch-cam 0.5, torchcam/metrics.py: at most 20 steps, trapezoid over fractions, zero",
        *(Curve("zero", "first", "few-strides", "trapezoid", 20),) * 2,
    ),
}  # fmt: skip


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise BadInput(unknown("protocol", name, PRESETS))
    return PRESETS[name]


def infill_of(metric: str, infill: str, protocol: str | None) -> str:
    """The infill that a metric is measured with: RISE deletes with another than it inserts with."""
    return preset(protocol).deletion.infill if protocol and metric == "deletion" else infill


def rise_blur(pictures: Array, *, channels_last: bool = False) -> Array:
    """RISE's blur of images [..., C, H, W] (or [..., H, W, C]), channel by channel.

    Its kernel of 11 pixels is a Gaussian of deviation 5 whose tails are reflected at the kernel's own ends, so it is
    nearly flat and sums to 1. Images are padded with zeros, so their borders fade.
    """
    from scipy.ndimage import correlate1d, gaussian_filter1d  # noqa: PLC0415 - slow to import

    spike = np.zeros(_BLUR_WIDTH)
    spike[_BLUR_WIDTH // 2] = 1
    kernel = gaussian_filter1d(spike, _BLUR_SIGMA, mode="reflect")
    rows, columns = (-3, -2) if channels_last else (-2, -1)
    down = correlate1d(pictures.astype(np.float64), kernel, axis=rows, mode="constant")
    both = correlate1d(down, kernel, axis=columns, mode="constant")
    return np.asarray((both if pictures.dtype.kind == "f" else np.rint(both)).astype(pictures.dtype))
