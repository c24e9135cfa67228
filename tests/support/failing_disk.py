"""A disk that fails: counts the writes beneath a folder, and lets one of them, or all from it on, fail."""

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

_FREEING = ("unlink", "rmdir")  # which a full disk allows
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_BY_PATH = ("mkdir", "rename", "replace", "truncate", *_FREEING)
_BY_DESCRIPTOR = ("write", "fsync", "ftruncate")


class FailingDisk:
    """What is done to files beneath a folder, in order; write number `failing`, from 1, has the error."""

    def __init__(self, folder: Path, failing: int = 0, error: int = 0, *, to_the_end: bool = False) -> None:
        self.folder, self.failing, self.error, self.to_the_end = folder.resolve(), failing, error, to_the_end
        self.writes: list[str] = []

    @contextmanager
    def mounted(self) -> Iterator["FailingDisk"]:
        """The disk in place of that of this process; its other threads and libraries see it too."""
        with mock.patch.multiple(os, open=self._opening(os.open), **{
            name: self._checking(name, getattr(os, name)) for name in (*_BY_PATH, *_BY_DESCRIPTOR)
        }), mock.patch.object(io, "open", self._open), mock.patch.object(builtins, "open", self._open):  # fmt: skip
            yield self

    def check(self, what: str, path: str) -> None:
        """Count a write; OSError if it is the one that fails."""
        if not Path(path).is_absolute() or self.folder not in Path(path).parents:
            return
        if self.to_the_end and is_freeing(what):
            return
        self.writes.append(f"{what} {path}")
        number = len(self.writes)
        if self.failing and (number == self.failing or (self.to_the_end and number > self.failing)):
            raise OSError(self.error, os.strerror(self.error), path)

    def _checking(self, what: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def checked(target: Any, *rest: Any, **options: Any) -> Any:
            self.check(what, _path(target, options.get("dir_fd", options.get("src_dir_fd"))))
            return act(target, *rest, **options)

        return checked

    def _opening(self, act: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & _WRITING:
                self.check("open", _path(path, options.get("dir_fd")))
            return act(path, flags, *rest, **options)

        return opened

    def _open(self, file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wxa+") or self.folder not in Path(_path(file)).parents:
            return _REAL_OPEN(file, mode, *rest, **options)
        self.check("open", _path(file))
        stream = io.BufferedWriter(_Checked(self, _path(file), mode.replace("b", "").replace("t", "")))
        return stream if "b" in mode else io.TextIOWrapper(stream, encoding="utf-8")


_REAL_OPEN = open


def is_freeing(write: str) -> bool:
    """Whether it removes something, as one can from a full disk."""
    return write.split(maxsplit=1)[0] in _FREEING


class _Checked(io.FileIO):
    """A file whose writes are counted."""

    def __init__(self, disk: FailingDisk, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._disk, self._path = disk, path

    def write(self, data: Any) -> int:
        """Write, unless it fails."""
        self._disk.check("write", self._path)
        return super().write(data)


def _path(target: Any, folder: int | None = None) -> str:
    """The path of a file, which may be relative to an open folder, or of an open descriptor."""
    if not isinstance(target, int):
        return os.path.join(_path(folder) if folder is not None else "", os.fspath(target))
    try:
        return str(Path(f"/proc/self/fd/{target}").readlink())
    except OSError:
        return ""
