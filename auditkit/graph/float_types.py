"""A graph in another float type.

For gradients, half precision becomes single or all floats become double: gradients underflow in half precision, and
with one type rules can ignore types. For speed, single precision becomes half; inputs, outputs and the nodes behind the
last matrix product stay in float32.
"""

from collections.abc import Mapping
from itertools import product

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit

FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE})
# Operands that are float32 by definition, independently of the data.
_FLOAT32_OPERANDS = {"Resize": (1, 2), "Upsample": (1,)}
# Operators that give their mean and deviation in float32 (`stash_type`), whatever the type of their data.
_FLOAT32_STATISTICS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
# Operators without a float16 form, or whose float inputs are scales and counts rather than data.
_STAY_FLOAT = frozenset({
    "CumSum", "Range", "NonMaxSuppression", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike",
    "Multinomial", "Upsample", "RoiAlign",
})  # fmt: skip
# The operators that float16 speeds up. Behind the last of them come softmax and the like, which cost next to nothing,
# and whose numbers are too large (exp) or too small (probabilities) for float16.
_PRODUCTS = frozenset({
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Attention", "MultiHeadAttention", "FusedConv", "FusedGemm",
    "FusedMatMul", "LSTM", "GRU", "RNN",
})  # fmt: skip
_SINGLE = frozenset({TensorProto.FLOAT})


