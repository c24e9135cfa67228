"""Draws the pictures of a gallery again and compares them with those of the run."""

import io
import re
from collections.abc import Iterator

import numpy as np
from PIL import Image

from auditkit.report.load_run import load
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.pictures.gallery import encoded, pictures
from auditkit.runs.pictures.gallery_index import FOLDER as GALLERY
from auditkit.verdict.verify.run_record import Outcome, RecordedRun

# Levels of 255 that a colour may be off: so few that nobody sees it. Pillow 10.1, 11.0 and 13.0 write equal bytes.
IMPERCEPTIBLE = 2
_OTHER_LIBRARY = 16  # in a JPEG, by a library that rounds otherwise
_JPEG_DATA = range(0xC0, 0xE0)  # kinds of a JPEG's segments that hold the picture; others hold facts about it
_START_OF_SCAN = 0xDA
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7].*", re.DOTALL)  # from the marker that ends it


def check_pictures(recorded: RecordedRun, plan: EvaluationPlan) -> Outcome:
    """Whether the gallery's pictures show the images and maps that they name."""
    folder, gallery, count = recorded.store.folder, load(recorded.store.folder, recorded.results).gallery, 0
    problems, unchecked = list[str](), list[str]()
    if gallery is None:
        return Outcome("there are none")
    for name, picture in pictures(plan.model, plan.images, plan.bundles, plan.settings, gallery):
        count += 1
        content, expected = (folder / GALLERY / name).read_bytes(), encoded(name, picture)
        off = 0.0 if content == expected else colour_difference(content, expected)
        what = f"{GALLERY}/{name} is not the picture that the images and maps give"
        if IMPERCEPTIBLE < off <= _OTHER_LIBRARY and not name.endswith(".png"):
            reason = f"colours are off by up to {off:.0f} of 255 levels"
            unchecked.append(f"whether {what}: {reason}, as by another JPEG library; look at it yourself")
        elif off > IMPERCEPTIBLE:
            problems.append(what)
    return Outcome(f"{count} pictures of the gallery come out again", problems, unchecked)


def colour_difference(content: bytes, expected: bytes) -> float:
    """By how many levels a colour is off at most; infinity if the file has a part that auditkit does not write."""
    formats = ("PNG", "JPEG")  # others of Pillow's may call other programs
    with Image.open(io.BytesIO(content), formats=formats) as picture, Image.open(io.BytesIO(expected)) as other:
        facts = (picture.format, picture.mode, picture.size)
        parts = _png_parts if other.format == "PNG" else _jpeg_parts
        if facts != (other.format, other.mode, other.size) or not set(parts(content)) <= set(parts(expected)):
            return np.inf
        colours, others = (np.asarray(each.convert("RGB"), np.float64) for each in (picture, other))
    return float(np.abs(colours - others).max())


def _png_parts(content: bytes) -> Iterator[bytes]:
    """The kinds of a PNG's chunks, and its header; then what follows its end."""
    start, kind = 8, b""  # after the signature
    while start < len(content) and kind != b"IEND":
        kind, length = content[start + 4 : start + 8], int.from_bytes(content[start : start + 4])
        yield content[start : start + 12 + length] if kind == b"IHDR" else kind
        start += 12 + length
    yield content[start:]


def _jpeg_parts(content: bytes) -> Iterator[bytes]:
    """The segments of a JPEG, of those that hold the picture only the kinds; then what follows its scan."""
    start, kind = 2, 0
    while start < len(content) and kind != _START_OF_SCAN:
        kind, length = content[start + 1], int.from_bytes(content[start + 2 : start + 4])
        yield bytes([kind]) if kind in _JPEG_DATA else content[start : start + 2 + length]
        start += 2 + length
    yield from _AFTER_SCAN.findall(content, start)
