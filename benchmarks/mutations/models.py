"""Small ONNX models, and edits of their graphs, drawn at random."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.mutations.content import bytes_edited

SIZES = (0, -1, 1, 2, 3, 7, 8, 9, 224, 2**16, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**63))
NAMES = ("", "image", "logits", "f", "a\nb", "\x1b[2J", "x" * 100_000, "\u202e", "../x", "<b>", "w")
OPERATORS = (
    "Add", "ArgMax", "AveragePool", "BatchNormalization", "Cast", "Concat", "Conv", "ConvTranspose", "CumSum",
    "DequantizeLinear", "Dropout", "Einsum", "Expand", "Flatten", "GRU", "Gather", "Gemm", "GlobalAveragePool", "If",
    "LRN", "Loop", "MatMul", "MaxPool", "NonMaxSuppression", "NonZero",
    "OneHot", "Pad", "QuantizeLinear", "RandomNormalLike", "Range", "ReduceSum",
    "Reshape", "Resize", "Scan", "SequenceConstruct", "Shape", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze",
    "StringNormalizer", "Tile", "TopK", "Transpose", "Unsqueeze", "Where", "ZipMap", "Nonsense", "EPContext",
)  # fmt: skip
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "vendor", "x" * 10_000)
_CLASSES, _WIDTH, _SIDE = 5, 6, 8
Edit = Callable[[random.Random, onnx.ModelProto], None]


def originals(folder: Path) -> list[Path]:
    """Models to start from: plain, with a softmax, a branch, a local function, external data, and in 8 bits."""
    paths = []
    for name, model in (("plain", _plain()), ("softmax", _softmax()), ("branch", _branch()), ("function", _function()),
                        ("pixels", _pixels())):  # fmt: skip
        paths.append(folder / f"{name}.onnx")
        paths[-1].write_bytes(model.SerializeToString())
    path = folder / "external.onnx"
    onnx.save(_plain(), path, save_as_external_data=True, location="external.data", size_threshold=0)
    return [*paths, path]


def _plain() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten", axis=1),
        helper.make_node("Gemm", ["f", "g", "b"], ["logits"], name="gemm"),
    ]
    weights = {"w": (_WIDTH, 3, 3, 3), "g": (_WIDTH, _CLASSES), "b": (_CLASSES,)}
    tensors = [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
               for name, shape in weights.items()]  # fmt: skip
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, _SIDE, _SIDE])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", _CLASSES])
    graph = helper.make_graph(nodes, "plain", [image], [logits], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="vendor")


def _softmax() -> onnx.ModelProto:
    model = _plain()
    model.graph.node.append(helper.make_node("Softmax", ["logits"], ["scores"], name="softmax", axis=1))
    model.graph.output[0].name = "scores"
    return model


def _branch() -> onnx.ModelProto:
    model = _plain()
    graph = model.graph
    output = helper.make_tensor_value_info("f", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Flatten", ["p"], ["f"], name="inner")], "branch", [], [output])
    constant = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("yes", TensorProto.BOOL, [], [True]))
    graph.node[3].CopyFrom(helper.make_node("If", ["yes"], ["f"], name="if", then_branch=branch, else_branch=branch))
    graph.node.insert(0, constant)
    return model


def _function() -> onnx.ModelProto:
    model = _plain()
    flatten = helper.make_node("Flatten", ["x"], ["y"], name="inner")
    flatten.attribute.append(onnx.AttributeProto(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="axis"))
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("vendor", "Flat", ["x"], ["y"], [flatten], opsets, ["axis"]))
    model.opset_import.append(helper.make_opsetid("vendor", 1))
    model.graph.node[3].CopyFrom(helper.make_node("Flat", ["p"], ["f"], name="flat", domain="vendor", axis=1))
    return model


def _pixels() -> onnx.ModelProto:
    model = _plain()
    graph = model.graph
    graph.input[0].CopyFrom(helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["N", _SIDE, _SIDE, 3]))
    graph.node.insert(0, helper.make_node("Cast", ["pixels"], ["floats"], name="cast", to=TensorProto.FLOAT))
    graph.node.insert(1, helper.make_node("Transpose", ["floats"], ["image"], name="turn", perm=[0, 3, 1, 2]))
    return model


def edited(rng: random.Random, path: Path) -> bytes:
    """The file's model after one to three edits of its graph, or after edits of its bytes."""
    content = path.read_bytes()
    if rng.random() < 0.3:
        return bytes_edited(rng, content)
    model = onnx.ModelProto.FromString(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_EDITS)(rng, model)
    content = bytes(model.SerializeToString())
    return bytes_edited(rng, content) if rng.random() < 0.05 else content


def _node(rng: random.Random, model: onnx.ModelProto) -> onnx.NodeProto:
    nodes = [*model.graph.node]
    for function in model.functions:
        nodes += function.node
    return rng.choice(nodes) if nodes else model.graph.node.add()


