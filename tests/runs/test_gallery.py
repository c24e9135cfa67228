"""The gallery of a run: who is in it, what its pictures show, and that it is the same every time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.metrics.curves import parse_steps
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.pictures.gallery import LONGEST, showcase
from auditkit.runs.pictures.heatmap_panels import KEPT, heat, shares
from auditkit.runs.summary.summarise import Summary
from tests.support import onnx_models

CPU = auditkit.Settings(device="cpu")
Given = tuple[AnyClassifier, Dataset, HeatmapSet, Summary]


def evaluated(folder: Path, size: int = 8, images: int = 10, labels: tuple[int, ...] = (0, 1, 2)) -> Given:
    """A model, images, maps for some of its labels, and their figures."""
    rng = np.random.default_rng(0)
    path = onnx_models.save(onnx_models.convnet(size=size, classes=3), folder)
    model = auditkit.load(path, preset="unit", settings=CPU)
    model.card = replace(model.card, names=("cat", "dog", "</script>"))
    np.savez(folder / "images.npz", images=rng.integers(0, 256, (images, size, size, 3), dtype=np.uint8))
    bundle = auditkit.Bundle(folder / "maps", model=str(path), method="noise")
    for image in range(images):
        values = rng.standard_normal((len(labels), size, size)).astype(np.float32)
        bundle.add([str(image)] * len(labels), labels, values)
    chosen, maps = Dataset.open(folder / "images.npz", 3), open_bundle(folder / "maps")
    settings = Evaluation(steps=parse_steps("8"), controls=False, deletion=False, saliency="none")
    return model, chosen, maps, evaluate(model, chosen, {"maps": maps}, settings)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    return evaluated(tmp_path_factory.mktemp("given"))


def shown(given: Given, out: Path, per_role: int = 2) -> list[dict[str, Any]]:
    model, images, maps, summary = given
    count = showcase(model, images, {"maps": maps}, summary, out, per_role)
    entries: list[dict[str, Any]] = json.loads((out / "gallery.json").read_text())["entries"]
    assert len(entries) == count
    return entries


def test_worst_median_and_best_images_are_chosen_by_worst_completeness(given: Given, tmp_path: Path) -> None:
    entries, by_image = shown(given, tmp_path / "gallery"), dict[str, float]()
    for row in given[3].rows:
        by_image[row["image"]] = min(by_image.get(row["image"], 1.0), row["alpha"])
    order = sorted(by_image, key=lambda image: (by_image[image], image))
    roles = {role: list(dict.fromkeys(one["image"] for one in entries if one["role"] == role))
             for role in ("worst", "median", "best")}  # fmt: skip
    assert roles == {"worst": order[:2], "median": order[4:6], "best": order[8:]}
    for one in entries:
        assert one["worst_completeness"] == pytest.approx(by_image[one["image"]], abs=1e-6)


def test_an_entry_holds_the_figures_and_the_curve_of_its_row(given: Given, tmp_path: Path) -> None:
    rows = {(row["image"], row["label"]): row for row in given[3].rows}
    for one in shown(given, tmp_path / "gallery"):
        row = rows[one["image"], one["label"]]
        for key in ("prob", "insertion", "alpha", "beta"):
            assert one[key] == pytest.approx(row[key], rel=1e-5)
        assert one["curve"]["keep"] == [count / 64 for count in row["keep_counts"]]
        assert one["curve"]["score"] == pytest.approx(row["curve"], abs=1e-5)
        assert one["label_name"] == given[0].card.names[one["label"]]


def test_each_image_is_shown_for_its_prediction_and_the_label_after_it(given: Given, tmp_path: Path) -> None:
    entries = shown(given, tmp_path / "gallery")
    for image in {one["image"] for one in entries}:
        first, second = (one for one in entries if one["image"] == image)
        ordered = sorted((row["prob"] for row in given[3].rows if row["image"] == image), reverse=True)
        assert (first["predicted"], second["predicted"]) == (True, False)
        assert [first["prob"], second["prob"]] == pytest.approx(ordered[:2], rel=1e-5)


def test_a_label_without_a_map_is_left_out(tmp_path: Path) -> None:
    """Completeness is then not assessed, and insertion chooses the images."""
    given = evaluated(tmp_path, labels=(0, 1))
    entries = shown(given, tmp_path / "gallery")
    assert entries
    assert {one["label"] for one in entries} <= {0, 1}
    assert {one["worst_completeness"] for one in entries} == {None}


def test_tiny_pictures_are_kept_pixel_for_pixel(given: Given, tmp_path: Path) -> None:
    model, images, maps, _ = given
    for one in shown(given, tmp_path):
        seen = images.images[images.ids.index(one["image"])]
        drawn = {key: np.asarray(Image.open(tmp_path / file).convert("RGB")) for key, file in one["pictures"].items()}
        assert all(file.endswith(".png") for file in one["pictures"].values())
        assert np.array_equal(drawn["image"], seen)
        values = maps.get(one["image"], one["label"])
        first = values >= np.sort(values.ravel())[-int(np.ceil(KEPT * values.size))]
        assert np.array_equal(drawn["kept"][first], seen[first])
        assert (drawn["kept"][~first] == np.round(model.card.gray)).all()
        brightness = drawn["map"].astype(float).sum(axis=2)
        assert np.corrcoef(brightness.ravel(), values.argsort(axis=None).argsort())[0, 1] > 0.9


def test_large_pictures_are_made_small_and_photographs_are_jpegs(tmp_path: Path) -> None:
    given = evaluated(tmp_path, size=176, images=1, labels=(0, 1, 2))
    for one in shown(given, tmp_path / "gallery", per_role=1):
        kinds = {key: Path(file).suffix for key, file in one["pictures"].items()}
        assert kinds == {"image": ".jpg", "map": ".png", "kept": ".jpg"}
        for file in one["pictures"].values():
            with Image.open(tmp_path / "gallery" / file) as picture:
                assert max(picture.size) == LONGEST


def test_the_same_run_gives_the_same_bytes_and_old_pictures_go(given: Given, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "0099-image.png").write_bytes(b"of an earlier choice")
    shown(given, tmp_path / "once")
    shown(given, tmp_path / "again")
    once, again = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("once", "again"))
    assert once == again


@pytest.mark.parametrize("images", [1, 2, 4])
def test_few_images_are_shown_once_each(tmp_path: Path, images: int) -> None:
    entries = shown(evaluated(tmp_path, images=images), tmp_path / "gallery", per_role=8)
    roles = {(one["image"], one["role"]) for one in entries}
    assert len(roles) == len({image for image, _ in roles}) == min(images, 3)


def test_pixels_of_equal_score_have_equal_heat() -> None:
    from auditkit.data.ranks import Order

    share = shares(Order(np.array([[3.0, 1.0], [1.0, 1.0]])))
    assert share.tolist() == [[1.0, pytest.approx(1 / 3)], [pytest.approx(1 / 3)] * 2]
    assert heat(share)[0, 0].tolist() == [255, 255, 204]
