"""A simplified graph has the same face and the same numbers, and what is not surely the same is left alone."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from auditkit.arrays import Array
from auditkit.graph import simplify
from auditkit.graph.simplify import simplified
from auditkit.model.external_data import HELD_IN_MEMORY
from auditkit.model.session import Session, Settings
from tests.support import onnx_models

node = helper.make_node
IMAGE = onnx_models.value("x", ["N", 3, 8, 8])
ONES = [0, 0, 1, 1, 0, 0, 1, 1]
UNEVEN = [0, 0, 0, 1, 0, 0, 2, 3]
INFINITE = np.float32(-np.inf)
WINDOW = {"kernel_shape": [3, 3], "strides": [2, 2]}
MODELS = (
    "resnet50.onnx", "deit_tiny_patch16_224.onnx", "mobilenet_v2_int8_qdq.onnx", "cifar10_resnet20.onnx",
    "cifar10_resnet56.onnx", "variants/cifar10_resnet20_external_data.onnx",
    "variants/cifar10_resnet20_fixedbatch1.onnx", "variants/cifar10_resnet20_fp16.onnx",
    "variants/cifar10_resnet20_int8_qdq.onnx", "variants/cifar10_resnet20_softmax.onnx",
    "variants/cifar10_resnet20_uint8_nhwc.onnx",
)  # fmt: skip


def f32(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


W, K = f32(6, 3, 3, 3, seed=1), f32(1, 6, 1, 1, seed=2)


def net(nodes: list[onnx.NodeProto], weights: dict[str, Array] | None = None, **kwargs: Any) -> onnx.ModelProto:
    """A model from image 'x' to 'y'."""
    image = kwargs.pop("image", IMAGE)
    return onnx_models.model(nodes, [image], [onnx.ValueInfoProto(name="y")], weights, **kwargs)


def listed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its weights among its inputs, as some exporters write them."""
    model.graph.input.extend(onnx_models.value(t.name, list(t.dims), t.data_type) for t in model.graph.initializer)
    return model


def operators(model: onnx.ModelProto) -> list[str]:
    return [entry.op_type for entry in model.graph.node]


def scores(model: onnx.ModelProto, image: Array, *, as_written: bool = False) -> list[Array]:
    """All outputs by onnxruntime as it comes, or node for node as the file says."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if as_written:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {model.graph.input[0].name: image}))


def checked(model: onnx.ModelProto, image: Array | None = None) -> onnx.ModelProto:
    """The simplified model, having seen that the original is untouched and that all outputs and inputs are the same."""
    before = model.SerializeToString(deterministic=True)
    fresh = simplified(model)
    assert model.SerializeToString(deterministic=True) == before
    assert [value.name for value in fresh.graph.output] == [value.name for value in model.graph.output]
    assert simplified(fresh) == fresh
    assert len(fresh.graph.node) <= len(model.graph.node)
    image = f32(2, 3, 8, 8, seed=9) if image is None else image
    for found, expected in zip(scores(fresh, image), scores(model, image, as_written=True), strict=True):
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        size = np.abs(expected[np.isfinite(expected)]).max(initial=1)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * size)
    return fresh


def in_the_runtime(model: onnx.ModelProto, folder: Path) -> list[str]:
    """The operators that onnxruntime has left when it has optimised a graph for any device."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return operators(onnx.load(folder / "optimised.onnx"))


# What only hands its input on.


def test_identity_of_a_weight_and_of_a_tensor_is_passed_by() -> None:
    nodes = [
        node("Identity", ["w"], ["w1"]),
        node("Identity", ["w1"], ["w2"]),
        node("Conv", ["x", "w2"], ["c"]),
        node("Identity", ["c"], ["c1"]),
        node("Add", ["c1", "c"], ["y"]),
    ]
    fresh = checked(net(nodes, {"w": W}))
    assert operators(fresh) == ["Conv", "Add"]
    assert list(fresh.graph.node[1].input) == ["c", "c"]


@pytest.mark.parametrize("operator", ["Concat", "Sum", "Max", "Min", "Mean"])
def test_one_tensor_joined_to_nothing_is_itself(operator: str) -> None:
    attributes = {"axis": 1} if operator == "Concat" else {}
    nodes = [node(operator, ["x"], ["a"], **attributes), node(operator, ["a", "a"], ["b"], **attributes)]
    assert operators(checked(net([*nodes, node("Relu", ["b"], ["y"])]))) == [operator, "Relu"]


