"""Surgery on ONNX graphs: each function copies a model, changes the copy and returns it."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

# Operators that hand each number on as it is (or regroup them), so that what stands before says what comes out.
PASS_THROUGH = frozenset({"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Dropout"})


def copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """A deep copy without the metadata, from which a runtime could be told to take settings."""
    fresh = onnx.ModelProto()
    fresh.CopyFrom(model)
    del fresh.metadata_props[:]
    return fresh


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Names of the constant weights, dense and sparse."""
    return {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}


def real_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller must feed: old files list their weights as inputs too."""
    weights = initializer_names(graph)
    return [value for value in graph.input if value.name not in weights]


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """The node that makes each tensor."""
    return {name: node for node in graph.node for name in node.output if name}


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Tensors a node reads, those that its subgraphs take from outside included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            inner = {v.name for v in graph.input} | initializer_names(graph) | producers(graph).keys()
            read = {name for child in graph.node for name in names_read(child)} | {v.name for v in graph.output}
            yield from read - inner


def ancestors(graph: onnx.GraphProto, names: Iterable[str]) -> set[str]:
    """All tensors that the named ones are computed from, themselves included."""
    made_by = producers(graph)
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in made_by:
            waiting.extend(names_read(made_by[name]))
    return seen


def with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """The model that computes just the named tensors; nodes that serve other outputs are gone."""
    fresh = copy(model)
    needed = ancestors(fresh.graph, names)
    kept = [node for node in fresh.graph.node if needed.intersection(node.output)]
    del fresh.graph.node[:]
    fresh.graph.node.extend(kept)
    known = {value.name: value for value in (*model.graph.output, *model.graph.value_info)}
    del fresh.graph.output[:]
    # A bare name will do where the file does not say the type: the runtime infers it.
    fresh.graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    return fresh


def with_dims(model: onnx.ModelProto, input_name: str, dims: list[int | str]) -> onnx.ModelProto:
    """The model with another declared input shape; shapes noted further on are forgotten."""
    fresh = copy(model)
    for value in fresh.graph.input:
        if value.name == input_name:
            del value.type.tensor_type.shape.dim[:]
            for dim in dims:
                if isinstance(dim, int):
                    value.type.tensor_type.shape.dim.add(dim_value=dim)
                else:
                    value.type.tensor_type.shape.dim.add(dim_param=dim)
    del fresh.graph.value_info[:]
    for value in fresh.graph.output:
        value.type.tensor_type.ClearField("shape")
    return fresh


def with_constant(model: onnx.ModelProto, name: str, value: "np.ndarray[Any, Any]") -> onnx.ModelProto:
    """The model with an input turned into a constant."""
    fresh = copy(model)
    kept = [entry for entry in fresh.graph.input if entry.name != name]
    del fresh.graph.input[:]
    fresh.graph.input.extend(kept)
    fresh.graph.initializer.append(numpy_helper.from_array(value, name))
    return fresh


def with_free_batch(model: onnx.ModelProto, input_name: str, own_batch: int) -> onnx.ModelProto:
    """The model with Reshapes on the image's path that spell out the batch size made to follow the input instead.

    A target such as [1, 197, 192] becomes [-1, 197, 192], and [1, -1] becomes [0, -1]. Whether that is right for
    this graph is not known here: the caller must compare rows before it trusts the result.
    """
    fresh = copy(model)
    reached = _descendants(fresh.graph, input_name)
    constants = {t.name: t for t in fresh.graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in fresh.graph.node if _is_tensor_constant(n)}
    for index, node in enumerate(list(fresh.graph.node)):
        if node.op_type != "Reshape" or node.input[0] not in reached or node.input[1] not in constants:
            continue
        target = numpy_helper.to_array(constants[node.input[1]]).astype(np.int64).reshape(-1)
        freed = _freed_target(target.tolist(), own_batch)
        if freed is not None:
            name = f"auditkit_free_shape_{index}"
            fresh.graph.initializer.append(numpy_helper.from_array(np.array(freed, np.int64), name))
            node.input[1] = name
    return fresh


def _freed_target(target: list[int], own_batch: int) -> list[int] | None:
    if not target or target[0] <= 0 or target[0] % own_batch:
        return None
    if -1 not in target:
        return [-1, *target[1:]]
    return [0, *target[1:]] if target[0] == own_batch else None


def _is_tensor_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value"


def _descendants(graph: onnx.GraphProto, name: str) -> set[str]:
    reached = {name}
    for node in graph.node:
        if reached.intersection(node.input):
            reached.update(node.output)
    return reached
