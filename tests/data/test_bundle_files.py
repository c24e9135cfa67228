"""Bundles read back: strangers' files, hostile ones, and what `check` says of them."""

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from auditkit.data.bundle_check import check
from auditkit.data.bundles import open_bundle
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.model.card import Card

RNG = np.random.default_rng(0)
DIGEST = "ab" * 32


def noise(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _foreign(folder: Path, rows: str = "a,0,a.npy\n", **header: Any) -> Path:
    folder.mkdir(exist_ok=True)
    said = {"schema_version": 1, "frame": "model-input", "model": DIGEST, **header}
    (folder / "bundle.json").write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    (folder / "manifest.csv").write_text("image,label,heatmap\n" + rows)
    np.save(folder / "a.npy", noise(4, 4))
    return folder


def test_a_bundle_written_by_hand(tmp_path: Path) -> None:
    """Only the frame must be said; the last line needs no end."""
    folder = _foreign(tmp_path / "b", "a,0,a.npy")
    assert check(open_bundle(folder)) == []
    assert len(open_bundle(folder)) == 1


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"frame": None}, "does not state the frame"),
        ({"frame": "photo"}, "frame is 'photo', expected one of"),
        ({"schema_version": 9}, "schema_version 9"),
        ({"model": 5}, "bundle.json: header.model is 5, expected a text"),
        ({"sign": "both"}, "bundle.json: header.sign is 'both', expected one of signed, unsigned"),
        ({"layout": [1]}, r"bundle.json: header.layout\[0\] is 1, expected a text"),
    ],
)
def test_headers_that_are_refused(tmp_path: Path, header: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        open_bundle(_foreign(tmp_path / "b", **header))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("a,cat,a.npy\n", "line 2: label 'cat'"),
        ("a,0,a.npy\na,0,b.npy\n", "lines 2 and 3 both give image 'a', label 0"),
        ("a,0\n", "line 2: 2 fields"),
        ('a,0,"a.npy\n', "line"),
        ("a,\u0663,a.npy\n", "label"),
    ],
)
def test_manifests_that_are_refused(tmp_path: Path, rows: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        open_bundle(_foreign(tmp_path / "b", rows))


def test_files_that_are_no_bundle(tmp_path: Path) -> None:
    folder = _foreign(tmp_path / "b")
    for content, words in ((b"[]", "expected an object"), (b"{", "not JSON"), (b"[" * 100_000, "not JSON")):
        (folder / "bundle.json").write_bytes(content)
        with pytest.raises(BadInput, match=words):
            open_bundle(folder)
    _foreign(folder)
    (folder / "manifest.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="UTF-8"):
        open_bundle(folder)
    (folder / "manifest.csv").unlink()
    with pytest.raises(BadInput, match=r"no manifest\.csv"):
        open_bundle(folder)
    with pytest.raises(BadInput, match="auditkit bundle import"):
        open_bundle(tmp_path)


@pytest.mark.parametrize("heatmap", ["../a.npy", "/etc/passwd", "x/../a.npy", "C:\\a.npy", "", "./a.npy", "link.npy",
                                     "linked/a.npy", "fifo.npy", "sub", "gone.npy", "a.npy/b"])  # fmt: skip
def test_maps_lie_inside_the_bundle(tmp_path: Path, heatmap: str) -> None:
    np.save(tmp_path / "a.npy", noise(4, 4))
    folder = _foreign(tmp_path / "b", f"a,0,{heatmap}\n")
    (folder / "link.npy").symlink_to(tmp_path / "a.npy")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "sub").mkdir()
    os.mkfifo(folder / "fifo.npy")
    (problem,) = check(open_bundle(folder))
    assert (problem.severity, problem.file) == ("error", heatmap)


def _npy(header: str) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 64


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an .npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "not an .npy file"),
        (b"\x93NUMPY\x03\x00" + b"\0" * 90, "version"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9000000000, 9000000000)}"), "says float32"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -4)}"), "says float32"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (16, 0)}"), "says float32"),
        (_npy("{'descr': '|O', 'fortran_order': False, 'shape': (4, 2)}"), "holds object"),
        (_npy("{'descr': '<c8', 'fortran_order': False, 'shape': (4, 2)}"), "holds complex64"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (16,)}"), r"holds \[16\]"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2, 2)}"), r"holds \[4, 2, 2\]"),
        (_npy("__import__('os').abort()"), "not an .npy file"),
    ],
)
def test_hostile_maps(tmp_path: Path, content: bytes, words: str) -> None:
    folder = _foreign(tmp_path / "b")
    (folder / "a.npy").write_bytes(content)
    with pytest.raises(BadInput, match=words):
        open_bundle(folder).get("a", 0)


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", ">f8", "<f2", "|u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_type_and_order_reads_as_float32(tmp_path: Path, kind: str, order: str) -> None:
    folder = _foreign(tmp_path / "b", "a,0,a.npy#1\n")
    stack = np.asarray(np.arange(24).reshape(2, 3, 4), kind, order=order)
    np.save(folder / "a.npy", stack)
    found = open_bundle(folder).get("a", 0)
    assert (found.dtype.str, found.flags.c_contiguous) == ("<f4", True)
    assert (found == np.arange(12, 24).reshape(3, 4)).all()
    said = [problem.message for problem in check(open_bundle(folder))]
    assert any("read as float32" in text for text in said) == (kind not in ("<f4", ">f4"))
    (folder / "manifest.csv").write_text("image,label,heatmap\na,0,a.npy#2\n")
    with pytest.raises(BadInput, match="holds 2 maps, but the manifest names number 2"):
        open_bundle(folder).get("a", 0)


