"""`auditkit examine` on the command line: exit codes, JSON, and folders that are resumed or refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from auditkit.demo.draw import draw
from tests.support.commands import Completed, auditkit, refused

MODELS = Path(__file__).parents[2] / "models"


def command(model: str, images: Path, out: Path, *more: object) -> Completed:
    """Examine one of the demo's networks by maps that cost little."""
    words = ("--method", "gradient-input", "--device", "cpu")
    return auditkit("examine", MODELS / f"{model}.onnx", images, "-o", out, *words, *more)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with tags that agree with their shapes."""
    folder = tmp_path_factory.mktemp("images")
    np.savez(folder / "images.npz", images=draw(20, seed=5, tags="agree").images)
    np.savez(folder / "few.npz", images=draw(19, seed=5, tags="agree").images)
    return folder / "images.npz"


@pytest.fixture(scope="module")
def shortcut(images: Path) -> Completed:
    """The network that reads the tag, examined."""
    return command("shortcut", images, images.parent / "shortcut")


def test_a_finding_has_exit_code_1_and_says_what_to_do(shortcut: Completed, images: Path) -> None:
    assert shortcut.returncode == 1, shortcut
    assert "relies on" in shortcut.stdout
    assert "corner" in shortcut.stdout
    assert "examine again" in " ".join(shortcut.stdout.split())
    page = (images.parent / "shortcut" / "report.html").read_text()
    assert "What the model relies on" in page
    assert "data:image/png" in page


def test_no_finding_has_exit_code_0_and_maps_can_be_supplied(images: Path, tmp_path: Path) -> None:
    words = ("--method", "gradient-input", "--device", "cpu", "--labels", "top1")
    assert auditkit("explain", MODELS / "honest.onnx", images, "-o", tmp_path / "maps", *words).returncode == 0
    done = command("honest", images, tmp_path / "out", "--heatmaps", tmp_path / "maps")
    assert done.returncode == 0, done
    assert "This does not show that there is none" in " ".join(done.stdout.split())
    assert not (tmp_path / "out" / "maps").exists()


def test_the_same_command_resumes_and_prints_json(shortcut: Completed, images: Path) -> None:
    out = images.parent / "shortcut"
    record = (out / "examination.json").read_bytes()
    again = command("shortcut", images, out, "--json")
    assert again.returncode == shortcut.returncode
    assert json.loads(again.stdout) == json.loads(record)
    assert (out / "examination.json").read_bytes() == record


@pytest.mark.usefixtures("shortcut")
def test_another_seed_in_the_same_folder_is_refused(images: Path) -> None:
    done = command("shortcut", images, images.parent / "shortcut", "--seed", 1)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("auditkit: ")


def test_too_few_images_are_one_sentence(images: Path, tmp_path: Path) -> None:
    done = command("honest", images.parent / "few.npz", tmp_path / "out")
    assert done.returncode == 2
    assert "needs 20 images" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_method_is_refused(images: Path, tmp_path: Path) -> None:
    refused(
        auditkit("examine", MODELS / "honest.onnx", images, "-o", tmp_path / "out", "--method", "none-such"), "method"
    )
    assert not (tmp_path / "out").exists()
