"""A graph without the redundant nodes of its export that onnxruntime leaves in.

The runtime's own optimiser does most of the work on every device: it folds constants, Identity, Cast and pairs of
Transpose, BatchNormalization behind a convolution, and a Pad that one plain convolution reads. Version 1.31 leaves the
following, which is done here:

    weights that are also listed as inputs    to the runtime they are variables, and it fuses nothing with variables
    Concat of one tensor, and similar nodes   each is a copy; Identity goes too, so that other rules see through it
    Pad before convolutions                   if they set auto_pad VALID, or if there are several
    Pad with -inf before MaxPool              a copy of the largest tensors there are
    constant * convolution                    it fuses only convolution * constant

Unusual nodes are left alone. Results change by no more than the rounding of another order of summation.

One trap: the runtime folds the zeros of a Pad into a MaxPool that reads it, which is wrong where the data is negative.
A file may contain such a pair; no rule here may bring a Pad and a MaxPool together that were apart.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from auditkit.arrays import Array
from auditkit.graph import edit

_VARIADIC = frozenset({"Concat", "Sum", "Max", "Min", "Mean"})  # with a single operand they copy it
_FEWEST_PADS = 6  # two for each axis of [N, channels, length]
_SMALL = 64  # numbers in a constant that is read; no list of pads is longer


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the same inputs and outputs, and fewer nodes between them."""
    outputs = [value.name for value in model.graph.output]
    fresh = edit.with_outputs(model, outputs)
    _bypass_copies(fresh.graph)
    _fold_pads(fresh.graph)
    _move_constants_second(fresh.graph)
    fresh = edit.with_outputs(fresh, outputs)
    if fresh.ir_version >= edit.FIRST_IR_WITH_CONSTANTS:
        _make_weights_constant(fresh.graph)
    return fresh


class _View:
    """Facts about a graph: its constants, the readers of each tensor, and the names that must stay."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._tensors = edit.constant_tensors(graph)
        self.constants = edit.initializer_names(graph) | self._tensors.keys()
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        self.padded = {node.output[0] for node in graph.node if node.op_type == "Pad"}
        self.fixed = {value.name for value in graph.output}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
            if any(edit.subgraphs(node)):
                self.fixed.update(edit.names_read(node))

    def small(self, name: str) -> Array | None:
        """The values of a small constant, flat; None for any other tensor."""
        tensor = self._tensors.get(name)
        return None if tensor is None or np.prod(tensor.dims) > _SMALL else numpy_helper.to_array(tensor).reshape(-1)


def _input(node: onnx.NodeProto, index: int) -> str:
    return str(node.input[index]) if len(node.input) > index else ""


def _bypass_copies(graph: onnx.GraphProto) -> None:
    """Let the readers of a copy read the original."""
    view = _View(graph)
    originals: dict[str, str] = {}
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = originals.get(name, name)
        if _is_copy(view, node) and node.output[0] not in view.fixed:
            originals[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    edit.replace(graph.node, kept)


def _is_copy(view: _View, node: onnx.NodeProto) -> bool:
    """Whether a node's first output is its first input."""
    if node.domain not in edit.STANDARD_DOMAINS or not node.input:
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type == "Dropout" and len(node.input) == 1:
        return not _reads_mask(view, node)
    if node.input[0] in view.padded:  # a copy that the runtime keeps may be all that separates a Pad from a MaxPool
        return False
    if node.op_type == "Dropout":
        training = view.small(_input(node, 2)) if _input(node, 2) else np.zeros(1, bool)
        return training is not None and not training.any() and not _reads_mask(view, node)
    if node.op_type == "Transpose":
        order = edit.attribute(node, "perm", list[int]())
        return bool(order) and order == sorted(order)
    return node.op_type in _VARIADIC and len(node.input) == 1


def _reads_mask(view: _View, dropout: onnx.NodeProto) -> bool:
    return any(name in view.readers or name in view.fixed for name in dropout.output[1:])


