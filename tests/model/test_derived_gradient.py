"""Differentiation as a whole: the walk, the forms of files it takes, the file it writes, the check that guards it."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import auditkit
from auditkit.cli.differentiate import write
from auditkit.errors import BadInput, NoGradient
from auditkit.graph import canonical
from auditkit.graph.gradient import RULES, export, missing_rules
from auditkit.graph.gradient.export import METADATA
from auditkit.model import gradient, gradient_check
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.session import Session, folded
from tests.support import onnx_models
from tests.support.commands import auditkit as command
from tests.support.gradient_checks import CPU, joined, node, one_node, worst_error

Array = np.ndarray[Any, Any]
make = helper.make_node
IMAGE, LOGITS = onnx_models.value("image", ["N", 3, 8, 8]), onnx_models.value("logits", ["N", 5])
rng = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def _draws() -> None:
    """Every test draws the same, whichever ran before it."""
    rng.bit_generator.state = np.random.default_rng(3).bit_generator.state


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def opened(proto: onnx.ModelProto, folder: Path) -> OnnxClassifier:
    found = auditkit.load(onnx_models.save(proto, folder), settings=CPU)
    assert isinstance(found, OnnxClassifier)
    return found


def ran(found: gradient.Differentiated, folder: Path, **feeds: Array) -> dict[str, Array]:
    """The outputs of the written file, in a plain onnxruntime."""
    write(found, folder / "out.onnx")
    session = onnxruntime.InferenceSession(folder / "out.onnx", providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def linear(**kwargs: Any) -> tuple[onnx.ModelProto, Array]:
    """Logits = pixels times a matrix: the gradient is the matrix."""
    matrix = normal(192, 5)
    nodes = [make("Flatten", ["image"], ["f"]), make("MatMul", ["f", "m"], ["logits"])]
    return onnx_models.model(nodes, [IMAGE], [LOGITS], {"m": matrix}, **kwargs), matrix


def test_large_weights_are_written_beside_the_file(tmp_path: Path) -> None:
    """As those of a model of several gigabytes, which no single file can hold."""
    proto, _ = linear()
    found, feeds = gradient.differentiate(opened(proto, tmp_path)), {"image": normal(2, 3, 8, 8), "seed": normal(2, 5)}
    expected = ran(found, tmp_path, **feeds)
    large = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in found.model.graph.initializer if len(tensor.dims) > 1
    }
    for tensor in found.model.graph.initializer:
        if tensor.name in large:
            tensor.ClearField("raw_data")
    apart = ran(replace(found, weights=large), tmp_path, **feeds)
    assert (tmp_path / "out.onnx.data").stat().st_size == sum(values.nbytes for values in large.values())
    assert all((apart[name] == expected[name]).all() for name in expected)
    done = command("differentiate", tmp_path / "model.onnx", "-o", tmp_path / "out.onnx")
    assert (done.returncode, "out.onnx already exists" in done.stderr) == (2, True)


# The walk


def test_gradients_of_a_tensor_read_several_times_are_summed() -> None:
    nodes = [
        make("Sin", ["x"], ["s"]), make("Mul", ["s", "x"], ["p"]), make("Sum", ["p", "x", "s", "x"], ["y"]),
    ]  # fmt: skip
    assert worst_error(one_node(nodes, normal(3, 4)), normal(3, 4)) < 1e-5


def test_only_nodes_on_the_path_need_rules() -> None:
    nodes = [
        make("NonZero", ["w"], ["places"]), make("Cast", ["places"], ["f"], to=TensorProto.FLOAT),
        make("ReduceMax", ["f"], ["m"], keepdims=0), make("Mul", ["x", "m"], ["y"]), make("Det", ["x"], ["aside"]),
    ]  # fmt: skip
    x = normal(3, 4, 4)
    graph = joined(one_node(nodes, x, {"w": normal(3, 4)}), [{"x": x}, {"x": x[:2]}])
    found = Session(graph, CPU).run({"x": x, "seed": x}, ["gradient"])[0]
    np.testing.assert_array_equal(found, 3 * x)


def test_integers_and_roundings_carry_no_gradient() -> None:
    nodes = [make("Floor", ["x"], ["whole"]), make("Sub", ["x", "whole"], ["y"])]
    x = normal(3, 4)
    graph = joined(one_node(nodes, x), [{"x": x}, {"x": x[:2]}])
    np.testing.assert_array_equal(Session(graph, CPU).run({"x": x, "seed": x}, ["gradient"])[0], x)


def test_all_that_is_missing_is_told_at_once_with_the_way_out() -> None:
    nodes = [
        make("Det", ["x"], ["a"], name="first_det"), make("Det", ["x"], ["b"], name="second_det"),
        make("Einsum", ["x"], ["c"], name="diagonal", equation="bii->b"), make("Sum", ["a", "b", "c"], ["y"]),
    ]  # fmt: skip
    x = normal(3, 4, 4)
    model = one_node(nodes, x)
    with pytest.raises(BadInput) as told:
        joined(model, [{"x": x}, {"x": x[:2]}])
    for word in ("Det (2 nodes, first 'first_det')", "Einsum (1 node", "diagonal", "--gradient differences", "export"):
        assert word in str(told.value)
    (missing,) = missing_rules(model, "x", "y")
    assert (missing.op, missing.count, missing.first_node) == ("Det", 2, "first_det")


def test_scores_that_do_not_depend_on_the_image_are_told() -> None:
    x = normal(3, 4)
    with pytest.raises(BadInput, match="does not depend on"):
        joined(one_node([make("Sign", ["x"], ["s"]), make("Exp", ["s"], ["y"])], x), [{"x": x}, {"x": x[:2]}])


def test_operands_that_no_rule_knows_are_told() -> None:
    x = normal(3, 4, 5, 5)
    model = one_node([make("Slice", ["x", "z", "o"], ["w"]), make("Conv", ["x", "w"], ["y"])], x,
                     {"z": np.zeros(4, np.int64), "o": np.array([2, 4, 3, 3])})  # fmt: skip
    with pytest.raises(BadInput, match="operand 2 depends on the image"):
        joined(model, [{"x": x}, {"x": x[:2]}])


# Forms that are spelled out first


@pytest.mark.parametrize(
    ("tested", "shape", "weights", "opset"),
    [
        (node("Attention", "x", "x", "x"), (2, 3, 5, 8), {}, 23),
        (node("Attention", "x", "x", "x", q_num_heads=2, kv_num_heads=2, is_causal=1, softcap=2.0), (2, 5, 8), {}, 23),
        (node("Attention", "x", "x", "x", "m", scale=0.3), (2, 3, 5, 8), {"m": (5, 5)}, 23),
        (node("GroupNormalization", "s", "b", num_groups=2), (2, 4, 5, 5), {"s": (2,), "b": (2,)}, 18),
        (node("GroupNormalization", "s", "b", num_groups=2), (2, 4, 5, 5), {"s": (4,), "b": (4,)}, 21),
        (node("MeanVarianceNormalization"), (2, 4, 5, 5), {}, 13),
        (node("MeanVarianceNormalization", axes=[2, 3]), (2, 4, 5, 5), {}, 13),
        (node("RMSNormalization", "s"), (2, 4, 8), {"s": (8,)}, 23),
        (node("RotaryEmbedding", "c", "i", "p"), (2, 3, 5, 8), {"c": (5, 4), "i": (5, 4)}, 23),
        (node("Mish"), (2, 4, 8), {}, 18),
        (node("Celu", alpha=0.7), (2, 4, 8), {}, 12),
        (node("Swish"), (2, 4, 8), {}, 24),
        (node("Swish", alpha=1.7), (2, 4, 8), {}, 24),
        (node("CenterCropPad", "z", axes=[1, 2]), (2, 4, 8), {"z": np.array([2, 10])}, 18),
    ],
    ids=lambda case: case.op_type if isinstance(case, onnx.NodeProto) else "",
)
def test_compound_operators(
    tested: onnx.NodeProto, shape: tuple[int, ...], weights: dict[str, Any], opset: int
) -> None:
    drawn = {name: w if isinstance(w, np.ndarray) else normal(*w) for name, w in weights.items()}
    if tested.op_type == "RotaryEmbedding":
        drawn["p"] = np.arange(5)[None].repeat(2, axis=0)
    x = normal(*shape)
    model = canonical.raised(folded(canonical.spelled_out(one_node(tested, x, drawn, opset)), {}, CPU))
    assert worst_error(model, x, by_runtime=True, fixed=tested.op_type == "RotaryEmbedding") < 3e-4


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 15, 17])
def test_old_operator_sets(opset: int, tmp_path: Path) -> None:
    """Axes and pads as attributes, a dropout, a softmax over all that follows: what the rules no longer know."""
    pad = make("Pad", ["r"], ["p"], pads=[0, 0, 1, 1, 0, 0, 1, 1]) if opset < 11 else make("Pad", ["r", "pads"], ["p"])
    mean = make("ReduceMean", ["p"], ["m"], axes=[2, 3], keepdims=0)
    nodes = [make("Conv", ["image", "w"], ["c"]), make("Relu", ["c"], ["r"]), pad, mean, make("Dropout", ["m"], ["d"]),
             make("Softmax", ["d"], ["logits"], axis=1)]  # fmt: skip
    weights: dict[str, Array] = {"w": normal(5, 3, 3, 3)}
    if opset >= 11:
        weights["pads"] = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    found = gradient.differentiate(opened(onnx_models.model(nodes, [IMAGE], [LOGITS], weights, opset=opset), tmp_path))
    assert found.check.passed


@pytest.mark.parametrize(
    ("tested", "opset"),
    [
        (node("Upsample", mode="linear", scales=[1.0, 1.0, 2.0, 2.0]), 7),
        (node("Upsample", "s", mode="linear"), 9),
        (node("Upsample", "s", mode="nearest"), 9),
        (node("Resize", "s", mode="linear"), 10),
        (node("Resize", "s", mode="nearest"), 10),
    ],
)
def test_old_resizes_keep_their_meaning(tested: onnx.NodeProto, opset: int) -> None:
    x = normal(2, 3, 4, 5)
    old = one_node(tested, x, {"s": np.array([1, 1, 2.5, 2], np.float32)} if len(tested.input) > 1 else {}, opset)
    new = canonical.raised(old)
    np.testing.assert_array_equal(Session(new, CPU).run({"x": x})[0], Session(old, CPU).run({"x": x})[0])
    assert worst_error(new, x, by_runtime=True) < 3e-4


def test_a_graph_that_lost_its_scores_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the runtime or the converter does to a graph: it is compared with the vendor's own."""

    def careless(model: onnx.ModelProto, _weights: Any, _settings: Any) -> onnx.ModelProto:
        fresh = onnx.ModelProto()
        fresh.CopyFrom(model)
        tensor = next(t for t in fresh.graph.initializer if t.name == "w")
        tensor.CopyFrom(numpy_helper.from_array(1.01 * numpy_helper.to_array(tensor), "w"))
        return fresh

    monkeypatch.setattr(gradient, "folded", careless)
    with pytest.raises(NoGradient, match="other scores"):
        gradient.differentiate(opened(onnx_models.convnet(), tmp_path))


