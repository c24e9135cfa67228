"""Completeness and soundness of heatmaps, and the labels over which they are taken (Gupta et al. 2022, Section 3.2).

Rows are (image, label) pairs. `auc` is the insertion AUC of the label's heatmap, `prob` (f) the label's probability on
the unmasked image. Both, and every score here, lie in [0, 1]; a higher score is better. A row's completeness is the
paper's alpha, its soundness the paper's beta. The metrics are their means over all rows, and the worst-case forms means
over images of `worst_per_image`.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.metrics.statistics import finite, finite_rows, grouped

EPS1 = 0.01  # least AUC in alpha; the paper's Section 6
EPS2 = 0.001  # least probability in beta; the paper's Section 6
FLOOR = 0.01  # least probability of a label that counts for best effort
_ALL_UP_TO = 20  # classes; with more, the default is the most probable labels, which keeps the work bounded
_DEFAULT_TOP = 10  # labels per image above that
ROUNDING = 1e-5  # a float32 sum of probabilities may leave [0, 1] by this much


def completeness(auc: npt.ArrayLike, prob: npt.ArrayLike, eps1: float = EPS1) -> Array:
    """The paper's alpha of each row, [rows] in [0, 1]: min(max(AUC, eps1) / f, 1), and 1 where f = 0."""
    return _ratio_up_to_one(_shares(auc, "AUC"), _shares(prob, "probability"), eps1, "eps1")


def soundness(auc: npt.ArrayLike, prob: npt.ArrayLike, eps2: float = EPS2) -> Array:
    """The paper's beta of each row, [rows] in [0, 1]: min(max(f, eps2) / AUC, 1), and 1 where AUC = 0."""
    return _ratio_up_to_one(_shares(prob, "probability"), _shares(auc, "AUC"), eps2, "eps2")


def worst_per_image(values: npt.ArrayLike, image_index: npt.ArrayLike) -> tuple[Array, Array]:
    """The images in ascending order, and the least alpha or beta [rows] of each; not an adversarial bound."""
    scores = finite_rows(values, "scores")
    images, position = grouped(image_index, len(scores))
    return images, _minima(scores, position, len(images))


def best_effort(
    alphas: npt.ArrayLike, prob: npt.ArrayLike, label: npt.ArrayLike, predicted: npt.ArrayLike,
    image_index: npt.ArrayLike, floor: float = FLOOR,
) -> tuple[Array, Array]:  # fmt: skip
    """The images that have a label with f >= floor besides the predicted one, and the least alpha of those labels.

    The label set must include each image's second-best label, as `all` and `topK` from 2 do: an image counts when that
    label has f >= floor. All arguments are [rows].
    """
    scores = finite_rows(alphas, "scores")
    images, position = grouped(image_index, len(scores))
    probs, labels, predictions = (np.asarray(argument) for argument in (prob, label, predicted))
    if any(argument.shape != scores.shape for argument in (probs, labels, predictions)):
        raise BadInput(f"probability, label and prediction need one entry for each of the {len(scores)} rows.")
    _shares(prob, "probability")
    eligible = _reaches(probs, floor) & (labels != predictions)
    least = _minima(scores[eligible], position[eligible], len(images))
    return images[np.isfinite(least)], least[np.isfinite(least)]


@dataclass(frozen=True)
class LabelSet:
    """Which labels of each image are evaluated; at most one field is set, and none means every label."""

    top: int | None = None
    floor: float | None = None
    labels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        repeated = [label for label, count in Counter(self.labels).items() if count > 1]
        if repeated:
            raise BadInput(f"label {repeated[0]} is listed twice; name each label once.")

    def __str__(self) -> str:
        if self.top is not None:
            return f"top{self.top}"
        if self.floor is not None:
            return f"f>={self.floor!r}"
        return ",".join(map(str, self.labels)) if self.labels is not None else "all"


@functools.cache
def parse_labels(text: str) -> LabelSet:
    """The label set that `text` names: all, topK as in top10, f>=p as in f>=0.01, or a list as in 3,7,9."""
    plain = re.sub(r"\s", "", text).casefold()
    if plain == "all":
        return LabelSet()
    if re.fullmatch(r"top[1-9][0-9]{0,8}", plain):
        return LabelSet(top=int(plain[3:]))
    if re.fullmatch(r"f>=([0-9]+\.?[0-9]*|\.[0-9]+)(e-?[0-9]{1,3})?", plain) and 0 < float(plain[3:]) <= 1:
        return LabelSet(floor=float(plain[3:]))
    if re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", plain):
        return LabelSet(labels=tuple(int(part) for part in plain.split(",")))
    rules = "all, topK (top10), f>=p with p above 0 and up to 1 (f>=0.01), or a list of class indices (3,7,9)"
    raise BadInput(f"labels '{text}' is not a label set; write {rules}.")


