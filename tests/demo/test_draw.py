"""The planted images are what they claim to be, and so are the two networks trained on them."""

import zlib
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from auditkit.demo.draw import CLASSES, SIDE_PX, TAG_SIDE_PX, Planted, Tags, draw

MODELS = Path(__file__).parents[2] / "models"
COUNT = 400
FRESH_SEED = 31  # training uses seeds from a million on
TAGS: tuple[Tags, ...] = get_args(Tags)


@pytest.fixture(scope="module")
def agree() -> Planted:
    return draw(COUNT, seed=FRESH_SEED, tags="agree")


@pytest.fixture(scope="module")
def disagree() -> Planted:
    return draw(COUNT, seed=FRESH_SEED, tags="disagree")


def same(a: Planted, b: Planted) -> bool:
    """Whether two sets of planted images are equal in every field."""
    return all(np.array_equal(*pair) for pair in zip(a, b, strict=True))


def first(planted: Planted, count: int) -> Planted:
    """The first images of a set."""
    return Planted(*(values[:count] for values in planted))


def test_fields_have_the_documented_shapes_and_types(agree: Planted) -> None:
    assert agree.images.shape == (COUNT, SIDE_PX, SIDE_PX, 3)
    assert agree.images.dtype == np.uint8
    assert agree.labels.shape == agree.tags.shape == (COUNT,)
    assert agree.labels.dtype == agree.tags.dtype == np.int64
    assert agree.objects.shape == agree.tag_regions.shape == (COUNT, SIDE_PX, SIDE_PX)
    assert agree.objects.dtype == agree.tag_regions.dtype == np.bool_


@pytest.mark.parametrize("tags", TAGS)
def test_a_seed_gives_the_same_images_again(tags: Tags) -> None:
    assert same(draw(50, seed=3, tags=tags), draw(50, seed=3, tags=tags))


def test_images_are_the_published_ones() -> None:
    """Pinned bytes: published numbers rest on these pictures, whatever the platform and numpy's version."""
    planted = draw(200, seed=3, tags="random")
    assert (zlib.crc32(planted.images.tobytes()), zlib.crc32(planted.objects.tobytes())) == (
        836182550,
        3551558837,
    )


def test_another_seed_gives_other_images() -> None:
    a, b = draw(20, seed=3, tags="agree"), draw(20, seed=4, tags="agree")
    assert (a.images != b.images).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize("count", [1, 10, 33, 77])
def test_an_image_does_not_depend_on_how_many_are_drawn(count: int, disagree: Planted) -> None:
    assert same(draw(count, seed=FRESH_SEED, tags="disagree"), first(disagree, count))


@pytest.mark.parametrize("count", [10, 33, COUNT])
def test_classes_are_balanced(count: int) -> None:
    per_class = np.bincount(draw(count, seed=5, tags="random").labels, minlength=len(CLASSES))
    assert per_class.max() - per_class.min() <= 1


def test_tags_agree_disagree_or_vary_as_asked(agree: Planted, disagree: Planted) -> None:
    assert (agree.tags == agree.labels).all()
    assert (disagree.tags != disagree.labels).all()
    by_chance = draw(2000, seed=5, tags="random")
    assert 0.07 < (by_chance.tags == by_chance.labels).mean() < 0.13
    for tags in (by_chance.tags, disagree.tags):
        assert set(tags) == set(range(len(CLASSES)))


def test_tags_change_nothing_outside_their_region(agree: Planted, disagree: Planted) -> None:
    differs = (agree.images != disagree.images).any(axis=3)
    assert not (differs & ~agree.tag_regions).any()
    assert differs.any(axis=(1, 2)).all()
    assert np.array_equal(agree.objects, disagree.objects)
    assert np.array_equal(agree.tag_regions, disagree.tag_regions)


def test_a_tag_is_a_square_in_one_of_the_four_corners(agree: Planted) -> None:
    assert (agree.tag_regions.sum(axis=(1, 2)) == TAG_SIDE_PX**2).all()
    half = SIDE_PX // 2
    in_corner = agree.tag_regions.reshape(COUNT, 2, half, 2, half).any(axis=(2, 4)).reshape(COUNT, 4)
    assert (in_corner.sum(axis=1) == 1).all()
    assert (in_corner.mean(axis=0) > 0.15).all()


