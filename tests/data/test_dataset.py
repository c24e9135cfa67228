import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from auditkit.data.dataset import open_images
from auditkit.data.usable import usable
from auditkit.errors import BadInput
from auditkit.model.card import Card
from auditkit.model.preprocessing import as_picture, opened, pixels

CARD = Card((3, 4), None, "center", "bicubic", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3, (0.0,) * 3)


def _picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (shade, shade, shade)).save(path)


def test_class_folders_by_name_by_index_and_by_order(tmp_path: Path) -> None:
    for name in ("dog", "cat"):
        _picture(tmp_path / "names" / name / "1.png")
    _picture(tmp_path / "indices" / "7" / "1.png")
    assert open_images(tmp_path / "names", 3, ("hen", "dog", "cat")).labels.tolist() == [2, 1]
    assert open_images(tmp_path / "names", 3).labels.tolist() == [0, 1]
    assert open_images(tmp_path / "indices", 8).labels.tolist() == [7]


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    _picture(tmp_path / "b.png", 5)
    _picture(tmp_path / "a.PNG", 6)
    images = open_images(tmp_path, 2)
    assert images.ids == ("a.PNG", "b.png")
    assert images.labels is None
    assert np.asarray(images.picture(0))[0, 0, 0] == 6


def test_csv_with_indices_names_and_boxes(tmp_path: Path) -> None:
    _picture(tmp_path / "a.png")
    _picture(tmp_path / "sub" / "b.png")
    (tmp_path / "set.csv").write_text("image,label,x0,y0,x1,y1,author\na.png,1,0,0,2,2,me\nsub/b.png,Dog,1,1,3,3,you\n")
    images = open_images(tmp_path / "set.csv", 2, ("dog", "cat"))
    assert images.labels.tolist() == [1, 0]
    assert images.boxes.tolist() == [[0, 0, 2, 2], [1, 1, 3, 3]]


def test_a_folder_with_labels_csv_uses_it(tmp_path: Path) -> None:
    _picture(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("image,label\na.png,1\n")
    assert open_images(tmp_path, 2).labels.tolist() == [1]


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=np.array([1, 0]))
    images = open_images(tmp_path / "s.npz", 2)
    assert images.labels.tolist() == [1, 0]
    assert images.picture(1).shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"pictures": np.zeros(1)}, "no array 'images'"),
        ({"images": np.zeros((2, 4, 4, 3), np.float32)}, "float32"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.array([0.5, 1])}, "2 integers"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.array([0, 9])}, "label 9"),
        ({"images": np.array([{}], dtype=object)}, "cannot be read"),
    ],
)
def test_wrong_npz_is_one_sentence(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    np.savez(tmp_path / "s.npz", allow_pickle=True, **arrays)
    with pytest.raises(BadInput, match=words):
        open_images(tmp_path / "s.npz", 2)


def test_a_damaged_npz_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    np.savez_compressed(path, images=np.random.default_rng(0).integers(0, 9, (9, 9, 9, 3), dtype=np.uint8))
    whole = path.read_bytes()
    listed = whole.rindex(b"PK\x01\x02")  # data, then the list of files: flags, and how each is packed
    for at, damage in ((100, b"\xff" * 90), (listed + 8, b"\x01\x00"), (listed + 10, b"\x63\x00")):
        path.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
        with pytest.raises(BadInput, match=r"s.npz cannot be read as .npz"):
            open_images(path, 2)


def test_a_file_that_is_no_npz_is_not_loaded_some_other_way(tmp_path: Path) -> None:
    (tmp_path / "s.npz").write_bytes(b"\x80\x04not a zip file")
    with pytest.raises(BadInput, match=r"is not an \.npz file") as refused:
        open_images(tmp_path / "s.npz", 2)
    assert "pickle" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rows"),
        ("image,label\n", "no rows"),
        ("file,label\na.png,1\n", "expected image,label"),
        ("image,label\nmissing.png,1\n", "line 2: there is no image"),
        ("image,label\na.png,horse\n", "'horse'"),
        ("image,label\na.png,-1\n", "'-1'"),
        ("image,label\na.png,5\n", "label 5"),
        (f"image,label\na.png,{'9' * 5000}\n", "neither a class index"),
        (f"image,label\n{'a' * 300}.png,1\n", "line 2: there is no image"),
        ("image,label,x0,y0,x1,y1\na.png,1,0,0,1,wide\n", "four numbers"),
    ],
)
def test_wrong_csv_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    _picture(tmp_path / "a.png")
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(BadInput, match=words):
        open_images(tmp_path / "s.csv", 2)


