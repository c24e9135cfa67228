import hashlib
import os
import pickle
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from auditkit.data import file_digests
from auditkit.data.dataset import Dataset, Decoded, FailedImage
from auditkit.errors import BadInput
from auditkit.model.card import Card
from auditkit.model.pictures import as_picture
from auditkit.model.preprocessing import pixels
from tests.support import mounts

CARD = Card((3, 4), None, "center", "bicubic", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3, (0.0,) * 3)


def _picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (shade, shade, shade)).save(path)


def test_class_folders_by_name_by_index_and_by_order(tmp_path: Path) -> None:
    for name in ("dog", "cat"):
        _picture(tmp_path / "names" / name / "1.png")
    _picture(tmp_path / "indices" / "7" / "1.png")
    assert Dataset.open(tmp_path / "names", 3, ("hen", "dog", "cat")).labels.tolist() == [2, 1]
    assert Dataset.open(tmp_path / "names", 3).labels.tolist() == [0, 1]
    assert Dataset.open(tmp_path / "indices", 8).labels.tolist() == [7]


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    _picture(tmp_path / "b.png", 5)
    _picture(tmp_path / "a.PNG", 6)
    images = Dataset.open(tmp_path, 2)
    assert images.ids == ("a.PNG", "b.png")
    assert images.labels is None
    assert images.decode(0, CARD).pixels[0, 0, 0] == 6


def test_csv_with_indices_names_and_boxes(tmp_path: Path) -> None:
    _picture(tmp_path / "a.png")
    _picture(tmp_path / "sub" / "b.png")
    (tmp_path / "set.csv").write_text("image,label,x0,y0,x1,y1,author\na.png,1,0,0,2,2,me\nsub/b.png,Dog,1,1,3,3,you\n")
    images = Dataset.open(tmp_path / "set.csv", 2, ("dog", "cat"))
    assert images.labels.tolist() == [1, 0]
    assert images.boxes.tolist() == [[0, 0, 2, 2], [1, 1, 3, 3]]


def test_other_columns_of_a_csv_name_groups(tmp_path: Path) -> None:
    """A column with one value, or with so many that it names images, tells no groups apart."""
    lines = ["image,site,made,all, ,dev\tice"]
    for index in range(102):
        _picture(tmp_path / f"{index}.png")
        lines.append(f"{index}.png,{'' if index == 5 else 'ab'[index % 2]},{index},same,{index % 3},{index % 4}")
    (tmp_path / "set.csv").write_text("\n".join([*lines[:-1], "101.png,b"]))
    images = Dataset.open(tmp_path / "set.csv", 2)
    assert list(images.groups) == ["site", "dev\\tice"]
    assert images.groups["site"][4:7] == ("a", "", "a")
    assert images.groups["dev\\tice"][-2:] == ("0", "")
    members = images.select([0, 5, 3]).members()
    assert members == {"dev\\tice": {"0": ("0.png",), "1": ("5.png",), "3": ("3.png",)},
                       "site": {"a": ("0.png",), "b": ("3.png",)}}  # fmt: skip
    assert replace(images, groups={}).digest() != images.digest()
    assert replace(images, groups={}).members() is None


def test_a_folder_with_labels_csv_uses_it(tmp_path: Path) -> None:
    _picture(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("image,label\na.png,1\n")
    assert Dataset.open(tmp_path, 2).labels.tolist() == [1]


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=np.array([1, 0]))
    images = Dataset.open(tmp_path / "s.npz", 2)
    assert images.labels.tolist() == [1, 0]
    assert images.images[1].shape == (4, 4, 3)


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
        Dataset.open(tmp_path / "s.npz", 2)


def test_a_damaged_npz_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    np.savez_compressed(path, images=np.random.default_rng(0).integers(0, 9, (9, 9, 9, 3), dtype=np.uint8))
    whole = path.read_bytes()
    listed = whole.rindex(b"PK\x01\x02")  # data, then the list of files: flags, and how each is packed
    for at, damage in ((100, b"\xff" * 90), (listed + 8, b"\x01\x00"), (listed + 10, b"\x63\x00")):
        path.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
        with pytest.raises(BadInput, match=r"s.npz cannot be read as .npz"):
            Dataset.open(path, 2)


def test_a_file_that_is_no_npz_is_not_loaded_some_other_way(tmp_path: Path) -> None:
    (tmp_path / "s.npz").write_bytes(b"\x80\x04not a zip file")
    with pytest.raises(BadInput, match=r"is not an \.npz file") as refused:
        Dataset.open(tmp_path / "s.npz", 2)
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
        Dataset.open(tmp_path / "s.csv", 2)


