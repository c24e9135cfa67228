"""Pictures that stand in for hidden pixels, as the network takes them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput
from auditkit.metrics.protocols import rise_blur
from auditkit.model import preprocessing
from auditkit.model.card import Card
from auditkit.model.signature import Signature
from auditkit.runs.evaluation.settings import GIVEN_BLUR, GIVEN_IMAGE, Evaluation, given_sigma

Places = tuple[tuple[int, ...], ...]  # for each image of a unit, where its infills stand


class Infills:
    """The infills of one evaluation: which pictures a unit needs, and which of them serve each of its images."""

    def __init__(self, card: Card, signature: Signature, settings: Evaluation, pool: Dataset) -> None:
        self.card, self.signature, self.settings, self.pool = card, signature, settings, pool
        self._opened: dict[str, Array] = {}
        self.told: dict[str, Array] = {}  # what the model says of pictures that all images share
        self._drawing: dict[str, Callable[[Array], Array]] = {
            "gray": lambda _: preprocessing.flat_picture(card, signature, card.gray),
            "black": lambda _: preprocessing.flat_picture(card, signature, (0.0,) * len(card.gray)),
            "zero": lambda _: np.zeros(signature.array_shape(1), signature.dtype),
            "blur": lambda shown: preprocessing.blurred(shown, signature),
            "rise-blur": lambda shown: rise_blur(shown, channels_last=signature.layout == "NHWC"),
        }

    def placed(self, name: str, ids: Sequence[str], shown: Array, first: int) -> tuple[Array, Places]:
        """New pictures for that infill, the first of which will stand at `first`, and those of each image."""
        if name == "random":
            return self._random(ids, shown, first)
        new = self._drawn_for(name, shown)
        alone = len(new) == 1 and len(ids) != 1
        return new, tuple((first + (0 if alone else place),) for place in range(len(ids)))

    def _drawn_for(self, name: str, shown: Array) -> Array:
        if name.startswith(GIVEN_IMAGE):
            return self._given(name)
        if name.startswith(GIVEN_BLUR):
            return preprocessing.blurred(shown, self.signature, given_sigma(name))
        return self._drawing[name](shown)

    def same_for_all(self, name: str) -> bool:
        """Whether that infill is one picture, whatever the image."""
        return name in ("gray", "black", "zero") or name.startswith(GIVEN_IMAGE)

    def _given(self, name: str) -> Array:
        """The picture of an infill `image:FILE`, decoded once."""
        if name not in self._opened:
            try:
                self._opened[name] = self._normalised(
                    [preprocessing.pixels(self.card, preprocessing.opened(given_image(name)))]
                )
            except BadInput as error:
                raise BadInput(f"infill {name}: {error}") from None
        return self._opened[name]

    def _normalised(self, pixels: Sequence[Array]) -> Array:
        return preprocessing.normalised(self.card, np.stack(pixels), self.signature.layout, self.signature.dtype)

    def _random(self, ids: Sequence[str], shown: Array, first: int) -> tuple[Array, Places]:
        known: dict[int, Array] = {}
        chosen = [self._drawn(image, own, known) for image, own in zip(ids, shown, strict=True)]
        listed = sorted({index for indices in chosen for index in indices})
        where = {index: first + place for place, index in enumerate(listed)}
        new = np.stack([known[index] for index in listed])
        return new, tuple(tuple(where[index] for index in indices) for indices in chosen)

    def _drawn(self, image: str, own: Array, known: dict[int, Array]) -> list[int]:
        """Positions in the pool of one image's infills: never the image itself, by whatever name it is there."""
        rng = np.random.default_rng(map_seed(self.settings.seed, image, -1))
        found: list[int] = []
        for index in rng.permutation(len(self.pool)).tolist():
            if self.pool.ids[index] == image:
                continue
            if index not in known:
                known[index] = self._of_pool(index)
            if not np.array_equal(known[index], own):
                found.append(index)
            if len(found) == self.settings.draws:
                break
        if not found:
            raise BadInput(f"the pool has no picture but that of '{image}' itself; random infill needs others.")
        if len(found) < self.settings.draws:
            raise BadInput(
                f"random infill draws {self.settings.draws} pictures a point, but the pool has {len(found)} other than "
                f"that of '{image}'; give a larger pool, or {len(found)} draws."
            )
        return found

    def _of_pool(self, index: int) -> Array:
        try:
            return np.asarray(self._normalised([self.pool.decode(index, self.card).pixels])[0])
        except BadInput as error:
            raise BadInput(f"image '{self.pool.ids[index]}' of the pool: {error}") from None


def given_image(name: str) -> Path:
    """The file of an infill `image:FILE`."""
    path = Path(name.removeprefix(GIVEN_IMAGE))
    if not path.is_file():
        raise BadInput(f"there is no image {path} to fill in with.")
    return path
