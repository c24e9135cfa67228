"""Completeness and soundness of heatmaps, and the labels over which they are taken (Gupta et al. 2022, Section 3.2).

Rows are (image, label) pairs. `auc` is the insertion AUC of the label's heatmap, `prob` the label's probability on the
whole image; both, and every score here, are shares of one. A higher score is better.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.errors import BadInput

EPS1 = 0.01  # the paper's Section 6
EPS2 = 0.001
FLOOR = 0.01  # least probability of a label that best effort looks at
ALL_UP_TO = 20  # classes up to which every label is looked at by default
ROUNDING = 1e-5  # a float32 sum of probabilities may leave [0, 1] by this much


@dataclass(frozen=True)
class PerImage:
    """One value for each image, in ascending order of the image's index; NaN where the image has none."""

    images: Array  # [I], the distinct image indices
    values: Array  # [I]

    @property
    def counted(self) -> Array:
        """Which images have a value."""
        return ~np.isnan(self.values)

    @property
    def mean(self) -> float:
        """Mean over the images that have a value; NaN when none has."""
        return float(self.values[self.counted].mean()) if self.counted.any() else float("nan")


def alpha(auc: npt.ArrayLike, prob: npt.ArrayLike, eps1: float = EPS1) -> Array:
    """Completeness of each pair: min(max(AUC, eps1) / f, 1), and 1 where f = 0."""
    shown, whole = _shares(auc, "AUC"), _shares(prob, "probability")
    return _ratio_up_to_one(np.maximum(shown, _threshold(eps1, "eps1")), whole)


def beta(auc: npt.ArrayLike, prob: npt.ArrayLike, eps2: float = EPS2) -> Array:
    """Soundness of each pair: min(max(f, eps2) / AUC, 1), and 1 where AUC = 0."""
    shown, whole = _shares(auc, "AUC"), _shares(prob, "probability")
    return _ratio_up_to_one(np.maximum(whole, _threshold(eps2, "eps2")), shown)


def completeness(alphas: npt.ArrayLike) -> float:
    """Mean of alpha over all the pairs given."""
    return float(_scores(alphas).mean())


def soundness(betas: npt.ArrayLike) -> float:
    """Mean of beta over all the pairs given."""
    return float(_scores(betas).mean())


def worst_completeness(alphas: npt.ArrayLike, image_index: npt.ArrayLike) -> float:
    """Mean over images of the least alpha among the image's labels: a mean of minima, no adversarial bound."""
    return worst_per_image(alphas, image_index).mean


def worst_soundness(betas: npt.ArrayLike, image_index: npt.ArrayLike) -> float:
    """Mean over images of the least beta among the image's labels: a mean of minima, no adversarial bound."""
    return worst_per_image(betas, image_index).mean


def worst_per_image(values: npt.ArrayLike, image_index: npt.ArrayLike) -> PerImage:
    """The least value of each image over its rows, which may come in any order."""
    scores = _scores(values)
    images, position = _grouped(image_index, len(scores))
    return PerImage(images, _minima(scores, position, len(images)))


def best_effort(
    alphas: npt.ArrayLike, prob: npt.ArrayLike, label: npt.ArrayLike, predicted: npt.ArrayLike,
    image_index: npt.ArrayLike, floor: float = FLOOR,
) -> PerImage:  # fmt: skip
    """The least alpha of each image over its labels with f >= floor that are not the prediction.

    An image without such a label is left out (NaN). The label set must hold each image's second-best label, as `all`
    and `topK` from 2 do: an image counts when that label has f >= floor. All arguments have one entry a row.
    """
    scores = _scores(alphas)
    images, position = _grouped(image_index, len(scores))
    asked = [np.asarray(argument) for argument in (prob, label, predicted)]
    if any(argument.shape != scores.shape for argument in asked):
        raise BadInput(f"probability, label and prediction need one entry for each of the {len(scores)} rows.")
    _shares(prob, "probability")
    tried = _reaches(asked[0], floor) & (asked[1] != asked[2])
    least = _minima(scores[tried], position[tried], len(images))
    return PerImage(images, np.where(np.isinf(least), np.nan, least))


@dataclass(frozen=True)
class LabelSet:
    """A rule that names the labels to look at; exactly one field is set, none means every label."""

    top: int | None = None
    floor: float | None = None
    listed: tuple[int, ...] | None = None

    def __str__(self) -> str:
        """The rule as a user writes it, and as it stands in the name of a result."""
        if self.top is not None:
            return f"top{self.top}"
        if self.floor is not None:
            return f"f>={self.floor!r}"
        return ",".join(map(str, self.listed)) if self.listed is not None else "all"


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
        return LabelSet(listed=_each_once([int(part) for part in plain.split(",")]))
    raise BadInput(
        f"labels '{text}' name no label set; write all, topK (top10), f>=p with p above 0 and up to 1 (f>=0.01), or a "
        "list of class indices (3,7,9)."
    )


