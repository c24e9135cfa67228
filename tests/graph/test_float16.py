"""A graph in float16 keeps its face (names, float32 outside) and stays within rounding of the float32 graph."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.graph.float_types import to_float16
from auditkit.model.external_data import HELD_IN_MEMORY
from auditkit.model.session import Session, Settings
from tests.support import onnx_models

node = helper.make_node
IMAGE = onnx_models.value("image", ["N", 3, 8, 8])
CPU = Settings(device="cpu", threads=1)


def f32(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def head(features: str, width: int, seed: int = 9) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """Average over space and one matrix: 'features' [N,width,h,w] to 'logits' [N,5]."""
    nodes = [
        node("GlobalAveragePool", [features], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("Gemm", ["flat", "head_w", "head_b"], ["logits"]),
    ]
    return nodes, {"head_w": f32(width, 5, seed=seed), "head_b": f32(5, seed=seed + 1)}


def net(body: list[onnx.NodeProto], features: str, width: int, weights: dict[str, Array], **kwargs: Any) -> Any:
    nodes, more = head(features, width)
    return onnx_models.model(
        [*body, *nodes], [IMAGE], [onnx_models.value("logits", ["N", 5])], weights | more, **kwargs
    )


def with_softmax(model: onnx.ModelProto, *nodes: onnx.NodeProto, out: str = "probs") -> onnx.ModelProto:
    model.graph.node.extend(nodes or [node("Softmax", ["logits"], ["probs"], axis=1)])
    model.graph.output[0].name = out
    return model


def convolutional() -> onnx.ModelProto:
    body = [
        node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "s", "o", "m", "v"], ["n"]),
        node("Clip", ["n", "zero", "six"], ["r"]),
    ]
    weights = {
        "w": f32(6, 3, 3, 3), "s": np.ones(6, np.float32), "o": f32(6, seed=1), "m": f32(6, seed=2),
        "v": np.full(6, 3, np.float32), "zero": np.float32(0), "six": np.float32(6),
    }  # fmt: skip
    return net(body, "r", 6, weights)


def attention(mask: float = 0.0) -> onnx.ModelProto:
    """Patches, one head of attention with an additive mask that hides the last tokens, LayerNormalization."""
    body = [
        node("Conv", ["image", "w"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", ["c", "tokens"], ["t"]),
        node("Transpose", ["t"], ["x"], perm=[0, 2, 1]),
        node("LayerNormalization", ["x", "ones", "zeros"], ["n"], axis=-1),
        node("MatMul", ["n", "wq"], ["q"]),
        node("MatMul", ["n", "wk"], ["k"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["raw"]),
        node("Add", ["raw", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["a"], axis=-1),
        node("MatMul", ["a", "n"], ["y"]),
        node("Add", ["x", "y"], ["sum"]),
        node("Transpose", ["sum"], ["back"], perm=[0, 2, 1]),
        node("Unsqueeze", ["back", "axis"], ["features"]),
    ]
    hidden = np.zeros((1, 16, 16), np.float32)
    hidden[..., 12:] = mask
    weights = {
        "w": f32(8, 3, 2, 2, scale=0.3), "tokens": ints(0, 8, 16), "ones": np.ones(8, np.float32),
        "zeros": np.zeros(8, np.float32), "wq": f32(8, 8, seed=3, scale=0.3), "wk": f32(8, 8, seed=4, scale=0.3),
        "mask": hidden, "axis": ints(3),
    }  # fmt: skip
    return net(body, "features", 8, weights)


def residual_with_constants() -> onnx.ModelProto:
    """Constants of all spellings, a Cast to float, a tensor made of a shape, and an output that is also used inside."""
    half = numpy_helper.from_array(np.float32(0.5))
    body = [
        node("Constant", [], ["k1"], value=half),
        node("Constant", [], ["k2"], value_float=0.25),
        node("Constant", [], ["k3"], value_floats=[1.0, 2.0, 3.0]),
        node("Reshape", ["k3", "column"], ["k3c"]),
        node("Mul", ["image", "k1"], ["i1"]),
        node("Add", ["i1", "k2"], ["i2"]),
        node("Mul", ["i2", "k3c"], ["i3"]),
        node("Greater", ["i3", "k2"], ["mask"]),
        node("Cast", ["mask"], ["weight"], to=TensorProto.FLOAT),
        node("Shape", ["i3"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["filled"], value=numpy_helper.from_array(np.array([0.5], np.float32))),
        node("Mul", ["weight", "filled"], ["scaled"]),
        node("Add", ["i3", "scaled"], ["features"]),
    ]
    return net(body, "features", 3, {"column": ints(1, 3, 1, 1)})


def old_file() -> onnx.ModelProto:
    """Opset 7, and its weights listed as inputs."""
    body = [node("Conv", ["image", "w"], ["c"]), node("Relu", ["c"], ["r"]), node("Dropout", ["r"], ["d"])]
    model = net(body, "d", 6, {"w": f32(6, 3, 3, 3)}, opset=7, ir_version=3)
    model.graph.input.extend(onnx_models.value(t.name, list(t.dims)) for t in model.graph.initializer)
    return with_softmax(model)


def with_function() -> onnx.ModelProto:
    model = convolutional()
    opsets = [helper.make_opsetid("", 17)]
    body = [node("Softmax", ["x"], ["y"], axis=-1)]
    model.functions.append(helper.make_function("vendor", "Head", ["x"], ["y"], body, opsets))
    model.opset_import.append(helper.make_opsetid("vendor", 1))
    return with_softmax(model, node("Head", ["logits"], ["probs"], domain="vendor"))


def run(model: onnx.ModelProto, rows: Array | None = None, **weights: Array) -> Array:
    """Scores as onnxruntime computes them on the CPU."""
    rows = f32(4, 3, 8, 8, seed=5) if rows is None else rows
    return Session(model, CPU, weights).run({"image": rows})[0]


def run_half(model: onnx.ModelProto, rows: Array | None = None, **weights: Array) -> Array:
    """Scores of the float16 graph as onnxruntime computes them on the CPU, some steps of it in float32."""
    half, halved = to_float16(model, weights)
    return run(half, rows, **halved)


def run_in_true_float16(model: onnx.ModelProto, rows: Array | None = None) -> Array:
    """Scores of the float16 graph where every step is float16: the CPU runtime computes many of them in float32."""
    rows = f32(4, 3, 8, 8, seed=5) if rows is None else rows
    half, _ = to_float16(model, {})
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(half).run(None, {"image": rows})[0])


MODELS = {
    "convolution": convolutional, "convolution, softmax": lambda: with_softmax(convolutional()),
    "attention": attention, "attention, softmax": lambda: with_softmax(attention()),
    "constants": residual_with_constants, "opset 7": old_file, "local function": with_function,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_scores_stay_within_a_hundredth(name: str) -> None:
    model = MODELS[name]()
    expected, found = run(model), run_half(model)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-2 * np.abs(expected).max())
    assert not np.array_equal(found, expected), "nothing was computed in float16"


@pytest.mark.parametrize("name", MODELS)
def test_names_and_types_outside_are_unchanged(name: str) -> None:
    model = MODELS[name]()
    before = model.SerializeToString()
    half, _ = to_float16(model, {})
    session = Session(half, CPU)
    assert session.inputs == ["image"]
    assert session.outputs == [model.graph.output[0].name]
    assert half.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert half.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert model.SerializeToString() == before, "the given model was changed"


def test_float_weights_are_halved_and_others_left() -> None:
    half, _ = to_float16(attention(), {})
    kinds = {t.name: t.data_type for t in half.graph.initializer}
    assert kinds["w"] == kinds["head_w"] == TensorProto.FLOAT16
    assert kinds["tokens"] == TensorProto.INT64


def test_weights_beside_the_graph_are_halved() -> None:
    """A weight too large for the file lies beside the graph; both its declaration and its array change."""
    model = convolutional()
    beside: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.name in ("w", "head_w"):
            beside[tensor.name] = numpy_helper.to_array(tensor).copy()
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=HELD_IN_MEMORY)
    half, weights = to_float16(model, beside)
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float16)}
    assert {t.data_type for t in half.graph.initializer} == {TensorProto.FLOAT16}
    assert beside["w"].dtype == np.float32
    expected = run(convolutional())
    np.testing.assert_allclose(run_half(model, **beside), expected, atol=1e-2 * np.abs(expected).max())


@pytest.mark.parametrize("mask", [-1e9, -3.4e38, -np.inf])
def test_masks_hide_without_becoming_nan(mask: float) -> None:
    model = attention(mask)
    expected, found = run(model), run_half(model)
    np.testing.assert_allclose(found, expected, atol=1e-2 * np.abs(expected).max())
    np.testing.assert_allclose(run_in_true_float16(model), expected, atol=1e-2 * np.abs(expected).max())


def test_masks_that_are_added_twice_do_not_become_nan() -> None:
    """Two large negative numbers that meet in float16 overflow; a row that is hidden as a whole must stay finite."""
    model = attention(-6e4)
    for entry in model.graph.node:
        if entry.op_type == "Softmax":
            entry.input[0] = "masked twice"
    position = next(i for i, entry in enumerate(model.graph.node) if entry.op_type == "Softmax")
    model.graph.node.insert(position, node("Add", ["masked", "mask"], ["masked twice"]))
    assert np.isfinite(run_in_true_float16(model)).all()


@pytest.mark.parametrize("constant", ["initializer", "node"])
def test_the_scales_of_a_resize_stay_exact(constant: str) -> None:
    """16/7 in float16 is a little less, and 7 pixels would become 15."""
    weights = {"w": f32(6, 3, 2, 2), "scales": np.array([1, 1, 16 / 7, 16 / 7], np.float32), "roi": f32(0)}
    body = [
        node("Conv", ["image", "w"], ["c"]),
        node("Resize", ["c", "roi", "scales"], ["up"], mode="nearest"),
        node("Conv", ["up", "whole"], ["r"], kernel_shape=[16, 16]),
    ]
    if constant == "node":
        body.insert(0, node("Constant", [], ["scales"], value=numpy_helper.from_array(weights.pop("scales"))))
    model = net(body, "r", 6, weights | {"whole": f32(6, 6, 16, 16, scale=0.05)})
    expected = run(model)
    np.testing.assert_allclose(run_half(model), expected, atol=1e-2 * np.abs(expected).max())


def test_the_scales_of_an_old_upsample_stay_exact() -> None:
    weights = {"w": f32(6, 3, 2, 2), "scales": np.array([1, 1, 16 / 7, 16 / 7], np.float32)}
    body = [
        node("Conv", ["image", "w"], ["c"]),
        node("Upsample", ["c", "scales"], ["up"], mode="nearest"),
        node("Conv", ["up", "whole"], ["r"], kernel_shape=[16, 16]),
    ]
    model = net(body, "r", 6, weights | {"whole": f32(6, 6, 16, 16, scale=0.05)}, opset=9)
    expected = run(model)
    np.testing.assert_allclose(run_half(model), expected, atol=1e-2 * np.abs(expected).max())


def sharp(*nodes: onnx.NodeProto, out: str, gain: float = 40.0, **weights: Array) -> onnx.ModelProto:
    """Logits of some tens, then a closing of one's own."""
    model = with_softmax(convolutional(), *nodes, out=out)
    for tensor in model.graph.initializer:
        if tensor.name.startswith("head"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(gain), tensor.name))
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def test_small_probabilities_survive() -> None:
    """A probability of 1e-12 is zero in float16; the closing softmax and its way out are in float32."""
    model = sharp(node("Softmax", ["logits"], ["probs"], axis=1), out="probs", gain=10)
    expected, found = run(model), run_in_true_float16(model)
    assert expected.min() < 1e-8
    assert (found[expected > 1e-30] > 0).all()


