"""Writes that survive a crash or a power failure, and that no link leads elsewhere.

Where a file lies in a folder that auditkit itself made, `root` is the folder that the user named. The
user may reach that folder through a link; below it no link is followed, and folders that are missing
are made. Without `root`, the user named the folder of the file.
"""

import io
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import AuditError, RuntimeFailure
from auditkit.regular_files import require_regular

Content = bytes | memoryview | Iterable[bytes]
LEFT_OVER = r"\.[0-9a-f]{16}\.part"  # the names of what a killed writer leaves
_FUNCTIONS = {os.open, os.mkdir, os.rename, os.unlink, os.stat}
_BENEATH = os.supports_dir_fd >= _FUNCTIONS  # whether a file is reached from its open folder; not on Windows
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_WRONLY | os.O_CREAT | _NO_LINK | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # for a reader, if a pipe has just taken the file's place


@contextmanager
def write_errors(path: Path, kind: type[AuditError] = RuntimeFailure) -> Iterator[None]:
    """Raise the system's errors as a sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path} cannot be written: {error.strerror or error}.") from None


def temporary_name() -> str:
    """A name that nobody can guess, of a file or folder that is renamed once it is complete."""
    return f".{secrets.token_hex(8)}.part"


def write_whole(
    path: Path, content: Content, kind: type[AuditError] = RuntimeFailure, *, root: Path | None = None
) -> None:
    """The same as `replace_file`, with a sentence about `path` in place of the system's error."""
    with write_errors(path, kind):
        replace_file(path, content, root=root)


def replace_file(path: Path, content: Content, *, root: Path | None = None) -> None:
    """Replace a file atomically: after a crash it has its old content or the new one, never a part.

    A link, a folder or a device in its place is an OSError.
    """
    with _opened(path.parent, root) as folder:
        is_new = not folder.has_regular(path.name)
        temporary = temporary_name()
        folder.create(temporary, content)
        try:
            folder.rename(temporary, path.name)
        except BaseException:
            folder.discard(temporary)
            raise
        folder.sync(path.name if is_new else None)


def create(path: Path, content: Content, *, mode: int = 0o666, root: Path | None = None) -> None:
    """Write a new file, which is removed again if that fails; FileExistsError if there is one of that name."""
    with _opened(path.parent, root) as folder:
        folder.create(path.name, content, mode)
        folder.sync(path.name)


def append(path: Path, lines: bytes, *, root: Path | None = None) -> int:
    """Add lines and return the size of the file; none is added when the disk is full."""
    with open_to_append(path, root=root) as stream:
        end = os.fstat(stream.fileno()).st_size
        try:
            _write(stream.fileno(), lines)
            os.fsync(stream.fileno())
        except OSError:
            os.ftruncate(stream.fileno(), end)
            raise
    if not end:
        with _opened(path.parent, root) as folder:
            folder.sync()
    return end + len(lines)


def open_to_append(path: Path, *, root: Path | None = None) -> io.FileIO:
    """A file, open at its end, new if there is none; OSError if it is no regular file or has a second name."""
    with _opened(path.parent, root) as folder:
        folder.has_regular(path.name)  # opening a device may have effects of its own
        flags = _FILE | os.O_APPEND | _NO_WAITING
        descriptor = os.open(folder.place(path.name), flags, 0o666, dir_fd=folder.descriptor)
    try:
        status = os.fstat(descriptor)
        require_regular(status.st_mode)
        if status.st_nlink > 1:
            raise OSError("it is also known by another name, a hard link")
        return io.FileIO(descriptor, "ab")
    except BaseException:
        os.close(descriptor)
        raise


def make_folder(path: Path, *, root: Path) -> None:
    """Make a folder below `root`, unless it is there."""
    with _opened(path, root):
        pass


def rename(path: Path, name: str, *, root: Path | None = None) -> None:
    """Give a file or folder another name in the same folder; a file of that name is replaced."""
    with _opened(path.parent, root) as folder:
        folder.rename(path.name, name)
        folder.sync()


def remove(path: Path, *, root: Path | None = None) -> None:
    """Remove a file, if it is there."""
    with _opened(path.parent, root) as folder, suppress(FileNotFoundError):
        folder.unlink(path.name)


def remove_left_overs(path: Path, *, root: Path) -> None:
    """Remove the files that a killed writer has left in a folder."""
    for left_over in [entry for entry in path.iterdir() if re.fullmatch(LEFT_OVER, entry.name)]:
        if not left_over.is_dir():
            remove(left_over, root=root)


def remove_folder(path: Path, *, root: Path | None = None) -> None:
    """Remove a folder with all that it holds; a link in its place is an OSError."""
    with _opened(path.parent, root) as folder:
        shutil.rmtree(folder.place(path.name), dir_fd=folder.descriptor)


@dataclass(frozen=True)
class _Folder:
    """An open folder."""

    path: Path
    descriptor: int | None  # None where files are not reached from it

    def place(self, name: str) -> str:
        """What the system's functions take for a file, together with the descriptor."""
        return str(self.path / name) if self.descriptor is None else name

    def has_regular(self, name: str) -> bool:
        """Whether there is a file of that name; OSError if it is not a regular one."""
        try:
            status = os.stat(self.place(name), dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        require_regular(status.st_mode)
        return True

    def create(self, name: str, content: Content, mode: int = 0o666) -> None:
        descriptor = os.open(self.place(name), _FILE | os.O_EXCL, mode, dir_fd=self.descriptor)
        try:
            for chunk in [content] if isinstance(content, bytes | memoryview) else content:
                _write(descriptor, chunk)
            os.fsync(descriptor)
        except BaseException:
            self.discard(name)
            raise
        finally:
            os.close(descriptor)

    def rename(self, name: str, new_name: str) -> None:
        places = self.place(name), self.place(new_name)
        os.replace(*places, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        os.unlink(self.place(name), dir_fd=self.descriptor)

    def discard(self, name: str) -> None:
        with suppress(OSError):  # the error before it tells more
            self.unlink(name)

    def sync(self, new: str | None = None) -> None:
        """Flush the list of names to the disk; a `new` file that may not last is removed, so that it does not count."""
        if self.descriptor is None:
            return
        try:
            os.fsync(self.descriptor)
        except OSError:
            if new is not None:
                self.discard(new)
            raise


@contextmanager
def _opened(path: Path, root: Path | None) -> Iterator[_Folder]:
    """A folder, reached from `root` through no link."""
    root = root or path
    names = path.relative_to(root).parts
    if ".." in names:
        raise OSError(f"it is not named by its place in {root}")
    if not _BENEATH:
        for folder in [root.joinpath(*names[: count + 1]) for count in range(len(names))]:
            folder.mkdir(exist_ok=True)
            if folder.is_symlink():
                raise OSError(f"{folder.name} is a link")
        yield _Folder(path, None)
        return
    descriptor = os.open(root, _FOLDER)
    try:
        for name in names:
            inner = _open_beneath(descriptor, name)
            os.close(descriptor)
            descriptor = inner
        yield _Folder(path, descriptor)
    finally:
        os.close(descriptor)


def _open_beneath(folder: int, name: str) -> int:
    """The descriptor of a folder in a folder, which is made if it is missing."""
    try:
        return os.open(name, _FOLDER | _NO_LINK, dir_fd=folder)
    except NotADirectoryError:  # also for a link
        raise OSError(f"{name} is a link, or not a folder") from None
    except FileNotFoundError:
        os.mkdir(name, dir_fd=folder)
        os.fsync(folder)
        return os.open(name, _FOLDER | _NO_LINK, dir_fd=folder)


def _write(descriptor: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
