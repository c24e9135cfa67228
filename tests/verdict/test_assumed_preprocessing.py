"""Preprocessing that nobody stated: it is chosen by the labels, said in every form, and decides nothing."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.report.formats import FORMATS, render
from auditkit.report.load_run import Loaded, load
from auditkit.runs.evaluation.plan import bundle_digest
from auditkit.runs.folder.results import CardOrigin, Results
from auditkit.runs.folder.store import Store
from auditkit.runs.inspection import settle_preprocessing
from auditkit.verdict.verify import Originals, verify
from tests.support import onnx_models
from tests.support.commands import Completed
from tests.support.commands import auditkit as command

IMAGES = 24
QUICK = ("--device", "cpu", "--threads", "1")
BY_LABELS, USUAL = "preset caffe (assumed, by accuracy)", "preset imagenet (assumed)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a card, images with the labels that it predicts with the preset caffe, and without labels."""
    folder, rng = tmp_path_factory.mktemp("assumed"), np.random.default_rng(0)
    onnx_models.save(onnx_models.convnet(size=8, classes=4), folder)
    images = rng.integers(0, 256, (IMAGES, 8, 8, 3), dtype=np.uint8)
    labels = auditkit.load(folder / "model.onnx", preset="caffe").predict(images).argmax(axis=1)
    np.savez(folder / "labelled.npz", images=images, labels=labels)
    np.savez(folder / "images.npz", images=images)
    return folder


def _run(verb: str, folder: Path, images: str, out: Path, *more: object) -> Completed:
    words = {
        "explain": ("--method", "gradient-input", "--labels", "top1"),
        "evaluate": ("--steps", "4", "--limit", "4"),
        "audit": ("--method", "gradient-input", "--policy", "explore", "--steps", "4", "--limit", "4"),
        "examine": ("--method", "gradient-input"),
    }
    return command(verb, folder / "model.onnx", folder / images, "-o", out, *words[verb], *QUICK, *more)


@pytest.fixture(scope="module")
def audited(folder: Path) -> Path:
    """An audit of the labelled images by a policy without limits."""
    assert _run("audit", folder, "labelled.npz", folder / "audited").returncode == 0
    return folder / "audited"


def _origin(run: Path) -> CardOrigin:
    return Store(run).results().subject.card_origin


# What is chosen, and that it is said ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["explain", "evaluate", "audit", "examine"])
@pytest.mark.parametrize(("images", "preset"), [("labelled.npz", "caffe"), ("images.npz", "imagenet")])
def test_every_command_warns_once_and_takes_the_preset_that_labels_speak_for(
    folder: Path, tmp_path: Path, verb: str, images: str, preset: str
) -> None:
    done = _run(verb, folder, images, tmp_path / "out", "--quiet", "--dry-run")
    assert done.returncode == 0, done
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"warning: Nobody stated the preprocessing: preset {preset} is assumed")
    assert line.endswith(
        "State the preprocessing with --preset NAME or --card FILE, or write a card with auditkit inspect MODEL "
        "--write-card."
    )
    assert _run(verb, folder, images, tmp_path / "out", "--dry-run", "--preset", preset).stderr == ""


def test_the_run_records_what_was_assumed_and_why(audited: Path, folder: Path, tmp_path: Path) -> None:
    assert _origin(audited) == CardOrigin(BY_LABELS, None, "assumed, by accuracy")
    _run("evaluate", folder, "images.npz", tmp_path / "run")
    assert _origin(tmp_path / "run") == CardOrigin(USUAL, None, "assumed")


def test_python_takes_the_same_preset(folder: Path, tmp_path: Path) -> None:
    summary = auditkit.evaluate(folder / "model.onnx", folder / "labelled.npz", steps=4)
    assert summary.value("accuracy") == 1.0
    maps = auditkit.explain(folder / "model.onnx", folder / "labelled.npz", tmp_path / "maps", "gradient-input")
    expected = auditkit.explain(
        folder / "model.onnx", folder / "labelled.npz", tmp_path / "stated", "gradient-input", preset="caffe"
    )
    assert all(np.array_equal(maps.read(entry), expected.read(entry)) for entry in expected.entries)


