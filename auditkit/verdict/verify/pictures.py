"""Draws the pictures of a gallery again and compares them with those of the run."""

import io
from collections.abc import Iterator

import numpy as np
from PIL import Image

from auditkit.report.load_run import load
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.pictures.gallery import encoded, pictures
from auditkit.verdict.audit import GALLERY
from auditkit.verdict.verify.run_record import Outcome, RecordedRun

# Between versions of Pillow: how far a colour may be off, on average and at most, where bytes are not equal.
_OFF = {"PNG": (1.0, 2), "JPEG": (1.0, 16)}
_JPEG_DATA = range(0xC0, 0xE0)  # kinds of a JPEG's segments that hold the picture; others hold facts about it
_START_OF_SCAN = 0xDA


def check_pictures(recorded: RecordedRun, plan: EvaluationPlan) -> Outcome:
    """Whether the gallery's pictures show the images and maps that they name."""
    folder, gallery, problems, count = recorded.store.folder, load(recorded.store.folder).gallery, list[str](), 0
    if gallery is None:
        return Outcome("there are none")
    for name, picture in pictures(plan.model, plan.images, plan.bundles, plan.settings, gallery):
        count += 1
        content, expected = (folder / GALLERY / name).read_bytes(), encoded(name, picture)
        if content != expected and not _alike(content, expected):
            problems.append(f"{GALLERY}/{name} is not the picture that the images and maps give")
    return Outcome(f"{count} pictures of the gallery come out again", problems)


def _alike(content: bytes, expected: bytes) -> bool:
    """Whether two pictures look the same, with no part in the file that auditkit does not write."""
    with Image.open(io.BytesIO(content)) as picture, Image.open(io.BytesIO(expected)) as other:
        facts = (picture.format, picture.mode, picture.size)
        parts = _png_parts if other.format == "PNG" else _jpeg_parts
        if facts != (other.format, other.mode, other.size) or not set(parts(content)) <= set(parts(expected)):
            return False
        mean, most = _OFF[str(other.format)]
        off = np.abs(np.asarray(picture.convert("RGB"), np.float64) - np.asarray(other.convert("RGB"), np.float64))
    return bool(off.mean() <= mean and off.max() <= most)


def _png_parts(content: bytes) -> Iterator[bytes]:
    """The kinds of a PNG's chunks, and its header; then what follows its end."""
    start, kind = 8, b""  # after the signature
    while start < len(content) and kind != b"IEND":
        kind, length = content[start + 4 : start + 8], int.from_bytes(content[start : start + 4])
        yield content[start : start + 12 + length] if kind == b"IHDR" else kind
        start += 12 + length
    yield content[start:]


def _jpeg_parts(content: bytes) -> Iterator[bytes]:
    """The kinds of a JPEG's segments, those about the picture with their content; then what follows its end."""
    start, kind = 2, 0
    while start < len(content) and kind != _START_OF_SCAN:
        kind, length = content[start + 1], int.from_bytes(content[start + 2 : start + 4])
        yield bytes([kind]) if kind in _JPEG_DATA else content[start : start + 2 + length]
        start += 2 + length
    yield content[start:].partition(b"\xff\xd9")[2]