def test_damaged_pictures_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no images"):
        open_images(tmp_path, 2)
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n not a picture")
    with pytest.raises(BadInput, match=r"bad\.png cannot be read"):
        open_images(tmp_path, 2).picture(0)
    with pytest.raises(BadInput, match="there is no"):
        open_images(tmp_path / "nowhere", 2)


def test_mixed_folders_are_refused(tmp_path: Path) -> None:
    _picture(tmp_path / "a.png")
    _picture(tmp_path / "cat" / "b.png")
    with pytest.raises(BadInput, match="mixes"):
        open_images(tmp_path, 2)


def test_pixels_without_a_known_white_are_refused_and_16_bits_are_not() -> None:
    grey = np.arange(12, dtype=np.float32).reshape(3, 4)
    for kind, words in ((np.float32, "floating-point"), (np.int32, "32-bit")):
        with pytest.raises(BadInput, match=f"{words} pixels.*save it with 8 or 16 bits"):
            as_picture(Image.fromarray(grey.astype(kind)), 3)
    assert np.asarray(as_picture(Image.fromarray((grey * 256).astype(np.uint16)), 1)).tolist() == grey.tolist()
    with pytest.raises(BadInput, match="colours of the kind La"):
        as_picture(Image.new("La", (4, 3)), 3)


def test_16_bits_in_a_file_keep_their_shades(tmp_path: Path) -> None:
    for name in ("a.png", "a.tif", "a.pgm"):
        Image.fromarray(np.full((3, 4), 0x7F00, np.uint16)).save(tmp_path / name)
        assert np.asarray(as_picture(opened(tmp_path / name), 1)).tolist() == [[0x7F] * 4] * 3, name


def test_a_strip_that_a_resize_would_blow_up_is_refused() -> None:
    card = replace(CARD, size=(224, 224), resize=256)
    with pytest.raises(BadInput, match=r"1x60000 pixels would have 256x15360000 after the card's resize.*crop it"):
        pixels(card, np.zeros((1, 60000, 3), np.uint8))


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take no such names")
def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    _picture(tmp_path / "a.png")
    os.rename(os.fsencode(tmp_path / "a.png"), os.fsencode(tmp_path) + b"/b\xff.png")  # noqa: PTH104
    with pytest.raises(BadInput, match=r"b\\udcff.png' is not UTF-8.*rename it"):
        open_images(tmp_path, 2)


def test_boxes_outside_their_picture(tmp_path: Path) -> None:
    images = np.zeros((2, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "far.npz", images=images, boxes=np.array([[0, 0, 2, 2], [9, 9, 12, 12]]))
    with pytest.raises(BadInput, match=r"image '1': the box \(9, 9, 12, 12\) lies outside the picture.*4x4"):
        open_images(tmp_path / "far.npz", 2)
    np.savez(tmp_path / "shares.npz", images=images, boxes=np.array([[0, 0, 2, 2], [0.1, 0.1, 0.9, 0.9]]))
    with pytest.raises(BadInput, match=r"box 2 \(0.1, 0.1, 0.9, 0.9\) seems to be in shares"):
        open_images(tmp_path / "shares.npz", 2)
    _picture(tmp_path / "a.png")
    _picture(tmp_path / "b.png")
    (tmp_path / "set.csv").write_text("image,x0,y0,x1,y1\na.png,0,0,2,2\nb.png,-9,-9,-1,-1\n")
    good, (left,) = usable(open_images(tmp_path / "set.csv", 2), CARD)
    assert good.ids == ("a.png",)
    assert (left.image, "lies outside the picture, which has 3x4 pixels" in left.reason) == ("b.png", True)
