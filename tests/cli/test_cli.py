"""The command as its users type it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

from auditkit.cli import main, progress
from auditkit.cli.options import Verb
from auditkit.data.bundles import open_bundle
from tests.support import onnx_models
from tests.support.commands import PROGRESS, auditkit, auditkit_process, refused


def test_the_same_comes_out_of_a_process_of_its_own(tmp_path: Path) -> None:
    """Most tests call `main` in their own process; this one shows that it makes no difference."""
    model = onnx_models.save(onnx_models.convnet(), tmp_path)
    for words in (["inspect", model, "--json", "--device", "cpu"], ["inspect", "nowhere.onnx"], ["policy", "list"]):
        here, there = auditkit(*words, folder=tmp_path), auditkit_process(*words, folder=tmp_path)
        assert (here.returncode, here.stdout, here.stderr) == (there.returncode, there.stdout, there.stderr)


def test_inspect_prints_the_agreed_object(tmp_path: Path) -> None:
    done = auditkit("inspect", onnx_models.save(onnx_models.convnet(), tmp_path), "--json", "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert {"schema_version", "model", "input", "output", "card", "device", "gradient", "warnings"} <= set(found)
    assert {"path", "sha256", "opset", "ir_version", "bytes"} <= set(found["model"])
    assert (found["input"]["name"], found["input"]["layout"], found["input"]["batch"]) == ("image", "NCHW", "dynamic")
    assert found["input"]["shape"] == ["N", 3, 8, 8]
    assert found["output"] == {"name": "logits", "kind": "logits", "classes": 5}


def test_inspect_prints_a_table(tmp_path: Path) -> None:
    done = auditkit("inspect", onnx_models.save(onnx_models.convnet(), tmp_path), "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert "'logits'  logits, 5 classes" in done.stdout


def test_write_card_then_use_it(tmp_path: Path) -> None:
    path = onnx_models.save(onnx_models.convnet(), tmp_path)
    assert auditkit("inspect", path, "--write-card", "--preset", "tf", "--device", "cpu").returncode == 0
    card = path.with_suffix(".toml")
    assert "scale = 0.00784" in card.read_text()
    refused(auditkit("inspect", path, "--write-card", "--device", "cpu"), "already exists", "--force")
    assert json.loads(auditkit("inspect", path, "--json").stdout)["card"]["source"] == str(card)
    card.write_text(card.read_text().replace("size = [8, 8]", "size = [9, 9]"))
    refused(auditkit("inspect", path), "9", "8")


def test_a_card_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    path, card = onnx_models.save(onnx_models.convnet(), tmp_path), tmp_path / "new.toml"
    refused(auditkit("inspect", path, "--card", card), "no card", f"--write-card --card {card}")
    done = auditkit("inspect", path, "--write-card", "--card", card, "--preset", "tf", "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"written to {card}" in done.stdout
    assert "scale = 0.00784" in card.read_text()
    assert not path.with_suffix(".toml").exists()
    found = auditkit("inspect", path, "--card", card, "--json", "--device", "cpu")
    assert json.loads(found.stdout)["card"]["source"] == str(card)


def test_a_folder_without_a_model_is_said_in_plain_words(tmp_path: Path) -> None:
    refused(auditkit("inspect", tmp_path), "is a folder, not an ONNX file; there is no .onnx file in it.")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["inspect", "nowhere.onnx"], "nowhere.onnx"),
        (["inspect", "."], "folder"),
        (["inspect"], "MODEL"),
        (["inspekt"], "inspect"),
        (["inspect", "x.onnx", "--colour"], "--colour"),
        (["inspect", "x.onnx", "--size", "0x4"], "--size"),
        (["inspect", "x.onnx", "--device", "tpu"], "tpu"),
        (["inspect", "x.onnx", "--card", "a", "--preset", "b"], "cannot be used together"),
        (["inspect", "x.onnx", "--time-limit", "-1"], "positive"),
        (["demo", "--count", "many"], "--count"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_2(words: list[str], expected: str) -> None:
    refused(auditkit(*words), expected)


def _tick(monkeypatch: pytest.MonkeyPatch, what: str, total: int, ticks: list[tuple[int, float, int]]) -> None:
    """Work that is told of: seconds that go by, then what is done, and rows."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "_LINE_SECONDS", 30.0)
    with progress.shown(what) as begin:
        tick = begin(total)
        for seconds, done, rows in ticks:
            now[0] += seconds
            tick(done, rows)