def in_one_float(
    model: onnx.ModelProto, weights: Mapping[str, Array], kind: int = TensorProto.FLOAT
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with all float tensors, inputs and outputs in one type, and its detached weights in that type."""
    fresh = edit.copy(model)
    for graph in edit.graphs(fresh.graph):
        exempt = _float32_operands(graph)
        for tensor in graph.initializer:
            if tensor.name not in exempt:
                _retype(tensor, kind, weights)
        for node in graph.node:
            if not exempt.intersection(node.output):
                _retype_attributes(node, kind)
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in FLOATS:
                value.type.tensor_type.elem_type = kind
        del graph.value_info[:]
    return fresh, {name: _converted(a, kind) if a.dtype.kind == "f" else a for name, a in weights.items()}


def _float32_operands(graph: onnx.GraphProto, stay: set[int] | None = None) -> set[str]:
    """Tensors that are read in float32, also by the nodes at the positions that stay in float32."""
    names: set[str] = set()
    for position, node in enumerate(graph.node):
        exact = range(len(node.input)) if position in (stay or ()) else _FLOAT32_OPERANDS.get(node.op_type, ())
        names.update(name for index, name in enumerate(node.input) if index in exact)
    return names


def _retype(
    tensor: onnx.TensorProto, kind: int, detached: Mapping[str, Array], sources: frozenset[int] = FLOATS
) -> None:
    """Convert a tensor of one of the source types; a detached weight's values are not in the graph."""
    if tensor.data_type not in sources or tensor.data_type == kind:
        return
    if tensor.name in detached:
        tensor.data_type = kind
    else:
        tensor.CopyFrom(numpy_helper.from_array(_converted(numpy_helper.to_array(tensor), kind), tensor.name))


def _retype_attributes(node: onnx.NodeProto, kind: int, sources: frozenset[int] = FLOATS) -> None:
    """Convert the tensors, numbers and types in a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _retype(attribute.t, kind, {}, sources)
        elif attribute.name in ("to", "dtype") and attribute.i in sources:
            attribute.i = kind
        elif attribute.name == "stash_type" and attribute.i in sources:
            attribute.i = TensorProto.FLOAT
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            value = np.array(attribute.f if attribute.name == "value_float" else attribute.floats)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(_converted(value, kind))))


def _converted(values: Array, kind: int) -> Array:
    """The values in a float type; in float16 a mask's -1e9 must not become -inf, whose softmax is NaN."""
    if kind == TensorProto.FLOAT16:
        limit = float(np.finfo(np.float16).max)
        values = np.where(np.isfinite(values), np.clip(values, -limit, limit), values)
    return values.astype(helper.tensor_dtype_to_np_dtype(kind))


def to_float16(
    model: onnx.ModelProto, weights: Mapping[str, Array], infer: edit.Infer = edit.inferred_types
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with float32 computed as float16, and its detached weights to match; it has no functions."""
    if any(any(edit.subgraphs(node)) for node in model.graph.node):
        raise BadInput("--precision float16 is not available for models with If, Loop or Scan; use strict or tf32.")
    # Sums of eight-bit products overflow in float16, and the step of a bias (1e-8) underflows.
    quantised = ("QuantizeLinear", "Integer", "QLinear")
    if any(part in node.op_type for node, part in product(model.graph.node, quantised)):
        raise BadInput("--precision float16 is not available for quantised models; use strict or tf32.")
    fresh = edit.copy(model)
    graph = fresh.graph
    floats, stay = _float_tensors(fresh, infer), _staying(graph)
    exact = _float32_operands(graph, stay)
    stay |= {i for i, node in enumerate(graph.node) if node.op_type == "Constant" and node.output[0] in exact}
    single = {value.name for value in edit.real_inputs(graph)} | {t.name for t in graph.initializer if t.name in exact}
    for position, node in enumerate(graph.node):
        if position in stay:
            single.update(node.output)
        elif node.op_type in _FLOAT32_STATISTICS:
            single.update(node.output[1:])
    halves = floats - single
    nodes = _recast(graph, floats, halves, stay)
    for tensor in graph.initializer:
        if tensor.name in halves:
            _retype(tensor, TensorProto.FLOAT16, weights, _SINGLE)
    for value in graph.input:  # weights that old files list as inputs
        if value.name in halves:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    edit.replace(graph.node, nodes)
    del graph.value_info[:]
    return fresh, {n: _converted(array, TensorProto.FLOAT16) if n in halves else array for n, array in weights.items()}


def _float_tensors(model: onnx.ModelProto, infer: edit.Infer) -> set[str]:
    types = {name: tensor.elem_type for name, tensor in infer(model).items()}
    for node in model.graph.node:  # assume that operators unknown to the inference keep their first input's type
        for name in node.output[:1]:
            if not types.get(name) and node.input:
                types[name] = types.get(node.input[0], TensorProto.UNDEFINED)
    return {name for name, kind in types.items() if kind == TensorProto.FLOAT and name}


def _staying(graph: onnx.GraphProto) -> set[int]:
    """Positions of the nodes that compute in float32: those behind the last product, and those without float16."""
    positions: set[int] = set()
    feeds_product: set[str] = set()
    for position, node in reversed(list(enumerate(graph.node))):
        if node.op_type in _PRODUCTS or feeds_product.intersection(node.output):
            feeds_product.update(node.input)
        else:
            positions.add(position)
        if node.op_type in _STAY_FLOAT or node.domain == "ai.onnx.ml":
            positions.add(position)
    return positions


def _recast(graph: onnx.GraphProto, floats: set[str], halves: set[str], stay: set[int]) -> list[onnx.NodeProto]:
    """The nodes in their new types, with one Cast for each tensor that a node reads in the other type."""
    nodes: list[onnx.NodeProto] = []
    renamed = {value.name: f"{value.name}_auditkit_half" for value in graph.output if value.name in halves}
    casts: dict[str, str] = {}
    for position, node in enumerate(graph.node):
        for index, name in enumerate(node.input):
            as_float = position in stay or index in _FLOAT32_OPERANDS.get(node.op_type, ())
            if name not in floats or (name in halves) != as_float:
                node.input[index] = renamed.get(name, name)
                continue
            if name not in casts:
                casts[name] = f"{name}_auditkit_{'float' if as_float else 'cast'}"
                kind = TensorProto.FLOAT if as_float else TensorProto.FLOAT16
                nodes.append(helper.make_node("Cast", [renamed.get(name, name)], [casts[name]], to=kind))
            node.input[index] = casts[name]
        node.output[:] = [renamed.get(name, name) for name in node.output]
        if position not in stay:
            _retype_attributes(node, TensorProto.FLOAT16, _SINGLE)
        nodes.append(node)
    return nodes + [helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT) for name, half in renamed.items()]
