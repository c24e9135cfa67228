"""An untrusted ONNX file becomes a checked model in memory, or one sentence that says why not.

What is returned names no other file any more: external tensors, wherever the format lets them hide (weights,
attributes, sparse tensors, subgraphs, functions, training info), have been read through `external` and put in place.
The runtime is only ever given these bytes, never the path.
"""

import hashlib
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message

from auditkit.errors import BadInput
from auditkit.model import external

OLDEST_OPSET = 7
# Domains whose operators ship inside onnxruntime; any other needs a library of the vendor's, which is never loaded.
RUNTIME_DOMAINS = frozenset({
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training",
    "com.microsoft", "com.microsoft.nchwc", "com.microsoft.experimental",
})  # fmt: skip
# EPContext names a file with a compiled blob for a vendor's accelerator; the Python operators run code.
REFUSED_OPERATORS = frozenset({"EPContext", "PyOp", "PythonOp", "ATen", "TritonOp", "ExternalModel"})

# Stands where a detached weight's file name stood: the runtime is given the array, and no file of that name exists.
HELD_IN_MEMORY = "auditkit-holds-this-weight-in-memory"

FOREIGN_FILES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive (perhaps a PyTorch .pt or a Keras .keras file)"),
    (0, b"\x89HDF\r\n", "an HDF5 file (perhaps Keras weights)"),
    (0, b"\x80\x02", "a Python pickle (perhaps a PyTorch checkpoint)"),
    (0, b"\x80\x04", "a Python pickle"),
    (4, b"TFL3", "a TensorFlow Lite file"),
    (4, b"ORTM", "an onnxruntime .ort file"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (0, b"\xff\xd8\xff", "a JPEG picture"),
    (0, b"\x89PNG", "a PNG picture"),
)


@dataclass(frozen=True)
class Limits:
    """What an unknown file may cost before it is refused."""

    file_bytes: int = 2**31 - 1  # what protobuf itself can hold
    external_bytes: int = 64 * 2**30
    nesting: int = 12  # graphs within graphs
    # Above this, large weights stay beside the graph: a serialised model cannot hold 2 GB.
    inline_bytes: int = 2**30
    memory_bytes: int = 2**30  # plus memory_per_byte times the model, for the first load and run
    memory_per_byte: int = 4
    seconds: float = 45.0  # for the first load and run; plus one second for each 20 MB

    def memory_for(self, model_bytes: int) -> int:
        """Memory that the first load and run may take."""
        return self.memory_bytes + self.memory_per_byte * model_bytes

    def seconds_for(self, model_bytes: int) -> float:
        """Time that the first load and run may take."""
        return self.seconds + model_bytes / 20e6


