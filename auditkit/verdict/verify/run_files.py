"""Checks the files of an untrusted run against its list, and limits the memory for reading them."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from auditkit.regular_files import read_regular
from auditkit.runs.folder import checksums
from auditkit.runs.folder.names import LOCK
from auditkit.verdict.verify.run_record import Outcome

if sys.platform != "win32":
    import resource

_MIB = 2**20
_SPARE_MEMORY = 512 * _MIB  # for reading a run with few rows
_MEMORY_PER_BYTE = 4  # of rows on the disk, which are compressed


def check_files(run: Path, foreign: Sequence[str]) -> Outcome:
    """Whether the files are those of the list, and no others."""
    problems = [*checksums.check(run), *(f"{name} does not belong in a run" for name in foreign)]
    lock = run / LOCK
    if lock.exists() and not (b"0" + read_regular(lock, _MIB)).isdigit():
        problems.append(f"{LOCK} holds more than the number of a process")
    return Outcome(f"{0 if problems else len(checksums.read(run))} are as listed in {checksums.SUMS}", problems)


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
