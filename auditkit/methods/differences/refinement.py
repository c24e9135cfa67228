"""Masks of the paper's kind from forward passes alone: descent on estimated gradients of its objective.

    minimise over W:  E_other[ -log f(M image + (1 - M) other, label) ] + tv TV(M) + l1 |M|,  M = spread(sigmoid(W))

The model's part of the gradient is estimated from pairs W + h, W - h along rows of a Hadamard matrix, each pair over
the same other picture; the two penalties have exact gradients. The grid is coarse first, then twice as fine. Many masks
descend together, each with its own random numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.methods.differences.grids import Spread, stretched

_SIDES = (8, 16)  # of the grid, coarse to fine
_PAIRS = 16  # per step
PASSES_A_STEP = 2 * _PAIRS
_RATE_FIRST, _RATE_LAST = 0.2, 0.02
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # of Adam
_SIGMA = 1.0  # step of a finite difference, in every logit
_LEAST_PROB = 1e-6  # so that the log is finite


@dataclass(frozen=True)
class Objective:
    """What many masks minimise together."""

    # Grids [masks, 2 * pairs, rows, columns], both of a pair adjacent -> probabilities [masks, 2 * pairs]
    probabilities: Callable[[Array, Spread], Array]
    generators: Sequence[np.random.Generator]  # one for each mask
    tv: float  # weight of the total variation, a sum of squared differences
    l1: float  # weight of the mask's sum

    def slope(self, logits: Array, spread: Spread) -> Array:
        """The gradient by the logits [masks, rows, columns]: by central differences for -log f, exact for the rest."""
        count, *shape = logits.shape
        size = shape[0] * shape[1]
        moves = np.stack([directions(size, _PAIRS, rng) for rng in self.generators]).reshape(count, _PAIRS, *shape)
        both = np.stack([logits[:, None] + _SIGMA * moves, logits[:, None] - _SIGMA * moves], axis=2)
        grids = _sigmoid(both).reshape(count, 2 * _PAIRS, *shape).astype(np.float32)
        losses = -np.log(np.maximum(self.probabilities(grids, spread), _LEAST_PROB))
        rises = (losses[:, ::2] - losses[:, 1::2]) / (2 * _SIGMA)
        return np.asarray(np.mean(rises[:, :, None, None] * moves, axis=1)) + self.penalty_slope(logits, spread)

    def penalty_slope(self, logits: Array, spread: Spread) -> Array:
        """The gradient of both penalties."""
        masks, shares = mask(logits, spread), _sigmoid(logits)
        slope = np.full_like(masks, self.l1)
        down, across = (2 * self.tv * np.diff(masks, axis=axis) for axis in (1, 2))
        slope[:, 1:] += down
        slope[:, :-1] -= down
        slope[:, :, 1:] += across
        slope[:, :, :-1] -= across
        return np.asarray(spread.down[0].T @ slope @ spread.across[0].T * shares * (1 - shares))


def refined(starts: Array, objective: Objective, passes: int) -> Array:
    """Masks [masks, height, width] after a descent from the ranks of maps, with at most `passes` for each."""
    steps, (_, height, width) = passes // PASSES_A_STEP, starts.shape
    logits = _from_maps(starts, _SIDES[0])
    for number, side in enumerate(_SIDES):
        times = side // logits.shape[1]
        logits = logits.repeat(times, axis=1).repeat(times, axis=2)
        spread = stretched(height, width, side, side)
        stage = range(steps * number // len(_SIDES), steps * (number + 1) // len(_SIDES))
        logits = _descend(logits, spread, objective, stage, steps)
    return mask(logits, spread).astype(np.float32)


def _from_maps(scores: Array, side: int) -> Array:
    """Logits [masks, side, side] in [-1, 1] that rank cells as the maps do."""
    rows, columns = (np.arange(side) * length // side for length in scores.shape[1:])
    sums = np.add.reduceat(np.add.reduceat(scores.astype(np.float64), rows, axis=1), columns, axis=2)
    sizes = np.outer(np.diff([*rows, scores.shape[1]]).clip(1), np.diff([*columns, scores.shape[2]]).clip(1))
    cells = (sums / sizes).reshape(len(scores), -1)
    ranks = np.argsort(np.argsort(cells, axis=1), axis=1)
    return np.asarray(2 * ranks / (side * side - 1) - 1.0).reshape(len(scores), side, side)


def _descend(logits: Array, spread: Spread, objective: Objective, stage: range, steps: int) -> Array:
    """The logits after the steps of one stage: Adam on estimated gradients, with a rate that falls over all steps."""
    mean, square = np.zeros_like(logits), np.zeros_like(logits)
    for count, step in enumerate(stage, start=1):
        slope = objective.slope(logits, spread)
        mean = _BETA1 * mean + (1 - _BETA1) * slope
        square = _BETA2 * square + (1 - _BETA2) * slope**2
        rate = _RATE_FIRST * (_RATE_LAST / _RATE_FIRST) ** (step / max(steps - 1, 1))
        deviation = np.sqrt(square / (1 - _BETA2**count)) + _EPSILON
        logits = logits - rate * mean / (1 - _BETA1**count) / deviation
    return logits


def directions(size: int, count: int, rng: np.random.Generator) -> Array:
    """Random rows [count, size] of a Hadamard matrix with random signs, orthogonal to each other."""
    from scipy.linalg import hadamard  # noqa: PLC0415 - slow to import

    order = 1 << (size - 1).bit_length()
    rows = hadamard(order)[rng.permutation(order)[:count], :size]
    return np.asarray(rows * rng.choice([-1.0, 1.0], size))


def mask(logits: Array, spread: Spread) -> Array:
    """Masks [masks, height, width] in [0, 1] from logits [masks, rows, columns]."""
    return np.asarray(spread.down[0].astype(np.float64) @ _sigmoid(logits) @ spread.across[0].astype(np.float64))


def _sigmoid(logits: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(logits / 2)))
