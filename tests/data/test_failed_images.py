"""A broken image among good ones: it is named and counted, and the others are measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.runs.evaluation.images import load_images
from tests.support import onnx_models
from tests.support.commands import auditkit as command
from tests.support.commands import refused

GOOD = ("0.png", "2.png", "3.png", "5.png")


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, Path]:
    """A model, and six pictures with boxes in a CSV; the second is torn, the fifth is text."""
    rng = np.random.default_rng(0)
    lines = ["image,label,x0,y0,x1,y1"]
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(6):
        name = f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / name)
        lines.append(f"{name},{number % 4},{number % 4},1,6,7")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:60])
    (folder / "4.png").write_text("not a picture")
    return onnx_models.save(onnx_models.convnet(size=8, classes=4), tmp_path), folder


def test_what_belongs_to_an_image_stays_with_it(given: tuple[Path, Path]) -> None:
    model, folder = given
    images, classifier = Dataset.open(folder, 4), auditkit.load(model, preset="unit")
    loaded = load_images(range(6), images, classifier.card, classifier.signature)
    assert loaded.ids == GOOD
    assert loaded.positions == (0, 2, 3, 5)
    assert [failure.image for failure in loaded.failed] == ["1.png", "4.png"]
    assert all(failure.image in failure.reason for failure in loaded.failed)
    assert loaded.truth == (0, 2, 3, 1)
    assert [int(region.any(axis=0).argmax()) for region in loaded.regions if region is not None] == [0, 2, 3, 1]
    for pixels, position in zip(loaded.pixels, loaded.positions, strict=True):
        np.testing.assert_array_equal(pixels, np.asarray(Image.open(images.images[position])))


def test_the_others_are_explained_and_evaluated(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, folder = given
    made = command("explain", model, folder, "-o", tmp_path / "maps", "--method", "edges", "--preset", "unit")
    assert made.returncode == 0
    assert "2 of 6 images cannot be used" in " ".join(made.stdout.split())
    assert tuple(auditkit.open_bundle(tmp_path / "maps").labels) == GOOD
    words = ("evaluate", model, folder, "--heatmaps", tmp_path / "maps", "-o", tmp_path / "run", "--steps", "4",
             "--preset", "unit")  # fmt: skip
    done = command(*words)
    assert done.returncode == 0
    assert "2 of 6 images cannot be used" in " ".join(done.stdout.split())
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [one["image"] for one in found["failed_images"]] == ["1.png", "4.png"]
    assert all(entry["n"] in (0, 4) for entry in found["metrics"] if entry["name"] == "insertion")
    Image.new("RGB", (8, 8)).save(folder / "1.png")  # mended meanwhile: another set of images
    refused(command(*words), "holds a run with other settings")


def test_a_unit_of_broken_images_has_no_rows(given: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = given
    monkeypatch.setattr("auditkit.runs.evaluate.units", lambda *_: [range(number, number + 1) for number in range(6)])
    classifier = auditkit.load(model, preset="unit")
    summary = auditkit.evaluate(classifier, folder, steps="4", infill=["gray", "random"], draws=2)
    assert [failure.image for failure in summary.failed_images] == ["1.png", "4.png"]
    assert sorted(summary.table.images) == list(GOOD)


def test_when_none_is_good_the_first_reason_is_given(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, folder = given
    for name in GOOD:
        (folder / name).write_text("no picture either")
    said = command("evaluate", model, folder, "-o", tmp_path / "run", "--preset", "unit")
    refused(said, "none of the 6 images can be used")
    assert "0.png" in said.stderr


def test_no_images_at_all_are_said(given: tuple[Path, Path]) -> None:
    model, folder = given
    with pytest.raises(auditkit.BadInput, match="holds no images"):
        auditkit.evaluate(auditkit.load(model, preset="unit"), Dataset.open(folder, 4).select([]))
