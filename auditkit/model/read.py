"""Reads an untrusted ONNX file into a checked model in memory, or raises BadInput with the reason.

The model refers to no other file: external tensors of weights, attributes, sparse tensors, subgraphs, functions and
training info are read through `external_data`. The runtime gets these bytes, never the path.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from auditkit.arrays import Weights
from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.model import external_data
from auditkit.model.graph_size import Graph, called, graphs_from, is_called, refuse_expanded, refuse_large
from auditkit.regular_files import read_named

_OLDEST_OPSET = 7
_RUN_MEMORY = 4 * 2**30
# Domains whose operators ship inside onnxruntime; any other needs a library of the vendor's, which is never loaded.
_RUNTIME_DOMAINS = frozenset({
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training",
    "com.microsoft", "com.microsoft.nchwc", "com.microsoft.experimental",
})  # fmt: skip
# EPContext names a file with a compiled blob for a vendor's accelerator; the Python operators run code.
_REFUSED_OPERATORS = frozenset({"EPContext", "PyOp", "PythonOp", "ATen", "TritonOp", "ExternalModel"})

_STANDARD_OPERATORS = "Ask the vendor for an export with standard operators."
_FOREIGN_FILES: tuple[tuple[int, bytes, str], ...] = (
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
    """Limits beyond which an unknown file is refused."""

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

    def run_memory_for(self, model_bytes: int) -> int:
        """Memory that a worker may take after the first run: batches are larger, and gradients keep every layer."""
        return max(self.memory_for(model_bytes), _RUN_MEMORY + 2 * self.memory_per_byte * model_bytes)

    def seconds_for(self, model_bytes: int) -> float:
        """Time that the first load and run may take."""
        return self.seconds + model_bytes / 20e6


@dataclass(frozen=True)
class OnnxFile:
    """A checked model: its graph, large weights that are kept apart, and where it was read."""

    path: Path
    sha256: str
    bytes: int  # the file and its external data together
    proto: onnx.ModelProto
    weights: Weights = field(default_factory=dict)
    external: Mapping[str, str] = field(default_factory=dict)  # data file -> digest

    @property
    def opset(self) -> int:
        """Version of the standard operator set that the file imports."""
        return edit.opset(self.proto)

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


@dataclass(frozen=True)
class Description:
    """A checked model whose external data has not been read yet."""

    path: Path
    sha256: str
    bytes: int  # the file and the external data that it uses, together
    limits: Limits
    proto: onnx.ModelProto
    outside: list[tuple[onnx.TensorProto, bool]]  # tensors in other files; whether each is a plain weight

    def complete(self) -> OnnxFile:
        """The model, with its external data read into place."""
        apart = self.bytes > self.limits.inline_bytes
        weights, digests = external_data.bring_in(self.outside, self.path, apart=apart)
        external_data.refuse_doubles(self.proto, weights, self.path.name)
        return OnnxFile(self.path, self.sha256, self.bytes, self.proto, weights, digests)

    def live(self, tensors: Iterable[str] = ()) -> OnnxFile:
        """The model without nodes, weights and functions that neither an output nor one of these tensors needs.

        Nothing would run them, so nothing would tell whether they are sound. The digest is that of the whole file.
        """
        file = self.complete()
        proto = file.proto
        del proto.training_info[:]
        edit.drop_unneeded(proto.graph, [*(value.name for value in proto.graph.output), *tensors])
        needed = called(proto.graph, proto.functions)
        edit.drop(proto.functions, lambda function: not is_called(function, needed))
        refuse_expanded(proto, self.path.name)
        names = {tensor.name for tensor in proto.graph.initializer}
        return replace(file, weights={name: array for name, array in file.weights.items() if name in names})


def describe(path: Path, limits: Limits) -> Description:
    """The model in `path`, checked; its external data is found to be there, but not read."""
    file_size(path, limits)
    content = read_named(path, limits.file_bytes)
    proto = _parse(content, path.name)
    _check_operators(proto, path.name, limits)
    outside = external_data.outside_tensors(proto)
    total = len(content) + external_data.data_bytes(path, [tensor for tensor, _ in outside], limits.external_bytes)
    return Description(path, hashlib.sha256(content).hexdigest(), total, limits, proto, outside)


def read(path: Path, limits: Limits | None = None) -> OnnxFile:
    """The model in `path`, checked and self-contained."""
    return describe(path, limits or Limits()).complete()


def file_size(path: Path, limits: Limits) -> int:
    """Size of a plain, non-empty file within the limits; anything else is refused."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be opened ({os.strerror(error.errno or 0)}).") from None
    if stat.S_ISDIR(status.st_mode):
        names: list[str] = []
        with suppress(OSError):  # a folder that may not be listed
            names = sorted(p.name for p in path.iterdir() if p.suffix == ".onnx")[:3]
        hint = f"; did you mean {', '.join(names)} in it?" if names else "; there is no .onnx file in it."
        raise BadInput(f"{path} is a folder, not an ONNX file{hint}")
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{path} is not a regular file; give the path of an .onnx file.")
    if status.st_size == 0:
        raise BadInput(f"{path} is empty; ask for the file again.")
    if status.st_size > limits.file_bytes:
        reason = f"{status.st_size:,} bytes, more than the {limits.file_bytes:,} an ONNX file can hold"
        raise BadInput(f"{path} has {reason}; large models keep their weights in external data files.")
    return status.st_size


