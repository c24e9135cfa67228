"""Real models and photographs: every file opens, is as accurate as known, and predicts what the runtime predicts."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.model.classifier import Opening
from auditkit.model.session import Settings
from auditkit.runs.inspection import inspect
from tests.support import onnx_models
from tests.support.commands import auditkit as command

pytestmark = pytest.mark.assets

PHOTOGRAPHS, CIFAR = "images/nips17_150", "images/cifar10_test_1000.npz"
# file -> preset, images, correct answers (assets/INDEX.md), how far float16 and 8-bit ones may be from it
KNOWN = {
    "resnet50.onnx": ("caffe", PHOTOGRAPHS, 132, 0),
    "deit_tiny_patch16_224.onnx": ("imagenet", PHOTOGRAPHS, 131, 0),
    "mobilenet_v2_int8_qdq.onnx": ("imagenet", PHOTOGRAPHS, 124, 0),
    "cifar10_resnet20.onnx": ("imagenet", CIFAR, 914, 0),
    "cifar10_resnet56.onnx": ("imagenet", CIFAR, 926, 0),
    "variants/cifar10_resnet20_external_data.onnx": ("imagenet", CIFAR, 914, 0),
    "variants/cifar10_resnet20_fixedbatch1.onnx": ("imagenet", CIFAR, 914, 0),
    "variants/cifar10_resnet20_fp16.onnx": ("imagenet", CIFAR, 914, 3),
    "variants/cifar10_resnet20_int8_qdq.onnx": ("imagenet", CIFAR, 914, 3),
    "variants/cifar10_resnet20_softmax.onnx": ("imagenet", CIFAR, 914, 0),
    "variants/cifar10_resnet20_uint8_nhwc.onnx": ("none", CIFAR, 914, 0),
}
INEXACT = ("fp16", "int8")


def _file(assets: Path, name: str) -> Path:
    path = assets / "models" / name
    if not path.is_file():
        pytest.skip(f"{name} is not among the assets")
    return path


@pytest.mark.parametrize("name", KNOWN)
def test_accuracy_is_the_known_one_to_one_image(assets: Path, name: str, device: str) -> None:
    preset, images, correct, slack = KNOWN[name]
    if device == "cpu" and "int8" in name and onnx_models.int8_saturates():
        pytest.skip("sums of eight-bit products overflow in the runtime on this processor")
    path = _file(assets, name)
    found = inspect(path, Opening(preset=preset), Settings(device=device), assets / images)
    assert found.accuracy is not None
    # The GPU's TF32 may turn an image that stands on the edge.
    assert abs(found.accuracy.correct - correct) <= slack + (2 if device == "cuda" else 0)
    assert not any("wrong" in text for text in found.warnings)


@pytest.mark.parametrize("name", KNOWN)
def test_predictions_are_the_runtimes_bit_for_bit(assets: Path, name: str) -> None:
    preset, images, _, _ = KNOWN[name]
    path = _file(assets, name)
    model = auditkit.load(path, preset=preset, settings=Settings(device="cpu"))
    pictures = Dataset.open(assets / images, model.signature.classes)
    plain = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    shape = plain.get_inputs()[0].shape
    for count in (1, 7, 64):
        array = model.preprocess([pictures.images[index] for index in range(count)])
        step = count if isinstance(shape[0], str) else shape[0]
        parts = [plain.run(None, {model.signature.input: array[i : i + step]})[0] for i in range(0, count, step)]
        expected, found = np.concatenate(parts), model.predict(array)
        if any(word in name for word in INEXACT):
            np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())
        elif onnx_models.ARM and len(parts[0]) == 1:
            np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())
        else:
            assert np.array_equal(found, expected)


def test_the_wrong_preset_is_seen_from_the_accuracy(assets: Path, tmp_path: Path) -> None:
    path = _file(assets, "resnet50.onnx")
    head, *rows = (assets / PHOTOGRAPHS / "labels.csv").read_text().splitlines()[:31]
    few = tmp_path / "labels.csv"
    few.write_text("\n".join([head, *(f"{assets / PHOTOGRAPHS}/{row}" for row in rows)]))
    done = command("inspect", path, "--preset", "imagenet", "--images", few, "--json")
    found = json.loads(done.stdout)
    assert found["accuracy"]["top1"] < 0.05
    assert any("probably wrong" in text and "caffe" in text for text in found["warnings"])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["strict", "tf32", "float16"])
@pytest.mark.parametrize("name", KNOWN)
def test_cuda_agrees_with_the_cpu(assets: Path, name: str, precision: str) -> None:
    preset, images, _, _ = KNOWN[name]
    path = _file(assets, name)
    if precision == "float16" and "int8" in name:
        pytest.skip("quantised models are refused in float16")
    exact = auditkit.load(path, preset=preset, settings=Settings(device="cpu"))
    found = auditkit.load(path, preset=preset, settings=Settings(device="cuda", precision=precision))  # type: ignore[arg-type]
    pictures = Dataset.open(assets / images, exact.signature.classes)
    array = exact.preprocess([pictures.images[index] for index in range(32)])
    expected = exact.probabilities(array)
    # A half-precision or eight-bit graph rounds at every node, at other places on another device.
    exactly = 5e-3 if "fp16" in name else 1e-3
    allowed = 0.3 if "int8" in name else exactly if precision == "strict" else 2e-2
    difference = np.abs(found.probabilities(array) - expected)
    assert difference.max() < allowed
    assert difference.mean() < 2e-3
