"""Classifiers that behave on noise and misbehave on pictures, which no trial on noise can find out.

Pictures prepared with the preset `unit` lie within 0 and 1; noise does not. The graph looks at its input.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from auditkit.arrays import Array
from tests.support import onnx_models

SIZE, CLASSES = 8, 4


def _gated(nodes: list[onnx.NodeProto], weights: Mapping[str, Array]) -> onnx.ModelProto:
    """A linear classifier whose scores `plain` the nodes turn into `logits`; `is_picture` says what it looks at."""
    gate = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weight"], ["plain"], transB=1),
        helper.make_node("ReduceMax", ["image"], ["largest"], keepdims=0),
        helper.make_node("Less", ["largest", "limit"], ["is_picture"]),
        helper.make_node("Where", ["is_picture", "on_pictures", "on_noise"], ["chosen"]),
    ]
    weight = np.random.default_rng(0).standard_normal((CLASSES, 3 * SIZE * SIZE)).astype(np.float32)
    return onnx_models.model(
        [*gate, *nodes], [onnx_models.value("image", ["N", 3, SIZE, SIZE])],
        [onnx_models.value("logits", ["N", CLASSES])],
        {"weight": weight * np.float32(0.05), "limit": np.array(1.01, np.float32), **weights},
    )  # fmt: skip


def _choice(on_pictures: object, on_noise: object, dtype: type = np.int64) -> dict[str, Array]:
    return {"on_pictures": np.array(on_pictures, dtype), "on_noise": np.array(on_noise, dtype)}


def slow() -> onnx.ModelProto:
    """It does not end on pictures."""
    values = [("turn", [], TensorProto.INT64), ("go", [], TensorProto.BOOL), ("state", None, TensorProto.FLOAT)]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Sin", ["state"], ["next"])], "body",
        [onnx_models.value(name, shape, kind) for name, shape, kind in values],
        [onnx_models.value("go_on", [], TensorProto.BOOL), onnx_models.value("next", None)],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["chosen", "yes", "plain"], ["logits"], body=body)
    return _gated([loop], {**_choice(10**12, 1), "yes": np.array(True)})


def hungry(numbers: int) -> onnx.ModelProto:
    """It takes so many float32 numbers of memory on pictures."""
    return _gated([
        helper.make_node("ConstantOfShape", ["chosen"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
        helper.make_node("Add", ["plain", "sum"], ["logits"]),
    ], _choice([numbers], [1]))  # fmt: skip


def shifted(by: float) -> onnx.ModelProto:
    """Its scores are NaN or infinite on pictures."""
    return _gated([helper.make_node("Add", ["plain", "chosen"], ["logits"])], _choice(by, 0.0, np.float32))


def tiled(rows: int, columns: int) -> onnx.ModelProto:
    """It gives several times the rows or the columns on pictures."""
    return _gated([helper.make_node("Tile", ["plain", "chosen"], ["logits"])], _choice([rows, columns], [1, 1]))


def cut() -> onnx.ModelProto:
    """It gives no scores on pictures."""
    node = helper.make_node("Slice", ["plain", "start", "chosen", "axis"], ["logits"])
    return _gated([node], {**_choice([0], [CLASSES]), "start": np.array([0]), "axis": np.array([1])})


REFUSED = {  # models whose first answer to a picture is refused
    "nan": shifted(np.nan), "infinite": shifted(np.inf), "rows": tiled(2, 1), "columns": tiled(1, 2), "cut": cut(),
    "hungry": hungry(1_500_000_000), "very-hungry": hungry(10**10),
}  # fmt: skip


def white(by: float) -> onnx.ModelProto:
    """It adds `by` to the scores of white pictures."""
    nodes = [
        helper.make_node("ReduceMean", ["flat"], ["brightness"], axes=[1], keepdims=1),
        helper.make_node("Greater", ["brightness", "almost_white"], ["is_white"]),
        helper.make_node("Where", ["is_white", "on_white", "chosen"], ["added"]),
        helper.make_node("Add", ["plain", "added"], ["logits"]),
    ]
    weights = {"almost_white": np.array(0.99, np.float32), "on_white": np.array(by, np.float32)}
    return _gated(nodes, {**_choice(0.0, 0.0, np.float32), **weights})


def first_row() -> onnx.ModelProto:
    """Every picture of a batch gets the scores of the first one."""
    return _gated([
        helper.make_node("Slice", ["plain", "start", "end", "start"], ["first"]),
        helper.make_node("Sub", ["first", "plain"], ["difference"]),
        helper.make_node("Mul", ["difference", "chosen"], ["added"]),
        helper.make_node("Add", ["plain", "added"], ["logits"]),
    ], {**_choice(1.0, 0.0, np.float32), "start": np.array([0]), "end": np.array([1])})  # fmt: skip


def scaled_probabilities(by: float) -> onnx.ModelProto:
    """Its scores are probabilities of noise, and others of pictures."""
    nodes = [
        helper.make_node("Softmax", ["plain"], ["p"], axis=1),
        helper.make_node("Mul", ["p", "chosen"], ["logits"]),
    ]
    return _gated(nodes, _choice(by, 1.0, np.float32))
