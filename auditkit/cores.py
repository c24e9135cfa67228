"""How many cores this process may use."""

import os
from contextlib import suppress
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a Linux container: microseconds of processor time, of how many


def usable_cores() -> int:
    """Cores for this process: fewer than the machine has under taskset, in a batch job or in a limited container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no such file, or "max"
        time, period = _QUOTA.read_text().split()
        cores = max(1, min(cores, int(time) // int(period)))
    return cores


def threads_if_limited() -> int:
    """Threads for a session where not all cores may be used; else 0, for the runtime's own choice.

    The runtime starts a thread on every core of the machine, and binds it there, whatever taskset says.
    """
    cores = usable_cores()
    return cores if cores < (os.cpu_count() or 1) else 0
