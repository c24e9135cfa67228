"""One file that holds a run: a plain tar archive whose bytes follow from the run's files alone.

There is one archive of a run: names are sorted, times and owners are zero. So a reader rebuilds each header and accepts
no other bytes; links, devices, second names of a file and paths out of the folder have no form that it could accept.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from auditkit.data.atomic_write import write_whole
from auditkit.errors import BadInput
from auditkit.regular_files import is_sparse, open_regular, reason
from auditkit.runs.folder import checksums
from auditkit.runs.folder.checksums import SUMS
from auditkit.runs.folder.contents import require_unchanged

_BLOCK = 512
_END = bytes(2 * _BLOCK)
_NAME = re.compile(r"(?!.*(?:^|/)\.)[0-9A-Za-z_.-]+(?:/[0-9A-Za-z_.-]+){0,3}")  # no part begins with a dot
_SIZE = re.compile(rb"[0-7]{11}")
_LONGEST = 100  # bytes of a name in a header
_MOST_BYTES = 8**11 - 1  # of a file, as a header can state it
_MOST_FILES = 10**6
_CHUNK = 2**20


class Damaged(Exception):
    """An archive is not one that `write` wrote."""


def write(run: Path, path: Path) -> None:
    """Write the archive of a finished run, with its attestation and sign-off; the run must be as it was listed."""
    if not (run / SUMS).is_file():
        raise BadInput(f"{run} has no {SUMS}, so it is not finished; archive what `auditkit audit` wrote.")
    require_unchanged(run, "archived")
    if os.path.lexists(path):
        raise BadInput(f"{path} already exists and will not be overwritten; choose another name.")
    names = checksums.all_names(run)
    for name in names:
        if not _NAME.fullmatch(name) or len(name) > _LONGEST or (run / name).stat().st_size > _MOST_BYTES:
            raise BadInput(f"{run} is not archived: '{name}' is a file that no run of auditkit has.")
    write_whole(path, _archived(run, names), BadInput)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The run in an archive, in a folder that is removed afterwards; Damaged where it is not as `write` writes it."""
    with tempfile.TemporaryDirectory(prefix="auditkit-") as folder:
        try:
            with open_regular(path) as stream:
                if stream.peek(_BLOCK)[257:262] != b"ustar":
                    raise BadInput(f"{path} is neither the folder of a run nor its archive.")
                _refuse_excess(stream, Path(folder))
                _unpack(stream, Path(folder))
        except (OSError, ValueError) as error:
            raise Damaged(f"{path} is not an archive as auditkit writes it: {reason(error)}") from None
        yield Path(folder)


def _archived(run: Path, names: Sequence[str]) -> Iterator[bytes]:
    """The bytes of the archive."""
    for name in names:
        with open_regular(run / name) as source:
            size = os.fstat(source.fileno()).st_size
            yield _header(name, size)
            while chunk := source.read(_CHUNK):
                yield chunk
            yield bytes(-size % _BLOCK)
    yield _END


def _header(name: str, size: int) -> bytes:
    """The header of a plain file (POSIX ustar)."""
    fields = [name.encode("ascii").ljust(100, b"\0"), b"0000644\0", b"0000000\0", b"0000000\0", b"%011o\0" % size,
              b"00000000000\0", b" " * 8, b"0".ljust(101, b"\0"), b"ustar\00000"]  # fmt: skip
    header = b"".join(fields).ljust(_BLOCK, b"\0")
    return header.replace(b" " * 8, b"%06o\0 " % sum(header), 1)


def _refuse_excess(stream: IO[bytes], folder: Path) -> None:
    if is_sparse(stream.fileno()):
        raise ValueError("hardly any of its bytes are on the disk")
    if os.fstat(stream.fileno()).st_size > shutil.disk_usage(folder).free:
        raise ValueError(f"it does not fit on the disk of {tempfile.gettempdir()}; set TMPDIR to another folder")


def _unpack(stream: IO[bytes], folder: Path) -> None:
    """Write each file, in the order of names, from exactly the bytes that `write` gives it."""
    earlier = ""
    for _ in range(_MOST_FILES):
        header = stream.read(_BLOCK)
        if header == _END[:_BLOCK]:
            break
        if not _SIZE.fullmatch(header[124:135]):
            raise ValueError(f"the entry after '{earlier}' has no size")
        name, size = header[:100].rstrip(b"\0").decode("ascii"), int(header[124:135], 8)
        if header != _header(name, size) or not _NAME.fullmatch(name) or name <= earlier:
            raise ValueError(f"the entry after '{earlier}' is not the one that a run has there")
        target, earlier = folder / name, name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as copy:
            _copy(stream, copy, size)
        if stream.read(-size % _BLOCK).strip(b"\0"):
            raise ValueError(f"something is hidden after '{name}'")
    if header + stream.read(_BLOCK + 1) != _END:
        raise ValueError("it is cut short, or has extra data after its end")


def _copy(stream: IO[bytes], copy: IO[bytes], size: int) -> None:
    while size:
        chunk = stream.read(min(size, _CHUNK))
        if not chunk:
            raise ValueError("it is cut short")
        copy.write(chunk)
        size -= len(chunk)
