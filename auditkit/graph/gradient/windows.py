"""The geometry of convolutions and pools: windows of k taps, d apart, that move by s over an input with margins."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from auditkit.arrays import Array
from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node


@dataclass(frozen=True)
class Windows:
    """Where the windows of a convolution or a pool lie along one spatial axis."""

    taps: int
    stride: int
    dilation: int
    size: int  # of the input
    count: int
    before: int = 0
    after: int = 0  # as declared: with ceil_mode the last window may reach further

    @property
    def reach(self) -> int:
        """The distance from the first tap of a window to its last."""
        return (self.taps - 1) * self.dilation

    @property
    def covered(self) -> int:
        """The length that all windows together cover, counted from the start of the margin."""
        return (self.count - 1) * self.stride + self.reach + 1

    @property
    def uncovered(self) -> int:
        """Positions between the last window and the end of the input; negative where windows reach past it."""
        return self.size + self.before - self.covered


def windows(node: Node, kernel: list[int], sizes: list[int], counts: list[int]) -> list[Windows]:
    """The windows of a Conv or pool without their margins, for each spatial axis."""
    ones = [1] * len(kernel)
    strides, dilations = node.get("strides", ones), node.get("dilations", ones)
    return [Windows(*axis) for axis in zip(kernel, strides, dilations, sizes, counts, strict=True)]


def padded_windows(b: Builder, node: Node, kernel: list[int]) -> list[Windows]:
    """The windows of a Conv or pool, for each spatial axis."""
    unpadded, rank = windows(node, kernel, b.sizes(node.x), b.sizes(node.y)), len(kernel)
    padding = node.get("auto_pad", "NOTSET")
    if padding == "VALID":
        return unpadded
    if padding == "NOTSET":
        pads = node.get("pads", [0] * 2 * rank)
        before, after = pads[:rank], pads[rank:]
    else:
        totals = [max(0, -w.uncovered) for w in unpadded]
        before = [total // 2 if padding == "SAME_UPPER" else total - total // 2 for total in totals]
        after = [total - first for total, first in zip(totals, before, strict=True)]
    return [replace(w, before=first, after=last) for w, first, last in zip(unpadded, before, after, strict=True)]


def spread_over(b: Builder, axes: Sequence[Windows], grad: str, weight: str, group: int) -> str:
    """The adjoint of a convolution: each output's gradient spread over the taps of its window.

    The CUDA provider's ConvTranspose accepts equal margins only; where they differ, the result is computed with its
    margins, which are then cropped.
    """
    transposed = partial(
        b.op, "ConvTranspose", grad, weight, strides=[w.stride for w in axes], dilations=[w.dilation for w in axes],
        kernel_shape=[w.taps for w in axes], group=group,
    )  # fmt: skip
    extra = [w.uncovered + w.before for w in axes]
    if all(0 <= more < max(w.stride, w.dilation) for more, w in zip(extra, axes, strict=True)):
        return transposed(pads=[w.before for w in axes] * 2, output_padding=extra)
    before = {2 + axis: -w.before for axis, w in enumerate(axes)}
    after = {2 + axis: w.uncovered for axis, w in enumerate(axes)}
    return b.pad(transposed(), 2 + len(axes), before, after)


def taps_inside(axes: Sequence[Windows], *, with_margins: bool) -> Array:
    """For each output, how many taps of its window lie on the input (or on its declared margins)."""
    counts = np.ones(())
    for w in axes:
        starts = np.arange(w.count) * w.stride - w.before
        taps = starts[:, None] + np.arange(w.taps) * w.dilation
        low, high = (-w.before, w.size + w.after) if with_margins else (0, w.size)
        counts = counts[..., None] * ((taps >= low) & (taps < high)).sum(axis=1)
    return counts