def default_labels(classes: int) -> LabelSet:
    """Every label up to 20 classes, the ten most probable above."""
    return LabelSet() if classes <= ALL_UP_TO else LabelSet(top=10)


def choose_labels(prob: npt.ArrayLike, labels: LabelSet | str | None = None) -> list[Array]:
    """The labels of each image, given its probabilities [N, K] (or [K] for one image).

    `topK` and `f>=p` list the most probable label first, equal ones by lower index; `all` ascends and a list keeps
    its order. No label may reach p on an image: its array is then empty, and the image has no figure.
    """
    table = np.atleast_2d(np.asarray(prob))
    _shares(table, "probability")
    classes = table.shape[1]
    rule = parse_labels(labels) if isinstance(labels, str) else labels or default_labels(classes)
    if rule.listed is not None:
        listed = _of_the_model(rule.listed, classes)
        return [np.array(listed) for _ in table]
    if rule.top is None and rule.floor is None:
        return [np.arange(classes) for _ in table]
    order = np.argsort(-table, axis=1, kind="stable")
    if rule.floor is not None:
        reached = _reaches(table, rule.floor).sum(axis=1)
        return [row[:count].copy() for row, count in zip(order, reached, strict=True)]
    if rule.top is not None and rule.top > classes:
        raise BadInput(f"labels top{rule.top} ask for more labels than the model's {classes} classes; use all.")
    return [row[: rule.top].copy() for row in order]


def _ratio_up_to_one(top: Array, bottom: Array) -> Array:
    """min(top / bottom, 1), and 1 over 0; divides only where the ratio is below 1, so it never overflows."""
    top, bottom = np.broadcast_arrays(top, bottom)
    return np.asarray(np.divide(top, bottom, out=np.ones(top.shape), where=top < bottom))


def _minima(values: Array, position: Array, count: int) -> Array:
    """Least value at each position; infinity where there is none."""
    least = np.full(count, np.inf)
    np.minimum.at(least, position, values)
    return least


def _reaches(prob: Array, floor: float) -> Array:
    """Whether prob >= floor in the precision of `prob`: a float32 0.01 reaches 0.01."""
    precise = prob if np.issubdtype(prob.dtype, np.floating) else prob.astype(np.float64)
    return np.asarray(precise >= precise.dtype.type(floor))


def _grouped(image_index: npt.ArrayLike, rows: int) -> tuple[Array, Array]:
    """Distinct images in ascending order, and the position of each row's image among them."""
    index = np.asarray(image_index)
    if index.shape != (rows,):
        raise BadInput(f"image_index needs one entry for each of the {rows} rows, found shape {index.shape}.")
    images, position = np.unique(index, return_inverse=True)
    return images, position


def _scores(values: npt.ArrayLike) -> Array:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not scores.size:
        raise BadInput(f"scores need one entry a row and at least one row, found shape {scores.shape}.")
    return _finite(scores, "score")


def _shares(values: npt.ArrayLike, what: str) -> Array:
    shares = _finite(np.asarray(values, dtype=np.float64), what)
    outside = (shares < -ROUNDING) | (shares > 1 + ROUNDING)
    if outside.any():
        raise BadInput(f"each {what} lies between 0 and 1, found {shares[outside][0]:g}.")
    return np.asarray(np.clip(shares, 0.0, 1.0))


def _finite(values: Array, what: str) -> Array:
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise BadInput(f"{bad} of {values.size} entries of {what} are NaN or infinite; leave failed rows out first.")
    return values


def _threshold(eps: float, name: str) -> float:
    if not 0 <= eps <= 1:
        raise BadInput(f"{name} lies between 0 and 1, found {eps:g}.")
    return eps


def _each_once(labels: Sequence[int]) -> tuple[int, ...]:
    if len(set(labels)) < len(labels):
        label = next(label for position, label in enumerate(labels) if label in labels[:position])
        raise BadInput(f"label {label} stands twice in the list; name each label once.")
    return tuple(labels)


def _of_the_model(labels: Sequence[int], classes: int) -> list[int]:
    """The labels, each once and each one of the model's classes."""
    strange = [label for label in _each_once(labels) if not 0 <= label < classes]
    if strange or not labels:
        found = f"holds {strange[0]}" if strange else "is empty"
        raise BadInput(f"the model has classes 0 to {classes - 1}, but the list of labels {found}.")
    return list(labels)
