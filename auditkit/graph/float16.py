"""A float32 graph in float16, with inputs, outputs and all that follows the last matrix product left in float32."""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit

# Operators without a float16 form, or whose float inputs are scales and counts rather than data.
STAY_FLOAT = frozenset({
    "CumSum", "Range", "NonMaxSuppression", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike",
    "Multinomial", "Upsample", "RoiAlign",
})  # fmt: skip
# Inputs that are float32 by definition, whatever the data is.
FLOAT_INPUTS = {"Resize": {1, 2}}
# What float16 is wanted for. Behind the last of these stand softmax and its kin: numbers too large (exp) and too small
# (probabilities) for float16, and next to no work.
PRODUCTS = frozenset({
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Attention", "MultiHeadAttention", "FusedConv", "FusedGemm",
    "FusedMatMul", "LSTM", "GRU", "RNN",
})  # fmt: skip


def to_float16(model: onnx.ModelProto, weights: Mapping[str, Array]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with float32 computed as float16, and its detached weights to match."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    _refuse(model.graph)
    fresh = edit.copy(model)
    graph = fresh.graph
    floats = _float_tensors(fresh)
    stay = _staying(graph)
    exact = _wanted_in_float32(graph, stay)
    stay |= {i for i, node in enumerate(graph.node) if node.op_type == "Constant" and node.output[0] in exact}
    single = {value.name for value in edit.real_inputs(graph)} | {t.name for t in graph.initializer if t.name in exact}
    single |= {name for i in stay for name in graph.node[i].output}
    halves = floats - single
    nodes = _recast(graph, floats, halves, stay)
    for tensor in graph.initializer:
        if tensor.name in halves:
            _halve(tensor, weights)
    for value in graph.input:  # weights that old files list as inputs
        if value.name in halves:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return fresh, {name: _half_array(array) if name in halves else array for name, array in weights.items()}


def _refuse(graph: onnx.GraphProto) -> None:
    if any(a.HasField("g") or a.graphs for node in graph.node for a in node.attribute):
        raise BadInput("--precision float16 is not available for models with If, Loop or Scan; use strict or tf32.")
    # Sums of eight-bit products exceed float16, and a bias's step of 1e-8 vanishes in it.
    eight_bit = [n.op_type for n in graph.node if "QuantizeLinear" in n.op_type or "Integer" in n.op_type]
    if eight_bit or any(node.op_type.startswith("QLinear") for node in graph.node):
        raise BadInput("--precision float16 is not available for quantised models; use strict or tf32.")


def _float_tensors(model: onnx.ModelProto) -> set[str]:
    inferred = shape_inference.infer_shapes(model, check_type=False, strict_mode=False).graph
    known = {v.name: v.type.tensor_type.elem_type for v in (*inferred.value_info, *inferred.input, *inferred.output)}
    known |= {t.name: t.data_type for t in model.graph.initializer}
    for node in model.graph.node:  # operators that inference does not know hand their first input's type on
        for name in node.output[:1]:
            if not known.get(name) and node.input:
                known[name] = known.get(node.input[0], 0)
    return {name for name, kind in known.items() if kind == TensorProto.FLOAT and name}


def _staying(graph: onnx.GraphProto) -> set[int]:
    """Positions of the nodes that compute in float32: those behind the last product, and those that must."""
    found: set[int] = set()
    feeds_product: set[str] = set()
    for position in range(len(graph.node) - 1, -1, -1):
        node = graph.node[position]
        if node.op_type in PRODUCTS or feeds_product.intersection(node.output):
            feeds_product.update(node.input)
        else:
            found.add(position)
        if node.op_type in STAY_FLOAT or node.domain == "ai.onnx.ml":
            found.add(position)
    return found


def _wanted_in_float32(graph: onnx.GraphProto, stay: set[int]) -> set[str]:
    return {
        name
        for position, node in enumerate(graph.node)
        for index, name in enumerate(node.input)
        if position in stay or index in FLOAT_INPUTS.get(node.op_type, ())
    }


def _recast(graph: onnx.GraphProto, floats: set[str], halves: set[str], stay: set[int]) -> list[onnx.NodeProto]:
    """The nodes in their new types, each tensor cast once where a reader wants it in the other one."""
    nodes: list[onnx.NodeProto] = []
    own = {value.name: f"{value.name}_auditkit_half" for value in graph.output if value.name in halves}
    other: dict[str, str] = {}
    for position, node in enumerate(graph.node):
        for index, name in enumerate(node.input):
            as_float = position in stay or index in FLOAT_INPUTS.get(node.op_type, ())
            if name in floats and (name in halves) == as_float:
                if name not in other:
                    other[name] = f"{name}_auditkit_{'float' if as_float else 'cast'}"
                    kind = TensorProto.FLOAT if as_float else TensorProto.FLOAT16
                    nodes.append(helper.make_node("Cast", [own.get(name, name)], [other[name]], to=kind))
                node.input[index] = other[name]
            else:
                node.input[index] = own.get(name, name)
        for index, name in enumerate(node.output):
            node.output[index] = own.get(name, name)
        if position not in stay:
            _halve_attributes(node)
        nodes.append(node)
    return nodes + [helper.make_node("Cast", [mine], [name], to=TensorProto.FLOAT) for name, mine in own.items()]


def _halve_attributes(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
        if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
            attribute.t.CopyFrom(numpy_helper.from_array(_half_array(numpy_helper.to_array(attribute.t))))
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(_half_array(np.array(value)))))


def _halve(tensor: onnx.TensorProto, weights: Mapping[str, Array]) -> None:
    if tensor.name in weights:
        tensor.data_type = TensorProto.FLOAT16  # its bytes lie beside the graph
    else:
        tensor.CopyFrom(numpy_helper.from_array(_half_array(numpy_helper.to_array(tensor)), tensor.name))


def _half_array(values: Array) -> Array:
    """float16, with finite values kept finite: a mask's -1e9 must not become -inf, whose softmax is NaN."""
    most = float(np.finfo(np.float16).max)
    clipped = np.where(np.isfinite(values), np.clip(values, -most, most), values)
    return np.asarray(clipped, np.float16)
