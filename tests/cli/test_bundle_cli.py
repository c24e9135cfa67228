"""`auditkit bundle` as its users type it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from auditkit.cli.main import main
from auditkit.data.bundle_check import ONE_LABEL
from auditkit.data.bundles import Bundle, open_bundle
from tests.support import onnx_models
from tests.support.commands import auditkit as command

RNG = np.random.default_rng(0)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def auditkit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: exit code, stdout, stderr."""

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["auditkit", "bundle", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


def _refused(done: Done, *words: str) -> None:
    assert (done.returncode, done.stdout) == (2, ""), done
    (line,) = done.stderr.splitlines()
    assert all(word in line for word in words), line


def noise(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """Two maps by name, one of them in a folder, and a file that is none."""
    (tmp_path / "maps" / "cats").mkdir(parents=True)
    np.save(tmp_path / "maps" / "a.png__3.npy", noise(8, 8))
    np.save(tmp_path / "maps" / "cats" / "b__c.png__0.npy", noise(8, 8))
    (tmp_path / "maps" / "README").write_text("maps")
    return tmp_path / "maps"


def test_import_then_check_beside_model_and_images(tmp_path: Path, maps: Path, auditkit: Command) -> None:
    model = onnx_models.save(onnx_models.convnet(), tmp_path)
    for name in ("a.png", "cats/b__c.png"):
        (tmp_path / "csv" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "csv" / name)
    (tmp_path / "csv" / "set.csv").write_text("image\na.png\ncats/b__c.png\n")
    out = tmp_path / "bundle"
    done = auditkit("import", maps, "-o", out, "--model", model, "--method", "Grad-CAM", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["added"], said["maps"], said["method"], said["frame"]) == (2, 2, "Grad-CAM", "model-input")
    assert said["warnings"] == ["1 files are not maps (.npy, .png) and were left out, such as 'README'"]
    assert open_bundle(out).labels == {"a.png": (3,), "cats/b__c.png": (0,)}
    images = tmp_path / "csv" / "set.csv"
    done = auditkit("check", out, "--model", model, "--images", images, "--preset", "unit", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["maps"], said["images"], said["labels"], said["errors"]) == (2, 2, 2, 0)
    assert [problem["message"] for problem in said["problems"]] == [ONE_LABEL]


def test_check_of_a_bundle_for_another_model(tmp_path: Path, auditkit: Command) -> None:
    """The table tells each problem, and the exit code that there are errors."""
    model = onnx_models.save(onnx_models.convnet(classes=3), tmp_path)
    out = tmp_path / "bundle"
    Bundle(out, "ab" * 32).add(["a", "b"], [1, 3], np.stack([noise(8, 8), np.zeros((8, 8))]))
    done = auditkit("check", out, "--model", model)
    assert (done.returncode, done.stderr) == (2, "")
    text = " ".join(done.stdout.split())
    assert "label 3, but the model has classes 0 to 2" in text
    assert "the maps explain the model abab" in text
    assert "1 of 2 maps" in text
    assert "cannot be used: 2 errors, 3 warnings; not checked: names of images (--images)" in text
    done = auditkit("check", out)
    assert done.returncode == 0
    assert "not checked: labels and sizes (--model), names of images (--images)" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("labels", "sides", "code"), [((0, 3), (20, 10), 2), ((0, 1), (8, 8), 2), ((0, 1), (4, 2), 0)], ids=str
)
def test_check_refuses_what_evaluate_refuses(
    tmp_path: Path, auditkit: Command, labels: tuple[int, int], sides: tuple[int, int], code: int
) -> None:
    """Labels beyond the model's, and sizes out of proportion with its input, here that of the images."""
    model, images, maps = tmp_path / "model.onnx", tmp_path / "set.npz", tmp_path / "maps"
    onnx_models.save(onnx_models.convnet(classes=3, size="S"), tmp_path)
    np.savez(images, images=np.zeros((2, 20, 10, 3), np.uint8))
    Bundle(maps, model).add([0, 1], {label: noise(2, *sides) for label in labels})
    assert auditkit("check", maps, "--model", model, "--images", images).returncode == code
    assert auditkit("check", maps, "--model", model, "--size", "20x10").returncode == code
    run = command(
        "evaluate", model, images, "--heatmaps", maps, "-o", tmp_path / "run", "--steps", "4", "--no-controls"
    )
    assert run.returncode == code


def test_import_an_npz(tmp_path: Path, auditkit: Command) -> None:
    heatmaps = noise(70, 3, 6, 6)
    ids = np.array([f"{i}.png" for i in range(70)])
    np.savez(tmp_path / "rows.npz", heatmaps=heatmaps, labels=np.array([4, 5, 6]), images=ids)
    np.savez(tmp_path / "one.npz", heatmaps=heatmaps[:, 0], labels=np.arange(70), images=np.arange(70))
    np.savez(tmp_path / "bare.npz", heatmaps=heatmaps[:, 0], images=ids)
    np.savez(tmp_path / "short.npz", heatmaps=heatmaps[:65, 0], labels=np.arange(64), images=ids[:64])
    assert auditkit("import", tmp_path / "rows.npz", "-o", tmp_path / "rows").returncode == 0
    assert (open_bundle(tmp_path / "rows").get("69.png", 6) == heatmaps[69, 2]).all()
    assert auditkit("import", tmp_path / "one.npz", "-o", tmp_path / "one").returncode == 0
    assert (open_bundle(tmp_path / "one").get("69", 69) == heatmaps[69, 0]).all()
    _refused(auditkit("import", tmp_path / "bare.npz", "-o", tmp_path / "x"), "no array 'labels'", "never guessed")
    _refused(auditkit("import", tmp_path / "short.npz", "-o", tmp_path / "x"), "[65, 6, 6] for 64 images")


@pytest.mark.parametrize(
    ("shape", "labels", "words"),
    [
        ((64, 6, 6), np.arange(70), "shape [70] for heatmaps [64, 6, 6]; expected [64]."),
        ((100, 6, 6), np.arange(130), "shape [130]"),
        ((3, 3, 6, 6), np.arange(3), "may be one per image or one row for all; give them as [3, 3]"),
        ((5, 3, 6, 6), np.arange(5), "expected [5, 3] or [3], one row for all images"),
        ((1, 6, 6), np.array(3), "shape [] for heatmaps [1, 6, 6]"),
    ],
)
def test_labels_that_do_not_fit_an_npz_leave_no_bundle(
    tmp_path: Path, auditkit: Command, shape: tuple[int, ...], labels: np.ndarray, words: str
) -> None:
    maps = np.random.default_rng(0).random(shape)
    np.savez(tmp_path / "maps.npz", heatmaps=maps, labels=labels, images=np.arange(shape[0]))
    _refused(auditkit("import", tmp_path / "maps.npz", "-o", tmp_path / "x"), words)
    assert not (tmp_path / "x").exists()


def test_import_a_manifest_with_grey_and_colour_pictures(tmp_path: Path, auditkit: Command) -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    deep = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey).convert("RGB").save(tmp_path / "rgb.png")
    Image.fromarray(deep).save(tmp_path / "deep.png")
    np.save(tmp_path / "chw.npy", noise(3, 8, 8))
    manifest = tmp_path / "list.csv"
    manifest.write_text("image,label,heatmap\na,0,grey.png\nb,1,rgb.png\nc,1,deep.png\n")
    done = auditkit("import", manifest, "-o", tmp_path / "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 maps were grey pictures" in done.stdout
    bundle = open_bundle(tmp_path / "b")
    assert (bundle.get("b", 1) == grey).all()
    assert (bundle.get("c", 1) == deep).all()
    Image.fromarray(np.stack([grey, grey, 255 - grey], axis=-1)).save(tmp_path / "rgb.png")
    _refused(auditkit("import", manifest, "-o", tmp_path / "c"), "rgb.png", "colour picture", "0.02")
    manifest.write_text("image,label,heatmap\na,0,chw.npy\n")
    done = auditkit("import", manifest, "-o", tmp_path / "d", "--channels", "max-abs", "--json")
    assert json.loads(done.stdout)["channels"] == "max-abs"
    manifest.write_text("image,label,heatmap\na,0,../chw.npy\n")
    _refused(auditkit("import", manifest, "-o", tmp_path / "e"), "'../chw.npy'", "inside the folder")


def test_bad_input_is_one_sentence(tmp_path: Path, maps: Path, auditkit: Command) -> None:
    _refused(auditkit("check", tmp_path / "none"), "there is no folder")
    _refused(auditkit("check", maps), "no bundle.json", "auditkit bundle import")
    _refused(auditkit("import", maps, "-o", tmp_path / "b", "--frame", "photo"), "'photo'", "original-image")
    _refused(auditkit("import", maps, "-o", maps), "is not a bundle")
    _refused(auditkit("import", tmp_path / "gone", "-o", tmp_path / "b"), "there is no")
    np.save(maps / "c.png.npy", noise(8, 8))
    _refused(auditkit("import", maps, "-o", tmp_path / "b"), "c.png.npy", "never guessed")
    (maps / "c.png.npy").unlink()
    np.save(maps / "d.png__1.npy", np.full((8, 8), np.nan))
    _refused(auditkit("import", maps, "-o", tmp_path / "b"), "image 'd.png', label 1 has nan at row 0, column 0")
