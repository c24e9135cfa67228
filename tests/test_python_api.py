"""What Python users give: forms of models, images, maps and settings; anything else is told in a sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.errors import AuditError, BadInput, OutOfMemory, RuntimeFailure
from tests.support import onnx_models

CPU = auditkit.Settings(device="cpu", precision="strict")
WEIGHTS = np.random.default_rng(0).standard_normal((3 * 8 * 8, 4)) / 10
ASKED: dict[str, Any] = {"size": (8, 8), "preset": "unit"}


def _scores(rows: Any) -> Any:
    return rows.reshape(len(rows), -1) @ WEIGHTS


def _pictures(count: int = 3) -> Any:
    return np.random.default_rng(1).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


def _file(folder: Path, size: int = 8) -> Path:
    return onnx_models.save(onnx_models.convnet(size=size, classes=4), folder)


def _fails(_rows: Any) -> Any:
    raise ConnectionError("endpoint\ngone.")


def _told(kind: type[AuditError], words: str, call: Callable[[], Any]) -> Exception:
    """The error of a call, which says the words in one line."""
    with pytest.raises(kind) as told:
        call()
    assert words in str(told.value)
    assert "\n" not in str(told.value)
    assert str(told.value).endswith(".")
    return told.value


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda rows: _scores(rows)[:, :, None], "gave ndarray (float64[2, 4, 1]) for 2 pictures; expected one row of"),
        (lambda rows: _scores(rows)[:, 0], "gave ndarray (float64[2]) for 2 pictures"),
        (lambda rows: _scores(rows)[:1], "gave ndarray (float64[1, 4]) for 2 pictures"),
        (lambda rows: _scores(rows)[:, :0], "gave ndarray (float64[2, 0]) for 2 pictures"),
        (lambda rows: [["a", "b"]] * len(rows), "gave list (str32[2, 2])"),
        (lambda rows: [[1.0, 2.0], [1.0]], "gave list that makes no array (ValueError: "),
        (lambda rows: np.array([[object()] * 3] * 2), "gave ndarray (object[2, 3])"),
        (lambda rows: _scores(rows) + 1j, "gave ndarray (complex128[2, 4])"),
        (lambda rows: None, "gave NoneType (object[])"),
        (lambda rows: _scores(rows) * np.nan, "gave NaN or infinity for 2 of 2 pictures"),
        (lambda rows: np.where(np.arange(4) == 1, np.inf, _scores(rows)), "gave NaN or infinity for 2 of 2 pictures"),
        (lambda rows: np.full((len(rows), 2), -np.inf), "gave NaN or infinity for 2 of 2 pictures"),
        (lambda: 1, "failed on float32[2, 3, 8, 8] with TypeError: "),
        (_fails, "failed on float32[2, 3, 8, 8] with ConnectionError: endpoint gone."),
    ],
)
def test_a_function_that_gives_no_scores_is_told(function: Any, words: str) -> None:
    _told(RuntimeFailure, f"the classifier function {words}", lambda: auditkit.load(function, **ASKED))


def test_what_a_function_gives_later_is_looked_at_too() -> None:
    model = auditkit.load(lambda rows: _scores(rows)[:, : 4 if len(rows) == 2 else 3], **ASKED)
    _told(RuntimeFailure, "expected one row of 4 scores for each picture, [3, 4]", lambda: model.predict(_pictures()))
    high = auditkit.load(lambda rows: np.where(rows[:, :1, 0, 0] == 1, 1.5, 0.5), **ASKED)
    assert high.signature.kind == "sigmoid"
    white = np.full((1, 8, 8, 3), 255, np.uint8)
    _told(RuntimeFailure, "gave 1.5, but its scores were taken for probabilities", lambda: high.predict(white))


def test_the_exception_of_a_function_is_chained_and_auditkits_own_passes() -> None:
    assert isinstance(_told(RuntimeFailure, "", lambda: auditkit.load(_fails, **ASKED)).__cause__, ConnectionError)
    said: list[int] = []

    def small(rows: Any) -> Any:
        said.append(len(rows))
        if len(rows) > 2:
            raise OutOfMemory("too many")
        return _scores(rows)

    model = auditkit.load(small, **ASKED)
    np.testing.assert_allclose(model.predict(_pictures(5)), _scores(model.preprocess(_pictures(5))))
    assert max(said[-3:]) <= 2


def test_a_score_of_minus_infinity_is_a_probability_of_0() -> None:
    model = auditkit.load(lambda rows: np.where(np.arange(4) == 1, -np.inf, _scores(rows)), **ASKED)
    found = model.probabilities(_pictures())
    assert not found[:, 1].any()
    np.testing.assert_allclose(found.sum(axis=1), 1)


@pytest.mark.parametrize("size", [(8,), (8.5, 8), (0, 8), (8, -8), ("a", 8), [8, 8, 3]])
def test_a_size_is_two_whole_numbers(size: Any, tmp_path: Path) -> None:
    words = f"size {size!r} is not a height and a width in whole pixels"
    _told(BadInput, words, lambda: auditkit.load(_scores, size=size, preset="unit"))
    _told(BadInput, words, lambda: auditkit.load(tmp_path / "any.onnx", size=size))
    _told(BadInput, words, lambda: auditkit.explain(_scores, _pictures(), tmp_path / "maps", "random", size=size))


def test_a_size_that_is_one_number_is_the_methods(tmp_path: Path) -> None:
    path = _file(tmp_path)
    for place, model in enumerate((path, auditkit.load(path, settings=CPU), auditkit.load(_scores, **ASKED))):
        found = auditkit.explain(model, _pictures(), tmp_path / str(place), "occlusion", labels=0, size=0.5)
        assert "size=0.5" in found.header.method
    for size in (8, "abc"):
        words = f"size {size!r} is not the height and width of the function's pictures"
        _told(BadInput, words, lambda s=size: auditkit.explain(_scores, _pictures(), tmp_path / "no", size=s))
    _told(BadInput, "random: unknown option 'size'",
          lambda: auditkit.explain(path, _pictures(), tmp_path / "no", "random", size=8))  # fmt: skip
    assert not (tmp_path / "no").exists()


def test_a_size_of_pictures_goes_to_a_file_and_not_to_an_open_one(tmp_path: Path) -> None:
    path = _file(tmp_path)
    opened = auditkit.load(path, size=(8, 8), settings=CPU)
    assert (opened.signature.height, opened.signature.width) == (8, 8)
    _told(BadInput, "height 9 was asked for", lambda: auditkit.load(path, size=(9, 8)))
    for more in ({"size": (8, 8)}, {"preset": "unit"}):
        name = next(iter(more))
        _told(BadInput, f"{name} {more[name]!r} cannot be set on an open classifier",
              lambda more=more: auditkit.explain(opened, _pictures(), tmp_path / "no", "random", **more))  # fmt: skip
        _told(
            BadInput,
            "cannot be set on an open classifier",
            lambda more=more: auditkit.evaluate(opened, _pictures(), **more),
        )
    _told(BadInput, "the model is NoneType", lambda: auditkit.load(None))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (_pictures()[0], "uint8[8, 8, 3], expected uint8 [N, height, width, 3 or 1] with pixels 0..255; for one"),
        (_pictures()[..., 0], "images are uint8[3, 8, 8], expected uint8"),
        (_pictures() / 255, "images are float64[3, 8, 8, 3], expected uint8"),
        (_pictures().transpose(0, 3, 1, 2), "images are uint8[3, 3, 8, 8], expected uint8"),
        (None, "images are given as NoneType; give a folder"),
        (list(_pictures()), "images are given as ndarray; give a folder"),
        (["no.png"], "there is no image no.png"),
        (["a" * 5000], "there is no image aaa"),
        ([], "holds no images"),
    ],
)
def test_images_of_another_form_are_refused(images: Any, words: str, tmp_path: Path) -> None:
    _told(BadInput, words, lambda: auditkit.explain(_scores, images, tmp_path / "maps", "random", **ASKED))
    _told(BadInput, words, lambda: auditkit.evaluate(_scores, images, **ASKED))
    if images is not None:
        _told(BadInput, words, lambda: auditkit.evaluate(_scores, _pictures(), infill="random", pool=images, **ASKED))


def test_images_may_be_a_list_of_files(tmp_path: Path) -> None:
    files = [tmp_path / "b.png", tmp_path / "a.png"]
    for file, picture in zip(files, _pictures(), strict=False):
        Image.fromarray(picture).save(file)
    found = auditkit.explain(_scores, files, tmp_path / "one", "occlusion", labels=2, **ASKED)
    assert found.labels == {"b.png": (2,), "a.png": (2,)}  # without the folders of absolute paths
    same = auditkit.explain(_scores, _pictures(2), tmp_path / "two", "occlusion", labels=2, **ASKED)
    np.testing.assert_array_equal(found.get("a.png", 2), same.get("1", 2))
    summary = auditkit.evaluate(_scores, list(map(str, files)), found, labels=2, steps=4, **ASKED)
    assert summary.value("insertion", "one") is not None
    with pytest.raises(BadInput, match="unknown metric 'insertoin'; did you mean 'insertion'"):
        summary.value("insertoin", "one")
    _told(BadInput, "a.png is listed 2 times", lambda: auditkit.evaluate(_scores, [*files, files[1]], **ASKED))


def test_labels_are_a_text_a_number_or_some_numbers(tmp_path: Path) -> None:
    for place, (labels, expected) in enumerate([(3, (3,)), (np.int64(3), (3,)), ([1, 3], (1, 3)), (np.array(2), (2,))]):
        found = auditkit.explain(_scores, _pictures(), tmp_path / str(place), "random", labels=labels, **ASKED)
        assert set(found.labels.values()) == {expected}
    for labels in ([], "", (), np.zeros(0, int)):
        words = "labels '' is not a label set"
        _told(BadInput, words, lambda labels=labels: auditkit.evaluate(_scores, _pictures(), labels=labels, **ASKED))
        _told(BadInput, words, lambda labels=labels: auditkit.explain(
            _scores, _pictures(), tmp_path / "no", "random", labels=labels, **ASKED))  # fmt: skip
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seed": None}, "seed None is not a whole number"),
        ({"seed": 1.5}, "seed 1.5 is not a whole number"),
        ({"draws": "4"}, "draws '4' is not a whole number"),
        ({"tie_orders": True}, "tie_orders True is not a whole number"),
        ({"eps1": "0.1"}, "eps1 '0.1' is not a number"),
        ({"confidence": None}, "confidence None is not a number"),
        ({"range": None}, "range None is not two kept fractions"),
        ({"range": (0.2, 0.4, 0.6)}, "range (0.2, 0.4, 0.6) is not two kept fractions"),
        ({"range": ("0.2", 0.6)}, "range '0.2' is not a number"),
        ({"controls": "no"}, "controls 'no' is neither True nor False"),
        ({"infill": 3}, "infill 3 is neither the name of an infill"),
        ({"infill": ["gray", None]}, "infill ['gray', None] is neither the name of an infill"),
        ({"heatmaps": None}, "heatmaps are NoneType; give a bundle"),
        ({"heatmaps": np.zeros((3, 8, 8))}, "heatmaps are ndarray; give a bundle"),
        ({"heatmaps": [np.zeros((3, 8, 8))]}, "heatmaps are ndarray; give a bundle"),
        ({"heatmaps": {"mine": 3}}, "heatmaps are int; give a bundle"),
    ],
)
def test_settings_of_another_type_are_refused(wrong: dict[str, Any], words: str) -> None:
    _told(BadInput, words, lambda: auditkit.evaluate(_scores, _pictures(), **{**ASKED, **wrong}))


@pytest.mark.parametrize("seed", [None, 1.5, "3", True])
def test_the_seed_of_maps_is_a_whole_number(seed: Any, tmp_path: Path) -> None:
    words = f"seed {seed!r} is not a whole number"
    _told(BadInput, words, lambda: auditkit.explain(_scores, _pictures(), tmp_path, "random", seed=seed, **ASKED))


def test_settings_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    more: dict[str, Any] = {"steps": 3, "out": tmp_path / "run", **ASKED}
    found = auditkit.evaluate(
        _scores, _pictures(), seed=np.int64(2), eps1=np.float32(0.5), eps2=None, range=np.array([0.25, 0.75]),
        infill=["gray", "blur"], controls=np.True_, **more,
    )  # fmt: skip
    said = found.settings
    assert (said.seed, said.eps1, said.range, said.infills) == (2, 0.5, (0.25, 0.75), ("gray", "blur"))
    assert (tmp_path / "run" / "results.json").is_file()


def test_an_evaluation_takes_a_file_and_a_function(tmp_path: Path) -> None:
    path = _file(tmp_path)
    opened = auditkit.load(path, preset="unit")
    expected = auditkit.evaluate(opened, _pictures(), steps=4)
    for model, more in ((path, {"preset": "unit"}), (str(path), {"preset": "unit"}), (opened.predict, ASKED)):
        found = auditkit.evaluate(model, _pictures(), steps=4, **more)
        assert str(found).splitlines()[0] == str(expected).splitlines()[0]
        for metric in expected.metrics:
            assert found.value(metric.name, metric.bundle) == pytest.approx(
                expected.value(metric.name, metric.bundle), abs=1e-5
            )
    assert found.settings.labels == expected.settings.labels


def test_an_audit_takes_a_file_with_a_preset_and_a_function(tmp_path: Path) -> None:
    path = _file(tmp_path)
    more: dict[str, Any] = {"method": "occlusion", "policy": "explore"}
    expected = auditkit.audit(path, _pictures(), tmp_path / "file", preset="unit", **more)
    assert (expected.verdict, expected.subject.card_origin.source) == ("measured", "preset unit")
    function = auditkit.load(path, preset="unit").predict
    results = auditkit.audit(function, _pictures(), tmp_path / "function", **more, **ASKED)
    assert (results.verdict, results.subject.model) == ("measured", "callable")
    assert (tmp_path / "function" / "report.html").is_file()
    for run in (expected, results):
        assert len(run.metrics) > 10
    names = [(metric.name, metric.bundle) for metric in results.metrics]
    assert names == [(metric.name, metric.bundle) for metric in expected.metrics]
    values = [metric.value for metric in expected.metrics]
    assert [metric.value for metric in results.metrics] == pytest.approx(values, abs=1e-5)


def test_an_audit_refuses_what_the_others_refuse(tmp_path: Path) -> None:
    opened = auditkit.load(_scores, **ASKED)
    out = tmp_path / "no"
    _told(
        BadInput,
        "preset 'unit' cannot be set on an open classifier",
        lambda: auditkit.audit(opened, _pictures(), out, preset="unit"),
    )
    _told(BadInput, "size 8 is not the height and width", lambda: auditkit.audit(_scores, _pictures(), out, size=8))
    _told(BadInput, "images are given as NoneType", lambda: auditkit.audit(_scores, None, out, **ASKED))
    _told(BadInput, "the model is int", lambda: auditkit.audit(3, _pictures(), out))
    assert not out.exists()


def test_a_prompt_shows_the_table_of_an_evaluation_and_a_line_of_a_classifier(tmp_path: Path) -> None:
    found = auditkit.evaluate(_scores, _pictures(), steps=3, **ASKED)
    assert repr(found) == str(found)
    assert repr(found).startswith("maps ")
    path = _file(tmp_path)
    opened = auditkit.load(path, settings=CPU)
    assert repr(opened) == f"OnnxClassifier({path.name}, input 8x8x3, 4 classes, cpu, strict)"
    assert repr(auditkit.load(_scores, **ASKED)) == "CallableClassifier(_scores, input 8x8x3, 4 classes)"


def test_a_function_may_change_the_pictures_that_it_is_given(tmp_path: Path) -> None:
    def score(rows: np.ndarray) -> np.ndarray:
        means = rows[:, :, :4].mean(axis=(2, 3))
        return np.exp(means) / np.exp(means).sum(axis=1, keepdims=True)

    def rude(rows: np.ndarray) -> np.ndarray:
        found = score(rows)
        rows -= 0.5
        return found

    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    found = [auditkit.explain(one, images, tmp_path / one.__name__, "occlusion", labels=[1], size=(8, 8), preset="unit")
             for one in (score, rude)]  # fmt: skip
    assert np.array_equal(*(maps.get("0", 1) for maps in found))


def test_examine_gives_what_the_model_relies_on(tmp_path: Path) -> None:
    drawn = draw(24, seed=5, tags="agree").images
    found = auditkit.examine(bundled_model("shortcut"), drawn, tmp_path / "examined", method="occlusion").findings
    assert [finding.kind for finding in found] == ["corner"]
    assert (tmp_path / "examined" / "report.html").is_file()
