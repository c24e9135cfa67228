"""Explanations as users make them: by the command and from Python, whole, cut short and gone on with."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import auditkit
import build
from auditkit.errors import BadInput
from test_cli import _refused
from test_cli import auditkit as command

CPU = auditkit.Settings(device="cpu")


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, Path]:
    """A model and twenty images."""
    rng = np.random.default_rng(0)
    model = build.save(build.convnet(size=8, classes=4), tmp_path)
    np.savez(tmp_path / "images.npz", images=rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
    return model, tmp_path / "images.npz"


def test_maps_for_every_label_that_evaluate_takes(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    done = command("explain", model, images, "-o", tmp_path / "maps", "--method", "gradient-input", "--preset", "unit",
                   "--device", "cpu", "--json")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["maps"], said["images"], said["method"]) == (80, 20, "gradient-input(seed=0)")
    assert (said["passes"], said["gradients"], said["notes"]) == (0, 80, [])
    opened = auditkit.load(model, preset="unit", settings=CPU)
    found = auditkit.open_bundle(tmp_path / "maps")
    assert found.header.model == opened.file.identity
    summary = auditkit.evaluate(opened, images, tmp_path / "maps", steps=8)
    assert summary.value("soundness", "maps") is not None


def test_python_makes_the_same_maps(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    command("explain", model, images, "-o", tmp_path / "one", "--method", "smoothgrad", "--preset", "unit",
            "--option", "samples=3", "--labels", "top2", "--seed", "5", "--device", "cpu")  # fmt: skip
    opened = auditkit.load(model, preset="unit", settings=CPU)
    two = auditkit.explain(opened, images, tmp_path / "two", "smoothgrad", samples=3, labels="top2", seed=5)
    one = auditkit.open_bundle(tmp_path / "one")
    assert one.labels == two.labels
    for mine, other in zip(one, two, strict=True):
        np.testing.assert_array_equal(mine.values, other.values)


def test_the_same_command_goes_on_and_keeps_what_is_there(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    with np.load(images) as arrays:
        first = arrays["images"][:7]
    auditkit.explain(opened, first, tmp_path / "maps", "gradient", labels="top1")
    before = {path.name: path.read_bytes() for path in (tmp_path / "maps" / "maps").iterdir()}
    whole = auditkit.explain(opened, images, tmp_path / "maps", "gradient", labels="top2")
    assert len(whole) == 40
    assert all((tmp_path / "maps" / "maps" / name).read_bytes() == content for name, content in before.items())
    other = auditkit.explain(opened, images, tmp_path / "other", "gradient", labels="top2")
    for image, labels in other.labels.items():
        for label in labels:
            np.testing.assert_allclose(whole.get(image, label), other.get(image, label), atol=1e-6)


def test_another_way_does_not_go_into_the_same_bundle(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    auditkit.explain(opened, images, tmp_path / "maps", "random")
    for other in ({"method": "gradient"}, {"method": "random", "seed": 1}):
        with pytest.raises(BadInput, match="use another bundle"):
            auditkit.explain(opened, images, tmp_path / "maps", **other)
    with np.load(images) as arrays:
        changed = arrays["images"].copy()
    changed[3] = 255 - changed[3]
    with pytest.raises(BadInput, match="image '3' is another picture"):
        auditkit.explain(opened, changed, tmp_path / "maps", "random")


def test_a_function_is_explained_too(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    found = auditkit.explain(opened.predict, images, tmp_path / "maps", "edges", size=(8, 8), preset="unit")
    assert len(found) == 80
    assert found.header.model is None


@pytest.mark.parametrize(("words", "said"), [
    (("--method", "magic"), "no method 'magic'"),
    (("--method", "smoothgrad", "--option", "sample=3"), "no option 'sample'"),
    (("--method", "smoothgrad", "--option", "samples=three"), "not a number"),
    (("--method", "gradient", "--option", "samples=3"), "it has none"),
    (("--method", "gradient", "--labels", "top9"), "top9"),
    (("--method", "gradient", "--seed", "-1"), "seed -1"),
    (("--method", "masker"), "needs the option path"),
])  # fmt: skip
def test_bad_input_is_one_sentence(given: tuple[Path, Path], tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    model, images = given
    _refused(command("explain", model, images, "-o", tmp_path / "maps", "--preset", "unit", *words), said)


def test_the_help_names_every_method() -> None:
    from auditkit.cli.explain import ALL_METHODS
    from auditkit.methods.table import METHODS

    assert set(METHODS) == set(ALL_METHODS.rstrip(".").replace(" or ", ", ").split(", "))


@pytest.mark.parametrize("method", ["mask", "differences", "rise", "occlusion"])
def test_methods_that_ask_the_model(given: tuple[Path, Path], tmp_path: Path, method: str) -> None:
    model, images = given
    few = {"mask": {"steps": 5}, "differences": {"most_passes": 32}, "rise": {"passes": 32}, "occlusion": {}}[method]
    opened = auditkit.load(model, preset="unit", settings=CPU)
    with np.load(images) as arrays:
        found = auditkit.explain(opened, arrays["images"][:5], tmp_path / "maps", method, labels="top2", **few)
    assert len(found) == 10
    assert found.header.method.startswith(f"{method}(")
    assert all(np.ptp(held.values) > 0 for held in found)


def test_without_a_gradient_masks_come_from_differences(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    opened = auditkit.load(model, preset="unit", settings=CPU)
    for number, (source, more) in enumerate([
        (opened, {"gradient": "differences"}), (opened.predict, {"size": (8, 8), "preset": "unit"}),
    ]):  # fmt: skip
        found = auditkit.explain(source, images, tmp_path / str(number), labels="top1", most_passes=32, **more)
        assert found.header.method.startswith("differences(")
        spent = json.loads((found.path / "explained.json").read_text())["passes"]
        assert 20 * 16 <= spent <= 20 * 32  # an image may be done before its most
    with pytest.raises(BadInput, match="follows the gradient itself"):
        auditkit.explain(opened, images, tmp_path / "no", "smoothgrad", gradient="differences")


def test_pictures_to_look_at(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, images = given
    done = command("explain", model, images, "-o", tmp_path / "maps", "--method", "edges", "--preset", "unit",
                   "--labels", "top1", "--pictures", tmp_path / "drawn")  # fmt: skip
    assert done.returncode == 0
    drawn = sorted((tmp_path / "drawn").iterdir())
    assert len(drawn) == 20
    with Image.open(drawn[0]) as picture:
        assert picture.width == 3 * 224 + 8
        pixels = np.asarray(picture)
    kept = pixels[18:, 2 * 228 : 2 * 228 + 224]
    share = (kept == np.array([128, 128, 128])).all(axis=2).mean()
    assert share == pytest.approx(0.7, abs=0.02)
