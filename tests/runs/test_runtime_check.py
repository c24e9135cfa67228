"""The check of the runtime: rows run twice, and again on the CPU in strict float32 with masks made by numpy."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.errors import RuntimeFailure
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.masks import HostMasked, OnnxMasked, masked
from auditkit.records import to_json
from auditkit.runs.evaluation import runtime_check
from auditkit.runs.evaluation.runtime_check import MOST_BETWEEN_REPEATS, REFERENCE
from auditkit.runs.folder.figures import MOST_CHANGE, Runtime
from tests.metrics.test_protocols import Array
from tests.support import onnx_models

CPU = auditkit.Settings(device="cpu")
CLASSES, COUNT, SIZE = 4, 6, (8, 8)
ROWS = 9  # of each curve: eight steps


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_models.save(onnx_models.convnet(size=8, classes=CLASSES), tmp_path_factory.mktemp("file"))


@pytest.fixture
def images() -> Array:
    return np.random.default_rng(0).integers(0, 256, (COUNT, *SIZE, 3), dtype=np.uint8)


def opened(file: Path, precision: str = "auto", pretended: str | None = None) -> Any:
    """The classifier on the CPU, which may say that it runs in a precision that CPUs do not have."""
    model = auditkit.load(file, preset="unit", settings=replace(CPU, precision=precision))
    if pretended is not None:
        over = masked(model)  # made while it still told the truth
        model.settings = over.session.settings = replace(model.settings, precision=pretended)
    return model


def distort(monkeypatch: pytest.MonkeyPatch, change: Callable[[Array], Array], precision: str | None = None) -> None:
    """Masked rows get other probabilities than the model gives them, in one precision or in all."""
    run = OnnxMasked.run

    def wrong(self: Any, rows: Array, banks: Any) -> Any:
        for part, probabilities in run(self, rows, banks):
            mine = precision is None or self.session.settings.precision == precision
            yield part, change(probabilities) if mine else probabilities

    monkeypatch.setattr(OnnxMasked, "run", wrong)


def lower(by: float) -> Callable[[Array], Array]:
    """All probabilities a little nearer to zero."""
    return lambda probabilities: probabilities * np.float32(1 - by)


def evaluate(model: Any, images: Array, **settings: Any) -> Any:
    return auditkit.evaluate(model, images, **{"steps": 2, "saliency": "none", **settings})


# The same rows twice --------------------------------------------------------------------------------------------------


class Moody:
    """A function that moves a little every time it is asked."""

    def __init__(self, by: float) -> None:
        self.by, self.asked = by, 0

    def __call__(self, rows: Array) -> Array:
        self.asked += 1
        share = 0.6 + self.by * (self.asked % 2)
        return np.tile([share, 1 - share], (len(rows), 1))


def moody(by: float) -> Any:
    return auditkit.load(Moody(by), size=SIZE, preset="unit", overrides=auditkit.Overrides(kind="probabilities"))


def test_a_classifier_that_answers_otherwise_the_second_time_is_refused(images: Array, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match=r"differ by 0\.01 for the same images"):
        evaluate(moody(0.01), images, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_that_does_is_refused_too(file: Path, images: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    run, shares = OnnxMasked.run, cycle([np.float32(1), np.float32(0.99)])

    def other(self: Any, rows: Array, banks: Any) -> Any:
        share = next(shares)
        return ((part, probabilities * share) for part, probabilities in run(self, rows, banks))

    monkeypatch.setattr(OnnxMasked, "run", other)
    with pytest.raises(RuntimeFailure, match="for the same images"):
        evaluate(opened(file), images)


def test_a_last_digit_may_move_and_is_recorded(images: Array) -> None:
    by = MOST_BETWEEN_REPEATS / 2
    found = evaluate(moody(by), images)
    assert found.runtime.repeated == pytest.approx(by, rel=0.01)
    assert found.flags == ()


@pytest.mark.parametrize("kind", ["file", "function"])
def test_nan_is_told_as_nan(file: Path, images: Array, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    model = opened(file)
    model = model if kind == "file" else auditkit.load(model.predict, size=SIZE, preset="unit")
    for runner in (OnnxMasked, HostMasked):
        run = runner.run

        def broken(self: Any, rows: Array, banks: Any, run: Any = run) -> Any:
            return ((part, probabilities * np.nan) for part, probabilities in run(self, rows, banks))

        monkeypatch.setattr(runner, "run", broken)
    with pytest.raises(RuntimeFailure, match="NaN or infinite"):
        evaluate(model, images)


# Against the CPU ------------------------------------------------------------------------------------------------------


def test_a_sound_runtime_is_on_the_record(file: Path, images: Array, tmp_path: Path) -> None:
    """One image on the CPU, with the centred control; and with the first bundle's map, where it has one."""
    found = evaluate(opened(file), images, out=tmp_path / "run")
    runtime = found.runtime
    assert (runtime.rows, runtime.repeated, runtime.note) == (ROWS, 0, None)
    assert max(runtime.largest, runtime.mean, runtime.insertion, runtime.alpha, runtime.beta) < 1e-6
    written = json.loads((tmp_path / "run" / "results.json").read_text())["runtime"]
    assert written == to_json(runtime)
    assert written["reference"].startswith("the file on the CPU, strict float32")
    bundle = auditkit.Bundle(tmp_path / "maps")
    maps = np.random.default_rng(1).random((CLASSES, *SIZE), dtype=np.float32)
    bundle.add(["0"] * CLASSES, list(range(CLASSES)), maps)
    assert evaluate(opened(file), images, heatmaps=bundle).runtime.rows == 2 * ROWS


