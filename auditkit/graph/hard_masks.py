"""A head in front of a classifier that builds masked images inside the graph, and probabilities behind it.

The derived graph holds two banks on the device and takes four integers a row:

    auditkit_pictures [P, ...]     images and infills, as the network takes them
    auditkit_ranks    [M, H, W]    for each map, how many pixels come before each pixel
    auditkit_top      [N] or [1]   picture of each row; one number is enough where all have the same
    auditkit_bottom   [N] or [1]   likewise
    auditkit_map      [N] or [1]   likewise
    auditkit_keep     [N]          pixels to show

Row i shows picture `top` where rank < keep and picture `bottom` elsewhere. Insertion puts the image on top of the
infill; deletion puts the infill on top of the image. Nothing but these rows crosses the bus before a forward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit

PICTURES, RANKS = "auditkit_pictures", "auditkit_ranks"
COLUMNS = ("auditkit_top", "auditkit_bottom", "auditkit_map", "auditkit_keep")
SHOWN, PROBABILITIES = "auditkit_shown", "auditkit_probabilities"
TOP, BOTTOM, MAP, KEEP = range(4)
FIRST_OPSET_WITH_WHERE = 9
FIRST_IR_WITH_CONSTANTS = 4


@dataclass(frozen=True)
class Ends:
    """Where a classifier's graph begins and ends, and what its scores are."""

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
        """The shape of one image as the network takes it."""
        size = (self.height, self.width)
        return (*size, self.channels) if self.channels_last else (self.channels, *size)


