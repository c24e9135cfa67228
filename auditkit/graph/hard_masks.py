"""A head in front of a classifier that builds masked images inside the graph, and probabilities behind it.

The derived graph holds two banks on the device and takes four integers per row:

    auditkit_pictures [P, ...]     images and infills, in the form the network takes
    auditkit_ranks    [M, H, W]    for each map, how many pixels rank before each pixel
    auditkit_top, auditkit_bottom, auditkit_map [N] or [1]    pictures and map of each row; a single number serves all
    auditkit_keep     [N]          pixels to show

Row i shows picture `top` where rank < keep and picture `bottom` elsewhere. Insertion puts the image on top of the
infill; deletion puts the infill on top of the image. Only these rows cross the bus before a forward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.graph.edit import Builder

PICTURES, RANKS = "auditkit_pictures", "auditkit_ranks"
COLUMNS = ("auditkit_top", "auditkit_bottom", "auditkit_map", "auditkit_keep")
SHOWN, PROBABILITIES = "auditkit_shown", "auditkit_probabilities"
TOP, BOTTOM, MAP, KEEP = range(4)
_FIRST_OPSET_WITH_WHERE = 9
# The first steps of a graph that round its input, and the types they round to.
TO_HALF, TO_INTEGERS = "Cast", "QuantizeLinear"
_RESULT_TYPES = {TO_HALF: (TensorProto.FLOAT16,), TO_INTEGERS: (TensorProto.UINT8, TensorProto.INT8)}


@dataclass(frozen=True)
class Ends:
    """The input and the output of a classifier's graph, and the kind of its scores."""

    input: str
    element: int  # onnx element type of the input
    channels_last: bool
    height: int
    width: int
    channels: int
    output: str
    outputs: int
    kind: str  # logits | probabilities | log-probabilities | sigmoid

    @property
    def picture(self) -> tuple[int, int, int]:
        """The shape of one image in the form the network takes."""
        size = (self.height, self.width)
        return (*size, self.channels) if self.channels_last else (self.channels, *size)


def masked(model: onnx.ModelProto, ends: Ends, *, channels_last: bool = False) -> onnx.ModelProto:
    """The classifier over banks: rows of four integers in, a probability for every label out.

    With `channels_last`, the bank holds pictures in that order, even if the graph takes channels first. A runtime whose
    convolutions need channels last would otherwise transpose every row, for 3 % of a ResNet-50's time.
    """
    return headed(model, ends, _bank_inputs, _compose, channels_last=channels_last)


def scored(model: onnx.ModelProto, ends: Ends) -> onnx.ModelProto:
    """The classifier with its own input, and probabilities at its end."""
    fresh = edit.with_outputs(model, [ends.output])
    edit.refuse_names(fresh.graph, {PROBABILITIES})
    (image,) = (value for value in fresh.graph.input if value.name == ends.input)
    return _closed(fresh, Builder(fresh.graph), ends, [image])


def headed(
    model: onnx.ModelProto, ends: Ends, banks: Callable[[Ends], list[onnx.ValueInfoProto]],
    compose: Callable[[Builder, Ends, int], None], *, channels_last: bool,
) -> onnx.ModelProto:  # fmt: skip
    """The classifier behind a head that composes its input from banks, with probabilities at its end."""
    fresh = edit.with_outputs(model, [ends.output])
    transposed = channels_last and not ends.channels_last
    head_ends = replace(ends, channels_last=True, input=SHOWN) if transposed else ends
    inputs = banks(head_ends)
    edit.refuse_names(fresh.graph, {*(value.name for value in inputs), SHOWN, PROBABILITIES})
    b = Builder(fresh.graph)
    compose(b, head_ends, edit.opset(model))
    if transposed:
        b.node("Transpose", [SHOWN], ends.input, perm=[0, 3, 1, 2])
    return _closed(fresh, b, ends, inputs)