def test_a_transpose_that_moves_nothing_goes_and_any_other_stays() -> None:
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 1, 2, 3]),
        node("Transpose", ["a"], ["b"]),
        node("Transpose", ["b"], ["y"], perm=[0, 2, 1, 3]),
    ]
    assert operators(checked(net(nodes))) == ["Transpose", "Transpose"]


@pytest.mark.parametrize(
    ("opset", "more"), [(7, []), (10, []), (12, []), (13, ["half"]), (13, ["half", "off"]), (22, ["", "off"])]
)
def test_dropout_in_use_is_nothing(opset: int, more: list[str]) -> None:
    weights = {"half": np.float32(0.5), "off": np.array(False)}
    nodes = [node("Dropout", ["x", *more], ["d", "unread"]), node("Relu", ["d"], ["y"])]
    model = net(nodes, weights, opset=opset)
    assert operators(simplified(model)) == ["Relu"]
    assert operators(checked(net([node("Dropout", ["x", *more], ["d"]), nodes[1]], weights, opset=opset))) == ["Relu"]


def test_dropout_that_is_in_training_or_may_be_or_whose_mask_is_read_stays() -> None:
    weights = {"half": np.float32(0.5), "on": np.array(True)}
    training = net([node("Dropout", ["x", "half", "on"], ["d"]), node("Relu", ["d"], ["y"])], weights)
    assert operators(simplified(training)) == ["Dropout", "Relu"]
    asked = net([node("Dropout", ["x", "half", "may"], ["d"]), node("Relu", ["d"], ["y"])], weights)
    asked.graph.input.append(onnx_models.value("may", [], TensorProto.BOOL))
    assert operators(simplified(asked)) == ["Dropout", "Relu"]
    for more in ([], ["half", "off"]):
        nodes = [node("Dropout", ["x", *more], ["d", "m"]), node("Where", ["m", "d", "x"], ["y"])]
        assert operators(checked(net(nodes, weights | {"off": np.array(False)}))) == ["Dropout", "Where"]


def test_a_copy_that_is_an_output_keeps_its_name() -> None:
    model = net([node("Relu", ["x"], ["r"]), node("Identity", ["r"], ["y"]), node("Neg", ["y"], ["z"])])
    model.graph.output.append(onnx.ValueInfoProto(name="z"))
    assert operators(checked(model)) == ["Relu", "Identity", "Neg"]


def test_what_a_branch_reads_from_outside_stays() -> None:
    def branch(operator: str) -> onnx.GraphProto:
        inner = [node(operator, ["i"], ["o"]), node(operator, ["p"], ["q"])]
        outs = [onnx_models.value("o", None), onnx_models.value("q", None)]
        return helper.make_graph(inner, operator, [], outs)

    nodes = [
        node("Identity", ["x"], ["i"]),
        node("Pad", ["x", "ones"], ["p"]),
        node("If", ["yes"], ["o1", "q1"], then_branch=branch("Neg"), else_branch=branch("Abs")),
        node("Conv", ["p", "w"], ["c"]),
        node("ReduceSum", ["q1"], ["s"], keepdims=1),
        node("Add", ["c", "s"], ["d"]),
        node("ReduceSum", ["o1"], ["t"], keepdims=1),
        node("Add", ["d", "t"], ["y"]),
    ]
    model = net(nodes, {"yes": np.array(True), "ones": ints(*ONES), "w": W})
    assert Counter(operators(checked(model))) == Counter(operators(model))


def test_an_operator_of_another_domain_is_not_taken_by_its_name() -> None:
    model = net([node("Identity", ["x"], ["i"], domain="vendor"), node("Relu", ["i"], ["y"])])
    twice = [node("Add", ["a", "a"], ["b"])]
    model.functions.append(
        helper.make_function("vendor", "Identity", ["a"], ["b"], twice, [helper.make_opsetid("", 17)])
    )
    model.opset_import.append(helper.make_opsetid("vendor", 1))
    assert operators(checked(model)) == ["Identity", "Relu"]


