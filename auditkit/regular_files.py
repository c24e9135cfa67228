"""Opens files that others made: regular files only, since a pipe, a socket or a device may never end."""

import io
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from auditkit.errors import BadInput

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}
_SPARSE = 16 * 2**20  # bytes; a larger file, most of which is not on the disk, was made to exhaust its readers
_CHUNK_BYTES = 2**20
# A file that becomes a pipe just before it is opened must not block.
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


def open_regular(path: Path, flags: int = 0) -> io.BufferedReader:
    """The file, open for reading; OSError with the reason if it is not a regular file or cannot be opened."""
    try:
        require_regular(os.stat(path).st_mode)  # opening a device may have effects of its own
        stream = open(path, "rb", opener=lambda name, mode: os.open(name, mode | _FLAGS | flags))  # noqa: SIM115
    except ValueError as error:  # a name with a zero byte
        raise OSError(str(error)) from None
    try:
        require_regular(os.fstat(stream.fileno()).st_mode)
    except OSError:
        stream.close()
        raise
    return stream


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file of at most that many bytes; OSError with the reason for any other."""
    with open_regular(path) as stream:
        return read_stream(stream, most)


def read_stream(stream: BinaryIO, most: int) -> bytes:
    """What is left of an open file of at most that many bytes; OSError with the reason if it is longer."""
    content = stream.read(min(os.fstat(stream.fileno()).st_size, most) + 1)  # which is allocated at once
    while len(content) <= most and (more := stream.read(_CHUNK_BYTES)):  # some systems say 0, or the file grows
        content += more
    if len(content) > most:
        raise OSError(f"it has more than {most:,} bytes")
    return content


def read_named(path: Path, most: int) -> bytes:
    """The same for a file that the user names; BadInput says why it cannot be read."""
    try:
        return read_regular(path, most)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({reason(error)}).") from None


def reason(error: Exception) -> str:
    """Why a file cannot be read, without the number of the error and the path."""
    return getattr(error, "strerror", None) or str(error)


def may_be_sparse(status: os.stat_result) -> bool:
    """Whether a file is large, but has few blocks, which some systems count late or pack."""
    on_disk = getattr(status, "st_blocks", status.st_size) * 512
    return status.st_size > _SPARSE and on_disk < status.st_size // 64


def is_sparse(descriptor: int) -> bool:
    """Whether an open file is large, but hardly any of its bytes are outside its holes."""
    status = os.fstat(descriptor)
    if not may_be_sparse(status):
        return False
    before, position, found = os.lseek(descriptor, 0, os.SEEK_CUR), 0, 0
    least = status.st_size // 64
    with suppress(OSError):  # where only a hole is left, or the system knows of no holes
        while found < least:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, begin, os.SEEK_HOLE)
            found += position - begin
    os.lseek(descriptor, before, os.SEEK_SET)
    return found < least


def require_regular(mode: int) -> None:
    """OSError with the reason unless this is the mode of a regular file."""
    if not stat.S_ISREG(mode):
        raise OSError(f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file")
