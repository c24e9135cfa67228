"""Writes that survive a crash or a power failure."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from auditkit.errors import AuditError, RuntimeFailure


@contextmanager
def write_errors(path: Path, kind: type[AuditError] = RuntimeFailure) -> Iterator[None]:
    """Raise the system's errors as a sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path} cannot be written: {error.strerror or error}.") from None


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk; only POSIX systems can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def flush(stream: IO[bytes]) -> None:
    """Flush what was written to the disk."""
    stream.flush()
    os.fsync(stream.fileno())


def write_whole(path: Path, content: bytes, kind: type[AuditError] = RuntimeFailure) -> None:
    """Replace a file atomically: after a crash it has its old content or the new one, never a part."""
    with write_errors(path, kind):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        temporary = path.with_name(path.name + ".part")
        try:
            with temporary.open("wb") as stream:
                stream.write(content)
                flush(stream)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def append(path: Path, lines: bytes) -> int:
    """Add lines and return the size of the file; none is added when the disk is full."""
    with path.open("ab") as stream:
        end = stream.tell()
        try:
            stream.write(lines)
            flush(stream)
        except OSError:
            os.truncate(path, end)
            raise
    if not end:
        sync_folder(path.parent)
    return end + len(lines)
