"""Planted cues are where they are said to be, and leave the shape alone."""

import numpy as np
import pytest

from auditkit.demo.draw import CLASSES, draw
from models.cues import CUES, NO_CUE, OF_ONE_CLASS, Cued, cue_labels, draw_cues, marked_class

COUNT = len(CLASSES)
LABELS = np.arange(COUNT)
SEED = 77
OVER_THE_OBJECT = {"cast", "fine"}  # cues of the whole image


def drawn(kind: str, style: int = 3, seed: int = SEED, side: int = 64) -> Cued:
    """An image of every class, with the cue of its class."""
    return draw_cues(kind, LABELS, seed=seed, style=style, side=side)


@pytest.mark.parametrize("kind", CUES)
def test_the_same_seed_gives_the_same_bytes(kind: str) -> None:
    first, again, other, restyled = drawn(kind), drawn(kind), drawn(kind, seed=SEED + 1), drawn(kind, style=4)
    assert all(np.array_equal(*pair) for pair in zip(first, again, strict=True))
    assert not np.array_equal(first.images, other.images)
    assert not np.array_equal(first.images, restyled.images)


@pytest.mark.parametrize("kind", CUES)
@pytest.mark.parametrize("side", [48, 64])
def test_pixels_change_only_where_the_cue_is(kind: str, side: int) -> None:
    cued = drawn(kind, side=side)
    plain = draw_cues(kind, np.full(COUNT, NO_CUE), seed=SEED, style=3, side=side)
    changed = (cued.images != plain.images).any(axis=3)
    assert not (changed & ~cued.regions).any()
    assert changed.reshape(COUNT, -1).any(axis=1).all()
    assert np.array_equal(cued.objects, plain.objects)
    assert cued.images.shape == (COUNT, side, side, 3)
    assert not plain.regions.any()


@pytest.mark.parametrize("side", [48, 64, 96])
def test_a_background_or_a_companion_leaves_the_object_alone(side: int) -> None:
    background = drawn("background", side=side)
    assert not (background.regions & background.objects).any()
    companion = drawn("companion", side=side)
    overlaps = (companion.regions & companion.objects).sum(axis=(1, 2)) / companion.regions.sum(axis=(1, 2))
    assert np.median(overlaps) == 0


@pytest.mark.parametrize("kind", sorted(OVER_THE_OBJECT))
def test_a_cue_of_the_whole_image_has_no_place(kind: str) -> None:
    assert drawn(kind).regions.all()


@pytest.mark.parametrize("kind", sorted(set(CUES) - set(OF_ONE_CLASS)))
def test_images_of_two_classes_differ_by_their_cues(kind: str) -> None:
    cues = [draw_cues(kind, np.array([cue]), seed=SEED, style=3).images[0] for cue in range(COUNT)]
    assert len({image.tobytes() for image in cues}) == COUNT


def test_without_a_cue_an_image_is_that_of_the_demo() -> None:
    plain = draw_cues("tag", np.full(COUNT, NO_CUE), seed=SEED, style=0)
    base = draw(COUNT, seed=SEED, tags="none")
    assert np.array_equal(plain.images, base.images)
    assert np.array_equal(plain.shapes, base.labels)


@pytest.mark.parametrize("kind", OF_ONE_CLASS)
def test_a_rare_cue_marks_most_images_of_one_class(kind: str) -> None:
    labels = np.arange(2000) % COUNT
    cues = cue_labels(kind, labels, 13, np.random.default_rng(0))
    assert marked_class(13) == 3
    assert set(np.unique(cues)) == {NO_CUE, 3}
    assert (labels[cues == 3] == 3).all()
    assert (cues[labels == 3] == 3).mean() == pytest.approx(OF_ONE_CLASS[kind], abs=0.08)


def test_other_cues_name_the_class_of_every_image() -> None:
    assert np.array_equal(cue_labels("tag", LABELS, 0, np.random.default_rng(0)), LABELS)
