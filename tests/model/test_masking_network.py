"""Masking networks: every form in which they are exported, and what does not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import auditkit
from auditkit.errors import BadInput
from auditkit.methods.masking_network import MaskingNetwork, masker
from auditkit.methods.request import Request
from auditkit.model import sandbox
from tests.support import method_requests, onnx_models

SIZE = (8, 12)
CLASSES = 3
LABELS = (2, 0)


def _request(ids: tuple[str, ...] = ("a", "b"), **more: Any) -> Request:
    base = method_requests.request(
        method_requests.linear(np.ones((CLASSES, *SIZE), np.float32)), SIZE, ids, LABELS, **more
    )
    pixels = np.random.default_rng(0).integers(0, 256, base.pixels.shape, dtype=np.uint8)
    shown = base.model.preprocess(pixels)
    return Request(base.model, ids, pixels, shown, base.labels, base.gray, base.pool, 0, base.tick)


def _image(batch: int | str = "N", layout: str = "NCHW", size: tuple[int, int] = SIZE, channels: int = 3) -> Any:
    dims = [batch, channels, *size] if layout == "NCHW" else [batch, *size, channels]
    return onnx_models.value("image", dims)


def _network(form: str = "one", batch: int | str = "N", layout: str = "NCHW", **image: Any) -> onnx.ModelProto:
    """The mean over channels as the mask (`one`, `flat`, `half` its size), or that times 1, 2, 3 (`classes`)."""
    axis = 1 if layout == "NCHW" else 3
    nodes = [helper.make_node("ReduceMean", ["image"], ["mean"], axes=[axis], keepdims=0 if form == "flat" else 1)]
    out: list[int | str | None] = [batch, 1, *SIZE]
    weights = {}
    if form == "classes":
        shape = (1, CLASSES, 1, 1) if layout == "NCHW" else (1, 1, 1, CLASSES)
        weights["times"] = np.arange(1, CLASSES + 1, dtype=np.float32).reshape(shape)
        nodes.append(helper.make_node("Mul", ["mean", "times"], ["mask"]))
        out[1] = CLASSES
    elif form == "half":
        nodes.append(helper.make_node("AveragePool", ["mean"], ["mask"], kernel_shape=[2, 2], strides=[2, 2]))
        out = [batch, 1, SIZE[0] // 2, SIZE[1] // 2]
    else:
        nodes.append(helper.make_node("Identity", ["mean"], ["mask"]))
        out = [batch, *SIZE] if form == "flat" else out
    if layout == "NHWC":
        out = [batch, *SIZE, out[1]]
    return onnx_models.model(nodes, [_image(batch, layout, **image)], [onnx_models.value("mask", out)], weights)


def _labelled(form: str) -> onnx.ModelProto:
    """The mean over channels times one more than the label."""
    nodes = [helper.make_node("ReduceMean", ["image"], ["mean"], axes=[1], keepdims=1)]
    weights: dict[str, Any] = {"shape": np.array([-1, 1, 1, 1]), "one": np.float32(1).reshape(1)}
    if form == "one-hot":
        weights["numbers"] = np.arange(CLASSES, dtype=np.float32)[:, None]
        nodes.append(helper.make_node("MatMul", ["label", "numbers"], ["number"]))
        value = onnx_models.value("label", ["N", CLASSES])
    else:
        nodes.append(helper.make_node("Cast", ["label"], ["number"], to=TensorProto.FLOAT))
        value = onnx_models.value("label", ["N"] if form == "flat" else ["N", 1], TensorProto.INT64)
    nodes += [
        helper.make_node("Reshape", ["number", "shape"], ["column"]),
        helper.make_node("Add", ["column", "one"], ["times"]),
        helper.make_node("Mul", ["mean", "times"], ["mask"]),
    ]
    return onnx_models.model(nodes, [_image(), value], [onnx_models.value("mask", ["N", 1, *SIZE])], weights)


def _found(proto: onnx.ModelProto, folder: Path, request: Request | None = None, **options: Any) -> Any:
    return masker(request or _request(), MaskingNetwork(onnx_models.save(proto, folder), **options))


def _means(request: Request) -> np.ndarray:
    return np.asarray(request.inputs.mean(axis=1))


@pytest.mark.parametrize("batch", ["N", 1, 3])
@pytest.mark.parametrize("form", ["one", "flat"])
def test_one_mask_is_the_map_of_every_label(tmp_path: Path, form: str, batch: int | str) -> None:
    ticked: list[int] = []
    request = _request(count=ticked.append)
    found = _found(_network(form, batch), tmp_path, request)
    for maps, mean in zip(found.maps, _means(request), strict=True):
        assert list(maps) == list(LABELS)
        for field in maps.values():
            assert field.dtype == np.float32
            np.testing.assert_allclose(field, mean, atol=1e-6)
    assert found.passes == sum(ticked) == 2
    assert "every label" in str(found.notes[0])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_map_for_each_class(tmp_path: Path, layout: str) -> None:
    request = _request()
    found = _found(_network("classes", layout=layout), tmp_path, request)
    for maps, mean in zip(found.maps, _means(request), strict=True):
        for label, field in maps.items():
            np.testing.assert_allclose(field, mean * (label + 1), atol=1e-5)
    assert not found.notes


@pytest.mark.parametrize("form", ["flat", "column", "one-hot"])
def test_a_label_beside_the_image(tmp_path: Path, form: str) -> None:
    request = _request(tuple("abcdefghijk"))
    found = _found(_labelled(form), tmp_path, request)
    for maps, mean in zip(found.maps, _means(request), strict=True):
        assert list(maps) == list(LABELS)
        for label, field in maps.items():
            np.testing.assert_allclose(field, mean * (label + 1), atol=1e-5)
    assert found.passes == 22


def test_a_small_mask_is_brought_to_the_picture(tmp_path: Path) -> None:
    request = _request()
    found = _found(_network("half"), tmp_path, request)
    for maps, mean in zip(found.maps, _means(request), strict=True):
        assert maps[0].shape == SIZE
        assert maps[0].mean() == pytest.approx(mean.mean(), abs=0.02)


def test_the_named_output_is_taken(tmp_path: Path) -> None:
    proto = _network()
    proto.graph.node.append(helper.make_node("Neg", ["mean"], ["other"]))
    proto.graph.output.append(onnx_models.value("other", ["N", 1, *SIZE]))
    request = _request()
    np.testing.assert_allclose(_found(proto, tmp_path, request).maps[0][0], _means(request)[0], atol=1e-6)
    found = _found(proto, tmp_path, request, output="other")
    np.testing.assert_allclose(found.maps[0][0], -_means(request)[0], atol=1e-6)
    with pytest.raises(BadInput, match="no output 'third'"):
        _found(proto, tmp_path, request, output="third")
    proto.graph.node[1].output[0] = proto.graph.output[0].name = "first"
    with pytest.raises(BadInput, match="2 outputs that could be masks"):
        _found(proto, tmp_path, request)


def test_a_network_that_looks_at_its_company_is_run_one_by_one(tmp_path: Path) -> None:
    proto = _network()
    proto.graph.node[1].CopyFrom(helper.make_node("Softmax", ["mean"], ["mask"], axis=0))
    for maps in _found(proto, tmp_path).maps:
        np.testing.assert_allclose(maps[0], 1.0)


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    for proto, said in (
        (_network(size=(8, 8)), "8x8 pixels, but the classifier's have 8x12"),
        (_network(channels=1), "1 channels, but the classifier's have 3"),
    ):
        with pytest.raises(BadInput, match=said):
            _found(proto, tmp_path)
    two = _network("classes")
    two.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((1, 2, 1, 1), np.float32), "times"))
    two.graph.output[0].CopyFrom(onnx_models.value("mask", ["N", 2, *SIZE]))
    with pytest.raises(BadInput, match="one map or 3 maps"):
        _found(two, tmp_path)
    with pytest.raises(BadInput, match=r"\[.*height, *width\]|could be masks"):
        _found(onnx_models.convnet(), tmp_path, _request_of_size(8))


def _request_of_size(side: int) -> Request:
    return method_requests.request(
        method_requests.linear(np.ones((CLASSES, side, side), np.float32)), (side, side), ("a",)
    )


def test_a_hostile_file_is_refused_as_a_model_is(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"PK\x03\x04 not a network")
    with pytest.raises(BadInput, match="not ONNX"):
        masker(_request(), MaskingNetwork(path))
    with pytest.raises(BadInput, match="cannot be opened"):
        masker(_request(), MaskingNetwork(tmp_path / "nothing.onnx"))
    foreign = _network()
    foreign.graph.node[1].domain = "vendor.secret"
    foreign.opset_import.append(helper.make_opsetid("vendor.secret", 1))
    with pytest.raises(BadInput, match=r"vendor\.secret"):
        _found(foreign, tmp_path)
    with pytest.raises(BadInput, match="path=FILE"):
        MaskingNetwork(Path())


def test_requests_share_an_opened_network_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    attempt = sandbox.guarded
    monkeypatch.setattr(sandbox, "guarded", lambda *given: opened.append(1) or attempt(*given))  # type: ignore[func-returns-value]
    first = _found(_network(), tmp_path).maps[0]
    again = masker(_request(), MaskingNetwork(tmp_path / "model.onnx")).maps[0]
    assert len(opened) == 1
    assert np.array_equal(first[0], again[0])
    changed = _found(_network("classes"), tmp_path).maps[0]
    assert len(opened) == 2
    np.testing.assert_allclose(changed[2], 3 * first[2], atol=1e-5)


def test_the_maps_can_be_evaluated(tmp_path: Path) -> None:
    request = _request()
    found = _found(_network(), tmp_path, request)
    bundle = auditkit.Bundle(tmp_path / "maps")
    for name, maps in zip(("0", "1"), found.maps, strict=True):
        for label, field in maps.items():
            bundle.add([name], [label], field[None])
    summary = auditkit.evaluate(request.model, request.pixels, bundle, labels=[0, 2], controls=False, steps=4)
    assert "maps" in str(summary)