@pytest.mark.parametrize("precision", ["float16", "tf32"])
def test_scores_that_the_device_rounds_are_no_lost_ones(
    precision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU's short formats change is not held against the graph: it is compared with scores in float32, or in
    float16, whose weights are others, with as much leave as files in float16 have."""
    model = opened(onnx_models.convnet(), tmp_path)
    model.settings = replace(model.settings, precision=precision)
    true = model.scores
    monkeypatch.setattr(model, "scores", lambda rows, batch=None: 1.01 * true(rows, batch))
    assert gradient.trusted(model)[2].passed


def test_branches_that_hang_on_shapes_are_resolved(tmp_path: Path) -> None:
    """What torch's older exporter makes of a squeeze."""
    then = helper.make_graph([make("Mul", ["f", "two"], ["t"])], "then", [], [onnx_models.value("t", None)],
                             [numpy_helper.from_array(np.float32(2), "two")])  # fmt: skip
    otherwise = helper.make_graph([make("Identity", ["f"], ["e"])], "else", [], [onnx_models.value("e", None)])
    nodes = [
        make("Flatten", ["image"], ["f"]), make("Shape", ["image"], ["s"]), make("Gather", ["s", "one"], ["c"]),
        make("Equal", ["c", "three"], ["is_colour"]),
        make("If", ["is_colour"], ["g"], then_branch=then, else_branch=otherwise),
        make("MatMul", ["g", "m"], ["logits"]),
    ]  # fmt: skip
    matrix = normal(192, 5)
    weights = {"m": matrix, "one": np.int64(1), "three": np.int64(3)}
    model = onnx_models.model(nodes, [IMAGE], [LOGITS], weights)
    assert missing_rules(model, "image", "logits") == []
    found = gradient.differentiate(opened(model, tmp_path))
    seed = normal(2, 5)
    result = ran(found, tmp_path, image=normal(2, 3, 8, 8), seed=seed)["gradient"]
    np.testing.assert_allclose(result.reshape(2, -1), 2 * seed @ matrix.T, rtol=1e-5, atol=1e-5)


# The file


def test_the_file_gives_scores_and_gradient_in_a_plain_runtime(tmp_path: Path) -> None:
    model, matrix = linear()
    found = gradient.differentiate(opened(model, tmp_path))
    image, seed = normal(4, 3, 8, 8), normal(4, 5)
    result = ran(found, tmp_path, image=image, seed=seed)
    assert set(result) == {"logits", "gradient"}
    np.testing.assert_allclose(result["logits"], image.reshape(4, -1) @ matrix, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result["gradient"].reshape(4, -1), seed @ matrix.T, rtol=1e-5, atol=1e-5)
    record = json.loads({p.key: p.value for p in onnx.load(tmp_path / "out.onnx").metadata_props}[METADATA])
    assert (record["schema_version"], record["output"], record["wrt"]) == (1, "logits", "image")
    assert record["check"]["passed"]
    assert record["check"]["error"] < 1e-3
    assert not record["surrogate"]
    onnx.checker.check_model(tmp_path / "out.onnx")


@pytest.mark.parametrize("batch", ["N", 1, 3])
def test_any_batch_size_or_the_only_one(batch: int | str, tmp_path: Path) -> None:
    found = gradient.differentiate(opened(onnx_models.convnet(batch), tmp_path))
    image, seed = normal(6, 3, 8, 8), normal(6, 5)
    together = ran(found, tmp_path, image=image, seed=seed)["gradient"]
    alone = [ran(found, tmp_path, image=image[i : i + 1], seed=seed[i : i + 1])["gradient"] for i in range(6)]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-5, atol=1e-6)


