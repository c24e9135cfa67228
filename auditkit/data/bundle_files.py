"""Reads the files of a heatmap bundle, which anyone may have written.

`bundle.json` describes the maps, `manifest.csv` (image,label,heatmap) locates them: `maps/000000.npy#3` is the fourth
map of a stack, `maps/a.npy` a file with one map. Only regular files inside the bundle's folder are opened.
"""

import csv
import io
import os
import stat
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path, PureWindowsPath
from typing import BinaryIO, Literal

import numpy as np

from auditkit.arrays import Array
from auditkit.data.alignment import Frame
from auditkit.data.npy import read_header as read_npy_header
from auditkit.errors import BadInput, ColourPicture
from auditkit.graph.upsampling import Upsampling
from auditkit.model import decoder
from auditkit.records import from_json, optional, parse_object
from auditkit.regular_files import open_regular, reason

SCHEMA_VERSION = 1
HEADER, MANIFEST, MAPS = "bundle.json", "manifest.csv", "maps"
COLUMNS = ("image", "label", "heatmap")
OWN_PRODUCER = "auditkit "  # begins the producer's name in bundles written here
MAX_PIXELS = 2**26  # of one map; a larger one would fill the memory
_MAX_HEADER_BYTES = 2**20  # a header has a few hundred bytes
_MAX_MANIFEST_BYTES = 2**28  # millions of lines
_INDEX_DIGITS = 9  # of a label or position; a longer number fits no index
_COLOUR_CHANNELS = (3, 4)  # RGB and RGBA
COLOUR_PICTURE = (
    "a colour picture, not a map: a jet overlay keeps a rank correlation of 0.02 with the map it shows. Give the "
    "numbers that the picture was drawn from."
)


@dataclass(frozen=True, kw_only=True)
class Header:
    """The content of `bundle.json`."""

    schema_version: int = SCHEMA_VERSION
    producer: str = ""
    method: str = ""
    model: str | None = None  # digest of the ONNX file that the maps explain
    frame: Frame
    layout: tuple[str, ...] = ()  # of the arrays that were added; files hold [height, width] or stacks of it
    channels: str | None = None  # how channels were reduced to one; None if unknown
    sign: Literal["signed", "unsigned"] | None = None  # None if unknown
    notes: tuple[str, ...] = ()
    upsampling: Upsampling | None = optional()  # of maps that are stored at their own resolution; None: as they are


@dataclass(frozen=True)
class Entry:
    """One line of the manifest."""

    image: str
    label: int
    heatmap: str
    full_path: str = ""  # of the image, where the manifest has one, which `image` shortens

    @property
    def listed(self) -> str:
        """The image's name as the manifest has it."""
        return self.full_path or self.image


def read_header(folder: Path) -> Header:
    """The header of a bundle, every value checked."""
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; a bundle is a folder with {HEADER} and {MANIFEST}.")
    where = folder / HEADER
    if not os.path.lexists(where):
        raise BadInput(f"{folder} has no {HEADER}; make a bundle of other maps with: auditkit bundle import.")
    values = parse_object(read_content(folder, HEADER, _MAX_HEADER_BYTES), where)
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise BadInput(f"{where} has schema_version {version!r}; this auditkit reads {SCHEMA_VERSION}.")
    known = {field.name: values[field.name] for field in fields(Header) if values.get(field.name) is not None}
    if "frame" not in known:
        raise BadInput(f"{where} does not state the frame: model-input or original-image, whichever the maps lie over.")
    for name in ("layout", "notes"):  # a single text stands for a list of one
        if isinstance(text := known.get(name), str):
            known[name] = [text] if text else []
    return from_json(Header, known, f"{where}: header")


