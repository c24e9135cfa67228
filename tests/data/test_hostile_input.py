"""Input that is no plain file, lies about its size, has an odd name, or is stored on its side."""

import json
import os
import socket
import struct
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.data import dataset_files, npy
from auditkit.data.bundle_check import check
from auditkit.data.dataset import Dataset, FailedImage
from auditkit.errors import BadInput
from auditkit.model import decoder
from auditkit.model.card import Card, CardFile
from auditkit.model.preprocessing import pixels
from auditkit.regular_files import open_regular, read_regular
from auditkit.runs.evaluation.images import load_images
from tests.support import onnx_models
from tests.support.commands import auditkit as command
from tests.support.commands import refused

CARD = Card((3, 4), None, "center", "bicubic", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3, (0.0,) * 3)
ORIENTATION = 0x0112


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
}
READERS: dict[str, tuple[str, ...]] = {
    "model.onnx": ("inspect", "{}"),
    "card.toml": ("inspect", "MODEL", "--card", "{}"),
    "policy.toml": ("policy", "check", "{}"),
    "set.csv": ("inspect", "MODEL", "--images", "{}"),
    "set.npz": ("inspect", "MODEL", "--images", "{}"),
    "bundle.json": ("bundle", "check", "."),
    "maps.npz": ("bundle", "import", "{}", "-o", "out", "--frame", "model-input"),
    "maps.csv": ("bundle", "import", "{}", "-o", "out", "--frame", "model-input"),
    "fill.png": ("evaluate", "MODEL", "images", "--preset", "unit", "-o", "out", "--infill", "image:{}"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_models.save(onnx_models.convnet(size=8, classes=4), tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_plain_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path, name: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    KINDS[kind](Path(name))
    Path("images").mkdir()
    Image.new("RGB", (8, 8)).save("images/a.png")
    words = [str(model) if word == "MODEL" else word.replace("{}", name) for word in READERS[name]]
    began = time.monotonic()
    refused(command(*words), name if name != "images" else "")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_that_is_no_plain_file_is_an_image_that_cannot_be_used(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path / "a.png")
    with pytest.raises(BadInput, match=rf"a\.png cannot be read: it is a {kind}, not a regular file\.$"):
        decoder.size(tmp_path / "a.png", exif_orientation=True)


def test_a_file_of_unknown_size_is_read_to_its_end() -> None:
    """Such as those of /proc, which the system says are empty."""
    path = Path("/proc/self/cmdline")
    if not path.exists():
        pytest.skip("this system has no /proc")
    assert read_regular(path, 10**6) == path.read_bytes()


def test_a_csv_may_be_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_files, "_MOST_ROWS", 3)
    (tmp_path / "set.csv").write_text("image\n" + "a.png\n" * 4)
    with pytest.raises(BadInput, match="lists more than 3 images; split it"):
        Dataset.open(tmp_path / "set.csv", 2)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "a", 4)
    with pytest.raises(OSError, match="null"):
        open_regular(tmp_path / "a\0b")


# Arrays --------------------------------------------------------------------------------------------------------------


def _npz(path: Path, header: str, data: bytes, name: str = "images.npy") -> Path:
    """An .npz whose one array says of itself what `header` says."""
    text = (header + " " * (-(len(header) + 11) % 64) + "\n").encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data)
    return path


def _header(kind: str, shape: tuple[int, ...]) -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (_header("|u1", (10**6, 10**6, 10**6, 3)), "but has 12"),
        (_header("|u1", (1, -2, -2, 3)), "cannot be read"),
        (_header("|O", (1,)), "Python objects"),
        (_header("|u1", (1, 2, 2, 3))[:-4], "cannot be read"),
        ("[" * 3000, "cannot be read"),
        (_header("|u1", (12,)), r"uint8\[12\], expected"),
        (_header("|V12", (1,)), "expected"),
    ],
)
def test_an_array_is_as_large_as_it_says(tmp_path: Path, header: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Dataset.open(_npz(tmp_path / "s.npz", header, b"\0" * 12), 2)


def test_packed_zeros_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "s.npz", images=np.zeros((50, 64, 64, 3), np.uint8), labels=np.zeros(50, int))
    assert len(Dataset.open(tmp_path / "s.npz", 2)) == 50
    monkeypatch.setattr(npy, "MOST_NPZ_BYTES", 600_000)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_args, **_more: pytest.fail("data was read"))
    with pytest.raises(BadInput, match=r"arrays have 614,800 bytes, at most 600,000 are read; give a folder"):
        Dataset.open(tmp_path / "s.npz", 2)


