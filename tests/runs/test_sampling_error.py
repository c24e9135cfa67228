"""How far figures may be off because their curves have few points: said, true, and computed again from the rows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.errors import BadInput
from auditkit.metrics.curves import area
from auditkit.metrics.faithfulness import completeness, soundness
from auditkit.records import to_json
from auditkit.report.load_run import load
from auditkit.report.sections import identity
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.figures import SamplingError
from auditkit.runs.summary.sampling_error import COMMON, USUAL
from auditkit.runs.summary.summarise import Summary
from auditkit.runs.summary.wording import sampling_remarks
from auditkit.verdict.verify import Originals, Sampling, verify
from tests.report.test_html import made_run
from tests.runs.test_summary import COUNT, FAITHFUL
from tests.support import onnx_models
from tests.verdict.test_verify import _forged_rows as forged_rows

SIDE = (12, 14)
PLAIN: dict[str, Any] = {"saliency": "none", "labels": "0,1", "infill": "gray"}
FIGURES = ("insertion", *FAITHFUL)


def sudden(pictures: Any) -> Any:
    """Two classes; the first is seen from a third of the brightness on, all at once."""
    bright = pictures.reshape(len(pictures), -1).mean(axis=1)
    first = 1 / (1 + np.exp(-30 * (bright - 0.1)))
    return np.stack([first, 1 - first], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    rng = np.random.default_rng(0)
    pictures = rng.integers(100, 256, (COUNT, *SIDE, 3), dtype=np.uint8)
    writer = auditkit.Bundle(tmp_path_factory.mktemp("points") / "maps")
    for index in range(COUNT):
        maps = rng.standard_normal((2, *SIDE)).astype(np.float32)
        writer.add([str(index)] * 2, [0, 1], maps, layout="NHW")
    return auditkit.load(sudden, size=SIDE, preset="imagenet"), pictures, writer.path


def run(given: tuple[Any, Any, Path], **asked: Any) -> Summary:
    model, pictures, maps = given
    return auditkit.evaluate(model, pictures, maps, **{**PLAIN, **asked})


def said(found: Summary, source: str = "maps") -> SamplingError:
    (entry,) = (entry for entry in found.points if entry.bundle == source)
    return entry


# The error of each area -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", ["6", "9", "16"])
def test_areas_of_a_fixed_number_of_steps_say_their_error(given: tuple[Any, Any, Path], steps: str) -> None:
    few, all_of_them = (run(given, steps=one).rows for one in (steps, "exact"))
    for name in ("insertion", "deletion"):
        off = [(abs(a[name] - b[name]), a[f"{name}_error"], b[f"{name}_error"])
               for a, b in zip(few, all_of_them, strict=True) if a[name] is not None]  # fmt: skip
        true, errors, of_exact = np.array(off).T
        assert (true <= errors + 1e-9).mean() > 0.9
        assert errors.min() > 0
        assert (of_exact == 0).all()


@pytest.mark.parametrize("protocol", ["paper-code", "rise", "xplique", "openvino", "torchcam"])
def test_the_error_of_a_protocol_is_against_the_exact_curve(given: tuple[Any, Any, Path], protocol: str) -> None:
    """What its own rule makes is known: the rest hides between its points."""
    found = run(given, protocol=protocol, steps=7, labels="0,1", infill=None, controls=False)
    for row in found.rows:
        counts, values = np.array(row["keep_counts"]), np.array(row["curve"], np.float64)
        if counts[0] == 0 and counts[-1] == SIDE[0] * SIDE[1]:
            assert row["insertion_error"] >= abs(area(counts, values) - row["insertion"]) - 1e-6
        assert row["insertion_error"] > 0
    assert said(found).error > 0


def test_a_protocol_of_all_pixels_is_exact(given: tuple[Any, Any, Path]) -> None:
    found = run(given, protocol="paper", infill=None, controls=False)
    assert {row["insertion_error"] for row in found.rows} == {0.0}
    assert said(found).error == 0


# The error of the figures ---------------------------------------------------------------------------------------------


def by_hand(found: Summary, source: str) -> dict[str, float]:
    """Each figure's error, straight from the rows."""
    rows = [row for row in found.rows if row["bundle"] == source]
    off: dict[str, dict[str, list[float]]] = {}
    for image in dict.fromkeys(row["image"] for row in rows):
        mine = [row for row in rows if row["image"] == image]
        figures = [_figures(mine, sign * USUAL) for sign in (0, 1, -1)]
        for name, values in figures[0].items():
            both = np.abs(np.array([one[name] for one in figures[1:]]) - values).max(axis=0)
            off.setdefault(name, {})[image] = both.tolist()
    return {name: _together(list(held.values())) for name, held in off.items()}


