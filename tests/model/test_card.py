from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from auditkit.errors import BadInput
from auditkit.model import card as cards
from auditkit.model import pictures, preprocessing
from auditkit.model.card import Card, CardFile, to_toml
from auditkit.model.signature import Signature

SIGNATURE = Signature(
    "image", "NCHW", "float32", 3, 224, 224, None, "bitwise", "logits", "logits", 3, shape=("N", 3, 224, 224)
)
GOOD = """
schema_version = 1
[preprocessing]
size = [224, 224]
resize = 256
crop = "center"
interpolation = "bilinear"
channels = "BGR"
scale = 1.0
mean = [103.939, 116.779, 123.68]
std = [1, 1, 1]
[classes]
names = ["cat", "dog", "hen"]
"""


def _card(tmp_path: Path, text: str, signature: Signature = SIGNATURE) -> Card:
    path = tmp_path / "vendor.toml"
    path.write_text(text)
    return CardFile.read(path).card(signature)


def test_a_card_says_what_it_says(tmp_path: Path) -> None:
    card = _card(tmp_path, GOOD)
    assert (card.size, card.resize, card.interpolation, card.channels) == ((224, 224), 256, "bilinear", "BGR")
    assert card.names == ("cat", "dog", "hen")


def test_gray_is_the_subtracted_mean_in_rgb_pixels(tmp_path: Path) -> None:
    assert _card(tmp_path, GOOD).gray == (123.68, 116.779, 103.939)
    np.testing.assert_allclose(cards.from_preset("imagenet", SIGNATURE).gray, (123.675, 116.28, 103.53))
    np.testing.assert_allclose(cards.from_preset("tf", SIGNATURE).gray, 127.5)


def test_a_card_that_subtracts_nothing_warns_of_its_gray() -> None:
    card = cards.from_preset("unit", SIGNATURE)
    assert card.gray == (127.5, 127.5, 127.5)
    assert "gray" in card.warnings[0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("size = [224, 224]", "size = [299, 299]", ("299x299", "224x224")),
        ('channels = "BGR"', 'channels = "L"', ("L", "3")),
        ("mean = [103.939, 116.779, 123.68]", "mean = [0.5]", ("1 value", "3 channels")),
        ('names = ["cat", "dog", "hen"]', 'names = ["cat", "dog"]', ("2 classes", "3")),
        ("std = [1, 1, 1]", "std = [1, 0, 1]", ("std", "0")),
        ("scale = 1.0", 'scale = "big"', ("scale", "'big'")),
        ("scale = 1.0", "scale = nan", ("scale", "nan")),
        ("scale = 1.0", "", ("is missing scale",)),
        ("resize = 256", "resize = -1", ("resize", "-1")),
        ('crop = "center"', 'crop = "centre"', ("centre", "center")),
        ("std = [1, 1, 1]", "sdt = [1, 1, 1]", ("sdt", "std")),
        ("schema_version = 1", "schema_version = 9", ("9", "expected 1")),
        ("schema_version = 1", "schema_version = ", ("cannot be read",)),
        ("std = [1, 1, 1]", "std = [1, 1, 1]\ngray = [300, 0, 0]", ("300", "255")),
        ("[classes]", "[classes]\nfile = 'nowhere.txt'", ("nowhere.txt",)),
    ],
)
def test_a_card_that_does_not_fit_is_an_error_with_both_values(
    tmp_path: Path, old: str, new: str, words: tuple[str, ...]
) -> None:
    assert old in GOOD
    with pytest.raises(BadInput) as caught:
        _card(tmp_path, GOOD.replace(old, new))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_uint8_models_take_pixels_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="uint8"):
        _card(tmp_path, GOOD, replace(SIGNATURE, dtype="uint8"))


def test_a_written_card_reads_back_the_same(tmp_path: Path) -> None:
    signature = replace(SIGNATURE, input='odd "name"\n\\', class_names=("a", 'b"c', "d\te"))
    for preset in cards.PRESETS:
        card = cards.from_preset(preset, signature)
        back = _card(tmp_path, to_toml(card, signature, "model.onnx"), signature)
        assert replace(back, origin=card.origin, warnings=()) == replace(card, warnings=())
        assert CardFile.read(tmp_path / "vendor.toml").overrides().input == signature.input


