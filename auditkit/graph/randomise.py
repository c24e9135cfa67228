"""A model without functions whose last layers are re-initialised, from the last one alone to all of them.

This is cascading randomisation (Adebayo et al. 2018). A weight is drawn from a normal distribution with the mean and
the standard deviation of the trained tensor, so that activations keep their size. A tensor's draw depends only on the
seed and its name: with more layers, earlier ones keep theirs. Integers (quantised weights) are rounded and clipped to
their type; scales and zero points stay.

Scale and shift of a normalisation are drawn too: by themselves they can hold most of what a network has learned
(Frankle et al. 2021), and most exports fold them into the weights anyway. Running means and variances stay, and so do
constants that no layer reads: an image's normalisation inside the graph, a transformer's position table.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from auditkit.arrays import Array
from auditkit.graph import edit
from auditkit.graph.dequantise import LIMITS
from auditkit.graph.float_types import FLOATS

# Operands that are learned, weights and biases alike, if they are constants.
_LEARNED: dict[str, tuple[int, ...]] = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "DeformConv": (1, 3), "Gemm": (0, 1, 2), "MatMul": (0, 1),
    "Einsum": (0, 1), "LSTM": (1, 2, 3), "GRU": (1, 2, 3), "RNN": (1, 2, 3), "PRelu": (1,),
    "FusedConv": (1, 2), "FusedGemm": (0, 1, 2), "FusedMatMul": (0, 1), "Attention": (1, 2), "QAttention": (1, 2),
    "ConvInteger": (0, 1), "MatMulInteger": (0, 1), "QLinearConv": (3, 8), "QLinearMatMul": (0, 3), "QGemm": (0, 3, 6),
    "DynamicQuantizeMatMul": (1, 4), "MatMulIntegerToFloat": (0, 1, 6),
    "BatchNormalization": (1, 2), "InstanceNormalization": (1, 2), "GroupNormalization": (1, 2),
    "LayerNormalization": (1, 2), "SimplifiedLayerNormalization": (1,), "SkipLayerNormalization": (2, 3, 4),
    "RMSNormalization": (1,),
}  # fmt: skip
# Behind a layer these add its bias or scale, if their other operand is a constant of more than one number.
_AFFINE = frozenset({"Add", "Mul"})
# A weight may be computed from constants: these combine several, and any other operator's first operand is the weight.
_JOINS = frozenset({"Add", "Sub", "Mul", "Sum", "Concat", "MatMul"})
_PASS_THROUGH = edit.PASS_THROUGH | {"QuantizeLinear", "DequantizeLinear"}
_MOST_WALKED = 1_000  # tensors, from an operand back to constants; there are a dozen, but a hostile graph has more
_INTEGERS = LIMITS | {TensorProto.INT32: (-(2**31), 2**31 - 1)}


@dataclass(frozen=True)
class Layer:
    """An operator and its learned tensors."""

    name: str  # of its first tensor
    operator: str
    tensors: tuple[str, ...]
    parameters: int


def layers(model: onnx.ModelProto, output: str) -> list[Layer]:
    """The layers that compute an output, the last one first; a shared tensor belongs to the last of its layers."""
    flat = _Flat(model, output)
    result: list[Layer] = []
    assigned: set[str] = set()
    for operator, tensors in reversed(flat.layers()):
        names = tuple(name for name in dict.fromkeys(tensors) if name not in assigned)
        if names:
            result.append(Layer(names[0], operator, names, sum(map(flat.size, names))))
            assigned.update(names)
    return result


def parameters(model: onnx.ModelProto, output: str) -> int:
    """How many numbers compute an output: those of layers, and all other floats."""
    flat = _Flat(model, output)
    names = {name for name, tensor in flat.tensors.items() if tensor.data_type in FLOATS}
    for _, tensors in flat.layers():
        names.update(tensors)
    return sum(map(flat.size, names))


def randomised(
    model: onnx.ModelProto, selection: Iterable[Layer], seed: int, weights: Mapping[str, Array] | None = None
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with these layers re-initialised, and its detached weights to match."""
    fresh = edit.copy(model)
    names = set(chain(*(layer.tensors for layer in selection)))
    detached = dict(weights or {})
    for name, tensor in _constants(fresh.graph):
        if name not in names:
            continue
        if name in detached:
            detached[name] = drawn(detached[name], tensor.data_type, name, seed)
        else:
            array = drawn(numpy_helper.to_array(tensor), tensor.data_type, name, seed)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return fresh, detached


