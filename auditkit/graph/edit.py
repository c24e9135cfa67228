"""Surgery on ONNX graphs: each function copies a model, changes the copy and returns it."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

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


def all_names(graph: onnx.GraphProto) -> set[str]:
    """Every tensor name that a graph or a graph within it uses."""
    found = {value.name for value in (*graph.input, *graph.output)} | initializer_names(graph)
    for node in graph.node:
        found.update(node.input, node.output)
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                found |= all_names(inner)
    return found


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """The node that makes each tensor."""
    return {name: node for node in graph.node for name in node.output if name}


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Tensors a node reads, those that its subgraphs take from outside included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
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
    # Weights of the nodes that are gone go too, with the inputs as which old files list them: the runtime drops
    # them, and would then not find those that are handed to it as arrays.
    unused = {tensor.name for tensor in fresh.graph.initializer} - needed
    for entries in (fresh.graph.initializer, fresh.graph.input):
        for index in reversed(range(len(entries))):
            if entries[index].name in unused:
                del entries[index]
    known = {value.name: value for value in (*model.graph.output, *model.graph.value_info)}
    del fresh.graph.output[:]
    # A bare name will do where the file does not say the type: the runtime infers it.
    fresh.graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    return fresh


def without_unread(model: onnx.ModelProto, kept: str) -> onnx.ModelProto:
    """The model without inputs that nothing reads, such as a seed for a gradient that has been cut off."""
    read = {name for node in model.graph.node for name in names_read(node)} | {v.name for v in model.graph.output}
    fresh = copy(model)
    inputs = [value for value in fresh.graph.input if value.name in read or value.name == kept]
    del fresh.graph.input[:]
    fresh.graph.input.extend(inputs)
    return fresh


def with_open_dims(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with input dimensions written as 0 or -1 left open, as their writers meant; the runtime refuses 0."""
    fresh = copy(model)
    for value in fresh.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value <= 0:
                dim.ClearField("dim_value")
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
        if value.HasField("type"):  # touching the shape of a bare name would declare a tensor of no type
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

    A target such as [1, 197, 192] becomes [-1, 197, 192], and [1, -1] becomes [0, -1]; a constant that is joined to the
    image's features, such as a class token, is repeated for each image. Whether that is right for this graph is not
    known here: the caller must compare rows before it trusts the result.
    """
    fresh = copy(model)
    reached = _descendants(fresh.graph, input_name)
    _spread_tokens(fresh, reached)
    # The bytes of a weight held beside the graph are not here to be read, and no shape is that large.
    inside = onnx.TensorProto.DEFAULT
    constants = {t.name: t for t in fresh.graph.initializer if t.data_location == inside}
    constants |= {n.output[0]: n.attribute[0].t for n in fresh.graph.node if is_tensor_constant(n)}
    for index, node in enumerate(list(fresh.graph.node)):
        if node.op_type != "Reshape" or node.input[0] not in reached or node.input[1] not in constants:
            continue
        target = numpy_helper.to_array(constants[node.input[1]]).astype(np.int64).reshape(-1)
        freed = _freed_target(target.tolist(), own_batch)
        if freed is not None:
            name = f"auditkit_free_shape_{index}"
            fresh.graph.initializer.append(numpy_helper.from_array(np.array(freed, np.int64), name))
            node.input[1] = name
            if freed[0] == 0:  # with allowzero, which torch always sets, 0 would not mean "as in the input"
                kept = [attribute for attribute in node.attribute if attribute.name != "allowzero"]
                del node.attribute[:]
                node.attribute.extend(kept)
    return fresh


def _spread_tokens(model: onnx.ModelProto, reached: set[str]) -> None:
    """Repeat constants of the export's batch size that a Concat joins to features of the image."""
    graph = model.graph
    joins = [(n, next((a.i for a in n.attribute if a.name == "axis"), 0)) for n in graph.node if n.op_type == "Concat"]
    joins = [(n, axis) for n, axis in joins if axis != 0 and any(name in reached for name in n.input)]
    if not any(name not in reached for node, _ in joins for name in node.input):
        return
    inferred = shape_inference.infer_shapes(model).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in inferred.value_info}
    ranks |= {t.name: len(t.dims) for t in graph.initializer}
    zero = "auditkit_first"
    graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), zero))
    for node, axis in joins:
        features = next(name for name in node.input if name in reached)
        rank = next((ranks[name] for name in node.input if ranks.get(name)), 0)
        for index, name in enumerate(node.input):
            if name in reached or rank < 2 or axis % rank == 0:
                continue
            new = f"auditkit_spread_{node.output[0]}_{index}"
            graph.initializer.append(numpy_helper.from_array(np.ones(rank - 1, np.int64), f"{new}_ones"))
            added = [
                helper.make_node("Gather", [name, zero], [f"{new}_one"], axis=0),
                helper.make_node("Shape", [features], [f"{new}_shape"]),
                helper.make_node("Gather", [f"{new}_shape", zero], [f"{new}_rows"], axis=0),
                helper.make_node("Concat", [f"{new}_rows", f"{new}_ones"], [f"{new}_target"], axis=0),
                helper.make_node("Expand", [f"{new}_one", f"{new}_target"], [new]),
            ]
            position = next(i for i, n in enumerate(graph.node) if n.output[0] == node.output[0])
            for offset, extra in enumerate(added):
                graph.node.insert(position + offset, extra)
            graph.node[position + len(added)].input[index] = new


def _freed_target(target: list[int], own_batch: int) -> list[int] | None:
    if not target or target[0] <= 0 or target[0] % own_batch:
        return None
    if -1 not in target:
        return [-1, *target[1:]]
    return [0, *target[1:]] if target[0] == own_batch else None


def is_tensor_constant(node: onnx.NodeProto) -> bool:
    """Whether a node is a Constant that carries a tensor."""
    return node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value"


def _descendants(graph: onnx.GraphProto, name: str) -> set[str]:
    reached = {name}
    for node in graph.node:
        if reached.intersection(node.input):
            reached.update(node.output)
    return reached