@pytest.mark.parametrize("operators", [["LogSoftmax"], ["Softmax", "Log"], ["Softmax", "Identity", "Log", "Identity"]])
def test_log_probabilities_stay_finite(operators: list[str]) -> None:
    names = ["logits", *(f"step{i}" for i in range(len(operators) - 1)), "logp"]
    nodes = [node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(operators)]
    model = sharp(*nodes, out="logp", gain=5)
    expected, found = run(model), run_in_true_float16(model)
    assert np.isfinite(expected).all()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())


def test_a_softmax_written_out_by_hand_stays_finite() -> None:
    """exp(12) is more than float16 holds."""
    nodes = [
        node("Exp", ["logits"], ["e"]),
        node("ReduceSum", ["e", "axis"], ["total"], keepdims=1),
        node("Div", ["e", "total"], ["probs"]),
    ]
    model = sharp(*nodes, out="probs", gain=6, axis=ints(1))
    expected, found = run(model), run_in_true_float16(model)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, atol=3e-2)


def quantised(kind: str) -> onnx.ModelProto:
    """Eight-bit arithmetic in its three dresses."""
    weights: dict[str, Array] = {
        "wq": np.random.default_rng(7).integers(-127, 127, (6, 3, 3, 3), dtype=np.int8), "s": np.float32(0.04),
        "z": np.uint8(110), "ws": np.float32(0.01), "wz": np.int8(0), "os": np.float32(0.1),
    }  # fmt: skip
    quantise = node("QuantizeLinear", ["image", "s", "z"], ["q"])
    body = {
        "around": [
            quantise,
            node("DequantizeLinear", ["q", "s", "z"], ["dq"]),
            node("DequantizeLinear", ["wq", "ws", "wz"], ["w"]),
            node("Conv", ["dq", "w"], ["features"]),
        ],
        "operators": [
            quantise,
            node("QLinearConv", ["q", "s", "z", "wq", "ws", "wz", "os", "z"], ["cq"]),
            node("DequantizeLinear", ["cq", "os", "z"], ["features"]),
        ],
        "dynamic": [
            node("DynamicQuantizeLinear", ["image"], ["q", "ds", "dz"]),
            node("ConvInteger", ["q", "wq", "dz", "wz"], ["ci"]),
            node("Cast", ["ci"], ["cf"], to=TensorProto.FLOAT),
            node("Mul", ["ds", "ws"], ["both"]),
            node("Mul", ["cf", "both"], ["features"]),
        ],
    }[kind]
    return net(body, "features", 6, weights)


