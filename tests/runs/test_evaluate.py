"""The evaluation as users run it: from the command and from Python, whole, cut short and gone on with."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.metrics.curves import parse_steps
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.settings import Evaluation
from tests.support import onnx_models
from tests.support.commands import auditkit as command
from tests.support.commands import refused

CPU = auditkit.Settings(device="cpu")
METRICS = ("insertion", "deletion", "relevance_gain", "completeness", "soundness", "worst_completeness",
           "worst_soundness", "best_effort", "label_specificity", "other_label_evidence")  # fmt: skip
SALIENCY = ("saliency_metric", "degenerate_boxes")
IMAGES = 12
Inputs = tuple[Path, Path, Path]


def _inputs(folder: Path, count: int) -> Inputs:
    """A model, images, and a bundle with a map for every label."""
    rng = np.random.default_rng(0)
    model = onnx_models.save(onnx_models.convnet(size=8, classes=4), folder)
    np.savez(folder / "images.npz", images=rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8))
    bundle = auditkit.Bundle(folder / "maps", model=str(model), method="noise")
    for image in range(count):
        bundle.add([str(image)] * 4, [0, 1, 2, 3], rng.standard_normal((4, 8, 8)).astype(np.float32))
    return model, folder / "images.npz", folder / "maps"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return _inputs(tmp_path_factory.mktemp("given"), IMAGES)


@pytest.fixture(scope="module")
def finished(given: Inputs) -> "subprocess.CompletedProcess[str]":
    """A run over them that nobody disturbed, in the folder `run` beside them: copy it to change it."""
    return _evaluate(given, given[0].parent / "run")


@pytest.fixture
def run(given: Inputs, finished: object, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(given[0].parent / "run", tmp_path / "run"))


def _evaluate(given: Inputs, out: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    model, images, maps = given
    return command("evaluate", model, images, "--heatmaps", maps, "-o", out, "--preset", "unit", "--device", "cpu",
                   "--steps", "10", *more)  # fmt: skip


def test_a_run_holds_results_and_a_row_for_each_pair(finished: "subprocess.CompletedProcess[str]", run: Path) -> None:
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "random map" in finished.stdout
    assert "control:" not in finished.stdout
    results = json.loads((run / "results.json").read_text())
    assert {m["name"] for m in results["metrics"]} == {*METRICS, *SALIENCY}
    assert {m["bundle"] for m in results["metrics"]} == {"maps"}
    assert {m["bundle"] for m in results["controls"]} == {
        "control:random", "control:centred-gaussian", "control:constant", "control:edges", "control:blurred-edges",
        "control:noisy-gaussian", "control:noisy-edges", "control:one-map:maps",
    }  # fmt: skip
    for metric in results["metrics"]:
        assert metric["labels"] == "all"
        assert metric["low"] <= metric["value"] <= metric["high"]
    rows = pq.read_table(run / "items").to_pylist()
    assert len(rows) == IMAGES * 4 * 9
    assert all(len(row["curve"]) == len(row["keep_counts"]) == 11 for row in rows)


def test_the_command_and_python_agree(given: Inputs, run: Path) -> None:
    model, images, maps = given
    results = json.loads((run / "results.json").read_text())
    opened = auditkit.load(model, preset="unit", settings=CPU)
    summary = auditkit.evaluate(opened, images, maps, steps="10")
    for metric in results["metrics"]:
        assert summary.value(metric["name"], "maps") == pytest.approx(metric["value"], abs=1e-9)
    assert "maps" in str(summary)
    assert summary._repr_html_().startswith("<table>")


def test_copies_elsewhere_go_on_with_a_run_and_other_files_do_not(given: Inputs, run: Path, tmp_path: Path) -> None:
    parts = {path: path.stat().st_mtime_ns for path in (run / "items").iterdir()}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    model, images, maps = given
    copies = Path(shutil.copy(model, elsewhere)), Path(shutil.copy(images, elsewhere)), maps
    assert _evaluate(copies, run).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in parts} == parts
    told = json.loads((run / "results.json").read_text())["subject"]
    assert (told["model"]["path"], told["images"]["source"]) == (copies[0].name, copies[1].name)
    onnx_models.save(onnx_models.convnet(size=8, classes=4, seed=1), elsewhere)
    refused(_evaluate(copies, run), "another model")
    assert command("verify", run, "--model", model, "--images", images, "--heatmaps", f"maps={maps}").returncode == 0


def test_other_settings_do_not_mix_into_a_run(given: Inputs, run: Path) -> None:
    refused(_evaluate(given, run, "--eps1", "0.2"), "eps1", "0.01", "0.2")


def test_maps_for_the_predicted_label_alone_say_nothing_of_soundness(given: Inputs, tmp_path: Path) -> None:
    model, images, _ = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    with np.load(images) as arrays:
        predicted = opened.predict(arrays["images"]).argmax(axis=1)
    bundle = auditkit.Bundle(tmp_path / "few", method="noise")
    maps = np.random.default_rng(1).standard_normal((IMAGES, 8, 8)).astype(np.float32)
    bundle.add([str(i) for i in range(IMAGES)], predicted.tolist(), maps)
    summary = auditkit.evaluate(opened, images, bundle, steps="10", controls=False)
    assert summary.value("insertion", "few") is not None
    assert summary.value("soundness", "few") is None
    assert "not assessed" in str(summary)


def test_progress_moves_within_a_unit(given: Inputs) -> None:
    model, images, maps = given
    done, opened = [0.0], auditkit.load(model, preset="unit", settings=replace(CPU, batch=32))
    settings = Evaluation(steps=parse_steps("10"), controls=False, saliency="none")
    evaluate(opened, Dataset.open(images, 4), {"maps": auditkit.open_bundle(maps)}, settings,
             progress=lambda _total: lambda images, _rows=0: done.append(done[-1] + images))  # fmt: skip
    assert len({round(images, 6) for images in done if 0 < images < IMAGES}) >= 5  # of the only unit
    assert done[-1] == pytest.approx(IMAGES)


def test_batch_sizes_change_no_number(given: Inputs, device: str) -> None:
    model, images, maps = given
    values = []
    for batch in (1, 17, None):
        settings = auditkit.Settings(device=device, precision="strict", batch=batch)
        summary = auditkit.evaluate(auditkit.load(model, preset="unit", settings=settings), images, maps, steps="10")
        values.append([summary.value(name, "maps") for name in METRICS])
    np.testing.assert_allclose(values[0], values[1], atol=1e-5)
    np.testing.assert_allclose(values[0], values[2], atol=1e-5)


def test_a_callable_gives_the_same_figures(given: Inputs) -> None:
    model, images, maps = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    remote = auditkit.load(opened.predict, size=(8, 8), preset="unit")
    for infill in ("gray", "blur", "random"):
        ours = auditkit.evaluate(opened, images, maps, steps="10", infill=infill)
        theirs = auditkit.evaluate(remote, images, maps, steps="10", infill=infill)
        for name in METRICS:
            assert theirs.value(name, "maps") == pytest.approx(ours.value(name, "maps"), abs=1e-5)


def test_a_blur_may_have_any_width(given: Inputs) -> None:
    """The usual one is 5 pixels at 224, in proportion; a wide one is no picture of the image any more."""
    model, images, maps = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    names = ("blur", f"blur:{5 * 8 / 224}", "blur:100", "blur:200")
    found = auditkit.evaluate(opened, images, maps, steps="10", infill=names)
    usual, same, wide, wider = (found.value("insertion", "maps", name) for name in names)
    assert usual == same
    assert abs(usual - wide) > 10 * abs(wide - wider)


def test_maps_of_another_model_or_of_other_images_are_refused(given: Inputs, tmp_path: Path) -> None:
    _, images, maps = given
    other = auditkit.load(
        onnx_models.save(onnx_models.convnet(size=8, classes=4, seed=9), tmp_path, "other.onnx"), preset="unit"
    )
    with pytest.raises(BadInput, match="another model"):
        auditkit.evaluate(other, images, maps)
    bundle = auditkit.Bundle(tmp_path / "strange")
    bundle.add(["cat.jpg"], [0], np.random.default_rng(0).random((1, 8, 8), dtype=np.float32))
    with pytest.raises(BadInput, match="no map for any of the images"):
        auditkit.evaluate(other, images, bundle)
    empty = auditkit.Bundle(tmp_path / "empty")
    empty.create()
    with pytest.raises(BadInput, match="has no maps yet; run the command that makes them to its end"):
        auditkit.evaluate(other, images, empty)


def test_a_models_digest_may_be_written_in_capitals(given: Inputs, tmp_path: Path) -> None:
    model, images, maps = given
    shutil.copytree(maps, tmp_path / "capitals")
    header = json.loads((tmp_path / "capitals" / "bundle.json").read_text())
    (tmp_path / "capitals" / "bundle.json").write_text(json.dumps(header | {"model": header["model"].upper()}))
    opened = auditkit.load(model, preset="unit", settings=CPU)
    found = auditkit.evaluate(opened, images, tmp_path / "capitals", steps="4", controls=False)
    assert found.value("insertion", "capitals") is not None


def test_images_without_a_label_in_the_set_are_counted_not_lost(given: Inputs) -> None:
    model, images, maps = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    with np.load(images) as arrays:
        top = opened.probabilities(arrays["images"]).max(axis=1)
    floor = f"f>={np.sort(top)[8]:.6f}"
    summary = auditkit.evaluate(opened, images, maps, steps="10", labels=floor)
    (flag,) = [text for text in summary.flag_texts() if "left out" in text]
    assert flag.startswith((f"8 of {IMAGES}", f"9 of {IMAGES}"))
    nothing = auditkit.evaluate(opened, images, maps, steps="10", labels="f>=1")
    assert nothing.value("insertion", "maps") is None
    assert any(text.startswith(f"{IMAGES} of {IMAGES}") for text in nothing.flag_texts())


def test_byte_pictures_are_cropped_once(tmp_path: Path) -> None:
    """A network that takes raw pixels: what evaluate calls the whole image is what predict sees of the photograph."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["x"], ["means"], axes=[1, 2], keepdims=0),
        helper.make_node("Softmax", ["means"], ["p"], axis=1),
    ]
    inputs = [onnx_models.value("image", ["N", 112, 112, 3], TensorProto.UINT8)]
    path = onnx_models.save(onnx_models.model(nodes, inputs, [onnx_models.value("p", ["N", 3])]), tmp_path)
    model = auditkit.load(path, preset="none", settings=CPU)
    assert model.card.resize == 128
    photographs = np.random.default_rng(0).integers(0, 256, (3, 150, 200, 3), dtype=np.uint8)
    photographs[:, :30, :, 0] = 255  # the crop sees little of this
    summary = auditkit.evaluate(model, photographs, steps="3")
    expected = model.probabilities(photographs)
    for row in summary.rows:
        assert row["prob"] == pytest.approx(expected[int(row["image"]), row["label"]], abs=1e-6)
