"""Scores from a plain function that stands in for a model, checked before they are used."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from auditkit.arrays import Array
from auditkit.errors import AuditError, RuntimeFailure
from auditkit.model.signature import Kind

Classify = Callable[[Array], ArrayLike]  # preprocessed images in, one row of scores for each out

_ROUNDING = 1e-5  # a probability may lie outside 0 to 1 by this much
_MESSAGE_CHARACTERS = 300  # quoted of an exception that the function raised


def function_scores(function: Classify, rows: Array, numbers: int | None) -> Array:
    """The function's scores [N, numbers] for preprocessed images; None accepts any number of classes."""
    try:
        result = function(rows.copy())  # it may change them
    except AuditError:
        raise
    except Exception as error:
        shape = f"{rows.dtype}{list(rows.shape)}"
        raise RuntimeFailure(f"the classifier function failed on {shape} with {_summary(error)}.") from error
    expected = f"expected one row of {numbers or 'K >= 2'} scores for each picture, [{len(rows)}, {numbers or 'K'}]"
    try:
        scores = np.asarray(result)
    except Exception as error:  # rows of several lengths, say, or a tensor that lies on a GPU
        raise RuntimeFailure(
            f"the classifier function gave {type(result).__name__} that makes no array ({_summary(error)}); {expected}."
        ) from error
    fits = scores.ndim == 2 and len(scores) == len(rows) and scores.shape[1] and numbers in (None, scores.shape[1])
    if not fits or scores.dtype.kind not in "biuf":
        shape = f"{type(result).__name__} ({scores.dtype.name}{list(scores.shape)})"
        raise RuntimeFailure(f"the classifier function gave {shape} for {len(rows)} pictures; {expected}.")
    _check_finite(scores)
    return scores


def _summary(error: Exception) -> str:
    text = " ".join(str(error)[:_MESSAGE_CHARACTERS].split()).removesuffix(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _check_finite(scores: Array) -> None:
    """Refuse rows that give no probabilities. Minus infinity beside finite scores is a probability of 0."""
    if bad := np.count_nonzero(~np.isfinite(scores.max(axis=1))):
        raise RuntimeFailure(
            f"the classifier function gave NaN or infinity for {bad} of {len(scores)} pictures; each picture needs "
            "finite scores, also masked ones and noise."
        )


def check_range(scores: Array, kind: Kind) -> None:
    """Refuse scores outside 0 to 1 where the function is taken to return probabilities."""
    outside = (scores < -_ROUNDING) | (scores > 1 + _ROUNDING)
    if kind in ("probabilities", "sigmoid") and outside.any():
        raise RuntimeFailure(
            f"the classifier function gave {scores[outside][0]:g}, but its scores were taken for probabilities (kind "
            f"{kind}), which lie between 0 and 1; if they are logits, open it with auditkit.load(function, "
            "overrides=auditkit.Overrides(kind='logits'), ...)."
        )
