"""The user's own cache: a database of what takes long to find out and can be found out again."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

_BUSY_SECONDS = 5  # to wait for another process that writes


def folder() -> Path:
    """Where the cache is, whether it exists or not; RuntimeError if the user has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "auditkit"


@contextmanager
def opened_table(declaration: str) -> Iterator[sqlite3.Connection]:
    """The database with a table as declared, such as `name (key TEXT PRIMARY KEY, value TEXT)`; changes are kept."""
    place = folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.stat().st_mode & 0o077:  # it names files: nobody else's business
        place.chmod(0o700)
    with closing(sqlite3.connect(place / "cache.sqlite", timeout=_BUSY_SECONDS)) as database, database:
        database.execute(f"CREATE TABLE IF NOT EXISTS {declaration}")
        yield database


def unusable() -> suppress:
    """What may be wrong with the cache, suppressed: everything in it can be found out again."""
    return suppress(sqlite3.Error, OSError, RuntimeError)
