"""Bytes of external tensor data, taken only from plain files inside the model's own folder.

A tensor of an ONNX file may name another file to hold its bytes, so a hostile model can name any file of the
reader's machine. Every component of the name is opened relative to its parent without following links, so
nothing can be swapped between the check and the read, and the file must be regular and have one name only.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath

from auditkit.errors import BadInput

_CHUNK_BYTES = 1 << 24


class ExternalFile:
    """One checked data file: its size, its digest, and reads of ranges of it."""

    def __init__(self, descriptor: int, location: str) -> None:
        self._descriptor = descriptor
        self.location = location
        self.size = os.fstat(descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length); the range must lie inside the file."""
        pieces: list[bytes] = []
        while length > 0:
            piece = os.pread(self._descriptor, min(length, _CHUNK_BYTES), offset)
            if not piece:
                raise BadInput(f"external data file '{self.location}' shrank while it was read; try again.")
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(pieces)

    def sha256(self) -> str:
        """Digest of the whole file."""
        digest = hashlib.sha256()
        for offset in range(0, self.size, _CHUNK_BYTES):
            digest.update(self.read(offset, min(_CHUNK_BYTES, self.size - offset)))
        return digest.hexdigest()


def _parts(location: str, what: str) -> list[str]:
    """The components of a location that stays inside the folder by its spelling alone."""
    where = f"{what} is said to lie in '{location}'"
    way_out = "Only plain files inside the model's own folder are read; ask the vendor for a self-contained file."
    if not location or "\0" in location:
        raise BadInput(f"{what} names no file. {way_out}")
    windows = PureWindowsPath(location)
    if location.startswith(("/", "\\")) or windows.drive or windows.root:
        raise BadInput(f"{where}, an absolute path. {way_out}")
    parts = [part for part in location.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise BadInput(f"{where}, which leaves the model's folder. {way_out}")
    return parts


def _refusal(error: OSError, location: str, what: str, folder: Path) -> BadInput:
    where = f"{what} in '{location}'"
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return BadInput(f"{where} goes through a symbolic link, which is refused; put the real file beside the model.")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return BadInput(f"{where} is missing from {folder}; ask the vendor for the data file and put it there.")
    return BadInput(f"{where} cannot be opened ({os.strerror(error.errno or 0)}).")


def _open_inside(folder: Path, parts: list[str]) -> int:
    """Descriptor of folder/parts, each level opened beneath the last without following a link."""
    if os.open not in os.supports_dir_fd:
        raise BadInput(
            "this system cannot open files beneath a folder without following links, so external data is "
            "not read here; ask the vendor for a self-contained file."
        )
    plain = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        try:
            # O_DIRECTORY on a link gives ENOTDIR, which would be reported as "missing", so links are looked for first.
            if stat.S_ISLNK(os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            child = os.open(part, plain if last else plain | os.O_DIRECTORY, dir_fd=parent)
        finally:
            os.close(parent)
        parent = child
    return parent


@contextmanager
def opened(folder: Path, location: str, what: str) -> Iterator[ExternalFile]:
    """The file `location` beneath `folder` that holds `what`; raises BadInput with the reason if it is refused."""
    parts = _parts(location, what)
    try:
        descriptor = _open_inside(folder, parts)
    except OSError as error:
        raise _refusal(error, location, what, folder) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{what} in '{location}' is not a regular file; refused.")
        if status.st_nlink != 1:
            raise BadInput(
                f"{what} in '{location}' is a hard link ({status.st_nlink} names for one "
                f"file), which is refused; put a plain copy beside the model."
            )
        yield ExternalFile(descriptor, location)
    finally:
        os.close(descriptor)
