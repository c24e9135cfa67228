"""Curves to measure, and what a peer says of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Job:
    """Curves to measure: whose image, which label, what map."""

    pictures: Array  # uint8 [N, h, w, 3] as a user has them
    shown: Array  # uint8 [N, height, width, 3], what the network sees of them
    inputs: Array  # float32 [N, 3, height, width], the network's own
    image: Array  # [C]
    label: Array  # [C]
    maps: Array  # float32 [C, height, width]

    @staticmethod
    def read(path: str) -> "Job":
        """A job that was written with numpy.savez."""
        with np.load(path) as file:
            return Job(**{name: file[name] for name in file.files})

    @property
    def pixels(self) -> int:
        """Of a map."""
        return int(self.maps[0].size)

    def curves(self) -> Iterator[tuple[int, int, Array]]:
        """Image, label and map of each curve."""
        return zip(self.image.tolist(), self.label.tolist(), self.maps, strict=True)

    def alone(self) -> Iterator["Job"]:
        """A job for each curve."""
        for place in range(len(self.image)):
            one = slice(place, place + 1)
            yield Job(self.pictures, self.shown, self.inputs, self.image[one], self.label[one], self.maps[one])


@dataclass(frozen=True)
class Answer:
    """Areas, one a curve or one for all, and how many masked images the network was asked about."""

    areas: list[float]
    rows: int
    more: dict[str, Any] | None = None


def softmax(scores: Array) -> Array:
    """Probabilities, over the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def equal_steps(values: Array) -> Array:
    """Area under points in equal steps, which stand along the last axis."""
    return np.asarray((values[..., 1:] + values[..., :-1]).mean(axis=-1) / 2)
