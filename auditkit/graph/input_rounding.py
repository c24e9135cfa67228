"""The first step of a graph, where it looks at every number of its input by itself: a rounding to fewer bits.

What hides pixels can as well do so behind that step. It is then taken once a picture and not once a row, and there are
fewer bytes to move; the numbers are the same.
"""

from dataclasses import dataclass, replace

import onnx
from onnx import TensorProto, shape_inference

from auditkit.graph import edit
from auditkit.graph.hard_masks import Ends

TO_HALF, TO_WHOLE_NUMBERS = "Cast", "QuantizeLinear"
MADE = {TO_HALF: (TensorProto.FLOAT16,), TO_WHOLE_NUMBERS: (TensorProto.UINT8, TensorProto.INT8)}


@dataclass(frozen=True)
class Entry:
    """A classifier cut in two behind its first step."""

    step: onnx.ModelProto  # pictures in, pictures as they are behind the step out
    rest: onnx.ModelProto
    ends: Ends  # of the rest


def behind(model: onnx.ModelProto, ends: Ends, operators: tuple[str, ...]) -> Entry | None:
    """The two parts, if the input goes to one of these operators and to nothing else."""
    readers = [node for node in model.graph.node if ends.input in edit.names_read(node)]
    if len(readers) != 1 or readers[0].op_type not in operators or readers[0].domain not in ("", "ai.onnx"):
        return None
    (name,) = readers[0].output
    if list(readers[0].input).index(ends.input) != 0 or name == ends.output:
        return None
    step = edit.with_dims(edit.with_outputs(model, [name]), ends.input, ["P", *ends.picture])
    element = _element(step, name)
    if element not in MADE[readers[0].op_type]:
        return None
    return Entry(step, _rest(model, ends, name, element), replace(ends, input=name, element=element))


def _element(step: onnx.ModelProto, name: str) -> int:
    """The type of what the step gives; 0 where that cannot be told."""
    inferred = shape_inference.infer_shapes(step).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    return int(kinds.get(name, TensorProto.UNDEFINED))


def _rest(model: onnx.ModelProto, ends: Ends, name: str, element: int) -> onnx.ModelProto:
    fresh = edit.copy(model)
    (node,) = (node for node in fresh.graph.node if name in node.output)
    fresh.graph.node.remove(node)
    (own,) = (value for value in fresh.graph.input if value.name == ends.input)
    own.name, own.type.tensor_type.elem_type = name, element
    known = [value for value in fresh.graph.value_info if value.name != name]
    del fresh.graph.value_info[:]
    fresh.graph.value_info.extend(known)
    return edit.with_outputs(fresh, [value.name for value in fresh.graph.output])