def _tensor_names(model: onnx.ModelProto) -> list[str]:
    names = [value.name for value in model.graph.input]
    for node in model.graph.node:
        names += node.output
    return [*names, *(tensor.name for tensor in model.graph.initializer)]


def _dims(rng: random.Random, model: onnx.ModelProto) -> None:
    values = [*model.graph.input, *model.graph.output]
    shape = rng.choice(values).type.tensor_type.shape if values else onnx.TensorShapeProto()
    kind = rng.randrange(4)
    if kind == 0 and shape.dim:
        del shape.dim[rng.randrange(len(shape.dim))]
    elif kind == 1:
        shape.dim.add(dim_value=rng.choice(SIZES))
    elif shape.dim:
        dim = rng.choice(shape.dim)
        if rng.random() < 0.7:
            dim.dim_value = rng.choice(SIZES)
        else:
            dim.dim_param = rng.choice(NAMES)


def _value_type(rng: random.Random, model: onnx.ModelProto) -> None:
    values = [*model.graph.input, *model.graph.output]
    if not values:
        return
    value = rng.choice(values)
    kind = rng.randrange(4)
    if kind == 0:
        value.ClearField("type")
    elif kind == 1:
        value.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    elif kind == 2:
        value.type.map_type.key_type = TensorProto.INT64
    else:
        value.type.tensor_type.elem_type = rng.choice((*range(26), 99, -1))


def _attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _node(rng, model)
    kind = rng.randrange(7)
    attribute = rng.choice(node.attribute) if node.attribute and kind else node.attribute.add(name="axis", type=2, i=1)
    if kind == 1:
        attribute.type = rng.randrange(15)
    elif kind == 2:
        attribute.i, attribute.f = rng.choice(SIZES), rng.choice((float("nan"), float("inf"), -1e38, 0.0))
        del attribute.ints[:]
        attribute.ints.extend(rng.choices(SIZES, k=rng.randrange(6)))
    elif kind == 3:
        attribute.ref_attr_name = rng.choice(("axis", "none", *NAMES))
    elif kind == 4:
        attribute.name = rng.choice(("pads", "strides", "axis", "to", "perm", "value", *NAMES))
    elif kind == 5:
        attribute.s = rng.randbytes(rng.choice((0, 1, 1000)))
    else:
        node.attribute.add().CopyFrom(attribute)


def _wiring(rng: random.Random, model: onnx.ModelProto) -> None:
    node, names = _node(rng, model), _tensor_names(model) or [""]
    kind = rng.randrange(5)
    if kind == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice((*names, "none"))
    elif kind == 1 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice((*names, "none"))
    elif kind == 2:
        node.input.append(rng.choice((*names, "")))
    elif kind == 3 and model.graph.output:
        rng.choice(model.graph.output).name = rng.choice((*names, "none"))
    else:
        del node.input[:]


def _nodes(rng: random.Random, model: onnx.ModelProto) -> None:
    nodes = model.graph.node
    if not nodes:
        return
    kind, index = rng.randrange(4), rng.randrange(len(nodes))
    if kind == 0:
        del nodes[index]
    elif kind == 1:
        nodes.add().CopyFrom(nodes[index])
    else:
        other = rng.randrange(len(nodes))
        copy = onnx.NodeProto.FromString(nodes[index].SerializeToString())
        nodes[index].CopyFrom(nodes[other])
        nodes[other].CopyFrom(copy)