def test_a_graph_of_one_batch_size_only(tmp_path: Path) -> None:
    """A Reshape that mixes rows cannot be freed; the file then takes just that size."""
    nodes = [make("Reshape", ["image", "s"], ["f"]), make("MatMul", ["f", "m"], ["g"]),
             make("Reshape", ["g", "t"], ["logits"])]  # fmt: skip
    weights = {"s": np.array([4, 96]), "m": normal(96, 5), "t": np.array([2, 10])}
    fixed = onnx_models.model(
        nodes, [onnx_models.value("image", [2, 3, 8, 8])], [onnx_models.value("logits", [2, 10])], weights
    )
    found = gradient.differentiate(opened(fixed, tmp_path))
    result = ran(found, tmp_path, image=normal(2, 3, 8, 8), seed=np.eye(2, 10, dtype=np.float32))["gradient"]
    np.testing.assert_allclose(result[0].reshape(2, 96)[0], weights["m"][:, 0], rtol=1e-5)


def test_with_respect_to_a_named_tensor(tmp_path: Path) -> None:
    model = onnx_models.convnet()
    found = gradient.differentiate(opened(model, tmp_path), wrt="c")
    image, seed = normal(2, 3, 8, 8), normal(2, 5)
    result = ran(found, tmp_path, image=image, seed=seed)
    matrix = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "g"))
    expected = (seed @ matrix.T / 64)[:, :, None, None] * (result["c"] > 0)
    np.testing.assert_allclose(result["gradient"], expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(BadInput, match="'nowhere'"):
        gradient.differentiate(opened(model, tmp_path), wrt="nowhere")


def test_half_precision_and_bytes_keep_their_input_and_get_a_float_gradient(tmp_path: Path) -> None:
    model, matrix = linear()
    half = onnx.ModelProto()
    half.CopyFrom(model)
    half.graph.initializer[0].CopyFrom(numpy_helper.from_array(matrix.astype(np.float16), "m"))
    for value in (half.graph.input[0], half.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    seed = normal(2, 5)
    found = gradient.differentiate(opened(half, tmp_path))
    result = ran(found, tmp_path, image=normal(2, 3, 8, 8).astype(np.float16), seed=seed)["gradient"]
    assert result.dtype == np.float32
    np.testing.assert_allclose(result.reshape(2, -1), seed @ matrix.T.astype(np.float16), rtol=1e-3, atol=1e-2)

    in_bytes = onnx_models.model(
        [make("Cast", ["image"], ["real"], to=TensorProto.FLOAT), make("Flatten", ["real"], ["f"]),
         make("MatMul", ["f", "m"], ["logits"])],
        [onnx_models.value("image", ["N", 8, 8, 3], TensorProto.UINT8)], [LOGITS], {"m": matrix},
    )  # fmt: skip
    found = gradient.differentiate(opened(in_bytes, tmp_path))
    pixels = rng.integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    result = ran(found, tmp_path, image=pixels, seed=seed)["gradient"]
    assert result.shape == (2, 8, 8, 3)
    np.testing.assert_allclose(result.reshape(2, -1), seed @ matrix.T, rtol=1e-4, atol=1e-4)


# A gradient of the file itself


def brought(seed: str = "seed", name: str = "gradient", wrong: float = 1.0) -> onnx.ModelProto:
    """A linear classifier whose vendor wrote the backward pass down too."""
    model, matrix = linear()
    model.graph.node.extend([
        make("MatMul", [seed, "back"], ["flat"]), make("Reshape", ["flat", "shape"], [name]),
    ])  # fmt: skip
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(wrong * matrix.T), "back"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 3, 8, 8]), "shape"))
    model.graph.input.append(onnx_models.value(seed, ["N", 5]))
    model.graph.output.append(onnx_models.value(name, ["N", 3, 8, 8]))
    return model


