"""Learned masks on models that can be solved by hand, and on the planted truth."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import auditkit
from auditkit.data.ranks import ranks
from auditkit.demo.draw import Planted, draw
from auditkit.demo.planted import bundled_model
from auditkit.errors import BadInput, OutOfMemory, RuntimeFailure
from auditkit.graph.mask_objective import COUNT, WEIGHTS
from auditkit.methods.mask import learner
from auditkit.methods.mask import pair as mask_pair
from auditkit.methods.mask.method import QUALITIES, MaskOptions, Quality, mask
from auditkit.methods.notes import sentences
from auditkit.methods.request import MethodResult, Pool, Request
from auditkit.metrics.localisation import pointing_hit, share_inside
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.session import Session, Settings
from tests.support import onnx_models

Array = np.ndarray[Any, Any]
SIDE = 8
TOLERANCE = 15 * 64 / 224  # pixels, of the pointing game (Zhang et al. 2018: 15 at 224 pixels)
CPU = Settings(device="cpu")
PATCHES = (slice(1, 4), slice(1, 4)), (slice(4, 7), slice(3, 6))  # what labels 1 and 2 are read from
QUICK = MaskOptions(steps=60, rate=0.05, fall=1.0, memory=0.999, distractors=2, tv=0.0)


def reader(batch: int | str = "N", kind: int = TensorProto.FLOAT, channels_last: bool = False) -> onnx.ModelProto:
    """Label 0 has the score 0; label 1 is the brightness of one patch and label 2 that of another, from -4 to 4."""
    weight = np.zeros((3, SIDE, SIDE, 3), np.float32)
    for patch, place in zip(PATCHES, (1, 2), strict=True):
        weight[:, *patch, place] = 1 / 27
    ordered = weight.transpose(1, 2, 0, 3) if channels_last else weight
    shape = [batch, SIDE, SIDE, 3] if channels_last else [batch, 3, SIDE, SIDE]
    nodes = [
        helper.make_node("Cast", ["image"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["float"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w", "b"], ["logits"], alpha=8 / 255),
    ]
    weights = {"w": ordered.reshape(-1, 3), "b": np.array([0, -4, -4], np.float32)}
    return onnx_models.model(
        nodes, [onnx_models.value("image", shape, kind)], [onnx_models.value("logits", [batch, 3])], weights
    )


def opened(proto: onnx.ModelProto, folder: Path) -> OnnxClassifier:
    path = onnx_models.save(proto, folder)
    (folder / "model.toml").write_text("[card]\nsize = [8, 8]\nscale = 1.0\nmean = [0, 0, 0]\nstd = [1, 1, 1]\n")
    found = auditkit.load(path, preset="none", settings=CPU)
    assert isinstance(found, OnnxClassifier)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OnnxClassifier:
    return opened(reader(), tmp_path_factory.mktemp("reader"))


def asked(model: Any, images: int = 2, labels: tuple[int, ...] = (1, 2), seed: int = 0) -> Request:
    """Bright images over a dark pool."""
    rng = np.random.default_rng(5)
    pixels = rng.integers(200, 256, (images, SIDE, SIDE, 3), dtype=np.uint8)
    dark = rng.integers(0, 60, (6, SIDE, SIDE, 3), dtype=np.uint8)
    names, others = tuple(f"bright{i}" for i in range(images)), tuple(f"dark{i}" for i in range(6))
    return Request(
        model, names, pixels, model.preprocess(pixels), (labels,) * images,
        model.preprocess(np.full((1, SIDE, SIDE, 3), 30, np.uint8)), Pool(others, model.preprocess(dark)), seed,
    )  # fmt: skip


def lies_on(found: Array, patch: tuple[slice, slice]) -> bool:
    """Whether every pixel of the patch is kept, and more so than any other."""
    outside = np.ones((SIDE, SIDE), bool)
    outside[patch] = False
    return bool(found[patch].min() > 0.6 and found[patch].min() > found[outside].max())


@pytest.mark.parametrize("infill", ["distractors", "gray"])
@pytest.mark.parametrize("loss", ["paper", "paper-code"])
def test_masks_lie_on_what_the_label_is_read_from(model: OnnxClassifier, infill: Any, loss: Any) -> None:
    found = mask(asked(model), replace(QUICK, infill=infill, loss=loss))
    for maps in found.maps:
        assert maps[1].dtype == np.float32
        assert maps[1].shape == (SIDE, SIDE)
        assert lies_on(maps[1], PATCHES[0])
        assert lies_on(maps[2], PATCHES[1])


def test_a_label_that_nothing_shows_hides_what_speaks_against_it(model: OnnxClassifier) -> None:
    """Label 0 is likelier the darker both patches are."""
    found = mask(asked(model, images=1, labels=(0,)), QUICK).maps[0][0]
    assert found[PATCHES[0]].max() < 0.2
    assert found[PATCHES[1]].max() < 0.2


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.UINT8, TensorProto.FLOAT16])
def test_channels_last_and_other_number_types(kind: int, tmp_path: Path) -> None:
    found = mask(asked(opened(reader(kind=kind, channels_last=True), tmp_path)), QUICK)
    assert lies_on(found.maps[1][2], PATCHES[1])


def test_disjoint_masks_each_suffice(model: OnnxClassifier) -> None:
    """Their sum is between 0 and 1 and covers the patch, of which each has a part."""
    found = mask(asked(model, images=1, labels=(1,)), replace(QUICK, masks=2, infill="gray")).maps[0][1]
    assert 0 <= found.min() <= found.max() <= 1
    assert lies_on(found, PATCHES[0])


def test_alone_and_in_company(model: OnnxClassifier) -> None:
    """Draws depend on the image's name, the label and the step; neither on the others nor on the room there is."""
    request = asked(model, images=3)
    together = mask(request, QUICK)
    crowded = mask(request, replace(QUICK, rows=5))
    alone = mask(replace(request, ids=request.ids[2:], pixels=request.pixels[2:], inputs=request.inputs[2:],
                         labels=((2,),)), QUICK)  # fmt: skip
    np.testing.assert_allclose(together.maps[2][2], alone.maps[0][2], atol=1e-4)
    for one, other in zip(together.maps, crowded.maps, strict=True):
        np.testing.assert_allclose(one[1], other[1], atol=1e-4)