@dataclass(frozen=True)
class OnnxFile:
    """A checked model: the graph, its large weights if they had to stay apart, and where it came from."""

    path: Path
    sha256: str
    bytes: int  # the file and its external data together
    proto: onnx.ModelProto
    weights: Mapping[str, "np.ndarray[Any, Any]"] = field(default_factory=dict)
    external: Mapping[str, str] = field(default_factory=dict)  # data file -> digest

    @property
    def opset(self) -> int:
        """Version of the standard operators the file asks for."""
        return opset_of(self.proto)

    @property
    def producer(self) -> str:
        """The program that wrote the file; protobuf gives bytes where the text is no UTF-8."""
        name: str | bytes = self.proto.producer_name
        return name if isinstance(name, str) else name.decode(errors="replace")

    @property
    def identity(self) -> str:
        """One digest for the file and all its data files."""
        if not self.external:
            return self.sha256
        lines = [self.sha256, *(f"{name}:{digest}" for name, digest in sorted(self.external.items()))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def opset_of(proto: onnx.ModelProto) -> int:
    """Version of the standard operator set that a model imports (0 when it imports none)."""
    return max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def read(path: Path, limits: Limits | None = None, announce: Callable[[int], None] = lambda _size: None) -> OnnxFile:
    """The model in `path`, checked and self-contained; `announce` is told its whole size before its data is read."""
    limits = limits or Limits()
    content = _bytes_of(path, limits)
    proto = _parse(content, path.name)
    _check_operators(proto, path.name, limits)
    outside = [found for found in _all_tensors(proto) if _is_outside(found[0])]
    total = len(content) + _data_bytes(path, [tensor for tensor, _ in outside], limits)
    announce(total)
    weights, digests = _bring_in(outside, path, apart=total > limits.inline_bytes)
    _refuse_doubles(proto, weights, path.name)
    return OnnxFile(
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=total,
        proto=proto,
        weights=weights,
        external=digests,
    )


def file_size(path: Path, limits: Limits) -> int:
    """Size of a plain, non-empty file within the limits; anything else is refused."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be opened ({os.strerror(error.errno or 0)}).") from None
    if stat.S_ISDIR(status.st_mode):
        try:
            inside = sorted(p.name for p in path.iterdir() if p.suffix == ".onnx")[:3]
        except OSError:  # a folder that may not be listed
            inside = []
        hint = f"; did you mean {', '.join(inside)} in it?" if inside else " with no .onnx file in it."
        raise BadInput(f"{path} is a folder, not an ONNX file{hint}")
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{path} is not a regular file; give the path of an .onnx file.")
    if status.st_size == 0:
        raise BadInput(f"{path} is empty; ask for the file again.")
    if status.st_size > limits.file_bytes:
        raise BadInput(
            f"{path} has {status.st_size:,} bytes, more than the {limits.file_bytes:,} an ONNX file can hold; "
            f"large models keep their weights in external data files."
        )
    return status.st_size


def _bytes_of(path: Path, limits: Limits) -> bytes:
    size = file_size(path, limits)
    try:
        with path.open("rb") as stream:
            return stream.read(size)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({os.strerror(error.errno or 0)}).") from None


def _parse(content: bytes, name: str) -> onnx.ModelProto:
    for offset, magic, what in FOREIGN_FILES:
        if content[offset : offset + len(magic)] == magic:
            raise BadInput(f"{name} is {what}, not ONNX; export the model to ONNX first.")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        raise BadInput(f"{name} is not an ONNX file, or it is cut short or damaged; ask for the file again.") from None
    # A field that this reader does not know cannot have been checked, so the runtime shall not see it either.
    proto.DiscardUnknownFields()
    if not proto.graph.node or not proto.opset_import:
        raise BadInput(f"{name} holds no ONNX graph (no nodes or no operator set); ask for the file again.")
    opset = opset_of(proto)
    if opset < OLDEST_OPSET:
        raise BadInput(
            f"{name} uses operator set {opset}; the runtime supports {OLDEST_OPSET} and newer. "
            f"Ask the vendor for a newer export."
        )
    return proto


def graphs(proto: onnx.ModelProto) -> Iterator[tuple[int, Any]]:
    """Every graph and function body of a model with its depth, outermost first."""
    waiting: list[tuple[int, Any]] = [(0, proto.graph)]
    waiting += [(0, function) for function in proto.functions]
    for training in proto.training_info:
        waiting += [(0, training.initialization), (0, training.algorithm)]
    while waiting:
        depth, graph = waiting.pop(0)
        yield depth, graph
        for node in graph.node:
            for attribute in node.attribute:
                single = [attribute.g] if attribute.HasField("g") else []
                waiting += [(depth + 1, inner) for inner in (*single, *attribute.graphs)]


def _check_operators(proto: onnx.ModelProto, name: str, limits: Limits) -> None:
    local = {(function.domain, function.name) for function in proto.functions}
    foreign: dict[str, list[str]] = {}
    for depth, graph in graphs(proto):
        if depth > limits.nesting:
            raise BadInput(f"{name} nests graphs more than {limits.nesting} deep, which no classifier needs; refused.")
        for node in graph.node:
            if node.op_type in REFUSED_OPERATORS:
                raise BadInput(
                    f"{name} contains the operator {node.op_type} (node '{node.name}'), which runs code or reads files "
                    f"of its own; refused. Ask the vendor for an export with standard operators."
                )
            if node.domain not in RUNTIME_DOMAINS and (node.domain, node.op_type) not in local:
                foreign.setdefault(f"{node.domain}::{node.op_type}", []).append(node.name or "unnamed")
    if foreign:
        listed = ", ".join(f"{op} ({len(n)}x, first '{n[0]}')" for op, n in sorted(foreign.items())[:4])
        raise BadInput(
            f"{name} needs operators that onnxruntime does not ship: {listed}. Custom libraries are never loaded; "
            f"ask the vendor for an export with standard operators."
        )


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
            waiting += [(v, main) for v in (value if _repeated(value) else [value])]


def _repeated(value: Any) -> bool:
    return not isinstance(value, Message)


def _is_outside(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.external_data) or tensor.data_location == onnx.TensorProto.EXTERNAL


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _refuse_doubles(proto: onnx.ModelProto, weights: Mapping[str, "np.ndarray[Any, Any]"], name: str) -> None:
    """Of two weights with one name, one would be handed over and the other looked for in a file by the runtime."""
    seen: set[str] = set()
    for tensor in proto.graph.initializer:
        if tensor.name in seen and tensor.name in weights:
            raise BadInput(f"{name} holds two weights of the name '{tensor.name}'; ask the vendor for a proper export.")
        seen.add(tensor.name)


def _data_bytes(path: Path, tensors: list[onnx.TensorProto], limits: Limits) -> int:
    """Bytes of external data that the tensors truly use, each file that they name having been checked."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        location = _entries(tensor).get("location", "")
        if location not in sizes:
            with external.opened(path.parent, location, f"external data of tensor '{tensor.name}'") as data:
                sizes[location] = data.size
    asked = sum(_size_of(tensor, path.name) for tensor in tensors)
    if max(asked, sum(sizes.values())) > limits.external_bytes:
        raise BadInput(f"{path.name} refers to {asked:,} bytes of external data, above {limits.external_bytes:,}.")
    # Limits follow from this number: neither an unused rest of a (sparse) file nor bytes named twice may raise them.
    return min(asked, sum(sizes.values()))


def _bring_in(
    outside: list[tuple[onnx.TensorProto, bool]], path: Path, *, apart: bool
) -> tuple[dict[str, "np.ndarray[Any, Any]"], dict[str, str]]:
    """Put external data in place; weights come back beside the graph when the whole is too large for one message."""
    weights: dict[str, np.ndarray[Any, Any]] = {}
    digests: dict[str, str] = {}
    for tensor, is_weight in outside:
        entries = _entries(tensor)
        location = entries.get("location", "")
        with external.opened(path.parent, location, f"external data of tensor '{tensor.name}'") as data:
            content = _range_of(data, tensor, entries, path.name)
            if location not in digests:
                digests[location] = data.sha256()
        del tensor.external_data[:]
        if apart and is_weight and len(content) > 4096 and tensor.data_type in NATIVE:
            weights[tensor.name] = np.frombuffer(content, NATIVE[tensor.data_type]).reshape(tuple(tensor.dims))
            tensor.external_data.add(key="location", value=HELD_IN_MEMORY)
        else:
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = content
    return weights, digests


def _all_tensors(proto: onnx.ModelProto) -> list[tuple[onnx.TensorProto, bool]]:
    found = list(_tensors(proto.graph))
    for part in (*proto.functions, *proto.training_info):
        found += [(tensor, False) for tensor, _ in _tensors(part)]
    return found


NATIVE: dict[int, Any] = {
    onnx.TensorProto.FLOAT: np.float32, onnx.TensorProto.DOUBLE: np.float64, onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.INT8: np.int8, onnx.TensorProto.UINT8: np.uint8, onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.INT32: np.int32,
}  # fmt: skip
BITS: dict[int, int] = {
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
    if any(dim < 0 for dim in tensor.dims) or tensor.data_type not in BITS:
        raise BadInput(f"{name}: external tensor '{tensor.name}' has an impossible shape or type; the file is damaged.")
    return (int(math.prod(tensor.dims)) * BITS[tensor.data_type] + 7) // 8


def _range_of(data: external.ExternalFile, tensor: onnx.TensorProto, entries: dict[str, str], name: str) -> bytes:
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