def test_small_networks_get_no_crop_margin() -> None:
    assert cards.from_preset("imagenet", replace(SIGNATURE, height=32, width=32)).resize == 32
    assert cards.from_preset("imagenet", replace(SIGNATURE, height=244, width=244)).resize == 279


def test_grey_networks_get_one_channel() -> None:
    card = cards.from_preset("tf", replace(SIGNATURE, channels=1, height=28, width=28))
    assert (card.channels, card.mean) == ("L", (1.0,))
    seen = preprocessing.pixels(card, Image.new("RGB", (28, 28), (255, 255, 255)))
    assert seen.shape == (28, 28, 1)
    np.testing.assert_allclose(preprocessing.normalised(card, seen[None], "NCHW", "float32"), 1.0, atol=1e-6)


def test_normalisation_is_the_stated_formula_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    seen = rng.integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    card = cards.from_preset("imagenet", SIGNATURE)
    expected = ((seen * card.scale - np.array(card.mean)) / np.array(card.std)).astype(np.float32)
    assert np.array_equal(preprocessing.normalised(card, seen, "NHWC", "float32"), expected)
    assert np.array_equal(preprocessing.normalised(card, seen, "NCHW", "float32"), expected.transpose(0, 3, 1, 2))


def test_bgr_reverses_the_channels() -> None:
    seen = np.zeros((1, 1, 1, 3), np.uint8)
    seen[..., 0] = 200  # red
    values = preprocessing.normalised(cards.from_preset("caffe", SIGNATURE), seen, "NHWC", "float64")
    np.testing.assert_allclose(values[0, 0, 0], [-103.939, -116.779, 200 - 123.68])


def test_resize_takes_the_shorter_side_and_the_crop_the_middle() -> None:
    card = replace(cards.from_preset("none", SIGNATURE), size=(4, 4), resize=None)
    picture = np.arange(6 * 9, dtype=np.uint8).reshape(6, 9)[..., None].repeat(3, axis=2)
    assert np.array_equal(preprocessing.pixels(card, picture), picture[1:5, 2:6])
    assert pictures.resized_size(replace(card, resize=256).geometry, 500, 375) == (341, 256)


@pytest.mark.parametrize(("margin", "offset"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 2), (7, 4), (35, 18)])
def test_the_crops_offset_is_half_the_margin_rounded_to_even(margin: int, offset: int) -> None:
    """As in torchvision: int(round(margin / 2.0))."""
    card = replace(cards.from_preset("none", SIGNATURE), size=(4, 4), resize=None)
    assert pictures.crop_box(card.geometry, 4 + margin, 4) == (0, offset, 4, offset + 4)
    assert pictures.crop_box(card.geometry, 4, 4 + margin) == (offset, 0, offset + 4, 4)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_blur_reflects_the_picture_at_its_borders(layout: str) -> None:
    """Against a convolution of the mirrored picture, whose first row comes before itself, kernel cut at 4 sigma."""
    signature = replace(SIGNATURE, layout=layout, height=9, width=7)
    picture = np.random.default_rng(0).standard_normal((9, 7, 3)).astype(np.float32)
    offsets = np.arange(-6, 7)
    kernel = np.exp(-(offsets**2) / (2 * 1.5**2))
    wide = np.pad(picture.astype(np.float64), ((6, 6), (6, 6), (0, 0)), mode="symmetric")
    down = sum(weight * wide[6 + at : 15 + at] for at, weight in zip(offsets, kernel / kernel.sum(), strict=True))
    both = sum(weight * down[:, 6 + at : 13 + at] for at, weight in zip(offsets, kernel / kernel.sum(), strict=True))
    shown = picture[None] if layout == "NHWC" else picture.transpose(2, 0, 1)[None]
    expected = both[None] if layout == "NHWC" else both.transpose(2, 0, 1)[None]
    np.testing.assert_allclose(preprocessing.blurred(shown, signature, 1.5), expected, atol=1e-6)


def test_a_picture_too_small_for_the_crop_is_refused() -> None:
    card = replace(cards.from_preset("none", SIGNATURE), resize=None)
    with pytest.raises(BadInput, match=r"100x100.*224x224"):
        preprocessing.pixels(card, Image.new("RGB", (100, 100)))