def test_seeds(model: OnnxClassifier) -> None:
    first, again, other = (mask(asked(model, 1, (1,), seed), QUICK).maps[0][1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4


def test_what_it_took_is_counted_and_told(model: OnnxClassifier) -> None:
    ticks: list[int] = []
    found = mask(replace(asked(model), tick=ticks.append), QUICK)  # the last window is a short one
    assert found.passes == found.gradients == sum(ticks) == 2 * 2 * 60 * 2
    assert found.notes == ()


def test_a_quality_is_told_with_what_it_costs(model: OnnxClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUALITIES, "quick", Quality(QUICK, "120 images for each mask"))
    assert sentences(mask(asked(model), QUICK).notes) == ("masks of quality quick: 120 images for each mask",)


@pytest.mark.parametrize(("quality", "images"), [("fast", "1,400"), ("full", "10,000"), ("paper", "20,000")])
def test_what_is_said_of_a_quality_is_true(quality: str, images: str) -> None:
    options, about = QUALITIES[quality].options, QUALITIES[quality].about
    assert about.startswith(f"{images} images for each mask")
    assert f"{options.steps * options.distractors:,}" == images


class Memory:
    """A checkpoint that is full after some saves."""

    def __init__(self, saves: int) -> None:
        self.arrays: dict[str, Array] = {}
        self.saves = saves

    def load(self, names: Sequence[str]) -> dict[str, Array]:
        return {name: self.arrays[name] for name in names if name in self.arrays}

    def save(self, arrays: Mapping[str, Array]) -> None:
        self.arrays, self.saves = dict(arrays), self.saves - 1
        if not self.saves:
            raise KeyboardInterrupt


@pytest.mark.parametrize("saves", [1, 9, 33, 60])
@pytest.mark.parametrize("options", [QUICK, replace(QUICK, rows=6)])
def test_an_interrupted_mask_continues_to_the_same_bits(
    model: OnnxClassifier, monkeypatch: pytest.MonkeyPatch, options: MaskOptions, saves: int
) -> None:
    """Interrupted in the middle of a window, with two or all of four masks in a batch, and after some of them."""
    options = replace(options, steps=35)
    request = asked(model)
    monkeypatch.setattr(mask_pair, "WINDOW", 10)
    monkeypatch.setattr(learner, "WINDOW", 10)
    expected = mask(request, options)
    monkeypatch.setattr(mask_pair, "_SAVE_SECONDS", 0.0)  # after every step
    memory, kept = Memory(saves), list[MethodResult]()
    with suppress(KeyboardInterrupt):
        mask(replace(request, checkpoint=memory, keep=kept.append), options)
    memory.saves, before = -1, sum(part.passes for part in kept)
    left = [position for position in range(2) if not any(part.maps[position] for part in kept)]
    rest = replace(
        request, ids=tuple(request.ids[position] for position in left), pixels=request.pixels[left],
        inputs=request.inputs[left], labels=tuple(request.labels[position] for position in left), checkpoint=memory,
    )  # fmt: skip
    ticks: list[int] = []
    found = mask(replace(rest, tick=ticks.append), options)
    assert found.passes + before == expected.passes
    assert sum(ticks) < found.passes or not left
    for position, maps in zip(left, found.maps, strict=True):
        for label, values in maps.items():
            np.testing.assert_array_equal(values, expected.maps[position][label])


@pytest.mark.parametrize("change", [{"seed": 1}, {"ids": ("a", "b")}, {"inputs": None}])
def test_a_checkpoint_of_other_masks_is_not_used(
    model: OnnxClassifier, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(mask_pair, "_SAVE_SECONDS", 0.0)
    request, memory, options = asked(model), Memory(5), replace(QUICK, steps=10)
    with pytest.raises(KeyboardInterrupt):
        mask(replace(request, checkpoint=memory), options)
    memory.saves = -1
    change = {"inputs": request.inputs[::-1]} if "inputs" in change else change
    found, expected = (mask(replace(request, **change, checkpoint=checkpoint), options)
                       for checkpoint in (memory, Memory(-1)))  # fmt: skip
    np.testing.assert_array_equal(found.maps[1][2], expected.maps[1][2])


DAMAGES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "keys in a table": ("keys", lambda keys: keys[:, None]),
    "a number in place of keys": ("keys", lambda _: np.array(0)),
    "too few masks": (WEIGHTS, lambda weights: weights[:0]),
    "a number in place of masks": (WEIGHTS, lambda weights: weights[0, 0, 0, 0]),
    "larger masks": (WEIGHTS, lambda weights: np.repeat(weights, 2, axis=-1)),
    "masks of texts": (WEIGHTS, lambda weights: weights.astype(str)),
    "a negative count": (COUNT, lambda count: -count),
    "an infinite count": (COUNT, lambda count: count * np.inf),
    "a count that is not a number": (COUNT, lambda count: count * np.nan),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_checkpoint_that_no_mask_left_is_not_used(
    model: OnnxClassifier,
    monkeypatch: pytest.MonkeyPatch,
    damage: tuple[str, Callable[[Array], Array]],
) -> None:
    request, memory, options = asked(model, 1, (1,)), Memory(2), replace(QUICK, steps=4)
    expected = mask(request, options).maps[0][1]
    with monkeypatch.context() as patch:
        patch.setattr(mask_pair, "_SAVE_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            mask(replace(request, checkpoint=memory), options)
    name, change = damage
    memory.arrays[name] = change(memory.arrays[name])
    found = mask(replace(request, checkpoint=memory), options)
    np.testing.assert_array_equal(found.maps[0][1], expected)


def test_blur_hides_nothing_of_a_flat_image(model: OnnxClassifier) -> None:
    """The image out of focus is the image, so that only the penalty moves the mask: down, everywhere alike."""
    request = asked(model, 1, (1,))
    flat = np.full_like(request.inputs, 100)
    found = mask(replace(request, inputs=flat), replace(QUICK, infill="blur")).maps[0][1]
    assert found.max() < 0.2
    assert np.ptp(found) < 1e-4


def test_penalties_do_what_they_are_for(model: OnnxClassifier) -> None:
    request, base = asked(model, 1, (1,)), replace(QUICK, infill="gray")
    plain, smooth, small = (
        mask(request, options).maps[0][1] for options in (base, replace(base, tv=1.0), replace(base, l1=1.0))
    )
    assert np.abs(np.diff(smooth)).sum() < np.abs(np.diff(plain)).sum()
    assert small.sum() < plain.sum()


def test_upsampled_masks_are_smooth(model: OnnxClassifier) -> None:
    found = mask(asked(model, 1, (1,)), replace(QUICK, factor=3)).maps[0][1]
    assert found.shape == (SIDE, SIDE)
    assert np.abs(np.diff(found)).max() < 0.5


def test_a_batch_that_does_not_fit_is_halved(model: OnnxClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(model, images=3)
    expected = mask(request, QUICK)
    real, sizes = Session.stepper, []

    def small_memory(session: Any, links: Any, start: Any, *others: Any) -> Any:
        sizes.append(len(start["auditkit_weights"]))
        if sizes[-1] > 2:
            raise OutOfMemory("too many")
        return real(session, links, start, *others)

    monkeypatch.setattr(Session, "stepper", small_memory)
    found = mask(request, replace(QUICK, rows=15))
    assert sizes[:3] == [6, 3, 1]
    for one, other in zip(found.maps, expected.maps, strict=True):
        np.testing.assert_allclose(one[2], other[2], atol=1e-4)
    monkeypatch.setattr(Session, "stepper", lambda *_: small_memory(None, None, {"auditkit_weights": [0] * 3}))
    with pytest.raises(OutOfMemory, match="not even one mask"):
        mask(request, replace(QUICK, rows=14))


def test_a_loss_that_is_no_number_is_told(model: OnnxClassifier) -> None:
    request = asked(model, 1, (1,))
    with pytest.raises(RuntimeFailure, match="image 'bright0' for label 1 is not a number after 50 steps"):
        mask(replace(request, inputs=request.inputs * np.inf), QUICK)


def test_the_image_itself_never_hides_its_pixels(model: OnnxClassifier) -> None:
    """By name or by content, so that a pool of nothing else is refused."""
    request = asked(model, 1, (1,))
    for pool in (
        Pool(("bright0",), request.pool.inputs[:1]),
        Pool(("copy",), request.inputs),
        Pool((), request.inputs[:0]),
    ):
        with pytest.raises(BadInput, match="no picture but that of 'bright0' itself"):
            mask(replace(request, pool=pool), QUICK)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"steps": 0}, "steps 0 is not a whole number from 1 to 1,000,000."),
        ({"distractors": 1.5}, "distractors 1.5 is not a whole number"),
        ({"tv": -1.0}, "tv -1.0 is not a number from 0 up."),
        ({"l1": float("nan")}, "l1 nan is not a number from 0 up."),
        ({"rate": 0.0}, "rate 0.0 is not a number above 0."),
        ({"infill": "black"}, "unknown infill 'black'; choose from distractors, gray, blur."),
        ({"loss": "mean"}, "unknown loss 'mean'; choose from paper, paper-code."),
        ({"fall": 0.0}, "fall 0.0 is not a share above 0 and up to 1."),
        ({"fall": float("nan")}, "fall nan is not a share above 0 and up to 1."),
        ({"memory": 1.0}, "memory 1.0 is not a share from 0 up and below 1."),
        ({"masks": 0}, "masks 0 is not a whole number from 1 to 1,000,000."),
    ],
)
def test_options_are_refused_with_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as error:
        MaskOptions(**wrong)
    assert str(error.value).startswith(sentence)


def test_requests_are_refused_with_one_sentence(model: OnnxClassifier) -> None:
    with pytest.raises(BadInput, match="label 3 does not exist: the model has 3 labels, from 0 to 2"):
        mask(asked(model, 1, (3,)), QUICK)
    with pytest.raises(BadInput, match="factor 9 is larger than the image, 8 by 8 pixels"):
        mask(asked(model), replace(QUICK, factor=9))
    function = auditkit.load(lambda rows: np.zeros((len(rows), 3)), size=(SIDE, SIDE))
    with pytest.raises(BadInput, match="a function has no gradient"):
        mask(asked(function), QUICK)


# The planted truth


def planted(name: str, count: int, options: MaskOptions, seed: int = 3) -> tuple[MethodResult, Planted]:
    """Masks for the label that the model predicts, tags naming a class by chance."""
    model = auditkit.load(bundled_model(name), settings=CPU)
    drawn, others = draw(count, seed=seed, tags="random"), draw(40, seed=seed + 1, tags="random")
    shown = model.preprocess(drawn.images)
    labels = model.probabilities(shown).argmax(axis=1)
    pool = Pool(tuple(f"other{i}" for i in range(40)), model.preprocess(others.images))
    gray = model.preprocess(np.full((1, 64, 64, 3), 128, np.uint8))
    ids = tuple(f"image{i}" for i in range(count))
    request = Request(model, ids, drawn.images, shown, tuple((int(label),) for label in labels), gray, pool)
    return mask(request, options), drawn


def density(scores: Array, region: Array) -> float:
    """Share of the first pixels in a region, as many as it has, over the region's share of the image."""
    return float(share_inside(ranks(scores), region, int(region.sum())) / region.mean())


def regions(name: str, drawn: Planted) -> tuple[Array, Array]:
    """What the model reads, and what it does not."""
    return (drawn.objects, drawn.tag_regions) if name == "honest" else (drawn.tag_regions, drawn.objects)


@pytest.mark.parametrize("name", ["honest", "shortcut"])
def test_masks_point_at_what_was_planted(name: str) -> None:
    """Over gray, in 95 % of the images: their maximum, within the usual tolerance, and most of their first pixels."""
    found, drawn = planted(name, 20, MaskOptions(steps=100, infill="gray"))
    hits, most, astray = [], [], []
    for maps, read, other in zip(found.maps, *regions(name, drawn), strict=True):
        (scores,) = maps.values()
        hits.append(pointing_hit(scores, read, TOLERANCE))
        astray.append(pointing_hit(scores, other, TOLERANCE))
        most.append(share_inside(ranks(scores), read, read.size // 50) > 0.5)
    assert np.mean(hits) >= 0.95
    assert np.mean(most) >= 0.95
    assert np.mean(astray) <= 0.05


@pytest.mark.parametrize("count", [3, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["honest", "shortcut"])
def test_over_other_images_masks_prefer_what_was_planted(name: str, count: int) -> None:
    """There a mask must also hide the others' shapes and tags, so that its maximum may lie where those are."""
    found, drawn = planted(name, count, MaskOptions(steps=50, distractors=5))
    read, other = regions(name, drawn)
    for maps, there, elsewhere in zip(found.maps, read, other, strict=True):
        (scores,) = maps.values()
        assert density(scores, there) > max(1.0, density(scores, elsewhere))
