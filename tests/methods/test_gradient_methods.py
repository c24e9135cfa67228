"""Maps from gradients, on models whose gradient is known: a linear one in two layouts and three kinds of scores."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import auditkit
from auditkit.errors import BadInput
from auditkit.methods import gradients
from auditkit.methods.registry import METHODS
from auditkit.methods.request import Pool, Request
from auditkit.model import preprocessing
from auditkit.model.preprocessing import flat_picture
from tests.support import onnx_models

Array = np.ndarray[Any, Any]
CPU = auditkit.Settings(device="cpu")
HEIGHT, WIDTH, CLASSES = 4, 6, 3
WEIGHTS = np.random.default_rng(0).standard_normal((CLASSES, 3, HEIGHT, WIDTH)).astype(np.float32)


def linear(layout: str = "NCHW", scores: str = "logits") -> onnx.ModelProto:
    """Each label's logit is a weighted sum of the pixels."""
    nhwc = layout == "NHWC"
    size: list[Any] = [HEIGHT, WIDTH, 3] if nhwc else [3, HEIGHT, WIDTH]
    weights = WEIGHTS.transpose(0, 2, 3, 1) if nhwc else WEIGHTS
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return onnx_models.model(
        nodes if scores == "probabilities" else nodes[:2], [onnx_models.value("image", ["N", *size])],
        [onnx_models.value(scores, ["N", CLASSES])], {"w": weights.reshape(CLASSES, -1).T.copy()},
    )  # fmt: skip


def asked(model: Any, count: int = 3, labels: tuple[int, ...] = (0, 2)) -> Request:
    """Some pictures of noise, all of which want the same labels."""
    drawn = np.random.default_rng(1).integers(0, 256, (count, HEIGHT, WIDTH, 3), dtype=np.uint8)
    shown = preprocessing.normalised(model.card, drawn, model.signature.layout, model.signature.dtype)
    ids = tuple(f"image-{index}" for index in range(count))
    gray = flat_picture(model.card, model.signature, model.card.gray)
    return Request(model, ids, drawn, shown, (labels,) * count, gray, Pool(ids, shown), seed=0)


def opened(folder: Path, proto: onnx.ModelProto) -> Any:
    return auditkit.load(onnx_models.save(proto, folder), preset="imagenet", settings=CPU)


@pytest.fixture(params=["NCHW", "NHWC"])
def request_(request: pytest.FixtureRequest, tmp_path: Path) -> Request:
    return asked(opened(tmp_path, linear(request.param)))


def channels_first(request: Request, picture: Array) -> Array:
    return picture if request.model.signature.layout == "NCHW" else np.moveaxis(picture, -1, 0)


def check(request: Request, found: Any, expected: Any) -> None:
    assert len(found.maps) == len(request.ids)
    for place, maps in enumerate(found.maps):
        assert tuple(maps) == request.labels[place]
        for label, values in maps.items():
            assert (values.shape, values.dtype) == ((HEIGHT, WIDTH), np.float32)
            shown = channels_first(request, request.inputs[place])
            np.testing.assert_allclose(values, expected(shown, label), atol=2e-5)


def test_gradient_is_the_strongest_weight(request_: Request) -> None:
    found = gradients.gradient(request_, gradients.Plain())
    check(request_, found, lambda _shown, label: np.abs(WEIGHTS[label]).max(axis=0))
    assert found.gradients == 6


def test_gradient_times_input(request_: Request) -> None:
    found = gradients.gradient_input(request_, gradients.Plain())
    check(request_, found, lambda shown, label: (WEIGHTS[label] * shown).sum(axis=0))


def test_noise_does_not_change_a_linear_model(request_: Request) -> None:
    found = gradients.smoothgrad(request_, gradients.Smooth(samples=5))
    check(request_, found, lambda _shown, label: np.abs(WEIGHTS[label]).max(axis=0))
    assert found.gradients == 6 * 5


def test_integrated_gradients_add_up(request_: Request) -> None:
    """Over all pixels they sum to how far the logit is from that of gray."""
    found = gradients.integrated_gradients(request_, gradients.Integrated(steps=4))
    gray = channels_first(request_, request_.gray[0])
    check(request_, found, lambda shown, label: (WEIGHTS[label] * (shown - gray)).sum(axis=0))