def default_labels(classes: int) -> LabelSet:
    """Every label for up to 20 classes, the ten most probable ones for more."""
    return LabelSet() if classes <= _ALL_UP_TO else LabelSet(top=_DEFAULT_TOP)


def same_rule(first: str | None, second: str | None, classes: int) -> bool:
    """Whether two texts name the same label set, however they are written; without a text it is the default."""
    try:
        rules = {parse_labels(text) if text else default_labels(classes) for text in (first, second)}
    except BadInput:
        return False
    return len(rules) == 1


def choose_labels(prob: npt.ArrayLike, labels: LabelSet | str | None = None) -> list[Array]:
    """The labels to evaluate on each image, one array per image, for probabilities [images, classes] or [classes].

    `topK` and `f>=p` give the most probable label first, and of equal ones the lower index; `all` is ascending, and a
    list keeps its order. An image on which no label reaches p gets an empty array.
    """
    table = np.atleast_2d(np.asarray(prob))
    _shares(table, "probability")
    classes = table.shape[1]
    rule = parse_labels(labels) if isinstance(labels, str) else labels or default_labels(classes)
    if rule.labels is not None:
        unknown = [label for label in rule.labels if not 0 <= label < classes]
        if unknown or not rule.labels:
            problem = f"contains {unknown[0]}" if unknown else "is empty"
            raise BadInput(f"the model has classes 0 to {classes - 1}, but the list of labels {problem}.")
        return [np.array(rule.labels) for _ in table]
    if rule.top is None and rule.floor is None:
        return [np.arange(classes) for _ in table]
    order = np.argsort(-table, axis=1, kind="stable")
    if rule.floor is not None:
        reached = _reaches(table, rule.floor).sum(axis=1)
        return [row[:count].copy() for row, count in zip(order, reached, strict=True)]
    if rule.top is not None and rule.top > classes:
        raise BadInput(f"labels top{rule.top} names more labels than the model's {classes} classes; use all.")
    return [row[: rule.top].copy() for row in order]


def as_probable(rule_text: str | None, scores: Array, labels: Sequence[int], taken: set[int], slack: float) -> bool:
    """Whether labels that only one of two choices has are as probable as the least probable one that is chosen."""
    rule, other = parse_labels(str(rule_text)), taken ^ set(labels)
    if rule.floor is None and (rule.top is None or len(taken) != len(labels)):
        return not other
    least = scores[labels[-1]] if rule.floor is None else rule.floor
    return all(abs(scores[label] - least) <= slack for label in other)


def _ratio_up_to_one(top: Array, bottom: Array, eps: float, name: str) -> Array:
    """min(max(top, eps) / bottom, 1), and 1 where bottom is 0; dividing only where it is below 1 avoids overflow."""
    if not 0 <= eps <= 1:
        raise BadInput(f"{name} must be between 0 and 1, found {eps:g}.")
    top, bottom = np.broadcast_arrays(np.maximum(top, eps), bottom)
    return np.asarray(np.divide(top, bottom, out=np.ones(top.shape), where=top < bottom))


def _minima(values: Array, position: Array, count: int) -> Array:
    """Least value at each position; infinity where there is none."""
    least = np.full(count, np.inf)
    np.minimum.at(least, position, values)
    return least


def _reaches(prob: Array, floor: float) -> Array:
    """Whether prob >= floor in the precision of `prob`, so that a float32 0.01 reaches 0.01."""
    precise = prob if np.issubdtype(prob.dtype, np.floating) else prob.astype(np.float64)
    return np.asarray(precise >= precise.dtype.type(floor))


def _shares(values: npt.ArrayLike, what: str) -> Array:
    shares = finite(values, f"values of {what}")
    outside = (shares < -ROUNDING) | (shares > 1 + ROUNDING)
    if outside.any():
        raise BadInput(f"each {what} must be between 0 and 1, found {shares[outside][0]:g}.")
    return np.asarray(np.clip(shares, 0.0, 1.0))
