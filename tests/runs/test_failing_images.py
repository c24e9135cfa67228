"""Images on which the model fails end a run, and are left out, counted and named where that is allowed."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.errors import RuntimeFailure
from auditkit.metrics.curves import parse_steps
from auditkit.model.classifier import AnyClassifier
from auditkit.model.session import Settings
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.explain import Explanation, explain
from auditkit.runs.summary.summarise import Summary
from tests.support import gated_models, onnx_models

COUNT = 20
SETTINGS = Evaluation(steps=parse_steps("4"))


def _images(*white: int) -> Dataset:
    """Noise, but white at these positions."""
    pixels = np.random.default_rng(1).integers(0, 256, (COUNT, 8, 8, 3), dtype=np.uint8)
    pixels[list(white)] = 255
    return Dataset.from_array(pixels)


def _model(tmp_path: Path, allowed: int, proto: onnx.ModelProto | None = None) -> AnyClassifier:
    path = onnx_models.save(proto or gated_models.white(np.nan), tmp_path)
    return auditkit.load(path, preset="unit", settings=Settings(device="cpu", in_process=True, allow_failed=allowed))


def _evaluate(tmp_path: Path, images: Dataset, allowed: int, out: Path | None = None) -> Summary:
    return evaluate(_model(tmp_path, allowed), images, {}, SETTINGS, out)


@pytest.mark.parametrize(("white", "allowed"), [((17,), 0), ((3, 17), 1), ((0,), 0)])
def test_the_run_ends_and_the_image_is_named(tmp_path: Path, white: tuple[int, ...], allowed: int) -> None:
    images = _images(*white)
    names = "|".join(images.ids[position] for position in white)
    with pytest.raises(RuntimeFailure, match=f"^image '({names})': model.onnx gave NaN"):
        _evaluate(tmp_path, images, allowed)


def test_images_are_left_out_where_that_is_allowed(tmp_path: Path) -> None:
    images, out = _images(0, 17), tmp_path / "run"
    summary = _evaluate(tmp_path, images, 2, out)
    assert [(failed.image, failed.by_model) for failed in summary.failed_images] == [("0", True), ("17", True)]
    assert "2 of 20" in " ".join(summary.flag_texts())
    noise = evaluate(_model(tmp_path, 0), _images(), {}, SETTINGS, tmp_path / "noise")
    assert summary.rows == [row for row in noise.rows if row["image"] not in ("0", "17")]
    with pytest.raises(RuntimeFailure, match=r"^image '17': .*--allow-failed 2 or more"):
        _evaluate(tmp_path, images, 1, out)  # they stay counted when the run is resumed


def test_maps_are_made_of_the_others(tmp_path: Path) -> None:
    images, request = _images(5), Explanation("gradient", "top1", ())
    with pytest.raises(RuntimeFailure, match=r"^image '5': model.onnx gave NaN"):
        explain(_model(tmp_path, 0), images, request, tmp_path / "none")
    maps = explain(_model(tmp_path, 1), images, request, tmp_path / "maps")
    assert sorted(maps.labels, key=int) == [str(number) for number in range(COUNT) if number != 5]
    assert len(maps) == COUNT - 1
    assert "1 of 20" in maps.notes[-1]


def test_scores_that_depend_on_the_batch_of_pictures(tmp_path: Path) -> None:
    with pytest.raises(
        RuntimeFailure, match=r"change by up to .* the other images of a batch, although .* not on noise"
    ):
        evaluate(_model(tmp_path, 0, gated_models.first_row()), _images(), {}, SETTINGS)


@pytest.mark.parametrize("factor", [0.1, 10.0, -1.0])
def test_probabilities_of_noise_that_are_none_of_pictures(tmp_path: Path, factor: float) -> None:
    model = _model(tmp_path, 0, gated_models.scaled_probabilities(factor))
    with pytest.raises(RuntimeFailure, match="whose sum is off 1"):
        model.probabilities(np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(RuntimeFailure, match=r"^image '0': model.onnx gave probabilities"):
        evaluate(model, _images(), {}, SETTINGS)
