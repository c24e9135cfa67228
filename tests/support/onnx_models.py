"""Small ONNX models for tests, built by hand so that their answers can be worked out."""

import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from auditkit.arrays import Array


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, Array] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    ml: bool = False,
) -> onnx.ModelProto:
    """A model from nodes and named weights."""
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid("ai.onnx.ml", 3)] if ml else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def value(name: str, shape: list[int | str | None] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """Declaration of an input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def convnet(
    batch: int | str = "N", size: int | str = 8, classes: int = 5, seed: int = 0, **kwargs: Any
) -> onnx.ModelProto:
    """Conv, Relu, global pooling, Gemm: image [batch,3,size,size] to logits [batch,classes]."""
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "g", "b"], ["logits"], name="gemm"),
    ]
    weights = {
        "w": rng.standard_normal((6, 3, 3, 3)).astype(np.float32),
        "g": rng.standard_normal((6, classes)).astype(np.float32),
        "b": rng.standard_normal(classes).astype(np.float32),
    }
    return model(
        nodes, [value("image", [batch, 3, size, size])], [value("logits", [batch, classes])], weights, **kwargs
    )


ARM = platform.machine() in ("aarch64", "arm64")  # whose CPUs sum float16 in float16, and split single images otherwise


def save(proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """The model as a file."""
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


@cache
def int8_saturates() -> bool:
    """Whether sums of products of uint8 and int8 overflow in the runtime, as on x86 processors without VNNI."""
    product = model(
        [helper.make_node("MatMulInteger", ["a", "b"], ["sums"])], [value("a", ["N", 64], TensorProto.UINT8)],
        [value("sums", ["N", 8], TensorProto.INT32)], {"b": np.full((64, 8), 127, np.int8)},
    )  # fmt: skip
    session = onnxruntime.InferenceSession(product.SerializeToString(), providers=["CPUExecutionProvider"])
    return bool((session.run(None, {"a": np.full((4, 64), 255, np.uint8)})[0] != 255 * 127 * 64).any())
