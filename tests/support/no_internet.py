"""Runs a command under a filter of the kernel that kills every process that opens an internet socket.

`python -m tests.support.no_internet COMMAND ...` needs no privileges. Unix and netlink sockets are allowed. Linux on
x86-64 and aarch64 only: elsewhere, `reason` says why there is no filter.
"""

import ctypes
import os
import platform
import socket
import struct
import sys

# From the kernel's headers (linux/prctl.h, seccomp.h, filter.h, bpf_common.h and audit.h).
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_KILL_PROCESS, _ALLOW = 0x80000000, 0x7FFF0000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
# By machine: the kernel's name of the architecture, and the number of the system call `socket`.
_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}


def reason() -> str | None:
    """Why there is no filter on this system; None if there is."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return f"the filter is written for Linux on {' and '.join(_MACHINES)}"
    return None


def _filter() -> bytes:
    """The program: each instruction is an operation, two relative jumps (if true, if false) and a value."""
    architecture, socket_call = _MACHINES[platform.machine()]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_IF_EQUAL, 0, 5, architecture),  # calls of another architecture have other numbers: kill
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_EQUAL, 0, 4, socket_call),  # any other call: allow
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_IF_EQUAL, 1, 0, socket.AF_INET),
        (_JUMP_IF_EQUAL, 0, 1, socket.AF_INET6),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid() -> None:
    """Install the filter for this process and all that it starts; nothing can remove it."""
    content = _filter()
    program = _Program(len(content) // 8, content)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "the kernel refuses the filter")


if __name__ == "__main__":
    forbid()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the command that the test names