def _together(by_image: list[list[float]]) -> float:
    values = np.concatenate(by_image)
    chance = 2 * np.sqrt(sum(sum(own) ** 2 for own in by_image)) / len(values)
    return float(np.hypot(COMMON * values.mean(), chance))


def _figures(rows: list[dict[str, Any]], errors: float) -> dict[str, list[float]]:
    areas = np.clip([row["insertion"] + errors * row["insertion_error"] for row in rows], 0, 1)
    prob = [row["prob"] for row in rows]
    alphas, betas = completeness(areas, prob), soundness(areas, prob)
    second = [a for a, row in zip(alphas, rows, strict=True) if not row["predicted"] and row["prob"] >= 0.01]
    found = {"insertion": areas.tolist(), "completeness": alphas.tolist(), "soundness": betas.tolist(),
             "worst_completeness": [alphas.min()], "worst_soundness": [betas.min()]}  # fmt: skip
    return found | ({"best_effort": [min(second)]} if second else {})


@pytest.mark.parametrize("steps", ["8", "auto:0.05"])
def test_points_follow_from_the_rows(given: tuple[Any, Any, Path], steps: str) -> None:
    found = run(given, steps=steps)
    for entry in found.points:
        expected = by_hand(found, entry.bundle)
        assert entry.error == pytest.approx(max(expected.values()))
        assert expected[entry.name] == pytest.approx(entry.error)
        assert (entry.infill, entry.n) == ("gray", COUNT)
    assert {entry.bundle for entry in found.points} == {metric.bundle for metric in found.metrics} - {None}


@pytest.mark.parametrize("steps", ["6", "12", "auto:0.05", "auto"])
def test_no_figure_is_off_by_more_than_said(given: tuple[Any, Any, Path], steps: str) -> None:
    few, all_of_them = run(given, steps=steps), run(given, steps="exact")
    for entry in few.points:
        for name in FIGURES:
            one, other = (found.value(name, entry.bundle) for found in (few, all_of_them))
            assert one is None or abs(one - other) <= entry.error
    assert {entry.error for entry in all_of_them.points} == {0.0}


def test_every_infill_and_control_has_its_own(given: tuple[Any, Any, Path]) -> None:
    found = run(given, steps=4, infill=("gray", "blur"))
    listed = [(entry.bundle, entry.infill) for entry in found.points]
    assert listed == list(dict.fromkeys((metric.bundle, metric.infill) for metric in found.metrics if metric.bundle))
    assert len(listed) == len(set(listed)) >= 2 * 5


def test_two_ends_tell_nothing_of_the_error(given: tuple[Any, Any, Path]) -> None:
    found = run(given, steps=1)
    assert {(entry.name, entry.error) for entry in found.points} == {(None, None)}
    assert "points: with 1 step, it is unknown how far figures of maps are off; --steps auto finds" in str(found)


# What is said of it ---------------------------------------------------------------------------------------------------


def test_tables_say_when_points_are_too_few(given: tuple[Any, Any, Path], tmp_path: Path) -> None:
    found = run(given, steps=6, out=tmp_path / "run")
    line = f"points: with 6 steps, a figure of maps may be off by {said(found).error:.3f}; --steps auto finds what it"
    assert said(found).error > 0.005
    assert line in str(found)
    assert f"<p>{line}" in found._repr_html_()
    assert json.loads((tmp_path / "run" / "results.json").read_text())["points"] == to_json(found.points)
    assert "points:" not in str(run(given, steps="exact"))


