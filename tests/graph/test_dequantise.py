"""Quantised graphs without their rounding: every operator stays within rounding, and gradients are theirs."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from auditkit.errors import BadInput
from auditkit.graph.dequantise import PLAIN, QUANTISED, dequantised, is_quantised, rounds
from auditkit.graph.gradient.export import METADATA
from auditkit.model import gradient
from auditkit.model.session import Session
from tests.model.test_derived_gradient import opened, ran
from tests.support import onnx_models
from tests.support.gradient_checks import CPU

make = helper.make_node
rng = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def _draws() -> None:
    """Every test draws the same, whichever ran before it."""
    rng.bit_generator.state = np.random.default_rng(11).bit_generator.state


STEP, MIDDLE = np.float32(0.04), np.uint8(120)
COMMON = {"s": STEP, "z": MIDDLE, "t": np.float32(0.1), "u": np.uint8(100)}
WEIGHTS = {
    "w": rng.integers(-127, 127, (4, 3, 3, 3), dtype=np.int8), "ws": rng.uniform(0.005, 0.02, 4).astype(np.float32),
    "wz": np.zeros(4, np.int8), "b": rng.integers(-900, 900, 4, dtype=np.int32),
    "m": rng.integers(0, 255, (6, 4), dtype=np.uint8), "ms": np.float32(0.01), "mz": np.uint8(128),
    "cs": rng.uniform(0.005, 0.02, 4).astype(np.float32), "cz": np.zeros(4, np.int8), "cb": np.float32([1, -2, 3, 0]),
    "n": rng.integers(-127, 127, (6, 4), dtype=np.int8), "ns": np.float32(0.02), "nz": np.int8(0),
}  # fmt: skip
OURS = "com.microsoft"


def around(*inner: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Quantise 'x', run something on the whole numbers 'q', give their result 'r' back as floats."""
    before, after = make("QuantizeLinear", ["x", "s", "z"], ["q"]), make("DequantizeLinear", ["r", "t", "u"], ["y"])
    return [before, *inner, after]


