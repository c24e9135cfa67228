"""Surgery on ONNX graphs: each `with_` function copies a model, changes the copy and returns it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference

from auditkit.arrays import Array
from auditkit.errors import BadInput

T = TypeVar("T")

Types = dict[str, onnx.TypeProto.Tensor]  # of tensors, by name
Infer = Callable[[onnx.ModelProto], Types]

STANDARD_DOMAINS = ("", "ai.onnx")
FIRST_IR_WITH_CONSTANTS = 4  # before it, every initializer had to be listed as an input too
_SMALL_BYTES = 4096  # of a weight that may be a shape
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


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all graphs within it."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs(inner)


def names_read(*nodes: onnx.NodeProto) -> set[str]:
    """Tensors that nodes read, including those that their subgraphs take from outside."""
    names: set[str] = set()
    for node in nodes:
        names.update(filter(None, node.input))
        for graph in subgraphs(node):
            read = names_read(*graph.node) | {value.name for value in graph.output}
            names |= read - {value.name for value in graph.input} - initializer_names(graph) - producers(graph).keys()
    return names


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
    """Every tensor name in a graph and the graphs within it."""
    names: set[str] = set()
    for inner in graphs(graph):
        names |= {value.name for value in (*inner.input, *inner.output)} | initializer_names(inner)
        names.update(*(node.input for node in inner.node), *(node.output for node in inner.node))
    return names


def refuse_names(graph: onnx.GraphProto, reserved: Iterable[str]) -> None:
    """Refuse a graph that uses a name which auditkit is about to add."""
    clashes = sorted(all_names(graph).intersection(reserved))
    if clashes:
        message = f"the model already has a tensor named '{clashes[0]}', a name that auditkit adds itself."
        raise BadInput(f"{message} Ask the vendor for an export with another name.")


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """The node that computes each tensor."""
    return {name: node for node in graph.node for name in node.output if name}


def ancestors(graph: onnx.GraphProto, names: Iterable[str]) -> set[str]:
    """All tensors that the named ones are computed from, including themselves."""
    producer: dict[str, int] = {}
    for position, node in enumerate(graph.node):
        producer.update(dict.fromkeys(filter(None, node.output), position))
    visited: set[str] = set()
    walked: set[int] = set()  # nodes, which may have thousands of outputs and a large body each
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        if name in producer and producer[name] not in walked:
            walked.add(producer[name])
            pending.extend(names_read(graph.node[producer[name]]))
    return visited


def descendants(nodes: Iterable[onnx.NodeProto], names: Iterable[str]) -> set[str]:
    """All tensors that nodes, in their order, compute from the named ones, including themselves."""
    reached = set(names)
    for node in nodes:
        if not reached.isdisjoint(names_read(node)):
            reached.update(filter(None, node.output))
    return reached


def shape(kind: onnx.TypeProto.Tensor) -> list[int | None] | None:
    """The dimensions of a tensor's type, None where one is open; None if the type does not say how many there are."""
    if not kind.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]


def inferred_types(model: onnx.ModelProto) -> Types:
    """Element types and shapes of tensors, as far as they are declared or can be inferred."""
    return declared_types(shape_inference.infer_shapes(model).graph)


def declared_types(graph: onnx.GraphProto) -> Types:
    """Element types and shapes of tensors, as far as they are declared."""
    types = {value.name: value.type for value in (*graph.value_info, *graph.input, *graph.output)}
    types |= {tensor.name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims) for tensor in graph.initializer}
    return {name: kind.tensor_type for name, kind in types.items()}


