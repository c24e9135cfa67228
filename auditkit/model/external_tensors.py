"""Tensors whose bytes lie in other files: found in every part of a model, and read into place."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import Message

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.model import external_files

# Stands where a detached weight's file name stood: the runtime is given the array, and no file of that name exists.
HELD_IN_MEMORY = "auditkit-holds-this-weight-in-memory"
_SMALL_BYTES = 4096  # weights up to this size stay in the graph


def _tensors(message: Message) -> Iterator[tuple[onnx.TensorProto, bool]]:
    """Every tensor below a message, however deep, and whether it is a plain weight of the main graph."""
    waiting: list[tuple[Message, bool]] = [(message, False)]
    while waiting:
        here, is_weight = waiting.pop()
        if isinstance(here, onnx.TensorProto):
            yield here, is_weight
            continue
        for descriptor, value in here.ListFields():
            if descriptor.message_type is None:
                continue
            main = here is message and descriptor.name == "initializer"
            waiting += [(v, main) for v in ([value] if isinstance(value, Message) else value)]


def is_outside(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor names another file for its bytes."""
    return bool(tensor.external_data) or tensor.data_location == onnx.TensorProto.EXTERNAL


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def refuse_doubles(proto: onnx.ModelProto, weights: Mapping[str, Array], name: str) -> None:
    """Refuse two weights of one name: the runtime would get one array and look for the other in a file."""
    seen: set[str] = set()
    for tensor in proto.graph.initializer:
        if tensor.name in seen and tensor.name in weights:
            raise BadInput(f"{name} holds two weights of the name '{tensor.name}'; ask the vendor for a proper export.")
        seen.add(tensor.name)


def data_bytes(path: Path, tensors: list[onnx.TensorProto], most: int) -> int:
    """Bytes of external data that the tensors truly use, each file that they name having been checked."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        location = _entries(tensor).get("location", "")
        if location not in sizes:
            with external_files.opened(path.parent, location, f"external data of tensor '{tensor.name}'") as data:
                sizes[location] = data.size
    asked = sum(_size_of(tensor, path.name) for tensor in tensors)
    if max(asked, sum(sizes.values())) > most:
        raise BadInput(f"{path.name} refers to {asked:,} bytes of external data, above {most:,}.")
    # Limits follow from this number: neither an unused rest of a (sparse) file nor bytes named twice may raise them.
    return min(asked, sum(sizes.values()))


def bring_in(
    outside: list[tuple[onnx.TensorProto, bool]], path: Path, *, apart: bool
) -> tuple[dict[str, Array], dict[str, str]]:
    """Put external data in place; weights come back beside the graph when the whole is too large for one message."""
    weights: dict[str, Array] = {}
    digests: dict[str, str] = {}
    for tensor, is_weight in outside:
        entries = _entries(tensor)
        location = entries.get("location", "")
        with external_files.opened(path.parent, location, f"external data of tensor '{tensor.name}'") as data:
            content = _range_of(data, tensor, entries, path.name)
            if location not in digests:
                digests[location] = data.sha256()
        del tensor.external_data[:]
        if apart and is_weight and len(content) > _SMALL_BYTES and tensor.data_type in _NATIVE:
            weights[tensor.name] = np.frombuffer(content, _NATIVE[tensor.data_type]).reshape(tuple(tensor.dims))
            tensor.external_data.add(key="location", value=HELD_IN_MEMORY)
        else:
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = content
    return weights, digests


def all_tensors(proto: onnx.ModelProto) -> list[tuple[onnx.TensorProto, bool]]:
    """Every tensor of a model, and whether it is a plain weight of the main graph."""
    tensors = list(_tensors(proto.graph))
    for part in (*proto.functions, *proto.training_info):
        tensors += [(tensor, False) for tensor, _ in _tensors(part)]
    return tensors


_NATIVE: dict[int, type[np.generic]] = {
    onnx.TensorProto.FLOAT: np.float32, onnx.TensorProto.DOUBLE: np.float64, onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.INT8: np.int8, onnx.TensorProto.UINT8: np.uint8, onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.INT32: np.int32,
}  # fmt: skip
_BITS: dict[int, int] = {
    onnx.TensorProto.FLOAT: 32, onnx.TensorProto.UINT8: 8, onnx.TensorProto.INT8: 8, onnx.TensorProto.UINT16: 16,
    onnx.TensorProto.INT16: 16, onnx.TensorProto.INT32: 32, onnx.TensorProto.INT64: 64, onnx.TensorProto.BOOL: 8,
    onnx.TensorProto.FLOAT16: 16, onnx.TensorProto.DOUBLE: 64, onnx.TensorProto.UINT32: 32,
    onnx.TensorProto.UINT64: 64, onnx.TensorProto.COMPLEX64: 64, onnx.TensorProto.COMPLEX128: 128,
    onnx.TensorProto.BFLOAT16: 16, onnx.TensorProto.FLOAT8E4M3FN: 8, onnx.TensorProto.FLOAT8E4M3FNUZ: 8,
    onnx.TensorProto.FLOAT8E5M2: 8, onnx.TensorProto.FLOAT8E5M2FNUZ: 8, onnx.TensorProto.UINT4: 4,
    onnx.TensorProto.INT4: 4, onnx.TensorProto.FLOAT4E2M1: 4,
}  # fmt: skip


def _size_of(tensor: onnx.TensorProto, name: str) -> int:
    """Bytes that a tensor's shape and type ask for."""
    if any(dim < 0 for dim in tensor.dims) or tensor.data_type not in _BITS:
        raise BadInput(f"{name}: external tensor '{tensor.name}' has an impossible shape or type; the file is damaged.")
    return (int(math.prod(tensor.dims)) * _BITS[tensor.data_type] + 7) // 8


def _range_of(data: external_files.ExternalFile, tensor: onnx.TensorProto, entries: dict[str, str], name: str) -> bytes:
    needed = _size_of(tensor, name)
    asked = entries.get("offset", "0"), entries.get("length", str(needed))
    if not all(re.fullmatch(r"[0-9]{1,18}", number) for number in asked):
        raise BadInput(f"{name}: external tensor '{tensor.name}' has an offset or length that is no number of bytes.")
    offset, length = map(int, asked)
    if length != needed or offset + length > data.size:
        raise BadInput(
            f"{name}: external tensor '{tensor.name}' needs {needed:,} bytes, but the file gives [{offset:,}, "
            f"{offset + length:,}) of '{data.location}' with {data.size:,} bytes; the model and its data do not match."
        )
    return data.read(offset, length)