def _closed(fresh: onnx.ModelProto, head: Builder, ends: Ends, inputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    """The model behind its head, between these inputs and probabilities."""
    graph = fresh.graph
    edit.replace(graph.node, [*head.nodes, *graph.node])
    head.nodes.clear()
    _add_probabilities(head, ends)
    head.into(graph)
    # Files older than this version list constants as inputs, which would now make them variables.
    candidates = edit.real_inputs(graph) if fresh.ir_version < edit.FIRST_IR_WITH_CONSTANTS else graph.input
    edit.replace(graph.input, [*inputs, *(value for value in candidates if value.name != ends.input)])
    output = helper.make_tensor_value_info(PROBABILITIES, TensorProto.FLOAT, ["N", max(ends.outputs, 2)])
    edit.replace(graph.output, [output])
    del graph.value_info[:]
    fresh.ir_version = max(fresh.ir_version, edit.FIRST_IR_WITH_CONSTANTS)
    return fresh


def picture_bank(ends: Ends) -> onnx.ValueInfoProto:
    """The input for the bank of pictures."""
    return helper.make_tensor_value_info(PICTURES, ends.element, ["P", *ends.picture])


def _bank_inputs(ends: Ends) -> list[onnx.ValueInfoProto]:
    return [
        picture_bank(ends),
        helper.make_tensor_value_info(RANKS, TensorProto.INT32, ["M", ends.height, ends.width]),
        *(helper.make_tensor_value_info(name, TensorProto.INT32, [size])
          for name, size in zip(COLUMNS, ("T", "B", "K", "N"), strict=True)),
    ]  # fmt: skip


def row_feeds(rows: Array) -> dict[str, Array]:
    """The feeds for int32 rows [N, 4]; a column with one value, most often image or infill, is fed as that value."""
    columns = dict(zip(COLUMNS, np.ascontiguousarray(rows.T), strict=True))
    for name in COLUMNS[:KEEP]:
        if (columns[name] == columns[name][0]).all():
            columns[name] = columns[name][:1]
    return columns


def pixel_shape(ends: Ends) -> list[int]:
    """The shape of numbers for each pixel of each row, in the layout of the network."""
    return [-1, ends.height, ends.width, 1] if ends.channels_last else [-1, 1, ends.height, ends.width]


def _compose(b: Builder, ends: Ends, opset: int) -> None:
    """Where(rank < keep, top, bottom), under the name of the classifier's input."""
    banks = zip((PICTURES, PICTURES, RANKS), COLUMNS[:KEEP], strict=True)
    top, bottom, rank = (b.node("Gather", [bank, column], axis=0) for bank, column in banks)
    keep = b.node("Reshape", [COLUMNS[KEEP], b.constant([-1, 1, 1])])
    shape = b.constant(pixel_shape(ends))
    if opset >= _FIRST_OPSET_WITH_WHERE:
        keep_mask = b.node("Reshape", [b.node("Less", [rank, keep]), shape])
        b.node("Where", [keep_mask, top, bottom], ends.input)
        return
    if ends.element == TensorProto.UINT8:
        raise BadInput("uint8 input with operator set 7 or 8 cannot be masked; ask the vendor for a newer export.")
    # Arithmetic instead of Where; float32 holds ranks exactly up to 4096 x 4096 pixels.
    floats = [b.node("Cast", [name], to=TensorProto.FLOAT) for name in (rank, keep)]
    keep_mask = b.node("Cast", [b.node("Reshape", [b.node("Less", floats), shape])], to=ends.element)
    hidden = b.node("Cast", [b.node("Not", [b.node("Cast", [keep_mask], to=TensorProto.BOOL)])], to=ends.element)
    b.node("Add", [b.node("Mul", [keep_mask, top]), b.node("Mul", [hidden, bottom])], ends.input)


def _add_probabilities(b: Builder, ends: Ends) -> None:
    """Turn scores of any kind into float32 probabilities [N, classes]; a single score p becomes (1-p, p)."""
    flat = b.node("Reshape", [ends.output, b.constant([-1, ends.outputs])])
    scores = b.node("Cast", [flat], to=TensorProto.FLOAT)
    squash = "Softmax" if ends.outputs > 1 else "Sigmoid"
    operator = {"logits": squash, "log-probabilities": "Exp"}.get(ends.kind, "Identity")
    if ends.outputs > 1:
        b.node(operator, [scores], PROBABILITIES, **({"axis": 1} if operator == "Softmax" else {}))
        return
    positive = b.node(operator, [scores])
    negative = b.node("Sub", [b.constant([1.0], np.float32), positive])
    b.node("Concat", [negative, positive], PROBABILITIES, axis=1)


def split_behind_rounding(
    model: onnx.ModelProto, ends: Ends, operators: tuple[str, ...], infer: edit.Infer = edit.inferred_types
) -> tuple[onnx.ModelProto, onnx.ModelProto, Ends] | None:
    """The first step of a graph, the rest and the ends of the rest, if one of these operators alone reads the input.

    Pixels can as well be masked behind a step that rounds each number to fewer bits. It then runs once per picture
    instead of once per row, and there are fewer bytes to move; the numbers are the same.
    """
    readers = [node for node in model.graph.node if ends.input in edit.names_read(node)]
    if len(readers) != 1 or readers[0].op_type not in operators or readers[0].domain not in edit.STANDARD_DOMAINS:
        return None
    reader, (name,) = readers[0], readers[0].output
    if reader.input[0] != ends.input or name == ends.output:
        return None
    step = edit.with_dims(edit.with_outputs(model, [name]), ends.input, ["P", *ends.picture])
    types = infer(step)
    element = types[name].elem_type if name in types else TensorProto.UNDEFINED
    if element not in _RESULT_TYPES[reader.op_type]:
        return None
    rest = edit.copy(model)  # which takes the result of the step in place of the image
    edit.replace(rest.graph.node, [node for node in rest.graph.node if name not in node.output])
    (image,) = (value for value in rest.graph.input if value.name == ends.input)
    image.name, image.type.tensor_type.elem_type = name, element
    edit.replace(rest.graph.value_info, [value for value in rest.graph.value_info if value.name != name])
    return step, edit.with_outputs(rest), replace(ends, input=name, element=element)
