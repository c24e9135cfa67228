"""The first step of a graph, where it rounds each number of its input to fewer bits.

Pixels can as well be masked behind that step. It then runs once per picture instead of once per row, and there are
fewer bytes to move; the numbers are the same.
"""

from dataclasses import dataclass, replace

import onnx
from onnx import TensorProto

from auditkit.graph import edit
from auditkit.graph.hard_masks import Ends

TO_HALF, TO_INTEGERS = "Cast", "QuantizeLinear"
_RESULT_TYPES = {TO_HALF: (TensorProto.FLOAT16,), TO_INTEGERS: (TensorProto.UINT8, TensorProto.INT8)}


@dataclass(frozen=True)
class Entry:
    """A classifier split in two behind its first step."""

    step: onnx.ModelProto  # pictures in, rounded pictures out
    rest: onnx.ModelProto
    ends: Ends  # of the rest


def split_behind_rounding(model: onnx.ModelProto, ends: Ends, operators: tuple[str, ...]) -> Entry | None:
    """The two parts, if one of these operators alone reads the input."""
    readers = [node for node in model.graph.node if ends.input in edit.names_read(node)]
    if len(readers) != 1:
        return None
    (reader,) = readers
    if reader.op_type not in operators or reader.domain not in edit.STANDARD_DOMAINS or reader.input[0] != ends.input:
        return None
    (name,) = reader.output
    if name == ends.output:
        return None
    step = edit.with_dims(edit.with_outputs(model, [name]), ends.input, ["P", *ends.picture])
    types = edit.inferred_types(step)
    element = types[name].elem_type if name in types else TensorProto.UNDEFINED
    if element not in _RESULT_TYPES[reader.op_type]:
        return None
    return Entry(step, _rest(model, ends, name, element), replace(ends, input=name, element=element))


def _rest(model: onnx.ModelProto, ends: Ends, name: str, element: int) -> onnx.ModelProto:
    """The model that takes the result of the step in place of the image."""
    fresh = edit.copy(model)
    graph = fresh.graph
    edit.replace(graph.node, [node for node in graph.node if name not in node.output])
    (image,) = (value for value in graph.input if value.name == ends.input)
    image.name, image.type.tensor_type.elem_type = name, element
    edit.replace(graph.value_info, [value for value in graph.value_info if value.name != name])
    return edit.with_outputs(fresh, [value.name for value in graph.output])
