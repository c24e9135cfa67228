"""What a worker gives up before it sees a vendor's file: it starts no process, and ends with its main process.

Linux alone promises both; elsewhere, a worker is killed together with the processes of its group.
"""

import ctypes
import errno
import platform
import resource
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path

LARGEST_FILE = 2**31  # bytes; the largest that is written here is a serialised graph

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
# Instructions of the filter, and what it answers.
_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_IF_SET = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in seccomp_data
_CLONE_THREAD = 0x00010000
_X32 = 0x40000000  # of x86-64; from here on, the same calls have other numbers
_CLONE3 = 435  # everywhere; its flags cannot be read, and the C library falls back to clone
# Of each machine: its number for audits, that of clone, and those of fork, vfork, execve and execveat,
# as far as it has them.
_CALLS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "x86_64": (0xC000003E, 56, (57, 58, 59, 322)),
    "aarch64": (0xC00000B7, 220, (221, 281)),
}


def confine() -> None:
    """Let this process write no core or huge file, start no process, and end with its parent."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):  # a limit is lower already
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    if sys.platform != "linux":
        return
    control = ctypes.CDLL(None, use_errno=True).prctl
    control(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    program = _filter(platform.machine())
    if program and not _needs_device_files():
        buffer = ctypes.create_string_buffer(program, len(program))
        description = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
        zero = ctypes.c_ulong(0)
        control(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero)
        # Where the system does not filter (an old kernel, some containers), the rest still holds.
        control(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.c_char_p(description))


def _needs_device_files() -> bool:
    """Whether NVIDIA's driver has yet to make files of its device, for which CUDA starts a program."""
    return Path("/proc/driver/nvidia").exists() and not Path("/dev/nvidia-uvm").exists()


def _filter(machine: str) -> bytes:
    """The filter of system calls, in which clone makes threads only; empty for other machines."""
    if machine not in _CALLS:
        return b""
    architecture, clone, others = _CALLS[machine]
    refused = [(_IF_AT_LEAST, _X32, _REFUSE), *((_IF_EQUAL, number, _REFUSE) for number in others)]
    instructions = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _REFUSE),  # calls of another architecture have other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    for condition, number, answer in [(_IF_EQUAL, _CLONE3, _UNKNOWN), *refused]:
        instructions += [(condition, 0, 1, number), (_RETURN, 0, 0, answer)]
    instructions += [
        (_IF_EQUAL, 1, 0, clone),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_IF_SET, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
