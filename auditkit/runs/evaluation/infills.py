"""Infills: the pictures behind hidden pixels, as the network takes them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import map_seed
from auditkit.errors import BadInput
from auditkit.metrics.protocols import rise_blur
from auditkit.model import preprocessing
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.evaluation.images import UnitImages, probabilities
from auditkit.runs.evaluation.settings import BLUR_PREFIX, IMAGE_PREFIX, Evaluation, blur_sigma

Positions = tuple[tuple[int, ...], ...]  # for each image of a unit, the positions of its infills
POOL_SEED = -1  # stands where a label would: infills are drawn once for all labels of an image
UNIFORM = ("gray", "black", "zero")  # infills that are the same for every image


class Infills:
    """The infills of one evaluation: which pictures a unit needs, and which of them serve each of its images."""

    def __init__(self, model: AnyClassifier, settings: Evaluation, pool: Dataset, moved: Mapping[Path, Path]) -> None:
        card, signature = model.card, model.signature
        self.model, self.card, self.signature, self.settings, self.pool = model, card, signature, settings, pool
        self.files = {name: _existing_file(path, moved) for name, path in settings.infill_files.items()}
        self._pool_order = pool.order(settings.seed) if "random" in settings.infills else []
        self._decoded: dict[str, Array] = {}  # of the files
        self._prob: dict[str, Array] = {}  # of infills that all images share

    def pictures(self, name: str, images: UnitImages, start: int) -> tuple[Array, Positions]:
        """The pictures of that infill, and the positions that serve each image when the first stands at `start`."""
        if name == "random":
            return self._random(images, start)
        pictures, count = self._drawn(name, images.inputs), len(images.ids)
        if len(pictures) == 1:
            return pictures, ((start,),) * count
        return pictures, tuple((start + image,) for image in range(count))

    def probabilities(self, name: str, pictures: Array) -> Array:
        """Probabilities [N, classes] of that infill's pictures; one that all images share is run once."""
        if name in self._prob:
            return self._prob[name]
        prob = probabilities(self.model, pictures)
        if name in UNIFORM or name.startswith(IMAGE_PREFIX):
            self._prob[name] = prob
        return prob

    def _drawn(self, name: str, inputs: Array) -> Array:
        if name.startswith(IMAGE_PREFIX):
            return self._from_file(name)
        if name.startswith(BLUR_PREFIX):
            return preprocessing.blurred(inputs, self.signature, blur_sigma(name))
        if name == "blur":
            return preprocessing.blurred(inputs, self.signature)
        if name == "rise-blur":
            return rise_blur(inputs, channels_last=self.signature.layout == "NHWC")
        if name == "zero":
            return np.zeros(self.signature.array_shape(1), self.signature.dtype)
        gray = self.card.gray if name == "gray" else (0.0,) * len(self.card.gray)
        return preprocessing.flat_picture(self.card, self.signature, gray)

    def _from_file(self, name: str) -> Array:
        """The picture of an infill `image:FILE`."""
        if name not in self._decoded:
            try:
                pixels = preprocessing.pixels(self.card, self.files[name])
            except BadInput as error:
                raise BadInput(f"infill {name}: {error}") from None
            self._decoded[name] = self._input(pixels)
        return self._decoded[name]

    def _input(self, pixels: Array) -> Array:
        """Pixels as the network takes them, [1, ...]."""
        return preprocessing.normalised(self.card, pixels[None], self.signature.layout, self.signature.dtype)

    def _random(self, images: UnitImages, start: int) -> tuple[Array, Positions]:
        loaded: dict[int, Array | BadInput] = {}
        each = zip(images.ids, images.digests, images.inputs, strict=True)
        draws = [self._draw(image, digest, shown, loaded) for image, digest, shown in each]
        chosen = sorted(set().union(*draws))
        positions = {index: start + offset for offset, index in enumerate(chosen)}
        pictures = np.array([loaded[index] for index in chosen])
        return pictures, tuple(tuple(positions[index] for index in draw) for draw in draws)

    def _draw(
        self, image: str, digest: str, shown: Array, loaded: dict[int, Array | BadInput]
    ) -> list[int]:  # fmt: skip
        """Positions in the pool of one image's infills: never the image itself, under any name."""
        rng = np.random.default_rng(map_seed(self.settings.seed, digest, POOL_SEED))
        draws = self.settings.draws
        chosen: list[int] = []
        for index in rng.permutation(self._pool_order).tolist():
            if self.pool.ids[index] == image:
                continue
            if index not in loaded:
                loaded[index] = self._from_pool(index)
            infill = loaded[index]
            if not isinstance(infill, BadInput) and not np.array_equal(infill, shown):
                chosen.append(index)
            if len(chosen) == draws:
                return chosen
        unusable = [f" Image '{self.pool.ids[index]}' of the pool cannot be used: {infill}"
                    for index, infill in loaded.items() if isinstance(infill, BadInput)]  # fmt: skip
        raise BadInput(
            f"random infill draws {draws} pictures per point, but the pool has {len(chosen) or 'none'} other than that "
            f"of '{image}'; give a larger pool, or fewer draws.{unusable[0] if unusable else ''}"
        )

    def _from_pool(self, index: int) -> Array | BadInput:
        """An image of the pool, or why it cannot be used."""
        try:
            return np.asarray(self._input(self.pool.decode(index, self.card).pixels)[0])
        except BadInput as error:
            return error


def _existing_file(path: Path, moved: Mapping[Path, Path]) -> Path:
    """The file of an infill, which may have moved."""
    path = moved.get(path, path)
    if not path.is_file():
        raise BadInput(f"there is no image {path} to fill in with.")
    return path