def test_progress_is_told_in_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = [(20, 5, 2000), (11, 5, 1100), (10, 2.5, 0), (60, 7.5, 6000), (3600, 79, 0), (60, 1, 0)]
    _tick(monkeypatch, "evaluating", 100, ticks)
    told = capsys.readouterr().err
    assert told.splitlines() == [
        "evaluating: 10% of 100 images, 100 rows/s, 5 min left",
        "evaluating: 20% of 100 images, 90 rows/s, 7 min left",
        "evaluating: 99% of 100 images, 2 rows/s, 37 s left",
    ]
    assert PROGRESS.sub("", told) == ""


def test_progress_of_a_planned_run_is_that_of_the_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the maps were made earlier and took no time now; each phase is twice as slow as planned."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    schedule = progress.Schedule({"explaining": 100, "evaluating": 900}, {"explaining": 100, "evaluating": 300}, 10)
    for phase, kept in (("explaining", 5), ("evaluating", 0)):
        with progress.shown(phase, schedule=schedule) as begin:
            tick = begin(10)
            tick(kept)
            for _ in range(10 - kept):
                now[0] += 2 * schedule.seconds[phase] / 10
                tick(1, int(schedule.rows[phase] / 10))
    told = capsys.readouterr().err
    assert told.splitlines()[0] == "explaining: 20%, 30 of about 1,000 rows, 0 rows/s, about 11 min left"
    assert told.splitlines()[-1] == "evaluating: 92%, 860 of about 1,000 rows, 2 rows/s, about 60 s left"
    assert PROGRESS.sub("", told) == ""


def test_images_of_an_earlier_batch_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    schedule = progress.Schedule({"evaluating": 100}, {"evaluating": 100}, 10)
    for images, kept in ((4, 0), (7, 4)):
        with progress.shown("evaluating", schedule=schedule) as begin:
            tick = begin(images)
            tick(kept)
            for _ in range(images - kept):
                now[0] += 10
                tick(1, 10)
    assert schedule.share == pytest.approx(0.7)
    assert schedule.seconds_left() == pytest.approx(30)


def test_progress_is_told_before_the_first_image_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _tick(monkeypatch, "explaining", 2, [(31, 0, 310), (31, 0.01, 310)])
    told = capsys.readouterr().err
    assert told.splitlines() == [
        "explaining: 0% of 2 images, 10 rows/s",
        "explaining: 0.5% of 2 images, 10 rows/s, 3.4 h left",
    ]
    assert PROGRESS.sub("", told) == ""


