"""Arrays in .npy and .npz files that others made: plain numbers or texts, as large as their headers say and no larger.

A header is read and judged before any data: a few bytes, or a few megabytes of packed zeros, can claim gigabytes.
"""

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, BinaryIO

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.regular_files import is_sparse, open_regular, reason

MOST_NPZ_BYTES = 2 * 2**30  # of all arrays that are read from an .npz: 14,000 colour images of 224 x 224 pixels
_MOST_MEMBERS = 1_000  # of an .npz; zipfile makes an object of each, whatever is read of them
_MOST_LISTED_BYTES = 2**20  # of their list, from which the objects are made: a kilobyte for each
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that numpy writes
_END, _END_64, _LOCATOR_64 = b"PK\5\6", b"PK\6\6", b"PK\6\7"  # begin the records at the end of an archive
_END_BYTES, _END_64_BYTES, _LOCATOR_64_BYTES = 22, 56, 20
_PARSING = Lock()  # numpy reads headers with Python's parser, which in 3.11 fails when threads use it at once
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# Raised on reading a damaged, encrypted or unusually packed .npz.
_DAMAGE = (OSError, ValueError, EOFError, MemoryError, RuntimeError, LookupError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class NpyHeader:
    """What an .npy file says about its array."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[np.generic]

    @property
    def bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: IO[bytes]) -> NpyHeader:
    """The header of an .npy file; ValueError with the reason where it cannot be used. The stream stands at the data."""
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _READERS:
            raise ValueError(f"its version is {version}, which plain numbers do not need")
        with _PARSING:
            header = NpyHeader(*_READERS[version](stream))
    except (TypeError, SyntaxError, EOFError, RecursionError, MemoryError, OverflowError, tokenize.TokenError):
        raise ValueError("its header is damaged") from None
    return header


def read_npz(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Those of the named arrays that an .npz holds."""
    try:
        with open_regular(path) as stream:
            if not zipfile.is_zipfile(stream):
                raise BadInput(f"{path} is not an .npz file.")
            _check_list(stream)
            with zipfile.ZipFile(stream) as archive:
                return _read_members(archive, names)
    except _DAMAGE as error:
        raise BadInput(f"{path} cannot be read as .npz: {reason(error)}.") from None


def _check_list(stream: BinaryIO) -> None:
    """ValueError with the reason unless the file ends as numpy ends it, in a short list of members."""
    if is_sparse(stream.fileno()):
        raise ValueError("hardly any of its bytes are on the disk")
    start = max(0, stream.seek(0, os.SEEK_END) - _END_64_BYTES - _LOCATOR_64_BYTES - _END_BYTES)
    stream.seek(start)
    tail = stream.read()
    end, locator = tail[-_END_BYTES:], tail[-_END_BYTES - _LOCATOR_64_BYTES : -_END_BYTES]
    if not end.startswith(_END):
        raise ValueError("it ends in a comment, which numpy does not write; save it again with numpy.savez")
    count, listed = int.from_bytes(end[10:12], "little"), int.from_bytes(end[12:16], "little")
    if locator.startswith(_LOCATOR_64):
        if not tail.startswith(_END_64) or int.from_bytes(locator[8:16], "little") != start:
            raise ValueError("its end is damaged")
        count, listed = int.from_bytes(tail[32:40], "little"), int.from_bytes(tail[40:48], "little")
    if count > _MOST_MEMBERS or listed > _MOST_LISTED_BYTES:
        raise ValueError(f"it has {count:,} members, listed in {listed:,} bytes; at most {_MOST_MEMBERS:,} are read")


def _read_members(archive: zipfile.ZipFile, names: Sequence[str]) -> dict[str, Array]:
    members, total = {name: f"{name}.npy" for name in names if f"{name}.npy" in archive.namelist()}, 0
    for name, member in members.items():
        if archive.getinfo(member).compress_type not in _METHODS:
            raise ValueError(f"'{name}' is packed as numpy does not pack; save it again with numpy.savez")
        with archive.open(member) as stream:
            header = read_header(stream)
            size = archive.getinfo(member).file_size - stream.tell()
        if header.dtype.hasobject:
            raise ValueError(f"'{name}' holds Python objects, which may run code when they are read")
        if header.bytes != size:
            raise ValueError(
                f"'{name}' says {header.dtype}{list(header.shape)}, {header.bytes:,} bytes, but has {size:,}"
            )
        total += size
    if total > MOST_NPZ_BYTES:
        remedy = f"at most {MOST_NPZ_BYTES:,} are read; give a folder of files instead"
        raise ValueError(f"its arrays have {total:,} bytes, {remedy}")
    arrays: dict[str, Array] = {}
    for name, member in members.items():
        with archive.open(member) as stream, _PARSING:
            arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
    return arrays
