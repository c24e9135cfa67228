"""Surgery on ONNX graphs: each `with_` function copies a model, changes the copy and returns it."""

from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, shape_inference

from auditkit.arrays import Array
from auditkit.errors import BadInput

T = TypeVar("T")

STANDARD_DOMAINS = ("", "ai.onnx")
FIRST_IR_WITH_CONSTANTS = 4  # before it, every initializer had to be listed as an input too
# Operators that pass values on unchanged or only regroup them.
PASS_THROUGH = frozenset({"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Dropout"})


def copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """A deep copy without the metadata, from which a runtime could take settings."""
    fresh = onnx.ModelProto()
    fresh.CopyFrom(model)
    del fresh.metadata_props[:]
    return fresh


def replace(entries: MutableSequence[T], replacement: Iterable[T]) -> None:
    """Replace all entries of a repeated field; the new ones may come from the field itself."""
    replacement = list(replacement)
    del entries[:]
    entries.extend(replacement)


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions of its own."""
    return inliner.inline_local_functions(model) if model.functions else model


def opset(model: onnx.ModelProto) -> int:
    """Version of the standard operators."""
    return max((entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS), default=0)


# Reading nodes and graphs


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node by name, with text as str."""
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: v.decode(errors="replace") if isinstance(v, bytes) else v for name, v in values.items()}


def attribute(node: onnx.NodeProto, name: str, default: T) -> T:
    """An attribute of a node, or the standard's default for it."""
    value: T = attributes(node).get(name, default)
    return value


def is_tensor_constant(node: onnx.NodeProto) -> bool:
    """Whether a node is a Constant that carries a tensor."""
    return node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value"


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The branches or the body of an If, a Loop or a Scan."""
    for entry in node.attribute:
        if entry.HasField("g"):
            yield entry.g
        yield from entry.graphs


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Tensors that a node reads, including those that its subgraphs take from outside."""
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        read = {value.name for value in graph.output}
        for child in graph.node:
            read.update(names_read(child))
        yield from read - {value.name for value in graph.input} - initializer_names(graph) - producers(graph).keys()


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Names of the constant weights, dense and sparse."""
    return {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}


def constant_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Constants whose values are inside the graph; weights with external data are left out."""
    inside = onnx.TensorProto.DEFAULT
    tensors = {tensor.name: tensor for tensor in graph.initializer if tensor.data_location == inside}
    return tensors | {node.output[0]: node.attribute[0].t for node in graph.node if is_tensor_constant(node)}


def real_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller must feed; old files list their weights as inputs too."""
    weights = initializer_names(graph)
    return [value for value in graph.input if value.name not in weights]


def all_names(graph: onnx.GraphProto) -> set[str]:
    """Every tensor name in a graph and its subgraphs."""
    names = {value.name for value in (*graph.input, *graph.output)} | initializer_names(graph)
    for node in graph.node:
        names.update(node.input, node.output)
        for inner in subgraphs(node):
            names |= all_names(inner)
    return names


def refuse_names(graph: onnx.GraphProto, reserved: Iterable[str]) -> None:
    """Refuse a graph that uses a name which auditkit is about to add."""
    clashes = sorted(all_names(graph).intersection(reserved))
    if clashes:
        raise BadInput(
            f"the model already has a tensor named '{clashes[0]}', a name that auditkit adds itself. "
            f"Ask the vendor for an export with another name."
        )


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """The node that computes each tensor."""
    return {name: node for node in graph.node for name in node.output if name}


def ancestors(graph: onnx.GraphProto, names: Iterable[str]) -> set[str]:
    """All tensors that the named ones are computed from, including themselves."""
    producer = producers(graph)
    visited: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        if name in producer:
            pending.extend(names_read(producer[name]))
    return visited


def _descendants(graph: onnx.GraphProto, name: str) -> set[str]:
    descendants = {name}
    for node in graph.node:
        if descendants.intersection(node.input):
            descendants.update(node.output)
    return descendants


# Editing models


def with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """The model that computes only the named tensors, without nodes that serve other outputs."""
    fresh = copy(model)
    graph = fresh.graph
    needed = ancestors(graph, names)
    replace(graph.node, [node for node in graph.node if needed.intersection(node.output)])
    # Their weights go too, along with the inputs that old files list for them: the runtime drops unused weights, and
    # then would not find those that are passed to it as arrays.
    unused = {tensor.name for tensor in graph.initializer} - needed
    for entries in (graph.initializer, graph.input):
        for index in reversed(range(len(entries))):
            if entries[index].name in unused:
                del entries[index]
    declared = {value.name: value for value in (*model.graph.output, *model.graph.value_info)}
    # Where the file does not declare a type, a bare name is enough: the runtime infers it.
    replace(graph.output, [declared.get(name, onnx.ValueInfoProto(name=name)) for name in names])
    return fresh


def without_inputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """The model without the named inputs."""
    fresh = copy(model)
    replace(fresh.graph.input, [value for value in fresh.graph.input if value.name not in set(names)])
    return fresh


def without_unread(model: onnx.ModelProto, kept: str) -> onnx.ModelProto:
    """The model without inputs that no node reads, such as a seed for a gradient that has been cut off."""
    read = {value.name for value in model.graph.output} | {kept}
    for node in model.graph.node:
        read.update(names_read(node))
    return without_inputs(model, [value.name for value in model.graph.input if value.name not in read])


def with_constant(model: onnx.ModelProto, name: str, value: Array) -> onnx.ModelProto:
    """The model with an input turned into a constant."""
    fresh = without_inputs(model, [name])
    fresh.graph.initializer.append(numpy_helper.from_array(value, name))
    return fresh


def with_input_type(model: onnx.ModelProto, input_name: str, kind: int) -> onnx.ModelProto:
    """The model with another element type declared for an input."""
    fresh = copy(model)
    for value in fresh.graph.input:
        if value.name == input_name:
            value.type.tensor_type.elem_type = kind
    return fresh


def with_open_dims(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with input dimensions of 0 or -1 left open, as their writers meant; the runtime refuses 0."""
    fresh = copy(model)
    for value in fresh.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value <= 0:
                dim.ClearField("dim_value")
    return fresh