def test_the_bar_of_a_terminal_says_the_same_before_the_first_image_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for variable, value in (("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(variable, value)
    _tick(monkeypatch, "explaining", 2, [(31, 0, 310), (31, 0.01, 310)])
    assert "0.5%, 10 rows/s, 3.4 h left" in capsys.readouterr().err


def test_what_an_earlier_run_has_done_does_not_count_as_pace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _tick(monkeypatch, "evaluating", 100, [(1, 90, 0), (30, 1, 100)])
    assert capsys.readouterr().err == "evaluating: 91% of 100 images, 3 rows/s, 4 min left\n"


def test_help_of_every_verb() -> None:
    for verb in ([], ["inspect"], ["doctor"], ["demo"]):
        done = auditkit(*verb, "--help")
        assert done.returncode == 0
        assert "Usage: auditkit" in done.stdout


def test_accuracy_and_the_warning_of_a_wrong_card(tmp_path: Path) -> None:
    """A classifier that asks which colour channel is strongest: red and blue change places under BGR."""
    from onnx import helper

    nodes = [helper.make_node("ReduceMean", ["image"], ["logits"], axes=[2, 3], keepdims=0)]
    proto = onnx_models.model(
        nodes, [onnx_models.value("image", ["N", 3, 8, 8])], [onnx_models.value("logits", ["N", 3])]
    )
    path = onnx_models.save(proto, tmp_path)
    labels = np.arange(60) % 3
    images = np.full((60, 8, 8, 3), 100, np.uint8)
    images[np.arange(60), :, :, labels] = 200
    np.savez(tmp_path / "set.npz", images=images, labels=labels)
    right = json.loads(auditkit("inspect", path, "--preset", "unit", "--images", tmp_path / "set.npz", "--json").stdout)
    assert right["accuracy"] == {"top1": 1.0, "top5": 1.0, "correct": 60, "n": 60}
    assert not any("wrong" in text for text in right["warnings"])
    wrong = json.loads(
        auditkit("inspect", path, "--preset", "caffe", "--images", tmp_path / "set.npz", "--json").stdout
    )
    assert wrong["accuracy"]["correct"] == 20
    assert any("probably wrong" in text and "60 of 60" in text for text in wrong["warnings"])
    assert not any("guessing" in text for text in right["warnings"])
    np.savez(tmp_path / "set.npz", images=images, labels=(labels + 1) % 3)
    shifted = auditkit("inspect", path, "--preset", "unit", "--images", tmp_path / "set.npz", "--json")
    advice = "0 of 60 right is no better than guessing (33 %): check the order of the labels, the preset and"
    assert any(text.startswith(advice) for text in json.loads(shifted.stdout)["warnings"])


def test_presets_that_few_images_do_not_tell_apart_are_named(tmp_path: Path) -> None:
    from onnx import helper

    nodes = [helper.make_node("ReduceMean", ["image"], ["logits"], axes=[2, 3], keepdims=0)]
    proto = onnx_models.model(
        nodes, [onnx_models.value("image", ["N", 3, 8, 8])], [onnx_models.value("logits", ["N", 3])]
    )
    labels = np.arange(6) % 3
    images = np.full((6, 8, 8, 3), 100, np.uint8)
    images[np.arange(6), :, :, labels] = 200
    np.savez(tmp_path / "set.npz", images=images, labels=labels)
    done = auditkit("inspect", onnx_models.save(proto, tmp_path), "--images", tmp_path / "set.npz")
    text = " ".join(done.stdout.split())
    assert "6 of 6 right with preset imagenet (assumed); tf (6 of 6), unit (6 of 6), clip (6 of 6)" in text
    assert "caffe (2 of 6) cannot be told apart from it with 6 images" in text


def test_a_file_of_open_size_takes_that_of_the_images(tmp_path: Path) -> None:
    """All commands take it, where the images share one and nobody states another."""
    path, images = onnx_models.save(onnx_models.convnet(size="S"), tmp_path), tmp_path / "set.npz"
    np.savez(images, images=np.zeros((5, 20, 20, 3), np.uint8), labels=np.zeros(5, int))
    bare = json.loads(auditkit("inspect", path, "--json").stdout)
    assert (bare["input"]["size"], bare["guesses"][0].split("; ")[1]) == ([224, 224], "--size sets another")
    fitted = json.loads(auditkit("inspect", path, "--json", "--images", images).stdout)
    assert fitted["input"]["size"] == fitted["card"]["size"] == [20, 20]
    assert "input size 20x20, that of the images: the file leaves it open; --size sets another" in fitted["guesses"]
    stated = json.loads(auditkit("inspect", path, "--json", "--images", images, "--size", "12").stdout)
    assert stated["input"]["size"] == [12, 12]
    maps = tmp_path / "maps"
    done = auditkit("explain", path, images, "-o", maps, "--method", "random", "--labels", "top1")
    assert (done.returncode, next(iter(open_bundle(maps))).values.shape) == (0, (20, 20))
    for name, side in (("a.png", 20), ("b.png", 21)):
        (tmp_path / "files" / "0").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, side)).save(tmp_path / "files" / "0" / name)
    several = json.loads(auditkit("inspect", path, "--json", "--images", tmp_path / "files").stdout)
    assert several["input"]["size"] == [224, 224]


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    path = onnx_models.save(onnx_models.convnet(), tmp_path)
    np.savez(tmp_path / "set.npz", images=np.zeros((2, 8, 8, 3), np.uint8))
    refused(auditkit("inspect", path, "--images", tmp_path / "set.npz"), "no labels")


