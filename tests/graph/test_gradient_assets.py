"""Real models: every file is differentiated, its scores stay, its gradient is what differences of them say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import auditkit
from auditkit.arrays import Array
from auditkit.cli.differentiate import write
from auditkit.graph.gradient import export, missing_rules
from auditkit.graph.gradient.export import GRADIENT, SEED
from auditkit.model import gradient
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.session import Session, Settings
from tests.test_acceptance import KNOWN, _file

pytestmark = pytest.mark.assets
STRICT = Settings(device="cpu", precision="strict")


def opened(assets: Path, name: str) -> OnnxClassifier:
    found = auditkit.load(_file(assets, name), preset=KNOWN[name][0], settings=STRICT)
    assert isinstance(found, OnnxClassifier)
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_gradient_is_what_differences_say(assets: Path, name: str, tmp_path: Path) -> None:
    classifier = opened(assets, name)
    signature = classifier.signature
    assert missing_rules(classifier.file.proto, signature.input, signature.output) == []
    found = gradient.differentiate(classifier)
    assert found.surrogate == ("_int8" in name)
    write(found, tmp_path / "out.onnx")
    with_gradient = onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])

    rng = np.random.default_rng(5)
    rows = 4
    x = gradient.noise(classifier, rows, seed=77)
    seed = rng.standard_normal((rows, signature.outputs)).astype(np.float32)
    feeds = {signature.input: x.astype(signature.dtype), SEED: seed}
    result, scores = with_gradient.run([GRADIENT, signature.output], feeds)
    assert result.shape == x.shape
    # Constants are folded in another order, and half precision is computed in single.
    expected = classifier.predict(feeds[signature.input])
    allowed = (5e-3 if "fp16" in name else 1e-5) * np.abs(expected).max()
    np.testing.assert_allclose(scores.reshape(rows, -1), expected, atol=allowed)

    result = result.astype(np.float64)
    plain = Session(gradient.ready(classifier).model, STRICT)
    lengths = np.linalg.norm(x.reshape(rows, -1), axis=1)
    direction = result / np.linalg.norm(result.reshape(rows, -1), axis=1).reshape(-1, 1, 1, 1)
    slopes = (result * direction).reshape(rows, -1).sum(axis=1)
    step = 3e-5 * lengths
    moved = [x + sign * step.reshape(-1, 1, 1, 1) * direction for sign in (1, -1)]
    ends = [plain.run({signature.input: at.astype(np.float32)})[0].reshape(rows, -1) for at in moved]
    differences = ((ends[0] - ends[1]).astype(np.float64) * seed).sum(axis=1) / (2 * step)
    assert np.median(np.abs(differences / slopes - 1)) < 1e-2


def test_a_large_model_is_written_once(assets: Path, tmp_path: Path) -> None:
    """The backward pass reads the same weights as the forward pass."""
    classifier = opened(assets, "deit_tiny_patch16_224.onnx")
    write(gradient.differentiate(classifier), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").stat().st_size < 1.1 * classifier.file.bytes
    onnx.checker.check_model(tmp_path / "out.onnx")


def placements(model: onnx.ModelProto, feeds: dict[str, Array], providers: list[str], folder: Path) -> list[Any]:
    """Operator, provider and results of every node that ran, as the runtime's own profile tells."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    session.run(None, feeds)
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["args"] for event in events if event.get("cat") == "Node" and "provider" in event.get("args", {})]
    return [(args["op_name"], args["provider"], args["output_type_shape"]) for args in ran]


def carries_images(results: list[dict[str, list[int]]], rows: int) -> bool:
    return any(shape[:1] == [rows] and len(shape) > 1 for result in results for shape in result.values())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["resnet50.onnx", "deit_tiny_patch16_224.onnx", "mobilenet_v2_int8_qdq.onnx"])
def test_all_that_carries_images_stays_on_the_device(assets: Path, name: str, device: str, tmp_path: Path) -> None:
    classifier = opened(assets, name)
    signature, base, rows = classifier.signature, gradient.ready(classifier), 5
    model = export.with_gradient(base.model, base.facts, signature.output, signature.input)
    seed = np.ones((rows, signature.outputs), np.float32)
    wanted = "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"
    feeds = {signature.input: gradient.noise(classifier, rows, seed=79), SEED: seed}
    ran = placements(model, feeds, [wanted, "CPUExecutionProvider"][: 2 if device == "cuda" else 1], tmp_path)
    assert any(carries_images(results, rows) for _, _, results in ran)
    assert {(op, place) for op, place, results in ran if carries_images(results, rows) and place != wanted} == set()
    assert not [op for op, _, _ in ran if op.startswith("Memcpy")]
