"""The images of a set that can be used; what is wrong with each of the others."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from auditkit.data.dataset import ImageSet, box_outside, size_of
from auditkit.errors import BadInput
from auditkit.model.card import Card
from auditkit.model.preprocessing import pixels


@dataclass(frozen=True)
class Failed:
    """An image that is left out, and why."""

    image: str
    reason: str


def usable(images: ImageSet, card: Card) -> tuple[ImageSet, tuple[Failed, ...]]:
    """The set without the images that cannot be decoded or prepared; refused when that is all of them.

    Every file is tried before any work is done: found hours later, a broken one would end the run.
    """

    def problem(index: int) -> str:
        try:
            picture = images.picture(index)
            pixels(card, picture)
            if images.boxes is not None and (said := box_outside(images.boxes[index], size_of(picture))):
                return f"{said}."
            if images.mask is not None:
                images.mask(index)
        except BadInput as error:
            return str(error)
        return ""

    if not len(images):
        raise BadInput(f"{images.source} holds no images.")
    if not images.of_files:
        return images, ()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        problems = list(threads.map(problem, range(len(images))))
    good = [index for index, said in enumerate(problems) if not said]
    if not good:
        raise BadInput(f"none of the {len(images)} images can be used; the first: {problems[0]}")
    if len(good) == len(images):
        return images, ()
    failed = tuple(Failed(images.ids[index], said) for index, said in enumerate(problems) if said)
    return images.only(good), failed


def left_out(failed: Sequence[Failed], good: int) -> list[str]:
    """The same in a sentence, if there are any."""
    if not failed:
        return []
    first, whole = failed[0], good + len(failed)
    return [f"{len(failed)} of {whole} images cannot be used and are left out, such as '{first.image}': "
            f"{first.reason.removesuffix('.')}"]  # fmt: skip
