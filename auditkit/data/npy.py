"""Arrays in .npy and .npz files that others made: plain numbers or texts, as large as their headers say and no larger.

A header is read and judged before any data: a few bytes, or a few megabytes of packed zeros, can claim gigabytes.
"""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.regular_files import open_regular, reason

MOST_NPZ_BYTES = 2 * 2**30  # of all arrays that are read from an .npz: 14,000 colour images of 224 x 224 pixels
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
            with zipfile.ZipFile(stream) as archive:
                return _read_members(archive, names)
    except _DAMAGE as error:
        raise BadInput(f"{path} cannot be read as .npz: {reason(error)}.") from None


def _read_members(archive: zipfile.ZipFile, names: Sequence[str]) -> dict[str, Array]:
    members, total = {name: f"{name}.npy" for name in names if f"{name}.npy" in archive.namelist()}, 0
    for name, member in members.items():
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