def test_a_function_has_no_reference(file: Path, images: Array, tmp_path: Path) -> None:
    model = auditkit.load(opened(file).predict, size=SIZE, preset="unit")
    runtime = evaluate(model, images, out=tmp_path / "run").runtime
    assert (runtime.largest, runtime.insertion, runtime.matters) == (None, None, False)
    written = json.loads((tmp_path / "run" / "results.json").read_text())["runtime"]
    assert (written["reference"], written["largest"], written["rows"]) == (None, None, ROWS)


@pytest.mark.parametrize("by", [0.001, 0.2])
def test_a_device_that_is_off_is_measured_and_flagged(
    file: Path, images: Array, monkeypatch: pytest.MonkeyPatch, by: float
) -> None:
    """Lower by a share: every probability, and so every area; alpha and beta are ratios, and stay."""
    sound = evaluate(opened(file), images)
    distort(monkeypatch, lower(by))
    found = evaluate(opened(file, precision="strict"), images)
    runtime = found.runtime
    assert 0.2 * by < runtime.mean <= runtime.largest <= by * 1.001
    assert runtime.insertion == pytest.approx(by * sound.value("insertion", "control:centred-gaussian"), rel=0.6)
    assert runtime.matters == (by == 0.2)
    doubts = [text for text in found.flag_texts() if "differ from strict float32" in text]
    assert len(doubts) == sum(flag.kind == "runtime-off" for flag in found.flags)
    assert len(doubts) == runtime.matters
    assert all(f"insertion {runtime.insertion:.2g}" in flag for flag in doubts)