def test_names_from_the_file_cannot_command_the_terminal(tmp_path: Path) -> None:
    proto = onnx_models.convnet()
    proto.graph.output[0].name = proto.graph.node[-1].output[0] = "\x1b[31m[red]logits\n"
    done = auditkit("inspect", onnx_models.save(proto, tmp_path), "--device", "cpu")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "[red]logits" in done.stdout


def test_doctor_passes_and_says_why_not_cuda() -> None:
    done = auditkit("doctor", "--json")
    assert done.returncode == 0, done
    found = json.loads(done.stdout)
    assert found["self_test"]["passed"]
    assert found["cuda"]["problem"] is None or found["cuda"]["problem"]
    assert "CPUExecutionProvider" in found["providers"]


def test_doctor_warns_of_another_distribution_with_the_same_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another project on the package index has the import name and the command auditkit, too."""
    before = json.loads(auditkit("doctor", "--json").stdout)
    assert before["warnings"] == []
    for distribution in ("auditkit", "onnx-auditkit"):
        folder = tmp_path / f"{distribution.replace('-', '_')}-2.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.0\n")
        (folder / "top_level.txt").write_text("auditkit\n")
    monkeypatch.syspath_prepend(tmp_path)
    (warning,) = json.loads(auditkit("doctor", "--json").stdout)["warnings"]
    assert warning.startswith("the distribution auditkit also provides the package auditkit")
    done = auditkit("doctor")
    assert done.returncode == 0
    assert "the distribution auditkit also provides" in " ".join(done.stdout.split())


@pytest.mark.gpu
def test_doctor_says_that_cuda_is_ready() -> None:
    done = auditkit("doctor", "--device", "cuda")
    assert done.returncode == 0, done
    assert "ready" in done.stdout
    assert "passed on cuda" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
def test_a_pipe_that_nobody_reads_gives_no_verdict() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "auditkit", "policy", "list"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "m.onnx", "x.npz", "--pictures", "-o", "y"),
        ("evaluate", "m.onnx", "x.npz", "--heatmaps", "--out", "y"),
        ("bundle", "check", "maps", "--images", "--json"),
        ("policy", "init", "-o", "--help"),
    ],
)
def test_an_option_is_not_taken_for_the_value_of_another(words: tuple[str, ...], tmp_path: Path) -> None:
    option, follows = words[-3:-1] if words[-1] == "y" else words[-2:]
    refused(auditkit(*words, folder=tmp_path), f"{option} needs a value, but {follows} follows")
    assert not list(tmp_path.iterdir())


def test_after_two_dashes_everything_is_a_name(tmp_path: Path) -> None:
    done = auditkit("compare", "--", "-o", "--json", folder=tmp_path)  # two runs by these names
    refused(done, "-o")
    assert "needs a value" not in done.stderr


def test_every_verb_notices_an_option_left_without_its_value() -> None:
    def leaves(command: Any) -> list[Any]:
        below = getattr(command, "commands", {}).values()
        return [leaf for one in below for leaf in leaves(one)] if below else [command]

    found = leaves(get_command(main.app))
    assert len(found) == len(main.VERBS) + 6
    assert all(isinstance(one, Verb) for one in found)


def test_a_name_of_any_length_leaves_the_sentence_readable(tmp_path: Path) -> None:
    (tmp_path / "card.toml").write_text(f"schema_version = 1\n{'x' * 5000} = 1\n")
    model = onnx_models.save(onnx_models.convnet(), tmp_path)
    done = auditkit("inspect", model, "--card", tmp_path / "card.toml")
    refused(done, "unknown key", "choose from schema_version")
    assert len(done.stderr) < 700
