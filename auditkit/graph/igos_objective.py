"""The objective of iGOS++ (Khorram et al. 2021), as nodes: coarse masks D (deletion) and I (insertion).

    F(t) = mean over s of f(baseline + t(s) (image - baseline) + noise, label)       s: points from above 0 to 1
    minimise    (F(s D) - F(1 - s I) + F(s D I) - F(1 - s D I)) / 2  +  l1 mean |1 - D I|  +  tv BTV(D I)
    BTV(m) = (mean dm^2 down and across, coarse  +  mean a dm^2 down and across, upsampled) / 2

A mask of 1 deletes and inserts nothing. `a` is near 1 between similar pixels and near 0 across an edge of the image,
where a mask may change. The graph returns the loss and its gradient; the caller takes the steps.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from auditkit.graph import edit, mask_objective
from auditkit.graph.gradient.builder import Shape
from auditkit.graph.hard_masks import Ends
from auditkit.graph.mask_objective import DATA_LOSS, IMAGE, INFILLS, INPUTS, LOSS, WEIGHTS, Objective, Recipe

POINTS = "auditkit_points"  # [points] float32, the values of s
NOISE = "auditkit_noise"  # [M, 4 points] int32, positions of noise pictures in the bank
SLOPE = "auditkit_slope"  # [M, 2, h, w]
_INPUTS = (WEIGHTS, *INPUTS)
TERMS = 4  # of F
_SIGNS = (1.0, 1.0, -1.0, -1.0)  # of D, D I (deletion), I, D I (insertion)


@dataclass(frozen=True)
class BilateralRecipe(Recipe):
    """The terms of the objective."""

    points: int = 15  # values of s
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
        points, (plane, flat) = self.recipe.points, self._flat_shapes()
        shares = self._shares(plane)
        image, infill = (self.reshaped(self.picture(at), (*self.pair, 1, 1, *flat)) for at in (IMAGE, INFILLS))
        noise = self.reshaped(self.picture(NOISE), (*self.pair, TERMS, points, *flat))
        shape: Shape = (*self.pair, TERMS, points, *flat)
        difference = self.put("Sub", [image, infill], (*self.pair, 1, 1, *flat))
        foreground = self.put("Mul", [shares, difference], shape)
        background = self.put("Add", [infill, noise], shape)
        mixed = self.put("Add", [background, foreground], shape)
        self.reshaped(mixed, (*self.rows, *self.ends.picture), self.ends.input)
        deletion, insertion = (self._slice(WEIGHTS, 1, index, index + 1) for index in (0, 1))
        return self.put("Mul", [deletion, insertion], self.shapes[deletion])

    def _shares(self, plane: Shape) -> str:
        """The share of the image that each row shows, [M, 4, points, ...]: s m for deletion, 1 - s m for insertion."""
        both = self._upsampled(WEIGHTS)
        deletion, insertion = (self._slice(both, 1, index, index + 1) for index in (0, 1))
        product = self.put("Mul", [deletion, insertion], self.shapes[deletion])
        masks = [deletion, product, insertion, product]
        joined = self.put("Concat", masks, (*self.pair, TERMS, *self.shapes[both][2:]), axis=1)
        wide = self.reshaped(joined, (*self.pair, TERMS, 1, *plane))
        column = (1, TERMS, 1, 1, 1)
        signs, offsets = (self.constant(np.reshape(x, column), np.float32) for x in (_SIGNS, [0, 0, 1, 1]))
        factors = self.node("Mul", [signs, self.node("Reshape", [POINTS, self.constant([1, 1, -1, 1, 1])])])
        self.shapes |= {factors: (1, TERMS, self.recipe.points, 1, 1), offsets: column}
        shape: Shape = (*self.pair, TERMS, self.recipe.points, *plane)
        return self.put("Add", [self.put("Mul", [wide, factors], shape), offsets], shape)

    def penalties(self, masks: str) -> str:
        """l1 mean |1 - D I| + tv BTV(D I)."""
        shape = self.shapes[masks]
        deleted = self.put("Abs", [self.put("Sub", [self.number(1.0), masks], shape)], shape)
        terms = [self._mean(deleted, self.recipe.l1)]
        large = self._upsampled(masks)
        for axis, size in zip((2, 3), self.recipe.grid(self.ends), strict=True):
            if self.recipe.tv and size > 1:
                squares = self._squares(large, axis)
                bilateral = self.put("Mul", [squares, self._similarity(axis)], self.shapes[squares])
                terms += [self._mean(x, self.recipe.tv / 2) for x in (self._squares(masks, axis), bilateral)]
        return self.put("Sum", terms, self.pair)

    def _mean(self, x: str, weight: float) -> str:
        mean = self.put("ReduceMean", [x, self.constant([1, 2, 3])], self.pair, keepdims=0)
        return self.put("Mul", [mean, self.number(weight)], self.pair)

    def _squares(self, x: str, axis: int) -> str:
        differences = self.differences(x, axis)
        return self.put("Mul", [differences, differences], self.shapes[differences])

    def _similarity(self, axis: int) -> str:
        """[M, 1, ...]: `a` for neighbouring pixels, exp(-(difference / edge)^2) averaged over channels."""
        ends, last = self.ends, self.ends.channels_last
        image = self.picture(IMAGE)
        self.shapes[image] = (*self.pair, *ends.picture)
        edges = self.constant(np.reshape(self.recipe.edges, (1, 1, 1, -1) if last else (1, -1, 1, 1)), np.float32)
        steps = self.node("Div", [self.differences(image, axis - 1 if last else axis), edges])
        similarity = self.node("Exp", [self.node("Neg", [self.node("Mul", [steps, steps])])])
        height, width = ends.height - (axis == 2), ends.width - (axis == 3)
        mean = self.node("ReduceMean", [similarity, self.constant([3 if last else 1])])
        return self.reshaped(mean, (*self.pair, 1, height, width))

    def data_loss(self, scores: str) -> str:
        """Half the sum of the four terms."""
        logs = self.log_probabilities(scores)
        probabilities = self.put("Exp", [logs], self.shapes[logs])
        grouped = self.reshaped(probabilities, (*self.pair, self.recipe.rows, self.classes))
        signs = self.constant(np.repeat(_SIGNS, self.recipe.points).reshape(1, -1, 1), np.float32)
        self.shapes[signs] = (1, self.recipe.rows, 1)
        return self._mean_at_label(self.put("Mul", [grouped, signs], self.shapes[grouped]), sign=TERMS / 2)


def gradient_graph(network: onnx.ModelProto, ends: Ends, recipe: BilateralRecipe) -> onnx.ModelProto:
    """The graph of the loss and its gradient, over a network that takes a seed and returns its gradient too."""
    edit.refuse_names(network.graph, {*_INPUTS, POINTS, NOISE, DATA_LOSS, LOSS, SLOPE})
    fresh, b, gradient = mask_objective.with_gradient_of_weights(network, ends, Bilateral, recipe)
    b.node("Identity", [gradient], SLOPE)
    pairs, value = recipe.pairs or "M", helper.make_tensor_value_info
    noise = value(NOISE, TensorProto.INT32, [pairs, recipe.rows])
    points = value(POINTS, TensorProto.FLOAT, [recipe.points])
    slope = value(SLOPE, TensorProto.FLOAT, [pairs, recipe.masks, *recipe.grid(ends)])
    inputs = [*(recipe.declared(name, ends) for name in _INPUTS), noise, points]
    return mask_objective.closed(fresh, b, ends, inputs, [recipe.declared(LOSS, ends), slope])
