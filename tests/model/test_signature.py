"""What the graph and a few scores say about a classifier, without running anything."""

import itertools
import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from auditkit.errors import BadInput
from auditkit.model.inputs import find_image
from auditkit.model.signature import (
    Overrides,
    Signature,
    choose_output,
    kind_by_graph,
    kind_by_values,
    kind_of,
    per_image,
    score_tensors,
    to_probabilities,
    zipmap_classes,
)
from auditkit.records import from_json, to_json
from tests.support import onnx_models

Array = np.ndarray[Any, Any]
node = helper.make_node
RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((4, 5)) * 3
PROBS = to_probabilities(LOGITS, "logits")
TAGS = 1 / (1 + np.exp(-LOGITS))


# --- How scores are read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "kind"),
    [
        (LOGITS, "logits"),
        (PROBS, "probabilities"),
        (PROBS.astype(np.float16), "probabilities"),
        (np.log(PROBS), "log-probabilities"),
        (np.eye(5)[:4], "probabilities"),
        (PROBS * 0.9, "logits"),
        (-np.abs(LOGITS), "logits"),
        (LOGITS[:, :1], "logits"),
        (TAGS[:, :1], "sigmoid"),
        (np.array([[0.0], [1.0]]), "sigmoid"),
    ],
)
def test_numbers_show_what_they_are(scores: Array, kind: str) -> None:
    assert kind_by_values(scores) == kind


def ended(*operators: str, constant: bool = False) -> onnx.ModelProto:
    """A convolutional net with more operators behind its logits; the last tensor is called 'end'."""
    model = onnx_models.convnet()
    names = ["logits", *(f"s{i}" for i in range(len(operators) - 1)), "end"]
    for i, operator in enumerate(operators):
        second = ["k"] if operator in ("Add", "Sub", "Mul", "Div") else []
        model.graph.node.append(node(operator, [names[i], *second], [names[i + 1]]))
    if constant:
        model.graph.node.insert(0, node("Constant", [], ["k"], value=numpy_helper.from_array(np.float32(2))))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "k"))
    return model


