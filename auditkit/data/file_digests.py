"""SHA256 of files, kept from one run to the next, so that resuming does not read every image again.

A digest is used again only while the file's path, size, time of change and time of its last status change are the
same. The cache is the user's own; if it cannot be used, files are read.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from auditkit.cores import usable_cores
from auditkit.regular_files import open_regular
from auditkit.user_cache import opened_table, unusable

UNREADABLE = b"unreadable"  # in place of a digest
_SETTLED_NS = 2 * 10**9  # a file that changed later than this may change again within the same tick of its clock
_TABLE = "digests (path BLOB PRIMARY KEY, version TEXT, sha256 BLOB)"
_FACTS = "facts (key TEXT PRIMARY KEY, fact TEXT)"

FileVersion = tuple[str, int, int, int]  # path, size, time of change and of status change in nanoseconds
_digests: dict[FileVersion, bytes] = {}  # that this process knows


def file_version(path: Path) -> FileVersion | None:
    """What changes whenever the file does; None if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ctime_ns


def file_digests(paths: Sequence[Path]) -> list[bytes]:
    """SHA256 of each file, or UNREADABLE."""
    versions = [file_version(path) for path in paths]
    _digests.update(_load([version for version in versions if version is not None and version not in _digests]))

    def digest(path: Path, version: FileVersion | None) -> bytes:
        if version is not None and version in _digests:
            return _digests[version]
        try:
            with open_regular(path) as stream:
                return hashlib.file_digest(stream, "sha256").digest()
        except OSError:
            return UNREADABLE

    with ThreadPoolExecutor(usable_cores()) as threads:
        digests = list(threads.map(digest, paths, versions))
    new = {version: value for version, value in zip(versions, digests, strict=True)
           if version is not None and value != UNREADABLE and version not in _digests}  # fmt: skip
    _digests.update(new)
    _save(new)
    return digests


def remembered(about: str, files: Sequence[Path], compute: Callable[[], str]) -> str:
    """What `compute` finds out about files, which are not read again while none of them has changed."""
    begin, versions = time.time_ns(), [file_version(path) for path in files]
    key = hashlib.sha256(json.dumps([about, versions]).encode()).hexdigest()
    with unusable(), opened_table(_FACTS) as database:
        row = database.execute("SELECT fact FROM facts WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return str(row[0])
    fact = compute()
    if all(version is not None and max(version[2:]) < begin - _SETTLED_NS for version in versions):
        with unusable(), opened_table(_FACTS) as database:
            database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, fact))
    return fact


def _load(versions: Sequence[FileVersion]) -> dict[FileVersion, bytes]:
    known: dict[FileVersion, bytes] = {}
    if not versions:
        return known
    with unusable(), opened_table(_TABLE) as database:
        for version in versions:
            query = "SELECT sha256 FROM digests WHERE path = ? AND version = ?"
            row = database.execute(query, (os.fsencode(version[0]), str(version[1:]))).fetchone()
            if row is not None:
                known[version] = row[0]
    return known


def _save(digests: dict[FileVersion, bytes]) -> None:
    if not digests:
        return
    settled = time.time_ns() - _SETTLED_NS
    rows = [(os.fsencode(version[0]), str(version[1:]), digest) for version, digest in digests.items()
            if max(version[2:]) < settled]  # fmt: skip
    with unusable(), opened_table(_TABLE) as database:
        database.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", rows)