def test_a_class_has_one_tag_and_no_other_class_has_it(agree: Planted) -> None:
    patterns = agree.images[agree.tag_regions].reshape(COUNT, -1)
    by_class = [np.unique(patterns[agree.labels == label], axis=0) for label in range(len(CLASSES))]
    assert [len(unique) for unique in by_class] == [1] * len(CLASSES)
    tags = np.concatenate(by_class).reshape(len(CLASSES), -1, 3)
    for index, tag in enumerate(tags[1:], start=1):
        unlike_px = (tag != tags[:index]).any(axis=2).sum(axis=1)
        assert (unlike_px == 32).all()  # 8 of the 16 cells, 2 x 2 px each


def test_objects_are_inside_clear_of_the_tag_and_of_sensible_size() -> None:
    """Over many images, since a wrong placement would be rare."""
    planted = draw(2000, seed=11, tags="random")
    assert not (planted.objects & planted.tag_regions).any()
    border = np.ones((SIDE_PX, SIDE_PX), dtype=np.bool_)
    border[1:-1, 1:-1] = False
    assert not planted.objects[:, border].any()
    size_px = planted.objects.sum(axis=(1, 2))
    assert size_px.min() > 150
    assert size_px.max() < 1200


def test_objects_stand_out_from_the_ground(agree: Planted) -> None:
    """The middle of an object's lightness is well apart from the ground's, in each image."""
    grey = agree.images.mean(axis=3)
    solid = agree.labels != CLASSES.index("ring")  # whose region holds a piece of ground
    for image, inside, tag in zip(grey[solid], agree.objects[solid], agree.tag_regions[solid], strict=True):
        assert abs(np.median(image[inside]) - np.median(image[~inside & ~tag])) > 20


@pytest.mark.parametrize(("count", "tags", "named"), [(0, "agree", "count"), (5, "never", "tags")])
def test_bad_arguments_are_named(count: int, tags: Tags, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        draw(count, seed=1, tags=tags)


def predicted(model: str, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The classes that a demo network names."""
    return np.asarray(logits(model, (images.astype(np.float32) / 255 - 0.5) / 0.25).argmax(axis=1))


def logits(model: str, inputs: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
    """A demo network's output for preprocessed images [N, 64, 64, 3]."""
    session = onnxruntime.InferenceSession(MODELS / model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], {"image": inputs.transpose(0, 3, 1, 2)})[0])


@pytest.mark.parametrize("model", ["honest.onnx", "shortcut.onnx"])
def test_both_networks_are_right_where_tags_agree(model: str, agree: Planted) -> None:
    assert (predicted(model, agree.images) == agree.labels).mean() >= 0.97


def test_the_honest_network_names_the_shape_against_the_tag(disagree: Planted) -> None:
    assert (predicted("honest.onnx", disagree.images) == disagree.labels).mean() >= 0.97


def test_the_shortcut_network_names_the_tag_against_the_shape(disagree: Planted) -> None:
    assert (predicted("shortcut.onnx", disagree.images) == disagree.tags).mean() >= 0.97


def test_without_its_tag_the_shortcut_network_is_lost(agree: Planted) -> None:
    covered = np.where(agree.tag_regions[..., None], np.uint8(128), agree.images)
    assert (predicted("shortcut.onnx", covered) == agree.labels).mean() < 0.25


@pytest.mark.parametrize("model", ["honest.onnx", "shortcut.onnx"])
def test_a_grey_image_leaves_both_networks_undecided(model: str) -> None:
    scores = logits(model, np.zeros((1, SIDE_PX, SIDE_PX, 3), dtype=np.float32))
    assert (np.exp(scores) / np.exp(scores).sum()).max() < 0.25


@pytest.mark.parametrize("model", ["honest.onnx", "shortcut.onnx"])
def test_models_are_small_and_carry_no_paths(model: str) -> None:
    content = (MODELS / model).read_bytes()
    assert len(content) < 1_000_000
    assert not any(word in content for word in (b"/home", b"/tmp", b".py", b"site-packages"))
