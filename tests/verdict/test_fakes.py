"""The policy `standard` passes honest maps, and each kind of fake fails by a check that names the trouble."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import auditkit
from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.records import to_object
from auditkit.runs.folder.results import Results
from auditkit.verdict.policy import shipped_text
from auditkit.verdict.verify import Originals, Sampling, verify
from benchmarks.calibration.fakes import BLIND, DAMAGES, FAKES, Case, Fake, damaged
from tests.support.forgeries import Forger

SIDE, CELL, COUNT = 32, 8, 40
TILES = SIDE // CELL  # in a row; each tile is a class
CLASSES = TILES**2
OTHERS, DIFFER, FLAG = "other-labels-above-controls", "labels-differ", "no-cheat-flag"
PREDICTION = "prediction-above-controls"


def _network() -> onnx.ModelProto:
    """Each class is the brightness of its tile, over that of all."""
    nodes = [
        helper.make_node("ReduceMean", ["image", "channels"], ["gray"], keepdims=1),
        helper.make_node("AveragePool", ["gray"], ["tiles"], kernel_shape=[CELL, CELL], strides=[CELL, CELL]),
        helper.make_node("Flatten", ["tiles"], ["flat"]),
        helper.make_node("Mul", ["flat", "scale"], ["logits"]),
    ]
    constants = [numpy_helper.from_array(np.array([1], np.int64), "channels"),
                 numpy_helper.from_array(np.array(16, np.float32), "scale")]  # fmt: skip
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, SIDE, SIDE])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])
    graph = helper.make_graph(nodes, "tiles", [image], [logits], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _tile(label: int) -> Array:
    """A map that is largest on the tile of a class and falls off around it."""
    grids = np.indices((SIDE, SIDE))
    down, across = (CELL * place + (CELL - 1) / 2 for place in divmod(label, TILES))
    return np.asarray(-np.hypot(grids[0] - down, grids[1] - across), np.float32)


@pytest.fixture(scope="module")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> tuple[auditkit.OnnxClassifier, Dataset, list[Case]]:
    """A model, images with three bright tiles each, and honest maps of these."""
    folder = tmp_path_factory.mktemp("vendor")
    onnx.save(_network(), str(folder / "tiles.onnx"))
    model = auditkit.load(folder / "tiles.onnx", preset="unit", settings=auditkit.Settings(device="cpu"))
    assert isinstance(model, auditkit.OnnxClassifier)
    rng = np.random.default_rng(0)
    pictures = rng.integers(110, 146, (COUNT, SIDE, SIDE, 3), dtype=np.uint8)
    labels = [rng.choice(CLASSES, 3, replace=False).tolist() for _ in range(COUNT)]
    for picture, bright in zip(pictures, labels, strict=True):
        for label, level in zip(bright, (225, 205, 195), strict=True):
            down, across = (CELL * place for place in divmod(label, TILES))
            picture[down : down + CELL, across : across + CELL] = level
    np.savez(folder / "tiles.npz", images=pictures)
    maps = [{label: _tile(label) + 3 * rng.standard_normal((SIDE, SIDE)) for label in bright} for bright in labels]
    cases = [Case(picture, own, maps[number - 1], np.random.default_rng(number))
             for number, (picture, own) in enumerate(zip(pictures, maps, strict=True))]  # fmt: skip
    return model, Dataset.open(folder / "tiles.npz", CLASSES), cases


def _audited(
    vendor: tuple[auditkit.OnnxClassifier, Dataset, list[Case]], fake: Fake, folder: Path, hints: str = "false"
) -> Results:
    """By `standard`, usually without its hints: they take as long as the rest."""
    model, images, cases = vendor
    bundle = auditkit.Bundle(folder / "maps", model=model)
    for image, case in zip(images.ids, cases, strict=True):
        made = fake(case)
        bundle.add([image] * len(made), list(made), np.stack(list(made.values())).astype(np.float32))
    text = shipped_text("standard").replace('name = "standard"', 'name = "quick"')
    (folder / "quick.toml").write_text(text.replace("hints = true", f"hints = {hints}"))
    return auditkit.audit(model, images, folder / "run", heatmaps=folder / "maps", policy=folder / "quick.toml")


def _failed(results: Results) -> set[str]:
    return {check.id for check in results.checks if check.status == "fail" and check.counts}


def test_honest_maps_pass(vendor: tuple[auditkit.OnnxClassifier, Dataset, list[Case]], tmp_path: Path) -> None:
    results = _audited(vendor, lambda case: case.maps, tmp_path)
    assert results.verdict == "pass", results.verdict_reason
    assert "A pass means that" in results.verdict_reason


NAMED: dict[str, set[str]] = {
    "one map": {FLAG}, "one map, scaled by label": {FLAG},
    "maps of other labels": {DIFFER, OTHERS, PREDICTION}, "inverted": {DIFFER, OTHERS, PREDICTION},
}  # fmt: skip


# On this model the noise is as good as the best control, no worse: these images do not tell on which side it lies.
AS_GOOD_AS_RANDOM = ("right for the prediction, noise else",)


@pytest.mark.parametrize("name", [*FAKES, *BLIND])
def test_no_fake_passes(name: str, vendor: tuple[auditkit.OnnxClassifier, Dataset, list[Case]], tmp_path: Path) -> None:
    results = _audited(vendor, (FAKES | BLIND)[name], tmp_path)
    if name in AS_GOOD_AS_RANDOM:
        assert results.verdict == "inconclusive"
        return
    assert results.verdict == "fail", results.verdict_reason
    assert _failed(results) >= NAMED.get(name, set()), results.verdict_reason
    assert _failed(results) & {OTHERS, DIFFER, FLAG, PREDICTION}


def test_a_forged_hint_is_found(vendor: tuple[auditkit.OnnxClassifier, Dataset, list[Case]], tmp_path: Path) -> None:
    model, images, _ = vendor
    results = _audited(vendor, lambda case: damaged(case, DAMAGES["flipped left to right"]), tmp_path, hints="true")
    assert [hint.change for hint in results.hints] == ["flipped left to right"]

    def answer(run: Path) -> str:
        originals = Originals(model.file.path, images.source, {"maps": tmp_path / "maps"}, device="cpu")
        return verify(run, originals, Sampling(share=0.1, seed=0)).answer

    assert answer(tmp_path / "run") == "holds"
    for number, forged in enumerate(([], [{**to_object(results.hints[0]), "change": "transposed"}])):
        run = Path(shutil.copytree(tmp_path / "run", tmp_path / f"forged{number}"))
        Forger(run).results(lambda plain, forged=forged: plain.update(hints=forged))
        assert answer(run) == "does not hold"