def test_a_gradient_in_the_file_is_found_by_its_names_or_by_the_one_given() -> None:
    assert export.gradient_names(brought()) == ("seed", "gradient")
    assert export.gradient_names(brought("v", "g")) is None
    assert export.gradient_names(brought("v", "g"), "g") == ("v", "g")
    assert export.gradient_names(onnx_models.convnet()) is None
    with pytest.raises(BadInput, match="no output 'h'"):
        export.gradient_names(brought("v", "g"), "h")
    with pytest.raises(BadInput, match="is not a gradient"):
        export.gradient_names(onnx_models.convnet(), "logits")


def test_the_classifier_alone_and_the_whole_in_our_form() -> None:
    alone = export.without_gradient(brought())
    assert [v.name for v in alone.graph.input] == ["image"]
    assert [v.name for v in alone.graph.output] == ["logits"]
    assert {t.name for t in alone.graph.initializer} == {"m"}
    plain = onnx_models.convnet()
    assert export.without_gradient(plain) is plain
    whole = export.with_standard_names(brought("v", "g"), "logits", ("v", "g"))
    assert [v.name for v in whole.graph.input] == ["image", "seed"]
    assert [v.name for v in whole.graph.output] == ["logits", "gradient"]
    onnx.checker.check_model(whole)


