"""Whole audits by two processes: the same results as by one, and they are verified by two processes, too."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import auditkit
from auditkit.data.bundles import Bundle
from auditkit.engines.pool import Pool
from auditkit.engines.start import Workers
from auditkit.model.classifier import Opening
from auditkit.verdict.verify import Originals, verify
from tests.support import onnx_models

pytestmark = pytest.mark.workers
IMAGES, SIDE, CLASSES = 26, 8, 16
TILE = 2  # pixels of its side; each is a class
POLICY = """
schema_version = 1
name = "{name}"
description = "for tests"
hints = true
[evaluation]
labels = "top1"
steps = "4"
minimum_images = 20
{more}
[[check]]
id = "clear"
metric = "relevance_gain"
min = 0.3
severity = "high"
"""
Opened = tuple[auditkit.OnnxClassifier, auditkit.OnnxClassifier]


def _tiles() -> Any:
    """A model whose scores are the brightness of the tiles; with layers of random weights, it overflows."""
    nodes = [
        helper.make_node("AveragePool", ["image"], ["tiles"], kernel_shape=[TILE, TILE], strides=[TILE, TILE]),
        helper.make_node("Conv", ["tiles", "mean"], ["grey"]), helper.make_node("Flatten", ["grey"], ["flat"]),
        helper.make_node("Abs", ["flat"], ["brightness"]), helper.make_node("Gemm", ["brightness", "w"], ["hidden"]),
        helper.make_node("Exp", ["hidden"], ["vanishing"]), helper.make_node("Gemm", ["vanishing", "v"], ["nothing"]),
        helper.make_node("Gemm", ["flat", "scale"], ["scores"]),
        helper.make_node("Add", ["scores", "nothing"], ["logits"]),
    ]  # fmt: skip
    falling = np.zeros((CLASSES, 64), np.float32)
    falling[0] = -1e5
    weights = {
        "mean": np.full((1, 3, 1, 1), 1 / 3, np.float32),
        "w": falling,
        "v": np.full((64, CLASSES), 1e-3, np.float32),
        "scale": 40 * np.eye(CLASSES, dtype=np.float32),
    }
    image, logits = onnx_models.value("image", ["N", 3, SIDE, SIDE]), onnx_models.value("logits", ["N", CLASSES])
    return onnx_models.model(nodes, [image], [logits], weights)


def _near(label: int) -> np.ndarray:
    """How near each pixel is to the tile of a class."""
    centre = np.array(divmod(label, SIDE // TILE)) * TILE + (TILE - 1) / 2
    down, across = np.indices((SIDE, SIDE))
    return np.asarray(-np.hypot(down - centre[0], across - centre[1]), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, pictures with one bright tile each, and their maps turned inside out."""
    folder, rng = tmp_path_factory.mktemp("audits"), np.random.default_rng(0)
    onnx_models.save(_tiles(), folder)
    pictures = rng.integers(100, 140, (IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, IMAGES)
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        picture[_near(label) > -TILE / 2] = 200
    np.savez(folder / "images.npz", images=pictures)
    inverted = -np.stack([_near(label) for label in labels.tolist()])
    Bundle(folder / "inverted", method="the vendor's").add([str(n) for n in range(IMAGES)], labels.tolist(), inverted)
    return folder


@pytest.fixture
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """The model, with one process and with two."""
    monkeypatch.setattr("auditkit.model.runtime.IN_WORKER", False)
    settings = auditkit.Settings(device="cpu", threads=1)
    one, two = (auditkit.load(folder / "model.onnx", preset="unit", settings=settings) for _ in range(2))
    assert isinstance(one, auditkit.OnnxClassifier)
    assert isinstance(two, auditkit.OnnxClassifier)
    Workers("2").serve(two)
    yield one, two
    assert isinstance(two.settings.engine, Pool)
    two.settings.engine.close()


def _plain(run: Path) -> Any:
    plain = json.loads((run / "results.json").read_text())
    del plain["run"]["started"], plain["run"]["ended"]
    return plain


def _audits(folder: Path, opened: Opened, out: Path, more: str, **options: Any) -> Any:
    """The results that both give, verified by two processes."""
    policy = out / "policy.toml"
    policy.write_text(POLICY.format(name="small", more=more))
    for number, model in enumerate(opened, start=1):
        auditkit.audit(model, folder / "images.npz", out / str(number), policy=policy, **options)
    plain = _plain(out / "2")
    assert plain == _plain(out / "1")
    heatmaps = {} if "method" in options else {"inverted": folder / "inverted"}
    originals = Originals(folder / "model.onnx", folder / "images.npz", heatmaps, opening=Opening(preset="unit"),
                          workers=Workers("2"))  # fmt: skip
    verification = verify(out / "1", originals)
    assert (verification.answer, verification.problems, verification.unchecked) == ("holds", [], [])
    return plain


def test_supplied_maps_that_fail_get_the_same_hint_after_the_same_batches(
    folder: Path, opened: Opened, tmp_path: Path
) -> None:
    plain = _audits(folder, opened, tmp_path, "", heatmaps=folder / "inverted", until_decided=True)
    assert plain["verdict"] == "fail"
    assert [batch["images"] for batch in plain["run"]["taken"]["earlier"]] == [20]
    assert [hint["change"] for hint in plain["hints"]] == ["inverted"]


def test_a_stage_of_randomisation_without_maps_is_told_of(folder: Path, opened: Opened, tmp_path: Path) -> None:
    plain = _audits(folder, opened, tmp_path, "[randomisation]\nimages = 4\nstages = 2", method="gradient-input")
    assert [entry["stage"] for entry in plain["randomisation"]["series"]] == [1]
    (note,) = plain["randomisation"]["notes"]
    assert note.startswith("stage 2, 4 of 4 layers, has no figure: the gradient")
