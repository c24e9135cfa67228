"""A model whose last layers are re-initialised, more and more of them until none is left as it was trained.

This is cascading randomisation (Adebayo et al. 2018). A weight is drawn anew from a normal law with the mean and the
standard deviation that the trained tensor has, so that what flows through the network keeps its size. A tensor's draw
depends on the seed and on its name alone: with more layers, those before keep theirs. Whole numbers (quantised weights)
are drawn as such, rounded and cut off where their type ends; scales and zero points stay.

Scale and shift of a normalisation are drawn too: by themselves they can hold most of what a network has learned
(Frankle et al. 2021), and most exports have folded them into the weights anyway. Running means and variances stay, and
so do constants that no layer reads: an image's normalisation inside the graph, a transformer's table of positions.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, inliner, numpy_helper

from auditkit.arrays import Array
from auditkit.graph import edit
from auditkit.graph.dequantise import LIMITS
from auditkit.graph.float_types import FLOATS

# Which operands of an operator are learned, where they are constants: weights and biases alike.
LEARNED: dict[str, tuple[int, ...]] = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "DeformConv": (1, 3), "Gemm": (0, 1, 2), "MatMul": (0, 1),
    "Einsum": (0, 1), "LSTM": (1, 2, 3), "GRU": (1, 2, 3), "RNN": (1, 2, 3), "PRelu": (1,),
    "FusedConv": (1, 2), "FusedGemm": (0, 1, 2), "FusedMatMul": (0, 1), "Attention": (1, 2), "QAttention": (1, 2),
    "ConvInteger": (0, 1), "MatMulInteger": (0, 1), "QLinearConv": (3, 8), "QLinearMatMul": (0, 3), "QGemm": (0, 3, 6),
    "DynamicQuantizeMatMul": (1, 4), "MatMulIntegerToFloat": (0, 1, 6),
    "BatchNormalization": (1, 2), "InstanceNormalization": (1, 2), "GroupNormalization": (1, 2),
    "LayerNormalization": (1, 2), "SimplifiedLayerNormalization": (1,), "SkipLayerNormalization": (2, 3, 4),
    "RMSNormalization": (1,),
}  # fmt: skip
# Behind a layer these carry its bias or its scale, when their other operand is a constant of more than one number.
AFFINE = frozenset({"Add", "Mul"})
# A weight that is put together from constants: these join several, any other operator's first operand is the weight.
JOINS = frozenset({"Add", "Sub", "Mul", "Sum", "Concat", "MatMul"})
HANDED_ON = edit.PASS_THROUGH | {"QuantizeLinear", "DequantizeLinear"}
WHOLE = LIMITS | {TensorProto.INT32: (-(2**31), 2**31 - 1)}


@dataclass(frozen=True)
class Layer:
    """What an operator has learned."""

    name: str  # of its first tensor
    operator: str
    tensors: tuple[str, ...]
    parameters: int


def layers(model: onnx.ModelProto, output: str) -> list[Layer]:
    """The layers that an output is computed by, the last one first; a tensor that several share is the last one's."""
    flat = _Flat(edit.with_outputs(inlined(model), [output]))
    found: list[Layer] = []
    taken: set[str] = set()
    for operator, tensors in reversed(flat.layers()):
        own = tuple(name for name in dict.fromkeys(tensors) if name not in taken)
        if own:
            found.append(Layer(own[0], operator, own, sum(flat.numbers(name) for name in own)))
            taken.update(own)
    return found


def parameters(model: onnx.ModelProto, output: str) -> int:
    """How many numbers an output is computed with: those of layers, and all others that are real."""
    flat = _Flat(edit.with_outputs(inlined(model), [output]))
    learned = {name for _, tensors in flat.layers() for name in tensors}
    return sum(flat.numbers(name) for name, held in flat.tensors.items() if name in learned or held.data_type in FLOATS)


