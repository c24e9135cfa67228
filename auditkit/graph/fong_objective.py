"""The objective of meaningful perturbations (Fong & Vedaldi 2017), as nodes: what must be deleted to lose a label.

    minimise over m    f(m x + (1 - m) infill, label)  +  l1 mean |1 - m|  +  tv (mean |dm|^beta down + across)

m is coarse, starts at 1 (nothing is deleted) and is kept between 0 and 1. The image sees it upsampled, the penalties
see it coarse. With jitter, image and infill are shifted under the mask in every step; border pixels are repeated.
"""

from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np
from onnx import TensorProto

from auditkit.graph.mask_objective import COUNT, MASK, PICTURES, WEIGHTS, Objective, Recipe

# The fractional parts of multiples of these two cover the unit square evenly (Roberts' R2 sequence).
EVENLY = (0.7548776662466927, 0.5698402909980532)


@dataclass(frozen=True)
class DeletionRecipe(Recipe):
    """The terms of the objective, and how it is minimised."""

    beta: float = 3.0
    jitter: int = 0  # the largest shift of the image, in pixels


class Deletion(Objective):
    """Nodes in front of the network and behind it."""

    recipe: DeletionRecipe

    def masks(self) -> str:
        """The mask [M, 1, H, W], from 0 (infill) to 1 (image)."""
        return self._upsampled(WEIGHTS)

    def picture(self, positions: str) -> str:
        """Pictures of the bank, shifted by this step's jitter."""
        if not self.recipe.jitter:
            return super().picture(positions)
        size, column = prod(self.ends.picture), self.constant([-1, 1, 1, 1])
        first = self.node("Mul", [self.node("Reshape", [positions, column]), self.constant(size, np.int32)])
        flat = self.node("Reshape", [PICTURES, self.constant([-1])])
        shares = (*EVENLY, None) if self.ends.channels_last else (None, *EVENLY)
        axes = [self._along(axis, share) for axis, share in enumerate(shares)]
        within = reduce(lambda x, y: self.node("Add", [x, y]), axes)  # [M, ...], positions in one picture
        return self.node("Gather", [flat, self.node("Add", [first, within])], axis=0)

    def _along(self, axis: int, share: float | None) -> str:
        """The contribution of one axis to the positions; the border pixel stands for those beyond the border."""
        size, stride = self.ends.picture[axis], prod(self.ends.picture[axis + 1 :])
        shape = [1, 1, 1, 1]
        shape[1 + axis] = size
        index = self.constant(np.arange(size).reshape(shape), np.int32)
        if share is not None:
            shifted = self.node("Add", [index, self._shift(share)])
            below = self.node("Min", [shifted, self.constant(size - 1, np.int32)])
            index = self.node("Max", [below, self.constant(0, np.int32)])
        return self.node("Mul", [index, self.constant(stride, np.int32)])

    def _shift(self, share: float) -> str:
        """[M, 1, 1, 1] int32, from -jitter to jitter."""
        jitter = self.recipe.jitter
        multiple = self.node("Mul", [COUNT, self.constant(share, np.float64)])
        fraction = self.node("Sub", [multiple, self.node("Floor", [multiple])])
        choice = self.node("Floor", [self.node("Mul", [fraction, self.constant(2 * jitter + 1, np.float64)])])
        return self.node("Cast", [self.node("Sub", [choice, self.constant(jitter, np.float64)])], to=TensorProto.INT32)

    def penalties(self, masks: str) -> str:
        """l1 mean |1 - m| + tv TV of the coarse mask; the upsampled one becomes an output."""
        self.node("ReduceSum", [masks, self.constant([1])], MASK, keepdims=0)
        deleted = self.put("Sub", [self.number(1.0), WEIGHTS], self.shapes[WEIGHTS])
        terms = [(self._mean_power(deleted, 1.0), self.recipe.l1)]
        for axis, size in zip((2, 3), self.recipe.grid(self.ends), strict=True):
            if self.recipe.tv and size > 1:
                terms.append((self._mean_power(self.differences(WEIGHTS, axis), self.recipe.beta), self.recipe.tv))
        weighted = [self.put("Mul", [term, self.number(weight)], self.pair) for term, weight in terms]
        return self.put("Sum", weighted, self.pair)

    def _mean_power(self, x: str, power: float) -> str:
        """The mean of |x|^power for each pair."""
        shape = self.shapes[x]
        raised = self.put("Abs", [x], shape)
        if power != 1:
            raised = self.put("Pow", [raised, self.number(power)], shape)
        return self.put("ReduceMean", [raised, self.constant([1, 2, 3])], self.pair, keepdims=0)

    def data_loss(self, scores: str) -> str:
        """f(label)."""
        logs = self.log_probabilities(scores)
        probabilities = self.put("Exp", [logs], self.shapes[logs])
        return self._mean_at_label(self.reshaped(probabilities, (*self.pair, 1, self.classes)), sign=1.0)