def test_check_beside_images_and_model(tmp_path: Path) -> None:
    """Each mismatch by its own sentence, with both values."""
    (tmp_path / "photos").mkdir()
    for name in ("a.png", "c.png"):
        Image.new("RGB", (30, 20)).save(tmp_path / "photos" / name)
    images = Dataset.open(tmp_path / "photos", 3)
    nan = noise(20, 30)
    nan[3, 4] = np.nan
    folder = _foreign(tmp_path / "b", "a.png,0,a.npy\nb.png,0,b.npy\na.png,5,b.npy\na.png,2,n.npy\n",
                      frame="original-image", sign="unsigned")  # fmt: skip
    np.save(folder / "b.npy", noise(20, 30))
    np.save(folder / "n.npy", nan)
    card = Card((16, 16), 16, "center", "bilinear", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3, (0.0,) * 3)
    problems = check(open_bundle(folder), images, "cd" * 32, 3, card)
    said = [f"{p.severity} {p.file}: {p.message}" for p in problems]
    for expected in (
        f"error bundle.json: the maps explain the model {DIGEST}, but the model given is {'cd' * 32}",
        "error manifest.csv: image 'a.png' has a map for label 5, but the model has classes 0 to 2",
        "error manifest.csv: image 'b.png' is not in",
        "warning manifest.csv: image 'c.png' of",
        "error a.npy: image 'a.png', label 0: a map of 4x4 does not fit a photograph of 20x30",
        "nan at row 3, column 4",
        "warning b.npy: negative scores in a bundle that says sign 'unsigned'",
    ):
        assert any(expected in text for text in said), expected
    assert len(said) == 7


def test_no_map_for_a_label_is_an_error_and_not_a_zero(tmp_path: Path) -> None:
    bundle = open_bundle(_foreign(tmp_path / "b"))
    with pytest.raises(BadInput, match=r"no map for image 'a', label 1; it has labels \[0\]"):
        bundle.get("a", 1)
    with pytest.raises(BadInput, match="no map of that image"):
        bundle.get("z", 1)


def test_ten_thousand_maps_take_the_memory_of_one(tmp_path: Path) -> None:
    """Of a stack of 10,000 maps of 48 x 48 (92 MB, mostly a hole in the file), one at a time is in memory."""
    folder = _foreign(tmp_path / "b", "".join(f"{i},0,big.npy#{i}\n" for i in range(10_000)))
    np.lib.format.open_memmap(folder / "big.npy", "w+", np.float32, (10_000, 48, 48)).flush()
    bundle = open_bundle(folder)
    tracemalloc.start()
    try:
        pixels = sum(heatmap.values.size for heatmap in bundle)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pixels == 10_000 * 48 * 48
    assert peak < 2**20
