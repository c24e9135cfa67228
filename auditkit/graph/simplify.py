"""A graph without those clumsy spots of its export that onnxruntime leaves in.

The runtime's own optimiser, in front of every device, does most of it: it folds constants, Identity, Cast and pairs of
Transpose, BatchNormalization behind a convolution, and a Pad that one plain convolution reads. What it was seen to
leave (1.31), and what is done here:

    weights that are also listed as inputs    they are variables to the runtime, and it fuses nothing with variables
    Concat of one tensor and its kin          a copy each; Identity goes too, so that the other rules see through it
    Pad before convolutions                   that say auto_pad VALID, or are several
    Pad with -inf before MaxPool              a copy of the largest tensors there are
    constant * convolution                    it fuses convolution * constant only

Anything unusual is left alone. The numbers stay, to the rounding of another order of sums.

One trap: the runtime folds the zeros of a Pad into a MaxPool that reads it, which is wrong where the data is below
zero. A file may ask for that by itself; no rule here may bring a Pad and a MaxPool together that were apart.
"""

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from auditkit.arrays import Array
from auditkit.graph import edit

STANDARD = ("", "ai.onnx")
OF_ONE = frozenset({"Concat", "Sum", "Max", "Min", "Mean"})
FIRST_IR_WITH_CONSTANTS = 4
SMALL = 64  # numbers: more than any list of pads has


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the same inputs to feed, the same outputs, and less to do between them."""
    outputs = [value.name for value in model.graph.output]
    fresh = edit.with_outputs(model, outputs)
    _pass_by_copies(fresh.graph)
    _fold_pads(fresh.graph)
    _put_constants_second(fresh.graph)
    fresh = edit.with_outputs(fresh, outputs)
    if fresh.ir_version >= FIRST_IR_WITH_CONSTANTS:
        _unlist_weights(fresh.graph)
    return fresh


class _View:
    """What is known of a graph: constants, who reads a tensor, and which names must stay."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        # The bytes of a weight held beside the graph are not here to be read.
        inside = onnx.TensorProto.DEFAULT
        self._tensors = {tensor.name: tensor for tensor in graph.initializer if tensor.data_location == inside}
        self._tensors |= {n.output[0]: n.attribute[0].t for n in graph.node if edit.is_tensor_constant(n)}
        self.constants = edit.initializer_names(graph) | self._tensors.keys()
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        self.padded = {name for node in graph.node if node.op_type == "Pad" for name in node.output}
        self.fixed = {value.name for value in graph.output}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
            if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
                self.fixed.update(edit.names_read(node))

    def small(self, name: str) -> Array | None:
        """The numbers of a small constant, flat; None where they are not known."""
        tensor = self._tensors.get(name)
        return None if tensor is None or np.prod(tensor.dims) > SMALL else numpy_helper.to_array(tensor).reshape(-1)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _input(node: onnx.NodeProto, index: int) -> str:
    return str(node.input[index]) if len(node.input) > index else ""


