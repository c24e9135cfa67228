"""Small files that stand for graphs without end: each is a classifier with something added to it."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support import onnx_models

_LOCAL = "local"
_OPSETS = (helper.make_opsetid("", 17), helper.make_opsetid(_LOCAL, 1))
Calls = Mapping[str, list[str]]  # of each function: the functions and operators that it calls


def _with_functions(calls: Calls, *, first: str, live: bool) -> onnx.ModelProto:
    """The classifier with these functions; a node that is dead or not calls the first."""
    proto = onnx_models.convnet()
    for name, callees in calls.items():
        nodes = [
            helper.make_node(callee, [f"t{i}"], [f"t{i + 1}"], domain=_LOCAL if callee in calls else "")
            for i, callee in enumerate(callees)
        ]
        last = f"t{len(callees)}"
        proto.functions.append(helper.make_function(_LOCAL, name, ["t0"], [last], nodes, _OPSETS))
    proto.opset_import.append(_OPSETS[1])
    _append(proto, helper.make_node(first, ["f"], ["called"], domain=_LOCAL), live=live)
    return proto


def _append(proto: onnx.ModelProto, *nodes: onnx.NodeProto, live: bool) -> None:
    """Add nodes that turn the features `f` into another tensor, which the scores need or not."""
    gemm = proto.graph.node.pop()
    proto.graph.node.extend(nodes)
    if live:
        gemm.input[0] = nodes[-1].output[0]
    proto.graph.node.append(gemm)


def doubling(levels: int = 30, *, live: bool) -> onnx.ModelProto:
    """Functions that each call the next one twice: 2 ** levels nodes."""
    calls = {f"F{i}": [f"F{i + 1}"] * 2 for i in range(levels)} | {f"F{levels}": ["Tanh"]}
    return _with_functions(calls, first="F0", live=live)


def circle(*, live: bool) -> onnx.ModelProto:
    """Two functions that call each other."""
    return _with_functions({"A": ["B"], "B": ["A"]}, first="A", live=live)


def tower(height: int = 20_000) -> onnx.ModelProto:
    """Functions that each call the next one once; names grow with each level."""
    names = [f"F{i}" for i in range(height)]
    calls = {name: [following] for name, following in pairwise(names)} | {names[-1]: ["Tanh"]}
    return _with_functions(calls, first=names[0], live=True)


def copied_constant() -> onnx.ModelProto:
    """A function with 4 MB of constants that is called a thousand times."""
    proto = _with_functions({"Repeated": ["Body"] * 1000, "Body": ["Tanh"]}, first="Repeated", live=True)
    constant = numpy_helper.from_array(np.ones(10**6, np.float32))
    proto.functions[1].node.append(helper.make_node("Constant", [], ["ballast"], value=constant))
    return proto


def many_nodes(count: int = 10**6, *, live: bool) -> onnx.ModelProto:
    """A chain of many nodes."""
    proto = onnx_models.convnet()
    names = ["f", *(f"n{i}" for i in range(count))]
    nodes = [onnx.NodeProto(op_type="Relu", input=[a], output=[b]) for a, b in pairwise(names)]
    _append(proto, *nodes, live=live)
    return proto


def _if(condition: str, body: list[onnx.NodeProto], output: str) -> onnx.NodeProto:
    branch = helper.make_graph(body, "branch", [], [onnx_models.value(body[-1].output[0], None)])
    return helper.make_node("If", [condition], [output], then_branch=branch, else_branch=branch)


def _add_condition(proto: onnx.ModelProto) -> None:
    proto.graph.node.insert(0, helper.make_node("ReduceMax", ["image"], ["largest"], keepdims=0))
    proto.graph.node.insert(1, helper.make_node("Less", ["largest", "bound"], ["yes"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(1e9), "bound"))


def nested_ifs(depth: int) -> onnx.ModelProto:
    """Two branches in each branch; in the file there is one of each."""
    proto = onnx_models.convnet()
    _add_condition(proto)
    node = helper.make_node("Relu", ["f"], ["i0"])
    for level in range(1, depth + 1):
        branch = helper.make_graph([node], "b", [], [onnx_models.value(node.output[0], None)])
        node = helper.make_node("If", ["yes"], [f"i{level}"], then_branch=branch)
        other = helper.make_graph([helper.make_node("Relu", ["f"], ["e"])], "e", [], [onnx_models.value("e", None)])
        node.attribute.append(helper.make_attribute("else_branch", other))
    _append(proto, node, live=True)
    return proto


def nested_loops(depth: int, rounds: int = 10) -> onnx.ModelProto:
    """A loop in each loop's body."""
    proto = onnx_models.convnet()
    proto.graph.initializer.append(numpy_helper.from_array(np.array(rounds), "rounds"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "go"))
    node = helper.make_node("Tanh", ["s1"], ["o0"])
    for level in range(1, depth + 1):
        body = helper.make_graph(
            [helper.make_node("Identity", [f"c{level}"], [f"d{level}"]), node],
            "body",
            [
                onnx_models.value(f"t{level}", [], TensorProto.INT64),
                onnx_models.value(f"c{level}", [], TensorProto.BOOL),
                onnx_models.value(f"s{level}", None),
            ],
            [
                onnx_models.value(f"d{level}", [], TensorProto.BOOL),
                onnx_models.value(node.output[0], None),
            ],
        )
        start = "f" if level == depth else f"s{level + 1}"
        node = helper.make_node("Loop", ["rounds", "go", start], [f"o{level}"], body=body)
    _append(proto, node, live=True)
    return proto