class HeadBuilder:
    """Nodes and constants with names that nothing in the model uses yet."""

    def __init__(self, model: onnx.ModelProto, own: set[str]) -> None:
        self.taken = edit.all_names(model.graph)
        if clash := self.taken & own:
            raise BadInput(f"the model already has a tensor named '{clash.pop()}', a name that auditkit adds itself.")
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def name(self, wanted: str) -> str:
        """`wanted`, or that with the first number that makes it new."""
        number, found = 0, wanted
        while found in self.taken:
            number, found = number + 1, f"{wanted}_{number + 1}"
        self.taken.add(found)
        return found

    def constant(self, values: list[int] | int, kind: type = np.int64) -> str:
        """Name of a new constant."""
        name = self.name("auditkit_constant")
        self.constants.append(numpy_helper.from_array(np.array(values, kind), name))
        return name

    def node(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Name of what a new node computes."""
        output = output or self.name(f"auditkit_{operator.lower()}")
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output


def masked(model: onnx.ModelProto, ends: Ends, *, channels_last: bool = False) -> onnx.ModelProto:
    """The classifier over banks: rows of four integers in, a probability for every label out.

    With `channels_last` pictures are held so, whatever the graph takes. A runtime whose convolutions want them so would
    turn every row, for 3 % of a ResNet-50's time.
    """
    return headed(model, ends, _bank_inputs, _compose, channels_last=channels_last)


def scored(model: onnx.ModelProto, ends: Ends) -> onnx.ModelProto:
    """The classifier as it is, with probabilities at its end."""
    fresh = edit.with_outputs(model, [ends.output])
    (own,) = (value for value in fresh.graph.input if value.name == ends.input)
    return _closed(fresh, HeadBuilder(fresh, {PROBABILITIES}), ends, [own])


def headed(
    model: onnx.ModelProto, ends: Ends, banks: Callable[[Ends], list[onnx.ValueInfoProto]],
    compose: Callable[["HeadBuilder", Ends, int], None], *, channels_last: bool,
) -> onnx.ModelProto:  # fmt: skip
    """The classifier behind a head that composes its input from banks, with probabilities at its end."""
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    fresh = edit.with_outputs(model, [ends.output])
    turned = channels_last and not ends.channels_last
    held = replace(ends, channels_last=True, input=SHOWN) if turned else ends
    inputs = banks(held)
    builder = HeadBuilder(fresh, {*(value.name for value in inputs), SHOWN, PROBABILITIES})
    compose(builder, held, opset)
    if turned:
        builder.node("Transpose", [SHOWN], ends.input, perm=[0, 3, 1, 2])
    return _closed(fresh, builder, ends, inputs)


def _closed(
    fresh: onnx.ModelProto, builder: HeadBuilder, ends: Ends, inputs: list[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """The model with what was built in front of it, between those inputs and probabilities."""
    head, graph = len(builder.nodes), fresh.graph
    _probabilities(builder, ends)
    # Files from before constants stood by themselves list them as inputs; now that would make them variables.
    listed = edit.real_inputs(graph) if fresh.ir_version < FIRST_IR_WITH_CONSTANTS else graph.input
    kept = [value for value in listed if value.name != ends.input]
    nodes, inputs = [*builder.nodes[:head], *graph.node, *builder.nodes[head:]], [*inputs, *kept]
    del graph.input[:], graph.output[:], graph.node[:], graph.value_info[:]
    graph.input.extend(inputs)
    graph.output.append(helper.make_tensor_value_info(PROBABILITIES, TensorProto.FLOAT, ["N", max(ends.outputs, 2)]))
    graph.node.extend(nodes)
    graph.initializer.extend(builder.constants)
    fresh.ir_version = max(fresh.ir_version, FIRST_IR_WITH_CONSTANTS)
    return fresh


def picture_bank(ends: Ends) -> onnx.ValueInfoProto:
    """The input that takes pictures, as the network takes them."""
    return helper.make_tensor_value_info(PICTURES, ends.element, ["P", *ends.picture])


def _bank_inputs(ends: Ends) -> list[onnx.ValueInfoProto]:
    return [
        picture_bank(ends),
        helper.make_tensor_value_info(RANKS, TensorProto.INT32, ["M", ends.height, ends.width]),
        *(helper.make_tensor_value_info(name, TensorProto.INT32, [size])
          for name, size in zip(COLUMNS, ("T", "B", "K", "N"), strict=True)),
    ]  # fmt: skip


def row_feeds(rows: Array) -> dict[str, Array]:
    """What the graph takes for int32 rows [N, 4]; what all share, most often image and infill, is read but once."""
    fed = dict(zip(COLUMNS, np.ascontiguousarray(rows.T), strict=True))
    return {name: own[:1] if name != COLUMNS[KEEP] and (own == own[0]).all() else own for name, own in fed.items()}


def _compose(b: HeadBuilder, ends: Ends, opset: int) -> None:
    """Where(rank < keep, top, bottom), under the name of the classifier's input."""
    banks = (PICTURES, PICTURES, RANKS)
    top, bottom, rank = (b.node("Gather", [bank, COLUMNS[at]], axis=0) for at, bank in enumerate(banks))
    keep = b.node("Reshape", [COLUMNS[KEEP], b.constant([-1, 1, 1])])
    shape = [-1, ends.height, ends.width, 1] if ends.channels_last else [-1, 1, ends.height, ends.width]
    if opset >= FIRST_OPSET_WITH_WHERE:
        shown = b.node("Reshape", [b.node("Less", [rank, keep]), b.constant(shape)])
        b.node("Where", [shown, top, bottom], ends.input)
        return
    if ends.element == TensorProto.UINT8:
        raise BadInput("uint8 input with operator set 7 or 8 cannot be masked; ask the vendor for a newer export.")
    # Before Where there was arithmetic; ranks fit float32 exactly up to 4096 x 4096 pixels.
    floats = [b.node("Cast", [name], to=TensorProto.FLOAT) for name in (rank, keep)]
    shown = b.node("Cast", [b.node("Reshape", [b.node("Less", floats), b.constant(shape)])], to=ends.element)
    hidden = b.node("Cast", [b.node("Not", [b.node("Cast", [shown], to=TensorProto.BOOL)])], to=ends.element)
    b.node("Add", [b.node("Mul", [shown, top]), b.node("Mul", [hidden, bottom])], ends.input)


def _probabilities(b: HeadBuilder, ends: Ends) -> None:
    """Scores of any kind as float32 probabilities [N, classes]; one number becomes two labels, (1-p, p)."""
    flat = b.node("Reshape", [ends.output, b.constant([-1, ends.outputs])])
    scores = b.node("Cast", [flat], to=TensorProto.FLOAT)
    if ends.outputs > 1:
        operator, extra = {"logits": ("Softmax", {"axis": 1}), "log-probabilities": ("Exp", {})}.get(
            ends.kind, ("Identity", {})
        )
        b.node(operator, [scores], PROBABILITIES, **extra)
        return
    operator = {"logits": "Sigmoid", "log-probabilities": "Exp"}.get(ends.kind, "Identity")
    positive = b.node(operator, [scores])
    one = b.name("auditkit_one")
    b.constants.append(numpy_helper.from_array(np.array([1.0], np.float32), one))
    b.node("Concat", [b.node("Sub", [one, positive]), positive], PROBABILITIES, axis=1)
