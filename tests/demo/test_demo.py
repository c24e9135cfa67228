"""A newcomer's way: the demo, then the commands of the README's first audit, as they stand there."""

import json
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from auditkit.demo.planted import bundled_model
from tests.support.commands import auditkit_process

README = Path(__file__).parents[2] / "README.md"


def _typed(line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """A line as typed in a folder."""
    program, *words = shlex.split(line)
    assert program == "auditkit"
    return auditkit_process(*words, folder=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the demo was run, beside the bundled models."""
    made = tmp_path_factory.mktemp("newcomer")
    (made / "models").symlink_to(bundled_model("honest").parent)
    done = _typed("auditkit demo -o demo-output --count 20 --answered 60 --device cpu --json", made)
    assert (done.returncode, done.stderr) == (0, "")
    (made / "said.json").write_text(done.stdout)
    return made


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = _typed("auditkit demo -o file", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "auditkit: file is not a folder; name a new one.\n"
    assert (tmp_path / "file").read_text() == "mine"


def test_the_demo_tells_which_model_cheats_and_by_what(folder: Path) -> None:
    said = json.loads((folder / "said.json").read_text())
    assert said["cheats"] == ["shortcut"]
    honest, shortcut = said["models"]
    assert honest["relies_on"] == []
    assert shortcut["relies_on"] == ["The model relies on something in the corners, such as a tag or a stamp"]
    assert "fail" not in (honest["verdict"], shortcut["verdict"])  # of their maps, which are good
    assert honest["correct_when_agree"] == shortcut["correct_when_agree"] == 1
    assert honest["correct_when_disagree"] > 0.9 > 0.1 > shortcut["correct_when_disagree"]
    for own, places in ((honest, ("object", "tag")), (shortcut, ("tag", "object"))):
        read, ignored = (own["evidence"][place] for place in places)
        assert read["share"]["low"] > 0.6
        assert ignored["share"]["value"] < 0.02
        for one in ignored.values():  # pictures without any leave it possible that others have some
            assert 0 < one["high"] <= max(0.1, 1 - 0.025 ** (1 / one["n"]) + 1e-9)
    models = ("honest", "shortcut")
    page = (folder / "demo-output" / "report.html").read_text()
    assert "“shortcut” relies on something in the corners, such as a tag or a stamp; no shortcut" in page
    assert page.count("data:image/png") == 18 + 2  # masks, and exchanges
    assert "http" not in page.replace("http-equiv", "")
    assert "the most important 5 % of the pixels" in page
    assert "needs" not in page  # at 5 % the label may well not be seen
    results = {name: json.loads((folder / "demo-output" / name / "results.json").read_text()) for name in models}
    for name, run in results.items():
        told = (f"{name}.onnx", run["subject"]["model"]["sha256"], run["policy"]["sha256"], run["run"]["ended"],
                f"auditkit {run['tool']['version']}", "with the fixed seed 7", "20 for the audits",
                "Verdict of the policy “<bdi>standard</bdi>”",
                "not proof that a model is right, safe or fair")  # fmt: skip
        assert [words for words in told if words not in page] == []
    for name in models:
        assert f'href="{name}/report.html"' in page
        assert (folder / "demo-output" / name / "report.html").is_file()


def _few_images(folder: Path, elsewhere: Path) -> Path:
    """A folder in which the demo seems to have drawn only three of its images, which saves nine tenths of the time."""
    (elsewhere / "models").symlink_to(bundled_model("honest").parent)
    (elsewhere / "demo-output").mkdir()
    with np.load(folder / "demo-output" / "images.npz") as arrays:
        few = {name: array[:3] for name, array in arrays.items()}
    np.savez(elsewhere / "demo-output" / "images.npz", **few)
    return elsewhere


@pytest.mark.parametrize("count", ["three images", pytest.param("all images", marks=pytest.mark.slow)])
def test_the_first_audit_of_the_readme_works_as_written(folder: Path, tmp_path: Path, count: str) -> None:
    if count == "three images":
        folder = _few_images(folder, tmp_path)
    block = README.read_text().partition("## A first audit")[2].partition("\n\n    ")[2].partition("\n\n")[0]
    lines = [line.strip() for line in block.splitlines()]
    assert [line.split()[1] for line in lines] == ["inspect", "audit", "verify", "report"]
    for line in lines:
        done = _typed(line, folder)
        assert (done.returncode, done.stderr) == (0, ""), line
    assert "shortcut.onnx" in done.stdout
    assert (folder / "first-audit" / "report.html").is_file()