@pytest.mark.parametrize(("seed", "name"), [("seed", "gradient"), ("v", "g")])
def test_the_gradient_of_the_file_is_taken_and_checked(seed: str, name: str, tmp_path: Path) -> None:
    path, out = onnx_models.save(brought(seed, name), tmp_path), tmp_path / "out.onnx"
    given = [] if name == "gradient" else ["--gradient-output", name]
    done = command("differentiate", path, "-o", out, "--json", "--device", "cpu", *given)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["vendors_own"]
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["image", "seed"]
    assert [value.name for value in session.get_outputs()] == ["logits", "gradient"]


def test_a_wrong_gradient_of_the_file_is_refused(tmp_path: Path) -> None:
    path = onnx_models.save(brought(wrong=1.002), tmp_path)
    done = command("differentiate", path, "-o", tmp_path / "out.onnx", "--device", "cpu")
    assert done.returncode == 2
    assert "the file's own gradient differs from the change of scores by 0.2" in done.stderr


@pytest.mark.parametrize("opset", [7, 8])
def test_an_old_file_that_lists_its_weights_as_inputs(opset: int, tmp_path: Path) -> None:
    """As CNTK wrote them: biases as sums, the last weights reshaped within the graph, IR version 3."""
    same = {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [1, 1], "dilations": [1, 1], "group": 1}
    nodes = [
        make("Reshape", ["m", "m_shape"], ["matrix"]), make("Conv", ["image", "w"], ["c"], **same),
        make("Add", ["c", "b"], ["d"]), make("Relu", ["d"], ["r"]),
        make("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4, auto_pad="NOTSET"),
        make("Reshape", ["p", "p_shape"], ["f"]), make("MatMul", ["f", "matrix"], ["t"]),
        make("Add", ["t", "a"], ["logits"]),
    ]  # fmt: skip
    weights = {
        "w": normal(4, 1, 3, 3), "b": normal(4, 1, 1), "m": normal(4, 4, 4, 5), "m_shape": np.array([64, 5]),
        "p_shape": np.array([1, 64]), "a": normal(1, 5),
    }  # fmt: skip
    ends = [onnx_models.value("image", [1, 1, 8, 8])], [onnx_models.value("logits", [1, 5])]
    proto = onnx_models.model(nodes, *ends, weights, opset=opset, ir_version=3)
    proto.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in proto.graph.initializer
    )
    assert gradient.differentiate(opened(proto, tmp_path)).check.error < 1e-3