def test_damaged_pictures_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no images"):
        Dataset.open(tmp_path, 2)
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n not a picture")
    with pytest.raises(BadInput, match=r"bad\.png cannot be read"):
        Dataset.open(tmp_path, 2).size(0)
    with pytest.raises(BadInput, match="there is no"):
        Dataset.open(tmp_path / "nowhere", 2)


def test_mixed_folders_are_refused(tmp_path: Path) -> None:
    _picture(tmp_path / "a.png")
    _picture(tmp_path / "cat" / "b.png")
    with pytest.raises(BadInput, match="mixes"):
        Dataset.open(tmp_path, 2)


def test_pixels_of_more_than_8_bits_are_refused() -> None:
    grey = np.arange(12).reshape(3, 4)
    for kind, mode in ((np.float32, "F"), (np.int32, "I"), (np.uint16, "I;16")):
        with pytest.raises(
            BadInput, match=f"pixels of mode {mode}, more than 8 bits per channel.*convert it to 8 bits"
        ):
            as_picture(Image.fromarray(grey.astype(kind)), 3)
    with pytest.raises(BadInput, match="colours of the kind La"):
        as_picture(Image.new("La", (4, 3)), 3)


def test_a_strip_that_a_resize_would_blow_up_is_refused() -> None:
    card = replace(CARD, size=(224, 224), resize=256)
    with pytest.raises(BadInput, match=r"1x60000 pixels would have 256x15360000 after the card's resize.*crop it"):
        pixels(card, np.zeros((1, 60000, 3), np.uint8))


def test_boxes_outside_their_picture(tmp_path: Path) -> None:
    images = np.zeros((2, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "far.npz", images=images, boxes=np.array([[0, 0, 2, 2], [9, 9, 12, 12]]))
    with pytest.raises(BadInput, match=r"image '1': the box \(9, 9, 12, 12\) lies outside the picture.*4x4"):
        Dataset.open(tmp_path / "far.npz", 2)
    np.savez(tmp_path / "shares.npz", images=images, boxes=np.array([[0, 0, 2, 2], [0.1, 0.1, 0.9, 0.9]]))
    with pytest.raises(BadInput, match=r"box 2 \(0.1, 0.1, 0.9, 0.9\) seems to be in fractions"):
        Dataset.open(tmp_path / "shares.npz", 2)
    _picture(tmp_path / "a.png")
    _picture(tmp_path / "b.png")
    (tmp_path / "set.csv").write_text("image,x0,y0,x1,y1\na.png,0,0,2,2\nb.png,-9,-9,-1,-1\n")
    good, left = Dataset.open(tmp_path / "set.csv", 2).decode_many((0, 1), CARD).values()
    assert isinstance(good, Decoded)
    assert isinstance(left, FailedImage)
    assert (left.image, "lies outside the picture, which has 3x4 pixels" in left.reason) == ("b.png", True)


def _datasets(folder: Path) -> dict[str, Dataset]:
    """One of each kind, with labels, boxes and masks where the kind has them."""
    for name in ("a.png", "b.png"):
        _picture(folder / "flat" / name, 7)
    Image.new("L", (4, 3), 255).save(folder / "mask.png")
    (folder / "set.csv").write_text("image,label,x0,y0,x1,y1,mask\nflat/a.png,1,0,0,2,2,mask.png\nflat/b.png,0,,,,,\n")
    arrays = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3), dtype=np.uint8)
    np.savez(folder / "set.npz", images=arrays, labels=[1, 0], boxes=[[0, 0, 2, 2]] * 2, masks=arrays[..., 0] > 99)
    return {
        "folder": Dataset.open(folder / "flat", 2), "csv": Dataset.open(folder / "set.csv", 2),
        "npz": Dataset.open(folder / "set.npz", 2), "array": Dataset.from_array(arrays),
        "list": Dataset.from_files([folder / "flat" / "b.png"]),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["folder", "csv", "npz", "array", "list"])
def test_a_dataset_can_be_pickled(tmp_path: Path, kind: str) -> None:
    dataset = _datasets(tmp_path)[kind]
    dataset.decode(0, CARD)
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own bytes
    assert (copy.ids, copy.source, copy.digest()) == (dataset.ids, dataset.source, dataset.digest())
    for facts in ("labels", "boxes"):
        np.testing.assert_equal(getattr(copy, facts), getattr(dataset, facts))
    for position in range(len(dataset)):
        first, second = dataset.decode(position, CARD), copy.decode(position, CARD)
        np.testing.assert_array_equal(first.pixels, second.pixels)
        np.testing.assert_equal(first.mask, second.mask)


