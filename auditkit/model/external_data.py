"""Tensors whose bytes lie in other files: found in every part of a model, and read into place.

A hostile model can name any file of the reader's machine. So only plain files with one name inside the model's own
folder are read, and every component of the name is opened relative to its parent without following links: nothing can
be swapped between the check and the read.
"""

import errno
import hashlib
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto

from auditkit.arrays import Array, Weights
from auditkit.errors import BadInput
from auditkit.regular_files import is_sparse

# Stands where a detached weight's file name stood: the runtime is given the array, and no file of that name exists.
HELD_IN_MEMORY = "auditkit-holds-this-weight-in-memory"
_CHUNK_BYTES = 1 << 24  # read at once
_SMALL_BYTES = 4096  # weights up to this size stay in the graph
_NATIVE: dict[int, type[np.generic]] = {
    TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64, TensorProto.FLOAT16: np.float16,
    TensorProto.INT8: np.int8, TensorProto.UINT8: np.uint8, TensorProto.INT64: np.int64, TensorProto.INT32: np.int32,
}  # fmt: skip
_BITS: dict[int, int] = {
    TensorProto.UINT4: 4, TensorProto.INT4: 4, TensorProto.FLOAT4E2M1: 4, TensorProto.UINT8: 8, TensorProto.INT8: 8,
    TensorProto.BOOL: 8, TensorProto.FLOAT8E4M3FN: 8, TensorProto.FLOAT8E4M3FNUZ: 8, TensorProto.FLOAT8E5M2: 8,
    TensorProto.FLOAT8E5M2FNUZ: 8, TensorProto.UINT16: 16, TensorProto.INT16: 16, TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16, TensorProto.FLOAT: 32, TensorProto.INT32: 32, TensorProto.UINT32: 32,
    TensorProto.INT64: 64, TensorProto.UINT64: 64, TensorProto.DOUBLE: 64, TensorProto.COMPLEX64: 64,
    TensorProto.COMPLEX128: 128,
}  # fmt: skip


def outside_tensors(proto: onnx.ModelProto) -> list[tuple[TensorProto, bool]]:
    """Every tensor that names another file for its bytes, and whether it is a plain weight of the main graph."""
    tensors = list(_tensors(proto.graph))
    for part in (*proto.functions, *proto.training_info):
        tensors += [(tensor, False) for tensor, _ in _tensors(part)]
    return [pair for pair in tensors if pair[0].external_data or pair[0].data_location == TensorProto.EXTERNAL]


def _tensors(message: Message) -> Iterator[tuple[TensorProto, bool]]:
    """Every tensor below a message, however deep, and whether it is a plain weight of the main graph."""
    waiting: list[tuple[Message, bool]] = [(message, False)]
    while waiting:
        part, is_weight = waiting.pop()
        if isinstance(part, TensorProto):
            yield part, is_weight
            continue
        for descriptor, value in part.ListFields():
            if descriptor.message_type is not None:
                main = part is message and descriptor.name == "initializer"
                waiting += [(v, main) for v in ([value] if isinstance(value, Message) else value)]


def refuse_doubles(proto: onnx.ModelProto, weights: Weights, name: str) -> None:
    """Refuse two weights of one name: the runtime would get one array and look for the other in a file."""
    counts = Counter(tensor.name for tensor in proto.graph.initializer)
    if double := next((weight for weight in weights if counts[weight] > 1), None):
        raise BadInput(f"{name} holds two weights of the name '{double}'; ask the vendor for a proper export.")


def data_bytes(path: Path, tensors: list[TensorProto], most: int) -> int:
    """Bytes of external data that the tensors truly use, each file that they name having been checked."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        location = _entries(tensor).get("location", "")
        if location not in sizes:
            with opened(path.parent, location, f"external data of tensor '{tensor.name}'") as descriptor:
                sizes[location] = os.fstat(descriptor).st_size
    needed = sum(_size_of(tensor, path.name) for tensor in tensors)
    if max(needed, sum(sizes.values())) > most:
        raise BadInput(f"{path.name} refers to {needed:,} bytes of external data, above {most:,}.")
    # Limits follow from this number: neither an unused rest of a file nor bytes named twice may raise them.
    return min(needed, sum(sizes.values()))


def bring_in(outside: list[tuple[TensorProto, bool]], path: Path, *, apart: bool) -> tuple[Weights, dict[str, str]]:
    """Put external data in place; weights come back beside the graph when the whole is too large for one message."""
    weights: dict[str, Array] = {}
    digests: dict[str, str] = {}
    for tensor, is_weight in outside:
        location = _entries(tensor).get("location", "")
        with opened(path.parent, location, f"external data of tensor '{tensor.name}'") as descriptor:
            content = _content(descriptor, tensor, path.name)
            if location not in digests:
                digests[location] = _sha256(descriptor)
        del tensor.external_data[:]
        if apart and is_weight and len(content) > _SMALL_BYTES and tensor.data_type in _NATIVE:
            weights[tensor.name] = np.frombuffer(content, _NATIVE[tensor.data_type]).reshape(tuple(tensor.dims))
            tensor.external_data.add(key="location", value=HELD_IN_MEMORY)
        else:
            tensor.data_location = TensorProto.DEFAULT
            tensor.raw_data = content
    return weights, digests


def _entries(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _size_of(tensor: TensorProto, name: str) -> int:
    """Bytes that a tensor's shape and type ask for."""
    if any(dim < 0 for dim in tensor.dims) or tensor.data_type not in _BITS:
        raise BadInput(f"{name}: external tensor '{tensor.name}' has an impossible shape or type; the file is damaged.")
    return (int(math.prod(tensor.dims)) * _BITS[tensor.data_type] + 7) // 8


