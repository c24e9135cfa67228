"""A float32 graph in float16, with inputs, outputs and the closing softmax left in float32."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference

from auditkit.errors import BadInput
from auditkit.graph import edit

Array = np.ndarray[Any, Any]

# Operators without a float16 form, or whose float inputs are scales and counts rather than data.
STAY_FLOAT = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "CumSum", "Range", "NonMaxSuppression",
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Upsample", "RoiAlign",
})  # fmt: skip
# Inputs that are float32 by definition, whatever the data is.
FLOAT_INPUTS = {"Resize": {1, 2}}
CLOSING = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "Exp", "Log"}) | edit.PASS_THROUGH


def to_float16(model: onnx.ModelProto, weights: Mapping[str, Array]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with float32 computed as float16, and its detached weights to match."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    if any(a.HasField("g") or a.graphs for node in model.graph.node for a in node.attribute):
        raise BadInput("--precision float16 is not available for models with If, Loop or Scan; use strict or tf32.")
    fresh = edit.copy(model)
    graph = fresh.graph
    floats = _float_tensors(fresh)
    closing = _closing_nodes(graph)
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for value in edit.real_inputs(graph):
        if value.name in floats:
            nodes.append(helper.make_node("Cast", [value.name], [f"{value.name}_half"], to=TensorProto.FLOAT16))
            renamed[value.name] = f"{value.name}_half"
    for position, node in enumerate(graph.node):
        nodes += _converted(node, f"auditkit_{position}", floats, renamed, stay=position in closing)
    for value in graph.output:
        if value.name in floats:
            nodes = _float_output(nodes, value.name)
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            _halve(tensor, weights)
    for value in graph.input:  # weights that old files list as inputs
        if value.name in {t.name for t in graph.initializer} and value.name in floats:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return fresh, {name: _half_array(a) if a.dtype == np.float32 else a for name, a in weights.items()}


def _float_tensors(model: onnx.ModelProto) -> set[str]:
    inferred = shape_inference.infer_shapes(model, check_type=False, strict_mode=False).graph
    known = (*inferred.value_info, *inferred.input, *inferred.output)
    found = {v.name for v in known if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    return found | {t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}


def _closing_nodes(graph: onnx.GraphProto) -> set[int]:
    """Positions of the nodes that turn logits into probabilities: small numbers, where float16 has few digits."""
    ends = {value.name for value in graph.output}
    found: set[int] = set()
    pending: set[int] = set()
    for position in range(len(graph.node) - 1, -1, -1):
        node = graph.node[position]
        if node.op_type in CLOSING and ends.intersection(node.output):
            pending.add(position)
            ends.update(node.input[:1])
            if node.op_type not in edit.PASS_THROUGH:
                found |= pending
    return found


def _converted(
    node: onnx.NodeProto, prefix: str, floats: set[str], renamed: Mapping[str, str], *, stay: bool
) -> list[onnx.NodeProto]:
    """The node in float16, or in float32 between casts."""
    stay = stay or node.op_type in STAY_FLOAT
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    for index, name in enumerate(node.input):
        now = renamed.get(name, name)
        if name in floats and (stay or index in FLOAT_INPUTS.get(node.op_type, ())):
            cast = f"{prefix}_in{index}"
            before.append(helper.make_node("Cast", [now], [cast], to=TensorProto.FLOAT))
            now = cast
        node.input[index] = now
    if stay:
        for index, name in enumerate(node.output):
            if name in floats:
                node.output[index] = f"{prefix}_out{index}"
                after.append(helper.make_node("Cast", [node.output[index]], [name], to=TensorProto.FLOAT16))
    else:
        _halve_attributes(node)
    return [*before, node, *after]


def _halve_attributes(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
        if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
            attribute.t.CopyFrom(numpy_helper.from_array(_half_array(numpy_helper.to_array(attribute.t))))
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(_half_array(np.array(value)))))


def _float_output(nodes: list[onnx.NodeProto], name: str) -> list[onnx.NodeProto]:
    """The nodes with the output's float16 form renamed and a cast back to float32 under its own name."""
    hidden = f"{name}_half_out"
    for node in nodes:
        for names in (node.input, node.output):
            for index, current in enumerate(names):
                if current == name:
                    names[index] = hidden
    return [*nodes, helper.make_node("Cast", [hidden], [name], to=TensorProto.FLOAT)]


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
