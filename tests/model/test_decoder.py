"""Pictures in files are decoded in a process of their own, under limits."""

import io
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

import auditkit
from auditkit.data.dataset import Dataset, Decoded, FailedImage
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.model import decoder, pictures, worker
from auditkit.model.card import Card
from auditkit.model.preprocessing import pixels

CARD = Card((8, 8), None, "center", "bicubic", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3, (0.0,) * 3)
NOISE = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
SCAN = b"\xff\xda\x00\x08\x01\x01\x00\x01\x05\x02"  # one more pass over all blocks of the first channel


def _encoded(picture: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def _with_scans(count: int) -> bytes:
    """A progressive JPEG of so many scans."""
    content = _encoded(Image.new("RGB", (64, 64), (90, 100, 20)), "JPEG", progressive=True)
    return content[:-2] + SCAN * (count - content.count(b"\xff\xda")) + content[-2:]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)


def _png(bits: int, colours: int, row: bytes) -> bytes:
    """A PNG of one pixel."""
    header = (1).to_bytes(4) * 2 + bytes([bits, colours, 0, 0, 0])
    data = zlib.compress(b"\0" + row)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A picture that takes several times its deadline: Pillow reads a comment byte by byte."""
    monkeypatch.setattr(decoder, "_BYTES_PER_SECOND", -(2**25) / 19.5)  # it gets half a second, small ones 20
    path = tmp_path / "slow.ppm"
    path.write_bytes(b"P6\n#" + bytes(2**25) + b"\n1 1\n255\nabc")
    return path


def test_the_decoder_loads_no_library_of_models() -> None:
    code = "import sys, auditkit.model.decoder_main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"onnx", "onnxruntime", "google.protobuf", "scipy"} & set(done.stdout.split())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"])
def test_pixels_of_a_file_are_those_of_pillow(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    Image.fromarray(NOISE).save(path, kind)
    with Image.open(path) as picture:
        for card in (CARD, replace(CARD, resize=12), replace(CARD, mean=(0.0,), std=(1.0,))):
            np.testing.assert_array_equal(pixels(card, path), pixels(card, picture))


def test_no_picture_of_a_file_is_decoded_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    (tmp_path / "set.csv").write_text("image,label,mask\na.png,0,a.png\n")
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _picture: pytest.fail("a picture was decoded here"))
    dataset = Dataset.open(tmp_path / "set.csv", 2)
    assert dataset.decode(0, CARD).mask is not None
    assert dataset.size(0) == (8, 8)
    np.testing.assert_array_equal(pixels(CARD, tmp_path / "a.png"), NOISE)


def test_scans_are_counted_before_they_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(_with_scans(pictures.MOST_SCANS))
    assert decoder.size(path, exif_orientation=True) == (64, 64)
    path.write_bytes(_with_scans(pictures.MOST_SCANS + 1))
    with pytest.raises(
        BadInput, match=r"a\.jpg cannot be read: it is a JPEG of more than 100 scans.*; save it anew\.$"
    ):
        decoder.size(path, exif_orientation=True)


def test_scans_inside_of_metadata_do_not_count(tmp_path: Path) -> None:
    content = _encoded(Image.fromarray(NOISE), "JPEG")
    segment = b"\xff\xfe" + (2 + 10 * 200).to_bytes(2) + SCAN * 200
    (tmp_path / "a.jpg").write_bytes(content[:2] + segment + content[2:])
    assert decoder.size(tmp_path / "a.jpg", exif_orientation=True) == (8, 8)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_segments_and_chunks_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    content = _encoded(Image.fromarray(NOISE), kind)
    start, part = (2, b"\xff\xfe\0\2") if kind == "JPEG" else (33, _chunk(b"xxXx", b""))
    (tmp_path / "a").write_bytes(content[:start] + part * pictures.MOST_PARTS + content[start:])
    with pytest.raises(BadInput, match=r"a cannot be read: it has more than 100,000 segments or chunks; save it anew"):
        decoder.size(tmp_path / "a", exif_orientation=True)


def test_a_picture_that_takes_too_long_is_given_up_and_those_beside_it_are_not(tmp_path: Path, slow: Path) -> None:
    names = ["a.png", "b.png", "c.png"]
    for name in names:
        Image.fromarray(NOISE).save(tmp_path / name)
    dataset = Dataset.from_files([slow, *(tmp_path / name for name in names)])
    first, *others = dataset.decode_many(range(4), CARD).values()
    assert isinstance(first, FailedImage)
    assert "slow.ppm cannot be read: decoding it takes more than 0 s" in first.reason
    for image in others:
        assert isinstance(image, Decoded)
        np.testing.assert_array_equal(image.pixels, NOISE)


def test_a_picture_that_takes_too_much_memory_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_MEMORY_BYTES", 2**28)
    monkeypatch.setattr(decoder, "_shared", decoder._decoder(1))
    Image.new("1", (8000, 8000)).save(tmp_path / "a.png")
    with pytest.raises(BadInput, match=r"a\.png cannot be read: decoding it takes more than 0\.25 GiB of memory\.$"):
        pixels(CARD, tmp_path / "a.png")
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    np.testing.assert_array_equal(pixels(CARD, tmp_path / "a.png"), NOISE)


def test_a_decoder_that_dies_is_replaced(tmp_path: Path) -> None:
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    assert decoder.size(tmp_path / "a.png", exif_orientation=True) == (8, 8)
    process = decoder._shared.process
    worker.kill(process._child)
    np.testing.assert_array_equal(pixels(CARD, tmp_path / "a.png"), NOISE)
    assert process.lost is not None
    assert decoder._shared.process is not process


FORKED = """\
import multiprocessing, os, sys
from pathlib import Path
from auditkit.model import decoder
content = Path(sys.argv[1]).read_bytes()