def test_wrong_masks_do_not_go_unseen(file: Path, images: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference makes its own: one pixel too many is a difference."""
    run = OnnxMasked.run

    def shifted(self: Any, rows: Array, banks: Any) -> Any:
        moved = rows.copy()
        moved[:, 3] = np.maximum(moved[:, 3] - 8, 0)
        return run(self, moved, banks)

    monkeypatch.setattr(OnnxMasked, "run", shifted)
    runtime = evaluate(opened(file), images).runtime
    assert runtime.largest > 1e-3
    assert runtime.log_odds > 1e-3


# Where the precision is left open -------------------------------------------------------------------------------------


def test_auto_goes_to_strict_where_it_matters(
    file: Path, images: Array, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And says so, in the flags, in the record, and in what the figures were computed with."""
    sound = evaluate(opened(file), images)
    distort(monkeypatch, lower(0.05), precision="tf32")
    found = evaluate(opened(file, pretended="tf32"), images, out=tmp_path / "run")
    assert found.runtime.note.startswith("tf32 changes insertion by 0.0")
    assert found.runtime.note.endswith("on average, so strict float32 is used")
    assert found.runtime.largest < 1e-6  # of what was used in the end
    assert found.runtime.note in found.flag_texts()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["environment"]["precision"] == "strict"
    assert results["runtime"]["note"] == found.runtime.note
    for metric in sound.metrics:
        assert found.value(metric.name, metric.bundle) == pytest.approx(sound.value(metric.name, metric.bundle))
    again = evaluate(opened(file, pretended="tf32"), images, out=tmp_path / "run")  # it goes on, it does not differ
    assert str(again) == str(found)


def test_the_reference_and_what_is_used_instead_are_strict(
    file: Path, images: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is opened anew on the CPU to compare with, and where the run asked to be, to go on with."""
    model, init, made = opened(file, pretended="tf32"), OnnxClassifier.__init__, []

    def recorded(self: Any, *given: Any) -> None:
        made.append(given[-1])
        init(self, *given)

    monkeypatch.setattr(OnnxClassifier, "__init__", recorded)
    distort(monkeypatch, lower(0.05), precision="tf32")
    evaluate(model, images)
    reference, used = made
    assert (reference.device, reference.precision) == ("cpu", "strict")
    assert used == replace(model.requested, precision="strict")


def test_the_figure_that_changes_most_is_named(file: Path, images: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less on parts of the picture alone: the ratio to the whole changes more than the area."""

    def partly(probabilities: Array) -> Array:
        kept = probabilities.copy()
        kept[:-1] *= np.float32(0.95)
        return kept

    distort(monkeypatch, partly, precision="tf32")
    monkeypatch.setattr(runtime_check, "MOST_BETWEEN_GROUPS", 1.0)  # it goes by the position in a batch
    note = evaluate(opened(file, pretended="tf32"), images).runtime.note
    assert note.startswith(("tf32 changes alpha", "tf32 changes beta"))


def test_auto_stays_where_it_does_not_matter(file: Path, images: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    distort(monkeypatch, lower(MOST_CHANGE / 4), precision="tf32")
    found = evaluate(opened(file, pretended="tf32"), images)
    assert found.runtime.note is None
    assert 0 < found.runtime.largest <= MOST_CHANGE / 4
    assert found.flags == ()


def test_a_precision_that_was_asked_for_is_kept_and_flagged(
    file: Path, images: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    distort(monkeypatch, lower(0.05), precision="tf32")
    model = opened(file, pretended="tf32")
    model.requested = replace(model.requested, precision="tf32")
    found = evaluate(model, images)
    assert found.runtime.note is None
    assert any(flag.kind == "runtime-off" for flag in found.flags)


def test_strict_on_the_cpu_does_not_wait_for_its_own_check(
    file: Path, images: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison is made aside, and once."""
    calls = []
    compared = runtime_check._compared
    monkeypatch.setattr(runtime_check, "_compared", lambda *given: calls.append(1) or compared(*given))
    evaluate(opened(file), images)
    assert calls == [1]


@pytest.mark.parametrize(
    ("changes", "most", "matters"),
    [
        ((None, None, None), None, False), ((MOST_CHANGE, MOST_CHANGE, MOST_CHANGE), MOST_CHANGE, False),
        ((0.0, 0.003, 0.001), 0.003, True), ((0.0, 0.0, 0.0021), 0.0021, True),
    ],
)  # fmt: skip
def test_what_matters(changes: tuple[float | None, ...], most: float | None, matters: bool) -> None:
    runtime = Runtime(None if most is None else REFERENCE, 1, 0.0, 0.0, 0.0, *changes, note=None)
    assert (runtime.largest_change, runtime.matters) == (most, matters)
