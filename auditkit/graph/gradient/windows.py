"""The geometry of convolutions and pools: windows of k taps, d apart, that move by s over an input with margins."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from auditkit.arrays import Array
from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node


@dataclass(frozen=True)
class Windows:
    """Where the windows of a convolution or a pool lie; one entry for each spatial axis."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    inputs: list[int]
    outputs: list[int]
    before: list[int]
    after: list[int]  # as declared: with ceil_mode the last window may reach further

    @property
    def covered(self) -> list[int]:
        """Length that all windows together cover, counted from the start of the margin."""
        return [
            (count - 1) * stride + (taps - 1) * apart + 1
            for count, stride, taps, apart in zip(self.outputs, self.strides, self.kernel, self.dilations, strict=True)
        ]

    @property
    def uncovered(self) -> list[int]:
        """Positions between the last window and the end of the input; negative where windows reach past it."""
        return [
            size + margin - covered
            for size, margin, covered in zip(self.inputs, self.before, self.covered, strict=True)
        ]


def windows(b: Builder, node: Node, kernel: list[int]) -> Windows:
    """The windows of a Conv or pool."""
    rank, zeros = len(kernel), [0] * len(kernel)
    strides, dilations = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    unpadded = Windows(kernel, strides, dilations, b.sizes(node.x), b.sizes(node.y), zeros, zeros)
    padding = node.get("auto_pad", "NOTSET")
    if padding == "VALID":
        return unpadded
    if padding == "NOTSET":
        pads = node.get("pads", zeros * 2)
        return replace(unpadded, before=pads[:rank], after=pads[rank:])
    totals = [max(0, -rest) for rest in unpadded.uncovered]
    smaller = [total // 2 for total in totals]
    larger = [total - total // 2 for total in totals]
    before, after = (smaller, larger) if padding == "SAME_UPPER" else (larger, smaller)
    return replace(unpadded, before=before, after=after)


def spread_over(b: Builder, w: Windows, grad: str, weight: str, group: int) -> str:
    """The adjoint of a convolution: each output's gradient spread over the taps of its window.

    The CUDA provider's ConvTranspose accepts equal margins only; where they differ, the result is computed with its
    margins, which are then cropped.
    """
    transposed = partial(
        b.op,
        "ConvTranspose",
        grad,
        weight,
        strides=w.strides,
        dilations=w.dilations,
        kernel_shape=w.kernel,
        group=group,
    )
    extra = [rest + margin for rest, margin in zip(w.uncovered, w.before, strict=True)]
    if all(0 <= more < max(s, d) for more, s, d in zip(extra, w.strides, w.dilations, strict=True)):
        return transposed(pads=w.before * 2, output_padding=extra)
    axes = range(2, 2 + len(w.kernel))
    before = {axis: -margin for axis, margin in zip(axes, w.before, strict=True)}
    return b.pad(transposed(), 2 + len(w.kernel), before, dict(zip(axes, w.uncovered, strict=True)))


def taps_inside(w: Windows, *, with_margins: bool) -> Array:
    """For each output, how many taps of its window lie on the input (or on its declared margins)."""
    counts = np.ones(())
    for axis in range(len(w.kernel)):
        starts = np.arange(w.outputs[axis]) * w.strides[axis] - w.before[axis]
        taps = starts[:, None] + np.arange(w.kernel[axis]) * w.dilations[axis]
        low = -w.before[axis] if with_margins else 0
        high = w.inputs[axis] + (w.after[axis] if with_margins else 0)
        counts = counts[..., None] * ((taps >= low) & (taps < high)).sum(axis=1)
    return counts
