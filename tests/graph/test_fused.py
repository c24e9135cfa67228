"""Operators that onnxruntime writes: spelled out, they compute the same, and an optimised file keeps its gradient."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import auditkit
from auditkit.errors import NoGradient
from auditkit.graph import edit, fused
from auditkit.graph.gradient import missing_rules
from auditkit.model import gradient
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.session import Session
from tests.model.test_derived_gradient import opened, ran
from tests.support import onnx_models
from tests.support.gradient_checks import CPU

make = helper.make_node
rng = np.random.default_rng(5)
OURS = "com.microsoft"


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


WEIGHTS = {
    "w": normal(4, 3, 3, 3), "b": normal(4), "m": normal(6, 4), "n": normal(4, 6), "h": normal(2, 6, 5), "f": normal(6),
    "g": normal(6), "s": np.float32(0.04), "z": np.uint8(120), "t": np.float32(0.1), "u": np.uint8(100),
    "qw": rng.integers(-127, 127, (4, 3, 3, 3), dtype=np.int8), "ws": np.full(4, 0.01, np.float32),
    "wz": np.zeros(4, np.int8), "ten": np.float32(10),
}  # fmt: skip
IMAGE, TOKENS, ROWS, LAST = (3, 6, 6), (5, 6), (6,), (6, 6, 3)


def conv(activation: str, *numbers: float) -> list[onnx.NodeProto]:
    parameters = {"activation_params": list(numbers)} if numbers else {}
    return [make("FusedConv", ["x", "w", "b"], ["y"], domain=OURS, activation=activation, pads=[1] * 4, **parameters)]


def quantised(operator: str, *operands: str, **attributes: object) -> list[onnx.NodeProto]:
    """On whole numbers with the channels last."""
    return [
        make("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make(operator, ["q", *operands], ["r"], domain=OURS, **attributes),
        make("DequantizeLinear", ["r", "t", "u"], ["y"]),
    ]


FORMS: dict[str, tuple[list[onnx.NodeProto], tuple[int, ...]]] = {
    "FusedConv Relu": (conv("Relu"), IMAGE),
    "FusedConv Clip": (conv("Clip", -0.5, 1.5), IMAGE),
    "FusedConv LeakyRelu": (conv("LeakyRelu", 0.3), IMAGE),
    "FusedConv HardSigmoid": (conv("HardSigmoid", 0.3, 0.4), IMAGE),
    "FusedConv summand": ([
        make("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        make("FusedConv", ["x", "w", "b", "c"], ["y"], domain=OURS, activation="Tanh", pads=[1] * 4)], IMAGE),
    "FusedGemm": ([make("FusedGemm", ["x", "n", "b"], ["y"], domain=OURS, activation="LeakyRelu", transB=1,
                        activation_alpha=0.3)], ROWS),
    "FusedMatMul": ([make("FusedMatMul", ["x", "n"], ["y"], domain=OURS, alpha=0.3, transB=1)], TOKENS),
    "FusedMatMul left": ([make("FusedMatMul", ["x", "x"], ["y"], domain=OURS, alpha=2.0, transA=1)], TOKENS),
    "Gelu": ([make("Gelu", ["x"], ["y"], domain=OURS)], TOKENS),
    "BiasGelu": ([make("BiasGelu", ["x", "f"], ["y"], domain=OURS)], TOKENS),
    "FastGelu": ([make("FastGelu", ["x", "f"], ["y"], domain=OURS)], TOKENS),
    "FastGelu plain": ([make("FastGelu", ["x"], ["y"], domain=OURS)], TOKENS),
    "QuickGelu": ([make("QuickGelu", ["x"], ["y"], domain=OURS, alpha=1.3)], TOKENS),
    "LayerNormalization": ([make("LayerNormalization", ["x", "f", "g"], ["y"], epsilon=0.1)], TOKENS),
    "SimplifiedLayerNormalization": ([make("SimplifiedLayerNormalization", ["x", "f"], ["y"], epsilon=0.1)], TOKENS),
    "SkipLayerNormalization": ([
        make("SkipLayerNormalization", ["x", "x", "f", "g", "f"], ["scaled", "", "", "sum"], domain=OURS, epsilon=0.1),
        make("Add", ["scaled", "sum"], ["y"])], TOKENS),
    "SkipSimplifiedLayerNormalization": ([
        make("SkipSimplifiedLayerNormalization", ["x", "x", "f", "g"], ["y"], domain=OURS, epsilon=0.1)], TOKENS),
    "QLinearConv": (
        quantised("QLinearConv", "s", "z", "qw", "ws", "wz", "t", "u", channels_last=1, pads=[1] * 4), LAST),
    "QLinearAveragePool": (
        quantised("QLinearAveragePool", "s", "z", "t", "u", channels_last=1, kernel_shape=[2, 2]), LAST),
    "QLinearGlobalAveragePool": (quantised("QLinearGlobalAveragePool", "s", "z", "t", "u", channels_last=1), LAST),
    "NhwcMaxPool": (quantised("NhwcMaxPool", kernel_shape=[2, 2], strides=[2, 1]), LAST),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_same_is_computed(form: str) -> None:
    nodes, shape = FORMS[form]
    read = edit.names_read(*nodes)
    weights = {name: np.asarray(array) for name, array in WEIGHTS.items() if name in read}
    opset = 16 if form == "LayerNormalization" else 18  # the runtime writes it into older files, too
    x, y = onnx_models.value("x", ["N", *shape]), onnx_models.value("y", None)
    model = onnx_models.model(nodes, [x], [y], weights, opset=opset)
    model.opset_import.append(helper.make_opsetid(OURS, 1))
    plain = fused.spelled_out(model, {name: len(shape) + 1 for name in edit.all_names(model.graph)} | {"n": 2})
    assert not any(fused.is_fused(node, opset) for node in plain.graph.node)
    image = rng.uniform(-3, 3, (2, *shape)).astype(np.float32)
    expected, result = (Session(each, CPU).run({"x": image})[0] for each in (model, plain))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6)


def test_every_rewrite_has_a_case() -> None:
    names = {form.split()[0] for form in FORMS}
    assert fused._FUSED.keys() | fused._NORMALISATIONS.keys() <= names


def optimised(folder: Path, level: str) -> onnx.ModelProto:
    """What onnxruntime saves of a network with a convolution and a perceptron."""
    nodes = [
        make("Conv", ["image", "w"], ["c"], pads=[1] * 4), make("Relu", ["c"], ["r"]),
        make("ReduceMean", ["r"], ["p"], axes=[2, 3], keepdims=0), make("MatMul", ["p", "up"], ["a"]),
        make("Add", ["a", "f"], ["d"]), make("Div", ["d", "root"], ["e"]), make("Erf", ["e"], ["erf"]),
        make("Add", ["erf", "one"], ["o"]), make("Mul", ["d", "o"], ["v"]), make("Mul", ["v", "half"], ["gelu"]),
        make("MatMul", ["gelu", "down"], ["logits"]),
    ]  # fmt: skip
    numbers = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    weights = numbers | {"w": normal(8, 3, 3, 3), "up": normal(8, 6), "f": normal(6), "down": normal(6, 5)}
    ends = [onnx_models.value("image", ["N", 3, 8, 8])], [onnx_models.value("logits", ["N", 5])]
    path = onnx_models.save(onnx_models.model(nodes, *ends, {n: np.asarray(w) for n, w in weights.items()}), folder)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimised.onnx")


def test_an_optimised_file_has_the_gradient_of_the_file_before(tmp_path: Path) -> None:
    proto = optimised(tmp_path, "EXTENDED")
    assert {"FusedConv", "Gelu"} <= {node.op_type for node in proto.graph.node}
    assert missing_rules(proto, "image", "logits") == []
    before = auditkit.load(tmp_path / "model.onnx", settings=CPU)
    assert isinstance(before, OnnxClassifier)
    feeds = {"image": normal(2, 3, 8, 8), "seed": normal(2, 5)}
    results = [ran(gradient.differentiate(model), tmp_path, **feeds) for model in (before, opened(proto, tmp_path))]
    for name in ("logits", "gradient"):
        np.testing.assert_allclose(results[1][name], results[0][name], rtol=1e-4, atol=1e-5)


def test_a_file_laid_out_for_one_machine_is_named_as_such(tmp_path: Path) -> None:
    proto = optimised(tmp_path, "ALL")
    if not any(node.domain == "com.microsoft.nchwc" for node in proto.graph.node):
        pytest.skip("onnxruntime has no such layout on this machine")
    with pytest.raises(NoGradient, match=r"for the processor of one machine .* before onnxruntime optimised it"):
        gradient.ready(opened(proto, tmp_path))


def test_a_layout_for_one_machine_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    model = opened(onnx_models.convnet(), tmp_path)
    model.graph.graph.node[0].domain = "com.microsoft.nchwc"
    with pytest.raises(NoGradient, match=r"of one machine \(1 node of com\.microsoft\.nchwc, first 'conv'\)"):
        gradient.ready(model)


def quantised_convolution(axes: list[int], **layout: int) -> onnx.ModelProto:
    """A network of whole numbers, whose scores are means over two axes."""
    operands = ("s", "z", "qw", "ws", "wz", "t", "u")
    nodes = [
        make("Transpose", ["image"], ["x"], perm=[0, 2, 3, 1] if layout else [0, 1, 2, 3]),
        *quantised("QLinearConv", *operands, pads=[1] * 4, **layout),
        make("ReduceMean", ["y"], ["p"], axes=axes, keepdims=0), make("MatMul", ["p", "n"], ["logits"]),
    ]  # fmt: skip
    nodes[2].domain = OURS if layout else ""
    weights = {name: np.asarray(array) for name, array in WEIGHTS.items() if name in edit.names_read(*nodes)}
    ends = [onnx_models.value("image", ["N", 3, 6, 6])], [onnx_models.value("logits", ["N", 6])]
    model = onnx_models.model(nodes, *ends, weights)
    model.opset_import.append(helper.make_opsetid(OURS, 1))
    return model


def test_with_channels_last_a_quantised_file_has_the_gradient_of_channels_first(tmp_path: Path) -> None:
    feeds = {"image": normal(2, 3, 6, 6), "seed": normal(2, 6)}
    files = quantised_convolution([2, 3]), quantised_convolution([1, 2], channels_last=1)
    first, last = (ran(gradient.differentiate(opened(proto, tmp_path)), tmp_path, **feeds) for proto in files)
    assert np.abs(first["gradient"]).max() > 0
    for name in ("logits", "gradient"):
        np.testing.assert_allclose(last[name], first[name], rtol=1e-4, atol=1e-5)
