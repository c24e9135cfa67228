"""The images of a set that can be used; what is wrong with each of the others."""

from auditkit.data.dataset import Dataset, FailedImage
from auditkit.errors import BadInput
from auditkit.model.card import Card


def usable(images: Dataset, card: Card) -> tuple[Dataset, tuple[FailedImage, ...]]:
    """The set without the images that cannot be decoded or prepared; refused when that is all of them."""
    if not len(images):
        raise BadInput(f"{images.source} holds no images.")
    good = images.usable(card)
    if len(good) == len(images):
        return images, ()
    bad = sorted(set(range(len(images))) - set(good))
    return images.select(good), tuple(FailedImage(images.ids[at], images.problem(at, card)) for at in bad)
