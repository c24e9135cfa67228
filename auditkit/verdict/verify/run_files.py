"""Scans an untrusted run before any of its files is read: plain files that a run may hold, within limits."""

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from auditkit.data import bundle_files
from auditkit.evidence.commitment import COMMITMENT, STAMP
from auditkit.runs.explanation.record import RECORD
from auditkit.runs.folder import checksums
from auditkit.runs.folder.examination import FOLDER as EXAMINATION
from auditkit.runs.folder.provenance import PROVENANCE
from auditkit.runs.folder.sittings import SITTINGS
from auditkit.runs.folder.store import LOCK, RESULTS, RUN
from auditkit.runs.pictures.gallery_index import INDEX
from auditkit.verdict.audit import GALLERY, MAPS, POLICY, RANDOMISED, REPORT
from auditkit.verdict.verify.run_record import Outcome

if sys.platform != "win32":
    import resource

_MIB = 2**20
_PROCESS_ID = 20  # digits of the largest
_BUNDLE = rf"({MAPS}|{RANDOMISED}/stage-[0-9]+)"


def _any_of(*names: str) -> str:
    return f"({'|'.join(map(re.escape, names))})"


# What a finished run may hold, and the largest size of each; auditkit writes no other file into it.
_KINDS = {
    re.compile(kind): limit for kind, limit in {
        _any_of(RUN, RESULTS, REPORT, SITTINGS, checksums.ATTESTATION, f"{GALLERY}/{INDEX}"): 32 * _MIB,
        _any_of(POLICY, COMMITMENT, STAMP, PROVENANCE, checksums.SIGNED_OFF, *checksums.SIGNATURES): _MIB,
        _any_of(LOCK): _PROCESS_ID,
        _any_of(checksums.SUMS): 256 * _MIB,
        f"{_BUNDLE}/{_any_of(bundle_files.HEADER, bundle_files.MANIFEST, RECORD)}": 256 * _MIB,
        rf"items/[0-9a-f]{{64}}\.parquet|({GALLERY}|{EXAMINATION})/[0-9A-Za-z_-]+\.(png|jpg)": 256 * _MIB,
        rf"{_BUNDLE}/{bundle_files.MAPS}/[0-9]+\.npy": 4096 * _MIB,
    }.items()
}  # fmt: skip
_MAY_BE_EMPTY = "items/"  # of a run none of whose maps could be used
_MOST_FILES = 10**6  # a run of a million images has fewer
_MOST_DEPTH = 4  # randomised/stage-1/maps/000000.npy
_SPARSE = 16 * _MIB  # a larger file, most of which is not on the disk, was made to exhaust its readers
_SPARE_MEMORY = 512 * _MIB  # for reading a run with few rows
_MEMORY_PER_BYTE = 4  # of rows on the disk, which are compressed


class Unfit(Exception):
    """A run's folder holds what no run has, so that it is not read."""


def scan(folder: Path) -> list[str]:
    """Names of files and folders that have no place in a run; Unfit where a file must not be read."""
    foreign = list[str]()
    for number, (name, status) in enumerate(_walk(folder)):
        if number == _MOST_FILES:
            raise Unfit(f"{folder} holds more than {_MOST_FILES:,} files, more than any run")
        limit = next((limit for kind, limit in _KINDS.items() if kind.fullmatch(name)), None)
        if limit is None and name != _MAY_BE_EMPTY:
            foreign.append(name)
        if not name.endswith("/"):
            _check_readable(name, status, _MIB if limit is None else limit)
    return sorted(foreign)


def check_files(run: Path, foreign: Sequence[str]) -> Outcome:
    """Whether the files are those of the list, and no others."""
    problems = [*checksums.check(run), *(f"{name} does not belong in a run" for name in foreign)]
    lock = run / LOCK
    if lock.exists() and not (b"0" + lock.read_bytes()).isdigit():
        problems.append(f"{LOCK} holds more than the number of a process")
    return Outcome(f"{0 if problems else len(checksums.read(run))} are as listed in {checksums.SUMS}", problems)


def _check_readable(name: str, status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Unfit(f"{name} is a link or a device; a run holds plain files and folders. Remove it")
    if status.st_size > limit:
        raise Unfit(f"{name} has {status.st_size:,} bytes, more than such a file of a run ever has")
    if status.st_size > _SPARSE and getattr(status, "st_blocks", status.st_size) * 512 < status.st_size // 64:
        raise Unfit(f"{name} has {status.st_size:,} bytes, but hardly any of them are on the disk")


def _walk(folder: Path, prefix: str = "", depth: int = 1) -> Iterator[tuple[str, os.stat_result]]:
    """The files by their names in the run, and the empty folders, whose names end with a slash."""
    with os.scandir(folder) as entries:
        for entry in entries:
            status, name, empty = entry.stat(follow_symlinks=False), f"{prefix}{entry.name}", True
            if not stat.S_ISDIR(status.st_mode):
                yield name, status
                continue
            if depth == _MOST_DEPTH:
                raise Unfit(f"{name} is a folder deeper inside than any of a run")
            for inner in _walk(Path(entry.path), f"{name}/", depth + 1):
                empty = False
                yield inner
            if empty:
                yield f"{name}/", status


@contextmanager
def memory_limit(folder: Path) -> Iterator[None]:
    """Memory beyond what the run's rows can need is refused with MemoryError meanwhile; only Linux can say so."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    pool, used = pa.default_memory_pool(), _memory_in_use()
    if used is None:
        yield
        return
    rows = sum(path.stat().st_size for path in (folder / "items").glob("*.parquet"))
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used + _SPARE_MEMORY + _MEMORY_PER_BYTE * rows
    ceilings = [value for value in (limit, before, hard) if value != resource.RLIM_INFINITY]
    pa.set_memory_pool(pa.system_memory_pool())  # others reserve a gigabyte before it is needed
    resource.setrlimit(resource.RLIMIT_DATA, (min(ceilings), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))
        pa.set_memory_pool(pool)


def _memory_in_use() -> int | None:
    """Bytes that the system counts towards RLIMIT_DATA; None where it does not tell."""
    try:
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