def with_dims(model: onnx.ModelProto, input_name: str, dims: list[int | str]) -> onnx.ModelProto:
    """The model with another declared input shape, and without the shapes declared for other tensors."""
    fresh = copy(model)
    for value in fresh.graph.input:
        if value.name == input_name:
            kind = value.type.tensor_type.elem_type
            value.type.CopyFrom(helper.make_tensor_type_proto(kind, dims))
    del fresh.graph.value_info[:]
    for value in fresh.graph.output:
        if value.HasField("type"):  # touching the shape of a bare name would declare a tensor of no type
            value.type.tensor_type.ClearField("shape")
    return fresh


# A free batch size


def with_free_batch(model: onnx.ModelProto, input_name: str, own_batch: int) -> onnx.ModelProto:
    """The model with Reshapes of the image's features made to follow the batch size of the input.

    A target such as [1, 197, 192] becomes [-1, 197, 192], and [1, -1] becomes [0, -1]; a constant that is concatenated
    to the features, such as a class token, is repeated for each image. Whether that suits this graph is not known here:
    the caller must compare rows before it trusts the result.
    """
    fresh = copy(model)
    features = _descendants(fresh.graph, input_name)
    _repeat_tokens(fresh, features)
    constants = constant_tensors(fresh.graph)
    for index, node in enumerate(fresh.graph.node):
        if node.op_type != "Reshape" or node.input[0] not in features or node.input[1] not in constants:
            continue
        target = numpy_helper.to_array(constants[node.input[1]]).astype(np.int64).reshape(-1)
        free = _free_target(target.tolist(), own_batch)
        if free is None:
            continue
        node.input[1] = f"auditkit_free_shape_{index}"
        fresh.graph.initializer.append(numpy_helper.from_array(np.array(free, np.int64), node.input[1]))
        if free[0] == 0:  # with allowzero, which torch always sets, 0 would not mean "as in the input"
            replace(node.attribute, [entry for entry in node.attribute if entry.name != "allowzero"])
    return fresh


def _free_target(target: list[int], own_batch: int) -> list[int] | None:
    """The target of a Reshape with its batch size left open; None where it holds none."""
    if not target or target[0] <= 0 or target[0] % own_batch:
        return None
    if -1 not in target:
        return [-1, *target[1:]]
    return [0, *target[1:]] if target[0] == own_batch else None


def _repeat_tokens(model: onnx.ModelProto, features: set[str]) -> None:
    """Repeat constants of the export's batch size that a Concat joins to features of the image."""
    graph = model.graph
    concats = [node for node in graph.node if node.op_type == "Concat" and attribute(node, "axis", 0) != 0]
    mixed = [node for node in concats if not features.isdisjoint(node.input) and not features.issuperset(node.input)]
    if not mixed:
        return
    inferred = shape_inference.infer_shapes(model).graph
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in inferred.value_info}
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "auditkit_first"))
    outputs = {node.output[0] for node in mixed}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.output[0] in outputs:
            nodes += _repeated_tokens(graph, node, features, ranks)
        nodes.append(node)
    replace(graph.node, nodes)


def _repeated_tokens(
    graph: onnx.GraphProto, concat: onnx.NodeProto, features: set[str], ranks: dict[str, int]
) -> list[onnx.NodeProto]:
    """Nodes that repeat the constants of a Concat for each image; the Concat reads their results."""
    rank = next((ranks[name] for name in concat.input if ranks.get(name)), 0)
    if rank < 2 or attribute(concat, "axis", 0) % rank == 0:
        return []
    feature = next(name for name in concat.input if name in features)
    nodes: list[onnx.NodeProto] = []
    for index, name in enumerate(concat.input):
        if name in features:
            continue
        new = f"auditkit_spread_{concat.output[0]}_{index}"
        graph.initializer.append(numpy_helper.from_array(np.ones(rank - 1, np.int64), f"{new}_ones"))
        nodes += [
            helper.make_node("Gather", [name, "auditkit_first"], [f"{new}_one"], axis=0),
            helper.make_node("Shape", [feature], [f"{new}_shape"]),
            helper.make_node("Gather", [f"{new}_shape", "auditkit_first"], [f"{new}_rows"], axis=0),
            helper.make_node("Concat", [f"{new}_rows", f"{new}_ones"], [f"{new}_target"], axis=0),
            helper.make_node("Expand", [f"{new}_one", f"{new}_target"], [new]),
        ]
        concat.input[index] = new
    return nodes
