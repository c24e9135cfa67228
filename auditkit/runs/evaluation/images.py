"""The images of one unit of work: decoded, preprocessed, and shown to the model."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from auditkit.arrays import Array
from auditkit.data.alignment import to_model_input
from auditkit.data.dataset import Dataset, Decoded, FailedImage
from auditkit.errors import BadInput
from auditkit.metrics.localisation import box_region
from auditkit.model import preprocessing
from auditkit.model.card import Card
from auditkit.model.classifier import AnyClassifier
from auditkit.model.signature import Signature, to_probabilities

HALF_A_PIXEL = 0.5  # of a pixel of the model's input must lie on the object for it to be part of the region


@dataclass(frozen=True)
class UnitImages:
    """The images of a unit that can be used, each decoded once, and those that cannot."""

    positions: tuple[int, ...]  # in the dataset
    ids: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]  # height, width of each photograph
    pixels: Array  # uint8 [images, height, width, channels], at the model's resolution
    inputs: Array  # the same, normalised as the network takes them
    truth: tuple[int | None, ...]  # the dataset's label of each image
    regions: tuple[Array | None, ...]  # where the object is: a mask at the model's resolution
    failed: tuple[FailedImage, ...]

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """A digest of each image's pixels. Chance is seeded with it, so that names do not matter."""
        return tuple(map(picture_digest, self.pixels))

    def part(self, unit: range) -> "UnitImages":
        """Some of the images that can be used, which follow each other."""
        part = slice(unit.start, unit.stop)
        return UnitImages(self.positions[part], self.ids[part], self.sizes[part], self.pixels[part], self.inputs[part],
                          self.truth[part], self.regions[part], ())  # fmt: skip


def picture_digest(*pictures: Array) -> str:
    """A digest of pictures."""
    digest = hashlib.blake2b(digest_size=16)
    for picture in pictures:
        digest.update(np.ascontiguousarray(picture).data)
    return digest.hexdigest()


def load_images(positions: Sequence[int], images: Dataset, card: Card, signature: Signature) -> UnitImages:
    """Decode and preprocess the images at these positions."""
    decoded, failed = dict[int, Decoded](), list[FailedImage]()
    for position, image in images.decode_many(positions, card).items():
        if isinstance(image, FailedImage):
            failed.append(image)
        else:
            decoded[position] = image
    shape = (signature.height, signature.width, len(card.mean))
    pixels = np.array([image.pixels for image in decoded.values()], np.uint8).reshape(-1, *shape)
    return UnitImages(
        positions=tuple(decoded),
        ids=tuple(images.ids[position] for position in decoded),
        sizes=tuple(image.size for image in decoded.values()),
        pixels=pixels,
        inputs=preprocessing.normalised(card, pixels, signature.layout, signature.dtype),
        truth=tuple(None if images.labels is None else int(images.labels[position]) for position in decoded),
        regions=tuple(_region(images, position, card, image) for position, image in decoded.items()),
        failed=tuple(failed),
    )


def load_sample(size: int, images: Dataset, skipped: Collection[str], card: Card, signature: Signature) -> UnitImages:
    """Some images, spread evenly over the dataset; if none of those can be used, others in their place."""
    candidates = [position for position, image in enumerate(images.ids) if image not in skipped]
    spread = np.linspace(0, len(candidates) - 1, min(size, len(candidates))).round().astype(int).tolist()
    chunks = (candidates[start : start + size] for start in range(0, len(candidates), size))
    failed: list[FailedImage] = []
    for positions in ([candidates[index] for index in spread], *chunks):
        sample = load_images(positions, images, card, signature)
        if sample.ids:
            return sample
        failed += sample.failed
    raise none_usable(len(images), failed)


def none_usable(count: int, failed: Sequence[FailedImage]) -> BadInput:
    """The error for a dataset without an image that can be used."""
    return BadInput(f"none of the {count} images can be used; the first: {failed[0].reason}")


def probabilities(model: AnyClassifier, inputs: Array) -> Array:
    """Probabilities [N, classes] in float64 of rows as the network takes them, rounded to float32."""
    scores = to_probabilities(model.scores(inputs, steady=True), model.signature.kind)
    return np.asarray(scores.astype(np.float32).astype(np.float64))


def renormalised(prob: Array, label_set: Array | None) -> Array:
    """Probabilities given that the label is in `label_set` [N, classes]; unchanged where that is None."""
    if label_set is None:
        return prob
    kept = prob * label_set
    total = kept.sum(axis=1, keepdims=True)
    if not total.all():
        raise BadInput("every label of the set has probability 0 on an image, an infill or a crop; name other labels.")
    return np.asarray(kept / total)


def _region(images: Dataset, position: int, card: Card, image: Decoded) -> Array | None:
    """Where the object lies in the model's input; its mask takes precedence over its box."""
    region, size = image.mask, image.size
    if region is None and images.boxes is not None and np.isfinite(images.boxes[position]).all():
        region = box_region(tuple(images.boxes[position]), *size)
    if region is None:
        return None
    if region.shape != size:
        mask_size, picture_size = ("x".join(map(str, shape)) for shape in (region.shape, size))
        raise BadInput(f"the mask of '{images.ids[position]}' has {mask_size} pixels, its picture {picture_size}.")
    return np.asarray(to_model_input(region.astype(np.float32), "original-image", card, size) >= HALF_A_PIXEL)
