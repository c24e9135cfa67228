"""The check that every answer of a model passes before it is believed."""

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import ModelFailure

_NEGATIVE, _OFF_ONE = 1e-3, 0.1  # of eight-bit probabilities; the first run of a file allows as much


def checked_scores(scores: Array, rows: int, numbers: int | None, giver: str, kind: str = "") -> Array:
    """The scores [rows, numbers] if they are that, and finite; `numbers` None accepts any number of classes.

    Messages name their giver, and their `kind` if they were no array at first.
    """
    fits = scores.ndim == 2 and len(scores) == rows and scores.shape[1] and numbers in (None, scores.shape[1])
    if not fits or scores.dtype.kind not in "biuf":
        expected = f"one row of {numbers or 'K >= 2'} scores for each picture, [{rows}, {numbers or 'K'}]"
        shape = f"{scores.dtype.name}{list(scores.shape)}"
        shape = f"{kind} ({shape})" if kind else shape
        raise ModelFailure(f"{giver} gave {shape} for {rows} picture{'s' * (rows != 1)}; expected {expected}.")
    # Minus infinity beside finite scores is a probability of 0.
    if bad := np.count_nonzero(~np.isfinite(scores.max(axis=1))):
        remedy = "each picture needs finite scores, including masked ones and noise."
        raise ModelFailure(f"{giver} gave NaN or infinity for {bad} of {rows} pictures; {remedy}")
    return scores


def checked_probabilities(prob: Array, giver: str) -> Array:
    """The probabilities [rows, classes] if each row is a distribution."""
    lowest, off = float(prob.min(initial=0)), float(np.abs(prob.sum(axis=1) - 1).max(initial=0))
    if lowest < -_NEGATIVE or off > _OFF_ONE:
        reason = f"probabilities as low as {lowest:.3g}, whose sum is off 1 by up to {off:.3g}"
        raise ModelFailure(f"{giver} gave {reason}; on noise its scores were a distribution.")
    return prob
