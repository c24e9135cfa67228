from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

import auditkit
from auditkit.errors import BadInput, OutOfMemory, RuntimeFailure
from tests.support import onnx_models

CPU = auditkit.Settings(device="cpu")


def _images(count: int, size: int = 8) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def test_predict_equals_the_runtime_bit_for_bit(tmp_path: Path) -> None:
    path = onnx_models.save(onnx_models.convnet(), tmp_path)
    model = auditkit.load(path, preset="imagenet", settings=CPU)
    plain = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for count in (1, 7, 64, 200):
        expected = plain.run(None, {"image": model.preprocess(_images(count))})[0]
        assert np.array_equal(model.predict(_images(count)), expected)
        assert np.array_equal(model.predict(model.preprocess(_images(count))), expected)


def test_pictures_come_as_files_arrays_or_pillow_images(tmp_path: Path) -> None:
    path = onnx_models.save(onnx_models.convnet(), tmp_path)
    model = auditkit.load(path, preset="imagenet", settings=CPU)
    (image,) = _images(1)
    Image.fromarray(image).save(tmp_path / "a.png")
    expected = model.predict(image[None])
    for form in ([tmp_path / "a.png"], [str(tmp_path / "a.png")], [Image.fromarray(image)], [image]):
        assert np.array_equal(model.predict(form), expected)
    assert model.predict([]).shape == (0, 5)


def test_wrong_arrays_are_one_sentence(tmp_path: Path) -> None:
    model = auditkit.load(onnx_models.save(onnx_models.convnet(), tmp_path), preset="imagenet", settings=CPU)
    with pytest.raises(BadInput, match="must have shape"):
        model.predict(np.zeros((2, 3, 9, 9), np.float32))
    with pytest.raises(BadInput, match="expected uint8"):
        model.predict(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(BadInput, match="expected uint8"):
        model.predict(np.zeros((2, 8, 8, 3), np.int64))


def test_probabilities_sum_to_one(tmp_path: Path) -> None:
    model = auditkit.load(onnx_models.save(onnx_models.convnet(), tmp_path), preset="imagenet", settings=CPU)
    probabilities = model.probabilities(_images(4))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert np.array_equal(probabilities.argmax(axis=1), model.predict(_images(4)).argmax(axis=1))


def test_a_planted_wrong_card_is_caught(tmp_path: Path) -> None:
    path = onnx_models.save(onnx_models.convnet(), tmp_path)
    path.with_suffix(".toml").write_text("schema_version = 1\n[preprocessing]\npreset = 'imagenet'\nsize = [16, 16]\n")
    with pytest.raises(BadInput, match=r"16.*8"):
        auditkit.load(path)


def test_the_card_beside_the_model_is_used(tmp_path: Path) -> None:
    path = onnx_models.save(onnx_models.convnet(), tmp_path)
    path.with_suffix(".toml").write_text("schema_version = 1\n[preprocessing]\npreset = 'caffe'\ninterpolation='box'\n")
    assert auditkit.load(path).card.interpolation == "box"
    assert auditkit.load(path, preset="tf").card.origin.preset == "tf"


def test_memory_running_out_halves_the_batch_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = auditkit.load(onnx_models.save(onnx_models.convnet(), tmp_path), preset="imagenet", settings=CPU)
    assert isinstance(model, auditkit.OnnxClassifier)
    expected = model.predict(_images(40))
    run = model.session.run

    def cramped(
        feeds: dict[str, np.ndarray], wanted: list[str] | None = None, at_once: int | None = None, **limits: int
    ) -> list[np.ndarray]:  # fmt: skip
        if len(feeds["image"]) > 5:
            raise OutOfMemory("full")
        return run(feeds, wanted, at_once, **limits)

    monkeypatch.setattr(model.session, "run", cramped)
    assert np.array_equal(model.predict(_images(40)), expected)
    assert model.batch == 5


def test_the_measured_batch_changes_no_number(tmp_path: Path, device: str) -> None:
    path = onnx_models.save(onnx_models.convnet(), tmp_path)
    model = auditkit.load(path, preset="imagenet", settings=auditkit.Settings(device=device, precision="strict"))
    images = _images(150)
    one, seventeen = model.predict(images, batch=1), model.predict(images, batch=17)
    np.testing.assert_allclose(one, seventeen, atol=1e-5)
    np.testing.assert_allclose(one, model.predict(images), atol=1e-5)


def test_a_callable_stands_in_for_a_file() -> None:
    weights = np.random.default_rng(0).standard_normal((3 * 8 * 8, 4))
    model = auditkit.load(lambda rows: rows.reshape(len(rows), -1) @ weights, size=(8, 8), preset="unit")
    scores = model.predict(_images(70))
    np.testing.assert_allclose(scores, model.preprocess(_images(70)).reshape(70, -1) @ weights)
    assert (model.signature.kind, model.signature.classes) == ("logits", 4)


def test_a_callable_that_returns_nonsense_is_told() -> None:
    with pytest.raises(RuntimeFailure, match="expected"):
        auditkit.load(lambda rows: np.zeros(3), size=(8, 8), preset="unit")
    with pytest.raises(BadInput, match="size"):
        auditkit.load(lambda rows: rows)


def test_detached_weights_change_nothing(tmp_path: Path) -> None:
    """Weights above the limit are handed to the runtime beside the graph; the limit is lowered to reach that path."""
    import onnx

    proto = onnx_models.convnet(size=32, classes=2000)
    path = tmp_path / "big.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="big.bin", size_threshold=0)
    expected = auditkit.load(path, preset="imagenet", settings=CPU).predict(_images(3, 32))
    model = auditkit.load(path, preset="imagenet", limits=auditkit.Limits(inline_bytes=1), settings=CPU)
    assert isinstance(model, auditkit.OnnxClassifier)
    assert set(model.file.weights) == {"g", "b"}
    assert np.array_equal(model.predict(_images(3, 32)), expected)
    half = auditkit.load(path, preset="imagenet", limits=auditkit.Limits(inline_bytes=1),
                         settings=auditkit.Settings(device="cpu", precision="float16"))  # fmt: skip
    np.testing.assert_allclose(half.predict(_images(3, 32)), expected, atol=1.5e-1 if onnx_models.ARM else 2e-2)


def test_the_cards_class_names_choose_between_two_heads(tmp_path: Path) -> None:
    from onnx import helper, numpy_helper

    proto = onnx_models.convnet(classes=5)
    proto.graph.node.append(helper.make_node("Gemm", ["f", "g2"], ["age"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((6, 3), np.float32), "g2"))
    proto.graph.output.append(onnx_models.value("age", ["N", 3]))
    path = onnx_models.save(proto, tmp_path)
    with pytest.raises(BadInput, match="several outputs"):
        auditkit.load(path, preset="unit")
    card = "schema_version = 1\n[preprocessing]\npreset = 'unit'\n[classes]\nnames = ['a', 'b', 'c', 'd', 'e']\n"
    path.with_suffix(".toml").write_text(card)
    assert auditkit.load(path, settings=CPU).signature.output == "logits"
