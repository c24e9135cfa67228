"""Two runs side by side: differences that are known beforehand, on images that are the same, or none at all."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.errors import BadInput
from auditkit.metrics.statistics import paired_difference
from auditkit.metrics.values import Note
from auditkit.records import to_json
from auditkit.report import examination as relies
from auditkit.runs.comparison.compare import compare
from auditkit.runs.folder.results import Comparison, DifferenceResult
from tests.support import synthetic_runs
from tests.support.synthetic_runs import Command, Figure, Row, check, command, digest, edges, policy, rows, run

__all__ = ["command"]  # a fixture
COUNT = 12
NOISE = np.random.default_rng(5).random((2, COUNT, 3))


def plus(shift: float, spread: float = 0.02) -> dict[str, Figure]:
    """Figures of each image and label, all of them `shift` higher on average and a little apart."""

    def figure(base: float) -> Figure:
        return lambda image, label: base + 0.2 * NOISE[0, image, label] + shift + spread * NOISE[1, image, label]

    return {"insertion": figure(0.4), "deletion": figure(0.2), "alpha": figure(0.3), "beta": figure(0.5)}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """A run of its own folder each time."""

    def make(some: list[Row], **said: Any) -> Path:
        return run(tmp_path / f"run{len(list(tmp_path.iterdir()))}", some, **said)

    return make


def of(found: Comparison, name: str, infill: str = "gray") -> DifferenceResult:
    (one,) = (held for held in found.differences if (held.name, held.infill) == (name, infill))
    return one


def test_a_known_difference_is_found_whatever_the_order_of_the_images(made: Callable[..., Path]) -> None:
    before, after = plus(0.0), plus(0.1)
    a = made(rows(range(COUNT), before))
    b = made(rows(reversed(range(COUNT)), after), units=5)
    found = compare(a, b)
    assert (found.shared_images, found.only_a, found.only_b) == (COUNT, 0, 0)
    labels = {"insertion": [0], "completeness": [0, 1, 2], "soundness": [0, 1, 2], "deletion": [0]}
    columns = {"insertion": "insertion", "deletion": "deletion", "completeness": "alpha", "soundness": "beta"}
    for name, own in labels.items():
        pairs = [(image, label) for image in range(COUNT) for label in own]
        mine, theirs = ([figures[columns[name]](*pair) for pair in pairs] for figures in (before, after))
        expected = paired_difference(theirs, mine, [image for image, _ in pairs])
        one = of(found, name)
        assert (one.value, one.n) == (pytest.approx(expected.value), COUNT)
        assert (one.low, one.high) == pytest.approx((expected.low, expected.high), abs=2e-3)
        assert one.value_b - one.value_a == pytest.approx(one.value)
        assert one.better is (name != "deletion")  # of which lower is better


def test_worst_cases_are_paired_by_image(made: Callable[..., Path]) -> None:
    a, b = made(rows(range(COUNT), plus(0.0))), made(rows(range(COUNT), plus(0.05)))
    least = [[min(plus(shift)["alpha"](image, label) for label in range(3)) for image in range(COUNT)]
             for shift in (0.0, 0.05)]  # fmt: skip
    expected = paired_difference(least[1], least[0])
    one = of(compare(a, b), "worst_completeness")
    assert (one.value, one.low, one.high, one.n) == (expected.value, expected.low, expected.high, expected.n)


def test_a_run_against_itself_shows_nothing(made: Callable[..., Path]) -> None:
    found = compare(*(made(rows(range(COUNT), plus(0.0))) for _ in range(2)))
    assert {(one.value, one.low, one.high) for one in found.differences} == {(0.0, 0.0, 0.0)}
    assert {one.better for one in found.differences} == {None}
    assert not found.notes


def test_an_interval_that_holds_0_or_the_runtimes_own_error_shows_nothing(made: Callable[..., Path]) -> None:
    a = made(rows(range(COUNT), plus(0.0)))
    apart = {"insertion": lambda image, label: plus(0.0)["insertion"](image, label) + 0.1 * (-1) ** image}
    assert of(compare(a, made(rows(range(COUNT), apart))), "insertion").better is None
    small = made(rows(range(COUNT), plus(1e-3, spread=0.0)))
    fine = made(rows(range(COUNT), plus(0.0, spread=0.0)))
    assert of(compare(fine, small), "insertion").better
    rough = made(rows(range(COUNT), plus(1e-3, spread=0.0)), runtime={"insertion": 2e-3})
    assert of(compare(fine, rough), "insertion").better is None
    assert of(compare(fine, rough), "completeness").better  # whose error is none


@pytest.mark.parametrize(("error", "better"), [(0.0, True), (0.01, True), (0.06, None)])
def test_log_odds_have_a_runtime_error_of_their_own(
    made: Callable[..., Path], error: float, better: bool | None
) -> None:
    """A margin is off by up to twice the error of an area; 0.1 is what the maps have gained."""

    def odds(gain: float) -> dict[str, Any]:
        return {"log_odds": lambda _image, label: [1 + gain if other == label else 0.0 for other in range(3)]}

    a = made(rows(range(COUNT), plus(0.0) | odds(0.0)))
    b = made(rows(range(COUNT), plus(0.0) | odds(0.1)), runtime={"log_odds": error})
    for name in ("label_specificity", "other_label_evidence"):
        found = of(compare(a, b), name)
        assert found.value == pytest.approx(0.1, abs=1e-6)
        assert found.better is better


@pytest.mark.parametrize("count", [1, 4])
def test_fewer_than_five_images_have_neither_an_interval_nor_a_direction(made: Callable[..., Path], count: int) -> None:
    found = compare(made(rows(range(count), plus(0.0))), made(rows(range(count), plus(0.3, spread=0.1))))
    assert of(found, "insertion").value == pytest.approx(0.34, abs=0.04)
    for one in found.differences:
        assert (one.low, one.high, one.better, one.n) == (None, None, None, count)
        assert one.note == Note("few-images")


def test_five_images_have_an_interval_and_a_direction(made: Callable[..., Path]) -> None:
    a, b = made(rows(range(5), plus(0.0))), made(rows(range(5), plus(0.3, spread=0.1)))
    found = of(compare(a, b), "insertion")
    assert found.low is not None
    assert found.high is not None
    assert 0.3 < found.low < found.value < found.high
    assert (found.better, found.n, found.note) == (True, 5, None)


# Which images are the same --------------------------------------------------------------------------------------------


def other_images(name: str) -> dict[str, Any]:
    return {"images": {"digest": digest(name)}}


def test_only_images_of_the_same_name_and_content_are_compared(made: Callable[..., Path]) -> None:
    a = made(rows(range(8), plus(0.0)) + edges(range(8)))
    some = rows(range(4, COUNT), plus(0.1))
    b = made(some + edges(range(4, 6), content="repainted") + edges(range(6, COUNT)), subject=other_images("other"))
    found = compare(a, b)
    assert (found.shared_images, found.only_a, found.only_b) == (2, 6, 6)
    assert "2 images have the same name but different content and are left out" in found.notes
    theirs, mine = ([plus(shift)["insertion"](image, 0) for image in (6, 7)] for shift in (0.1, 0.0))
    assert of(found, "insertion").value == pytest.approx(np.mean(theirs) - np.mean(mine))


@pytest.mark.parametrize("other_frame", [False, True])
def test_without_proof_of_their_content_a_note_says_so(made: Callable[..., Path], other_frame: bool) -> None:
    """Edges prove nothing where pictures reach the two networks in different frames."""
    control = edges(range(COUNT)) if other_frame else []
    card = {"card": {"size": [9, 9]}} if other_frame else {}
    a = made(rows(range(COUNT), plus(0.0)) + control)
    b = made(rows(range(COUNT), plus(0.1)) + control, subject=other_images("other") | card)
    found = compare(a, b)
    assert found.shared_images == COUNT
    assert any("nothing in them proves" in note for note in found.notes)


def test_nothing_is_compared_without_a_shared_image(made: Callable[..., Path]) -> None:
    a = made(rows(range(4), plus(0.0)) + edges(range(4)))
    with pytest.raises(BadInput, match=r"'0\.png' in the first, '5\.png' in the second"):
        compare(a, made(rows(range(5, 9), plus(0.0)), subject=other_images("other")))
    repainted = rows(range(4), plus(0.0)) + edges(range(4), content="repainted")
    with pytest.raises(BadInput, match="4 images of the same name have different contents"):
        compare(a, made(repainted, subject=other_images("other")))


def test_models_that_predict_other_labels_are_compared_on_every_image(made: Callable[..., Path]) -> None:
    """Each by the map of its own prediction: leaving such images out would flatter the one that is wrong there."""
    a = made(rows(range(COUNT), plus(0.0)))
    b = made(rows(range(COUNT), plus(0.1), predicted=lambda image: image % 2))
    found = compare(a, b)
    expected = np.mean([plus(0.1)["insertion"](i, i % 2) - plus(0.0)["insertion"](i, 0) for i in range(COUNT)])
    assert of(found, "insertion").value == pytest.approx(expected)
    assert of(found, "insertion").n == COUNT
    assert any(f"the predicted label differs on {COUNT // 2} of {COUNT} images" in note for note in found.notes)


def test_accuracy_is_compared_where_truth_is_known(made: Callable[..., Path]) -> None:
    a = made(rows(range(COUNT), plus(0.0)))
    b = made(rows(range(COUNT), plus(0.0), predicted=lambda image: int(image < 3)))
    found = of(compare(a, b), "accuracy", infill="")
    assert (found.value_a, found.value_b, found.value) == (1.0, 0.75, -0.25)
    assert found.bundle_a is None
    untold = made(rows(range(COUNT), plus(0.0), truth=None))
    assert "accuracy" not in {one.name for one in compare(a, untold).differences}


# Findings about the model, and other models ---------------------------------------------------------------------------


def finding(severity: str = "high", **values: Any) -> dict[str, Any]:
    """A finding of an examination."""
    return {"kind": "corner", "exchange": "corners", "place": "the corners", "label": None, "follows": 0.9,
            "low": 0.8, "high": 1.0, "chance": 0.1, "limit": 0.4, "n": 60, "images": 12, "severity": severity,
            "examples": [], "allowed": "", **values}  # fmt: skip


def examination(*findings: dict[str, Any]) -> dict[str, Any]:
    return {"method": "known", "images": 30, "proposing": 15, "passes": 900, "proposals": len(findings), "rates": [],
            "probes": [], "zones": [], "findings": list(findings)}  # fmt: skip


OTHER_MODEL = {"model": {"sha256": digest("other"), "identity": digest("other")}}


def test_a_shortcut_of_the_second_model_comes_first(made: Callable[..., Path], command: Command) -> None:
    honest = made(rows(range(COUNT), plus(0.0)), examination=examination())
    relying = made(rows(range(COUNT), plus(0.1)), examination=examination(finding()), subject=OTHER_MODEL)
    comparison = compare(honest, relying)
    (change,) = comparison.findings
    assert change.before is None
    assert change.after is not None
    assert (change.after.kind, change.after.severity) == ("corner", "high")
    assert (comparison.a.examined, comparison.b.examined) == (30, 30)
    screen = " ".join(command("compare", honest, relying).out.split())
    sentence = ("Only in B: The model relies on something in the corners, such as a tag or a stamp (severity high, "
                "followed in 90 % of the exchanges).")  # fmt: skip
    assert sentence in screen
    assert screen.index(sentence) < screen.index("insertion")
    in_json = json.loads(command("compare", honest, relying, "--json").out)["findings"]
    assert [(entry["before"], entry["after"]["kind"]) for entry in in_json] == [(None, "corner")]


def test_another_model_is_higher_or_lower_and_never_better(made: Callable[..., Path], command: Command) -> None:
    a = made(rows(range(COUNT), plus(0.0)))
    b = made(rows(range(COUNT), plus(0.1)), subject=OTHER_MODEL)
    comparison = compare(a, b)
    changes = {entry.name: (entry.change, entry.better) for entry in comparison.differences}
    assert changes["insertion"] == changes["deletion"] == ("higher", None)
    assert any("no difference says which run is better" in note for note in comparison.notes)
    screen = command("compare", a, b).out
    assert "↑ higher" in screen
    assert "↑ better" not in screen
    assert "↑ worse" not in screen
    assert "↑ better" in command("compare", a, made(rows(range(COUNT), plus(0.1)))).out


CARD = {"scale": 1 / 255, "mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}


@pytest.mark.parametrize(
    ("subject", "difference"),
    [
        ({"card": {"size": [9, 9]}}, "size (8 8 / 9 9)"),
        ({"card": {"resize": 9}}, "resize (none / 9)"),
        ({"card": {"crop": "center"}}, "crop (none / center)"),
        ({"card": {"interpolation": "box"}}, "interpolation (bicubic / box)"),
        ({"card": {"channels": "BGR"}}, "channels (RGB / BGR)"),
        ({"card": {"exif_orientation": False}}, "exif_orientation (none / False)"),
        ({"card": {"scale": 1.0}}, "scale (0.00392157 / 1)"),
        ({"card": {"mean": [0.5, 0.5, 0.5]}}, "mean (0 0 0 / 0.5 0.5 0.5)"),
        ({"card": {"std": [0.5, 0.5, 0.5]}}, "std (1 1 1 / 0.5 0.5 0.5)"),
        ({"input": "other"}, "input (image / other)"),
        ({"output": "other"}, "output (logits / other)"),
        ({"kind": "sigmoids"}, "kind (logits / sigmoids)"),
        ({"layout": "NHWC"}, "layout (NCHW / NHWC)"),
    ],
)
def test_a_model_prepared_differently_is_never_better(
    made: Callable[..., Path], subject: dict[str, Any], difference: str
) -> None:
    a = made(rows(range(5), plus(0.0)), subject={"card": CARD})
    prepared = {**subject, "card": {**CARD, **subject.get("card", {})}}
    comparison = compare(a, made(rows(range(5), plus(0.3)), subject=prepared))
    changes = {entry.name: (entry.change, entry.better) for entry in comparison.differences}
    assert changes["insertion"] == changes["deletion"] == ("higher", None)
    assert f"prepared differently: {difference}" in comparison.notes
    assert any(note.startswith("the model was prepared diff") for note in comparison.notes)


def test_preprocessing_that_is_assumed_is_noted(made: Callable[..., Path]) -> None:
    assumed = {"source": "preset imagenet (assumed)", "sha256": None, "assumed": "assumed"}
    a = made(rows(range(5), plus(0.0)))
    b = made(rows(range(5), plus(0.3)), subject={"card_origin": assumed})
    notes = compare(a, b).notes
    assert [note for note in notes if "assumed" in note] == [
        "the preprocessing of the second run is assumed",
    ]


def test_of_two_functions_nobody_knows_whether_they_are_the_same(made: Callable[..., Path]) -> None:
    a, b = (made(rows(range(COUNT), plus(shift)), subject={"model": "callable"}) for shift in (0.0, 0.1))
    comparison = compare(a, b)
    assert {entry.better for entry in comparison.differences} == {None}
    assert any(note.startswith("the models are functions, which may differ") for note in comparison.notes)


@pytest.mark.parametrize(
    ("before", "after", "sentences"),
    [
        (examination(), examination(), ["No shortcut was found in either run (A: 30 images, B: 30 images)."]),
        (examination(finding("medium")), examination(finding()), ["In A and in B: ", "A: severity medium, ",
                                                                  "B: severity high, "]),
        (examination(finding()), examination(), ["Only in A: The model relies on something in the corners"]),
        (examination(finding(allowed="It is part of it.")), examination(finding()), [
            "A: severity high, followed in 90 % of the exchanges, allowed by the policy: It is part of it.",
        ]),
        (examination(finding(label=1)), examination(finding()), ["Only in A: ", "Only in B: ", "predicts “dog”"]),
        (None, examination(finding()), ["Only in B: ", "The model of A was not examined."]),
        (None, None, ["The model was examined in neither run."]),
    ],
)  # fmt: skip
def test_findings_of_both_runs_are_told_apart(
    made: Callable[..., Path], command: Command, before: Any, after: Any, sentences: list[str]
) -> None:
    names = {"class_names": ["cat", "dog", "eel"]}
    a, b = (made(rows(range(COUNT), plus(0.0)), examination=entry, subject=names) for entry in (before, after))
    screen = " ".join(command("compare", a, b).out.split())
    for sentence in sentences:
        assert sentence in screen


UPPER_LEFT = finding(place="the upper left corner", exchange="tiny window")
LOWER_RIGHT = finding(place="the lower right corner", follows=0.8)


@pytest.mark.parametrize(
    ("before", "after", "sentences"),
    [
        ([UPPER_LEFT], [LOWER_RIGHT], {"Only in A": "upper left", "Only in B": "lower right"}),
        (
            [UPPER_LEFT, LOWER_RIGHT],
            [LOWER_RIGHT],
            {"Only in A": "upper left", "In A and in B": "lower right"},
        ),
        ([UPPER_LEFT], [{**UPPER_LEFT, "exchange": "small window"}], {"In A and in B": "upper left"}),
    ],
)
def test_a_finding_at_another_place_is_another_one(
    made: Callable[..., Path], before: list[Any], after: list[Any], sentences: dict[str, str]
) -> None:
    some = rows(range(4), plus(0.0))
    a, b = (made(some, examination=examination(*found)) for found in (before, after))
    texts = relies.changes(compare(a, b), ("A", "B"))
    assert len(texts) == len(sentences)
    for start, place in sentences.items():
        (text,) = (text for text in texts if text.startswith(start))
        assert f" in the {place} corner" in text


def test_no_finding_of_a_kind_hides_another(made: Callable[..., Path]) -> None:
    both = examination(finding("low", place="the upper left corner"), finding(place="the lower right corner"))
    a, b = made(rows(range(COUNT), plus(0.0))), made(rows(range(COUNT), plus(0.0)), examination=both)
    places = [change.after.place for change in compare(a, b).findings if change.after]
    assert places == ["the lower right corner", "the upper left corner"]  # the more severe one first
    twins = made(rows(range(COUNT), plus(0.0)), examination=examination(UPPER_LEFT, UPPER_LEFT))
    assert len(compare(a, twins).findings) == 2


# What does not compare ------------------------------------------------------------------------------------------------


def test_settings_that_do_not_compare_are_refused_all_at_once(made: Callable[..., Path]) -> None:
    a = made(rows(range(3), plus(0.0)))
    settings = {"labels": "top2", "renormalise": True, "protocol": "rise", "infill": ["blur"], "steps": "32",
                "range": [0.2, 0.6], "eps1": 0.0, "eps2": 0.1, "ties": "first"}  # fmt: skip
    b = made(rows(range(3), plus(0.0)), settings=settings, subject={"classes": 10})
    with pytest.raises(BadInput) as refused:
        compare(a, b)
    said = str(refused.value)
    for words in ("labels (all / top2)", "renormalise (False / True)", "protocol (none / rise)", "steps (16 / 32)",
                  "range (0 1 / 0.2 0.6)", "eps1 (0.01 / 0)", "eps2 (0.001 / 0.1)", "ties (random / first)",
                  "classes (3 / 10)", "infill (gray / blur)"):  # fmt: skip
        assert words in said
    assert "\n" not in said


@pytest.mark.parametrize("name", [*synthetic_runs.SETTINGS])
def test_every_setting_is_either_refused_or_noted_or_changes_no_figure(made: Callable[..., Path], name: str) -> None:
    harmless = {"tie_orders", "controls", "deletion", "saliency", "draws"}  # draws: nothing here is drawn
    changed: dict[str, Any] = {"labels": "0,1", "protocol": "rise", "infill": ["blur"], "steps": "9", "ties": "last",
                               "range": [0.0, 0.5], "eps1": 0.1, "eps2": 0.1, "interval": "bca",
                               "conventions": {"crop_offset": "rounded down"}}  # fmt: skip
    value = synthetic_runs.SETTINGS[name]
    other = changed.get(name, not value if isinstance(value, bool) else value * 0.9 if value == 0.95 else "none")
    a = made(rows(range(3), plus(0.0)))
    b = made(rows(range(3), plus(0.0)), settings={name: 3 if name in ("seed", "tie_orders", "draws") else other})
    try:
        said = " ".join(compare(a, b).notes)
    except BadInput as error:
        said = str(error)
    assert (name in said) is (name not in harmless)


def test_infills_compare_one_by_one(made: Callable[..., Path]) -> None:
    def both(shift: float) -> list[Row]:
        return [row for name in ("gray", "random") for row in rows(range(5), plus(shift), infill=name)]

    settings = {"infill": ["gray", "random"]}
    a = made(both(0.0), settings=settings, run={"pool": digest("pool")})
    same = compare(a, made(both(0.1), settings=settings, run={"pool": digest("pool")}))
    assert {one.infill for one in same.differences} == {"", "gray", "random"}
    other = compare(a, made(both(0.1), settings=settings, run={"pool": digest("another")}))
    assert {one.infill for one in other.differences} == {"", "gray"}
    assert "infill random (another pool or number of draws) is not compared" in other.notes
    drawn = rows(range(5), plus(0.0), infill="random")
    with pytest.raises(BadInput, match=r"infill \(random / random\): random \(another pool or number of draws\)"):
        compare(*(made(drawn, settings={"infill": ["random"]}, run={"pool": digest(name)}) for name in "ab"))


def test_bundles_are_matched_by_name_or_being_the_only_ones(made: Callable[..., Path]) -> None:
    def bundles(*names: str) -> Path:
        return made([row for name in names for row in rows(range(4), plus(0.0), bundle=name)])

    only = compare(bundles("mine"), bundles("theirs"))
    assert {(one.bundle_a, one.bundle_b) for one in only.differences} == {(None, None), ("mine", "theirs")}
    some = compare(bundles("x", "y"), bundles("z", "y"))
    assert {(one.bundle_a, one.bundle_b) for one in some.differences} == {(None, None), ("y", "y")}
    assert {"only the first run has x", "only the second run has z"} <= set(some.notes)
    with pytest.raises(BadInput, match="the first run has x, y and the second run has z"):
        compare(bundles("x", "y"), bundles("z"))
    with pytest.raises(BadInput, match="no heatmaps"):
        compare(bundles("x"), made(edges(range(4))))


def test_a_metric_that_one_run_lacks_is_named_with_the_reason(made: Callable[..., Path]) -> None:
    a = made(rows(range(4), plus(0.0)))
    b = made(rows(range(4), plus(0.0), labels=[0]))
    found = compare(a, b)
    assert "completeness" not in {one.name for one in found.differences}
    (note,) = (note for note in found.notes if "completeness" in note)
    assert note == (
        "maps (gray), not compared: completeness, soundness, worst completeness, worst soundness, best effort (in the "
        "second run: the label set has no label other than the predicted one)"
    )


def test_what_a_reader_must_know_is_noted(made: Callable[..., Path]) -> None:
    a = made(rows(range(4), plus(0.0)))
    model = {"model": {"identity": digest("another")}, "card": {"gray": [0.0, 0.0, 0.0]}}
    b = made(rows(range(4), plus(0.0)), subject=model, environment={"device": "cuda", "precision": "tf32"},
             policy=policy("own"))  # fmt: skip
    notes = compare(a, b).notes
    assert any(note.startswith("the models differ") for note in notes)
    assert "the gray infill has another colour: gray (127.5 127.5 127.5 / 0 0 0)" in notes
    assert "computed differently: device (cpu / cuda), precision (strict / tf32)" in notes
    assert any("different policies" in note for note in notes)


def test_checks_are_told_before_and_after(made: Callable[..., Path]) -> None:
    def checks(**said: str) -> Path:
        return made(rows(range(4), plus(0.0)), checks=[check(name, text) for name, text in said.items()])

    found = compare(
        checks(kept="pass", moved="pass", gone="fail"), checks(kept="pass", moved="inconclusive", new="fail")
    )
    assert {change.id: (change.before, change.after) for change in found.checks} == {
        "kept": ("pass", "pass"), "moved": ("pass", "inconclusive"), "gone": ("fail", None), "new": (None, "fail"),
    }  # fmt: skip


def test_runs_are_named_with_the_digests_of_their_results(made: Callable[..., Path]) -> None:
    a, b = (made(rows(range(4), plus(0.0))) for _ in range(2))
    found = compare(a, b)
    for folder, identity in ((a, found.a), (b, found.b)):
        digest = hashlib.sha256((folder / "results.json").read_bytes()).hexdigest()
        assert (identity.run, identity.results) == (folder.name, digest)


def test_a_run_that_lacks_rows_is_not_compared(made: Callable[..., Path]) -> None:
    a, b = (made(rows(range(4), plus(0.0))) for _ in range(2))
    parts = sorted((b / "items").iterdir())
    parts[0].unlink()
    with pytest.raises(BadInput, match="6 rows, but the run made 12"):
        compare(a, b)
    parts[1].unlink()
    with pytest.raises(BadInput, match="no rows"):
        compare(a, b)


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_keeps_the_object(
    made: Callable[..., Path], tmp_path: Path, command: Command
) -> None:
    a = made(rows(range(COUNT), plus(0.0)), checks=[check("margin", "pass")], verdict="pass")
    b = made(rows(range(COUNT), plus(0.1)), checks=[check("margin", "fail")], verdict="fail")
    done = command("compare", a, b, "-o", tmp_path / "changes.json")
    assert (done.code, done.err) == (0, "")
    for words in ("↑ better", "↑ worse", "margin: pass → fail", "verdict fail", f"{COUNT} in both", "+0.1"):
        assert words in done.out
    c = made(rows(range(COUNT), plus(0.2)), checks=[check("margin", "suppressed")], verdict="pass")
    assert "verdict pass with margin suppressed" in " ".join(command("compare", b, c).out.split())
    held = json.loads((tmp_path / "changes.json").read_text())
    assert held == to_json(compare(a, b)) == json.loads(command("compare", a, b, "--json").out)
    assert set(held) == {
        "schema_version",
        "a",
        "b",
        "shared_images",
        "only_a",
        "only_b",
        "differences",
        "checks",
        "notes",
        "findings",
    }
    assert {"name", "bundle_a", "bundle_b", "infill", "value", "low", "high", "confidence", "n"} <= set(
        held["differences"][0]
    )
    assert str(tmp_path) not in json.dumps(held)
    assert "no difference shown" in command("compare", a, a).out


def test_the_command_shows_no_direction_for_few_images(made: Callable[..., Path], command: Command) -> None:
    a, b = made(rows(range(4), plus(0.0))), made(rows(range(4), plus(0.3, spread=0.1)))
    lines = [line for line in command("compare", a, b).out.splitlines() if "too few images" in line]
    assert len(lines) == len(compare(a, b).differences)
    for words in ("↑", "↓", "better", "worse", " to "):
        assert words not in "".join(lines)
    held = json.loads(command("compare", a, b, "--json").out)["differences"]
    assert {(one["low"], one["high"], one["better"]) for one in held} == {(None, None, None)}


def test_the_command_refuses_in_one_line(made: Callable[..., Path], tmp_path: Path, command: Command) -> None:
    def refused(*words: object) -> str:
        done = command("compare", *words)
        (line,) = done.err.splitlines()
        assert (done.code, done.out) == (2, "")
        return line

    a = made(rows(range(3), plus(0.0)))
    b = made(rows(range(3), plus(0.0)), settings={"labels": "top2", "eps1": 0.5})
    assert "labels (all / top2), eps1 (0.01 / 0.5)" in refused(a, b)
    assert "no run" in refused(a, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "is not a run" in refused(tmp_path / "empty", a)
    (b / "results.json").unlink()
    assert "not finished" in refused(a, b)
    (b / "results.json").write_text(json.dumps({"schema_version": 9}))
    assert "schema_version 9" in refused(a, b)
    (b / "results.json").write_text(json.dumps({"schema_version": 2, "settings": {}}))
    assert "lacks 'tool'; it is not what auditkit wrote" in refused(a, b)
    assert "cannot be written" in refused(a, a, "-o", tmp_path / "no" / "such" / "file")
    assert "cannot be written" in refused(a, a, "-o", tmp_path / "empty")
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("checks", [None, 5, "x", [5], [{}], {"id": "margin"}])
def test_results_of_another_form_are_not_compared(made: Callable[..., Path], checks: object) -> None:
    a, b = (made(rows(range(3), plus(0.0))) for _ in range(2))
    results = json.loads((b / "results.json").read_text())
    (b / "results.json").write_text(json.dumps(results | {"checks": checks}))
    with pytest.raises(BadInput, match=r"results\.json\.checks(\[0\])? (is|lacks) .*"):
        compare(a, b)