def wide_if(outputs: int = 900, body: int = 17_000) -> onnx.ModelProto:
    """One If with many outputs, each of which is read, and a large body."""
    proto = onnx_models.convnet()
    _add_condition(proto)
    names = [f"w{i}" for i in range(outputs)]
    nodes = [onnx.NodeProto(op_type="Relu", input=["f"], output=[f"x{i}"]) for i in range(body)]
    branch = helper.make_graph(nodes, "branch", [], [onnx_models.value(f"x{i}", None) for i in range(outputs)])
    small = [helper.make_node("Relu", ["f"], [f"y{i}"]) for i in range(outputs)]
    other = helper.make_graph(small, "other", [], [onnx_models.value(f"y{i}", None) for i in range(outputs)])
    node = helper.make_node("If", ["yes"], names, then_branch=branch, else_branch=other)
    _append(proto, node, helper.make_node("Max", names, ["wide"]), live=True)
    return proto


def long_name(length: int = 10**8) -> onnx.ModelProto:
    """A node with a giant name."""
    proto = onnx_models.convnet()
    proto.graph.node[1].name = "n" * length
    return proto


def long_text(length: int = 10**8) -> onnx.ModelProto:
    """A giant description."""
    proto = onnx_models.convnet()
    proto.doc_string = "d" * length
    return proto


def long_names(count: int = 30_000, length: int = 4_000) -> onnx.ModelProto:
    """Many long names that differ in their ends alone."""
    proto = onnx_models.convnet()
    names = ["f", *("n" * length + str(i) for i in range(count))]
    _append(
        proto,
        *(onnx.NodeProto(op_type="Relu", input=[a], output=[b]) for a, b in pairwise(names)),
        live=True,
    )
    return proto


def many_numbers(count: int = 5 * 10**7) -> onnx.ModelProto:
    """An attribute with a giant list, one byte a number."""
    proto = onnx_models.convnet()
    node = helper.make_node("Constant", [], ["list"])
    node.attribute.add(name="value_ints", type=onnx.AttributeProto.INTS, ints=bytes(count))
    proto.graph.node.insert(0, node)
    proto.graph.output.append(onnx_models.value("list", None, TensorProto.INT64))
    return proto


def declared_weight(*, live: bool) -> onnx.ModelProto:
    """A weight of 4 TiB without its values."""
    proto = onnx_models.convnet()
    proto.graph.initializer.add(name="huge", data_type=TensorProto.FLOAT, dims=[2**20, 2**20])
    _append(proto, helper.make_node("MatMul", ["f", "huge"], ["m"]), live=live)
    return proto


