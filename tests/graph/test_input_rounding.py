"""A graph that rounds its input first: pixels hidden behind that step give the very same numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import auditkit
from auditkit.graph import hard_masks
from auditkit.model.masks import OnnxMasked, OnnxMaskedOnHost, masked
from auditkit.model.session import Session, Settings
from tests.support import onnx_models

node = helper.make_node
BOTH = (hard_masks.TO_HALF, hard_masks.TO_INTEGERS)
SIDE = 8


def rounded(
    kind: type, *, also: bool = False, opset: int = 17, scale: Any = 0.02, zero: bool = True
) -> onnx.ModelProto:
    """Quantised at once, with a scale that only an Identity hands on, and back before the rest."""
    given = ["s", "zero"] if zero else ["s"]
    nodes = [
        node("Identity", ["scale"], ["s"]),
        node("QuantizeLinear", ["image", *given], ["q"]),
        node("DequantizeLinear", ["q", *given], ["d"]),
        node("Add", ["d", "image" if also else "d"], ["both"]),
        node("Flatten", ["both"], ["flat"]),
        node("MatMul", ["flat", "weight"], ["logits"]),
    ]
    rng = np.random.default_rng(0)
    steps = np.array(scale, np.float32)
    constants = {"scale": steps, "zero": np.full(steps.shape, 3, kind),
                 "weight": rng.standard_normal((3 * SIDE**2, 5)).astype(np.float32) / 10}  # fmt: skip
    image, logits = onnx_models.value("image", ["N", 3, SIDE, SIDE]), onnx_models.value("logits", ["N", 5])
    return onnx_models.model(nodes, [image], [logits],
                       constants, opset=opset)  # fmt: skip


def ends(element: int = TensorProto.FLOAT) -> hard_masks.Ends:
    return hard_masks.Ends("image", element, False, SIDE, SIDE, 3, "logits", 5, "logits")


@pytest.mark.parametrize(("kind", "form"), [
    (np.uint8, {}), (np.int8, {}), (np.uint8, {"zero": False}), (np.int8, {"scale": [0.01, 0.02, 0.5]}),
])  # fmt: skip
def test_the_two_parts_are_the_whole(kind: type, form: dict[str, Any]) -> None:
    proto = rounded(kind, **form)
    split = hard_masks.split_behind_rounding(proto, ends(), BOTH)
    assert split is not None
    step, rest, rest_ends = split
    onnx.checker.check_model(rest)
    assert rest_ends.element == helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    rows = np.random.default_rng(1).standard_normal((7, 3, SIDE, SIDE)).astype(np.float32) * 3
    cpu = Settings(device="cpu")
    (inside,) = Session(step, cpu).run({"image": rows})
    assert inside.dtype == kind
    (scores,) = Session(rest, cpu).run({rest_ends.input: inside})
    assert np.array_equal(scores, Session(proto, cpu).run({"image": rows})[0])


def test_a_step_that_is_not_all_there_is_or_not_asked_for_is_left_alone() -> None:
    assert hard_masks.split_behind_rounding(rounded(np.uint8, also=True), ends(), BOTH) is None
    assert hard_masks.split_behind_rounding(rounded(np.uint8), ends(), (hard_masks.TO_HALF,)) is None
    assert hard_masks.split_behind_rounding(rounded(np.int16, opset=21), ends(), BOTH) is None
    widened = onnx_models.model(
        [node("Cast", ["image"], ["wide"], to=TensorProto.DOUBLE), node("Flatten", ["wide"], ["logits"])],
        [onnx_models.value("image", ["N", 3, SIDE, SIDE])], [onnx_models.value("logits", None, TensorProto.DOUBLE)], {},
    )  # fmt: skip
    assert hard_masks.split_behind_rounding(widened, ends(), BOTH) is None


@pytest.mark.parametrize("dims", [["N", 3, SIDE, SIDE], [2, 3, SIDE, SIDE]])
def test_masks_behind_the_step_are_those_in_front_of_it(tmp_path: Path, dims: list[Any]) -> None:
    proto = rounded(np.uint8)
    del proto.graph.input[:], proto.graph.output[:]
    proto.graph.input.append(onnx_models.value("image", dims))
    proto.graph.output.append(onnx_models.value("logits", [dims[0], 5]))
    model = auditkit.load(onnx_models.save(proto, tmp_path), preset="imagenet", settings=Settings(device="cpu"))
    assert isinstance(model, auditkit.OnnxClassifier)
    rng = np.random.default_rng(2)
    pictures = rng.standard_normal((3, 3, SIDE, SIDE)).astype(np.float32) * 2
    ranks = np.stack([rng.permutation(SIDE**2).reshape(SIDE, SIDE) for _ in range(2)])
    rows = np.array([[0, 2, 0, 5], [1, 2, 1, 40], [2, 0, 1, 64], [0, 1, 0, 0], [0, 2, 0, 9]], np.int32)
    over = masked(model)
    assert isinstance(over, OnnxMaskedOnHost)
    banks = over.load(pictures, ranks)
    assert banks(rows).dtype == np.uint8
    inside = OnnxMasked(model)
    found, expected = (np.concatenate([own for _, own in one.run(rows, held)])
                       for one, held in ((over, banks), (inside, inside.load(pictures, ranks))))  # fmt: skip
    assert np.array_equal(found, expected)
