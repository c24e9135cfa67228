"""Classifiers in awkward dress: each is opened for what it is and predicts what onnxruntime predicts, or is refused."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import auditkit
from tests.support import onnx_models

Array = np.ndarray[Any, Any]
SIZE, CLASSES, WIDTH = 8, 5, 6
node = helper.make_node


@dataclass
class Parts:
    """A small convolutional net, open to change before it becomes a model."""

    nodes: list[onnx.NodeProto]
    inputs: list[onnx.ValueInfoProto]
    outputs: list[onnx.ValueInfoProto]
    weights: dict[str, Array]
    settings: dict[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        return onnx_models.model(self.nodes, self.inputs, self.outputs, self.weights, **self.settings)

    def then(self, *nodes: onnx.NodeProto, out: "str | list[onnx.ValueInfoProto]", **weights: Array) -> "Parts":
        """The net with more nodes behind it, and other outputs."""
        self.nodes += nodes
        self.weights |= weights
        self.outputs = [onnx_models.value(out, None)] if isinstance(out, str) else out
        return self


def net(
    batch: int | str | None = "N",
    size: int | str | None = SIZE,
    channels: int = 3,
    classes: int = CLASSES,
    dtype: type = np.float32,
    **settings: Any,
) -> Parts:
    """Image [batch,channels,size,size] to 'logits' [batch,classes], as usual."""
    rng = np.random.default_rng(1)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = {
        "w": rng.standard_normal((WIDTH, channels, 3, 3)).astype(dtype),
        "g": (2 * rng.standard_normal((WIDTH, classes))).astype(dtype),
        "b": rng.standard_normal(classes).astype(dtype),
    }
    nodes = [
        node("Conv", ["image", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], name="relu"),
        node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        node("Flatten", ["p"], ["f"], name="flatten"),
        node("Gemm", ["f", "g", "b"], ["logits"], name="gemm"),
    ]
    image = onnx_models.value("image", [batch, channels, size, size], kind)
    return Parts(nodes, [image], [onnx_models.value("logits", [batch, classes], kind)], weights, settings)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


# --- Scores in every form -------------------------------------------------------------------------------------------


def softmax_ended() -> onnx.ModelProto:
    return net().then(node("Softmax", ["logits"], ["probs"], axis=1), out="probs").model()


def log_softmax_ended() -> onnx.ModelProto:
    return net().then(node("LogSoftmax", ["logits"], ["logp"], axis=1), out="logp").model()


def log_of_softmax() -> onnx.ModelProto:
    nodes = [node("Softmax", ["logits"], ["probs"], axis=1), node("Log", ["probs"], ["logp"])]
    return net().then(*nodes, out="logp").model()


def softmax_by_hand(dtype: type = np.float32, classes: int = CLASSES) -> onnx.ModelProto:
    nodes = [
        node("ReduceMax", ["logits"], ["top"], axes=[1], keepdims=1),
        node("Sub", ["logits", "top"], ["shifted"]),
        node("Exp", ["shifted"], ["e"]),
        node("ReduceSum", ["e", "axis"], ["total"], keepdims=1),
        node("Div", ["e", "total"], ["probs"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = [onnx_models.value("probs", ["N", classes], kind)]
    return net(dtype=dtype, classes=classes).then(*nodes, out=outputs, axis=ints(1)).model()


def temperature() -> onnx.ModelProto:
    return net().then(node("Div", ["logits", "t"], ["cool"]), out="cool", t=np.float32(3)).model()


def percent() -> onnx.ModelProto:
    nodes = [node("Softmax", ["logits"], ["probs"], axis=1), node("Mul", ["hundred", "probs"], ["share"])]
    return net().then(*nodes, out="share", hundred=np.float32(100)).model()


def four_dimensional_logits() -> onnx.ModelProto:
    parts = net()
    parts.nodes[3:] = [node("Conv", ["p", "h", "b"], ["logits"])]
    parts.weights["h"] = parts.weights.pop("g").T.reshape(CLASSES, WIDTH, 1, 1).copy()
    parts.outputs = [onnx_models.value("logits", ["N", CLASSES, 1, 1])]
    return parts.model()


def one_sigmoid() -> onnx.ModelProto:
    return net(classes=1).then(node("Sigmoid", ["logits"], ["p1"]), out="p1").model()


def one_sigmoid_squeezed() -> onnx.ModelProto:
    nodes = [node("Sigmoid", ["logits"], ["p1"]), node("Squeeze", ["p1", "axis"], ["flat"])]
    return net(classes=1).then(*nodes, out=[onnx_models.value("flat", ["N"])], axis=ints(1)).model()


def one_logit() -> onnx.ModelProto:
    return net(classes=1).model()


def one_small_logit() -> onnx.ModelProto:
    """One raw logit that lies between 0 and 1 for every noise image, as one from a trained net well may."""
    parts = net(classes=1)
    parts.weights["g"] *= np.float32(1e-3)
    parts.weights["b"][:] = 0.5
    return parts.model()


def many_classes() -> onnx.ModelProto:
    return net(classes=21843).model()


# --- Several outputs ------------------------------------------------------------------------------------------------


def logits_and_probabilities() -> onnx.ModelProto:
    outputs = [onnx_models.value("probs", ["N", CLASSES]), onnx_models.value("logits", ["N", CLASSES])]
    return net().then(node("Softmax", ["logits"], ["probs"], axis=1), out=outputs).model()


def logits_and_tempered_probabilities() -> onnx.ModelProto:
    """softmax(logits) is not what this model calls probabilities: a temperature stands between them."""
    nodes = [node("Div", ["logits", "t"], ["cool"]), node("Softmax", ["cool"], ["probs"], axis=1)]
    outputs = [onnx_models.value("logits", ["N", CLASSES]), onnx_models.value("probs", ["N", CLASSES])]
    return net().then(*nodes, out=outputs, t=np.float32(3)).model()


def features_and_logits() -> onnx.ModelProto:
    return net().then(out=[onnx_models.value("f", ["N", WIDTH]), onnx_models.value("logits", ["N", CLASSES])]).model()


def auxiliary_logits_first() -> onnx.ModelProto:
    """Scores of an early head come first in the file, those of the last head second."""
    parts = net()
    rng = np.random.default_rng(3)
    parts.nodes += [
        node("GlobalAveragePool", ["image"], ["early"]),
        node("Flatten", ["early"], ["early_f"]),
        node("Gemm", ["early_f", "ga"], ["aux_logits"]),
    ]
    parts.weights["ga"] = rng.standard_normal((3, CLASSES)).astype(np.float32)
    parts.outputs = [onnx_models.value("aux_logits", ["N", CLASSES]), onnx_models.value("logits", ["N", CLASSES])]
    return parts.model()


def embedding_and_logits() -> onnx.ModelProto:
    outputs = [onnx_models.value("embedding", ["N", WIDTH]), onnx_models.value("logits", ["N", CLASSES])]
    return net().then(node("LpNormalization", ["f"], ["embedding"], axis=1), out=outputs).model()


def label_only() -> onnx.ModelProto:
    outputs = [onnx_models.value("label", ["N"], TensorProto.INT64)]
    return net().then(node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0), out=outputs).model()


def label_only_fixed_batch() -> onnx.ModelProto:
    outputs = [onnx_models.value("label", [1], TensorProto.INT64)]
    return net(batch=1).then(node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0), out=outputs).model()


def top_three_only() -> onnx.ModelProto:
    outputs = [onnx_models.value("best", ["N", 3]), onnx_models.value("which", ["N", 3], TensorProto.INT64)]
    return net().then(node("TopK", ["logits", "k"], ["best", "which"], axis=1), out=outputs, k=ints(3)).model()


def custom_vision() -> onnx.ModelProto:
    """A label as text and a map from name to score, as cloud trainers export it."""
    names = [f"name {index}" for index in range(CLASSES)]
    nodes = [
        node("Softmax", ["logits"], ["probs"], axis=1),
        node("ArgMax", ["probs"], ["index"], axis=1, keepdims=0),
        node("ArrayFeatureExtractor", ["labels", "index"], ["picked"], domain="ai.onnx.ml"),
        node("Reshape", ["picked", "flat"], ["classLabel"]),
        node("ZipMap", ["probs"], ["loss"], domain="ai.onnx.ml", classlabels_strings=names),
    ]
    loss = onnx.ValueInfoProto(name="loss")
    loss.type.sequence_type.elem_type.map_type.key_type = TensorProto.STRING
    loss.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    outputs = [onnx_models.value("classLabel", ["N"], TensorProto.STRING), loss]
    parts = net(ml=True, opset=11).then(*nodes, out=outputs, flat=ints(-1))
    model = parts.model()
    model.graph.initializer.append(helper.make_tensor("labels", TensorProto.STRING, [CLASSES], names))
    return model


# --- Inputs in every form -------------------------------------------------------------------------------------------


def channels_last(image: list[int | str | None] | None = None, kind: int = TensorProto.FLOAT) -> Parts:
    parts = net()
    parts.inputs = [onnx_models.value("image", image or ["unk__123", SIZE, SIZE, 3], kind)]
    parts.nodes[0].input[0] = "nchw"
    parts.nodes.insert(0, node("Transpose", ["image"], ["nchw"], perm=[0, 3, 1, 2]))
    return parts


def keras() -> onnx.ModelProto:
    """Channels last, padded by a node of its own, MatMul and Add, scores [N,1,1,C]."""
    parts = channels_last()
    parts.nodes[1] = node("Conv", ["padded", "w"], ["c"])
    parts.nodes.insert(1, node("Pad", ["nchw", "pads"], ["padded"]))
    parts.nodes[-1:] = [
        node("MatMul", ["f", "g"], ["product"]),
        node("Add", ["product", "b"], ["sum"]),
        node("Softmax", ["sum"], ["soft"], axis=-1),
        node("Reshape", ["soft", "shape"], ["probs"]),
    ]
    parts.weights |= {"pads": ints(0, 0, 1, 1, 0, 0, 1, 1), "shape": ints(-1, 1, 1, CLASSES)}
    parts.outputs = [onnx_models.value("probs", ["unk__456", 1, 1, CLASSES])]
    parts.settings = {"opset": 13}
    return parts.model()


def uint8_channels_last() -> onnx.ModelProto:
    parts = channels_last(["N", SIZE, SIZE, 3], TensorProto.UINT8)
    parts.nodes[0].input[0] = "scaled"
    parts.nodes[:0] = [
        node("Cast", ["image"], ["cast"], to=TensorProto.FLOAT),
        node("Sub", ["cast", "mean"], ["centred"]),
        node("Div", ["centred", "deviation"], ["scaled"]),
    ]
    parts.weights |= {"mean": np.float32(127), "deviation": np.float32(60)}
    return parts.model()


def whole_number_image(kind: int) -> onnx.ModelProto:
    parts = net()
    parts.inputs = [onnx_models.value("image", ["N", 3, SIZE, SIZE], kind)]
    parts.nodes[0].input[0] = "cast"
    parts.nodes.insert(0, node("Cast", ["image"], ["cast"], to=TensorProto.FLOAT))
    return parts.model()


def no_shape_at_all(weights_are: str = "initializers", channels: int = 3, last: bool = False) -> onnx.ModelProto:
    parts = channels_last() if last else net(channels=channels)
    parts.inputs = [onnx_models.value("image", None)]
    parts.outputs = [onnx_models.value("logits", None)]
    if weights_are == "constants":
        parts.nodes.insert(0, node("Constant", [], ["w"], value=numpy_helper.from_array(parts.weights.pop("w"))))
    return parts.model()


def quantised_without_shape() -> onnx.ModelProto:
    """One channel and no declared shape: only the quantised convolution shows what the image is."""
    parts = net(channels=1)
    parts.inputs = [onnx_models.value("image", None)]
    weights = np.random.default_rng(4).integers(-127, 127, (WIDTH, 1, 3, 3), dtype=np.int8)
    parts.nodes[0:1] = [
        node("QuantizeLinear", ["image", "s", "z"], ["q"]),
        node("QLinearConv", ["q", "s", "z", "wq", "ws", "wz", "os", "z"], ["cq"], pads=[1, 1, 1, 1]),
        node("DequantizeLinear", ["cq", "os", "z"], ["c"]),
    ]
    parts.weights |= {
        "wq": weights, "s": np.float32(0.04), "z": np.uint8(100), "ws": np.float32(0.02), "wz": np.int8(0),
        "os": np.float32(0.1),
    }  # fmt: skip
    return parts.model()


def batch_written_as(number: int) -> onnx.ModelProto:
    model = net().model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = number
    return model


def one_size_only(channels: int = 3, size: int = 28) -> onnx.ModelProto:
    """Height and width are left open, but the matrix behind the Flatten fits one size."""
    parts = net(size=None, channels=channels)
    parts.nodes[2:4] = [
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]), node("Flatten", ["p"], ["f"])
    ]  # fmt: skip
    shape = (WIDTH * (size // 2) ** 2, CLASSES)
    parts.weights["g"] = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    return parts.model()


def switched(shape: list[int]) -> onnx.ModelProto:
    """A training flag as a second input; what it does is seen by nobody who leaves it off."""
    parts = net()
    parts.inputs.append(onnx_models.value("training", shape, TensorProto.BOOL))
    parts.nodes[4].input[0] = "kept"
    steps = [node("Where", ["training", "zero", "f"], ["kept"])]
    parts.nodes[4:4] = steps
    parts.weights["zero"] = np.float32(0)
    return parts.model()


def unread_input() -> onnx.ModelProto:
    """A second input that an export left behind."""
    parts = net()
    parts.inputs.append(onnx_models.value("image_info", ["N", 3]))
    return parts.model()


def keep_probability() -> onnx.ModelProto:
    """The kept share of a dropout as a second input, by which features are divided."""
    parts = net()
    parts.inputs.append(onnx_models.value("keep_prob", []))
    parts.nodes[4].input[0] = "scaled"
    parts.nodes.insert(4, node("Div", ["f", "keep_prob"], ["scaled"]))
    return parts.model()


def weights_listed_as_inputs(opset: int = 7) -> onnx.ModelProto:
    parts = net(opset=opset, ir_version=3)
    parts.inputs += [onnx_models.value(name, list(array.shape)) for name, array in parts.weights.items()]
    parts.nodes.insert(4, node("Dropout", ["f"], ["d"]))
    parts.nodes[5].input[0] = "d"
    return parts.model()


def mxnet() -> onnx.ModelProto:
    """Weights as inputs, batch 1 by Reshape [1,-1], softmax of the coerced kind (opset 8), a name for the data."""
    parts = net(batch=1, opset=8, ir_version=3)
    parts.inputs += [onnx_models.value(name, list(array.shape)) for name, array in parts.weights.items()]
    parts.nodes[3] = node("Reshape", ["p", "shape"], ["f"])
    parts.weights["shape"] = ints(1, -1)
    parts.inputs.append(onnx_models.value("shape", [2], TensorProto.INT64))
    return parts.then(node("Softmax", ["logits"], ["softmaxoutput0"], axis=1), out="softmaxoutput0").model()


# --- Batches --------------------------------------------------------------------------------------------------------


def hard_coded_reshape(batch: int = 1) -> onnx.ModelProto:
    parts = net(batch=batch)
    parts.nodes[3] = node("Reshape", ["p", "shape"], ["f"])
    parts.weights["shape"] = ints(batch, WIDTH)
    return parts.model()


def hard_coded_token(batch: int | str, own: int) -> onnx.ModelProto:
    """A class token for `own` images joined to the patches, as a ViT exported with that many examples has it."""
    parts = net(batch=batch)
    parts.nodes[2:4] = [
        node("Reshape", ["r", "tokens"], ["t"]),
        node("Transpose", ["t"], ["tt"], perm=[0, 2, 1]),
        node("Expand", ["cls", "one"], ["c1"]),
        node("Concat", ["c1", "tt"], ["all"], axis=1),
        node("MatMul", ["all", "wk"], ["k"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["all", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["attention"], axis=-1),
        node("MatMul", ["attention", "all"], ["mixed"]),
        node("Gather", ["mixed", "first"], ["f"], axis=1),
    ]
    rng = np.random.default_rng(6)
    parts.weights |= {
        "tokens": ints(own, WIDTH, SIZE * SIZE), "one": ints(own, 1, WIDTH), "first": np.array(0, np.int64),
        "cls": rng.standard_normal((1, 1, WIDTH)).astype(np.float32),
        "wk": (0.1 * rng.standard_normal((WIDTH, WIDTH))).astype(np.float32),
    }  # fmt: skip
    return parts.model()


def batch_norm_in_training(batch: int | str = "N", *, drifting: bool = False) -> onnx.ModelProto:
    parts = net(batch=batch)
    parts.nodes[1:2] = [
        node("BatchNormalization", ["c", "s", "o", "m", "v"], ["n", "m2", "v2"], training_mode=1),
        node("Relu", ["n"], ["r"]),
    ]
    # Equal weights are shared by the runtime and then changed in place, so that the answer drifts from run to run.
    numbers = {"s": 1.0, "o": 0.0, "m": 0.5, "v": 1.0 if drifting else 2.0}
    parts.weights |= {name: np.full(WIDTH, number, np.float32) for name, number in numbers.items()}
    return parts.model()


def quantised_by_the_batch(kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """The range of eight-bit steps is taken from the whole batch, so a bright neighbour coarsens a dark image."""
    parts = net()
    parts.inputs = [onnx_models.value("image", ["N", 3, SIZE, SIZE], kind)]
    parts.nodes[:1] = [
        node("Cast", ["image"], ["cast"], to=TensorProto.FLOAT),
        node("DynamicQuantizeLinear", ["cast"], ["q", "s", "z"]),
        node("DequantizeLinear", ["q", "s", "z"], ["dq"]),
        node("Conv", ["dq", "w"], ["c"], pads=[1, 1, 1, 1]),
    ]
    return parts.model()


def dropout_in_training() -> onnx.ModelProto:
    """The CPU runtime passes everything on, whatever the flag says."""
    parts = net()
    parts.nodes.insert(4, node("Dropout", ["f", "ratio", "on"], ["d"]))
    parts.nodes[5].input[0] = "d"
    parts.weights |= {"ratio": np.float32(0.5), "on": np.array(True)}
    return parts.model()


# --- Numbers in every form ------------------------------------------------------------------------------------------


def quantised() -> onnx.ModelProto:
    """QuantizeLinear and DequantizeLinear around each product, as static quantisation leaves them."""
    parts = net()
    rng = np.random.default_rng(7)
    parts.nodes = [
        node("QuantizeLinear", ["image", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["dq"]),
        node("DequantizeLinear", ["wq", "ws", "wz"], ["w"]),
        node("Conv", ["dq", "w"], ["c"], pads=[1, 1, 1, 1]),
        *parts.nodes[1:],
        node("Softmax", ["logits"], ["soft"], axis=1),
        node("QuantizeLinear", ["soft", "ps", "pz"], ["pq"]),
        node("DequantizeLinear", ["pq", "ps", "pz"], ["probs"]),
    ]
    del parts.weights["w"]
    parts.weights |= {
        "wq": rng.integers(-127, 127, (WIDTH, 3, 3, 3), dtype=np.int8), "s": np.float32(0.04), "z": np.uint8(110),
        "ws": np.float32(0.01), "wz": np.int8(0), "ps": np.float32(1 / 256), "pz": np.uint8(0),
    }  # fmt: skip
    parts.outputs = [onnx_models.value("probs", ["N", CLASSES])]
    return parts.model()


def float64() -> onnx.ModelProto:
    """No convolution: the runtime has none in float64."""
    parts = net(dtype=np.float64)
    parts.nodes[:4] = [node("Flatten", ["image"], ["f"])]
    parts.weights["g"] = np.random.default_rng(9).standard_normal((3 * SIZE * SIZE, CLASSES))
    del parts.weights["w"]
    return parts.model()


def quantised_softmax() -> onnx.ModelProto:
    """Softmax in eight bits, whose sum misses 1, with scores that no float operator makes."""
    parts = net()
    nodes = [
        node("QuantizeLinear", ["logits", "ls", "lz"], ["lq"]),
        node("QLinearSoftmax", ["lq", "ls", "lz", "ps", "pz"], ["pq"], domain="com.microsoft", axis=1, opset=13),
        node("DequantizeLinear", ["pq", "ps", "pz"], ["probs"]),
    ]
    weights = {"ls": np.float32(0.3), "lz": np.uint8(128), "ps": np.float32(1 / 256), "pz": np.uint8(0)}
    model = parts.then(*nodes, out=[onnx_models.value("probs", ["N", CLASSES])], **weights).model()
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def unlucky_name() -> onnx.ModelProto:
    outputs = [onnx_models.value("defect_detection", ["N", CLASSES])]
    return net().then(node("Identity", ["logits"], ["defect_detection"]), out=outputs).model()


def flattened_as_torch_does() -> onnx.ModelProto:
    """view(x.size(0), -1) at batch 1: Reshape to [1,-1], where a 0 is taken for a zero."""
    parts = net(batch=1)
    parts.nodes[3] = node("Reshape", ["p", "shape"], ["f"], allowzero=1)
    parts.weights["shape"] = ints(1, -1)
    return parts.model()


def log_softmax_in_float16() -> onnx.ModelProto:
    parts = net(dtype=np.float16, classes=1000)
    outputs = [onnx_models.value("logp", ["N", 1000], TensorProto.FLOAT16)]
    return parts.then(node("LogSoftmax", ["logits"], ["logp"], axis=1), out=outputs).model()


def local_functions() -> onnx.ModelProto:
    model = net().model()
    body = [node("Softmax", ["x"], ["y"], axis=-1)]
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("vendor.head", "Head", ["x"], ["y"], body, opsets))
    model.opset_import.append(helper.make_opsetid("vendor.head", 1))
    model.graph.node.append(node("Head", ["logits"], ["probs"], domain="vendor.head"))
    model.graph.output[0].name = "probs"
    return model


def constant_branch() -> onnx.ModelProto:
    yes = helper.make_graph([node("Identity", ["f"], ["y1"])], "yes", [], [onnx_models.value("y1", None)])
    no = helper.make_graph([node("Neg", ["f"], ["y2"])], "no", [], [onnx_models.value("y2", None)])
    parts = net()
    parts.nodes.insert(4, node("If", ["on"], ["d"], then_branch=yes, else_branch=no))
    parts.nodes[5].input[0] = "d"
    parts.weights["on"] = np.array(True)
    return parts.model()


def with_metadata() -> onnx.ModelProto:
    model = net().model()
    for key, text in {"author": "vendor", "session.intra_op_num_threads": "64", "labels": "['a','b']"}.items():
        model.metadata_props.add(key=key, value=text)
    return model


@dataclass(frozen=True)
class Facts:
    """What inspection must say of a model, where it is not the usual."""

    kind: str = "logits"
    classes: int = CLASSES
    batch: str = "dynamic"
    layout: str = "NCHW"
    dtype: str = "float32"
    output: str = "logits"
    channels: int = 3
    size: int = SIZE
    preset: str = "imagenet"
    tolerance: float = 0.0
    dependent: bool = False
    warns: str = ""
    guesses: str = ""


OPENS: dict[str, tuple[Callable[[], onnx.ModelProto], Facts]] = {
    "plain": (lambda: net().model(), Facts()),
    "softmax": (softmax_ended, Facts("probabilities", output="probs")),
    "log-softmax": (log_softmax_ended, Facts("log-probabilities", output="logp")),
    "log of softmax": (log_of_softmax, Facts("log-probabilities", output="logp")),
    "softmax by hand": (softmax_by_hand, Facts("probabilities", output="probs")),
    "softmax by hand in float16": (
        lambda: softmax_by_hand(np.float16, 1000),
        Facts("probabilities", 1000, dtype="float16", output="probs", tolerance=1e-3),
    ),
    "percent": (percent, Facts("probabilities", output="probs", guesses="behind the percent in 'share'")),
    "temperature": (temperature, Facts(output="cool")),
    "logits [N,C,1,1]": (four_dimensional_logits, Facts()),
    "one sigmoid": (one_sigmoid, Facts("sigmoid", 2, output="p1", guesses="one number")),
    "one sigmoid squeezed": (one_sigmoid_squeezed, Facts("sigmoid", 2, output="flat", guesses="one number")),
    "one logit": (one_logit, Facts(classes=2, guesses="one number")),
    "one small logit": (one_small_logit, Facts(classes=2, guesses="one number")),
    "21843 classes": (many_classes, Facts(classes=21843)),
    "logits and probabilities": (logits_and_probabilities, Facts(guesses="several outputs")),
    "logits and tempered probabilities": (
        logits_and_tempered_probabilities, Facts("probabilities", output="probs", guesses="several outputs"),
    ),
    "features and logits": (features_and_logits, Facts(guesses="several outputs")),
    "auxiliary logits first": (auxiliary_logits_first, Facts(guesses="several outputs")),
    "embedding and logits": (embedding_and_logits, Facts(guesses="several outputs")),
    "label only": (label_only, Facts(guesses="ArgMax")),
    "label only, fixed batch": (label_only_fixed_batch, Facts(batch="made-dynamic", guesses="ArgMax")),
    "top three only": (top_three_only, Facts(guesses="TopK")),
    "custom vision": (custom_vision, Facts("probabilities", output="probs", guesses="ZipMap")),
    "keras": (keras, Facts("probabilities", layout="NHWC", output="probs", preset="tf")),
    "uint8 NHWC": (uint8_channels_last, Facts(layout="NHWC", dtype="uint8", preset="none")),
    "no shape": (no_shape_at_all, Facts(size=224, guesses="input size")),
    "no shape, constants": (
        lambda: no_shape_at_all("constants", 1), Facts(size=224, channels=1, preset="unit", guesses="convolution"),
    ),
    "no shape, NHWC": (lambda: no_shape_at_all(last=True), Facts(size=224, layout="NHWC", guesses="convolution")),
    "no shape, QLinearConv": (
        quantised_without_shape, Facts(size=224, channels=1, preset="unit", guesses="convolution", tolerance=1e-3),
    ),
    "batch 0": (lambda: batch_written_as(0), Facts()),
    "batch -1": (lambda: batch_written_as(-1), Facts()),
    "one size only": (one_size_only, Facts(size=28, guesses="input size 28x28")),
    "switch": (lambda: switched([]), Facts(guesses="switch")),
    "switch [1]": (lambda: switched([1]), Facts(guesses="switch")),
    "unread input": (unread_input, Facts(guesses="'image_info' is left out")),
    "keep probability": (keep_probability, Facts(guesses="'keep_prob' is a switch, set to 1")),
    "opset 7, weights as inputs": (weights_listed_as_inputs, Facts()),
    "opset 8, weights as inputs": (lambda: weights_listed_as_inputs(8), Facts()),
    "mxnet": (mxnet, Facts("probabilities", output="softmaxoutput0", batch="made-dynamic")),
    "grey": (lambda: net(channels=1).model(), Facts(channels=1, preset="unit")),
    "fixed 1": (lambda: net(batch=1).model(), Facts(batch="made-dynamic")),
    "fixed 3, reshape": (lambda: hard_coded_reshape(3), Facts(batch="made-dynamic")),
    "batch norm in training": (batch_norm_in_training, Facts(batch="fixed:1", dependent=True, warns="depends on")),
    "batch norm in training, fixed 4": (
        lambda: batch_norm_in_training(4),
        Facts(batch="fixed:4", dependent=True, warns="depends on"),
    ),
    "dropout in training": (dropout_in_training, Facts()),
    "dynamic quantisation": (quantised_by_the_batch, Facts(batch="fixed:1", dependent=True, warns="depends on")),
    "dynamic quantisation of uint8": (
        lambda: quantised_by_the_batch(TensorProto.UINT8),
        Facts(dtype="uint8", preset="none", batch="fixed:1", dependent=True, warns="depends on"),
    ),
    "float64": (float64, Facts(dtype="float64")),
    "float16": (lambda: net(dtype=np.float16).model(), Facts(dtype="float16", tolerance=1e-3)),
    "quantised softmax": (quantised_softmax, Facts("probabilities", output="probs", tolerance=1e-3)),
    "unlucky name": (unlucky_name, Facts(output="defect_detection")),
    "fixed 1, allowzero": (flattened_as_torch_does, Facts(batch="made-dynamic")),
    "log-softmax in float16": (
        log_softmax_in_float16, Facts("log-probabilities", 1000, dtype="float16", output="logp", tolerance=1e-2),
    ),
    "quantised": (quantised, Facts("probabilities", output="probs", tolerance=1e-3)),
    "local functions": (local_functions, Facts("probabilities", output="probs")),
    "constant branch": (constant_branch, Facts()),
    "metadata": (with_metadata, Facts()),
}  # fmt: skip


def reference(path: Path, output: str, rows: Array, dependent: bool) -> Array:
    """Scores from a plain session of the file itself, at the batch size it declares where it declares one."""
    model = onnx.load(path)
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value == 0:
            dim.ClearField("dim_value")  # which the runtime refuses
    if output not in {value.name for value in model.graph.output}:
        model.graph.output.append(onnx.ValueInfoProto(name=output))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {value.name: np.zeros(value.shape, bool) for value in session.get_inputs() if value.type == "tensor(bool)"}
    feeds |= {value.name: np.ones((), np.float32) for value in session.get_inputs() if value.name == "keep_prob"}
    feeds |= {value.name: np.ones((1, 3), np.float32) for value in session.get_inputs() if value.name == "image_info"}
    image = next(value for value in session.get_inputs() if value.type != "tensor(bool)")
    own = image.shape[0] if image.shape and isinstance(image.shape[0], int) and image.shape[0] > 0 else len(rows)
    if dependent:  # each image fills a batch by itself
        own = own if isinstance(image.shape[0], int) else 1
        return np.concatenate([
            session.run([output], feeds | {image.name: row[None].repeat(own, axis=0)})[0].reshape(own, -1)[:1]
            for row in rows
        ])  # fmt: skip
    filled = np.concatenate([rows, rows[-1:].repeat(-len(rows) % own, axis=0)])
    parts = [session.run([output], feeds | {image.name: filled[i : i + own]})[0] for i in range(0, len(filled), own)]
    return np.concatenate([part.reshape(own, -1) for part in parts])[: len(rows)]


def pictures(facts: Facts, count: int) -> Array:
    """Pictures from dark to bright, so that neighbours differ."""
    rng = np.random.default_rng(8)
    shape = (count, facts.size, facts.size, facts.channels)
    brightest = np.linspace(40, 255, count).reshape(-1, 1, 1, 1)
    return (rng.random(shape) * brightest).astype(np.uint8)


@pytest.mark.parametrize("name", OPENS)
def test_opens_for_what_it_is_and_predicts_what_onnxruntime_predicts(name: str, tmp_path: Path) -> None:
    make, facts = OPENS[name]
    path = onnx_models.save(make(), tmp_path)
    model = auditkit.load(path, preset=facts.preset, settings=auditkit.Settings(device="cpu"))
    found = model.signature
    assert (found.kind, found.classes, found.output) == (facts.kind, facts.classes, facts.output)
    assert (found.batch, found.layout, found.dtype) == (facts.batch, facts.layout, facts.dtype)
    assert (found.channels, found.height, found.width) == (facts.channels, facts.size, facts.size)
    assert (found.rows == "dependent") == facts.dependent
    assert facts.warns in " ".join(found.warnings)
    assert bool(facts.warns) == bool(found.warnings), found.warnings
    assert facts.guesses in " ".join(found.guesses)
    for count in (1, 7, 64) if facts.size < 64 else (1, 7):
        images = pictures(facts, count)
        rows = model.preprocess(images)
        expected = reference(path, found.output, rows, facts.dependent)
        assert expected.shape == model.predict(images).shape
        np.testing.assert_allclose(model.predict(images), expected, rtol=0, atol=facts.tolerance)
        probabilities = model.probabilities(images)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=max(1e-5, 20 * facts.tolerance))


@pytest.mark.parametrize("declared", [1, 3, "N"])
def test_a_class_token_of_the_export_size_is_run_at_that_size_or_repeated(declared: int | str, tmp_path: Path) -> None:
    """Either is right, and which it is is told; a file that declares any batch but holds one token runs one image."""
    own = 1 if declared == "N" else int(declared)
    path = onnx_models.save(hard_coded_token(declared, own), tmp_path)
    model = auditkit.load(path, preset="imagenet", settings=auditkit.Settings(device="cpu"))
    assert model.signature.batch in (f"fixed:{own}", "made-dynamic")
    fixed = model.signature.fixed_batch is not None
    assert ("slow" in " ".join(model.signature.warnings)) == fixed
    images = pictures(Facts(), 7)
    expected = reference(path, "logits", model.preprocess(images), declared == "N")
    np.testing.assert_allclose(model.predict(images), expected, rtol=0, atol=0 if fixed else 1e-5)


def test_float_numbers_that_are_no_pixels_are_not_cut_down_to_bytes(tmp_path: Path) -> None:
    path = onnx_models.save(uint8_channels_last(), tmp_path)
    model = auditkit.load(path, preset="none", settings=auditkit.Settings(device="cpu"))
    images = pictures(Facts(), 2)
    np.testing.assert_array_equal(model.predict(images.astype(np.float32)), model.predict(images))
    for wrong in (images / 255, images - 100.0, images * 2.0):
        with pytest.raises(auditkit.BadInput, match=r"0\.\.255"):
            model.predict(wrong.astype(np.float32))


def test_weights_in_a_file_of_their_own_are_the_same_weights(tmp_path: Path) -> None:
    whole = auditkit.load(onnx_models.save(net().model(), tmp_path), preset="unit")
    onnx.save(net().model(), tmp_path / "apart.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    apart = auditkit.load(tmp_path / "apart.onnx", preset="unit")
    images = pictures(Facts(), 7)
    assert apart.signature == whole.signature
    np.testing.assert_array_equal(apart.predict(images), whole.predict(images))


@pytest.mark.parametrize("name", [name for name, (_, facts) in OPENS.items() if facts.dependent])
def test_the_result_of_an_image_does_not_depend_on_its_neighbours(name: str, tmp_path: Path) -> None:
    make, facts = OPENS[name]
    model = auditkit.load(
        onnx_models.save(make(), tmp_path), preset=facts.preset, settings=auditkit.Settings(device="cpu", batch=7)
    )
    images = pictures(facts, 9)
    together = model.predict(images)
    np.testing.assert_array_equal(together, model.predict(images[::-1])[::-1])
    np.testing.assert_array_equal(together[:1], model.predict(images[:1]))


# --- What is no classifier of one label, or cannot be read as one ----------------------------------------------------


def multi_label() -> onnx.ModelProto:
    return net().then(node("Sigmoid", ["logits"], ["tags"]), out="tags").model()


def multi_label_with_logits() -> onnx.ModelProto:
    outputs = [onnx_models.value("logits", ["N", CLASSES]), onnx_models.value("tags", ["N", CLASSES])]
    return net().then(node("Sigmoid", ["logits"], ["tags"]), out=outputs).model()


def multi_label_by_hand() -> onnx.ModelProto:
    nodes = [
        node("Neg", ["logits"], ["n"]),
        node("Exp", ["n"], ["e"]),
        node("Add", ["e", "one"], ["d"]),
        node("Reciprocal", ["d"], ["tags"]),
    ]
    return net().then(*nodes, out="tags", one=np.float32(1)).model()


def multi_label_in_a_function() -> onnx.ModelProto:
    model = local_functions()
    model.functions[0].node[0].CopyFrom(node("Sigmoid", ["x"], ["y"]))
    return model


def multi_label_quantised() -> onnx.ModelProto:
    model = quantised()
    for entry in model.graph.node:
        if entry.op_type == "Softmax":
            entry.CopyFrom(node("Sigmoid", ["logits"], ["soft"]))
    return model


def detector_with_suppression() -> onnx.ModelProto:
    parts = net()
    parts.nodes += [
        node("Reshape", ["c", "rows"], ["boxes3"]),
        node("ReduceMax", ["boxes3"], ["best"], axes=[2], keepdims=0),
        node("Reshape", ["best", "columns"], ["scores3"]),
        node("NonMaxSuppression", ["boxes3", "scores3", "most"], ["selected"]),
    ]
    parts.weights |= {"rows": ints(1, -1, 4), "columns": ints(1, 1, -1), "most": ints(3)}
    parts.outputs = [onnx_models.value("selected", [None, 3], TensorProto.INT64)]
    return parts.model()


def detector_with_boxes() -> onnx.ModelProto:
    nodes = [node("Reshape", ["c", "rows"], ["where"]), node("Reshape", ["c", "columns"], ["what"])]
    outputs = [onnx_models.value("where", ["N", None, 4]), onnx_models.value("what", ["N", None, 8])]
    return net().then(*nodes, out=outputs, rows=ints(0, -1, 4), columns=ints(0, -1, 8)).model()


def segmentation() -> onnx.ModelProto:
    return net().then(out=[onnx_models.value("r", ["N", WIDTH, SIZE, SIZE])]).model()


def segmentation_labels() -> onnx.ModelProto:
    outputs = [onnx_models.value("mask", ["N", SIZE, SIZE], TensorProto.INT64)]
    return net().then(node("ArgMax", ["r"], ["mask"], axis=1, keepdims=0), out=outputs).model()


def two_heads() -> onnx.ModelProto:
    parts = net()
    weights = {"g2": np.random.default_rng(10).standard_normal((WIDTH, 3)).astype(np.float32)}
    outputs = [onnx_models.value("logits", ["N", CLASSES]), onnx_models.value("age", ["N", 3])]
    return parts.then(node("Gemm", ["f", "g2"], ["age"]), out=outputs, **weights).model()


def text_model() -> onnx.ModelProto:
    weights = {"table": np.ones((9, 4), np.float32)}
    nodes = [node("Gather", ["table", "input_ids"], ["e"]), node("ReduceMean", ["e"], ["y"], axes=[1], keepdims=0)]
    inputs = [onnx_models.value("input_ids", ["N", "T"], TensorProto.INT64)]
    return onnx_models.model(nodes, inputs, [onnx_models.value("y", ["N", 4])], weights)


def two_towers() -> onnx.ModelProto:
    parts = net()
    parts.inputs.append(onnx_models.value("input_ids", ["T", WIDTH], TensorProto.INT64))
    nodes = [
        node("Cast", ["input_ids"], ["text"], to=TensorProto.FLOAT),
        node("Transpose", ["text"], ["text_t"], perm=[1, 0]),
        node("MatMul", ["f", "text_t"], ["logits_per_image"]),
    ]
    return parts.then(*nodes, out="logits_per_image").model()


def two_images() -> onnx.ModelProto:
    parts = net()
    parts.inputs.append(onnx_models.value("other", ["N", 3, SIZE, SIZE]))
    parts.nodes.insert(0, node("Sub", ["image", "other"], ["difference"]))
    parts.nodes[1].input[0] = "difference"
    return parts.model()


def unit_embedding() -> onnx.ModelProto:
    return net(classes=16).then(node("LpNormalization", ["logits"], ["embedding"], axis=1), out="embedding").model()


def random_answers(batch: int | str = "N") -> onnx.ModelProto:
    """Dropout written out by hand: every run gives other scores."""
    parts = net(batch=batch)
    parts.nodes[4:4] = [
        node("RandomUniformLike", ["f"], ["u"]),
        node("Greater", ["u", "half"], ["keep"]),
        node("Where", ["keep", "f", "zero"], ["d"]),
    ]
    parts.nodes[-1].input[0] = "d"
    parts.weights |= {"half": np.float32(0.5), "zero": np.float32(0)}
    return parts.model()


def softmax_over_the_batch() -> onnx.ModelProto:
    return net().then(node("Softmax", ["logits"], ["probs"], axis=0), out="probs").model()


def softmax_of_one_number() -> onnx.ModelProto:
    return net(classes=1).then(node("Softmax", ["logits"], ["probs"], axis=1), out="probs").model()


def not_a_number() -> onnx.ModelProto:
    parts = net()
    parts.weights["b"][2] = np.nan
    return parts.model()


def bfloat16() -> onnx.ModelProto:
    parts = net()
    parts.inputs = [onnx_models.value("image", ["N", 3, SIZE, SIZE], TensorProto.BFLOAT16)]
    parts.nodes[0].input[0] = "cast"
    parts.nodes.insert(0, node("Cast", ["image"], ["cast"], to=TensorProto.FLOAT))
    return parts.model()


def four_channels() -> onnx.ModelProto:
    return net(channels=4).model()


def flat_pixels() -> onnx.ModelProto:
    nodes = [node("Gemm", ["image", "g"], ["logits"])]
    weights = {"g": np.ones((784, 10), np.float32)}
    return onnx_models.model(
        nodes, [onnx_models.value("image", ["N", 784])], [onnx_models.value("logits", ["N", 10])], weights
    )


def odd_size() -> onnx.ModelProto:
    return one_size_only(size=46)


REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[str, ...]]] = {
    "multi-label": (multi_label, ("multi-label", "soundness", "--kind")),
    "multi-label with its logits": (multi_label_with_logits, ("multi-label", "soundness")),
    "multi-label by hand": (multi_label_by_hand, ("multi-label", "soundness", "--kind")),
    "multi-label in a function": (multi_label_in_a_function, ("multi-label", "soundness", "--kind")),
    "multi-label, quantised": (multi_label_quantised, ("multi-label", "soundness", "--kind")),
    "detector with suppression": (detector_with_suppression, ("detector", "--output")),
    "detector with boxes": (detector_with_boxes, ("detector",)),
    "segmentation": (segmentation, ("segmentation",)),
    "segmentation labels": (segmentation_labels, ("segmentation",)),
    "two heads": (two_heads, ("several outputs", "'logits'", "'age'", "--output")),
    "text": (text_model, ("tokens", "image classifiers")),
    "two towers": (two_towers, ("besides the image 'image'", "'input_ids'")),
    "two images": (two_images, ("several inputs", "--input")),
    "unit embedding": (unit_embedding, ("embedding", "--kind")),
    "random": (random_answers, ("same image", "evaluation")),
    "random, batch 1": (lambda: random_answers(1), ("same image", "evaluation")),
    "drifting": (lambda: batch_norm_in_training(drifting=True), ("same image", "evaluation")),
    "softmax over the batch": (softmax_over_the_batch, ("wrong axis",)),
    "softmax of one number": (softmax_of_one_number, ("wrong axis",)),
    "not a number": (not_a_number, ("NaN",)),
    "bfloat16": (bfloat16, ("bfloat16", "float32")),
    "int32 image": (lambda: whole_number_image(TensorProto.INT32), ("int32", "float32", "uint8")),
    "int64 image": (lambda: whole_number_image(TensorProto.INT64), ("int64", "float32", "uint8")),
    "float64 convolution": (lambda: net(dtype=np.float64).model(), ("Conv",)),
    "four channels": (four_channels, ("4 channels", "--layout")),
    "flat pixels": (flat_pixels, ("image' float[N,784]", "[N,3,H,W]")),
    "odd size": (odd_size, ("--size",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_one_sentence_that_says_why(name: str, tmp_path: Path) -> None:
    make, words = REFUSED[name]
    path = onnx_models.save(make(), tmp_path)
    with pytest.raises(auditkit.BadInput) as caught:
        auditkit.load(path, preset="none", settings=auditkit.Settings(device="cpu"))
    text = str(caught.value)
    assert not [word for word in words if word not in text], text
    assert text.endswith(".")
    assert "\n" not in text
