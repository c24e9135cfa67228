"""True masks from forward passes alone: descent on estimated gradients of the paper's objective.

    minimise over W:  E_other[ -log f(M image + (1 - M) other, label) ] + tv TV(M) + l1 |M|,  M = spread(sigmoid(W))

The model's part of the gradient is estimated from pairs W + h, W - h along rows of a Hadamard matrix, each pair over
one other picture; the two penalties have exact gradients. First a coarse grid, then one twice as fine. Many masks
descend side by side, each with random numbers of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.methods.differences.grids import Spread, stretched

# Grids [masks, 2 * pairs, rows, columns], the two of a pair together -> probabilities [masks, 2 * pairs]
Ask = Callable[[Array, Spread], Array]

SIDES = (8, 16)  # of the grid, coarse to fine
PAIRS = 16  # a step
PASSES_A_STEP = 2 * PAIRS
RATE_FIRST, RATE_LAST = 0.2, 0.02
MOMENTUM, SQUARES, EPSILON = 0.9, 0.999, 1e-8
SIGMA = 1.0  # length of a step along a direction, in every logit
LEAST_PROBABILITY = 1e-6


@dataclass(frozen=True)
class Penalties:
    """Weights of total variation (a sum of squared differences) and of the mask's sum."""

    tv: float
    l1: float


def refined(
    starts: Array, ask: Ask, passes: int, penalties: Penalties, generators: Sequence[np.random.Generator]
) -> Array:
    """Masks [masks, height, width] that descent reaches from the order of maps, with at most so many passes each."""
    steps, (_, height, width) = passes // PASSES_A_STEP, starts.shape
    logits = _from_maps(starts, SIDES[0])
    for number, side in enumerate(SIDES):
        times = side // logits.shape[1]
        logits = logits.repeat(times, axis=1).repeat(times, axis=2)
        spread = stretched(height, width, side, side)
        turn = range(steps * number // len(SIDES), steps * (number + 1) // len(SIDES))
        logits = _descended(logits, spread, ask, turn, steps, penalties, generators)
    return mask(logits, spread).astype(np.float32)


def _from_maps(scores: Array, side: int) -> Array:
    """Logits [masks, side, side] that rank cells as the maps do, from -1 to 1."""
    rows, columns = (np.arange(side) * length // side for length in scores.shape[1:])
    sums = np.add.reduceat(np.add.reduceat(scores.astype(np.float64), rows, axis=1), columns, axis=2)
    sizes = np.outer(np.diff([*rows, scores.shape[1]]).clip(1), np.diff([*columns, scores.shape[2]]).clip(1))
    cells = (sums / sizes).reshape(len(scores), -1)
    ranks = np.argsort(np.argsort(cells, axis=1), axis=1)
    return np.asarray(2 * ranks / (side * side - 1) - 1.0).reshape(len(scores), side, side)


def _descended(
    logits: Array, spread: Spread, ask: Ask, turn: range, steps: int, penalties: Penalties,
    generators: Sequence[np.random.Generator],
) -> Array:  # fmt: skip
    """Adam along estimated gradients; the rate falls over all steps, of which `turn` are these."""
    mean, square = np.zeros_like(logits), np.zeros_like(logits)
    for count, step in enumerate(turn, start=1):
        slope = _model_slope(logits, spread, ask, generators) + penalty_slope(logits, spread, penalties)
        mean = MOMENTUM * mean + (1 - MOMENTUM) * slope
        square = SQUARES * square + (1 - SQUARES) * slope**2
        rate = RATE_FIRST * (RATE_LAST / RATE_FIRST) ** (step / max(steps - 1, 1))
        unbiased = np.sqrt(square / (1 - SQUARES**count)) + EPSILON
        logits = logits - rate * mean / (1 - MOMENTUM**count) / unbiased
    return logits


def _model_slope(logits: Array, spread: Spread, ask: Ask, generators: Sequence[np.random.Generator]) -> Array:
    count, *shape = logits.shape
    size = shape[0] * shape[1]
    moves = np.stack([directions(size, PAIRS, rng) for rng in generators]).reshape(count, PAIRS, *shape)
    both = np.stack([logits[:, None] + SIGMA * moves, logits[:, None] - SIGMA * moves], axis=2)
    grids = _sigmoid(both).reshape(count, 2 * PAIRS, *shape).astype(np.float32)
    losses = -np.log(np.maximum(ask(grids, spread), LEAST_PROBABILITY))
    rises = (losses[:, ::2] - losses[:, 1::2]) / (2 * SIGMA)
    return np.asarray(np.mean(rises[:, :, None, None] * moves, axis=1))


def directions(size: int, count: int, rng: np.random.Generator) -> Array:
    """Rows [count, size] of a Hadamard matrix, at random and with random signs: at right angles to each other."""
    from scipy.linalg import hadamard  # noqa: PLC0415 - slow to import

    order = 1 << (size - 1).bit_length()
    rows = hadamard(order)[rng.permutation(order)[:count], :size]
    return np.asarray(rows * rng.choice([-1.0, 1.0], size))


def penalty_slope(logits: Array, spread: Spread, penalties: Penalties) -> Array:
    """Exact gradient of both penalties to the logits, through the spread and the sigmoid."""
    masks, shares = mask(logits, spread), _sigmoid(logits)
    slope = np.full_like(masks, penalties.l1)
    down, across = (2 * penalties.tv * np.diff(masks, axis=axis) for axis in (1, 2))
    slope[:, 1:] += down
    slope[:, :-1] -= down
    slope[:, :, 1:] += across
    slope[:, :, :-1] -= across
    return np.asarray(spread.down[0].T @ slope @ spread.across[0].T * shares * (1 - shares))


def mask(logits: Array, spread: Spread) -> Array:
    """The masks [masks, height, width] of logits [masks, rows, columns]."""
    return np.asarray(spread.down[0].astype(np.float64) @ _sigmoid(logits) @ spread.across[0].astype(np.float64))


def _sigmoid(logits: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(logits / 2)))