# Pads.


def padded(opset: int = 17, pads: list[int] = ONES, value: Any = None, mode: str | None = None) -> onnx.NodeProto:
    """A Pad from 'x' to 'p', as the operator set writes it."""
    named = {"mode": mode} if mode else {}
    if opset < 11:
        return node("Pad", ["x"], ["p"], pads=pads, **named, **({} if value is None else {"value": float(value)}))
    return node("Pad", ["x", "pads", *([] if value is None else ["value"])], ["p"], **named)


def pad_then(
    *readers: onnx.NodeProto, opset: int = 17, pads: list[int] = ONES, value: Any = None, mode: str | None = None,
    **weights: Array,
) -> onnx.ModelProto:  # fmt: skip
    numbers = {"pads": ints(*pads)} | ({} if value is None else {"value": np.asarray(value, np.float32)})
    weights = {"w": W} | ({} if opset < 11 else numbers) | weights
    return net([padded(opset, pads, value, mode), *readers], weights, opset=opset, ir_version=10)


@pytest.mark.parametrize("pads", [ONES, UNEVEN])
@pytest.mark.parametrize("opset", range(7, 24))
def test_pad_goes_into_the_convolution_in_every_operator_set(opset: int, pads: list[int]) -> None:
    fresh = checked(pad_then(node("Conv", ["p", "w"], ["y"], strides=[2, 2]), opset=opset, pads=pads))
    assert operators(fresh) == ["Conv"]
    assert [tensor.name for tensor in fresh.graph.initializer] == ["w"]
    assert operators(checked(pad_then(node("Conv", ["p", "w"], ["y"]), opset=opset, value=0, mode="constant"))) == [
        "Conv"
    ]


@pytest.mark.parametrize(
    "attributes",
    [
        {"auto_pad": "VALID"},
        {"auto_pad": "NOTSET", "pads": [1, 0, 2, 0]},
        {"pads": [0, 1, 0, 1]},
    ],
)
def test_pad_joins_the_pads_that_a_convolution_has(attributes: dict[str, Any]) -> None:
    fresh = checked(pad_then(node("Conv", ["p", "w"], ["y"], **attributes), pads=UNEVEN))
    assert operators(fresh) == ["Conv"]


def test_pad_goes_into_several_convolutions_and_through_copies() -> None:
    nodes = [
        node("Identity", ["p"], ["i"]),
        node("Conv", ["i", "w"], ["a"], auto_pad="VALID"),
        node("Conv", ["p", "v"], ["b"], pads=[1, 1, 1, 1]),
        node("Add", ["a", "b"], ["y"]),
    ]
    assert operators(checked(pad_then(*nodes, v=f32(6, 3, 5, 5)))) == ["Conv", "Conv", "Add"]


def test_two_pads_in_a_row_add_up() -> None:
    nodes = [node("Pad", ["p", "more"], ["q"]), node("Conv", ["q", "w"], ["y"])]
    assert operators(checked(pad_then(*nodes, more=ints(*UNEVEN)))) == ["Conv"]


@pytest.mark.parametrize("spatial", [1, 3])
def test_pad_of_lines_and_of_volumes(spatial: int) -> None:
    pads = [0, 0, *range(1, spatial + 1), 0, 0, *range(2, spatial + 2)]
    image = onnx_models.value("x", ["N", 3, *[5] * spatial])
    weights = {"pads": ints(*pads), "w": f32(4, 3, *[3] * spatial)}
    model = net([padded(), node("Conv", ["p", "w"], ["y"])], weights, image=image)
    assert operators(checked(model, f32(2, 3, *[5] * spatial))) == ["Conv"]


def test_pad_said_by_a_constant_node() -> None:
    said = node("Constant", [], ["pads"], value=numpy_helper.from_array(ints(*UNEVEN)))
    model = net([said, padded(), node("Conv", ["p", "w"], ["y"])], {"w": W})
    assert operators(checked(model)) == ["Conv"]


