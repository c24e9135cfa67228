"""SHA256 of files, kept from one run to the next, so that resuming does not read every image again.

A digest is used again only while the file's path, device, inode, size, time of change and time of its last status
change are the same, and only where nobody but the kernel sets the last of these: on a local disk. A file system of
another machine, a process or an image (a loop device, or what is mounted read-only) can show other content with the
same times. The cache is the user's own; if it cannot be used, files are read.
"""

import hashlib
import json
import os
import re
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

_MOUNTS = Path("/proc/self/mountinfo")  # on Linux; elsewhere nothing is known of mounts, and nothing is remembered
# Device, kind and options; names may have every character but a space and a line feed.
_MOUNT = re.compile(
    r"^[0-9]+ [0-9]+ ([0-9]+):([0-9]+) .*? - ([^ \n]+) [^ \n]* ([^ \n]+)$",
    re.MULTILINE,
)
# Overlays are not among them, since their lower layers may be images, and btrfs numbers its devices otherwise.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"})
_LOOP_DEVICES = 7  # their major number

# Path, device, inode, size, time of change and of status change in nanoseconds.
FileVersion = tuple[str, int, int, int, int, int]
_digests: dict[FileVersion, bytes] = {}  # that this process knows


def file_version(path: Path) -> FileVersion | None:
    """What changes whenever the file does; None if there is no such file."""
    try:
        return _version(path, path.stat())
    except OSError:
        return None


def _version(path: Path, status: os.stat_result) -> FileVersion:
    times = status.st_mtime_ns, status.st_ctime_ns
    return str(path.absolute()), status.st_dev, status.st_ino, status.st_size, *times


def local_devices() -> frozenset[int]:
    """The devices of mounted file systems on which a file cannot change without its times, as far as is known."""
    try:
        mounts = _MOUNTS.read_bytes().decode(errors="replace")  # a text would lose "\r"
    except OSError:
        return frozenset()
    local: dict[int, bool] = {}
    for major, minor, kind, options in _MOUNT.findall(mounts):
        device = os.makedev(int(major), int(minor))
        trusted = kind in _LOCAL and int(major) != _LOOP_DEVICES and "rw" in options.split(",")
        local[device] = local.get(device, True) and trusted
    return frozenset(device for device, trusted in local.items() if trusted)


def file_digests(paths: Sequence[Path], *, fresh: bool = False) -> list[bytes]:
    """SHA256 of each file, or UNREADABLE; if `fresh`, every file is read, whatever is remembered."""
    begin, versions = time.time_ns(), [file_version(path) for path in paths]
    new: dict[FileVersion, bytes] = {}
    known = [version for version in versions if version is not None]
    if fresh:
        for version in known:
            _digests.pop(version, None)
    else:
        _digests.update(_load([version for version in known if version not in _digests]))

    def digest(path: Path, version: FileVersion | None) -> bytes:
        if version is not None and version in _digests:
            return _digests[version]
        try:
            with open_regular(path) as stream:  # which may be another file than had the version
                read = _version(path, os.fstat(stream.fileno()))
                value = hashlib.file_digest(stream, "sha256").digest()
                if _version(path, os.fstat(stream.fileno())) == read:
                    new[read] = value
                return value
        except OSError:
            return UNREADABLE

    with ThreadPoolExecutor(usable_cores()) as threads:
        digests = list(threads.map(digest, paths, versions))
    _digests.update(new)
    _save(new, begin)
    return digests


def remembered(about: str, files: Sequence[Path], compute: Callable[[], str], *, fresh: bool = False) -> str:
    """What `compute` finds out about files, which are not read again while none has changed, unless `fresh`."""
    begin, versions, devices = time.time_ns(), [file_version(path) for path in files], local_devices()
    on_disk = all(version is not None and version[1] in devices for version in versions)
    key = hashlib.sha256(json.dumps([about, versions]).encode()).hexdigest()
    if on_disk and not fresh:
        with unusable(), opened_table(_FACTS) as database:
            row = database.execute("SELECT fact FROM facts WHERE key = ?", (key,)).fetchone()
            if row is not None:
                return str(row[0])
    fact = compute()
    unchanged = versions == [file_version(path) for path in files]
    settled = begin - _SETTLED_NS
    was_settled = all(version is not None and max(version[4:]) < settled for version in versions)
    if on_disk and unchanged and was_settled:
        with unusable(), opened_table(_FACTS) as database:
            database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, fact))
    return fact


def _load(versions: Sequence[FileVersion]) -> dict[FileVersion, bytes]:
    known: dict[FileVersion, bytes] = {}
    devices = local_devices()
    versions = [version for version in versions if version[1] in devices]
    if not versions:
        return known
    with unusable(), opened_table(_TABLE) as database:
        for version in versions:
            query = "SELECT sha256 FROM digests WHERE path = ? AND version = ?"
            row = database.execute(query, (os.fsencode(version[0]), str(version[1:]))).fetchone()
            if row is not None:
                known[version] = row[0]
    return known


def _save(digests: dict[FileVersion, bytes], begin: int) -> None:
    """Keep the digests of files that were read after `begin` and had settled by then."""
    if not digests:
        return
    settled, devices = begin - _SETTLED_NS, local_devices()
    rows = [
        (os.fsencode(version[0]), str(version[1:]), digest)
        for version, digest in digests.items()
        if version[1] in devices and max(version[4:]) < settled
    ]
    with unusable(), opened_table(_TABLE) as database:
        database.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", rows)