def test_what_somebody_stated_stays(folder: Path) -> None:
    for preset in ("imagenet", "tf"):
        model = auditkit.load(folder / "model.onnx", preset=preset)
        settle_preprocessing(model, Dataset.open(folder / "labelled.npz", 4))
        assert (model.card.origin.preset, model.card.origin.assumed) == (preset, None)


def test_a_model_of_whole_pixels_needs_no_statement(tmp_path: Path) -> None:
    proto = onnx_models.convnet(size=8, classes=4)
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    proto.graph.node[0].input[0] = "cast"
    proto.graph.node.insert(0, helper.make_node("Cast", ["image"], ["cast"], to=TensorProto.FLOAT))
    model = auditkit.load(onnx_models.save(proto, tmp_path))
    assert (str(model.card.origin), model.card.origin.assumption) == ("preset none", None)


def test_a_model_that_fails_on_an_image_leaves_the_preset_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work itself says on which image."""

    def scores(*_: object) -> None:
        raise RuntimeFailure("the model crashed")

    model = auditkit.load(folder / "model.onnx")
    monkeypatch.setattr(model, "scores", scores)
    settle_preprocessing(model, Dataset.open(folder / "labelled.npz", 4))
    assert str(model.card.origin) == USUAL


@pytest.mark.parametrize("side", [8, 600])
def test_a_size_that_the_file_leaves_open_is_a_guess_until_somebody_states_it(tmp_path: Path, side: int) -> None:
    """Whether it is that of the images or, for large ones, a common one."""
    onnx_models.save(onnx_models.convnet(size="S"), tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (4, side, side, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    out, taken = tmp_path / "out", 8 if side == 8 else 224
    done = _run("evaluate", tmp_path, "images.npz", out, "--preset", "unit", "--dry-run")
    warning, note = done.stderr.splitlines()
    assert warning.startswith(f"warning: Nobody stated the input size: {taken}x{taken} is assumed, since the file")
    assert "--size HEIGHTxWIDTH" in warning
    assert note.startswith(f"note: guessed: input size {taken}x{taken}")
    stated = ("--preset", "unit", "--size", taken, "--dry-run")
    assert _run("evaluate", tmp_path, "images.npz", out, *stated).stderr == ""
    both = _run("evaluate", tmp_path, "images.npz", out, "--dry-run", "--quiet").stderr
    assert "Nobody stated the preprocessing and the input size: preset imagenet is assumed; " in both
    assert "--preset NAME --size HEIGHTxWIDTH" in both
    (tmp_path / "model.toml").write_text(f'schema_version = 1\n[preprocessing]\npreset = "unit"\nsize = {taken}\n')
    assert _run("evaluate", tmp_path, "images.npz", out, "--dry-run").stderr == ""
    (tmp_path / "model.toml").write_text('schema_version = 1\n[preprocessing]\npreset = "unit"\n')
    done = _run("evaluate", tmp_path, "images.npz", out, "--dry-run", "--quiet")
    assert done.stderr.startswith("warning: Nobody stated the input size")


def test_a_run_records_the_size_that_was_assumed(tmp_path: Path) -> None:
    onnx_models.save(onnx_models.convnet(size="S"), tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    assert _run("evaluate", tmp_path, "images.npz", tmp_path / "run", "--preset", "unit").returncode == 0
    assert _origin(tmp_path / "run") == CardOrigin("preset unit", None, None, (8, 8))
    again = _run("evaluate", tmp_path, "images.npz", tmp_path / "run", "--preset", "unit", "--size", 8)
    assert (again.returncode, again.stderr) == (0, "")
    assert _origin(tmp_path / "run") == CardOrigin("preset unit", None)


# The report -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "json"])
def test_every_form_says_so(audited: Path, form: str) -> None:
    loaded = load(audited)
    assert "preset caffe is assumed, with which the model predicts the given labels best" in render(loaded, form)
    origin = replace(loaded.results.subject.card_origin, source="preset caffe", assumed=None)
    stated = replace(loaded.results, subject=replace(loaded.results.subject, card_origin=origin), checks=())
    assert "is assumed" not in render(Loaded(audited, stated, loaded.gallery), form)


def test_it_is_on_the_first_screens(audited: Path, folder: Path, tmp_path: Path) -> None:
    page = (audited / "report.html").read_text()
    assert "Assumed preprocessing" in page[: page.index("Are the heatmaps faithful?")]
    assert "assumed preprocessing" in _run("audit", folder, "labelled.npz", audited).stdout
    _run("examine", folder, "labelled.npz", tmp_path / "examined")
    page = (tmp_path / "examined" / "report.html").read_text()
    assert page.count("preset caffe is assumed") == 1
    record = json.loads((tmp_path / "examined" / "examination.json").read_text())
    assert record["subject"]["card_origin"]["assumed"] == "assumed, by accuracy"


# The run --------------------------------------------------------------------------------------------------------------


def test_whoever_states_the_preset_resumes_the_run(folder: Path, audited: Path) -> None:
    parts = {path.name: path.stat().st_mtime_ns for path in (audited / "items").iterdir()}
    guessed = Store(audited).results()
    assert _run("audit", folder, "labelled.npz", audited, "--preset", "caffe").stderr == ""
    stated = Store(audited).results()
    assert stated.subject.card_origin == CardOrigin("preset caffe", None)
    assert stated.metrics == guessed.metrics
    assert {path.name: path.stat().st_mtime_ns for path in (audited / "items").iterdir()} == parts
    assert _run("audit", folder, "labelled.npz", audited).returncode == 0
    assert Store(audited).results().subject == guessed.subject


def test_whoever_writes_a_card_with_the_assumed_preset_resumes_the_run(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "model.onnx", tmp_path)
    shutil.copy(folder / "images.npz", tmp_path)
    run = tmp_path / "run"
    assert _run("audit", tmp_path, "images.npz", run).returncode == 0
    parts = {path.name: path.stat().st_mtime_ns for path in (run / "items").iterdir()}
    guessed = Store(run).results()
    assert command("inspect", tmp_path / "model.onnx", "--write-card", *QUICK).returncode == 0
    done = _run("audit", tmp_path, "images.npz", run)
    assert (done.returncode, done.stderr) == (0, "")
    stated = Store(run).results()
    assert (_origin(run).source, stated.subject.card_origin.assumed) == ("model.toml", None)
    assert (stated.subject.card, stated.metrics) == (guessed.subject.card, guessed.metrics)
    assert {path.name: path.stat().st_mtime_ns for path in (run / "items").iterdir()} == parts


def test_shards_take_the_same_preset(folder: Path, tmp_path: Path) -> None:
    shards = [tmp_path / "one", tmp_path / "two"]
    for number, shard in enumerate(shards, start=1):
        assert _run("explain", folder, "labelled.npz", shard, "--shard", f"{number}/2").returncode == 0
    assert command("merge", *shards, "-o", tmp_path / "maps").returncode == 0
    assert _run("explain", folder, "labelled.npz", tmp_path / "stated", "--preset", "caffe").returncode == 0
    merged, stated = (auditkit.open_bundle(tmp_path / name) for name in ("maps", "stated"))
    assert bundle_digest(merged) == bundle_digest(stated)


def test_verify_opens_the_model_with_the_recorded_preset(folder: Path, audited: Path) -> None:
    originals = Originals(folder / "model.onnx", folder / "labelled.npz")
    verification = verify(audited, originals)
    assert (verification.answer, verification.problems) == ("holds", [])


def test_a_source_that_contradicts_the_assumption_is_refused(audited: Path) -> None:
    plain = json.loads((audited / "results.json").read_text())
    plain["subject"]["card_origin"] = {"source": BY_LABELS, "sha256": None}
    with pytest.raises(BadInput, match=re.escape(f"has the source '{BY_LABELS}', but is not assumed")):
        Results.parse(plain, audited)