def number_of_decoder(_index=0):
    for _ in range(5):
        assert decoder._shared.call("size", content, "a.png", False) == [8, 8]
    return decoder._shared.process._child.pid

parents = number_of_decoder()
process = decoder._shared.process
locked = decoder._shared._lock.acquire()  # as by another thread, which the fork does not have
with multiprocessing.get_context("fork").Pool(2) as pool:
    decoder._shared._lock.release()
    assert parents not in pool.map_async(number_of_decoder, range(4), 1).get(20)
if (child := os.fork()) == 0:
    sys.exit(0)
os.waitpid(child, 0)
assert number_of_decoder() == parents
assert process.lost is None
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
def test_a_forked_process_has_a_decoder_of_its_own(tmp_path: Path) -> None:
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    command = [sys.executable, "-W", "error", "-c", FORKED, tmp_path / "a.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("function", "result"),
    [
        ("size", [2**20, 2**20]),
        ("size", [0, 8]),
        ("size", [8.0, 8]),
        ("size", 3),
        ("prepared", {"size": [8, 8]}),
        ("prepared", {"size": [8, 8], "pixels": NOISE.astype(np.float32)}),
        ("mask", NOISE[..., 0]),
        ("mask", None),
        ("scores", NOISE),
        ("scores", 1),
    ],
)
def test_a_reply_that_is_no_picture_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, result: object
) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(NOISE).save(path)
    monkeypatch.setattr(decoder._shared, "call", lambda *_, **__: result)
    with pytest.raises(RuntimeFailure, match="the image decoder gave a reply that is no picture"):
        decoder._read(path, function)


INTERRUPTED = """\
import sys
from pathlib import Path
from auditkit.cli import entry
from auditkit.data.dataset import Dataset
from auditkit.model.card import Card
import auditkit.cli.main
card = Card((8, 8), None, "center", "bicubic", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3, (0.0,) * 3)
dataset = Dataset.from_files([Path(sys.argv[1])])
def main():
    dataset.decode_many([0], card)
auditkit.cli.main.main = main
entry.main()
"""


def test_an_interrupt_ends_the_decoder_too(slow: Path) -> None:
    package = str(Path(auditkit.__file__).parents[1])
    main = subprocess.Popen([sys.executable, "-c", INTERRUPTED, slow], cwd=package)
    until = time.monotonic() + 20
    while not (children := _decoders_of(main.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)  # until it is busy
    main.send_signal(signal.SIGINT)
    assert main.wait(10) == 130
    until = time.monotonic() + 2
    while any(Path(f"/proc/{child}/cmdline").exists() for child in children) and time.monotonic() < until:
        time.sleep(0.05)
    assert children
    assert not [child for child in children if Path(f"/proc/{child}/cmdline").exists()]


def _decoders_of(parent: int) -> list[int]:
    threads = Path(f"/proc/{parent}/task")
    if not threads.exists():
        pytest.skip("processes are found through /proc")
    numbers = [int(number) for file in threads.glob("*/children") for number in file.read_text().split()]
    return [child for child in numbers if b"decoder_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


# More than eight bits ------------------------------------------------------------------------------------------------

DEEP = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000


def _twelve_bits() -> bytes:
    """A JPEG whose frame says that it has 12 bits for each channel."""
    content = bytearray(_encoded(Image.fromarray(NOISE), "JPEG"))
    content[content.index(b"\xff\xc0") + 4] = 12
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "bits"),
    [
        (lambda: _encoded(Image.fromarray(DEEP), "PNG"), 16),
        (lambda: _png(16, 0, b"ab"), 16),
        (lambda: _png(16, 2, b"aabbcc"), 16),
        (lambda: _png(16, 4, b"aabb"), 16),
        (lambda: _png(16, 6, b"aabbccdd"), 16),
        (lambda: _encoded(Image.fromarray(DEEP), "TIFF"), 16),
        (lambda: _encoded(Image.fromarray(DEEP), "TIFF", compression="tiff_lzw"), 16),
        (lambda: _encoded(Image.fromarray(DEEP.astype(np.int32)), "TIFF"), 32),
        (lambda: _encoded(Image.fromarray(DEEP.astype(np.float32)), "TIFF"), 32),
        (lambda: _encoded(Image.fromarray(DEEP), "PPM"), 16),
        (lambda: b"P6\n1 1\n65535\naabbcc", 16),
        (lambda: b"P5\n1 1\n1023\nab", 10),
        (lambda: b"P3\n1 1\n256\n1 2 3", 9),
        (lambda: b"Pf\n1 1\n-1.0\nabcd", 32),
        (_twelve_bits, 12),
    ],
)
def test_more_than_eight_bits_are_refused(tmp_path: Path, content: Callable[[], bytes], bits: int) -> None:
    (tmp_path / "a").write_bytes(content())
    words = f"a cannot be read: it has {bits} bits per channel, but only 8 are read; convert it to 8 bits with a window"
    with pytest.raises(BadInput, match=words):
        pixels(CARD, tmp_path / "a")


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_fewer_bits_are_read(tmp_path: Path, bits: int) -> None:
    (tmp_path / "a").write_bytes(_png(bits, 0, b"\xff"))
    np.testing.assert_array_equal(pixels(replace(CARD, size=(1, 1)), tmp_path / "a"), [[[255] * 3]])
    (tmp_path / "a").write_bytes(b"P6\n1 1\n15\n\x0f\x0f\x0f")
    np.testing.assert_array_equal(pixels(replace(CARD, size=(1, 1)), tmp_path / "a"), [[[255] * 3]])


def test_a_mask_may_have_more_bits(tmp_path: Path) -> None:
    Image.fromarray(DEEP).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decoder.mask(tmp_path / "a.png", exif_orientation=True), DEEP > 0)
