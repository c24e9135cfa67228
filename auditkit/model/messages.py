"""Messages between the main process and a worker: JSON over a socket, arrays in memory that both processes map.

The main process makes the memory, in slots that it hands over by their file descriptors, so nothing is left behind when
a process dies. Nothing that a worker sends is unpickled, and every array that it announces is checked against its slot.
"""

import json
import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import MachineFailure, RuntimeFailure
from auditkit.records import Json

SUPPORTED = hasattr(socket, "send_fds")  # not on Windows
_ALIGNMENT = 64  # bytes; the runtime's kernels want arrays to begin at such an address
_SMALLEST_SLOT = 2**20  # bytes
_HEADER, _READ = 8, 2**16  # bytes of a message's length, and of a first read
_LONGEST = 2**28  # bytes of JSON; the names in a graph can be long
LONGEST_REPLY = 2**23  # the same from a worker; empty lists take twenty times as much in Python
_DTYPES = frozenset({"bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"})

# An argument or a result of a call: plain values, arrays, objects that stay in the worker, lists and mappings of these.
Value = Any
Message = dict[str, Value]


class Unreadable(Exception):
    """The other end sent something that is no message."""


class Channel:
    """One end of a connection on which each message waits for its reply."""

    def __init__(self, end: socket.socket, longest: int = _LONGEST) -> None:
        """`longest` is the most bytes of JSON in a message that it receives."""
        self.socket = end
        self._longest = longest

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Send a message, and with it a file descriptor."""
        content = json.dumps(message).encode()
        content = len(content).to_bytes(_HEADER, "big") + content
        sent = 0
        if descriptor is not None:
            sent = socket.send_fds(self.socket, [content], [descriptor])
        self.socket.sendall(content[sent:])

    def receive(self) -> Message:
        """The next message; the system closes file descriptors that come with it.

        EOFError once the other end is closed; Unreadable if it is too long, too deeply nested or no JSON object.
        """
        return self._message(self.socket.recv(_READ))

    def receive_with_file(self) -> tuple[Message, int | None]:
        """The next message, and the file descriptor that came with it."""
        first, descriptors, *_ = socket.recv_fds(self.socket, _READ, 1)
        return self._message(first), descriptors[0] if descriptors else None

    def _message(self, first: bytes) -> Message:
        """The message that begins with `first`, which is mostly all of it."""
        content = bytearray(first)
        self._fill(content, _HEADER)
        size = int.from_bytes(content[:_HEADER], "big")
        if size > self._longest:
            raise Unreadable
        self._fill(content, _HEADER + size)
        try:
            message = json.loads(content[_HEADER:])
        except (ValueError, RecursionError):
            raise Unreadable from None
        if not isinstance(message, dict):
            raise Unreadable
        return message

    def _fill(self, content: bytearray, size: int) -> None:
        while len(content) < size:
            part = self.socket.recv(min(size - len(content), 2**20))
            if not part:
                raise EOFError
            content += part


class Slot:
    """Memory that both processes map: room for the arrays of one message."""

    def __init__(self, descriptor: int) -> None:
        self.memory = mmap.mmap(descriptor, 0)
        self.descriptor: int | None = descriptor  # until the other process has it

    @classmethod
    def make(cls, size: int) -> "Slot":
        """A new slot with at least that many bytes."""
        size = max(_SMALLEST_SLOT, 1 << (size - 1).bit_length())
        try:
            return cls._of_size(size)
        except (OSError, MemoryError) as error:  # such as too many open files
            reason = getattr(error, "strerror", None) or "no memory"
            raise MachineFailure(
                f"this system has no {size:,} bytes of shared memory for auditkit ({reason}); "
                "end other programs, or free space for temporary files (TMPDIR), and run the command again."
            ) from None

    @classmethod
    def _of_size(cls, size: int) -> "Slot":
        descriptor = _unnamed_file()
        try:
            os.ftruncate(descriptor, size)
            _seal(descriptor)
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def close_file(self) -> None:
        """Close the file; its memory stays mapped."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def put(self, arrays: Sequence[Array]) -> list[Json]:
        """Copy the arrays into the slot; returns where each of them lies."""
        descriptions: list[Json] = []
        offset = 0
        for array in arrays:
            np.ndarray(array.shape, array.dtype, self.memory, offset)[...] = array
            descriptions.append([array.dtype.name, list(array.shape), offset])
            offset += _padded(array.nbytes)
        return descriptions

    def get(self, descriptions: Value) -> list[Array]:
        """The arrays that `put` described, not copied; RuntimeFailure if they overlap or leave gaps."""
        arrays: list[Array] = []
        end = 0
        try:
            for dtype, shape, offset in descriptions:
                if offset != end or dtype not in _DTYPES or not all(map(_is_size, shape)):
                    raise ValueError
                # numpy refuses what reaches beyond the memory.
                arrays.append(np.ndarray(shape, dtype, self.memory, offset))
                end += _padded(arrays[-1].nbytes)
        except (TypeError, ValueError, OverflowError):
            raise RuntimeFailure("the worker announced arrays that do not fit into its memory.") from None
        return arrays


def _is_size(value: Value) -> bool:
    return isinstance(value, int) and value >= 0


def _unnamed_file() -> int:
    """The descriptor of an empty file, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("auditkit", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _seal(descriptor: int) -> None:
    """Fix the size of memory: a worker that could shrink it could crash the main process."""
    if hasattr(os, "memfd_create"):
        import fcntl  # noqa: PLC0415 - not on Windows

        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def size_of(arrays: Sequence[Array]) -> int:
    """Bytes that the arrays take in a slot."""
    return sum(_padded(array.nbytes) for array in arrays)


def packed(value: Value, arrays: list[Array], reference: Callable[[Value], int]) -> Json:
    """The value as JSON: its arrays and bytes are appended to `arrays`, other objects become references."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": packed(np.frombuffer(value, np.uint8), arrays, reference)}
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, list | tuple):
        return [packed(item, arrays, reference) for item in value]
    if isinstance(value, Mapping):
        return {"mapping": [[str(name), packed(item, arrays, reference)] for name, item in value.items()]}
    return {"object": reference(value)}


def unpacked(value: Value, arrays: Sequence[Array], dereference: Callable[[int], Value]) -> Value:
    """The value that `packed` was given. Each array is taken once: no reply outgrows its memory."""
    return _unpacked(value, dict(enumerate(arrays)), dereference)


def _unpacked(value: Value, arrays: dict[int, Array], dereference: Callable[[int], Value]) -> Value:
    if isinstance(value, list):
        return [_unpacked(item, arrays, dereference) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return _unpacked(content, arrays, dereference).tobytes()
    if kind == "array":
        return arrays.pop(content)
    if kind == "mapping":
        return {name: _unpacked(item, arrays, dereference) for name, item in content}
    return dereference(content)