Q, R = ["q", "s", "z"], ["t", "u"]
IMAGE, MATRIX, ROWS = (3, 6, 6), (2, 6), (6,)
FORMS: dict[str, tuple[list[onnx.NodeProto], tuple[int, ...]]] = {
    "QuantizeLinear": ([make("QuantizeLinear", ["x", "s", "z"], ["q"]), make("DequantizeLinear", Q, ["y"])], IMAGE),
    "DequantizeLinear": (
        around(make("MaxPool", ["q"], ["p"], kernel_shape=[2, 2]), make("Identity", ["p"], ["r"])), IMAGE),
    "QLinearConv": (around(make("QLinearConv", [*Q, "w", "ws", "wz", *R, "b"], ["r"], pads=[1, 1, 1, 1])), IMAGE),
    "QLinearMatMul": (around(make("QLinearMatMul", [*Q, "m", "ms", "mz", *R], ["r"])), MATRIX),
    "QLinearAdd": (around(make("QLinearAdd", [*Q, *Q, *R], ["r"], domain=OURS)), IMAGE),
    "QLinearMul": (around(make("QLinearMul", [*Q, *Q, *R], ["r"], domain=OURS)), IMAGE),
    "QLinearSigmoid": (around(make("QLinearSigmoid", [*Q, *R], ["r"], domain=OURS)), IMAGE),
    "QLinearLeakyRelu": (around(make("QLinearLeakyRelu", [*Q, *R], ["r"], alpha=0.2, domain=OURS)), IMAGE),
    "QLinearSoftmax": (around(make("QLinearSoftmax", [*Q, *R], ["r"], axis=1, opset=17, domain=OURS)), ROWS),
    "QLinearAveragePool": (
        around(make("QLinearAveragePool", [*Q, *R], ["r"], kernel_shape=[2, 2], channels_last=0, domain=OURS)), IMAGE),
    "QLinearGlobalAveragePool": (
        around(make("QLinearGlobalAveragePool", [*Q, *R], ["r"], channels_last=0, domain=OURS)), IMAGE),
    "QLinearConcat": (around(make("QLinearConcat", [*R, *Q, *Q], ["r"], axis=1, domain=OURS)), IMAGE),
    "QGemm": (around(make("QGemm", [*Q, "n", "ns", "nz", "b", *R], ["r"], alpha=1.0, domain=OURS)), ROWS),
    "DynamicQuantizeLinear": ([
        make("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        make("DequantizeLinear", ["q", "qs", "qz"], ["y"])], IMAGE),
    "ConvInteger": ([
        make("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]), make("ConvInteger", ["q", "w", "qz"], ["i"]),
        make("Cast", ["i"], ["f"], to=1), make("Mul", ["qs", "ms"], ["both"]), make("Mul", ["f", "both"], ["y"]),
    ], IMAGE),
    "MatMulInteger": ([
        make("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        make("MatMulInteger", ["q", "m", "qz", "mz"], ["i"]), make("Cast", ["i"], ["f"], to=1),
        make("Mul", ["qs", "ms"], ["both"]), make("Mul", ["f", "both"], ["y"])], MATRIX),
    "DynamicQuantizeMatMul": ([
        make("DynamicQuantizeMatMul", ["x", "n", "cs", "cz", "cb"], ["y"], domain=OURS)], MATRIX),
    "MatMulIntegerToFloat": ([
        make("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        make("MatMulIntegerToFloat", ["q", "n", "qs", "cs", "qz"], ["y"], domain=OURS)], MATRIX),
}  # fmt: skip


SUMS_OF_PRODUCTS = {"QLinearConv", "QGemm", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"}


def model_of(nodes: list[onnx.NodeProto], shape: tuple[int, ...]) -> onnx.ModelProto:
    read = {name for node in nodes for name in node.input}
    weights = {name: np.asarray(array) for name, array in (COMMON | WEIGHTS).items() if name in read}
    model = onnx_models.model(nodes, [onnx_models.value("x", ["N", *shape])], [onnx_models.value("y", None)], weights)
    model.opset_import.append(helper.make_opsetid(OURS, 1))
    return model


@pytest.mark.parametrize("operator", FORMS)
def test_without_rounding_the_result_stays_within_it(operator: str) -> None:
    if operator in SUMS_OF_PRODUCTS and onnx_models.int8_saturates():
        pytest.skip("sums of eight-bit products overflow in the runtime on this processor")
    model = model_of(*FORMS[operator])
    x = rng.uniform(-6, 6, (3, *FORMS[operator][1])).astype(np.float32)  # beyond what eight bits hold here
    expected = Session(model, CPU).run({"x": x})[0]
    real = dequantised(model)
    assert not is_quantised(real)
    found = Session(real, CPU).run({"x": x})[0]
    # Half a step at the beginning, at the end, and what the operator makes of the first.
    assert np.abs(found - expected).max() <= 0.05 + 0.5 * float(COMMON["t"]) + 0.02 * np.abs(expected).max()
    assert not np.array_equal(found, expected) or operator == "QLinearSoftmax"


def test_every_form_has_a_case() -> None:
    assert set(FORMS) == QUANTISED
    assert set(PLAIN) <= QUANTISED


def test_a_pair_is_a_clip() -> None:
    real = dequantised(model_of(*FORMS["QuantizeLinear"]))
    x = np.array([-9.0, 0.013, 9.0], np.float32).repeat(36).reshape(1, 3, 6, 6)
    found = Session(real, CPU).run({"x": x})[0]
    lowest, highest = (0 - 120) * 0.04, (255 - 120) * 0.04
    np.testing.assert_allclose(found[0, :, 0, 0], [lowest, 0.013, highest], rtol=1e-6)


def test_rounded_weights_alone_leave_gradients_exact() -> None:
    nodes = [make("DequantizeLinear", ["n", "ns", "nz"], ["g"]), make("MatMul", ["x", "g"], ["y"])]
    assert not rounds(model_of(nodes, ROWS), "x")
    assert rounds(model_of(*FORMS["QGemm"]), "x")


def test_the_file_has_the_vendors_scores_and_the_gradient_of_the_model_without_rounding(tmp_path: Path) -> None:
    nodes = [
        make("QuantizeLinear", ["image", "s", "z"], ["q"]), make("DequantizeLinear", ["q", "s", "z"], ["d"]),
        make("DequantizeLinear", ["w", "ws", "wz"], ["k"], axis=0), make("Conv", ["d", "k"], ["c"], pads=[1, 1, 1, 1]),
        make("QuantizeLinear", ["c", "t", "none"], ["e"]), make("DequantizeLinear", ["e", "t", "none"], ["r"]),
        make("GlobalAveragePool", ["r"], ["p"]), make("Flatten", ["p"], ["f"]), make("Gemm", ["f", "h"], ["logits"]),
    ]  # fmt: skip
    head = rng.standard_normal((4, 5)).astype(np.float32)
    weights = {**COMMON, **{name: WEIGHTS[name] for name in ("w", "ws", "wz")}, "none": np.uint8(0), "h": head}
    del weights["u"]
    ends = [onnx_models.value("image", ["N", 3, 8, 8])], [onnx_models.value("logits", ["N", 5])]
    model = onnx_models.model(nodes, *ends, {name: np.asarray(array) for name, array in weights.items()})
    found = gradient.differentiate(opened(model, tmp_path))
    assert found.surrogate
    image, seed = rng.uniform(-2, 2, (3, 3, 8, 8)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    result = ran(found, tmp_path, image=image, seed=seed)
    plain = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(result["logits"], plain.run(None, {"image": image})[0])
    record = json.loads({p.key: p.value for p in onnx.load(tmp_path / "out.onnx").metadata_props}[METADATA])
    assert record["surrogate"]

    real = dequantised(model)
    (tmp_path / "real").mkdir()
    exact = gradient.differentiate(opened(real, tmp_path / "real"))
    assert not exact.surrogate
    theirs = ran(exact, tmp_path / "real", image=image, seed=seed)["gradient"]
    np.testing.assert_allclose(result["gradient"], theirs, rtol=1e-5, atol=1e-6)
    assert np.abs(theirs).max() > 0

    (tmp_path / "again").mkdir()
    again = gradient.differentiate(opened(onnx.load(tmp_path / "out.onnx"), tmp_path / "again"))
    assert (again.surrogate, again.vendors_own) == (True, False)
    same = ran(again, tmp_path / "again", image=image, seed=seed)["gradient"]
    np.testing.assert_array_equal(same, result["gradient"])


def test_weights_rounded_in_blocks_are_left_alone() -> None:
    nodes = [
        make("DequantizeLinear", ["n", "bs", "bz"], ["g"], axis=0, block_size=3), make("MatMul", ["x", "g"], ["y"]),
    ]  # fmt: skip
    weights = {"n": WEIGHTS["n"], "bs": rng.uniform(0.1, 1, (2, 4)).astype(np.float32), "bz": np.zeros((2, 4), np.int8)}
    model = onnx_models.model(
        nodes, [onnx_models.value("x", ["N", 6])], [onnx_models.value("y", None)], weights, opset=21, ir_version=10
    )
    x = rng.standard_normal((3, 6)).astype(np.float32)
    np.testing.assert_array_equal(
        Session(dequantised(model), CPU).run({"x": x})[0], Session(model, CPU).run({"x": x})[0]
    )


def test_an_unknown_kind_of_rounding_is_told() -> None:
    nodes = [make("QuantizeLinear", ["x", "s"], ["q"], output_dtype=onnx.TensorProto.FLOAT8E4M3FN),
             make("DequantizeLinear", ["q", "s"], ["y"])]  # fmt: skip
    model = onnx_models.model(
        nodes, [onnx_models.value("x", ["N", 6])], [onnx_models.value("y", None)], {"s": np.asarray(STEP)}, opset=21
    )
    with pytest.raises(BadInput, match="float8e4m3fn"):
        dequantised(model)
