"""A graph in one float type: half precision becomes single, or all becomes double.

Gradients underflow in half precision, and rules need not know of types when there is one only.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from auditkit.arrays import Array
from auditkit.graph import edit

FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE})
# Operands that are float32 by definition, whatever the data is.
FLOAT32_OPERANDS = {"Resize": (1, 2), "Upsample": (1,)}


def in_one_float(
    model: onnx.ModelProto, weights: Mapping[str, Array], kind: int = TensorProto.FLOAT
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with every float tensor of one type, inputs and outputs too, and its detached weights to match."""
    fresh = edit.copy(model)
    for graph in _graphs(fresh.graph):
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
    numpy_type = helper.tensor_dtype_to_np_dtype(kind)
    return fresh, {name: a.astype(numpy_type) if a.dtype.kind == "f" else a for name, a in weights.items()}


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _graphs(inner)


def _float32_operands(graph: onnx.GraphProto) -> set[str]:
    return {
        node.input[index]
        for node in graph.node
        for index in FLOAT32_OPERANDS.get(node.op_type, ())
        if index < len(node.input)
    }


def _retype(tensor: onnx.TensorProto, kind: int, weights: Mapping[str, Array]) -> None:
    if tensor.data_type not in FLOATS or tensor.data_type == kind:
        return
    if tensor.name in weights:
        tensor.data_type = kind  # its bytes lie beside the graph
        return
    array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _retype_attributes(node: onnx.NodeProto, kind: int) -> None:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _retype(attribute.t, kind, {})
        elif attribute.name in ("to", "dtype", "stash_type") and attribute.i in FLOATS:
            attribute.i = kind if attribute.name != "stash_type" else TensorProto.FLOAT
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            tensor = numpy_helper.from_array(np.asarray(value, helper.tensor_dtype_to_np_dtype(kind)))
            attribute.CopyFrom(helper.make_attribute("value", tensor))