def _operator(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _node(rng, model)
    if rng.random() < 0.8:
        node.op_type = rng.choice(OPERATORS)
    else:
        node.domain = rng.choice(DOMAINS)


def _names(rng: random.Random, model: onnx.ModelProto) -> None:
    node, name = _node(rng, model), rng.choice(NAMES)
    kind = rng.randrange(6)
    if kind == 0:
        node.name = name
    elif kind == 1 and model.graph.input:
        model.graph.input[0].name = name
    elif kind == 2 and model.graph.initializer:
        rng.choice(model.graph.initializer).name = name
    elif kind == 3:
        model.producer_name, model.domain = name, name
    elif kind == 4:
        model.graph.name, model.doc_string = name, name * 10
    else:
        model.metadata_props.add(key=name, value=name)


def _weights(rng: random.Random, model: onnx.ModelProto) -> None:
    if not model.graph.initializer:
        return
    tensor = rng.choice(model.graph.initializer)
    kind = rng.randrange(7)
    if kind == 0:
        tensor.dims[:] = rng.choices(SIZES, k=rng.randrange(5))
    elif kind == 1:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    elif kind == 2:
        tensor.data_type = rng.randrange(30)
    elif kind == 3:
        tensor.float_data.extend([1.0] * rng.randrange(9))
    elif kind == 4:
        tensor.raw_data = rng.choice((b"\xff" * len(tensor.raw_data), rng.randbytes(len(tensor.raw_data))))
    elif kind == 5:
        model.graph.initializer.add().CopyFrom(tensor)
    else:
        tensor.string_data.append(b"x")


def _external(rng: random.Random, model: onnx.ModelProto) -> None:
    if not model.graph.initializer:
        return
    tensor = rng.choice(model.graph.initializer)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    places = (
        "external.data",
        "../x",
        "/etc/passwd",
        "/dev/zero",
        "",
        "none",
        "\0",
        "a/" * 3000,
        "~",
        "C:\\x",
        "external.onnx",
    )
    tensor.external_data.add(key="location", value=rng.choice(places))
    for key in ("offset", "length"):
        if rng.random() < 0.7:
            tensor.external_data.add(
                key=key, value=rng.choice(("0", "-1", "8", "9" * 400, "1e3", "x", "", "99999999999"))
            )


def _versions(rng: random.Random, model: onnx.ModelProto) -> None:
    kind = rng.randrange(4)
    if kind == 0 and model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((-1, 0, 1, 6, 7, 12, 13, 21, 30, 999, 2**62))
    elif kind == 1:
        model.opset_import.add(domain=rng.choice(DOMAINS), version=rng.choice((1, 17, 999)))
    elif kind == 2:
        del model.opset_import[:]
    else:
        model.ir_version = rng.choice((0, 1, 3, 9, 99, 2**62))


def _functions(rng: random.Random, model: onnx.ModelProto) -> None:
    name = rng.choice(("Conv", "Flat", "Own"))
    call = helper.make_node(name, ["x"], ["y"], domain="vendor")  # may call itself
    body = [rng.choice((call, helper.make_node("Relu", ["x"], ["y"])))]
    opsets = [helper.make_opsetid(rng.choice(DOMAINS[:5]), 17)]
    function = helper.make_function(rng.choice(("vendor", "")), name, ["x"], ["y"], body, opsets)
    model.functions.append(function)
    model.opset_import.add(domain="vendor", version=1)
    if rng.random() < 0.7:
        node = _node(rng, model)
        node.op_type, node.domain = name, function.domain


def _subgraphs(rng: random.Random, model: onnx.ModelProto) -> None:
    node = helper.make_node("Identity", ["p"], ["f"])
    for depth in range(rng.choice((1, 5, 11, 12, 13, 14, 25))):
        graph = helper.make_graph(
            [node], f"g{depth}", [], [helper.make_tensor_value_info("f", TensorProto.FLOAT, None)]
        )
        node = helper.make_node(rng.choice(("If", "If", "Loop", "Scan")), [rng.choice(("yes", "p", ""))], ["f"])
        for name in rng.choice((("then_branch", "else_branch"), ("body",), ("then_branch",))):
            node.attribute.append(helper.make_attribute(name, graph))
    model.graph.node.insert(rng.randrange(len(model.graph.node) + 1), node)


def _giants(rng: random.Random, model: onnx.ModelProto) -> None:
    sizes = rng.choice(([2**16, 2**16, 4], [2**40], [2**31, 2**31, 2**31], [-1, 5], [0, 5], [10**9]))
    shape = helper.make_tensor("giant", TensorProto.INT64, [len(sizes)], sizes)
    kind = rng.choice(("ConstantOfShape", "Expand", "Tile", "RandomNormal"))
    inputs = {"ConstantOfShape": ["giant"], "RandomNormal": []}.get(kind, ["logits", "giant"])
    attributes = {"shape": sizes} if kind == "RandomNormal" else {}
    model.graph.initializer.append(shape)
    model.graph.node.append(helper.make_node(kind, inputs, ["large"], **attributes))
    if model.graph.output:
        model.graph.output[0].name = "large"


def _other_parts(rng: random.Random, model: onnx.ModelProto) -> None:
    kind = rng.randrange(5)
    if kind == 0:
        model.graph.sparse_initializer.add(dims=rng.choices(SIZES, k=2))
    elif kind == 1:
        model.training_info.add().algorithm.CopyFrom(model.graph)
    elif kind == 2:
        model.graph.quantization_annotation.add(tensor_name=rng.choice(NAMES))
    elif kind == 3:
        model.graph.value_info.add().CopyFrom(
            helper.make_tensor_value_info("p", rng.randrange(1, 20), rng.choices(SIZES, k=3))
        )
    else:
        model.graph.input.add().CopyFrom(
            helper.make_tensor_value_info(rng.choice(NAMES), rng.randrange(1, 20), rng.choices(SIZES, k=2))
        )


def _nothing_left(rng: random.Random, model: onnx.ModelProto) -> None:
    field = rng.choice(("node", "input", "output", "initializer"))
    del getattr(model.graph, field)[:]


_EDITS: tuple[Edit, ...] = (
    _dims, _dims, _value_type, _attribute, _attribute, _attribute, _wiring, _wiring, _nodes, _operator, _operator,
    _names, _weights, _weights, _external, _versions, _functions, _subgraphs, _giants, _other_parts, _nothing_left,
)  # fmt: skip