def _content(descriptor: int, tensor: TensorProto, name: str) -> bytes:
    entries, needed, size = _entries(tensor), _size_of(tensor, name), os.fstat(descriptor).st_size
    numbers = entries.get("offset", "0"), entries.get("length", str(needed))
    if not all(re.fullmatch(r"[0-9]{1,18}", number) for number in numbers):
        raise BadInput(
            f"{name}: external tensor '{tensor.name}' has an offset or length that is not a number of bytes."
        )
    offset, length = map(int, numbers)
    if length != needed or offset + length > size:
        raise BadInput(
            f"{name}: external tensor '{tensor.name}' needs {needed:,} bytes, but the file gives [{offset:,}, "
            f"{offset + length:,}) of '{entries['location']}' with {size:,} bytes; the model and its data do not match."
        )
    return read_range(descriptor, offset, length)


def read_range(descriptor: int, offset: int, length: int) -> bytes:
    """The bytes [offset, offset + length), which must lie inside the file."""
    pieces: list[bytes] = []
    while length > 0:
        piece = os.pread(descriptor, min(length, _CHUNK_BYTES), offset)
        if not piece:
            raise BadInput("a file of external data shrank while it was read; try again.")
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)


def _sha256(descriptor: int) -> str:
    digest, size = hashlib.sha256(), os.fstat(descriptor).st_size
    for offset in range(0, size, _CHUNK_BYTES):
        digest.update(read_range(descriptor, offset, min(_CHUNK_BYTES, size - offset)))
    return digest.hexdigest()


@contextmanager
def opened(folder: Path, location: str, what: str) -> Iterator[int]:
    """A descriptor of the file `location` beneath `folder` that holds `what`, which is named if it is refused."""
    where = f"{what} in '{location}'"
    parts = _parts(location, what)
    try:
        descriptor = _open_inside(folder, parts)
    except OSError as error:
        reason = f"cannot be opened ({os.strerror(error.errno or 0)})"
        if error.errno in (errno.ELOOP, errno.EMLINK):
            reason = "goes through a symbolic link, which is refused; put the real file beside the model"
        elif error.errno in (errno.ENOENT, errno.ENOTDIR):
            reason = f"is missing from {folder}; ask the vendor for the data file and put it there"
        raise BadInput(f"{where} {reason}.") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{where} is not a regular file; refused.")
        if is_sparse(descriptor):
            reason = f"has {status.st_size:,} bytes, but hardly any of them are on the disk"
            raise BadInput(f"{where} {reason}; refused. Ask the vendor for the data file again.")
        if status.st_nlink != 1:
            reason = f"is a hard link ({status.st_nlink} names for one file), which is refused"
            raise BadInput(f"{where} {reason}; put a plain copy beside the model.")
        yield descriptor
    finally:
        os.close(descriptor)


def _parts(location: str, what: str) -> list[str]:
    """The components of a location that stays inside the folder by its spelling alone."""
    where = f"{what} is said to lie in '{location}'"
    remedy = "Only plain files inside the model's own folder are read; ask the vendor for a self-contained file."
    if not location or "\0" in location:
        raise BadInput(f"{what} names no file. {remedy}")
    windows = PureWindowsPath(location)
    if location.startswith(("/", "\\")) or windows.drive or windows.root:
        raise BadInput(f"{where}, an absolute path. {remedy}")
    parts = [part for part in location.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise BadInput(f"{where}, which leaves the model's folder. {remedy}")
    return parts


def _open_inside(folder: Path, parts: list[str]) -> int:
    """Descriptor of folder/parts, each level opened beneath the last without following a link."""
    if os.open not in os.supports_dir_fd:
        reason = "this system cannot open files beneath a folder without following links, so external data is not read"
        raise BadInput(f"{reason}; ask the vendor for a self-contained file.")
    plain = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for position, part in enumerate(parts):
        parent, flags = descriptor, plain if position == len(parts) - 1 else plain | os.O_DIRECTORY
        try:
            # O_DIRECTORY on a link gives ENOTDIR, which would be reported as "missing", so links are looked for first.
            if stat.S_ISLNK(os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            descriptor = os.open(part, flags, dir_fd=parent)
        finally:
            os.close(parent)
    return descriptor