@pytest.mark.parametrize("kind", ["around", "operators", "dynamic"])
def test_quantised_models_are_refused(kind: str) -> None:
    """Sums of eight-bit products exceed float16, and steps of 1e-8 vanish in it; nothing is gained either."""
    assert np.isfinite(run(quantised(kind))).all()
    with pytest.raises(BadInput, match=r"float16.*quantised"):
        to_float16(quantised(kind), {})


def test_normalisation_of_bytes_inside_the_graph_is_kept() -> None:
    body = [
        node("Cast", ["image"], ["cast"], to=TensorProto.FLOAT),
        node("Sub", ["cast", "mean"], ["centred"]),
        node("Div", ["centred", "deviation"], ["scaled"]),
        node("Conv", ["scaled", "w"], ["features"]),
    ]
    weights = {"mean": np.float32(123.675), "deviation": np.float32(58.395), "w": f32(6, 3, 3, 3)}
    model = net(body, "features", 6, weights)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    rows = np.random.default_rng(6).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
    expected = run(model, rows)
    np.testing.assert_allclose(run_half(model, rows), expected, atol=1e-2 * np.abs(expected).max())


def test_operators_of_the_ml_domain_stay_in_float32() -> None:
    """Normalizer and its kin give float32 whatever they are fed."""
    model = with_softmax(convolutional(), node("Abs", ["logits"], ["positive"]), out="probs")
    model.graph.node.append(node("Normalizer", ["positive"], ["probs"], domain="ai.onnx.ml", norm="L1"))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    expected = run(model)
    np.testing.assert_allclose(run_half(model), expected, atol=1e-2)