def point(bundle: str, infill: str, error: float | None) -> SamplingError:
    return SamplingError("insertion", bundle, infill, error, {}, 12)


def test_a_report_says_how_far_points_may_be_off_where_a_run_does(tmp_path: Path) -> None:
    errors = (("maps", 0.0131), ("late", None), ("control:random", 0.2))
    points = tuple(point(bundle, "gray", error) for bundle, error in errors)
    loaded = load(made_run(tmp_path / "run"))
    told, without = (dict(identity(replace(loaded.results, points=some), loaded.digest))["Precision, measured"]
                     for some in (points, ()))  # fmt: skip
    assert told[len(without) :] == [
        ("error by the number of points, maps, gray", "0.013", False),
        ("error by the number of points, late, gray", "not known", False),
    ]


SETTINGS = Evaluation(steps=auditkit.metrics.curves.Steps("uniform", count=16))


@pytest.mark.parametrize(
    ("errors", "told"),
    [([0.004, 0.005], None), ([0.004, 0.0131], "0.013"), ([None, 0.1], "unknown"), ([0.1, None], "unknown")],
)
def test_the_worst_infill_of_a_bundle_is_told(errors: list[float | None], told: str | None) -> None:
    points = [point("a", str(number), error) for number, error in enumerate(errors)]
    points.append(point("control:random", "0", 0.3))
    lines = sampling_remarks(points, SETTINGS)
    assert len(lines) == (told is not None)
    assert all(str(told) in line and "of a " in line for line in lines)


def test_the_way_out_is_one_that_there_is(given: tuple[Any, Any, Path]) -> None:
    points = [point("a", "gray", 0.01)]
    auto = replace(SETTINGS, steps=auditkit.metrics.curves.Steps("auto", tolerance=5e-3))
    assert sampling_remarks(points, auto) == [
        "points: with steps auto:0.005, a figure of a may be off by 0.010; --steps auto:0.001 asks for more points"
    ]
    (line,) = sampling_remarks(points, Evaluation(protocol="xplique", steps=SETTINGS.steps))
    assert line.endswith("without --protocol, --steps auto finds what it needs")


# An error that was made smaller ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "where"), [("8", "rows"), ("auto:0.05", "sample")])
def test_verify_finds_errors_that_were_made_smaller(tmp_path: Path, steps: str, where: str) -> None:
    model = onnx_models.save(onnx_models.convnet(size=8, classes=3), tmp_path)
    pictures = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pictures)
    opened = auditkit.load(model, preset="unit", settings=auditkit.Settings(device="cpu"))
    asked: dict[str, Any] = {"out": tmp_path / "run", "steps": steps, "saliency": "none", "range": (0.0, 0.9)}
    auditkit.evaluate(opened, tmp_path / "images.npz", **asked)
    originals = Originals(model, tmp_path / "images.npz", device="cpu")
    assert verify(tmp_path / "run", originals, Sampling(share=1.0)).problems == []
    forged_rows(tmp_path / "run", lambda rows: [row | {"insertion_error": 1e-6} for row in rows])
    found = verify(tmp_path / "run", originals, Sampling(share=1.0))
    assert {check.name for check in found.checks if check.problems} >= {where}
    assert any("error" in problem for problem in found.problems)


# Random infills -------------------------------------------------------------------------------------------------------


def test_fewer_random_infills_than_asked_for_are_refused(given: tuple[Any, Any, Path]) -> None:
    model, pictures, maps = given
    asked = {**PLAIN, "infill": "random", "steps": 2, "controls": False}
    with pytest.raises(
        BadInput, match="draws 4 pictures per point, but the pool has 2 other than that of '0'; give a la"
    ):
        auditkit.evaluate(model, pictures[:3], maps, **asked)
    assert auditkit.evaluate(model, pictures[:3], maps, draws=2, **asked).value("insertion", "maps") is not None
    copies = pictures[[0, 1, 1, 1, 1, 1]]  # of one picture, which is another's infill and never its own
    with pytest.raises(BadInput, match="has 1 other than that of '1'"):
        auditkit.evaluate(model, copies, maps, draws=2, **asked)