def _parse(content: bytes, name: str) -> onnx.ModelProto:
    for offset, magic, what in _FOREIGN_FILES:
        if content[offset : offset + len(magic)] == magic:
            raise BadInput(f"{name} is {what}, not ONNX; export the model to ONNX first.")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        raise BadInput(f"{name} is not an ONNX file, or it is cut short or damaged; ask for the file again.") from None
    # Fields that this reader does not know were not checked, so the runtime must not see them.
    proto.DiscardUnknownFields()
    if not proto.graph.node or not proto.opset_import:
        raise BadInput(f"{name} holds no ONNX graph (no nodes or no operator set); ask for the file again.")
    opset = edit.opset(proto)
    if opset < _OLDEST_OPSET:
        remedy = "Ask the vendor for a newer export."
        raise BadInput(f"{name} uses operator set {opset}; the runtime supports {_OLDEST_OPSET} and newer. {remedy}")
    return proto


def _plain_graphs(proto: onnx.ModelProto) -> list[Graph]:
    """The outermost graphs of a model that do not belong to a function."""
    return [proto.graph, *(t.initialization for t in proto.training_info), *(t.algorithm for t in proto.training_info)]


def _check_operators(proto: onnx.ModelProto, name: str, limits: Limits) -> None:
    local = {(function.domain, function.name) for function in proto.functions}
    foreign: dict[str, list[str]] = {}
    outermost = [*_plain_graphs(proto), *proto.functions]
    refuse_large(proto, outermost, name)
    for depth, graph in graphs_from(outermost):
        if depth > limits.nesting:
            raise BadInput(f"{name} nests graphs more than {limits.nesting} deep, which no classifier needs; refused.")
        for node in graph.node:
            if node.op_type in _REFUSED_OPERATORS:
                reason = f"the operator {node.op_type} (node '{node.name}'), which runs code or reads files of its own"
                raise BadInput(f"{name} contains {reason}; refused. {_STANDARD_OPERATORS}")
            if node.domain not in _RUNTIME_DOMAINS and (node.domain, node.op_type) not in local:
                foreign.setdefault(f"{node.domain}::{node.op_type}", []).append(node.name or "unnamed")
    for _, graph in graphs_from(_plain_graphs(proto)):
        for node in graph.node:
            if any(attribute.ref_attr_name for attribute in node.attribute):
                reason = f"node '{node.name or node.op_type}' takes an attribute from a function, but lies in none"
                raise BadInput(f"{name}: {reason}; the file is damaged. Ask for the file again.")
    if foreign:
        operators = ", ".join(f"{op} ({len(n)}x, first '{n[0]}')" for op, n in sorted(foreign.items())[:4])
        reason = f"operators that onnxruntime does not ship: {operators}. Custom libraries are never loaded."
        raise BadInput(f"{name} needs {reason} {_STANDARD_OPERATORS}")