@pytest.mark.parametrize(
    ("operators", "kind"),
    [
        (["Softmax"], "probabilities"),
        (["Softmax", "Identity", "Cast", "Flatten", "Squeeze"], "probabilities"),
        (["Softmax", "QuantizeLinear", "DequantizeLinear"], "probabilities"),
        (["QLinearSoftmax", "DequantizeLinear"], "probabilities"),
        (["LogSoftmax"], "log-probabilities"),
        (["Softmax", "Log"], "log-probabilities"),
        (["Sigmoid"], "sigmoid"),
        (["Sigmoid", "Dropout"], "sigmoid"),
        (["Identity"], "logits"),
        (["Div"], "logits"),
        (["Mul", "Add", "Flatten"], "logits"),
        (["Exp"], None),
        (["Reciprocal"], None),
        (["Sigmoid", "Mul"], None),
        (["HardSigmoid"], None),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_the_last_operators_say_what_the_scores_are(operators: list[str], kind: str | None, constant: bool) -> None:
    assert kind_by_graph(ended(*operators, constant=constant), "end") == kind


def test_a_matrix_with_a_bias_gives_logits() -> None:
    """MatMul and Add, as Keras writes a dense layer, or the sum of two branches."""
    model = ended("Identity")
    model.graph.node.extend([node("MatMul", ["f", "g"], ["m"]), node("Add", ["m", "b"], ["dense"])])
    model.graph.node.append(node("Add", ["dense", "logits"], ["branches"]))
    assert [kind_by_graph(model, name) for name in ("logits", "dense", "branches")] == ["logits"] * 3


def test_a_long_chain_of_sums_is_read_in_no_time() -> None:
    """Each sum of a tensor with itself must not double the work."""
    model = ended("Exp")
    names = ["end", *(f"d{i}" for i in range(200))]
    model.graph.node.extend(node("Add", [a, a], [b]) for a, b in itertools.pairwise(names))
    assert kind_by_graph(model, names[-1]) is None


def test_a_sure_softmax_is_no_embedding() -> None:
    """A one-hot row has length 1, too."""
    assert kind_of(None, np.eye(5)[:4]) == ("probabilities", ())


def test_sigmoids_that_only_gate_the_features_do_not_matter() -> None:
    model = onnx_models.convnet()
    model.graph.node.insert(4, node("Sigmoid", ["f"], ["gate"]))
    model.graph.node[5].input[0] = "gate"
    gate = f32(RNG.random((4, 6)))
    assert choose(model, gate=gate, logits=f32(LOGITS)) == "logits"


def test_averaged_feature_maps_are_logits() -> None:
    """A fully convolutional net ends in a pooling."""
    assert kind_by_graph(onnx_models.convnet(), "p") == "logits"


@pytest.mark.parametrize(
    ("by_graph", "scores", "kind"),
    [
        (None, LOGITS, "logits"),
        (None, PROBS, "probabilities"),
        ("logits", LOGITS, "logits"),
        ("logits", PROBS, "probabilities"),
        ("logits", PROBS[:, :1], "logits"),
        ("logits", PROBS * 0.9, "logits"),
        ("sigmoid", TAGS[:, :1], "sigmoid"),
        ("sigmoid", PROBS, "probabilities"),
        ("probabilities", PROBS * 1.03, "probabilities"),
        ("log-probabilities", np.log(PROBS * 1.03), "log-probabilities"),
        (None, TAGS[:, :1], "sigmoid"),
    ],
)
def test_graph_and_numbers_agree(by_graph: str | None, scores: Array, kind: str) -> None:
    """A linear end is never a sigmoid, and eight-bit or float16 probabilities may miss their sum a little."""
    assert kind_of(by_graph, scores) == (kind, ())


def test_disagreement_is_told_and_the_numbers_are_believed() -> None:
    kind, warnings = kind_of("probabilities", LOGITS)
    assert kind == "logits"
    assert "ends like probabilities" in warnings[0]


@pytest.mark.parametrize("by_graph", ["sigmoid", None])
def test_independent_sigmoids_are_refused_however_they_are_written(by_graph: str | None) -> None:
    with pytest.raises(BadInput, match=r"5 .*sigmoids.*multi-label.*soundness.*--kind"):
        kind_of(by_graph, TAGS)


def test_rows_of_length_one_are_an_embedding() -> None:
    unit = LOGITS / np.linalg.norm(LOGITS, axis=1, keepdims=True)
    with pytest.raises(BadInput, match=r"embedding.*--kind logits"):
        kind_of(None, unit)
    assert kind_of(None, LOGITS) == ("logits", ())


@pytest.mark.parametrize(
    ("shape", "rows", "numbers"),
    [
        ((4, 5), 4, 5),
        ((4, 5, 1, 1), 4, 5),
        ((4, 1, 1, 5), 4, 5),
        ((4, 1), 4, 1),
        ((4,), 4, 1),
        ((5,), 1, 5),
        ((1,), 1, 1),
        ((1, 5), 1, 5),
        ((4, 5), 1, None),
        ((20,), 4, None),
        ((), 1, None),
        ((), 4, None),
        ((4, 3, 7), 4, None),
        ((4, 5, 8, 8), 4, None),
        ((1, 5), 4, None),
    ],
)
def test_scores_are_one_vector_an_image(shape: tuple[int, ...], rows: int, numbers: int | None) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    found = per_image(array, rows)
    assert (None if found is None else found.shape) == (None if numbers is None else (rows, numbers))
    if found is not None:
        np.testing.assert_array_equal(found.ravel(), array.ravel())


def test_probabilities_of_every_kind() -> None:
    np.testing.assert_allclose(to_probabilities(PROBS, "probabilities"), PROBS)
    np.testing.assert_allclose(to_probabilities(np.log(PROBS), "log-probabilities"), PROBS)
    np.testing.assert_allclose(to_probabilities(LOGITS + 1000, "logits"), PROBS)
    np.testing.assert_allclose(to_probabilities(np.array([[0.25]]), "sigmoid"), [[0.75, 0.25]])
    np.testing.assert_allclose(to_probabilities(np.log([[0.25]]), "log-probabilities"), [[0.75, 0.25]])
    np.testing.assert_allclose(to_probabilities(np.array([[np.log(3)]]), "logits"), [[0.25, 0.75]])


def test_one_logit_of_any_size_gives_probabilities_without_a_warning() -> None:
    found = to_probabilities(np.array([[-1e4], [0.0], [1e4]]), "logits")
    np.testing.assert_allclose(found, [[1, 0], [0.5, 0.5], [0, 1]], atol=1e-300)


def test_probabilities_are_float64_and_finite_for_float16_logits() -> None:
    found = to_probabilities(np.array([[-6e4, 0, 6e4]], np.float16), "logits")
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [[0, 0, 1]])


def test_a_signature_survives_json() -> None:
    signature = Signature("x", "NHWC", "uint8", 1, 8, 9, 3, "close", "y", "sigmoid", 1, shape=(3, "h"))
    assert from_json(Signature, json.loads(json.dumps(to_json(signature))), "signature") == signature
    assert (signature.classes, signature.fixed_batch, signature.batch) == (2, 3, "fixed:3")
    assert signature.array_shape(7) == (7, 8, 9, 1)


@pytest.mark.parametrize("wrong", [{"layout": "HWC"}, {"kind": "softmax"}])
def test_overrides_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"unknown (layout|kind) "):
        Overrides(**wrong)