def test_the_order_of_a_seed_depends_on_content_and_not_on_names(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3), dtype=np.uint8)
    for number, picture in enumerate(pictures):
        for folder, name in (("plain", f"{number}.png"), ("turned", f"{9 - number}.png")):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.fromarray(picture).save(tmp_path / folder / name)
    plain, turned = (Dataset.open(tmp_path / folder, 3) for folder in ("plain", "turned"))
    assert plain.order(5) != plain.order(6)
    assert [9 - int(turned.ids[position][0]) for position in turned.order(5)] == plain.order(5)
    assert plain.sample(4, seed=5).ids == tuple(plain.ids[position] for position in plain.order(5)[:4])
    arrays = Dataset.from_array(pictures)
    reverse = Dataset.from_array(pictures[::-1])
    assert [8 - position for position in reverse.order(5)] == arrays.order(5)


def test_copies_of_an_image_do_not_follow_each_other() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)
    order = np.array(Dataset.from_array(pictures.repeat(2, axis=0)).order(5)) // 2
    assert np.mean(order[::2] == order[1::2]) < 0.5


def test_a_digest_is_the_one_of_earlier_versions(tmp_path: Path) -> None:
    """Worked out by hand: ids, labels and boxes, then the digest of each file, the image in the place of no mask."""
    dataset = _datasets(tmp_path)["csv"]
    assert dataset.labels is not None
    assert dataset.boxes is not None
    files = [tmp_path / name for name in ("flat/a.png", "flat/b.png", "mask.png", "flat/b.png")]
    parts = [b"flat/a.png\0flat/b.png", np.array([1.0, 0.0]).tobytes(), dataset.boxes.tobytes()]
    parts += [hashlib.sha256(file.read_bytes()).digest() for file in files]
    assert dataset.digest() == hashlib.sha256(b"".join(parts)).hexdigest()


def test_a_file_is_hashed_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    take = hashlib.file_digest

    def counted(stream: BufferedReader, name: str) -> Any:
        hashed.append(Path(stream.name).name)
        return take(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    _picture(tmp_path / "a.png", 1)
    _picture(tmp_path / "b.png", 2)
    first = Dataset.open(tmp_path, 2).digest()
    assert Dataset.open(tmp_path, 2).digest() == first
    assert sorted(hashed) == ["a.png", "b.png"]
    _picture(tmp_path / "b.png", 3)
    os.utime(tmp_path / "b.png", ns=(5, 5))
    assert Dataset.open(tmp_path, 2).digest() != first
    assert sorted(hashed) == ["a.png", "b.png", "b.png"]


def test_another_process_hashes_again_only_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "a.png", tmp_path / "b.png", tmp_path / "none.png"]
    _picture(files[0], 1)
    _picture(files[1], 2)
    monkeypatch.setattr(file_digests, "_SETTLED_NS", 0)
    mounts.pretend(monkeypatch, tmp_path)
    expected = [*(hashlib.sha256(file.read_bytes()).digest() for file in files[:2]), file_digests.UNREADABLE]
    assert file_digests.file_digests(files) == expected
    monkeypatch.setattr(file_digests, "_digests", {})  # as in another process
    _picture(files[1], 3)
    monkeypatch.setattr(hashlib, "file_digest", lambda stream, _: hashlib.sha256(f"read {stream.name}".encode()))
    digests = file_digests.file_digests(files)
    assert (digests[0], digests[2]) == (expected[0], expected[2])
    assert digests[1] == hashlib.sha256(f"read {files[1]}".encode()).digest()


def test_without_a_cache_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _picture(tmp_path / "a.png", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a.png"))  # no folder
    digest = hashlib.sha256((tmp_path / "a.png").read_bytes()).digest()
    assert file_digests.file_digests([tmp_path / "a.png"]) == [digest]


def test_a_changed_file_is_decoded_again(tmp_path: Path) -> None:
    _picture(tmp_path / "a.png", 1)
    dataset = Dataset.open(tmp_path, 2)
    assert dataset.decode(0, CARD).pixels[0, 0, 0] == 1
    _picture(tmp_path / "a.png", 2)
    os.utime(tmp_path / "a.png", ns=(5, 5))
    assert dataset.decode(0, CARD).pixels[0, 0, 0] == 2
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(BadInput, match="cannot be read"):
        dataset.decode(0, CARD)