@pytest.mark.parametrize(
    ("pads", "value", "mode"),
    [
        ([0, 0, -1, -1, 0, 0, -1, -1], None, None),
        ([0, 0, 2, 1, 0, 0, -1, 0], None, None),
        ([1, 0, 1, 1, 0, 0, 1, 1], None, None),
        ([0, 0, 1, 1, 0, 3, 1, 1], None, None),
        (ONES, 0.5, None),
        (ONES, -np.inf, None),
        (ONES, None, "reflect"),
        (ONES, None, "edge"),
    ],
)
@pytest.mark.parametrize("opset", [7, 10, 11, 17, 23])
def test_any_other_pad_stays(opset: int, pads: list[int], value: float | None, mode: str | None) -> None:
    channels = 3 + pads[1] + pads[5]
    reader = node("Conv", ["p", "w"], ["c"])
    finite = [node("Relu", ["c"], ["r"]), node("Tanh", ["r"], ["y"])]  # of -inf times weights, the part that compares
    model = pad_then(reader, *finite, opset=opset, pads=pads, value=value, mode=mode, w=np.abs(f32(6, channels, 3, 3)))
    assert operators(checked(model))[:2] == ["Pad", "Conv"]


READERS_THAT_CANNOT = {
    "a size not known": [node("Conv", ["p", "w"], ["y"], auto_pad="SAME_UPPER")],
    "not the only reader": [
        node("Conv", ["p", "w"], ["c"]),
        node("ReduceMax", ["p"], ["m"]),
        node("Add", ["c", "m"], ["y"]),
    ],
    "a mean that would count": [node("AveragePool", ["p"], ["y"], kernel_shape=[3, 3])],
    "a filter": [node("Conv", ["x", "p"], ["y"], pads=[2, 2, 2, 2])],
    "image and filter": [node("Conv", ["p", "p"], ["y"], pads=[2, 2, 2, 2])],
    "pads that crop": [node("ConvTranspose", ["p", "w3"], ["y"])],
    "eight bits": [
        node("QuantizeLinear", ["p", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Conv", ["d", "w"], ["y"]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", READERS_THAT_CANNOT)
def test_pad_stays_where_a_reader_cannot_take_it(name: str) -> None:
    weights = {"w3": f32(3, 4, 3, 3), "s": np.float32(0.03), "z": np.uint8(128)}
    model = pad_then(*READERS_THAT_CANNOT[name], **weights)
    assert simplified(model).graph.node == model.graph.node
    if name != "a filter":  # the runtime breaks that graph when it is given it as it is
        checked(model, f32(3, 3, 8, 8, seed=9))


def test_pad_that_is_an_output_or_computed_or_names_axes_stays() -> None:
    conv = node("Conv", ["p", "w"], ["y"])
    output = pad_then(conv)
    output.graph.output.append(onnx.ValueInfoProto(name="p"))
    assert checked(output).graph.node == output.graph.node
    computing = [
        node("Shape", ["x"], ["s"]),
        node("Sub", ["s", "s"], ["no"]),
        node("Concat", ["no", "ones"], ["pads"], axis=0),
    ]
    model = net([*computing, padded(), conv], {"w": W, "ones": ints(0, 0, 1, 1)})
    assert checked(model).graph.node == model.graph.node
    weights = {"w": W, "some": ints(0, 0, 1, 0, 0, 2), "axes": ints(1, 2, 3)}
    named = net([node("Pad", ["x", "some", "", "axes"], ["p"]), conv], weights, opset=18)
    assert checked(named).graph.node == named.graph.node


def test_pads_shared_with_a_pad_that_stays_are_still_there() -> None:
    nodes = [node("Conv", ["p", "w"], ["c"]), node("Pad", ["c", "pads"], ["q"]), node("Relu", ["q"], ["y"])]
    fresh = checked(pad_then(*nodes))
    assert operators(fresh) == ["Conv", "Pad", "Relu"]


def test_pad_with_minus_infinity_goes_into_a_max_pool() -> None:
    for attributes in ({}, {"pads": [1, 0, 0, 1]}, {"auto_pad": "VALID"}, {"dilations": [1, 1], "ceil_mode": 0}):
        model = pad_then(node("MaxPool", ["p"], ["y"], **WINDOW, **attributes), pads=ONES, value=INFINITE)
        assert operators(checked(model)) == ["MaxPool"]


@pytest.mark.parametrize(
    ("pads", "attributes", "outputs"),
    [
        ([0, 0, 3, 0, 0, 0, 0, 0], {}, ["y"]),  # a window of nothing but pads
        (ONES, {"pads": [2, 0, 0, 0]}, ["y"]),
        (ONES, {"ceil_mode": 1}, ["y"]),
        (ONES, {"dilations": [2, 2]}, ["y"]),
        (ONES, {"auto_pad": "SAME_UPPER"}, ["y"]),
        (ONES, {"auto_pad": "VALID", "pads": [1, 1, 0, 0]}, ["y"]),
        (ONES, {}, ["y", "where"]),
    ],
)
def test_a_max_pool_whose_windows_would_change_keeps_its_pad(
    pads: list[int], attributes: dict[str, Any], outputs: list[str]
) -> None:
    model = pad_then(node("MaxPool", ["p"], outputs, **WINDOW, **attributes), pads=pads, value=INFINITE)
    assert operators(checked(model)) == ["Pad", "MaxPool"]


def test_minus_infinity_before_a_mean_stays() -> None:
    model = pad_then(node("AveragePool", ["p"], ["y"], **WINDOW), value=INFINITE)
    assert simplified(model).graph.node == model.graph.node


POOL = node("MaxPool", ["p"], ["y"], **WINDOW)
APART = {
    "pads that could be fed": listed(pad_then(POOL)),
    "another reader": pad_then(
        node("MaxPool", ["p"], ["m"], **WINDOW),
        node("Conv", ["p", "w"], ["c"], strides=[2, 2]),
        node("Concat", ["m", "c"], ["y"], axis=1),
    ),
    "a copy": pad_then(node("Concat", ["p"], ["q"], axis=1), node("MaxPool", ["q"], ["y"], **WINDOW)),
    "two copies": pad_then(
        node("Identity", ["p"], ["i"]),
        node("Transpose", ["i"], ["q"], perm=[0, 1, 2, 3]),
        node("MaxPool", ["q"], ["y"], **WINDOW),
    ),
    "a copy and a pad of another value": pad_then(
        node("Dropout", ["p"], ["d"]),
        node("Pad", ["d", "pads", "least"], ["q"]),
        node("MaxPool", ["q"], ["y"], **WINDOW),
        least=INFINITE,
    ),
    "a pad of another value": pad_then(
        node("Pad", ["p", "pads", "least"], ["q"]), node("MaxPool", ["q"], ["y"], **WINDOW), least=INFINITE
    ),
}


@pytest.mark.parametrize("by", APART)
def test_zeros_that_the_runtime_cannot_fold_into_a_max_pool_are_kept_from_it(by: str) -> None:
    """onnxruntime 1.31 folds the constant zeros of a Pad into a MaxPool that reads it: wrong below zero."""
    fresh = checked(APART[by], -np.abs(f32(2, 3, 8, 8)))
    assert "Pad" in operators(fresh)


def test_the_check_sees_a_pad_on_the_wrong_side(monkeypatch: pytest.MonkeyPatch) -> None:
    right = simplify._widen
    monkeypatch.setattr(simplify, "_widen", lambda reader, pads: right(reader, pads[::-1]))
    with pytest.raises(AssertionError):
        checked(pad_then(node("Conv", ["p", "w"], ["y"]), pads=UNEVEN))


# What the runtime then can fuse.


def test_a_constant_before_a_convolution_goes_behind_it_and_is_fused(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Mul", ["k", "c"], ["m"]),
        node("Add", ["a", "m"], ["n"]),
        node("Relu", ["n"], ["y"]),
    ]
    model = net(nodes, {"w": W, "k": K, "a": K + 1})
    assert in_the_runtime(checked(model), tmp_path) == ["Conv", "Relu"]


def test_other_operands_keep_their_places() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Mul", ["k", "r"], ["m"]),
        node("Sub", ["k", "c"], ["s"]),
        node("Add", ["m", "s"], ["y"]),
    ]
    assert checked(net(nodes, {"w": W, "k": K})).graph.node == net(nodes, {"w": W, "k": K}).graph.node


def normalised(**kwargs: Any) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("BatchNormalization", ["c", "s", "o", "m", "v"], ["n"]),
        node("Relu", ["n"], ["y"]),
    ]
    weights = {"w": W} | {name: np.abs(f32(6, seed=ord(name))) + 1 for name in "somv"}
    return net(nodes, weights, **kwargs)


@pytest.mark.parametrize("ir_version", [4, 8, 10])
def test_weights_listed_as_inputs_become_constants_and_are_fused(ir_version: int, tmp_path: Path) -> None:
    fresh = checked(listed(normalised(ir_version=ir_version)))
    assert [value.name for value in fresh.graph.input] == ["x"]
    assert in_the_runtime(fresh, tmp_path) == ["Conv", "Relu"]


def test_a_file_that_must_list_its_weights_goes_on_doing_so() -> None:
    model = listed(normalised(ir_version=3, opset=8))
    fresh = checked(model)
    assert fresh.graph.input == model.graph.input


# The rest.


def test_dead_nodes_and_unused_weights_are_gone() -> None:
    nodes = [
        node("Relu", ["x"], ["y"]),
        node("Conv", ["x", "w"], ["nobody"]),
        node("Conv", ["nobody", "v"], ["either"]),
    ]
    fresh = checked(net(nodes, {"w": W, "v": f32(2, 6, 3, 3), "stray": W}))
    assert operators(fresh) == ["Relu"]
    assert not fresh.graph.initializer


def test_a_plain_graph_comes_out_as_it_went_in() -> None:
    model = onnx_models.convnet()
    assert simplified(model).graph == model.graph


def beside(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """The model without the bytes of these weights."""
    for tensor in model.graph.initializer:
        if tensor.name in names:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=HELD_IN_MEMORY)
    return model


def test_weights_that_lie_beside_the_graph_are_not_needed() -> None:
    nodes = [node("Identity", ["w"], ["i"]), padded(), node("Conv", ["p", "i"], ["y"])]
    model = net(nodes, {"w": W, "pads": ints(*ONES)})
    expected = scores(model, f32(2, 3, 8, 8))[0]
    fresh = simplified(listed(beside(model, "w")))
    assert operators(fresh) == ["Conv"]
    found = Session(fresh, Settings(device="cpu", threads=1), {"w": W}).run({"x": f32(2, 3, 8, 8)})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_what_would_need_numbers_that_lie_beside_the_graph_is_left_alone() -> None:
    nodes = [padded(), node("Dropout", ["p", "", "off"], ["d"]), node("Conv", ["d", "w"], ["y"])]
    model = beside(net(nodes, {"w": W, "pads": ints(*ONES), "off": np.array(False)}), "pads", "off")
    assert simplified(model).graph.node == model.graph.node


def test_float16_and_bytes_pass_through() -> None:
    half = [node("Identity", ["w"], ["i"]), padded(), node("Conv", ["p", "i"], ["c"]), node("Cast", ["c"], ["y"], to=1)]
    image = onnx_models.value("x", ["N", 3, 8, 8], TensorProto.FLOAT16)
    model = net(half, {"w": W.astype(np.float16), "pads": ints(*ONES)}, image=image)
    assert operators(checked(model, f32(2, 3, 8, 8).astype(np.float16))) == ["Conv", "Cast"]
    pixels = [node("Identity", ["x"], ["i"]), node("Cast", ["i"], ["f"], to=1), node("Conv", ["f", "w"], ["y"])]
    bytes_in = net(pixels, {"w": W}, image=onnx_models.value("x", ["N", 3, 8, 8], TensorProto.UINT8))
    picture = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8), np.uint8)
    assert operators(checked(bytes_in, picture)) == ["Cast", "Conv"]


@pytest.mark.assets
@pytest.mark.parametrize("name", MODELS)
def test_real_files_have_the_same_scores(assets: Path, name: str) -> None:
    path = assets / "models" / name
    if not path.is_file():
        pytest.skip(f"{name} is not among the assets")
    model = onnx.load(path)
    fresh = simplified(model)
    assert len(fresh.graph.node) <= len(model.graph.node)
    shape = [dim.dim_value or 2 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    image = pixels if "uint8" in name else ((pixels - 127.5) / 64).astype(np.float32)
    if model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16:
        image = image.astype(np.float16)
    expected, found = scores(model, image)[0], scores(fresh, image)[0]
    assert np.abs(found.astype(np.float64) - expected).max() <= 1e-5 * np.abs(expected).max()