# The check


WRONG = ("Conv", "Relu", "GlobalAveragePool", "Gemm")


@pytest.mark.parametrize("operator", WRONG)
def test_a_rule_that_is_wrong_by_a_thousandth_is_found(
    operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Callable[..., Any] = RULES[operator]

    def wrong(b: Any, *rest: Any) -> Any:
        return [None if grad is None else b.mul(grad, 1.001) for grad in right(b, *rest)]

    classifier = opened(onnx_models.convnet(size=16), tmp_path)
    assert gradient.differentiate(classifier).check.error < (2.5e-4 if onnx_models.ARM else 2e-4)
    monkeypatch.setitem(RULES, operator, wrong)
    with pytest.raises(NoGradient, match=r"differs from the change of scores by 0\.(09|1)"):
        gradient.differentiate(classifier)


def test_a_rule_that_is_wrong_on_each_line_in_another_way_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Callable[..., Any] = RULES["Conv"]

    def wrong(b: Any, proto: Any, *rest: Any) -> Any:
        share = b.op("Sin", b.mul(b.mean(proto.x, [1, 2, 3]), 100.0))
        return [None if grad is None else b.mul(grad, b.add(share, 1.0)) for grad in right(b, proto, *rest)]

    monkeypatch.setitem(RULES, "Conv", wrong)
    with pytest.raises(NoGradient, match=r"differs from the change of scores by \d+ % .*, give or take \d+ %"):
        gradient.differentiate(opened(onnx_models.convnet(size=16), tmp_path))


@pytest.mark.parametrize(("spread", "shared"), [(0.3, 0.0), (0.3, 0.14), (2.0, 0.88), (0.05, 0.0)])
def test_errors_that_scatter_widely_are_no_pass(spread: float, shared: float) -> None:
    scattered = np.linspace(-1, 1, 16) * spread + shared
    found = gradient_check.check(iter(scattered.tolist()))
    assert found.error <= found.doubt
    assert not found.passed


def test_rounding_that_scatters_a_little_is_no_failure() -> None:
    found = gradient_check.check(iter((np.linspace(-1, 1, 16) * 3e-3 + 1e-3).tolist()))
    assert found.error > gradient_check.LIMIT
    assert found.passed


def test_the_verdict_forgives_a_few_kinks_but_no_shared_error() -> None:
    kinks = [0.02 if i % 5 == 0 else e for i, e in enumerate(1e-4 * rng.standard_normal(16))]
    assert gradient_check.check(iter(kinks)).passed
    assert not gradient_check.check(iter([error + 1e-3 for error in kinks])).passed
    assert not gradient_check.check(iter([error - 1e-3 for error in kinks])).passed
    with pytest.raises(NoGradient, match="cannot be checked"):
        gradient_check.check(iter([None] * 16))


# The command


def test_a_check_is_kept_for_the_same_model_and_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checked: list[str] = []
    real = gradient._checked
    monkeypatch.setattr(gradient, "_checked", lambda *given: (checked.append(given[3]), real(*given))[1])

    def check(name: str) -> gradient_check.Check:
        return gradient.trusted(auditkit.load(tmp_path / name, settings=CPU))[2]

    onnx_models.save(onnx_models.convnet(), tmp_path, "one.onnx")
    other = onnx_models.convnet()
    weight = other.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
    onnx_models.save(other, tmp_path, "other.onnx")
    first = check("one.onnx")
    assert check("one.onnx") == first
    assert len(checked) == 1
    check("other.onnx")
    assert len(checked) == 2
    cache = tmp_path / "cache" / "auditkit" / "cache.sqlite"
    with closing(sqlite3.connect(cache)) as database, database:
        database.execute("UPDATE gradient_checks SET result = '{'")
    assert check("one.onnx") == first
    assert len(checked) == 3
    cache.write_bytes(b"no database")
    assert check("one.onnx") == first
    assert len(checked) == 4


def test_the_command_writes_and_tells(tmp_path: Path) -> None:
    path, out = onnx_models.save(onnx_models.convnet(), tmp_path), tmp_path / "with.onnx"
    done = command("differentiate", path, "-o", out, "--json", "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["operators"]["Conv"] == 1
    assert found["nodes_after"] > found["nodes_before"]
    assert found["check"]["passed"]
    again = command("differentiate", path, "-o", out, "--device", "cpu")
    assert again.returncode == 2
    assert "already exists" in again.stderr
    table = command("differentiate", path, "-o", out, "--force", "--wrt", "r", "--device", "cpu")
    assert table.returncode == 0
    assert "with respect to 'r'" in table.stdout


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.float32])
def test_the_command_tells_that_scores_became_single(kind: type, tmp_path: Path) -> None:
    model, matrix = linear()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(matrix.astype(kind), "m"))
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    path, out = onnx_models.save(model, tmp_path), tmp_path / "with.onnx"
    table = command("differentiate", path, "-o", out, "--device", "cpu").stdout
    told = f"seed, scores and gradient are float32; the model's own scores {np.dtype(kind)}"
    assert (told in table) == (kind != np.float32)
    done = command("differentiate", path, "-o", out, "--force", "--json", "--device", "cpu")
    assert json.loads(done.stdout)["scores_were"] == (None if kind == np.float32 else np.dtype(kind).name)


