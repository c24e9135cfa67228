"""The files of a heatmap bundle, read as if a stranger had written them.

`bundle.json` says what the maps are, `manifest.csv` (image,label,heatmap) where each lies: `maps/000000.npy#3` is the
fourth map of a stack, `maps/a.npy` a file with one map. Only plain files inside the bundle's folder are opened.
"""

import csv
import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.data.alignment import checked_frame
from auditkit.errors import BadInput

SCHEMA_VERSION = 1
HEADER, MANIFEST, MAPS = "bundle.json", "manifest.csv", "maps"
COLUMNS = ("image", "label", "heatmap")
OWN_PRODUCER = "auditkit "  # begins the producer's name in bundles written here
MOST_HEADER_BYTES = 2**20
MOST_MANIFEST_BYTES = 2**28
MOST_PIXELS = 2**26  # of one map
COLOUR_CHANNELS = (3, 4)
COLOUR_PICTURE = (
    "a colour picture, not a map: a jet overlay keeps a rank correlation of 0.02 with the map it shows. Give the "
    "numbers that the picture was drawn from."
)
PARSING = Lock()  # Python 3.11's parser, which numpy reads headers with, fails when threads use it at once


@dataclass(frozen=True)
class Header:
    """What `bundle.json` says of all maps."""

    frame: str
    method: str = ""
    model: str | None = None  # digest of the ONNX file that the maps explain
    producer: str = ""
    layout: tuple[str, ...] = ()  # of the arrays that were handed in; files hold [height, width] or stacks of it
    channels: str | None = None  # how channels became one; None: not said
    sign: str | None = None  # signed, unsigned, or not said
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object in `bundle.json`."""
        return {
            "schema_version": SCHEMA_VERSION, "producer": self.producer, "method": self.method, "model": self.model,
            "frame": self.frame, "layout": list(self.layout), "channels": self.channels, "sign": self.sign,
            "notes": list(self.notes),
        }  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One line of the manifest."""

    image: str
    label: int
    heatmap: str


def read_header(folder: Path) -> Header:
    """What `bundle.json` says, every value checked."""
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; a bundle is a folder with {HEADER} and {MANIFEST}.")
    where = folder / HEADER
    if not os.path.lexists(where):
        raise BadInput(f"{folder} has no {HEADER}; make a bundle of other maps with: auditkit bundle import.")
    try:
        data = json.loads(_content(folder, HEADER, MOST_HEADER_BYTES))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise BadInput(f"{where} holds a {type(data).__name__}, expected an object.")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(
            f"{where} has schema_version {data.get('schema_version')!r}; this auditkit reads {SCHEMA_VERSION}."
        )
    if "frame" not in data:
        raise BadInput(
            f"{where} does not say the frame; add model-input or original-image, whichever the maps lie over."
        )
    try:
        frame = checked_frame(data["frame"])
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    sign = _text(data, "sign", where)
    if sign not in (None, "signed", "unsigned"):
        raise BadInput(f"{where}: sign '{sign}' is neither signed nor unsigned.")
    return Header(
        frame, _text(data, "method", where) or "", _text(data, "model", where), _text(data, "producer", where) or "",
        _texts(data, "layout", where), _text(data, "channels", where), sign, _texts(data, "notes", where),
    )  # fmt: skip


def _text(data: dict[str, Any], key: str, where: Path) -> str | None:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise BadInput(f"{where}: {key} is {value!r}, expected a text or null.")
    return value


def _texts(data: dict[str, Any], key: str, where: Path) -> tuple[str, ...]:
    value = data.get(key) or []
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise BadInput(f"{where}: {key} is {value!r}, expected a list of texts.")
    return tuple(listed)