def _listing(path: Path, members: int, *, zip64: bool = True) -> Path:
    """An .npz that lists one empty member so many times."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0) + b"a.npy"
    first = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 5, 0) + b"a.npy"
    size, start = members * len(entry), len(first)
    end_64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, members, members, size, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, start + size, 1)
    counts = (0xFFFF, 0xFFFF) if zip64 else (members, members)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *counts, size, start, 0)
    with path.open("wb") as stream:
        stream.write(first)
        stream.write(entry * members)
        stream.write((end_64 + locator if zip64 else b"") + end)
    return path


def test_two_million_members_are_counted_and_not_read(tmp_path: Path) -> None:
    path = _listing(tmp_path / "s.npz", 2_000_000)
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(BadInput, match=r"has 2,000,000 members, listed in 102,000,000 bytes; at most 1,000 are read"):
        Dataset.open(path, 2)
    assert time.process_time() - began < 1
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("zip64", [False, True])
def test_the_list_of_members_is_short(tmp_path: Path, zip64: bool) -> None:
    path = _listing(tmp_path / "s.npz", 1_000, zip64=zip64)
    with pytest.raises(BadInput, match="has no array 'images'"):
        Dataset.open(path, 2)
    path = _listing(tmp_path / "s.npz", 1_001, zip64=zip64)
    with pytest.raises(BadInput, match=r"it has 1,001 members, listed in 51,051 bytes; at most 1,000 are read"):
        Dataset.open(path, 2)


def test_the_end_of_an_npz_is_as_numpy_writes_it(tmp_path: Path) -> None:
    """Readers of other ends disagree on where the list of members begins."""
    np.savez(tmp_path / "s.npz", images=np.zeros((1, 4, 4, 3), np.uint8))
    content = (tmp_path / "s.npz").read_bytes()
    (tmp_path / "s.npz").write_bytes(content[:-2] + b"\1\0" + b"c")
    with pytest.raises(BadInput, match="ends in a comment, which numpy does not write; save it again with numpy"):
        Dataset.open(tmp_path / "s.npz", 2)
    path = _listing(tmp_path / "s.npz", 10)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"PK\6\6", b"PK\6\5"))
    with pytest.raises(BadInput, match="its end is damaged"):
        Dataset.open(path, 2)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_is_packed_as_numpy_packs(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "s.npz", "w", method) as archive, archive.open("images.npy", "w") as stream:
        np.save(stream, np.zeros((1, 4, 4, 3), np.uint8))
    with pytest.raises(BadInput, match="'images' is packed as numpy does not pack; save it again"):
        Dataset.open(tmp_path / "s.npz", 2)


def test_a_sparse_npz_is_refused(tmp_path: Path) -> None:
    path = _listing(tmp_path / "s.npz", 1)
    content = path.read_bytes()
    with path.open("wb") as stream:
        stream.seek(2**30)
        stream.write(content)
    with pytest.raises(BadInput, match="hardly any of its bytes are on the disk"):
        Dataset.open(path, 2)


@pytest.mark.parametrize("shape", [(2, 0, 4, 3), (2, 4, 0, 3)])
def test_images_without_pixels_are_refused(tmp_path: Path, shape: tuple[int, ...], model: Path) -> None:
    images = np.zeros(shape, np.uint8)
    np.savez(tmp_path / "s.npz", images=images, labels=np.array([0, 1]))
    refused(command("inspect", model, "--images", tmp_path / "s.npz"), "s.npz: images are", "pixels")
    with pytest.raises(BadInput, match="needs at least one"):
        Dataset.from_array(images)
    with pytest.raises(BadInput, match="no pixels"):
        pixels(CARD, images[0])


@pytest.mark.parametrize("height", [7_000, 10_000])  # below and above Pillow's own limit
def test_a_picture_with_too_many_pixels_is_not_decoded(tmp_path: Path, height: int) -> None:
    Image.new("1", (20_000, height)).save(tmp_path / "a.png")
    with pytest.raises(BadInput, match="it has more than 67,108,864 pixels; make it smaller"):
        decoder.size(tmp_path / "a.png", exif_orientation=True)


def test_only_picture_formats_are_decoded(tmp_path: Path) -> None:
    """Pillow would hand this one to Ghostscript."""
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(BadInput, match="it is none of JPEG, PNG"):
        decoder.size(tmp_path / "a.png", exif_orientation=True)


# Folders and names ----------------------------------------------------------------------------------------------------


def _pictures(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3)).save(folder / name)
    return folder


@pytest.mark.parametrize("stray", [".ipynb_checkpoints", ".git", "__MACOSX", ".Trash/deep"])
def test_hidden_folders_are_no_classes(tmp_path: Path, stray: str) -> None:
    classes = ("0", "1", "2", "3", "10")
    folder = _pictures(tmp_path, *(f"{name}/a.png" for name in classes), f"{stray}/b.png", "1/._a.png")
    images = Dataset.open(folder, 11)
    assert dict(zip(images.ids, images.labels.tolist(), strict=True)) == {
        f"{name}/a.png": int(name) for name in classes
    }
    assert images.notes == ("class folders are class indices",)


def test_a_hidden_folder_beside_flat_pictures_is_no_class(tmp_path: Path) -> None:
    assert Dataset.open(_pictures(tmp_path, "a.png", ".thumbnails/a.png"), 2).ids == ("a.png",)


def test_the_dataset_itself_may_be_hidden(tmp_path: Path) -> None:
    assert Dataset.open(_pictures(tmp_path / ".data", "a.png"), 2).ids == ("a.png",)


@pytest.mark.parametrize("names", [(), tuple(map(str, range(10))), ("0", "1", "10", "2", "3", "x")])
def test_numbers_mixed_with_names_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = _pictures(tmp_path, *(f"{name}/a.png" for name in ("0", "1", "10", "2", "unsorted")))
    words = r"are numbers \('0', '1', '10', \.\.\.\) and names \('unsorted'\); name all by class index"
    with pytest.raises(BadInput, match=words):
        Dataset.open(folder, 11, names)


def test_numbers_may_be_class_names_of_the_card(tmp_path: Path) -> None:
    folder = _pictures(tmp_path, "7/a.png", "none/a.png")
    assert Dataset.open(folder, 2, ("none", "7")).labels.tolist() == [1, 0]


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take no such names")
@pytest.mark.parametrize(
    ("name", "shown"),
    [(b"b\nc.png", r"b\nc.png"), (b"b\xff.png", r"b\udcff.png"), (b"b\x1b[2J.png", r"b\x1b[2J.png")],
)  # fmt: skip
def test_one_bad_name_among_many(tmp_path: Path, name: bytes, shown: str, model: Path) -> None:
    folder = _pictures(tmp_path / "images", "a.png", "b.png", "c.png")
    os.rename(folder / "b.png", os.fsencode(folder) + b"/" + name)  # noqa: PTH104
    dataset, classifier = Dataset.open(folder, 4), auditkit.load(model, preset="unit")
    assert dataset.ids == ("a.png", shown, "c.png")
    loaded = load_images(range(3), dataset, classifier.card, classifier.signature)
    assert loaded.ids == ("a.png", "c.png")
    (failure,) = loaded.failed
    assert isinstance(failure, FailedImage)
    assert failure.image == shown
    assert "has control characters or is not UTF-8; rename it" in failure.reason
    assert failure.reason.isascii()
    assert "\n" not in failure.reason
    words = ("explain", model, folder, "-o", tmp_path / "maps", "--method", "edges", "--preset", "unit")
    done = command(*words)
    assert done.returncode == 0, done
    assert "1 of 3 images cannot be used" in " ".join(done.stdout.split())
    assert tuple(auditkit.open_bundle(tmp_path / "maps").labels) == ("a.png", "c.png")


def test_accuracy_leaves_out_what_cannot_be_used(tmp_path: Path, model: Path) -> None:
    folder = _pictures(tmp_path, "0/a.png", "1/b.png", "2/c.png")
    (folder / "1" / "b.png").write_bytes(b"torn")
    done = command("inspect", model, "--images", folder, "--preset", "unit")
    text = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert "of 2 top-1" in text
    assert "1 of 3 images cannot be used and are left out; the first, '1/b.png': the image" in text
    for name in ("0/a.png", "2/c.png"):
        (folder / name).write_bytes(b"torn")
    refused(command("inspect", model, "--images", folder, "--preset", "unit"), "none of the 3 images can be used")


# Orientation ----------------------------------------------------------------------------------------------------------

CORNERS = np.arange(1, 13, dtype=np.uint8).reshape(3, 4)[..., None].repeat(3, axis=2) * 20
TURNED = {
    1: CORNERS, 2: CORNERS[:, ::-1], 3: CORNERS[::-1, ::-1], 4: CORNERS[::-1], 5: CORNERS.transpose(1, 0, 2),
    6: np.rot90(CORNERS, -1), 7: np.rot90(CORNERS.transpose(1, 0, 2), 2), 8: np.rot90(CORNERS),
}  # fmt: skip


def _oriented(path: Path, orientation: object, array: np.ndarray = CORNERS) -> Path:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(array).save(path, exif=exif, lossless=True)
    return path


@pytest.mark.parametrize("suffix", [".png", ".webp"])
@pytest.mark.parametrize("orientation", TURNED)
def test_the_orientation_is_applied_once_and_can_be_ignored(tmp_path: Path, orientation: int, suffix: str) -> None:
    """As a viewer shows the picture; checked against rotations by numpy."""
    path = _oriented(tmp_path / f"a{suffix}", orientation)
    turned = TURNED[orientation]
    card = replace(CARD, size=turned.shape[:2])
    dataset = Dataset.open(tmp_path, 2)
    decoded = dataset.decode(0, card)
    np.testing.assert_array_equal(decoded.pixels, turned)
    assert decoded.size == dataset.size(0) == turned.shape[:2]
    np.testing.assert_array_equal(pixels(card, path), turned)
    ignoring = replace(CARD, exif_orientation=False)
    np.testing.assert_array_equal(dataset.decode(0, ignoring).pixels, CORNERS)
    assert dataset.size(0, exif_orientation=False) == (3, 4)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_none(tmp_path: Path, orientation: object) -> None:
    path = _oriented(tmp_path / "a.png", orientation)
    np.testing.assert_array_equal(pixels(CARD, path), CORNERS)


def test_metadata_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(CORNERS).save(path, exif=b"Exif\0\0MM\0\x2a\xff\xff\xff\xff" + b"\xff" * 40)
    np.testing.assert_array_equal(pixels(CARD, path), CORNERS)


def test_boxes_and_masks_lie_over_the_turned_picture(tmp_path: Path) -> None:
    _oriented(tmp_path / "a.png", 6)
    Image.fromarray((TURNED[6][..., 0] == TURNED[6][0, 0, 0]).astype(np.uint8) * 255).save(tmp_path / "upright.png")
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.fromarray((CORNERS[..., 0] == TURNED[6][0, 0, 0]).astype(np.uint8) * 255).save(
        tmp_path / "stored.png", exif=exif
    )
    for mask in ("upright.png", "stored.png"):
        (tmp_path / "set.csv").write_text(f"image,label,x0,y0,x1,y1,mask\na.png,0,0,3,2,4,{mask}\n")
        decoded = Dataset.open(tmp_path / "set.csv", 2).decode(0, replace(CARD, size=(4, 3)))
        assert decoded.mask is not None
        assert np.argwhere(decoded.mask).tolist() == [[0, 0]], mask


def test_the_card_says_whether_pictures_are_turned(tmp_path: Path, model: Path) -> None:
    """Written, read, recorded, and overruled by --ignore-exif."""
    refused(command("inspect", model, "--card", _card(tmp_path, '"no"')), "exif_orientation is 'no', expected true")
    for text, expected in (("true", True), ("false", False)):
        path = _card(tmp_path, text)
        classifier = auditkit.load(model, card=path)
        assert classifier.card.exif_orientation is expected
        assert classifier.card.to_json()["exif_orientation"] is expected
    assert CardFile.read(_card(tmp_path, None)).card(classifier.signature).exif_orientation
    done = command("inspect", model, "--ignore-exif", "--write-card", "--card", tmp_path / "new.toml")
    assert "EXIF orientation ignored" in " ".join(done.stdout.split())
    assert "exif_orientation = false" in (tmp_path / "new.toml").read_text()
    assert "ignored" not in command("inspect", model, "--preset", "unit").stdout


def _card(folder: Path, exif: str | None) -> Path:
    line = "" if exif is None else f"exif_orientation = {exif}\n"
    (folder / "card.toml").write_text(f'schema_version = 1\n[preprocessing]\npreset = "unit"\n{line}')
    return folder / "card.toml"


@pytest.mark.parametrize("options", [(), ("--ignore-exif",)])
def test_a_run_says_whether_pictures_were_turned_and_verify_does_the_same(
    tmp_path: Path, model: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "images").mkdir()
    for seed in range(3):
        noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        _oriented(tmp_path / "images" / f"{seed}.png", 6, noise)
    words = (
        "evaluate",
        model,
        tmp_path / "images",
        "-o",
        tmp_path / "run",
        "--preset",
        "unit",
        "--steps",
        "4",
        *options,
    )
    assert command(*words).returncode == 0
    card = json.loads((tmp_path / "run" / "results.json").read_text())["subject"]["card"]
    assert card["exif_orientation"] is (not options)
    originals = ("--model", model, "--images", tmp_path / "images")
    done = command("verify", tmp_path / "run", *originals, "--sample", "1")
    assert done.returncode == 0, done


def test_a_bundle_is_checked_against_the_turned_picture(tmp_path: Path) -> None:
    images = _pictures(tmp_path / "images")
    images.mkdir()
    _oriented(images / "a.png", 6)
    bundle = auditkit.Bundle(tmp_path / "maps", method="m", frame="original-image")
    bundle.add(["a.png"], [0], [np.arange(12.0).reshape(4, 3)])
    maps, dataset = auditkit.open_bundle(tmp_path / "maps"), Dataset.open(images, 2)
    assert not [problem for problem in check(maps, dataset, None, 2, None) if problem.severity == "error"]
    ignoring = replace(CARD, exif_orientation=False)
    assert [problem for problem in check(maps, dataset, None, 2, ignoring) if problem.severity == "error"]


def test_what_libraries_write_stays_off_stderr(tmp_path: Path, model: Path) -> None:
    """libtiff writes about a damaged picture to the descriptor itself."""
    folder = _pictures(tmp_path, "0/a.png")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "0" / "b.tif", compression="tiff_lzw")
    content = bytearray((folder / "0" / "b.tif").read_bytes())
    content[2000:2400] = b"\xff" * 400
    (folder / "0" / "b.tif").write_bytes(bytes(content))
    done = command("inspect", model, "--images", folder, "--preset", "unit")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 2 images cannot be used" in " ".join(done.stdout.split())
    refused(command("inspect", model, "--images", tmp_path / "none"), "there is no")  # and stderr is as before