# --- Which input takes the image ------------------------------------------------------------------------------------


def taking(dims: list[int | str | None] | None, kind: int = TensorProto.FLOAT, *, convolution: bool = False) -> Any:
    """A model with one input of that shape; a convolution behind it if wanted."""
    nodes = [node("Conv", ["image", "w"], ["y"])] if convolution else [node("Relu", ["image"], ["y"])]
    weights = {"w": np.ones((2, 3, 1, 1), np.float32)} if convolution else {}
    return onnx_models.model(nodes, [onnx_models.value("image", dims, kind)], [onnx_models.value("y", None)], weights)


@pytest.mark.parametrize(
    ("dims", "layout", "channels", "height", "batch", "guessed"),
    [
        (["N", 3, 8, 9], "NCHW", 3, 8, None, False),
        (["N", 8, 9, 3], "NHWC", 3, 8, None, False),
        ([1, 1, 28, 28], "NCHW", 1, 28, 1, False),
        ([1, 28, 28, 1], "NHWC", 1, 28, 1, False),
        ([0, 3, 8, 8], "NCHW", 3, 8, None, False),
        ([-1, 8, 8, 3], "NHWC", 3, 8, None, False),
        (["N", 3, "h", "w"], "NCHW", 3, None, None, False),
        (["N", None, None, 3], "NHWC", 3, None, None, False),
        ([None, None, None, None], "NCHW", 3, None, None, True),
        (["N", 3, 3, 3], "NHWC", 3, 3, None, True),
        (None, "NCHW", 3, None, None, True),
    ],
)
def test_the_declared_shape_shows_the_layout(
    dims: Any, layout: str, channels: int, height: int | None, batch: int | None, guessed: bool
) -> None:
    found = find_image(taking(dims), Overrides())
    assert (found.layout, found.channels, found.height, found.batch) == (layout, channels, height, batch)
    assert bool(found.guesses) == guessed


@pytest.mark.parametrize("how", ["initializer", "constant", "cast", "dequantised", "grouped", "ConvInteger"])
@pytest.mark.parametrize("last", [False, True])
def test_the_first_convolution_shows_layout_and_channels(how: str, last: bool) -> None:
    """However its weights are stored; one channel, so that nothing is right by default."""
    weight = np.ones((2, 1, 1, 1), np.float32)
    weights: dict[str, Array] = {}
    nodes = [node("Transpose", ["image"], ["x"], perm=[0, 3, 1, 2])] if last else [node("Identity", ["image"], ["x"])]
    nodes += [node("Sub", ["x", "mean"], ["x1"]), node("Pad", ["x1", "pads"], ["x2"])]
    if how == "constant":
        nodes.append(node("Constant", [], ["w"], value=numpy_helper.from_array(weight)))
    elif how == "cast":
        weights["w16"] = weight.astype(np.float16)
        nodes.append(node("Cast", ["w16"], ["w"], to=TensorProto.FLOAT))
    elif how == "dequantised":
        weights["w8"] = weight.astype(np.int8)
        nodes.append(node("DequantizeLinear", ["w8", "mean"], ["w"]))
    else:
        weights["w"] = weight
    operator = "ConvInteger" if how == "ConvInteger" else "Conv"
    nodes.append(node(operator, ["x2", "w"], ["y"], group=3 if how == "grouped" else 1))
    weights |= {"mean": np.float32(1), "pads": np.zeros(8, np.int64)}
    model = onnx_models.model(nodes, [onnx_models.value("image", None)], [onnx_models.value("y", None)], weights)
    found = find_image(model, Overrides())
    assert found.layout == ("NHWC" if last else "NCHW")
    assert found.channels == (3 if how == "grouped" else 1)
    assert "first convolution" in found.guesses[0]


def test_what_the_auditor_says_beats_the_shape() -> None:
    found = find_image(taking(["N", 3, 8, 3]), Overrides(layout="NHWC"))
    assert (found.layout, found.channels, found.height, found.width, found.guesses) == ("NHWC", 3, 3, 8, ())
    with pytest.raises(BadInput, match=r"no input 'picture'.*'image'"):
        find_image(taking(["N", 3, 8, 8]), Overrides(input="picture"))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8])
