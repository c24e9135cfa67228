"""A graph that runs faster: without the redundant nodes of its export, and with the gates of its gradient as products.

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
from onnx import TensorProto, helper, numpy_helper

from auditkit.arrays import Array
from auditkit.graph import edit
from auditkit.graph.gradient.builder import PREFIX

_VARIADIC = frozenset({"Concat", "Sum", "Max", "Min", "Mean"})  # with a single operand they copy it
_FEWEST_PADS = 6  # two for each axis of [N, channels, length]
_SMALL = 64  # numbers in a constant that is read; no list of pads is longer
_STEEP = float(np.float32(3e38))  # close to the largest float32: every normal number above 0 becomes 1
_Producers = dict[str, onnx.NodeProto]


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the same inputs and outputs, and fewer nodes between them."""
    fresh = edit.with_outputs(model)
    _bypass_copies(fresh.graph)
    _fold_pads(fresh.graph)
    _move_constants_second(fresh.graph)
    fresh = edit.with_outputs(fresh)
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
    window, own_pads = attributes["kernel_shape"] * 2, edit.attribute(reader, "pads", [0] * len(pads))
    real = all(size > own + more for size, own, more in zip(window, own_pads, pads, strict=True))
    simple = not attributes.get("ceil_mode") and set(attributes.get("dilations", [1])) == {1}
    return real and simple and len(reader.output) == 1


def _widen(node: onnx.NodeProto, pads: list[int]) -> None:
    """Add pads to a node's own."""
    total = [pad + more for pad, more in zip(edit.attribute(node, "pads", [0] * len(pads)), pads, strict=True)]
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


def gates_as_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the gates of its gradient in the form that runs fastest on CPUs.

    A gradient passes where a Relu or a Clip did not saturate: Where(y > 0, g, 0). On a CPU a product with 0 or 1 takes
    a third to a half of the time of that. Behind a Relu, a HardSigmoid of y that is as steep as floats allow gives 0 or
    1, except for subnormal numbers. Where a gate holds back an infinite gradient, the product is NaN. GPUs keep Where,
    with which they move fewer bytes, and so do written files. The vendor's own nodes are left alone.
    """
    graph, producers = model.graph, edit.producers(model.graph)
    zeros = {tensor.name for tensor in graph.initializer if _is_zero(tensor)}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        ours = node.op_type == "Where" and node.output[0].startswith(PREFIX) and node.input[2] in zeros
        is_gate = ours and _compares_bounds(node.input[0], producers)
        nodes += _product(node, producers[node.input[0]], zeros) if is_gate else [node]
    if len(nodes) == len(graph.node):
        return model
    fresh = edit.copy(model)
    edit.replace(fresh.graph.node, nodes)
    return edit.with_outputs(fresh)  # the runtime would keep unread nodes


def _is_zero(tensor: onnx.TensorProto) -> bool:
    """Whether a constant is a float32 zero of the gradient; CPUs have no HardSigmoid of another type."""
    ours = tensor.name.startswith(PREFIX) and tensor.data_type == TensorProto.FLOAT and not tensor.dims
    return ours and not numpy_helper.to_array(tensor).any()


def _compares_bounds(condition: str, producers: _Producers) -> bool:
    """Whether a condition compares only the results of a Relu or a Clip."""
    comparison = producers.get(condition)
    if comparison is None or comparison.op_type not in ("And", "Greater", "Less"):
        return False
    if comparison.op_type == "And":
        return all(_compares_bounds(name, producers) for name in comparison.input)
    operand = producers.get(comparison.input[0])
    return operand is not None and operand.op_type in ("Relu", "Clip")


def _product(gate: onnx.NodeProto, comparison: onnx.NodeProto, zeros: set[str]) -> list[onnx.NodeProto]:
    condition, grad, _ = gate.input
    (name,) = gate.output
    factor = f"{name}/open"  # 0 or 1
    if comparison.op_type == "Greater" and comparison.input[1] in zeros:
        node = helper.make_node("HardSigmoid", [comparison.input[0]], [factor], name=factor, alpha=_STEEP, beta=0.0)
    else:
        node = helper.make_node("Cast", [condition], [factor], name=factor, to=TensorProto.FLOAT)
    return [node, helper.make_node("Mul", [grad, factor], [name], name=name)]
