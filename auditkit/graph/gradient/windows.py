"""The geometry of convolutions and pools: windows of k taps, d apart, that move by s over an input with margins."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auditkit.graph.gradient.builder import Builder
from auditkit.graph.gradient.node import Node


@dataclass(frozen=True)
class Windows:
    """How windows lie over an input; one entry for each spatial axis."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    inputs: list[int]
    outputs: list[int]
    before: list[int]
    after: list[int]  # as declared: with ceil_mode the last window may reach further

    @property
    def covered(self) -> list[int]:
        """Positions that all windows together reach over, counted from the start of the margin."""
        return [
            (count - 1) * stride + (taps - 1) * apart + 1
            for count, stride, taps, apart in zip(self.outputs, self.strides, self.kernel, self.dilations, strict=True)
        ]

    @property
    def left(self) -> list[int]:
        """Positions from the end of what is covered to the end of the input; negative where windows reach past it."""
        return [
            size + margin - reach for size, margin, reach in zip(self.inputs, self.before, self.covered, strict=True)
        ]


def windows(b: Builder, node: Node, kernel: list[int]) -> Windows:
    """The windows of a Conv or pool."""
    rank, none = len(kernel), [0] * len(kernel)
    strides, dilations = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    bare = Windows(kernel, strides, dilations, b.sizes(node.x), b.sizes(node.y), none, none)
    padding = node.get("auto_pad", "NOTSET")
    if padding == "VALID":
        return bare
    if padding == "NOTSET":
        pads = node.get("pads", none * 2)
        return replace(bare, before=pads[:rank], after=pads[rank:])
    missing = [max(0, -rest) for rest in bare.left]
    smaller = [total // 2 for total in missing]
    larger = [total - total // 2 for total in missing]
    before, after = (smaller, larger) if padding == "SAME_UPPER" else (larger, smaller)
    return replace(bare, before=before, after=after)


def spread_over(b: Builder, w: Windows, grad: str, weight: str, group: int) -> str:
    """The adjoint of a convolution: each output's gradient spread over the taps of its window.

    The CUDA provider takes a ConvTranspose with equal margins only; where they differ, the whole is computed and the
    margins are cut off.
    """
    shape = {"strides": w.strides, "dilations": w.dilations, "kernel_shape": w.kernel, "group": group}
    extra = [rest + margin for rest, margin in zip(w.left, w.before, strict=True)]
    if all(0 <= more < max(s, d) for more, s, d in zip(extra, w.strides, w.dilations, strict=True)):
        return b.op("ConvTranspose", grad, weight, pads=w.before * 2, output_padding=extra, **shape)
    whole = b.op("ConvTranspose", grad, weight, **shape)
    axes = range(2, 2 + len(w.kernel))
    before = {axis: -margin for axis, margin in zip(axes, w.before, strict=True)}
    return b.pad(whole, 2 + len(w.kernel), before, dict(zip(axes, w.left, strict=True)))


def taps_inside(w: Windows, *, with_margins: bool) -> "np.ndarray[Any, Any]":
    """For each output, how many taps of its window lie on the input (or on its declared margins)."""
    counts = np.ones(())
    for axis in range(len(w.kernel)):
        starts = np.arange(w.outputs[axis]) * w.strides[axis] - w.before[axis]
        taps = starts[:, None] + np.arange(w.kernel[axis]) * w.dilations[axis]
        low = -w.before[axis] if with_margins else 0
        high = w.inputs[axis] + (w.after[axis] if with_margins else 0)
        counts = counts[..., None] * ((taps >= low) & (taps < high)).sum(axis=1)
    return counts