def test_other_types_of_pixels_are_taken(kind: int) -> None:
    expected = {TensorProto.FLOAT16: "float16", TensorProto.DOUBLE: "float64", TensorProto.UINT8: "uint8"}[kind]
    assert find_image(taking(["N", 3, 8, 8], kind), Overrides()).dtype == expected


@pytest.mark.parametrize(
    ("dims", "kind", "words"),
    [
        (["N", 784], TensorProto.FLOAT, r"float\[N,784\].*\[N,3,H,W\]"),
        ([3, 8, 8], TensorProto.FLOAT, "no input looks like a batch of images"),
        (["N", 16, 3, 8, 8], TensorProto.FLOAT, "no input looks like a batch of images"),
        (["N", 3, 8, 8], TensorProto.BFLOAT16, "bfloat16"),
        (["N", 3, 8, 8], TensorProto.INT64, r"no input looks like.*int64\[N,3,8,8\]"),
        (["N", 3, 8, 8], TensorProto.INT32, r"no input looks like.*int32\[N,3,8,8\]"),
        (["N", "T"], TensorProto.INT64, "tokens or table rows"),
        (["N"], TensorProto.STRING, "tokens or table rows"),
        (["N", 4, 8, 8], TensorProto.FLOAT, "takes 4 channels"),
        (["N", 8, 8, 8], TensorProto.FLOAT, "takes 8 channels"),
    ],
)
def test_what_is_no_image_is_refused_by_its_shape(dims: Any, kind: int, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        find_image(taking(dims, kind), Overrides())


def _used_too(model: onnx.ModelProto, name: str, dims: list[int], kind: int = TensorProto.FLOAT) -> None:
    """Add an input, and an output that depends on it."""
    model.graph.input.append(onnx_models.value(name, dims, kind))
    model.graph.node.append(node("Identity", [name], [f"{name} again"]))
    model.graph.output.append(onnx_models.value(f"{name} again", None, kind))


def test_inputs_that_no_output_depends_on_are_left_out() -> None:
    model = taking(["N", 3, 8, 8])
    for name, dims in (("image_info", ["N", 3]), ("mask", ["N", 3, 8, 8]), ("training", [])):
        model.graph.input.append(onnx_models.value(name, dims))
    model.graph.node.append(node("Identity", ["mask"], ["read for nothing"]))
    found = find_image(model, Overrides())
    assert (found.name, found.switches) == ("image", ())
    assert found.guesses[-3:] == tuple(
        f"input '{name}' is left out, since no output depends on it" for name in ("image_info", "mask", "training")
    )
    with pytest.raises(BadInput, match="uses no input 'mask'; it uses 'image'"):
        find_image(model, Overrides(input="mask"))


def test_switches_are_turned_off_and_other_inputs_refused() -> None:
    model = taking(["N", 3, 8, 8])
    _used_too(model, "training", [], TensorProto.BOOL)
    found = find_image(model, Overrides())
    assert found.switches == ("training",)
    assert "set to false" in found.guesses[0]
    _used_too(model, "keep_prob", [])
    _used_too(model, "net/dropout_rate", [1])
    guesses = find_image(model, Overrides()).guesses
    assert guesses[1:] == (
        "input 'keep_prob' is a switch, set to 1.0", "input 'net/dropout_rate' is a switch, set to 0.0",
    )  # fmt: skip
    _used_too(model, "strained", [])
    with pytest.raises(BadInput, match=r"besides the image 'image' the model needs 'strained' float\[\]"):
        find_image(model, Overrides())


def test_values_that_the_file_gives_switches_are_named() -> None:
    model = taking(["N", 3, 8, 8])
    for name, value in (("training", np.array(True)), ("keep_prob", np.float32(1)), ("eps", np.float32(2))):
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        model.graph.input.append(onnx_models.value(name, [], kind))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    assert find_image(model, Overrides()).guesses == (
        "input 'training' keeps the file's value true, a value for training: ask for an evaluation export",
        "input 'keep_prob' keeps the file's value 1.0",
    )
    model.graph.initializer[-2].raw_data = b""  # damaged: its run will tell
    assert len(find_image(model, Overrides()).guesses) == 1


def test_weights_listed_as_inputs_are_no_inputs() -> None:
    model = onnx_models.convnet(opset=7, ir_version=3)
    model.graph.input.extend(onnx_models.value(t.name, list(t.dims)) for t in model.graph.initializer)
    assert find_image(model, Overrides()).name == "image"


# --- Which output holds the scores ----------------------------------------------------------------------------------


def tensors(*names: str) -> list[onnx.ValueInfoProto]:
    return [onnx_models.value(name, None) for name in names]


def test_scores_are_looked_for_behind_labels_and_maps() -> None:
    model = ended("Softmax")
    model.graph.node.extend([
        node("ArgMax", ["end"], ["index"], axis=1),
        node("Cast", ["index"], ["label"], to=TensorProto.INT32),
        node("TopK", ["logits", "k"], ["best", "which"]),
        node("ZipMap", ["end"], ["map"], domain="ai.onnx.ml", classlabels_strings=["a", "b"]),
    ])  # fmt: skip
    for wanted, found in {
        "label": [("end", "ArgMax")], "which": [("logits", "TopK")], "map": [("end", "ZipMap")], "end": [("end", "")],
    }.items():  # fmt: skip
        del model.graph.output[:]
        model.graph.output.extend(tensors(wanted))
        assert list(score_tensors(model)) == found
    assert zipmap_classes(model) == ("a", "b")


def test_outputs_of_text_hold_no_scores() -> None:
    """The runtime crashes when text is bound to a buffer."""
    model = ended("Softmax")
    model.graph.output.append(onnx_models.value("classLabel", ["N"], TensorProto.STRING))
    assert "classLabel" not in dict(score_tensors(model))


def choose(model: onnx.ModelProto, wanted: Overrides | None = None, **arrays: Array) -> str:
    outputs = dict.fromkeys(arrays, "")
    return choose_output(model, outputs, arrays, 4, wanted or Overrides())[0]


def f32(array: Array) -> Array:
    return array.astype(np.float32)


def test_features_give_way_to_what_is_computed_from_them() -> None:
    features = f32(RNG.standard_normal((4, 6)))
    assert choose(onnx_models.convnet(), f=features, logits=f32(LOGITS)) == "logits"
    assert choose(onnx_models.convnet(), logits=f32(LOGITS), f=features) == "logits"


def test_of_logits_and_their_softmax_the_logits_stay() -> None:
    assert choose(ended("Softmax"), end=f32(PROBS), logits=f32(LOGITS)) == "logits"


def test_with_a_temperature_between_the_probabilities_stay() -> None:
    """softmax(logits) would not be what the model says."""
    cooled = f32(to_probabilities(LOGITS / 2, "logits"))
    assert choose(ended("Div", "Softmax"), end=cooled, logits=f32(LOGITS)) == "end"


def test_sigmoids_beside_their_logits_make_a_model_multi_label() -> None:
    with pytest.raises(BadInput, match=r"multi-label.*soundness"):
        choose(ended("Sigmoid"), end=f32(TAGS), logits=f32(LOGITS))


def test_one_sigmoid_beside_its_logit_is_fine() -> None:
    assert choose(ended("Sigmoid"), end=f32(TAGS[:, :1]), logits=f32(LOGITS[:, :1])) == "logits"


def with_second_head(source: str, name: str) -> onnx.ModelProto:
    model = onnx_models.convnet()
    model.graph.node.append(node("Gemm", [source, "g"], [name]))
    return model


def test_of_equal_heads_the_last_is_taken_whatever_their_order() -> None:
    """An auxiliary head sits lower in the graph."""
    model = with_second_head("image", "aux")
    assert choose(model, aux=f32(-LOGITS), logits=f32(LOGITS)) == "logits"
    assert choose(model, logits=f32(LOGITS), aux=f32(-LOGITS)) == "logits"


def test_heads_of_different_size_are_for_the_auditor_to_choose() -> None:
    model = with_second_head("f", "age")
    ages = f32(RNG.standard_normal((4, 3)))
    with pytest.raises(BadInput, match=r"several outputs.*'logits'.*'age'.*--output"):
        choose(model, logits=f32(LOGITS), age=ages)
    assert choose(model, Overrides(classes=3), logits=f32(LOGITS), age=ages) == "age"


def test_a_detector_is_told_by_its_boxes_not_by_the_name_of_its_scores() -> None:
    boxes = f32(RNG.standard_normal((4, 9, 4)))
    with pytest.raises(BadInput, match=r"object detector.*'boxes'.*--output"):
        choose(onnx_models.convnet(), boxes=boxes, logits=f32(LOGITS))
    model = ended("Identity")
    model.graph.node[-1].output[0] = "fraud_detection"
    assert choose(model, fraud_detection=f32(LOGITS)) == "fraud_detection"


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((4, 5, 8, 8), np.float32), "segmentation"),
        (np.zeros((4, 9, 6), np.float32), "detector or a sequence"),
        (np.zeros((4,), np.int64), "decisions, not scores"),
        (np.zeros((7,), np.float32), "not a classifier"),
    ],
)
def test_outputs_that_are_no_scores_are_described(array: Array, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        choose(onnx_models.convnet(), logits=array)