def _pass_by_copies(graph: onnx.GraphProto) -> None:
    """Readers of a tensor that is another one again read that other one."""
    view = _View(graph)
    instead: dict[str, str] = {}
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = instead.get(name, name)
        if _is_copy(view, node) and node.output[0] not in view.fixed:
            instead[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def _is_copy(view: _View, node: onnx.NodeProto) -> bool:
    """Whether a node's first output is its first input."""
    if node.domain not in STANDARD or not node.input:
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type == "Dropout" and len(node.input) == 1:
        return not _mask_read(view, node)
    if node.input[0] in view.padded:  # what the runtime itself does not pass by may be all that keeps a MaxPool away
        return False
    if node.op_type == "Dropout":
        training = view.small(_input(node, 2)) if _input(node, 2) else np.zeros(1, bool)
        return training is not None and not training.any() and not _mask_read(view, node)
    if node.op_type == "Transpose":
        order = _attributes(node).get("perm", [])
        return bool(order) and order == sorted(order)
    return node.op_type in OF_ONE and len(node.input) == 1


def _mask_read(view: _View, dropout: onnx.NodeProto) -> bool:
    return any(name in view.readers or name in view.fixed for name in dropout.output[1:])


def _fold_pads(graph: onnx.GraphProto) -> None:
    """Pad nodes become the pads of what reads them, if every reader can take them."""
    view = _View(graph)
    for node in reversed(graph.node):  # of two in a row, the later first
        found = _constant_pads(view, node)
        if found is None or node.output[0] in view.fixed:
            continue
        pads, value = found
        readers = view.readers.get(node.output[0], [])
        if all(reader.input[0] == node.output[0] and _takes(reader, pads, value) for reader in readers):
            for reader in readers:
                _widen(reader, pads)
                reader.input[0] = node.input[0]
            view.readers[node.input[0]] += readers
            view.readers[node.input[0]].remove(node)


def _constant_pads(view: _View, node: onnx.NodeProto) -> tuple[list[int], float] | None:
    """Rows and columns that a Pad adds, as a convolution writes them, and their value; None for any other node."""
    if node.op_type != "Pad" or node.domain not in STANDARD:
        return None
    attributes = _attributes(node)
    # Attributes say it before operator set 11, inputs since.
    pads = np.array(attributes["pads"]) if "pads" in attributes else view.small(_input(node, 1))
    value = view.small(_input(node, 2)) if _input(node, 2) else np.array([attributes.get("value", 0.0)])
    if pads is None or value is None or len(value) != 1 or len(pads) < 6 or len(pads) % 2:
        return None
    if value[0] != 0 and node.input[0] in view.padded:
        return None
    ends = pads.reshape(2, -1)
    beside_space = ends[:, :2].any() or _input(node, 3)  # the latter names axes, which no exporter was seen to do
    if attributes.get("mode", b"constant") != b"constant" or ends.min() < 0 or beside_space:
        return None
    return [int(number) for number in ends[:, 2:].reshape(-1)], float(value[0])


def _takes(reader: onnx.NodeProto, pads: list[int], value: float) -> bool:
    """Whether a node can add these pads to its first input by itself."""
    attributes = _attributes(reader)
    said = attributes.get("auto_pad", b"NOTSET")
    if (
        reader.domain not in STANDARD
        or said not in (b"NOTSET", b"VALID")
        or (said == b"VALID" and "pads" in attributes)
    ):
        return False
    if reader.op_type == "Conv":
        return value == 0 and reader.input[0] not in reader.input[1:]
    if reader.op_type != "MaxPool" or value != -np.inf:  # zeros would count, and MaxPool's own pads do not
        return False
    # Pads smaller than the window leave a real number in each window.
    window = list(attributes["kernel_shape"]) * 2
    real = all(size > own + more for size, own, more in zip(window, _own_pads(reader, len(pads)), pads, strict=True))
    simple = not attributes.get("ceil_mode") and set(attributes.get("dilations", [1])) == {1}
    return real and simple and len(reader.output) == 1


def _own_pads(node: onnx.NodeProto, count: int) -> list[int]:
    return list(_attributes(node).get("pads", [0] * count))


def _widen(node: onnx.NodeProto, pads: list[int]) -> None:
    both = [own + more for own, more in zip(_own_pads(node, len(pads)), pads, strict=True)]
    kept = [attribute for attribute in node.attribute if attribute.name not in ("pads", "auto_pad")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", both)])


def _put_constants_second(graph: onnx.GraphProto) -> None:
    """constant * convolution becomes convolution * constant, and so on along a chain of such."""
    view = _View(graph)
    scaled: set[str] = set()
    for node in graph.node:
        if node.domain not in STANDARD:
            continue
        if node.op_type == "Conv":
            scaled.add(node.output[0])
        if node.op_type not in ("Mul", "Add"):
            continue
        first, second = node.input
        if first in view.constants and second in scaled:
            node.input[0], node.input[1] = second, first
        if view.constants.intersection(node.input) and scaled.intersection(node.input):
            scaled.add(node.output[0])


def _unlist_weights(graph: onnx.GraphProto) -> None:
    """Weights that a caller could feed but never does become constants."""
    # Not those of a Pad, which only as constants could be folded into a MaxPool.
    padding = {node.input[1] for node in graph.node if node.op_type == "Pad" and len(node.input) > 1}
    weights = edit.initializer_names(graph) - padding
    kept = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(kept)