def _fold_pads(graph: onnx.GraphProto) -> None:
    """Turn Pad nodes into pads of their readers, if every reader can take them."""
    view = _View(graph)
    for node in reversed(graph.node):  # of two in a row, the later first
        padding = _constant_pads(view, node)
        if padding is None or node.output[0] in view.fixed:
            continue
        pads, value = padding
        readers = view.readers.get(node.output[0], [])
        if all(reader.input[0] == node.output[0] and _takes(reader, pads, value) for reader in readers):
            for reader in readers:
                _widen(reader, pads)
                reader.input[0] = node.input[0]
            view.readers[node.input[0]] += readers
            view.readers[node.input[0]].remove(node)


def _constant_pads(view: _View, node: onnx.NodeProto) -> tuple[list[int], float] | None:
    """Rows and columns that a Pad adds, in the form of a convolution's pads, and their value; None for other nodes."""
    if node.op_type != "Pad" or node.domain not in edit.STANDARD_DOMAINS:
        return None
    attributes = edit.attributes(node)
    # Attributes before operator set 11, inputs since.
    pads = np.array(attributes["pads"]) if "pads" in attributes else view.small(_input(node, 1))
    value = view.small(_input(node, 2)) if _input(node, 2) else np.array([attributes.get("value", 0.0)])
    if pads is None or value is None or len(value) != 1 or len(pads) < _FEWEST_PADS or len(pads) % 2:
        return None
    if value[0] != 0 and node.input[0] in view.padded:
        return None
    ends = pads.reshape(2, -1)
    pads_other_axes = ends[:, :2].any() or _input(node, 3)  # the fourth input names axes; no known exporter uses it
    if attributes.get("mode", "constant") != "constant" or ends.min() < 0 or pads_other_axes:
        return None
    return [int(number) for number in ends[:, 2:].reshape(-1)], float(value[0])


def _takes(reader: onnx.NodeProto, pads: list[int], value: float) -> bool:
    """Whether a node can add these pads to its first input itself."""
    attributes = edit.attributes(reader)
    auto_pad = attributes.get("auto_pad", "NOTSET")
    explicit = auto_pad == "NOTSET" or (auto_pad == "VALID" and "pads" not in attributes)
    if reader.domain not in edit.STANDARD_DOMAINS or not explicit:
        return False
    if reader.op_type == "Conv":
        return value == 0 and reader.input[0] not in reader.input[1:]
    if reader.op_type != "MaxPool" or value != -np.inf:  # MaxPool's own pads never win, zeros could
        return False
    # Pads smaller than the window leave a real number in each window.
    window, own_pads = attributes["kernel_shape"] * 2, _own_pads(reader, len(pads))
    real = all(size > own + more for size, own, more in zip(window, own_pads, pads, strict=True))
    simple = not attributes.get("ceil_mode") and set(attributes.get("dilations", [1])) == {1}
    return real and simple and len(reader.output) == 1


def _own_pads(node: onnx.NodeProto, count: int) -> list[int]:
    return edit.attribute(node, "pads", [0] * count)


def _widen(node: onnx.NodeProto, pads: list[int]) -> None:
    """Add pads to a node's own."""
    total = [own + more for own, more in zip(_own_pads(node, len(pads)), pads, strict=True)]
    kept = [attribute for attribute in node.attribute if attribute.name not in ("pads", "auto_pad")]
    edit.replace(node.attribute, [*kept, helper.make_attribute("pads", total)])


def _move_constants_second(graph: onnx.GraphProto) -> None:
    """Turn constant * convolution into convolution * constant, also along a chain of such products and sums."""
    view = _View(graph)
    convolved: set[str] = set()
    for node in graph.node:
        if node.domain not in edit.STANDARD_DOMAINS:
            continue
        if node.op_type == "Conv":
            convolved.add(node.output[0])
        if node.op_type not in ("Mul", "Add"):
            continue
        first, second = node.input
        if first in view.constants and second in convolved:
            node.input[0], node.input[1] = second, first
        if view.constants.intersection(node.input) and convolved.intersection(node.input):
            convolved.add(node.output[0])


def _make_weights_constant(graph: onnx.GraphProto) -> None:
    """Take weights off the inputs: a caller could feed them, but never does."""
    # Except those of a Pad: as constants they could be folded into a MaxPool.
    padding = {_input(node, 1) for node in graph.node if node.op_type == "Pad"}
    weights = edit.initializer_names(graph) - padding
    edit.replace(graph.input, [value for value in graph.input if value.name not in weights])