def drawn(trained: Array, kind: int, name: str, seed: int) -> Array:
    """A random tensor with the type, shape, mean and standard deviation of a trained one."""
    values = trained.astype(np.float64)
    rng = np.random.default_rng(list(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()))
    fresh = values.mean() + values.std() * rng.standard_normal(values.shape)
    if kind in _INTEGERS:
        fresh = np.clip(np.rint(fresh), *_INTEGERS[kind])
    return np.asarray(fresh.astype(trained.dtype))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes in order; those of a branch or a loop come before the node they belong to."""
    for node in graph.node:
        for inner in edit.subgraphs(node):
            yield from _nodes(inner)
        yield node


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every constant and the name under which nodes read it, including those of subgraphs."""
    for inner in edit.graphs(graph):
        yield from ((tensor.name, tensor) for tensor in inner.initializer)
        yield from ((node.output[0], node.attribute[0].t) for node in inner.node if edit.is_tensor_constant(node))


class _Flat:
    """The graph that computes an output and its subgraphs, as one list of nodes."""

    def __init__(self, model: onnx.ModelProto, output: str) -> None:
        model = edit.with_outputs(model, [output])
        self.nodes = list(_nodes(model.graph))
        self.tensors = dict(_constants(model.graph))
        self.producers = {name: node for node in self.nodes for name in node.output if name}
        _, *inner_graphs = edit.graphs(model.graph)
        inputs = chain(edit.real_inputs(model.graph), *(graph.input for graph in inner_graphs))
        nodes = (node for node in self.nodes if node.op_type not in ("Shape", "Size"))
        self.features = edit.descendants(nodes, [value.name for value in inputs])  # tensors that depend on the image

    def size(self, name: str) -> int:
        """How many numbers a constant holds."""
        return math.prod(self.tensors[name].dims)

    def layers(self) -> list[tuple[str, list[str]]]:
        """Operator and learned tensors of every layer, in the order of the nodes."""
        layers: list[tuple[str, list[str]]] = []
        results: dict[str, list[str]] = {}  # of layers, with the layer's tensors, to which a bias may be added
        for node in self.nodes:
            if node.op_type in _LEARNED:
                operands = [name for index, name in enumerate(node.input) if index in _LEARNED[node.op_type]]
                if tensors := self._learned(operands):
                    layers.append((node.op_type, tensors))
                    results.update(dict.fromkeys(node.output[:1], tensors))
            elif node.op_type in _AFFINE:
                self._extend_layer(node, results)
            elif node.op_type in _PASS_THROUGH and node.input and node.input[0] in results:
                results[node.output[0]] = results[node.input[0]]
        return layers

    def _extend_layer(self, affine: onnx.NodeProto, results: dict[str, list[str]]) -> None:
        """Add the constants of an Add or Mul behind a layer to that layer."""
        of_layers = [name for name in affine.input if name in results]
        if len(of_layers) != 1:
            return
        tensors = results[of_layers[0]]
        constants = self._learned([name for name in affine.input if name not in of_layers])
        if biases := [name for name in constants if self.size(name) > 1]:
            tensors.extend(biases)
            results.update(dict.fromkeys(affine.output, tensors))

    def _learned(self, operands: list[str]) -> list[str]:
        """Constants that the operands are computed from, in the order of the walk; none for features of the image."""
        names: list[str] = []
        pending, visited = list(reversed(operands)), set(operands) & self.features
        start = len(visited)
        while pending:
            name = pending.pop()
            if len(visited) - start > _MOST_WALKED:
                return []
            if name in visited:
                continue
            visited.add(name)
            if name in self.tensors:
                names += [name] if self.tensors[name].data_type in FLOATS | _INTEGERS.keys() else []
            elif name in self.producers:
                node = self.producers[name]
                pending.extend(reversed(node.input if node.op_type in _JOINS else node.input[:1]))
        return names
