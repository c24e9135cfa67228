"""Shapes found by running: what a file says of them is often missing or wrong.

The model is run at two batch sizes with the shape of every tensor as an output. A dimension that stays is fixed, one
that changes follows the batch. Whole numbers that do not depend on the image, such as the arithmetic of shapes is made
of, are kept where both runs agree.
"""

import itertools
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, shape_inference

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.graph.gradient import Facts
from auditkit.model.session import Session, Settings

_WHOLE = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
_MOST_NUMBERS = 4096  # no operand of shape arithmetic is larger


def probe(model: onnx.ModelProto, weights: Mapping[str, Array], feeds: list[dict[str, Array]]) -> Facts:
    """What all tensors of a model look like; `feeds` are two batches of different size, or one where that is fixed."""
    kinds, lists = _kinds(model)
    tensors = [name for name in _computed(model.graph) if name not in lists]
    scales = {name for node in model.graph.node if node.op_type == "Resize" for name in node.input[1:]}
    steady = _independent(model.graph, set(feeds[0])) & ({n for n in tensors if kinds.get(n) in _WHOLE} | scales)
    with_shapes, shape_of = _with_shapes(model, tensors, sorted(steady))
    session = Session(with_shapes, Settings(device="cpu", arena=False), weights)
    runs = [dict(zip(session.outputs, session.run(feed), strict=True)) for feed in feeds]
    by_run = {name: [tuple(run[shape].tolist()) for run in runs] for name, shape in shape_of.items()}
    by_run |= {name: [feed[name].shape for feed in feeds] for name in feeds[0]}
    shapes = {name: _merged(name, several) for name, several in by_run.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    return Facts(shapes, kinds, _agreed([{name: run[name] for name in steady} for run in runs]))


def conditions(model: onnx.ModelProto, weights: Mapping[str, Array], feeds: list[dict[str, Array]]) -> dict[str, bool]:
    """Those conditions of the graph's If nodes that come out the same whatever is fed, and how."""
    names = {node.input[0] for node in model.graph.node if node.op_type == "If"}
    steady = sorted(_independent(model.graph, set(feeds[0])) & names)
    if not steady:
        return {}
    session = Session(edit.with_outputs(model, steady), Settings(device="cpu", arena=False), weights)
    runs = [session.run({name: feed[name] for name in session.inputs}) for feed in feeds]
    agreed = _agreed([dict(zip(steady, run, strict=True)) for run in runs])
    return {name: bool(value) for name, value in agreed.items()}


def _kinds(model: onnx.ModelProto) -> tuple[dict[str, int], set[str]]:
    """Element types of all tensors; and what is no tensor but a list of some, which has no shape."""
    graph = shape_inference.infer_shapes(model).graph
    values = (*graph.value_info, *graph.input, *graph.output)
    kinds = {value.name: value.type.tensor_type.elem_type for value in values if value.type.tensor_type.elem_type}
    lists = {value.name for value in values if value.type.WhichOneof("value") not in (None, "tensor_type")}
    return kinds | {tensor.name: tensor.data_type for tensor in graph.initializer}, lists


def _independent(graph: onnx.GraphProto, fed: set[str]) -> set[str]:
    """Tensors that do not depend on what is fed, but for its shape."""
    nodes = (node for node in graph.node if node.op_type not in ("Shape", "Size"))
    return set(_computed(graph)) - edit.descendants(nodes, fed)


def _computed(graph: onnx.GraphProto) -> list[str]:
    return [name for name in itertools.chain.from_iterable(node.output for node in graph.node) if name]


def _with_shapes(model: onnx.ModelProto, tensors: list[str], also: list[str]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The model that gives shapes in place of tensors, so that no tensor is held longer than it is needed."""
    fresh = edit.copy(model)
    builder = edit.Builder(fresh.graph)
    shape_of = {name: builder.node("Shape", [name]) for name in tensors}
    builder.into(fresh.graph)
    del fresh.graph.output[:]
    fresh.graph.output.extend(onnx.ValueInfoProto(name=name) for name in [*shape_of.values(), *also])
    return fresh, shape_of


def _merged(name: str, shapes: list[tuple[int, ...]]) -> tuple[int | None, ...]:
    if len({len(shape) for shape in shapes}) > 1:
        reason = f"the number of axes of '{name}' changes with the batch size, which gradients cannot follow"
        raise BadInput(f"{reason}. Use --gradient differences.")
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))


def _agreed(runs: list[dict[str, Array]]) -> dict[str, Array]:
    small = {name: value for name, value in runs[0].items() if value.size <= _MOST_NUMBERS}
    return {name: value for name, value in small.items() if all(np.array_equal(value, run[name]) for run in runs)}