def read_manifest(folder: Path, name: str = MANIFEST, *, own: bool = False) -> tuple[list[Entry], str]:
    """The entries of a manifest, and its incomplete last line: if `own`, every complete line ends in a newline."""
    if not os.path.lexists(folder / name):
        raise BadInput(f"{folder} has no {name} with the columns {','.join(COLUMNS)}.")
    try:
        text = read_content(folder, name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{folder / name} is not UTF-8 text: {error}.") from None
    end = text.rfind("\n") + 1 if own else len(text)
    return list(_entries(text[:end], folder / name)), text[end:]


def _entries(text: str, where: Path) -> Iterator[Entry]:
    stream = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", newline="")  # StringIO takes 4 bytes a character
    reader, lines = csv.reader(stream, strict=True), defaultdict[str, dict[int, int]](dict)
    try:
        columns = next(reader, [])
        if not set(COLUMNS) <= set(columns):
            raise BadInput(f"{where} has the columns {','.join(columns)!r}; expected {','.join(COLUMNS)}.")
        positions = [columns.index(column) for column in COLUMNS]
        for row in reader:
            line = reader.line_num
            if len(row) != len(columns):
                raise BadInput(f"{where}, line {line}: {len(row)} fields, expected {len(columns)}.")
            image, label, heatmap = (row[position] for position in positions)
            image = sys.intern(image)  # one text for all of its labels
            if not is_index(label):
                raise BadInput(f"{where}, line {line}: label '{label}' is not a class index; labels are never guessed.")
            first = lines[image].setdefault(int(label), line)
            if first != line:
                raise BadInput(f"{where}: lines {first} and {line} both give image '{image}', label {label}.")
            yield Entry(image, int(label), heatmap)
    except csv.Error as error:
        raise BadInput(f"{where}, line {reader.line_num}: {error}.") from None


@contextmanager
def open_inside(folder: Path, location: str) -> Iterator[BinaryIO]:
    """Open a regular file inside the folder that is reached through no link."""
    where = f"'{location}' in {folder}"
    windows = PureWindowsPath(location)
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or windows.drive or windows.root or {"", ".", ".."} & set(parts):
        raise BadInput(f"{where} is not a plain path inside the folder; maps must be in the folder of their manifest.")
    try:
        path = folder
        for part in parts:
            path = path / part
            if stat.S_ISLNK(path.lstat().st_mode):
                raise BadInput(f"{where} goes through a symbolic link, which is refused; put the file itself there.")
        opened = open_regular(path, getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        raise BadInput(f"{where} cannot be opened ({reason(error)}).") from None
    with opened as stream:
        yield stream


def read_content(folder: Path, name: str, limit: int = _MAX_MANIFEST_BYTES) -> bytes:
    """The content of a file of a bundle."""
    with open_inside(folder, name) as stream:
        content = stream.read(min(limit, os.fstat(stream.fileno()).st_size) + 1)  # as much is allocated at once
    if len(content) > limit:
        raise BadInput(f"{folder / name} has more than {limit:,} bytes; refused.")
    return content


def is_index(text: str) -> bool:
    """Whether a text is an index from 0, such as a label."""
    return text.isascii() and text.isdecimal() and len(text) <= _INDEX_DIGITS


def split_reference(heatmap: str) -> tuple[str, int | None]:
    """File and position of `file.npy#position`; no position for a file with one map."""
    file, mark, position = heatmap.rpartition("#")
    if mark and is_index(position):
        return file, int(position)
    return heatmap, None


class MapReader:
    """Reads the maps of a folder, quickly where several in a row are of one file: the last one stays mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: str | None = None
        self._stored = np.zeros(0)

    def read(self, heatmap: str) -> tuple[Array, str]:
        """One map as float32 [height, width], and the type of its file; the rest of a stack is not read."""
        file, position = split_reference(heatmap)
        stored, name = self._array(file), f"{self._folder / file}"
        if stored.ndim == 3 and position is None and len(stored) == 1:
            position = 0
        if stored.ndim == (3 if position is None else 4) and stored.shape[-1] in _COLOUR_CHANNELS:
            raise ColourPicture(f"{name}, {stored.dtype}{list(stored.shape)}, is {COLOUR_PICTURE}")
        if stored.ndim != (2 if position is None else 3):
            expected = "[height, width]" if position is None else "[maps, height, width]"
            raise BadInput(f"{name} holds {list(stored.shape)}, but '{heatmap}' needs {expected}.")
        if position is not None and position >= len(stored):
            raise BadInput(f"{name} holds {len(stored)} maps, but the manifest names number {position}.")
        values = stored if position is None else stored[position]
        if values.size > MAX_PIXELS:
            raise BadInput(f"{name}: a map of {list(values.shape)} has more than {MAX_PIXELS:,} pixels.")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and that is refused
            return np.array(values, np.float32, order="C"), stored.dtype.str

    def _array(self, file: str) -> Array:
        """The array of a file."""
        if file != self._file:
            with open_inside(self._folder, file) as stream:
                self._stored, self._file = map_array(stream, f"{self._folder / file}"), file
        return self._stored


def map_array(stream: BinaryIO, name: str) -> Array:
    """The array of an .npy file, memory-mapped; its header must agree with its size."""
    try:
        header = read_npy_header(stream)
    except ValueError as error:
        if _is_coloured(stream, name):
            raise ColourPicture(f"{name} is {COLOUR_PICTURE}") from None
        raise BadInput(f"{name} is not an .npy file of numbers: {error}.") from None
    shape, dtype = header.shape, header.dtype
    if dtype.kind not in "fiub":
        raise BadInput(f"{name} holds {dtype}, not real numbers.")
    size = os.fstat(stream.fileno()).st_size - stream.tell()
    if not shape or min(shape) < 1 or header.bytes != size:
        raise BadInput(f"{name} says {dtype}{list(shape)}, {header.bytes:,} bytes, but holds {size:,}.")
    array = np.memmap(stream, dtype, "r", stream.tell(), shape, "F" if header.fortran else "C")
    return array.view(np.ndarray)


def _is_coloured(stream: BinaryIO, name: str) -> bool:
    """Whether a file is a colour picture."""
    stream.seek(0)
    try:
        return decoder.scores(stream, name) is None
    except BadInput:
        return False


def not_finite(values: Array) -> str:
    """The first NaN or infinity of a map, in words; empty if there is none."""
    bad = ~np.isfinite(values)
    count = int(bad.sum())
    if not count:
        return ""
    row, column = np.unravel_index(int(bad.argmax()), values.shape)
    return f"{values[row, column]} at row {row}, column {column}" + (f" and {count - 1} more" if count > 1 else "")