def test_behind_a_softmax_the_logarithm_is_followed(tmp_path: Path) -> None:
    request = asked(opened(tmp_path, linear(scores="probabilities")))
    prob = request.model.probabilities(request.inputs)
    found = gradients.gradient_input(request, gradients.Plain())
    for place, maps in enumerate(found.maps):
        mean = np.tensordot(prob[place], WEIGHTS, axes=1)
        for label, values in maps.items():
            np.testing.assert_allclose(
                values, ((WEIGHTS[label] - mean) * request.inputs[place]).sum(axis=0), rtol=1e-3, atol=1e-4
            )


def test_a_map_does_not_depend_on_its_company(request_: Request) -> None:
    together = gradients.smoothgrad(request_, gradients.Smooth(samples=7))
    alone = asked(request_.model, 1)
    found = gradients.smoothgrad(alone, gradients.Smooth(samples=7))
    np.testing.assert_allclose(found.maps[0][2], together.maps[0][2], atol=1e-6)


@pytest.mark.parametrize("batch", [None, 3])
def test_grad_cam_of_a_convolution(batch: int | None, tmp_path: Path) -> None:
    """Pooling gives every place of a channel the same gradient, the class weight over the number of places."""
    proto = onnx_models.convnet(batch or "N", size=8)
    if batch:  # that no edit can free
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((batch, 1, 1, 1), np.float32), "rows"))
        proto.graph.node.insert(0, onnx.helper.make_node("Add", ["image", "rows"], ["shown"]))
        proto.graph.node[1].input[0] = "shown"
    model = auditkit.load(onnx_models.save(proto, tmp_path), preset="unit", settings=CPU)
    assert model.signature.fixed_batch == batch
    drawn = np.random.default_rng(1).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    shown = preprocessing.normalised(model.card, drawn, "NCHW", "float32")
    request = Request(model, ("a", "b"), drawn, shown, ((1,), (4, 0)), shown[:1], Pool((), shown[:0]))
    found = gradients.grad_cam(request, gradients.Cam())
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    padded = np.pad(shown, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    layer = np.maximum(np.einsum("nchwij,kcij->nkhw", windows, weights["w"]), 0)
    for place, labels in enumerate(request.labels):
        for label in labels:
            expected = np.maximum(np.tensordot(weights["g"][:, label] / 64, layer[place], axes=1), 0)
            np.testing.assert_allclose(found.maps[place][label], expected, atol=1e-4)
    assert any("'r'" in str(note) for note in found.notes)
    named = gradients.grad_cam(request, gradients.Cam(layer="c"))
    assert any("'c'" in str(note) for note in named.notes)


def test_a_function_has_no_gradient(tmp_path: Path) -> None:
    model = auditkit.load(lambda rows: rows.mean(axis=(2, 3)), size=(HEIGHT, WIDTH), preset="unit")
    for name in ("gradient", "gradient-input", "smoothgrad", "integrated-gradients", "grad-cam"):
        method = METHODS[name]
        with pytest.raises(BadInput, match="function"):
            method.run(asked(model), method.options())


@pytest.mark.parametrize(("options", "wrong"), [
    (gradients.Smooth, {"samples": 0}), (gradients.Smooth, {"noise": -1.0}), (gradients.Integrated, {"steps": 0}),
])  # fmt: skip
def test_impossible_options_are_refused(options: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        options(**wrong)


@pytest.mark.parametrize("name", ["random", "centred-gaussian", "constant", "edges", "blurred-edges", "noisy-edges"])
def test_controls_are_methods_too(tmp_path: Path, name: str) -> None:
    request = asked(opened(tmp_path, linear()))
    found = METHODS[name].run(request, METHODS[name].options())
    assert [tuple(maps) for maps in found.maps] == [(0, 2)] * 3
    assert (found.passes, found.gradients) == (0, 0)
    assert np.array_equal(found.maps[0][0], found.maps[0][2]) == (name != "random")


@pytest.mark.parametrize(("shape", "size", "grid"), [
    ((64, 7, 7), (224, 224), (7, 7)), ((7, 7, 64), (224, 224), (7, 7)), ((197, 192), (224, 224), (14, 14)),
    ((198, 192), (224, 224), (14, 14)), ((49, 768), (224, 224), (7, 7)), ((32, 6, 8), (240, 320), (6, 8)),
])  # fmt: skip
def test_layers_with_a_grid(shape: tuple[int, ...], size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert gradients.as_grid(np.zeros(shape), size, "layer").shape[1:] == grid


@pytest.mark.parametrize("shape", [(1000,), (64, 1, 1), (30, 8), (64, 7, 9)])
def test_layers_without_a_grid(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="layer"):
        gradients.as_grid(np.zeros(shape), (224, 224), "layer")
