"""A metric before it is averaged: its values, or the reason why there are none; and what a figure rests on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from auditkit.arrays import Array

Cause = Literal[
    "not-measured", "no-map-for-predicted-label", "no-map-for-named-label", "maps-missing", "only-predicted-label",
    "no-second-label", "no-second-label-above", "one-image-has-no-halves", "one-label", "too-many-labels",
]  # fmt: skip
NoteKind = Literal[
    "no-spread", "equal-values", "few-images", "tuned-delta", "images-with-second-label", "images-with-region",
    "clipped",
]  # fmt: skip
_NEEDS: dict[Cause | NoteKind, tuple[str, ...]] = {
    "maps-missing": ("count", "total"), "no-second-label": ("value",), "no-second-label-above": ("value",),
    "equal-values": ("value",), "tuned-delta": ("count", "value"), "images-with-second-label": ("count", "total"),
    "images-with-region": ("count", "total"), "clipped": ("count", "total", "value"), "too-many-labels": ("count",),
}  # fmt: skip
LABELS_PER_IMAGE = 2**31  # in the keys of Values: image * LABELS_PER_IMAGE + label
T = TypeVar("T")


def require(fact: object, kind: str, names: Iterable[str]) -> None:
    """ValueError where a fact of this kind lacks a field that it is about."""
    for name in names:
        if getattr(fact, name) is None:
            raise ValueError(f"is '{kind}' without '{name}'.")


@dataclass(frozen=True)
class NotAssessed:
    """Why a metric has no figure."""

    metric: str
    cause: Cause
    count: int | None = None
    total: int | None = None
    value: float | None = None  # the probability that a second label would need

    def __post_init__(self) -> None:
        require(self, self.cause, _NEEDS.get(self.cause, ()))

    @property
    def name(self) -> str:
        """The metric, as Values call it."""
        return self.metric

    @property
    def by_nature(self) -> bool:
        """Whether the model's probabilities are the cause: nobody could have supplied what is missing."""
        return self.cause in ("no-second-label", "no-second-label-above")


@dataclass(frozen=True)
class Note:
    """What a figure rests on, or why its interval is missing or means little."""

    kind: NoteKind
    count: int | None = None
    total: int | None = None
    value: float | None = None  # delta, the share of images that may differ, or the clipping limit

    def __post_init__(self) -> None:
        require(self, self.kind, _NEEDS.get(self.kind, ()))

    @property
    def about_interval(self) -> bool:
        """Whether it is about the interval, not about the figure itself."""
        return self.kind in ("no-spread", "equal-values", "few-images")


@dataclass(frozen=True)
class Values:
    """A metric before it is averaged: a value for each key, which is an image or an (image, label) pair."""

    name: str
    keys: Array  # [V] distinct integers; equal keys of two sources are about the same pair
    images: Array  # [V] image of each value
    values: Array  # [V]
    note: Note | None = None
    over_controls: Array | None = None  # [V] what is compared with a control, where it is not the value

    def on_images(self, images: Array) -> "Values":
        """The metric on some of its images."""
        chosen = np.isin(self.images, images)
        return replace(self, keys=self.keys[chosen], images=self.images[chosen], values=self.values[chosen])

    def image_means(self, images: int) -> Array:
        """Mean of the values on each of `images` images; NaN on images without a value."""
        total = np.bincount(self.images, weights=self.values, minlength=images)
        count = np.bincount(self.images, minlength=images)
        return np.asarray(np.divide(total, count, out=np.full(images, np.nan), where=count > 0))


def paired(first: Values, second: Values, compute: Callable[[Array, Array, Array], T]) -> T | None:
    """`compute(values of first, values of second, images)` over the keys that both have; None where there are none."""
    _, in_first, in_second = np.intersect1d(first.keys, second.keys, assume_unique=True, return_indices=True)
    if not len(in_first):
        return None
    return compute(first.values[in_first], second.values[in_second], first.images[in_first])
