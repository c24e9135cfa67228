"""The objective of meaningful perturbations (Fong & Vedaldi 2017), as nodes: what must go for a label to be lost.

    minimise over m    f(m x + (1 - m) infill, label)  +  l1 mean |1 - m|  +  tv (mean |dm|^beta down + across)

m is coarse, starts at 1 (nothing is deleted) and is kept between 0 and 1; the image sees it upsampled, the penalties
as it is. With jitter, image and infill are moved under the mask at every step, their border pixels repeated.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
from onnx import TensorProto

from auditkit.graph.gradient.builder import Shape
from auditkit.graph.mask_objective import MASK, PICTURES, WEIGHTS, Objective, Recipe
from auditkit.graph.mask_step import COUNT

# Multiples of these two, less their whole parts, cover the unit square evenly (Roberts' R2 sequence).
EVENLY = (0.7548776662466927, 0.5698402909980532)


@dataclass(frozen=True)
class DeletionRecipe(Recipe):
    """What is minimised, and how."""

    beta: float = 3.0
    jitter: int = 0  # pixels by which the image is moved at most, either way


class Deletion(Objective):
    """Nodes in front of the network and behind it."""

    recipe: DeletionRecipe

    def masks(self) -> str:
        """The mask [M, 1, H, W], from 0 (infill) to 1 (image)."""
        return self._upsampled(WEIGHTS)

    def picture(self, places: str) -> str:
        """Pictures of the bank, moved by as much as the step says."""
        if not self.recipe.jitter:
            return super().picture(places)
        size, ahead = prod(self.ends.picture), self.constant([-1, 1, 1, 1])
        first = self.node("Mul", [self.node("Reshape", [places, ahead]), self.constant(size, np.int32)])
        flat = self.node("Reshape", [PICTURES, self.constant([-1])])
        return self.node("Gather", [flat, self.node("Add", [first, self._positions()])], axis=0)

    def _positions(self) -> str:
        """[M, ...] int32: which number of a picture stands where, once the picture is moved."""
        shares = (*EVENLY, None) if self.ends.channels_last else (None, *EVENLY)
        first, second, third = (self._along(axis, share) for axis, share in enumerate(shares))
        return self.node("Add", [self.node("Add", [first, second]), third])

    def _along(self, axis: int, share: float | None) -> str:
        """What one axis of a picture adds to a position; what would lie beyond the border lies at it."""
        shape = self.ends.picture
        side, apart = shape[axis], prod(shape[axis + 1 :])
        at = self.constant(np.arange(side).reshape([-1 if axis == own else 1 for own in (None, 0, 1, 2)]), np.int32)
        if share is not None:
            moved = self.node("Add", [at, self._shift(share)])
            at = self.node(
                "Max", [self.node("Min", [moved, self.constant(side - 1, np.int32)]), self.constant(0, np.int32)]
            )
        return self.node("Mul", [at, self.constant(apart, np.int32)])

    def _shift(self, share: float) -> str:
        """[M, 1, 1, 1] int32, from -jitter to jitter."""
        jitter = self.recipe.jitter
        turned = self.node("Mul", [COUNT, self.constant(share, np.float64)])
        rest = self.node("Sub", [turned, self.node("Floor", [turned])])
        wide = self.node("Floor", [self.node("Mul", [rest, self.constant(2 * jitter + 1, np.float64)])])
        return self.node("Cast", [self.node("Sub", [wide, self.constant(jitter, np.float64)])], to=TensorProto.INT32)

    def penalties(self, masks: str) -> str:
        """l1 mean |1 - m| + tv TV of the coarse mask; the upsampled one goes out."""
        self.node("ReduceSum", [masks, self.constant([1])], MASK, keepdims=0)
        gone = self.put("Sub", [self.number(1.0), WEIGHTS], self.shapes[WEIGHTS])
        terms = [(self._mean_power(gone, 1.0), self.recipe.l1)]
        for axis, size in zip((2, 3), self.recipe.grid(self.ends), strict=True):
            if self.recipe.tv and size > 1:
                terms.append((self._mean_power(self.steps(WEIGHTS, axis), self.recipe.beta), self.recipe.tv))
        weighted = [self.put("Mul", [term, self.number(weight)], self.pair) for term, weight in terms]
        return self.put("Sum", weighted, self.pair)

    def _mean_power(self, x: str, power: float) -> str:
        """The mean of |x|^power for each pair."""
        shape: Shape = self.shapes[x]
        raised = self.put("Abs", [x], shape)
        if power != 1:
            raised = self.put("Pow", [raised, self.number(power)], shape)
        return self.put("ReduceMean", [raised, self.constant([1, 2, 3])], self.pair, keepdims=0)

    def data_loss(self, scores: str) -> str:
        """f(label)."""
        logs, classes = self.log_probabilities(scores), max(self.ends.outputs, 2)
        likely = self.put("Exp", [logs], self.shapes[logs])
        return self._picked(self.reshaped(likely, (*self.pair, 1, classes)), self._is_label(classes), sign=1.0)
