"""A graph in one float type: half precision becomes single, or all floats become double.

Gradients underflow in half precision, and with a single type rules can ignore types.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from auditkit.arrays import Array
from auditkit.graph import edit

FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE})
# Operands that are float32 by definition, independently of the data.
_FLOAT32_OPERANDS = {"Resize": (1, 2), "Upsample": (1,)}


def in_one_float(
    model: onnx.ModelProto, weights: Mapping[str, Array], kind: int = TensorProto.FLOAT
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with all float tensors, inputs and outputs in one type, and its detached weights in that type."""
    fresh = edit.copy(model)
    for graph in edit.graphs(fresh.graph):
        exempt = _float32_operands(graph)
        for tensor in graph.initializer:
            if tensor.name not in exempt:
                retype(tensor, kind, weights)
        for node in graph.node:
            if not exempt.intersection(node.output):
                retype_attributes(node, kind)
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in FLOATS:
                value.type.tensor_type.elem_type = kind
        del graph.value_info[:]
    return fresh, {name: converted(a, kind) if a.dtype.kind == "f" else a for name, a in weights.items()}


def _float32_operands(graph: onnx.GraphProto) -> set[str]:
    names: set[str] = set()
    for node in graph.node:
        names.update(name for index, name in enumerate(node.input) if takes_float32(node, index))
    return names


def takes_float32(node: onnx.NodeProto, index: int) -> bool:
    """Whether an operand is float32 by definition."""
    return index in _FLOAT32_OPERANDS.get(node.op_type, ())


def retype(
    tensor: onnx.TensorProto, kind: int, detached: Mapping[str, Array], sources: frozenset[int] = FLOATS
) -> None:
    """Convert a tensor of one of the source types; a detached weight's values are not in the graph."""
    if tensor.data_type not in sources or tensor.data_type == kind:
        return
    if tensor.name in detached:
        tensor.data_type = kind
    else:
        tensor.CopyFrom(numpy_helper.from_array(converted(numpy_helper.to_array(tensor), kind), tensor.name))


def retype_attributes(node: onnx.NodeProto, kind: int, sources: frozenset[int] = FLOATS) -> None:
    """Convert the tensors, numbers and types in a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            retype(attribute.t, kind, {}, sources)
        elif attribute.name in ("to", "dtype") and attribute.i in sources:
            attribute.i = kind
        elif attribute.name == "stash_type" and attribute.i in sources:
            attribute.i = TensorProto.FLOAT
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            value = np.array(attribute.f if attribute.name == "value_float" else attribute.floats)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(converted(value, kind))))


def converted(values: Array, kind: int) -> Array:
    """The values in a float type; float16 keeps finite ones finite.

    A mask's -1e9 must not become -inf, whose softmax is NaN.
    """
    if kind == TensorProto.FLOAT16:
        limit = float(np.finfo(np.float16).max)
        values = np.where(np.isfinite(values), np.clip(values, -limit, limit), values)
    return values.astype(helper.tensor_dtype_to_np_dtype(kind))
