"""Records what OpenVINO-XAI's InsertionDeletionAUC says of a small network, into openvino.npz beside this file.

    pip install openvino-xai==1.1.0 onnx
    python record_openvino.py

The network is compiled in float32: on some processors OpenVINO computes in bfloat16 unless told otherwise. Maps have
no ties: OpenVINO-XAI leaves them in an order that differs between processors.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import openvino
from onnx import TensorProto, helper, numpy_helper
from openvino_xai.metrics import InsertionDeletionAUC

HEIGHT, WIDTH, HIDDEN, CLASSES, IMAGES = 13, 11, 8, 5, 3
STEPS = (30, 7, 143, 200)  # its default; no divisor of 143 pixels; each pixel; more steps than pixels
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])

rng = np.random.default_rng(20241)
images = rng.integers(0, 256, (IMAGES, HEIGHT, WIDTH, 3), dtype=np.uint8)
maps = rng.standard_normal((IMAGES, HEIGHT, WIDTH)).astype(np.float32)
first = (rng.standard_normal((HEIGHT * WIDTH * 3, HIDDEN)) * 0.1).astype(np.float32)
second = (rng.standard_normal((HIDDEN, CLASSES)) * 1.5).astype(np.float32)
labels = np.array([0, 3, 4])
assert all(len(np.unique(values)) == values.size for values in maps)


def network() -> onnx.ModelProto:
    """Flatten, Gemm, Tanh, Gemm, Softmax over [1, 3, 13, 11]."""
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("MatMul", ["flat", "first"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    weights = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, HEIGHT, WIDTH])
    out = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, CLASSES])
    graph = helper.make_graph(nodes, "toy", [image], [out], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def preprocess(image: np.ndarray) -> np.ndarray:
    return ((image / 255 - MEAN) / STD).transpose(2, 0, 1)[None].astype(np.float32)


core = openvino.Core()
model = core.read_model(network().SerializeToString())
metric = InsertionDeletionAUC(model, preprocess, lambda outputs: outputs["probabilities"])
metric.model_compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

recorded = {"images": images, "maps": maps, "first": first, "second": second, "labels": labels, "steps": STEPS}
for steps in STEPS:
    found = [metric(maps[i], int(labels[i]), images[i], steps) for i in range(IMAGES)]
    for name in ("insertion", "deletion"):
        recorded[f"{name}_{steps}"] = np.array([scores[name] for scores in found], np.float64)

versions = (version("openvino-xai"), version("openvino"), np.__version__)
recorded["made_with"] = "openvino-xai {}, openvino {}, numpy {}".format(*versions)
np.savez_compressed(Path(__file__).with_name("openvino.npz"), **recorded)
