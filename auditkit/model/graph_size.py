"""Limits on the size of a graph: names, numbers, nodes and calls of functions, counted before any is expanded.

A few bytes of a file can stand for any number of nodes, since functions may call functions. They are
counted on the graph of calls, in time that is linear in the file.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import onnx

from auditkit.errors import BadInput

Graph = onnx.GraphProto | onnx.FunctionProto
_Key = tuple[str, str, str]  # domain, name and overload of a function

# Classifiers in use have hundreds to a few thousand nodes and weights, and names of some hundred
# characters. The runtime takes seconds to open a graph with as many nodes as are allowed here.
_MOST_NODES = 20_000  # with functions in place of their calls, and bodies of If, Loop and Scan
_MOST_WEIGHTS = 20_000
_MOST_DECLARED = 1_000  # outputs, and inputs that are no weights
_MOST_RESULTS = 100  # of an If, Loop or Scan; the runtime walks the bodies for each of them
_MOST_TYPES = 100_000  # types that are declared for other tensors
_LONGEST_NAME = 4_096  # characters
_MOST_NUMBERS = 2**22  # in attributes that are lists
_MOST_TEXT = 2**26  # bytes of all that is no tensor
_MOST_CALLS = 32  # functions within functions
_MOST_COPIED = 2**28  # bytes that putting functions in place of their calls may add
_REMEDY = "no image classifier needs that; refused."


@dataclass(frozen=True)
class _Expanded:
    """A graph with functions put in place of their calls."""

    nodes: int
    bytes: int
    calls: int  # how deep they are nested


def graphs_from(outermost: Sequence[Graph]) -> Iterator[tuple[int, Graph]]:
    """Graphs and those within them, each with its depth, outermost first."""
    level = list(outermost)
    depth = 0
    while level:
        yield from ((depth, graph) for graph in level)
        attributes = chain.from_iterable(map(_attributes, level))
        level = list(chain.from_iterable(map(_graphs_of, attributes)))
        depth += 1


def _attributes(graph: Graph) -> Iterator[onnx.AttributeProto]:
    """The attributes of a graph's nodes, and the defaults of those of a function."""
    for node in graph.node:
        yield from node.attribute
    if isinstance(graph, onnx.FunctionProto):
        yield from graph.attribute_proto