def refusal(proto: onnx.ModelProto, folder: Path) -> str:
    """The line with which the command refuses a model."""
    done = command("differentiate", onnx_models.save(proto, folder), "-o", folder / "with.onnx", "--device", "cpu")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert not (folder / "with.onnx").exists()
    return str(line)


def test_the_command_tells_of_an_image_that_is_never_read(tmp_path: Path) -> None:
    nodes = [make("Flatten", ["z"], ["f"]), make("MatMul", ["f", "m"], ["logits"])]
    weights = {"z": normal(1, 3, 8, 8), "m": normal(192, 5)}
    fixed = [onnx_models.value("image", [1, 3, 8, 8])], [onnx_models.value("logits", [1, 5])]
    assert "output 'logits' does not depend on 'image'" in refusal(onnx_models.model(nodes, *fixed, weights), tmp_path)


def test_the_command_lists_operators_on_sequences(tmp_path: Path) -> None:
    nodes = [
        make("SplitToSequence", ["image", "parts"], ["listed"], name="cut", axis=1),
        make("SequenceAt", ["listed", "one"], ["part"], name="pick"),
        make("Flatten", ["part"], ["f"]), make("MatMul", ["f", "m"], ["logits"]),
    ]  # fmt: skip
    weights = {"parts": np.array([1, 2]), "one": np.int64(1), "m": normal(128, 5)}
    line = refusal(onnx_models.model(nodes, [IMAGE], [LOGITS], weights), tmp_path)
    assert "SplitToSequence (1 node, first 'cut'), SequenceAt (1 node, first 'pick')" in line
    assert "--gradient differences" in line


def test_the_command_refuses_with_a_way_out(tmp_path: Path) -> None:
    nodes = [
        make("Det", ["image"], ["d"], name="odd"),
        make("Flatten", ["d"], ["f"]),
        make("Gemm", ["f", "g"], ["logits"]),
    ]
    line = refusal(onnx_models.model(nodes, [IMAGE], [LOGITS], {"g": normal(3, 5)}), tmp_path)
    assert "Det (1 node, first 'odd')" in line
    assert "--gradient differences" in line
