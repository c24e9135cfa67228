"""Writes that are still there after the power has gone."""

import errno
import os
from pathlib import Path
from typing import Any


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of names to the disk; elsewhere than on POSIX systems a folder cannot be flushed."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def flush(stream: Any) -> None:
    """Bring what was written to the disk."""
    stream.flush()
    os.fsync(stream.fileno())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file aside and then name it, so that it is there whole or as it was."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    aside = path.with_name(path.name + ".part")
    with aside.open("wb") as stream:
        stream.write(content)
        flush(stream)
    aside.replace(path)
    sync_folder(path.parent)
