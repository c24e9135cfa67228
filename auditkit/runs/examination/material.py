"""The images of an examination: their pixels, what the model predicts, where its evidence lies, and two halves."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.exchanges import PATCHES, WINDOWS, Side, strongest_window
from auditkit.model import preprocessing
from auditkit.model.classifier import AnyClassifier
from auditkit.model.signature import to_probabilities
from auditkit.runs.executor import Tick, execute_all

PARTNERS = 3  # recipients of each donor
ALIKE = 2  # of them, where chance needs them: with 1, 5.1 % of 1,000 examinations at the limit found something
AT_ONCE = 256  # images built before the model sees them
Predict = Callable[[Sequence[Array]], Array]  # uint8 images [height, width, channels] to probabilities [N, classes]


def predictor(model: AnyClassifier) -> Predict:
    """The model as a function of pixels at its own resolution."""

    def predict(images: Sequence[Array]) -> Array:
        units = [_Pixels(np.stack(images[start : start + AT_ONCE])) for start in range(0, len(images), AT_ONCE)]
        return np.concatenate(execute_all(model, _Predicting(model), units, at_once=1))

    return predict


def probabilities(model: AnyClassifier, pixels: Array, device: AbstractContextManager[None]) -> Array:
    """The probabilities [N, classes] of images."""
    signature = model.signature
    rows = preprocessing.normalised(model.card, pixels, signature.layout, signature.dtype)
    with device:
        return to_probabilities(model.scores(rows), signature.kind)


@dataclass(frozen=True, eq=False)
class _Pixels:
    """Images that the model sees together."""

    pixels: Array


@dataclass(frozen=True)
class _Predicting:
    """Shows images to the model."""

    model: AnyClassifier
    name: ClassVar[str] = "changed images"

    def __call__(self, unit: _Pixels, device: AbstractContextManager[None], _tick: Tick) -> Array:
        return probabilities(self.model, unit.pixels, device)


@dataclass(frozen=True)
class Material:
    """Images, their predicted labels and the maps of these labels."""

    ids: tuple[str, ...]
    pixels: Array  # uint8 [N, height, width, channels]
    predicted: Array  # [N]
    maps: Array  # float32 [N, height, width]
    seed: int

    @cached_property
    def proposes(self) -> Array:
        """Which images propose [N]; the others confirm. Of each predicted label, half of the images do."""
        rng, chosen = np.random.default_rng([self.seed, 1]), np.zeros(len(self.ids), dtype=np.bool_)
        for label in np.unique(self.predicted):
            members = rng.permutation(np.flatnonzero(self.predicted == label))
            chosen[members[int(rng.integers(2)) :: 2]] = True
        return chosen

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """Each image as one side of an exchange."""
        rng, (height, width) = np.random.default_rng([self.seed, 2]), self.pixels.shape[1:3]
        sides = []
        for pixels, heatmap in zip(self.pixels, self.maps, strict=True):
            windows = {name: strongest_window(heatmap, size) for name, size in WINDOWS.items()}
            elsewhere = strongest_window(rng.random((height, width)), WINDOWS["small"])
            sides.append(Side(pixels, windows, elsewhere, rng.permutation(PATCHES * PATCHES)))
        return tuple(sides)

    @cached_property
    def pairs(self) -> Array:
        """Recipient and donor [pairs, 2]: of the same half, with different predicted labels.

        Where half of the images or more have one label, ALIKE recipients of each donor have the donor's label: few
        other exchanges would tell how often the frequent label is predicted by chance.
        """
        rng, pairs = np.random.default_rng([self.seed, 3]), list[tuple[int, int]]()
        alike = ALIKE if 2 * np.bincount(self.predicted).max() >= len(self.ids) else 0
        for donor in range(len(self.ids)):
            same_half = self.proposes == self.proposes[donor]
            same_half[donor] = False
            same_label = self.predicted == self.predicted[donor]
            partners = [*rng.permutation(np.flatnonzero(same_half & ~same_label))[: PARTNERS - alike],
                        *rng.permutation(np.flatnonzero(same_half & same_label))[:alike]]  # fmt: skip
            pairs += [(int(recipient), donor) for recipient in partners]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def pair_labels(self) -> Array:
        """The predicted labels of recipient and donor [pairs, 2]."""
        return np.asarray(self.predicted[self.pairs])

    @cached_property
    def differ(self) -> Array:
        """Whether they differ [pairs]."""
        return np.asarray(self.pair_labels[:, 0] != self.pair_labels[:, 1])