@pytest.mark.parametrize("operator", ["If", "Loop"])
def test_graphs_within_graphs_are_refused(operator: str) -> None:
    model = convolutional()
    if operator == "If":
        branch = helper.make_graph([node("Identity", ["logits"], ["y"])], "b", [], [onnx_models.value("y", None)])
        added = node("If", ["on"], ["out"], then_branch=branch, else_branch=branch)
    else:
        scalar = onnx_models.value("i", [], TensorProto.INT64), onnx_models.value("go", [], TensorProto.BOOL)
        steps = [node("Identity", ["go"], ["go2"]), node("Add", ["x", "x"], ["x2"])]
        outputs = [onnx_models.value("go2", [], TensorProto.BOOL), onnx_models.value("x2", None)]
        body = helper.make_graph(steps, "b", [*scalar, onnx_models.value("x", None)], outputs)
        added = node("Loop", ["count", "on", "logits"], ["out"], body=body)
    model.graph.node.append(added)
    model.graph.initializer.extend([
        numpy_helper.from_array(np.array(True), "on"), numpy_helper.from_array(np.array(2, np.int64), "count")
    ])  # fmt: skip
    model.graph.output[0].CopyFrom(onnx_models.value("out", ["N", 5]))
    assert np.isfinite(run(model)).all()
    with pytest.raises(BadInput, match="strict or tf32"):
        to_float16(model, {})
