"""The objective of iGOS++ (Khorram et al. 2021), as nodes: two coarse masks, D for deletion and I for insertion.

    F(t) = mean over s of f(baseline + t(s) (image - baseline) + noise, label)       s: points from above 0 to 1
    minimise    (F(s D) - F(1 - s I) + F(s D I) - F(1 - s D I)) / 2  +  l1 mean |1 - D I|  +  tv BTV(D I)
    BTV(m) = (mean dm^2 down and across, coarse  +  mean a dm^2 down and across, upsampled) / 2

A mask of 1 deletes and inserts nothing. `a` is near 1 between pixels alike and near 0 across an edge of the image, so
that a mask may change there. The graph gives the loss and its gradient; the steps are taken by who calls it.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from auditkit.graph import edit
from auditkit.graph.gradient.builder import Shape
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import (
    DATA_LOSS,
    IMAGE,
    INFILLS,
    LABEL,
    LOSS,
    PICTURES,
    WEIGHTS,
    Objective,
    Recipe,
)
from auditkit.graph.mask_step import closed, with_slope

POINTS = "auditkit_points"  # [points] float32, the s of a run
NOISE = "auditkit_noise"  # [M, 4 points] int32, places of noise pictures in the bank
SLOPE = "auditkit_slope"  # [M, 2, h, w]
NAMES = frozenset({PICTURES, IMAGE, LABEL, INFILLS, WEIGHTS, POINTS, NOISE, DATA_LOSS, LOSS, SLOPE})
TERMS = 4
SIGNS = (1.0, 1.0, -1.0, -1.0)  # of D, D I (deletion), I, D I (insertion)


@dataclass(frozen=True)
class BilateralRecipe(Recipe):
    """What is minimised."""

    points: int = 15  # of a run
    edges: tuple[float, ...] = ()  # for each channel, the difference of neighbours at which `a` has fallen to 1/e

    @property
    def rows(self) -> int:
        """Images that the network sees for each pair."""
        return TERMS * self.points


class Bilateral(Objective):
    """Nodes in front of the network and behind it."""

    recipe: BilateralRecipe

    def composed(self) -> str:
        """The coarse product of both masks; masked images get the name of the network's input."""
        ends, points = self.ends, self.recipe.points
        pixels = ends.height * ends.width
        plane, flat = (
            ((pixels, 1), (pixels, ends.channels)) if ends.channels_last else ((1, pixels), (ends.channels, pixels))
        )
        kept = self._shares(plane)
        image, infill = (self.reshaped(self.picture(places), (*self.pair, 1, 1, *flat)) for places in (IMAGE, INFILLS))
        noise = self.reshaped(self.picture(NOISE), (*self.pair, TERMS, points, *flat))
        shape: Shape = (*self.pair, TERMS, points, *flat)
        difference = self.put("Sub", [image, infill], (*self.pair, 1, 1, *flat))
        shown = self.put("Mul", [kept, difference], shape)
        still = self.put("Add", [infill, noise], shape)
        self.reshaped(self.put("Add", [still, shown], shape), (*self.rows, *ends.picture), ends.input)
        deletion, insertion = (self._slice(WEIGHTS, 1, place, place + 1) for place in (0, 1))
        return self.put("Mul", [deletion, insertion], self.shapes[deletion])

    def _shares(self, plane: Shape) -> str:
        """How much of the image each row shows, [M, 4, points, ...]: s m for deletion, 1 - s m for insertion."""
        both = self._upsampled(WEIGHTS)
        deletion, insertion = (self._slice(both, 1, place, place + 1) for place in (0, 1))
        product = self.put("Mul", [deletion, insertion], self.shapes[deletion])
        four = self.put(
            "Concat", [deletion, product, insertion, product], (*self.pair, TERMS, *self.shapes[both][2:]), axis=1
        )
        wide = self.reshaped(four, (*self.pair, TERMS, 1, *plane))
        column = (1, TERMS, 1, 1, 1)
        signs, from_ = (self.constant(np.reshape(x, column), np.float32) for x in (SIGNS, [0, 0, 1, 1]))
        along = self.node("Mul", [signs, self.node("Reshape", [POINTS, self.constant([1, 1, -1, 1, 1])])])
        self.shapes |= {along: (1, TERMS, self.recipe.points, 1, 1), from_: column}
        shape: Shape = (*self.pair, TERMS, self.recipe.points, *plane)
        return self.put("Add", [self.put("Mul", [wide, along], shape), from_], shape)

    def penalties(self, masks: str) -> str:
        """l1 mean |1 - D I| + tv BTV(D I)."""
        gone = self.put("Abs", [self.put("Sub", [self.number(1.0), masks], self.shapes[masks])], self.shapes[masks])
        terms = [self._mean(gone, self.recipe.l1)]
        wide = self._upsampled(masks)
        for axis, size in zip((2, 3), self.recipe.grid(self.ends), strict=True):
            if self.recipe.tv and size > 1:
                squares = self._squares(wide, axis)
                across_edges = self.put("Mul", [squares, self._alike(axis)], self.shapes[squares])
                terms += [self._mean(x, self.recipe.tv / 2) for x in (self._squares(masks, axis), across_edges)]
        return self.put("Sum", terms, self.pair)

    def _mean(self, x: str, weight: float) -> str:
        mean = self.put("ReduceMean", [x, self.constant([1, 2, 3])], self.pair, keepdims=0)
        return self.put("Mul", [mean, self.number(weight)], self.pair)

    def _squares(self, x: str, axis: int) -> str:
        steps = self.steps(x, axis)
        return self.put("Mul", [steps, steps], self.shapes[steps])

    def _alike(self, axis: int) -> str:
        """[M, 1, ...]: how alike neighbours of the image are, exp(-(difference / edge)^2) averaged over channels."""
        ends, last = self.ends, self.ends.channels_last
        image = self.picture(IMAGE)
        self.shapes[image] = (*self.pair, *ends.picture)
        edges = self.constant(np.reshape(self.recipe.edges, (1, 1, 1, -1) if last else (1, -1, 1, 1)), np.float32)
        steps = self.node("Div", [self.steps(image, axis - 1 if last else axis), edges])
        alike = self.node("Exp", [self.node("Neg", [self.node("Mul", [steps, steps])])])
        height, width = ends.height - (axis == 2), ends.width - (axis == 3)
        mean = self.node("ReduceMean", [alike, self.constant([3 if last else 1])])
        return self.reshaped(mean, (*self.pair, 1, height, width))

    def data_loss(self, scores: str) -> str:
        """Half the sum of the four terms."""
        points, classes = self.recipe.points, max(self.ends.outputs, 2)
        logs = self.log_probabilities(scores)
        likely = self.reshaped(self.put("Exp", [logs], self.shapes[logs]), (*self.pair, TERMS * points, classes))
        signs = self.constant(np.repeat(SIGNS, points).reshape(1, -1, 1), np.float32)
        self.shapes[signs] = (1, TERMS * points, 1)
        signed = self.put("Mul", [likely, signs], self.shapes[likely])
        return self._picked(signed, self._is_label(classes), sign=TERMS / 2)


def slope(network: onnx.ModelProto, ends: Ends, recipe: BilateralRecipe) -> onnx.ModelProto:
    """The graph of the loss and its gradient, over a network that takes a seed and returns its gradient too."""
    fresh, b, found = with_slope(network, ends, Bilateral, recipe, NAMES)
    b.node("Identity", [found], SLOPE)
    pairs, grid = recipe.pairs or "M", (2, *recipe.grid(ends))
    value, whole, real = helper.make_tensor_value_info, TensorProto.INT32, TensorProto.FLOAT
    inputs = [
        value(WEIGHTS, real, [pairs, *grid]), value(PICTURES, real, ["P", *ends.picture]),
        value(IMAGE, whole, [pairs]), value(LABEL, whole, [pairs]), value(INFILLS, whole, [pairs, 1]),
        value(NOISE, whole, [pairs, recipe.rows]), value(POINTS, real, [recipe.points]),
    ]  # fmt: skip
    return closed(fresh, b, ends, inputs, [value(LOSS, real, [pairs]), value(SLOPE, real, [pairs, *grid])])


def loss(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The graph of the loss alone, which needs no way back."""
    return edit.with_outputs(graph, [LOSS])