def outline(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the values of large weights, for passes that look at types and shapes alone."""
    fresh = onnx.ModelProto(ir_version=model.ir_version)
    fresh.opset_import.extend(model.opset_import)
    fresh.functions.extend(model.functions)
    graph, origin = fresh.graph, model.graph
    graph.name = origin.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(graph, field).extend(getattr(origin, field))
    for tensor in origin.initializer:
        if tensor.ByteSize() <= _SMALL_BYTES:
            graph.initializer.append(tensor)
        else:
            graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return fresh


# Editing models


def with_outputs(model: onnx.ModelProto, names: list[str] | None = None) -> onnx.ModelProto:
    """The model that computes only the named tensors, or its outputs, without nodes that serve anything else."""
    fresh = copy(model)
    graph = fresh.graph
    names = [value.name for value in graph.output] if names is None else names
    drop_unneeded(graph, names)
    declared = {value.name: value for value in (*model.graph.output, *model.graph.value_info)}
    # Where the file does not declare a type, a bare name is enough: the runtime infers it.
    replace(graph.output, [declared.get(name, onnx.ValueInfoProto(name=name)) for name in names])
    return fresh


def drop_unneeded(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Drop from a graph all nodes and weights that the named tensors are not computed from."""
    needed = ancestors(graph, names)
    drop(graph.node, lambda node: needed.isdisjoint(node.output))
    # Their weights go too, along with the inputs that old files list for them: the runtime drops unused weights, and
    # then would not find those that are passed to it as arrays.
    unused = {tensor.name for tensor in graph.initializer} - needed
    drop(graph.initializer, lambda tensor: tensor.name in unused)
    drop(graph.input, lambda value: value.name in unused)


def drop(entries: list[T], is_unwanted: Callable[[T], bool]) -> None:
    """Drop entries of a repeated field of messages; the others are neither copied nor reordered."""
    entries.sort(key=is_unwanted)  # which keeps the order of the others; each deletion would move all that follow
    kept = len(entries)
    while kept > 0 and is_unwanted(entries[kept - 1]):
        kept -= 1
    del entries[kept:]


def without_inputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """The model without the named inputs."""
    fresh = copy(model)
    replace(fresh.graph.input, [value for value in fresh.graph.input if value.name not in set(names)])
    return fresh


def without_unread(model: onnx.ModelProto, kept: str) -> onnx.ModelProto:
    """The model without inputs that no node reads, such as a seed for a gradient that has been cut off."""
    read = names_read(*model.graph.node) | {value.name for value in model.graph.output} | {kept}
    return without_inputs(model, [value.name for value in model.graph.input if value.name not in read])


def with_constant(model: onnx.ModelProto, name: str, value: Array) -> onnx.ModelProto:
    """The model with an input turned into a constant."""
    fresh = without_inputs(model, [name])
    fresh.graph.initializer.append(numpy_helper.from_array(value, name))
    return fresh


def with_input_type(model: onnx.ModelProto, input_name: str, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """The model with another element type declared for an input: an input of bytes as float takes fractions too."""
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


# Building new nodes


class Builder:
    """Collects nodes and constants for a graph, under names that it does not use yet; `into` appends them to it."""

    def __init__(self, graph: onnx.GraphProto, prefix: str = "auditkit") -> None:
        self.prefix = prefix
        self.taken = all_names(graph)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._constant_names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._counts: Counter[str] = Counter()

    def name(self, stem: str) -> str:
        """A new name: the prefix, the stem and the first free number."""
        while True:
            self._counts[stem] += 1
            name = f"{self.prefix}_{stem}_{self._counts[stem]}"
            if name not in self.taken:
                self.taken.add(name)
                return name

    def constant(self, values: ArrayLike, dtype: DTypeLike = np.int64) -> str:
        """Name of a constant; equal constants share one name."""
        array = np.asarray(values, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constant_names:
            self._constant_names[key] = self.name("constant")
            self.constants.append(numpy_helper.from_array(array, self._constant_names[key]))
        return self._constant_names[key]

    def node(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Name of the output of a new node."""
        output = output or self.name(operator.lower())
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def into(self, graph: onnx.GraphProto) -> None:
        """Append the collected nodes and constants to the graph."""
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.constants)