def randomised(
    model: onnx.ModelProto, some: Iterable[Layer], seed: int, weights: Mapping[str, Array] | None = None
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with these layers re-initialised, and its detached weights to match."""
    fresh = edit.copy(inlined(model))
    wanted = {name for layer in some for name in layer.tensors}
    apart = dict(weights or {})
    for name, tensor in _held(fresh.graph):
        if name not in wanted:
            continue
        if name in apart:
            apart[name] = drawn(apart[name], tensor.data_type, name, seed)
        else:
            array = drawn(numpy_helper.to_array(tensor), tensor.data_type, name, seed)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return fresh, apart


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions of its own, in which weights would be out of sight."""
    return inliner.inline_local_functions(model) if model.functions else model


def drawn(trained: Array, kind: int, name: str, seed: int) -> Array:
    """A tensor of the same type, shape, mean and standard deviation that has learned nothing."""
    values = trained.astype(np.float64)
    rng = np.random.default_rng(list(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()))
    fresh = values.mean() + values.std() * rng.standard_normal(values.shape)
    if kind in WHOLE:
        fresh = np.clip(np.rint(fresh), *WHOLE[kind])
    return np.asarray(fresh.astype(trained.dtype))


def _graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes in order, those of a branch or a loop before the node that they belong to."""
    for node in graph.node:
        for inner in _graphs_in(node):
            yield from _nodes(inner)
        yield node


def _held(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every constant by the name that it is read under."""
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    for node in graph.node:
        if edit.is_tensor_constant(node):
            yield node.output[0], node.attribute[0].t
        for inner in _graphs_in(node):
            yield from _held(inner)


class _Flat:
    """A graph and the graphs within it as one list of nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = list(_nodes(model.graph))
        self.tensors = dict(_held(model.graph))
        self.made_by = {name: node for node in self.nodes for name in node.output if name}
        self.moving = {value.name for value in edit.real_inputs(model.graph)}  # what depends on the image
        for node in self.nodes:
            self.moving.update(value.name for inner in _graphs_in(node) for value in inner.input)
        for node in self.nodes:
            if node.op_type not in ("Shape", "Size") and not self.moving.isdisjoint(edit.names_read(node)):
                self.moving.update(node.output)

    def numbers(self, name: str) -> int:
        """How many a tensor holds."""
        return math.prod(self.tensors[name].dims)

    def layers(self) -> list[tuple[str, list[str]]]:
        """Operator and learned tensors of every layer, in the order of the nodes."""
        found: list[tuple[str, list[str]]] = []
        behind: dict[str, list[str]] = {}  # what a layer gave: the layer's tensors, to which its bias may be added
        for node in self.nodes:
            read = list(node.input)
            if node.op_type in LEARNED:
                learned = self._learned([read[at] for at in LEARNED[node.op_type] if at < len(read)])
                if learned:
                    found.append((node.op_type, learned))
                    behind.update(dict.fromkeys(node.output[:1], learned))
            elif node.op_type in AFFINE and len(own := [name for name in read if name in behind]) == 1:
                added = [name for name in self._learned([n for n in read if n not in own]) if self.numbers(name) > 1]
                behind[own[0]].extend(added)
                behind.update(dict.fromkeys(node.output if added else (), behind[own[0]]))
            elif node.op_type in HANDED_ON and read and read[0] in behind:
                behind[node.output[0]] = behind[read[0]]
        return found

    def _learned(self, operands: list[str]) -> list[str]:
        """Tensors that constant operands are put together from, in the order in which they are met."""
        found: list[str] = []
        waiting, seen = list(reversed(operands)), set(operands) & self.moving
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self.tensors:
                found += [name] if self.tensors[name].data_type in FLOATS | WHOLE.keys() else []
            elif name in self.made_by:
                node = self.made_by[name]
                waiting.extend(reversed(node.input if node.op_type in JOINS else node.input[:1]))
        return found