def _graphs_of(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def refuse_large(proto: onnx.ModelProto, outermost: Sequence[Graph], name: str) -> None:
    """Refuse a model with more of anything than a classifier needs."""
    nodes = weights = types = tensor_bytes = numbers = 0
    for _, graph in graphs_from(outermost):
        nodes += len(graph.node)
        types += len(graph.value_info)
        if isinstance(graph, onnx.GraphProto):
            weights += len(graph.initializer) + len(graph.sparse_initializer)
        _check(name, nodes, _MOST_NODES, "nodes")
        _check(name, weights, _MOST_WEIGHTS, "weights")
        _check(name, types, _MOST_TYPES, "declared types")
        _check_names(graph, name)
        results = max((len(node.output) for node in graph.node if _has_bodies(node)), default=0)
        _check(name, results, _MOST_RESULTS, "results of an If, Loop or Scan")
        if isinstance(graph, onnx.GraphProto):
            tensor_bytes += sum(tensor.ByteSize() for tensor in graph.initializer)
            tensor_bytes += sum(tensor.ByteSize() for tensor in graph.sparse_initializer)
        for attribute in _attributes(graph):
            numbers += len(attribute.ints) + len(attribute.floats)
            if attribute.HasField("t"):
                tensor_bytes += attribute.t.ByteSize()
            tensor_bytes += sum(tensor.ByteSize() for tensor in attribute.tensors)
        _check(name, numbers, _MOST_NUMBERS, "numbers in attributes")
    weight_names = {tensor.name for tensor in proto.graph.initializer}
    _check(
        name,
        sum(value.name not in weight_names for value in proto.graph.input),
        _MOST_DECLARED,
        "inputs",
    )
    _check(name, len(proto.graph.output), _MOST_DECLARED, "outputs")
    _check(name, proto.ByteSize() - tensor_bytes, _MOST_TEXT, "bytes besides its tensors")


def _has_bodies(node: onnx.NodeProto) -> bool:
    return any(chain.from_iterable(map(_graphs_of, node.attribute)))


def _check(name: str, count: int, most: int, what: str) -> None:
    if count > most:
        raise BadInput(f"{name} has {count:,} {what}, more than {most:,}; {_REMEDY}")


def _check_names(graph: Graph, name: str) -> None:
    longest = max(map(len, _names(graph)), default=0)
    if longest > _LONGEST_NAME:
        reason = f"has a name of {longest:,} characters, more than {_LONGEST_NAME:,}"
        raise BadInput(f"{name} {reason}; {_REMEDY}")


def _names(graph: Graph) -> Iterator[str]:
    yield graph.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    if isinstance(graph, onnx.GraphProto):
        for entries in (graph.initializer, graph.input, graph.output, graph.value_info):
            yield from (entry.name for entry in entries)


def refuse_expanded(proto: onnx.ModelProto, name: str) -> None:
    """Refuse functions that call themselves, are nested deeply or are too large in place of calls."""
    bodies = _by_key(proto.functions)
    sizes: dict[_Key, _Expanded] = {}

    def expanded(graph: Graph, callers: tuple[_Key, ...]) -> _Expanded:
        """The size of a graph, each function being looked at once."""
        if len(callers) > _MOST_CALLS:
            raise BadInput(f"{name} nests functions more than {_MOST_CALLS} deep; {_REMEDY}")
        total = _Expanded(0, graph.ByteSize(), 0)
        for key, count in _calls(graph, bodies).items():
            if key in callers:
                reason = f"the function '{key[1]}' calls itself"
                raise BadInput(f"{name}: {reason}; ask the vendor for a proper export.")
            if key not in sizes:
                sizes[key] = expanded(bodies[key], (*callers, key))
            called = sizes[key]
            total = _Expanded(
                total.nodes + count * called.nodes,
                total.bytes + count * called.bytes,
                max(total.calls, called.calls + 1),
            )
        nodes = sum(len(inner.node) for _, inner in graphs_from([graph]))
        return _Expanded(total.nodes + nodes, total.bytes, total.calls)

    whole = expanded(proto.graph, ())
    if whole.calls > _MOST_CALLS:
        raise BadInput(f"{name} nests functions more than {_MOST_CALLS} deep; {_REMEDY}")
    replaced = "once its functions are put in place of their calls"
    _check(name, whole.nodes, _MOST_NODES, f"nodes {replaced}")
    added = whole.bytes - proto.graph.ByteSize()
    _check(name, added, _MOST_COPIED, f"bytes more {replaced}")


def called(graph: Graph, bodies: Iterable[onnx.FunctionProto]) -> set[_Key]:
    """The keys of all functions that a graph calls, directly or through others."""
    by_key = _by_key(bodies)
    reached: set[_Key] = set()
    waiting = [graph]
    while waiting:
        new = _calls(waiting.pop(), by_key).keys() - reached
        reached |= new
        waiting += [by_key[key] for key in new]
    return reached


def _calls(graph: Graph, known: Iterable[_Key]) -> Counter[_Key]:
    """How often the nodes of a graph and of those within it call each of the known functions."""
    nodes = chain.from_iterable(inner.node for _, inner in graphs_from([graph]))
    keys = (_key(node.domain, node.op_type, node.overload) for node in nodes)
    return Counter(key for key in keys if key in known)


def _key(domain: str, name: str, overload: str) -> _Key:
    return ("" if domain == "ai.onnx" else domain), name, overload


def _by_key(bodies: Iterable[onnx.FunctionProto]) -> dict[_Key, onnx.FunctionProto]:
    return {_key(body.domain, body.name, body.overload): body for body in bodies}


def is_called(function: onnx.FunctionProto, keys: Iterable[_Key]) -> bool:
    """Whether a function is one of those."""
    return _key(function.domain, function.name, function.overload) in keys