def read_manifest(folder: Path, name: str = MANIFEST, *, own: bool = False) -> tuple[list[Entry], str]:
    """The lines of a manifest, and a torn last line: in a bundle written here every whole line ends in a newline."""
    if not os.path.lexists(folder / name):
        raise BadInput(f"{folder} has no {name} with the columns {','.join(COLUMNS)}.")
    try:
        text = _content(folder, name, MOST_MANIFEST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{folder / name} is not UTF-8 text: {error}.") from None
    whole = text.rfind("\n") + 1 if own else len(text)
    return list(_entries(text[:whole], folder / name)), text[whole:]


def _entries(text: str, where: Path) -> Iterator[Entry]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    seen: dict[tuple[str, int], int] = {}
    try:
        columns = next(reader, [])
        if not set(COLUMNS) <= set(columns):
            raise BadInput(f"{where} has the columns {','.join(columns)!r}; expected {','.join(COLUMNS)}.")
        places = [columns.index(column) for column in COLUMNS]
        for row in reader:
            line = reader.line_num
            if len(row) != len(columns):
                raise BadInput(f"{where}, line {line}: {len(row)} fields, expected {len(columns)}.")
            image, label, heatmap = (row[place] for place in places)
            if not (label.isascii() and label.isdecimal() and len(label) < 10):
                raise BadInput(f"{where}, line {line}: label '{label}' is not a class index; labels are never guessed.")
            first = seen.setdefault((image, int(label)), line)
            if first != line:
                raise BadInput(f"{where}: lines {first} and {line} both give image '{image}', label {label}.")
            yield Entry(image, int(label), heatmap)
    except csv.Error as error:
        raise BadInput(f"{where}, line {reader.line_num}: {error}.") from None


@contextmanager
def opened(folder: Path, location: str) -> Iterator[BinaryIO]:
    """A plain file inside the folder, reached through no link."""
    where = f"'{location}' in {folder}"
    windows = PureWindowsPath(location)
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or windows.drive or windows.root or {"", ".", ".."} & set(parts):
        raise BadInput(f"{where} is not a plain path inside the folder; maps lie beside their manifest.")
    try:
        path = folder
        for part in parts:
            path = path / part
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise BadInput(f"{where} goes through a symbolic link, which is refused; put the file itself there.")
        if not stat.S_ISREG(mode):
            raise BadInput(f"{where} is not a regular file.")
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise BadInput(f"{where} cannot be opened ({os.strerror(error.errno or 0)}).") from None
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def _content(folder: Path, name: str, most: int) -> bytes:
    with opened(folder, name) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise BadInput(f"{folder / name} has more than {most:,} bytes; refused.")
    return content


def split_reference(heatmap: str) -> tuple[str, int | None]:
    """File and position of `file.npy#position`; no position for a file with one map."""
    file, mark, position = heatmap.rpartition("#")
    if mark and position.isascii() and position.isdecimal() and len(position) < 10:
        return file, int(position)
    return heatmap, None


def read_map(folder: Path, heatmap: str) -> tuple[Array, str]:
    """One map as float32 [height, width], and the type that the file has; the rest of a stack is not read."""
    file, position = split_reference(heatmap)
    with opened(folder, file) as stream:
        stored = mapped(stream, f"{folder / file}")
        if stored.ndim == 3 and position is None and len(stored) == 1:
            position = 0
        if stored.ndim == (3 if position is None else 4) and stored.shape[-1] in COLOUR_CHANNELS:
            raise BadInput(f"{folder / file}, {stored.dtype}{list(stored.shape)}, is {COLOUR_PICTURE}")
        if stored.ndim != (2 if position is None else 3):
            expected = "[height, width]" if position is None else "[maps, height, width]"
            raise BadInput(f"{folder / file} holds {list(stored.shape)}, but '{heatmap}' needs {expected}.")
        if position is not None and position >= len(stored):
            raise BadInput(f"{folder / file} holds {len(stored)} maps, but the manifest names number {position}.")
        one = stored if position is None else stored[position]
        if one.size > MOST_PIXELS:
            raise BadInput(f"{folder / file}: a map of {list(one.shape)} is too large; at most {MOST_PIXELS:,} pixels.")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and that is refused
            return np.array(one, np.float32, order="C"), stored.dtype.str


def mapped(stream: BinaryIO, name: str) -> Array:
    """The array of an .npy file, mapped and not read; its header must agree with its size."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        with PARSING:
            shape, fortran, dtype = read(stream)
    except KeyError:
        raise BadInput(f"{name} is .npy of version {version}, which plain numbers do not need; refused.") from None
    except (ValueError, TypeError, SyntaxError, EOFError, RecursionError, MemoryError) as error:
        if _is_coloured(stream):
            raise BadInput(f"{name} is {COLOUR_PICTURE}") from None
        raise BadInput(f"{name} is not an .npy file of numbers: {error}.") from None
    if dtype.kind not in "fiub":
        raise BadInput(f"{name} holds {dtype}, not real numbers.")
    count = 1
    for side in shape:
        count *= side
    held = os.fstat(stream.fileno()).st_size - stream.tell()
    if not shape or min(shape) < 1 or count * dtype.itemsize != held:
        raise BadInput(f"{name} says {dtype}{list(shape)}, {count * dtype.itemsize:,} bytes, but holds {held:,}.")
    mapped = np.memmap(stream, dtype, "r", stream.tell(), shape, "F" if fortran else "C")
    return mapped.view(np.ndarray)


def _is_coloured(stream: BinaryIO) -> bool:
    """Whether a file is a picture whose pixels have colours."""
    stream.seek(0)
    try:
        with Image.open(stream, formats=["PNG", "JPEG"]) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                return False
            return grey(picture) is None
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError):
        return False


def grey(picture: Image.Image) -> Array | None:
    """A picture's one channel, also where it is stored as three equal ones; None where it has colours."""
    colours = np.asarray(picture.convert("RGB"))
    return colours[..., 0].copy() if (colours == colours[..., :1]).all() else None


def not_finite(values: Array) -> str:
    """Where a map is first not a number, in words; empty when it is everywhere."""
    bad = ~np.isfinite(values)
    if not bad.any():
        return ""
    row, column = np.unravel_index(int(bad.argmax()), values.shape)
    count = int(bad.sum())
    return f"{values[row, column]} at row {row}, column {column}" + (f" and {count - 1} more" if count > 1 else "")
