from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from auditkit.data.images import open_images
from auditkit.errors import BadInput


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
