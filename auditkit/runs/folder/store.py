"""A run's folder: its settings, its units of work as Parquet parts, its results.

Every file is written to a temporary name, flushed and renamed: it is complete or absent, whenever the writer dies.
A part carries its key and a digest of its own bytes, so that what was torn, changed or renamed is never reused.
"""

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.data.atomic_write import (
    LEFT_OVER,
    create,
    make_folder,
    open_to_append,
    remove,
    remove_left_overs,
    rename,
    replace_file,
)
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.records import Json, parse_object
from auditkit.regular_files import read_regular
from auditkit.runs.folder.contents import require_resumable
from auditkit.runs.folder.names import DAMAGED, LOCK, RESULTS, RUN
from auditkit.runs.folder.parquet import SCHEMA_VERSION, decoded, encoded, fitted
from auditkit.runs.folder.results import Results

if sys.platform != "win32":
    import fcntl

ABSENT = object()  # unlike null, which is a value
_MOST_BYTES = 2**28  # of a file; a unit has some megabytes
_KEY = re.compile("[0-9a-f]{64}")


class MissingUnit(RuntimeFailure):
    """A unit has no part, or a damaged one."""


class Store:
    """A run's folder. `Store(folder)` only reads; `with Store.open(folder, settings)` writes, and nobody else can."""

    def __init__(self, folder: "str | Path") -> None:
        self.folder = Path(folder)
        self.items = self.folder / "items"
        self.notes: list[str] = []  # what the run's owner should hear of, such as damaged parts
        self._writable = False

    @classmethod
    @contextmanager
    def open(cls, folder: "str | Path", settings: Mapping[str, Any]) -> Iterator["Store"]:
        """The run in a folder, new or continued, until the block ends; refused when its settings are others."""
        store, plain = cls(folder), canonical(settings)
        with _disk_errors(f"{store.folder} cannot be used"):
            store._admit(plain)  # before anything is written
            store.folder.mkdir(parents=True, exist_ok=True)
        with locked(store.folder):
            store._writable = True
            try:
                with _disk_errors(f"{store.folder} cannot be used"):
                    store._admit(plain)  # again: another process may have been first
                    store._prepare(plain)
                yield store
            finally:
                store._writable = False

    def _admit(self, settings: Any) -> None:
        self.require_usable()
        if (self.folder / RUN).exists():
            change = _difference(self.settings(), settings)
            if change:
                raise BadInput(f"{self.folder} holds a run with other settings: {change}. Use those, or a new folder.")

    def require_usable(self) -> None:
        """Refuse, before the work, a folder that has files and is no run, or holds what no run does."""
        if os.path.lexists(self.folder / RUN):
            require_resumable(self.folder)
            return
        with _disk_errors(f"{self.folder} cannot be used"):
            names = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        for name in names:
            if name != LOCK and not re.fullmatch(LEFT_OVER, name):
                raise BadInput(f"{self.folder} is not a run (it has '{name}' and no {RUN}); give a new folder.")
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise BadInput(f"{self.folder} is not a folder; give a new one.")
        require_resumable(self.folder)

    def _prepare(self, settings: Any) -> None:
        if not (self.folder / RUN).exists():
            run = {"schema_version": SCHEMA_VERSION, "settings": settings, "settings_digest": digest(settings)}
            self._write_file(self.folder / RUN, json_bytes(run))
        make_folder(self.items, root=self.folder)
        for folder in (self.folder, self.items):
            remove_left_overs(folder, root=self.folder)

    def settings(self) -> Any:
        """The settings that the run was started with, in canonical form."""
        run = _object(self.folder / RUN, "it is not a run")
        if run.get("schema_version") != SCHEMA_VERSION:
            version = run.get("schema_version")
            raise BadInput(f"{self.folder / RUN} has schema_version {version!r}; this auditkit reads {SCHEMA_VERSION}.")
        if "settings" not in run or run.get("settings_digest") != digest(run["settings"]):
            raise BadInput(f"{self.folder / RUN} was changed, or is no run's: its settings have another digest.")
        return run["settings"]

    @staticmethod
    def key(parts: Any) -> str:
        """Name of a unit: digest of all that can change its numbers, and of the form they are stored in."""
        return digest({"schema_version": SCHEMA_VERSION, "parts": canonical(parts)})

    def keys(self) -> list[str]:
        """The units that have a file, sorted; whether one is sound shows when it is read."""
        return sorted(path.stem for path in self.items.glob("*.parquet") if _KEY.fullmatch(path.stem))

    def has(self, key: str) -> bool:
        """Whether a unit is there and sound: its bytes are checked, and its rows are not decoded."""
        return self._load(key, ()) is not None

    def read(self, key: str, columns: Sequence[str] | None = None) -> Any:
        """The rows of a unit, a pyarrow.Table, with some of the columns or with all."""
        table = self._load(key, columns)
        if table is None:
            raise MissingUnit(f"{self.folder} lacks unit {key[:12]}; give the command of the run again to add it.")
        return table

    def tables(self, keys: Iterable[str], columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The rows of the units one after the other, one unit in memory at a time."""
        return (self.read(key, columns) for key in keys)

    def write(self, key: str, table: Any) -> None:
        """Store a unit's rows, a pyarrow.Table or a mapping of columns; they are on the disk when this returns."""
        self._write_file(self._part(key), encoded(key, fitted(table)))

    def finish(self, results: Results) -> None:
        """Write `results.json`; equal results give equal bytes, and a number that is not finite becomes null."""
        self._write_file(self.folder / RESULTS, json_bytes(results.to_json()))

    def results(self) -> Results:
        """What `finish` wrote."""
        return Results.parse(self.plain_results(), self.folder / RESULTS)

    def plain_results(self) -> dict[str, Json]:
        """The object of results.json as it was written; `results` checks it."""
        return _object(self.folder / RESULTS, "the run is not finished")

    def _part(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"'{key}' is not a key; make one with Store.key")
        return self.items / f"{key}.parquet"

    def _load(self, key: str, columns: Sequence[str] | None) -> Any:
        path = self._part(key)
        with _disk_errors(f"{path} cannot be read"):
            try:
                content = read_regular(path, _MOST_BYTES)
            except FileNotFoundError:
                return None
        try:
            return decoded(key, content, columns)
        except ValueError as error:
            aside = f", and kept as {path.name}{DAMAGED} until the run is finished" if self._writable else ""
            note = f"{path} {error}; it is not used{aside}"
        if self._writable:
            with _disk_errors(f"{path} cannot be renamed"):
                rename(path, f"{path.name}{DAMAGED}", root=self.folder)
        if note not in self.notes:
            self.notes.append(note)
        return None

    def _write_file(self, path: Path, content: bytes) -> None:
        if not self._writable:
            raise RuntimeError("this store only reads; write inside `with Store.open(folder, settings)`")
        with _disk_errors(f"{path} cannot be written"):
            replace_file(path, content, root=self.folder)


def canonical(value: Any) -> Any:
    """The value as plain JSON, different for different values; `$` marks what JSON has no form for."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):  # 1 and "1" would become one
        return {f"${name}" if name.startswith("$") else name: canonical(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(entry) for entry in value]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufcSU":
        return {"$array": [value.dtype.str, list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]}
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return canonical(value.item())
    raise TypeError(f"a {type(value).__name__} cannot be part of a digest: {value!r:.80}")


def digest(plain: Any) -> str:
    """Digest of a value in canonical form."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def json_bytes(plain: Any) -> bytes:
    """The content of a JSON file; the same values give the same bytes."""
    return (json.dumps(plain, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()


def _object(path: Path, missing: str) -> dict[str, Json]:
    if not path.exists():
        raise BadInput(f"no {path}: {missing}.")
    with _disk_errors(f"{path} cannot be read"):
        content = read_regular(path, _MOST_BYTES)
    return parse_object(content, path)


def _difference(run: Any, now: Any, path: str = "settings") -> str:
    """Where two settings in canonical form first differ, with both values; empty when they do not."""
    if isinstance(run, list) and isinstance(now, list):
        run, now = dict(enumerate(run)), dict(enumerate(now))
    if isinstance(run, dict) and isinstance(now, dict):
        inner = (_difference(run.get(name, ABSENT), now.get(name, ABSENT), f"{path}.{name}") for name in now | run)
        return next(filter(None, inner), "")
    before, after = ("absent" if value is ABSENT else json.dumps(value) for value in (run, now))
    return "" if before == after else f"{path}: {before:.80} (run) / {after:.80} (now)"


@contextmanager
def locked(folder: Path, *, by_existence: bool = sys.platform == "win32") -> Iterator[None]:
    """Nobody else writes into the folder meanwhile; where there is no flock, the lock is that the file exists."""
    path, pid = folder / LOCK, str(os.getpid()).encode()
    with ExitStack() as stack:
        with _disk_errors(f"{path} cannot be locked"):
            try:
                if by_existence:
                    create(path, pid)
                    stack.callback(remove, path)
                else:
                    stream = stack.enter_context(open_to_append(path))  # a dead process's flock is let go
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    stream.truncate(0)
                    stream.write(pid)
                    stack.callback(stream.truncate, 0)  # nobody else's business afterwards
            except (BlockingIOError, FileExistsError):
                remedy = f" If it is gone, remove {path}." if by_existence else ""
                holder = read_regular(path, _MOST_BYTES).decode() or "unknown"
                raise BadInput(f"{folder} is in use by another process (pid {holder}).{remedy}") from None
        yield


@contextmanager
def _disk_errors(what: str) -> Iterator[None]:
    """What the disk refuses, as one sentence."""
    try:
        yield
    except OSError as error:
        raise RuntimeFailure(f"{what} ({error.strerror or error}); what was finished before is kept.") from None