def unused_weights(count: int = 19_900) -> onnx.ModelProto:
    """Weights that are used and weights that are not, by turns."""
    proto = onnx_models.convnet()
    for index in range(count):
        proto.graph.initializer.add(name=f"u{index}", data_type=TensorProto.FLOAT, dims=[1], raw_data=bytes(4))
    reads = [f"u{index}" for index in range(0, count, 2)]
    groups = [reads[i : i + 1000] for i in range(0, len(reads), 1000)]
    nodes = [helper.make_node("Sum", ["f", *group], [f"s{i}"]) for i, group in enumerate(groups)]
    _append(
        proto,
        *nodes,
        helper.make_node("Sum", [f"s{i}" for i in range(len(groups))], ["all"]),
        live=True,
    )
    return proto


def many_outputs(count: int = 20_000) -> onnx.ModelProto:
    """Thousands of outputs."""
    proto = onnx_models.convnet()
    for index in range(count):
        proto.graph.node.append(helper.make_node("Relu", ["logits"], [f"out{index}"]))
        proto.graph.output.append(onnx_models.value(f"out{index}", ["N", 5]))
    return proto


def many_types(count: int = 10**6) -> onnx.ModelProto:
    """Types of a million tensors that do not exist."""
    proto = onnx_models.convnet()
    template = onnx_models.value("t", ["N", 1])
    proto.graph.value_info.extend([template] * count)
    return proto


def huge_input() -> onnx.ModelProto:
    """Images of 2**40 pixels."""
    return onnx_models.convnet(size=2**20)


def huge_tensor() -> onnx.ModelProto:
    """An image becomes 4 TiB on the way."""
    proto = onnx_models.convnet()
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2**20, 2**20]), "large"))
    nodes = [
        helper.make_node("ReduceMax", ["f"], ["top"], keepdims=0),
        helper.make_node("Expand", ["top", "large"], ["wide"]),
        helper.make_node("ReduceMax", ["wide"], ["one"], keepdims=0),
        helper.make_node("Add", ["f", "one"], ["added"]),
    ]
    _append(proto, *nodes, live=True)
    return proto


def shared_chain(layers: int = 3_000, length: int = 16_000) -> onnx.ModelProto:
    """Many layers whose weight is computed through one long chain of nodes."""
    proto = onnx_models.convnet()
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(6, dtype=np.float32), "start"))
    names = ["start", *(f"k{i}" for i in range(length))]
    chain = [onnx.NodeProto(op_type="Relu", input=[a], output=[b]) for a, b in pairwise(names)]
    features = ["f", *(f"l{i}" for i in range(layers))]
    products = [onnx.NodeProto(op_type="MatMul", input=[a, names[-1]], output=[b]) for a, b in pairwise(features)]
    _append(proto, *chain, *products, live=True)
    return proto


# Some take as many bytes as they claim: those that are refused for their size in the file.
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "functions that double, dead": lambda: doubling(live=False),
    "functions that double, live": lambda: doubling(live=True),
    "functions in a circle, dead": lambda: circle(live=False),
    "functions in a circle, live": lambda: circle(live=True),
    "20,000 functions within each other": tower,
    "a thousand copies of a constant": copied_constant,
    "a million nodes, dead": lambda: many_nodes(live=False),
    "a million nodes, live": lambda: many_nodes(live=True),
    "nearly too many nodes": lambda: many_nodes(19_900, live=True),
    "30 Ifs within each other": lambda: nested_ifs(30),
    "12 Ifs within each other": lambda: nested_ifs(12),
    "30 loops within each other": lambda: nested_loops(30),
    "an If with 900 results": wide_if,
    "an If with 100 results": lambda: wide_if(100),
    "a name of 100 MB": long_name,
    "a description of 100 MB": long_text,
    "30,000 names of 4 kB": long_names,
    "a list of 50 million numbers": many_numbers,
    "a weight of 4 TiB, dead": lambda: declared_weight(live=False),
    "a weight of 4 TiB, live": lambda: declared_weight(live=True),
    "nearly too many weights": unused_weights,
    "20,000 outputs": many_outputs,
    "a million types": many_types,
    "images of 2**40 pixels": huge_input,
    "a tensor of 4 TiB": huge_tensor,
    "a long chain of weights": shared_chain,
}
