"""Verdicts: what passes, what fails, what stays open, and that nothing is gained by leaving things out."""

import copy
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields
from datetime import date
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from scipy import ndimage, stats

import auditkit
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.errors import BadInput
from auditkit.methods.controls import blurred_edges, centred_gaussian, edges
from auditkit.metrics.betting import Sample
from auditkit.metrics.statistics import paired_difference
from auditkit.metrics.table import METRICS
from auditkit.metrics.values import NotAssessed
from auditkit.records import to_json
from auditkit.runs.folder.figures import Flag, FlagKind, NotRandomised, Verdict
from auditkit.runs.folder.results import CheckResult, RecordedSuppression, Results
from auditkit.runs.folder.store import Store
from auditkit.runs.summary.samples import Samples
from auditkit.runs.summary.wording import BY_CHANCE, flag_text, why_not_assessed, why_not_randomised
from auditkit.verdict.decision import judge
from auditkit.verdict.flags import KINDS, is_named
from auditkit.verdict.policy import CONTROLS, Policy
from auditkit.verdict.policy_file import parse_policy, read_policy
from tests.support.judged_results import (
    MISSING,
    Plain,
    entry,
    flag,
    judged_by_intervals,
    not_assessed,
    parsed,
    results,
)

TODAY = date(2026, 6, 1)
OF_EVERY_LABEL = [name for name, metric in METRICS.items() if metric.of_every_label]
EVIDENCE = ("record", "settings", "preprocessing-stated", "images", "labels", "controls", "identity")
_TEXT = (Path(__file__).parents[1] / "support" / "detailed_policy.toml").read_text()
DETAILED = parse_policy(_TEXT, "detailed.toml")
PLAIN = parse_policy(
    _TEXT.partition("# Maps of a model that has forgotten")[0].replace("control:0.05", "control:0")
    .replace("minimum_images = 1000", "minimum_images = 200").replace('["gray", "blur"]', '"gray"'), "plain.toml"
)  # fmt: skip


@pytest.fixture
def good() -> Plain:
    """Plain that strict passes."""
    return results(DETAILED)


def judged(
    policy: Policy, plain: Plain, today: date = TODAY, fail_on: str | None = None
) -> tuple[tuple[CheckResult, ...], Verdict | None, str]:
    results = judged_by_intervals(policy, parsed(plain), today, fail_on)
    return results.checks, results.verdict, results.verdict_reason


def verdict(policy: Policy, plain: Plain, fail_on: str | None = None) -> Verdict:
    return judged(policy, plain, fail_on=fail_on)[1]


def check(policy: Policy, plain: Plain, name: str, today: date = TODAY) -> CheckResult:
    (result,) = [result for result in judged(policy, plain, today)[0] if result.id == name]
    return result


def statuses(policy: Policy, plain: Plain) -> dict[str, str]:
    return {result.id: result.status for result in judged(policy, plain)[0]}


def refusal(plain: Plain) -> str:
    """Why the results are not read."""
    with pytest.raises(BadInput) as error:
        parsed(plain)
    return str(error.value)


def pick(found: Plain, key: str, **like: Any) -> list[Plain]:
    return [one for one in found[key] if all(one.get(name) == value for name, value in like.items())]


POSITION_ONLY = flag("position-only", 1000)


def nothing_measured(plain: Plain) -> Plain:
    """The results of a run whose maps could not be used."""
    empty: Plain = {key: [] for key in ("metrics", "controls", "comparisons", "points", "flags")}
    run = plain["run"] | {"bundles": {}, "bundle_models": {}}
    return plain | empty | {"run": run, "runtime": None, "randomisation": None}


def policy(checks: str, evaluation: str = "minimum_images = 50", more: str = "") -> Policy:
    """A policy of a few lines, each a check: id, metric, rule."""
    text = f'schema_version = 1\nname = "few"\n{more}\n[evaluation]\n{evaluation}\n'
    for line in checks.splitlines():
        name, metric, rule, *rest = line.split("; ")
        severity = "" if any("severity" in one for one in rest) else '\nseverity = "high"'
        text += f'[[check]]\nid = "{name}"\nmetric = "{metric}"\n{rule}{severity}\n' + "\n".join(rest) + "\n"
    return parse_policy(text, "few.toml")


# Verdicts -------------------------------------------------------------------------------------------------------------


def test_all_that_is_asked_holds(good: Plain) -> None:
    checks, said, reason = judged(DETAILED, good, TODAY)
    assert said == "pass"
    assert reason == f"All 14 checks hold, 7 of the policy and 7 of the measurement itself. {BY_CHANCE['pass']}"
    assert all(one.counts for one in checks)
    assert {one.status for one in checks} == {"pass"}
    assert [one.id for one in checks][: len(EVIDENCE)] == [*EVIDENCE]
    record = to_json(check(DETAILED, good, "completeness-above-controls"))
    evidence = record.pop("evidence")
    assert evidence["holds"] >= 20 > 1e-9 > evidence["fails"]
    assert evidence["tests"] == 2 * len(CONTROLS)  # under two infills
    assert record == {
        "id": "completeness-above-controls", "metric": "worst_completeness", "status": "pass", "observed": 0.2,
        "against": "control:random", "of": "maps (gray)",
        "title": "The maps show clearly more evidence than maps that ignore the model",
        "low": 0.19, "high": pytest.approx(0.21), "n": 1000, "limit": 0.05, "rule": "margin over every control",
        "severity": "high", "required": True, "counts": True,
        "reason": "Worst completeness of maps (gray) minus that of a random map on 1000 images: 0.200 (interval of "
        "the test 0.190 to 0.210); required: more than 0.05.", "interval": "test",
    }  # fmt: skip
    json.dumps(to_json(checks), allow_nan=False)


def test_judging_changes_nothing_and_says_the_same_again(good: Plain) -> None:
    measured, before = parsed(good), copy.deepcopy(parsed(good))
    assert judged_by_intervals(DETAILED, measured, TODAY) == judged_by_intervals(DETAILED, measured, TODAY)
    assert measured == before


def test_explore_measures_whatever_it_finds() -> None:
    explore = read_policy("explore")
    found = results(explore)
    assert verdict(explore, found) == "measured"
    found["flags"] = [POSITION_ONLY]
    found["metrics"] = []
    assert verdict(explore, found) == "measured"
    assert verdict(explore, nothing_measured(found)) == "measured"
    assert statuses(explore, found)["cheat-position-only"] == "fail"


@pytest.mark.parametrize(("value", "expected"), [(0.47, "pass"), (0.33, "fail"), (0.395, "inconclusive")])
def test_a_minimum(value: float, expected: str) -> None:
    asked = policy("complete; worst_completeness; min = 0.4")
    found = results(asked)
    (one,) = pick(found, "metrics", name="worst_completeness")
    one |= entry("worst_completeness", "maps", value)
    assert check(asked, found, "complete").status == expected
    assert verdict(asked, found) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.33, "pass"), (0.47, "fail"), (0.395, "inconclusive")])
def test_a_maximum(value: float, expected: str) -> None:
    asked = policy("gone; deletion; max = 0.4")
    found = results(asked)
    pick(found, "metrics", name="deletion")[0].update(entry("deletion", "maps", value))
    assert verdict(asked, found) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.07, "pass"), (0.03, "fail"), (0.055, "inconclusive")])
def test_a_margin_must_hold_over_the_best_control(good: Plain, value: float, expected: str) -> None:
    """Which control is best is not chosen: the check is as good as over the worst of them for the maps."""
    (one,) = pick(good, "comparisons", name="worst_completeness", against="control:edges", infill="gray")
    one |= {"value": value, "low": value - 0.01, "high": value + 0.01}
    found = check(DETAILED, good, "completeness-above-controls")
    assert (found.status, found.observed) == (expected, value)
    assert " that of edges on" in found.reason
    assert verdict(DETAILED, good) == expected


def test_a_wide_interval_counts_before_a_small_margin(good: Plain) -> None:
    for control, value, low in (("edges", 0.1, 0.09), ("constant", 0.15, -0.01)):
        (one,) = pick(good, "comparisons", name="worst_completeness", against=f"control:{control}", infill="gray")
        one.update({"value": value, "low": low, "high": 0.3})
    said = check(DETAILED, good, "completeness-above-controls")
    assert (said.status, said.observed) == ("inconclusive", 0.15)
    assert " that of a constant map on" in said.reason


def test_a_margin_over_one_control_asks_nothing_of_the_others(good: Plain) -> None:
    for one in pick(good, "comparisons", name="worst_soundness"):
        value = -0.03 if one["against"] == "control:random" else -0.5
        one.update({"value": value, "low": value - 0.01, "high": value + 0.01})
    assert verdict(DETAILED, good) == "pass"
    (one,) = pick(good, "comparisons", name="worst_soundness", against="control:random", infill="gray")
    one |= {"value": -0.08, "low": -0.09, "high": -0.07}
    assert verdict(DETAILED, good) == "fail"


def test_the_worst_bundle_under_the_worst_infill_counts() -> None:
    asked = policy("complete; worst_completeness; min = 0.4", 'minimum_images = 50\ninfill = ["gray", "blur"]')
    found = results(asked, ("ours", "theirs"))
    assert verdict(asked, found) == "pass"
    (one,) = pick(found, "metrics", name="worst_completeness", bundle="theirs", infill="blur")
    one |= {"value": 0.3, "low": 0.2, "high": 0.35}
    said = check(asked, found, "complete")
    assert (said.status, said.observed) == ("fail", 0.3)
    assert said.reason.startswith("Worst completeness of theirs (blur) on 1000 images: 0.300 (interval of the test")
    found["metrics"].remove(one)
    assert check(asked, found, "complete").reason == "theirs (blur): worst completeness was not measured."
    assert verdict(asked, found) == "inconclusive"


def test_too_few_images_decide_nothing() -> None:
    asked = policy("complete; worst_completeness; min = 0.4\nright; accuracy; min = 0.95")
    found = results(asked, n=49)
    assert verdict(asked, found) == "inconclusive"
    assert "needs 50 images" in check(asked, found, "complete").reason
    assert check(asked, found, "right").status == "inconclusive"  # though the whole interval is below
    assert check(asked, found, "images").status == "inconclusive"
    assert verdict(asked, results(asked, n=50)) == "fail"


def test_a_figure_without_an_interval_decides_nothing() -> None:
    asked = policy("complete; worst_completeness; min = 0.4", "minimum_images = 1")
    found = results(asked, n=20)
    for one in found["metrics"]:
        one.update({"low": None, "high": None, "note": {"kind": "few-images"}})
    assert check(asked, found, "complete").status == "inconclusive"
    assert "The values of its images are not known" in check(asked, found, "complete").reason


@pytest.mark.parametrize(("n", "expected"), [(1, "inconclusive"), (19, "inconclusive"), (20, "pass")])
def test_nothing_is_decided_below_20_images(n: int, expected: str) -> None:
    """However few a policy asks for."""
    asked = policy("complete; worst_completeness; min = 0.4", "minimum_images = 1")
    assert verdict(asked, results(asked, n=n)) == expected
    found = results(asked, n=n)
    pick(found, "metrics", name="worst_completeness")[0].update(entry("worst_completeness", "maps", 0.1, n))
    assert verdict(asked, found) == ("fail" if expected == "pass" else "inconclusive")


EQUAL: Plain = {
    "value": 0.0, "low": -0.004, "high": 0.004, "note": to_json(paired_difference([0.5] * 9, [0.5] * 9).note),
}  # fmt: skip


def test_maps_that_equal_a_control_on_every_image_are_not_above_it() -> None:
    found = results(PLAIN)
    (one,) = pick(found, "comparisons", name="worst_completeness", against="control:edges")
    one |= EQUAL
    assert check(PLAIN, found, "completeness-above-controls").status == "fail"
    said = check(PLAIN, found, "not-above-edges")
    assert (said.status, said.severity, said.part_of) == ("fail", "high", "completeness-above-controls")
    assert "On every image its curves are the control's" in said.reason


@pytest.mark.parametrize(("rule", "weak"), [('min_margin_over = "control:0"', True), ("min = 0.9", False)])
def test_maps_that_only_differ_by_label_are_called_weak_beside_a_control(rule: str, weak: bool) -> None:
    asked = policy(f"gain; relevance_gain; {rule}\ndiffer; label_specificity; min = 0.25")
    found = results(asked)
    found["metrics"] += [entry(name, "maps", 0.5) for name in ("relevance_gain", "label_specificity")]
    found["controls"] += [entry("relevance_gain", f"control:{name}", 0.7) for name in CONTROLS[:-1]]
    for one in pick(found, "comparisons", name="relevance_gain"):
        one |= {"value": -0.2, "low": -0.21, "high": -0.19}
    _, said, reason = judged(asked, found, TODAY)
    assert said == "fail"
    assert reason.startswith("The maps tell labels apart, but show the prediction worse than a random map. ") == weak


def test_a_margin_that_float32_cannot_resolve_is_none() -> None:
    found = results(PLAIN)
    (one,) = pick(found, "comparisons", name="worst_completeness", against="control:random")
    one |= {"value": 0.01, "low": 4e-8, "high": 0.04}
    assert verdict(PLAIN, found) == "inconclusive"
    one["low"] = 1e-4
    assert verdict(PLAIN, found) == "pass"


def test_runtime_and_flags_have_no_interval(good: Plain) -> None:
    assert check(DETAILED, good, "runtime-error").observed == 2e-4
    good["runtime"]["beta"] = 1.1e-3
    assert check(DETAILED, good, "runtime-error").status == "fail"
    good["runtime"] |= {"reference": None, "insertion": None, "alpha": None, "beta": None}
    assert check(DETAILED, good, "runtime-error").status == "not assessed"
    assert verdict(DETAILED, good) == "inconclusive"


def test_randomised_models_must_have_other_maps(good: Plain) -> None:
    last = good["randomisation"]["series"][-1]
    for mean, expected in ((0.3, "pass"), (0.47, "inconclusive")):
        correlations = np.random.default_rng(0).uniform(mean - 0.3, mean + 0.3, 100)
        last |= {"correlations": correlations.tolist(), "spearman": float(correlations.mean())}
        assert check(DETAILED, good, "depends-on-the-model").status == expected
    last |= {"correlations": [0.9] * 100, "spearman": 0.9, "low": 0.85, "high": 0.95}
    assert verdict(DETAILED, good) == "fail"
    good["randomisation"] = {"not_assessed": {"cause": "supplied"}}
    assert check(DETAILED, good, "depends-on-the-model").reason.endswith(
        f"{why_not_randomised(NotRandomised('supplied'))}."
    )
    assert verdict(DETAILED, good) == "inconclusive"


def test_stages_and_images_of_the_randomisation_cannot_be_saved(good: Plain) -> None:
    series = good["randomisation"]["series"]
    good["randomisation"]["series"] = series[:2]
    assert "The policy asks for 5 stages, 2 were run" in check(DETAILED, good, "depends-on-the-model").reason
    assert verdict(DETAILED, good) == "inconclusive"
    good["randomisation"]["layers"] = 3
    series[1]["layers"] = ["fc", "conv2", "conv1"]  # two stages, but there was nothing left
    assert verdict(DETAILED, good) == "pass"
    series[1] |= {"n": 99, "correlations": [0.1] * 99}
    assert verdict(DETAILED, good) == "inconclusive"


# Margins that could not be missed, or not be met ----------------------------------------------------------------------


def at(found: Plain, metric: str, control: str, value: float, low: float) -> None:
    """Set a control's own figure, under every infill."""
    for one in pick(found, "controls", name=metric, bundle=f"control:{control}"):
        one.update({"value": value, "low": low, "high": min(2 * value - low, 1.0)})


def apart(found: Plain, metric: str, control: str, value: float, width: float = 0.004) -> None:
    """Set the margin of the maps over a control, under every infill."""
    for one in pick(found, "comparisons", name=metric, against=f"control:{control}"):
        one.update({"value": value, "low": value - width, "high": value + width})


def test_a_check_that_cannot_fail_is_not_passed(good: Plain) -> None:
    """Nothing lies 0.05 below 0.02; the verdict names the check, and the others decide."""
    at(good, "worst_soundness", "random", 0.02, 0.015)
    apart(good, "worst_soundness", "random", -0.02)  # maps as unsound as can be
    checks, said, reason = judged(DETAILED, good, TODAY)
    found = next(one for one in checks if one.id == "soundness-near-random")
    assert (found.status, found.required, said) == ("not assessed", False, "pass")
    assert "The control itself is at 0.02, so nothing can be shown to lie 0.05 below it." in found.reason
    assert reason.startswith(
        "13 checks hold, 6 of the policy and 7 of the measurement itself; 1 suppressed or not assessed: "
        "soundness-near-random. Not assessed: “The maps do not make up evidence for labels that the model rejects”. "
    )
    # Why it is not known, not just the figure.
    assert reason.endswith(f"so nothing can be shown to lie 0.05 below it. {BY_CHANCE['pass']}")


def test_where_nothing_is_known_of_other_labels_the_verdict_stays_open(good: Plain) -> None:
    """Maps of the predicted label alone, noise for the others: on images that leave no doubt nothing could tell."""
    at(good, "worst_soundness", "random", 0.02, 0.015)
    apart(good, "worst_soundness", "random", -0.02)
    for one in [*pick(good, "metrics", name="best_effort"), *pick(good, "comparisons", name="best_effort")]:
        one.update(not_assessed("no-second-label-above", value=0.01))
    checks, said, reason = judged(DETAILED, good, TODAY)
    of = {one.id: one.status for one in checks}
    gone = ("soundness-near-random", "best-effort", "best-effort-above-random")
    assert {of[name] for name in gone} == {"not assessed"}
    assert said == "inconclusive"
    assert reason.startswith("Nothing is known about labels other than the prediction; add images on which the model")
    few = policy("complete; worst_completeness; min = 0.1")  # which asks nothing of them
    assert verdict(few, results(few)) == "pass"


def test_findings_that_come_and_go_are_told_from_a_policys_checks() -> None:
    named = ("not-above-random", "not-reproduced", "cheat-constant", "heavy-ties", "some-images-share-a-map")
    assert all(map(is_named, named))
    assert not any(map(is_named, (*EVIDENCE, *(one.id for one in DETAILED.checks))))


def test_what_too_few_points_may_have_caused_is_no_failure() -> None:
    asked = policy("complete; worst_completeness; min = 0.5")
    found = results(asked)
    for one in pick(found, "metrics", name="worst_completeness"):
        one.update({"value": 0.48, "low": 0.47, "high": 0.49})
    assert check(asked, found, "complete").status == "fail"
    for one in found["points"]:
        one["errors"]["worst_completeness"] = 0.02
    result = check(asked, found, "complete")
    assert result.status == "inconclusive"
    assert result.reason.endswith(f"too few points to tell: it may be off by 0.02. {result.what_to_do}")
    assert 'set steps = "auto:0.001"' in result.what_to_do
    for one in pick(found, "metrics", name="worst_completeness"):
        one.update({"value": 0.3, "low": 0.28, "high": 0.32})
    assert check(asked, found, "complete").status == "fail"


@pytest.mark.parametrize(("low", "expected"), [(0.049, "not assessed"), (0.051, "pass")])
def test_there_is_room_where_the_worst_maps_would_fail(low: float, expected: str, good: Plain) -> None:
    at(good, "worst_soundness", "random", 0.06, low)
    assert check(DETAILED, good, "soundness-near-random").status == expected
    apart(good, "worst_soundness", "random", -0.06, 0.06 - low)
    assert check(DETAILED, good, "soundness-near-random").status == ("fail" if low >= 0.05 else "inconclusive")


def test_what_fails_without_room_still_fails() -> None:
    """Being optional is no way round: what is there was judged."""
    asked = policy('sound; worst_soundness; min_margin_over = "control:random:-0.05"; required = false')
    found = results(asked)
    at(found, "worst_soundness", "random", 0.06, 0.045)
    apart(found, "worst_soundness", "random", -0.06, 0.005)
    assert verdict(asked, found) == "fail"
    apart(found, "worst_soundness", "random", -0.06, 0.015)
    assert verdict(asked, found) == "inconclusive"


def test_a_policy_of_checks_that_cannot_fail_judges_nothing() -> None:
    asked = policy('sound; worst_soundness; min_margin_over = "control:random:-0.05"')
    found = results(asked)
    assert verdict(asked, found) == "pass"
    at(found, "worst_soundness", "random", 0.001, 0.0001)
    assert verdict(asked, found) == "inconclusive"


def test_one_infill_without_room_is_enough_not_to_pass(good: Plain) -> None:
    pick(good, "controls", name="worst_soundness", bundle="control:random", infill="blur")[0].update(value=0.01, low=0)
    assert check(DETAILED, good, "soundness-near-random").reason.startswith("Worst soundness of maps (blur) minus ")
    assert check(DETAILED, good, "soundness-near-random").status == "not assessed"


def test_room_that_is_not_known_is_none(good: Plain) -> None:
    drop("controls", name="worst_soundness", bundle="control:random")(good)
    said = check(DETAILED, good, "soundness-near-random")
    assert (said.status, said.required) == ("inconclusive", True)
    assert "The results lack the figure of a random map itself" in said.reason
    assert verdict(DETAILED, good) == "inconclusive"


@pytest.mark.parametrize(("margin", "expected"), [(0.03, "inconclusive"), (0.0, "inconclusive"), (-0.1, "fail")])
def test_a_margin_that_cannot_be_met_stays_open(margin: float, expected: str, good: Plain) -> None:
    """Nothing lies 0.05 above 0.97. What is far below the control itself needs no room to fail."""
    at(good, "worst_completeness", "edges", 0.97, 0.965)
    apart(good, "worst_completeness", "edges", margin)
    said = check(DETAILED, good, "completeness-above-controls")
    assert (said.status, verdict(DETAILED, good)) == (expected, expected)
    told = "The control itself is at 0.97, so nothing can be shown to lie 0.05 above it." in said.reason
    assert told == (expected == "inconclusive")


def test_maps_that_equal_a_perfect_control_leave_the_verdict_open() -> None:
    found = results(PLAIN)
    at(found, "worst_completeness", "edges", 1.0, 0.99)
    for one in pick(found, "comparisons", name="worst_completeness", against="control:edges"):
        one.update(EQUAL)
    said = check(PLAIN, found, "completeness-above-controls")
    assert said.status == "inconclusive"
    assert "so nothing can be shown to lie 0.05 above it" in said.reason


@pytest.mark.parametrize(("margin", "expected"), [(0.005, "pass"), (0.0, "not assessed"), (-0.02, "not assessed"),
                                                  (-0.4, "fail")])  # fmt: skip
def test_best_effort_beside_chance_is_told_only_where_chance_leaves_room(margin: float, expected: str) -> None:
    found = results(PLAIN)
    at(found, "best_effort", "random", 0.994, 0.99)
    apart(found, "best_effort", "random", margin)
    said = check(PLAIN, found, "best-effort-above-random")
    assert (said.status, said.required) == (expected, expected != "not assessed")
    assert verdict(PLAIN, found) == ("fail" if expected == "fail" else "pass")


def test_controls_without_room_are_left_out_where_others_have_it() -> None:
    asked = policy('sound; worst_soundness; min_margin_over = "control:-0.05"')
    found = results(asked)
    at(found, "worst_soundness", "random", 0.01, 0.005)
    said, reason = check(asked, found, "sound"), judged(asked, found, TODAY)[2]
    assert said.status == "pass"
    assert "Left out: a random map, because the control itself is at 0.01" in said.reason
    assert "Left out of sound, not beaten: a random map." in reason


# What the verdict weighs ----------------------------------------------------------------------------------------------


def test_severities_below_the_level_do_not_decide(good: Plain) -> None:
    good["runtime"]["alpha"] = 0.1  # of medium severity
    assert verdict(DETAILED, good) == "fail"
    assert verdict(DETAILED, good, "medium") == "fail"
    assert verdict(DETAILED, good, "high") == "pass"
    assert check(DETAILED, good, "runtime-error").status == "fail"
    with pytest.raises(BadInput, match="unknown severity 'info'; choose from low, medium, high, critical"):
        verdict(DETAILED, good, "info")


def test_a_level_above_all_checks_asks_nothing() -> None:
    asked = policy("complete; worst_completeness; min = 0.9")
    assert judged(asked, results(asked), TODAY, "critical")[1:] == (
        "measured",
        "The policy few sets no limits of severity critical or above, so there is no verdict.",
    )


def test_evidence_counts_at_every_level() -> None:
    asked = policy('complete; worst_completeness; min = 0.4; severity = "critical"')
    found = results(asked)
    found["run"]["bundles"] = {}
    assert verdict(asked, found, "critical") == "inconclusive"
    del found["environment"]
    assert refusal(found) == "results.json lacks 'environment'; it is not what auditkit wrote."


def test_a_failure_goes_before_what_is_open(good: Plain) -> None:
    good["randomisation"] = None
    good["runtime"]["alpha"] = 0.1
    assert judged(DETAILED, good, TODAY)[1:] == (
        "fail",
        "1 of 14 checks failed. Failed: “The machine computes the same as strict float32 on a CPU”. The runtime: 0.1 "
        "on 18 rows; at most 0.001 is allowed.",
    )


# Very sure models -----------------------------------------------------------------------------------------------------


def sure(found: Plain) -> Plain:
    """The same of a model without a second label to speak of."""
    for one in pick(found, "metrics", name="best_effort") + pick(found, "controls", name="best_effort"):
        one.update(not_assessed("no-second-label", value=0.01))
    found["comparisons"] = [one for one in found["comparisons"] if one["name"] != "best_effort"]
    for one in found["comparisons"]:
        if one["against"].startswith("control:one-map") and "completeness" in one["name"]:
            one.update(not_assessed("no-second-label-above", one["name"], value=0.01))
    return found


def test_a_sure_model_can_pass_and_the_reason_is_told(good: Plain) -> None:
    checks, said, reason = judged(DETAILED, sure(good), TODAY)
    assert said == "pass"
    assert "best-effort" in reason
    assert why_not_assessed(NotAssessed("best_effort", "no-second-label", value=0.01)) in reason
    found = {one.id: one for one in checks}
    assert (found["best-effort"].status, found["best-effort"].required) == ("not assessed", False)
    reason_of_check = found["completeness-above-controls"].reason
    assert "Left out: one map for all labels, because no image has a second label" in reason_of_check
    assert "not-above-one-map" not in found
    assert "Left out of completeness-above-controls, not beaten: one map for all labels." in reason


def test_the_model_must_be_the_reason(good: Plain) -> None:
    """Best effort that is missing for want of maps, or missing altogether, leaves the verdict open."""
    (one,) = pick(good, "metrics", name="best_effort", infill="gray")
    one |= not_assessed("maps-missing", count=3, total=9)
    assert check(DETAILED, good, "best-effort").required
    assert verdict(DETAILED, good) == "inconclusive"
    good["metrics"].remove(one)
    assert verdict(DETAILED, good) == "inconclusive"


def test_one_bundle_cannot_hide_what_another_lacks() -> None:
    found = sure(results(PLAIN, ("ours", "theirs")))
    assert verdict(PLAIN, found) == "pass"
    (one,) = pick(found, "metrics", name="best_effort", bundle="theirs")
    one |= not_assessed("maps-missing", count=3, total=9)
    assert check(PLAIN, found, "best-effort").reason.startswith("theirs: 3 of 9 maps are missing")
    assert check(PLAIN, found, "best-effort").required
    assert verdict(PLAIN, found) != "pass"


def test_one_map_counts_where_a_second_label_does(good: Plain) -> None:
    for one in pick(good, "comparisons", name="worst_completeness", against="control:one-map:maps"):
        one.update(EQUAL)
    assert check(DETAILED, good, "completeness-above-controls").status == "fail"
    assert "not-above-one-map" in statuses(DETAILED, good)


@pytest.mark.parametrize(("n", "expected"), [(1, "pass"), (19, "pass"), (20, "fail")])
def test_one_map_needs_images_that_can_tell_it_from_others(n: int, expected: str, good: Plain) -> None:
    """On the few images where the model is unsure, maps that are no better than one map prove nothing."""
    for one in pick(good, "comparisons", name="worst_completeness", against="control:one-map:maps"):
        one.update(EQUAL | {"n": n})
    checks, said, reason = judged(DETAILED, good, TODAY)
    assert said == expected
    names = {one.id: one for one in checks}
    left_out = f"{n} of 1000 images have a second label with probability above 0.01, 20 are needed"
    assert (left_out in names["completeness-above-controls"].reason) == (expected == "pass")
    assert ("not beaten: one map for all labels" in reason) == (expected == "pass")
    assert ("not-above-one-map" in names) == (expected == "fail")


def test_one_map_is_not_left_out_where_images_are_missing(good: Plain) -> None:
    for one in pick(good, "comparisons", name="worst_completeness", against="control:one-map:maps"):
        one["n"] = 5
    for one in pick(good, "metrics", name="worst_completeness"):
        one["n"] = 999
    assert check(DETAILED, good, "completeness-above-controls").status == "inconclusive"


def test_best_effort_must_beat_chance() -> None:
    found = results(PLAIN)
    apart(found, "best_effort", "random", -0.1)
    said = check(PLAIN, found, "best-effort-above-random")
    assert (said.status, said.severity) == ("fail", "medium")
    assert not [name for name in statuses(PLAIN, found) if name.startswith("not-above")]
    assert check(PLAIN, sure(found), "best-effort-above-random").status == "not assessed"
    assert verdict(PLAIN, found) == "pass"


def test_best_effort_rests_on_the_images_that_have_a_second_label(good: Plain) -> None:
    (one,) = pick(good, "metrics", name="best_effort", infill="gray")
    one["n"] = 60
    assert verdict(DETAILED, good) == "pass"
    one["n"] = 19
    said = check(DETAILED, good, "best-effort")
    assert (said.status, said.required) == ("not assessed", False)
    assert "19 of 1000 images have a second label with probability 0.01 or more" in said.reason
    assert verdict(DETAILED, good) == "pass"


def test_few_second_labels_among_too_few_images_leave_the_verdict_open(good: Plain) -> None:
    pick(good, "metrics", name="worst_completeness")[0]["n"] = 999
    for n in (19, 60):
        pick(good, "metrics", name="best_effort")[0]["n"] = n
        assert check(DETAILED, good, "best-effort").status == "inconclusive"


def test_a_check_that_is_not_required_may_be_missing() -> None:
    asked = policy("complete; worst_completeness; min = 0.4\npointed; pointing_game; min = 0.5; required = false")
    found = results(asked)
    found["metrics"] = [one for one in found["metrics"] if one["name"] != "pointing_game"]
    said = check(asked, found, "pointed")
    assert (said.status, said.required) == ("not assessed", False)
    assert said.reason == "maps: pointing game was not measured."
    assert verdict(asked, found) == "pass"
    alone = policy("pointed; pointing_game; min = 0.5; required = false")
    assert verdict(alone, found) == "inconclusive"  # nothing that was asked was judged


# Suppressions ---------------------------------------------------------------------------------------------------------


def suppressed(name: str, expires: str = "2026-06-01") -> Policy:
    return parse_policy(
        f'{PLAIN.text}\n[[suppression]]\ncheck = "{name}"\nreason = "Ticket 7."\napprover = "A. Person"\n'
        f"expires = {expires}\n", "p.toml",
    )  # fmt: skip


def test_a_suppressed_check_is_shown_and_does_not_fail() -> None:
    found = results(PLAIN)
    found["runtime"]["alpha"] = 0.1
    allowed = suppressed("runtime-error")
    checks, said, reason = judged(allowed, found, TODAY)
    one = next(one for one in checks if one.id == "runtime-error")
    assert (one.status, one.would_be, one.observed) == ("suppressed", "fail", 0.1)
    assert one.suppression == RecordedSuppression("Ticket 7.", "A. Person", "2026-06-01")
    assert said == "pass"
    assert reason.startswith(
        "12 checks hold, 5 of the policy and 7 of the measurement itself; 1 suppressed or not assessed: runtime-error. "
    )
    suppression = "Check runtime-error would have failed, but is suppressed until 2026-06-01 by A. Person."
    assert reason.endswith(f"{suppression} {BY_CHANCE['pass']}")


def test_who_answers_for_what_would_have_failed_comes_first() -> None:
    text = policy("complete; worst_completeness; min = 0.1\nother; iou; min = 0.1\nopen; accuracy; min = 0.1\n"
                  "device; runtime_error; max = 0.01\nhonest; flags; max = 0").text  # fmt: skip
    for name, who in (("other", "First"), ("device", "Second"), ("honest", "Third")):
        text += f'[[suppression]]\ncheck = "{name}"\nreason = "x"\napprover = "{who}"\nexpires = 2026-06-01\n'
    allowed = parse_policy(text.replace('metric = "accuracy"', 'metric = "accuracy"\nrequired = false'), "p.toml")
    found = results(allowed)
    found["metrics"] = [one for one in found["metrics"] if one["name"] not in ("iou", "accuracy")]
    found["runtime"]["alpha"] = 0.1
    found["flags"] = [flag("constant", 900)]
    _, said, reason = judged(allowed, found, TODAY)
    assert said == "pass"
    assert reason == (
        "8 checks hold, 1 of the policy and 7 of the measurement itself; 4 suppressed or not assessed: device, honest, "
        "other, open. Check device would have failed, but is suppressed until 2026-06-01 by Second. Check honest would "
        f"have failed, but is suppressed until 2026-06-01 by Third. {BY_CHANCE['pass']}"
    )


def test_what_was_open_and_is_suppressed_is_not_said_to_have_failed() -> None:
    text = policy("complete; worst_completeness; min = 0.1\nother; iou; min = 0.1").text
    text += '[[suppression]]\ncheck = "other"\nreason = "x"\napprover = "First"\nexpires = 2026-06-01\n'
    allowed = parse_policy(text, "p.toml")
    found = results(allowed)
    found["metrics"] = [one for one in found["metrics"] if one["name"] != "iou"]
    assert judged(allowed, found, TODAY)[1:] == (
        "pass", "8 checks hold, 1 of the policy and 7 of the measurement itself; 1 suppressed or not assessed: other. "
        f"Check other is suppressed until 2026-06-01 by First. {BY_CHANCE['pass']}"
    )  # fmt: skip


def test_an_expired_suppression_counts_no_more_and_is_seen() -> None:
    found = results(PLAIN)
    found["runtime"]["alpha"] = 0.1
    allowed = suppressed("runtime-error")
    assert judged(allowed, found, date(2026, 6, 2))[1] == "fail"
    said = check(allowed, found, "suppression-expired:runtime-error", date(2026, 6, 2))
    assert (said.status, said.severity) == ("inconclusive", "info")
    assert "expired on 2026-06-01 and is not applied" in said.reason
    assert "Ticket 7" in said.reason
    found["runtime"]["alpha"] = 0.0
    assert judged(allowed, found, date(2026, 6, 2))[1] == "pass"


def test_a_suppression_of_what_holds_is_said_to_be_idle() -> None:
    said = check(suppressed("runtime-error"), results(PLAIN), "runtime-error")
    assert said.status == "pass"
    assert said.reason.endswith("Its suppression is not needed.")


def test_a_single_cheat_is_suppressed_and_the_others_count() -> None:
    found = results(PLAIN)
    found["flags"] = [flag("constant", 900)]
    assert verdict(PLAIN, found) == "fail"
    allowed = suppressed("cheat-constant")
    assert verdict(allowed, found) == "pass"
    assert statuses(allowed, found)["cheat-constant"] == "suppressed"
    assert "cheat-constant" in judged(allowed, found, TODAY)[2]
    found["flags"].append(POSITION_ONLY)
    assert verdict(allowed, found) == "fail"
    assert statuses(suppressed("no-cheat-flag"), found)["cheat-position-only"] == "suppressed"


def test_when_every_check_is_suppressed_nothing_was_judged() -> None:
    asked = policy("complete; worst_completeness; min = 0.9", more="")
    text = asked.text + '[[suppression]]\ncheck = "complete"\nreason = "x"\napprover = "y"\nexpires = 2030-01-01\n'
    assert verdict(parse_policy(text, "p.toml"), results(asked)) == "inconclusive"


# Named findings -------------------------------------------------------------------------------------------------------

FLAGS = [
    (Flag("same-map-for-all-labels", "maps", 201, 1000), "cheat-one-map-for-all-labels", "fail"),
    (Flag("same-map-for-all-labels", "maps", 200, 1000), "some-labels-share-a-map", "pass"),
    (Flag("position-only", "maps", 600, 1000), "cheat-position-only", "fail"),
    (Flag("position-only", "maps", 50, 1000), "some-images-share-a-map", "pass"),
    (Flag("same-map-for-all-labels", "maps", 2, 2), "cheat-one-map-for-all-labels", "fail"),
    (Flag("constant", "maps", 501, 1000), "cheat-constant", "fail"),
    (Flag("constant", "maps", 500, 1000), "some-constant-maps", "pass"),
    (Flag("ties", "maps", 1000, 1000), "heavy-ties", "pass"),
    (Flag("tie-order-matters", "maps", infill="gray", value=0.123), "tie-order-matters", "pass"),
    (Flag("maps-missing", "maps", 10), "maps-missing", "pass"),
    (Flag("position-only", "a: b\nc", 40, 40), "cheat-position-only", "fail"),
]


@pytest.mark.parametrize(("raised", "name", "expected"), FLAGS)
def test_every_flag_has_a_finding_of_its_own(raised: Flag, name: str, expected: str) -> None:
    found = results(PLAIN)
    found["flags"] = [to_json(raised)]
    said = check(PLAIN, found, name)
    assert flag_text(raised) in said.reason
    assert verdict(PLAIN, found) == expected
    assert said.severity == ("critical" if expected == "fail" else "info")
    counted = check(PLAIN, found, "no-cheat-flag")
    assert (counted.observed, counted.status) == (expected == "fail", expected)


def test_every_kind_of_flag_about_maps_is_tried() -> None:
    assert {raised.kind for raised, _, _ in FLAGS} == {kind.flag for kind in KINDS}


def binary(*flags: Plain) -> Plain:
    """Plain of a model with two classes."""
    found = results(PLAIN)
    found["subject"]["classes"] = 2
    return found | {"flags": list(flags)}


SHARED = flag("same-map-for-all-labels", 1000)


def test_two_classes_may_share_a_map_and_be_honest_which_leaves_the_verdict_open() -> None:
    found = binary(SHARED)
    said, asked = check(PLAIN, found, "labels-share-a-map"), check(PLAIN, found, "no-cheat-flag")
    assert (said.status, said.severity, said.part_of) == ("inconclusive", "critical", "no-cheat-flag")
    assert "maps: 1000 of 1000 maps on images with several labels are the same for all of them" in said.reason
    assert "signed maps, or another method, would tell them apart" in said.reason
    assert (asked.status, asked.observed) == ("inconclusive", 0)
    assert "labels-share-a-map" in asked.reason
    assert verdict(PLAIN, found) == "inconclusive"
    assert not [name for name in statuses(PLAIN, found) if name.startswith("cheat")]


def test_two_classes_do_not_excuse_another_cheat() -> None:
    found = binary(SHARED, POSITION_ONLY)
    assert statuses(PLAIN, found)["cheat-position-only"] == "fail"
    assert verdict(PLAIN, found) == "fail"


def test_two_classes_with_a_stray_shared_map_pass() -> None:
    found = binary(flag("same-map-for-all-labels", 50))
    assert statuses(PLAIN, found)["some-labels-share-a-map"] == "inconclusive"
    assert verdict(PLAIN, found) == "pass"


@pytest.mark.parametrize("name", ["labels-share-a-map", "no-cheat-flag"])
def test_somebody_may_answer_for_two_classes_that_share_a_map(name: str) -> None:
    said = f'[[suppression]]\ncheck = "{name}"\nreason = "x"\napprover = "y"\nexpires = 2030-01-01\n'
    asked = parse_policy(f"{PLAIN.text}\n{said}", "p.toml")
    assert statuses(asked, binary(SHARED))["labels-share-a-map"] == "suppressed"
    assert verdict(asked, binary(SHARED)) == "pass"


def test_flags_about_the_runtime_and_the_images_are_no_cheats() -> None:
    found = results(PLAIN)
    found["runtime"]["note"] = "tf32 changes insertion by 0.0031 on average, so strict float32 is used"
    found["flags"] = [
        {"kind": "strict-precision-used"}, {"kind": "runtime-off"}, {"kind": "unusable-images", "count": 0, "total": 9},
        {"kind": "copies", "count": 900, "total": 1000},
    ]  # fmt: skip
    assert verdict(PLAIN, found) == "pass"
    assert not [name for name in statuses(PLAIN, found) if name.startswith(("cheat", "not-above"))]


def test_a_policy_may_bear_a_kind_of_cheat() -> None:
    asked = policy("few; flags; max = 1")
    found = results(asked)
    found["flags"] = [flag("position-only", 40, 40)]
    assert statuses(asked, found)["cheat-position-only"] == "fail"
    assert verdict(asked, found) == "pass"
    found["flags"].append(flag("constant", 40, 40))
    assert verdict(asked, found) == "fail"


def test_kinds_are_counted_once() -> None:
    found = results(PLAIN, ("a", "b"))
    found["flags"] = [flag("position-only", 40, 40, name) for name in "ab"]
    assert check(PLAIN, found, "no-cheat-flag").observed == 1
    assert check(PLAIN, found, "cheat-position-only").reason.count("maps are those of other images") == 2


def test_maps_of_another_model_fail(good: Plain) -> None:
    good["run"]["bundle_models"] = {"maps": "12" * 32}
    said = check(DETAILED, good, "identity")
    assert (said.status, said.severity) == ("fail", "critical")
    assert "made for the model 121212121212" in said.reason
    assert verdict(DETAILED, good) == "fail"
    good["run"]["bundle_models"] = {"maps": ""}  # which is no model's
    assert check(DETAILED, good, "identity").status == "fail"
    good["run"]["bundle_models"] = {"maps": None}
    said = check(DETAILED, good, "identity")
    assert (said.status, said.severity) == ("not assessed", "critical")
    assert "maps: the bundle does not say" in said.reason
    assert verdict(DETAILED, good) == "inconclusive"  # else taking the digest out would be the way round it


def test_copies_of_an_image_do_not_count(good: Plain) -> None:
    good["run"]["copies"] = 1
    assert "1 of them are copies" in check(DETAILED, good, "images").reason
    assert verdict(DETAILED, good) == "inconclusive"


def test_what_failed_below_the_level_is_said() -> None:
    good = results(PLAIN)
    for one in pick(good, "metrics", name="best_effort"):
        one.update(value=0.1, low=0.05, high=0.15)
    _, found, reason = judged(PLAIN, good, TODAY, "high")
    assert found == "pass"
    assert "below the severity high that decides: best-effort" in reason


def test_bundles_that_could_not_be_used_are_findings(good: Plain) -> None:
    message = "image 'a', label 3: a picture in colours, not a map: give the scores."
    good["run"]["refused_bundles"] = {"theirs": [{"kind": "colour-picture", "message": message}]}
    assert statuses(DETAILED, good)["cheat-colour-pictures"] == "fail"
    assert verdict(DETAILED, good) == "fail"
    message = "the map of image 'a colour picture' has NaN"  # the kind decides, whatever the words
    good["run"]["refused_bundles"] = {"theirs": [{"kind": "not-finite", "message": message}]}
    assert "cheat-colour-pictures" not in statuses(DETAILED, good)
    assert message in check(DETAILED, good, "maps-usable").reason
    assert statuses(DETAILED, good)["maps-usable"] == "error"
    assert verdict(DETAILED, good) == "inconclusive"


def test_few_images_alone_raise_no_suspicion() -> None:
    found = results(PLAIN, n=10)
    assert not [name for name in statuses(PLAIN, found) if name.startswith("not-above")]


def test_controls_that_are_not_beaten_are_named_even_when_nobody_asks() -> None:
    asked = policy("right; accuracy; min = 0.5")
    found = results(asked)
    (one,) = pick(found, "comparisons", name="worst_completeness", against="control:random")
    one |= {"value": 0.0, "low": -0.01, "high": 0.01}
    said = check(asked, found, "not-above-random")
    assert (said.status, said.severity) == ("inconclusive", "info")
    assert said.title == "Worst completeness above that of a random map"
    assert verdict(asked, found) == "pass"
    for one in found["metrics"]:
        one.update(MISSING if one["name"] in OF_EVERY_LABEL else {})
    (one,) = pick(found, "comparisons", name="insertion", against="control:edges")
    one |= {"value": -0.2, "low": -0.3, "high": -0.1}
    assert check(asked, found, "not-above-edges").metric == "insertion"


# Nothing is gained by leaving things out ------------------------------------------------------------------------------


def drop(key: str, **like: Any) -> Callable[[Plain], None]:
    """Remove the entries that are like that."""

    def change(found: Plain) -> None:
        gone = pick(found, key, **like)
        assert gone
        found[key] = [one for one in found[key] if one not in gone]

    return change


def without_other_labels(found: Plain) -> None:
    """What maps for the predicted label alone leave of an evaluation."""
    for one in found["metrics"]:
        if one["name"] in OF_EVERY_LABEL:
            one.update(not_assessed("maps-missing", one["name"], count=9000, total=10000))
    found["comparisons"] = [one for one in found["comparisons"] if one["name"] not in OF_EVERY_LABEL]


def with_fewer_labels(found: Plain) -> None:
    found["settings"]["labels"] = "top2"


def with_fewer_images(found: Plain) -> None:
    for one in found["metrics"] + found["comparisons"] + found["controls"]:
        one["n"] = min(one["n"], 999)
    found["subject"]["images"]["count"] = 999


def with_images_without_maps(found: Plain) -> None:
    """A bundle without maps for the images that would pull it down."""
    found["subject"]["images"]["count"] = 1100


def with_unreadable_images(found: Plain) -> None:
    found["failed_images"] = [{"image": "a.png", "reason": "not a picture"}]


def with_a_wider_net(found: Plain) -> None:
    found["settings"]["confidence"] = 0.5


def without_the_controls(found: Plain) -> None:
    found["controls"] = []
    found["comparisons"] = []
    found["settings"]["controls"] = False


def with_another_start(found: Plain) -> None:
    found["settings"]["range"] = [0.5, 1.0]


LEFT_OUT: dict[str, Callable[[Plain], None]] = {
    "maps for other labels": without_other_labels, "labels": with_fewer_labels, "images": with_fewer_images,
    "maps of some images": with_images_without_maps, "files": with_unreadable_images, "width": with_a_wider_net,
    "all controls": without_the_controls, "half of the curve": with_another_start,
    "comparisons": lambda found: found.update(comparisons=[]), "controls": lambda found: found.update(controls=[]),
    "runtime": lambda found: found.update(runtime=None), "stages": lambda found: found.update(randomisation=None),
    "reference": lambda found: found["runtime"].update(reference=None),
    "metrics": lambda found: found.update(metrics=[]), "series": lambda found: found["randomisation"].update(series=[]),
    "bundles": lambda found: found["run"].update(bundles={}),
    **{f"control {name}": drop("controls", bundle=f"control:{name}") for name in (*CONTROLS[:-1], "one-map:maps")},
    **{f"comparison {name}": drop("comparisons", name="worst_completeness", against=f"control:{name}")
       for name in (*CONTROLS[:-1], "one-map:maps")},
    **{f"metric {name}": drop("metrics", name=name) for name in ("soundness", "best_effort")},
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT_OUT)
def test_leaving_out(what: str, good: Plain) -> None:
    LEFT_OUT[what](good)
    checks, said, reason = judged(DETAILED, good, TODAY)
    assert said in ("inconclusive", "fail")
    assert reason
    assert any(one.status not in ("pass", "suppressed") for one in checks)
    assert "control:" not in " ".join([reason, *(f"{one.title} {one.reason}" for one in checks)])


REFUSED: dict[str, Callable[[Plain], object]] = {
    "flags": lambda found: found.update(flags=None), "classes": lambda found: found["subject"].pop("classes"),
    "count": lambda found: found["subject"]["images"].pop("count"),
    "model": lambda found: found["subject"].pop("model"),
    "reference": lambda found: found["runtime"].pop("reference"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_leaving_out_what_every_result_has(what: str, good: Plain) -> None:
    REFUSED[what](good)
    assert what in refusal(good)


def keys(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where an object has a key, at every depth; of a list, in its first entry."""
    if isinstance(value, dict):
        for name, held in value.items():
            yield (*path, name)
            yield from keys(held, (*path, name))
    if isinstance(value, list) and value:
        yield from keys(value[0], (*path, 0))


def holder(plain: Plain, path: tuple[str | int, ...]) -> Any:
    """The object that has the last key of the path."""
    found: Any = plain
    for name in path[:-1]:
        found = found[name]
    return found


def outcome(plain: Plain) -> str:
    """The verdict of strict; "refused" where the results are not read, in a sentence that names the file."""
    try:
        return verdict(DETAILED, plain)
    except BadInput as error:
        return "refused" if str(error).startswith("results.json") else str(error)


DISPENSABLE = (  # keys without which results are read and pass: what they hold is not judged, or is None anyway
    "subject.card.*", "environment.*", "*.not_assessed", "*.note", "checks", "verdict", "randomisation.layers",
    "comparisons.0.against",  # of insertion, which strict asks nothing of
    "points.0.errors.*",  # a source without that figure
    "run.bundle_models*",  # of runs that no audit made: identity is "not assessed"
)  # fmt: skip
REQUIRED = [item.name for item in fields(Results) if item.default is NO_DEFAULT]


@pytest.mark.parametrize("key", REQUIRED)
def test_leaving_out_a_key(key: str, good: Plain) -> None:
    del good[key]
    assert refusal(good) == f"results.json lacks '{key}'; it is not what auditkit wrote."


def test_leaving_out_any_key_at_any_depth_is_no_better(good: Plain) -> None:
    """A key that may be missing is one that the verdict does without, or misses."""
    passing = []
    for path in list(keys(good)):
        values = holder(good, path)
        held = values.pop(path[-1])
        if outcome(good) == "pass":
            passing.append(".".join(str(name) for name in path))
        values[path[-1]] = held
    assert [name for name in passing if not any(fnmatch(name, pattern) for pattern in DISPENSABLE)] == []
    assert outcome(good) == "pass"


@pytest.mark.parametrize("nothing", [None, [], {}, "", 3, "text"])
def test_emptying_a_key_is_no_better_and_never_an_error_of_ours(nothing: Any, good: Plain) -> None:
    harmless = {"tool", "environment", "classes_are", "classes", "reliability", "limitations", "failed_images"}
    for key in REQUIRED:
        said = outcome(copy.deepcopy(good) | {key: nothing})
        assert said != "pass" or key in harmless or (key, nothing) == ("flags", []), key
    assert outcome(good | dict.fromkeys(REQUIRED, nothing)) == "refused"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "0.9", True, [], {}])
def test_a_damaged_figure_is_refused(wrong: Any, good: Plain) -> None:
    for key in ("value", "low", "high"):
        changed = copy.deepcopy(good)
        (one,) = pick(changed, "metrics", name="best_effort", infill="gray")
        one[key] = wrong
        index = changed["metrics"].index(one)
        assert refusal(changed) == f"results.json.metrics[{index}].{key} is {wrong!r}, expected a finite number."


@pytest.mark.parametrize("change", [{"low": 0.7, "high": 0.5}, {"low": None}, {"high": None}, {"n": 0}, {"n": -1}])
@pytest.mark.parametrize("key", ["metrics", "controls", "comparisons", "randomisation"])
def test_a_figure_whose_parts_do_not_go_together_is_refused(key: str, change: Plain, good: Plain) -> None:
    entries = good["randomisation"]["series"] if key == "randomisation" else good[key]
    entries[-1].update(change)
    said = refusal(good)
    where = "randomisation.series" if key == "randomisation" else key
    assert said.startswith(f"results.json.{where}[{len(entries) - 1}] has a")


@pytest.mark.parametrize("name", ["insertion", "alpha", "beta"])
def test_a_runtime_with_a_reference_knows_every_change(name: str, good: Plain) -> None:
    good["runtime"][name] = None
    assert refusal(good) == f"results.json.runtime is 'compared with a reference' without '{name}'."


NUMBERED = [kind for kind in get_args(FlagKind) if kind not in ("runtime-off", "strict-precision-used")]


@pytest.mark.parametrize("kind", NUMBERED)
def test_a_flag_without_its_numbers_is_refused(kind: str, good: Plain) -> None:
    """Else a cheat would be had for nothing, or a sentence would say None."""
    good["flags"] = [{"kind": kind}]
    assert refusal(good).startswith(f"results.json.flags[0] is '{kind}' without '")
    good["flags"] = [{"kind": f"{kind}?", "bundle": "maps", "count": 1, "total": 1}]
    assert "expected one of copies, unusable-images" in refusal(good)


@pytest.mark.parametrize("cause", ["maps-missing", "no-second-label", "no-second-label-above"])
def test_a_reason_without_its_numbers_is_refused(cause: str, good: Plain) -> None:
    pick(good, "metrics", name="best_effort")[0].update(not_assessed(cause))
    assert f".not_assessed is '{cause}' without '" in refusal(good)


@pytest.mark.parametrize("kind", ["equal-values", "tuned-delta", "images-with-second-label", "images-with-region"])
def test_a_note_without_its_numbers_is_refused(kind: str, good: Plain) -> None:
    pick(good, "metrics", name="best_effort")[0]["note"] = {"kind": kind}
    assert f".note is '{kind}' without '" in refusal(good)


OTHER_SETTINGS: Plain = {
    "labels": "top2", "renormalise": True, "protocol": "rise", "infill": ["random"], "steps": "17", "range": [0.1, 0.9],
    "eps1": 0.02, "eps2": 0.002, "ties": "stable", "tie_orders": 3, "draws": 9, "controls": False,
    "deletion": False, "saliency": "none", "confidence": 0.9, "interval": "bca",
    "conventions": {"crop_offset": "rounded up"},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_every_setting_of_the_policy_is_held_to(name: str, good: Plain) -> None:
    assert set(good["settings"]) == {*OTHER_SETTINGS, "seed"}
    good["settings"][name] = OTHER_SETTINGS[name]
    was = getattr(parsed(good).settings, name)
    said = check(DETAILED, good, "settings")
    assert said.status == "error"
    written = ", ".join(map(str, was)) if isinstance(was, tuple) else str(was)
    assert said.reason.startswith(f"Measured with {name} {written} instead of ")
    assert verdict(DETAILED, good) != "pass"
    del good["settings"][name]
    assert refusal(good) == f"results.json.settings lacks '{name}'; it is not what auditkit wrote."


def test_the_seed_is_not_the_policys(good: Plain) -> None:
    """It follows from the salt of the audit."""
    good["settings"]["seed"] += 1
    assert check(DETAILED, good, "settings").status == "pass"


def test_images_may_fail_up_to_the_share_that_the_policy_bears() -> None:
    asked = policy("complete; worst_completeness; min = 0.4", "minimum_images = 50\nmax_failed_images = 0.1")
    for failed, expected in ((0, "pass"), (10, "pass"), (12, "inconclusive")):
        found = results(asked, n=100 - failed)
        found["failed_images"] = [{"image": str(number), "reason": "torn"} for number in range(failed)]
        assert verdict(asked, found) == expected
        assert "100 images were measured" in check(asked, found, "images").reason


def test_images_are_counted_under_every_infill() -> None:
    asked = policy("right; accuracy; min = 0.5", 'minimum_images = 50\ninfill = ["gray", "blur"]')
    found = results(asked, n=60)
    assert verdict(asked, found) == "pass"
    for one in pick(found, "metrics", infill="blur"):
        one["n"] = 40
    assert check(asked, found, "images").observed == 40
    assert verdict(asked, found) == "inconclusive"


def test_images_without_a_label_in_the_set_are_not_lost() -> None:
    asked = policy("complete; worst_completeness; min = 0.4", 'minimum_images = 50\nlabels = "f>=0.3"')
    found = results(asked, n=90)
    found["subject"]["images"]["count"] = 100
    assert verdict(asked, found) == "inconclusive"
    found["flags"] = [{"kind": "images-without-label", "count": 10, "total": 100}]
    assert verdict(asked, found) == "pass"


def test_a_policy_that_asks_nothing_of_other_labels_does_not_need_them() -> None:
    asked = policy('shown; insertion; min = 0.5\nabove; insertion; min_margin_over = "control:0"')
    found = results(asked)
    without_other_labels(found)
    found["controls"] = [one for one in found["controls"] if "one-map" not in one["bundle"]]
    assert check(asked, found, "labels").severity == "info"
    assert verdict(asked, found) == "pass"


# Points of curves -----------------------------------------------------------------------------------------------------


def test_a_limit_that_is_kept_by_less_than_the_curves_may_be_off_is_not_kept_for_certain() -> None:
    asked = policy('above; worst_completeness; min_margin_over = "control:0.1"')
    found = results(asked)  # the margin is 0.2 over every control
    assert verdict(asked, found) == "pass"
    pick(found, "points", bundle="control:one-map:maps")[0]["errors"]["worst_completeness"] = 0.11
    result = check(asked, found, "above")
    assert (result.status, "it may be off by 0.11." in result.reason) == ("inconclusive", True)
    assert verdict(asked, found) == "inconclusive"


def test_only_what_is_judged_needs_points() -> None:
    asked = policy('complete; worst_completeness; min_margin_over = "control:random:0"')
    found = results(asked)
    pick(found, "points", bundle="control:edges")[0]["errors"]["worst_completeness"] = 0.5
    assert verdict(asked, found) == "pass"
    pick(found, "points", bundle="control:random")[0]["errors"]["worst_completeness"] = 0.5
    assert verdict(asked, found) == "inconclusive"
    assert verdict(policy("pointed; pointing_game; min = 0.5"), found) == "pass"


def test_points_are_not_known_better_than_the_results_say() -> None:
    asked = policy("complete; worst_completeness; min = 0.5")
    found = results(asked)
    found["points"][0] |= {"errors": {}, "error": 0.4}  # the largest of all figures
    assert check(asked, found, "complete").status == "inconclusive"


def test_errors_that_nobody_knows_are_no_pass(good: Plain) -> None:
    good["points"][0] |= {"errors": {}, "error": None}
    assert verdict(DETAILED, good) == "inconclusive"
    good["points"] = good["points"][1:]
    assert verdict(DETAILED, good) == "inconclusive"


@pytest.mark.parametrize("error", ["0.1", float("nan")])
def test_errors_that_are_no_numbers_are_refused(error: Any, good: Plain) -> None:
    good["points"][0]["errors"]["worst_completeness"] = error
    assert refusal(good).startswith("results.json.points[0].errors.worst_completeness is ")
    good["points"][0] |= {"errors": {}, "error": error}
    assert refusal(good).startswith("results.json.points[0].error is ")


# Tests that decide ----------------------------------------------------------------------------------------------------

MARGINS = policy('above; insertion; min_margin_over = "control:0"\nshown; insertion; min = 0.5')


class Drawn:
    """Samples of figures that were drawn: the insertion of the maps, and its margin over each control."""

    def __init__(self, shown: np.ndarray, margins: dict[str, np.ndarray]) -> None:
        self.shown, self.margins = shown, margins

    def of_metric(self, _name: str, _bundle: str, _infill: str) -> Sample:
        return Sample(self.shown, (0.0, 1.0))

    def of_margin(self, _name: str, _bundle: str, _infill: str, control: str) -> Sample:
        return Sample(self.margins[control], (-1.0, 1.0))

    def same_curves(self, _bundle: str, _infill: str, _control: str) -> bool:
        return False


def drawn_verdict(rng: np.random.Generator, shown: float, margins: list[float], n: int) -> Results:
    """The verdict on n images with these means; the values of a control are correlated with those of the others."""
    shared, names = rng.standard_normal(n), [f"control:{name}" for name in CONTROLS if name != "one-map"]
    values = {name: mean + np.clip(0.1 * shared + 0.1 * rng.standard_normal(n), -0.3, 0.3)
              for name, mean in zip(names, margins, strict=True)}  # fmt: skip
    drawn = Drawn(shown + np.clip(0.1 * shared, -0.3, 0.3), values)
    return judge(MARGINS, complete_results(n), drawn, TODAY)  # type: ignore[arg-type]


@functools.cache
def complete_results(n: int) -> Results:
    return parsed(results(MARGINS, n=n))


def test_a_false_verdict_is_rare_however_many_checks_there_are() -> None:
    """On the limits themselves, where both a pass and a fail would be wrong."""
    rng, runs = np.random.default_rng(8), 60
    verdicts = [drawn_verdict(rng, 0.5, [0.0] * 7, 50).verdict for _ in range(runs)]
    most = stats.binom.ppf(0.999, runs, 0.05)
    assert verdicts.count("pass") <= most
    assert verdicts.count("fail") <= most
    one_misses = [drawn_verdict(rng, 0.65, [0.2] * 6 + [0.0], 50).verdict for _ in range(runs)]
    assert one_misses.count("pass") <= most
    assert drawn_verdict(rng, 0.65, [0.2] * 7, 60).verdict == "pass"
    assert drawn_verdict(rng, 0.65, [0.2] * 6 + [-0.2], 60).verdict == "fail"


def test_one_failure_among_many_tests_must_be_clear() -> None:
    """The mean of the e-values decides: a check can fail on its own and leave the verdict open."""
    rng, n = np.random.default_rng(0), 60
    high, low = np.full(n, 0.3), rng.permutation(np.repeat([-0.3, 0.1], n // 2))
    names = [f"control:{name}" for name in CONTROLS if name != "one-map"]
    drawn = Drawn(np.full(n, 0.9), dict.fromkeys(names, high) | {"control:edges": low})
    found = judge(MARGINS, complete_results(n), drawn, TODAY)  # type: ignore[arg-type]
    failed = next(result for result in found.checks if result.id == "above")
    assert (failed.status, failed.evidence.tests) == ("fail", len(names))
    e_value = Sample(low, (-1.0, 1.0)).e_below(0.0)
    others = (len(names) - 1) * Sample(high, (-1.0, 1.0)).e_below(0.0)
    assert failed.evidence.fails == pytest.approx((e_value + others) / len(names))
    assert 20 <= e_value < 20 * (len(names) + 1)  # one more test is that of `shown`
    assert found.verdict == "inconclusive"
    assert found.verdict_reason.startswith(
        "1 of 8 checks failed or are undecided. Failed: “insertion above every control”. Insertion of maps minus that "
        "of edges on"
    )
    assert found.verdict_reason.endswith("With so many tests, a failure may still be chance; add images to settle it.")
    drawn.margins["control:edges"] = low - 0.1
    found = judge(MARGINS, complete_results(n), drawn, TODAY)  # type: ignore[arg-type]
    assert found.verdict == "fail"
    assert found.verdict_reason.endswith(BY_CHANCE["fail"])


def test_the_interval_beside_a_decision_is_that_of_the_test() -> None:
    n = 60
    names = [f"control:{name}" for name in CONTROLS if name != "one-map"]
    drawn = Drawn(np.ones(n), dict.fromkeys(names, np.full(n, 0.3)))
    found = judge(MARGINS, complete_results(n), drawn, TODAY)  # type: ignore[arg-type]
    shown = next(result for result in found.checks if result.id == "shown")
    assert (shown.low, shown.high) == Sample(np.ones(n), (0.0, 1.0)).interval
    assert (shown.status, shown.high) == ("pass", 1.0)
    assert 0.9 < shown.low < 0.95  # equal values leave room for images that were not seen


# Planted cheats, measured ---------------------------------------------------------------------------------------------

SIZE, COUNT, LABELS = 64, 20, 10
PLANTED = policy('above; worst_completeness; min_margin_over = "control:0"\nhonest; flags; max = 0',
                 f'minimum_images = {COUNT}\nlabels = "top2"\nsteps = 6')  # fmt: skip


def one_map(rng: np.random.Generator, _pixels: np.ndarray) -> np.ndarray:
    return np.repeat(rng.standard_normal((1, SIZE, SIZE)), LABELS, axis=0)


def gaussian(_rng: np.random.Generator, pixels: np.ndarray) -> np.ndarray:
    return np.repeat(centred_gaussian(pixels, 0)[None], LABELS, axis=0)


def noise(rng: np.random.Generator, _pixels: np.ndarray) -> np.ndarray:
    return rng.standard_normal((LABELS, SIZE, SIZE))


def outlines(_rng: np.random.Generator, pixels: np.ndarray) -> np.ndarray:
    # A power of two rounds nothing: other factors would tie pixels that the control does not.
    return np.stack([edges(pixels, 0) * 2.0**label for label in range(LABELS)])


def flat(_rng: np.random.Generator, pixels: np.ndarray) -> np.ndarray:
    return np.stack([np.full((SIZE, SIZE), float(label)) for label in range(LABELS)])


def noisy(make: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The same cheat, hidden under noise of 1 % of each map's range."""

    def made(rng: np.random.Generator, pixels: np.ndarray) -> np.ndarray:
        maps = make(rng, pixels)
        return maps + 0.01 * np.ptp(maps, axis=(1, 2), keepdims=True) * rng.standard_normal(maps.shape)

    made.__name__ = f"noisy {make.__name__}"
    return made


def smooth_map(rng: np.random.Generator, _pixels: np.ndarray) -> np.ndarray:
    """Hills that differ from image to image and serve all labels of it."""
    return np.stack([ndimage.gaussian_filter(rng.standard_normal((SIZE, SIZE)), 5)] * LABELS)


def blobs(_rng: np.random.Generator, pixels: np.ndarray) -> np.ndarray:
    return np.stack([blurred_edges(pixels, 0)] * LABELS)


CHEATS: dict[str, tuple[Callable[..., np.ndarray], set[str]]] = {
    "one map for all labels, with noise": (noisy(smooth_map), {"cheat-one-map-for-all-labels"}),
    "a bump in the middle, with noise": (noisy(gaussian), {"cheat-position-only", "cheat-one-map-for-all-labels"}),
    "blurred edges": (blobs, {"cheat-one-map-for-all-labels", "not-above-blurred-edges"}),
    "blurred edges, with noise": (noisy(blobs), {"cheat-one-map-for-all-labels"}),
    "one map for all labels": (one_map, {"cheat-one-map-for-all-labels"}),
    "a bump in the middle": (gaussian, {"cheat-position-only", "not-above-centred-gaussian"}),
    "random maps": (noise, {"not-above-random"}),
    "an edge detector": (outlines, {"not-above-edges"}),
    "maps that say nothing": (flat, {"cheat-constant"}),
}


Measured = tuple[Plain, Samples]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Measured]:
    """Results of maps for the images of the planted truth, by the policy's own settings, and their samples."""
    folder = tmp_path_factory.mktemp("planted")
    images = draw(COUNT, seed=3, tags="random").images
    model = auditkit.load(bundled_model("honest"), settings=auditkit.Settings(device="cpu"))
    settings = PLANTED.evaluation

    @functools.cache
    def measured(make: Any) -> Measured:
        name = make if isinstance(make, str) else make.__name__
        if isinstance(make, str):
            auditkit.explain(model, images, folder / name, make, labels=settings.labels)
        else:
            rng, bundle = np.random.default_rng(5), auditkit.Bundle(folder / name, model=str(bundled_model("honest")))
            for index, pixels in enumerate(images):
                bundle.add([str(index)] * LABELS, list(range(LABELS)), make(rng, pixels).astype(np.float32))
        out = folder / f"run {name}"
        summary = auditkit.evaluate(model, images, folder / name, out=out, steps=6, labels=settings.labels)
        found: Plain = json.loads((out / "results.json").read_text())
        found["run"]["bundle_models"] = {name: found["subject"]["model"]["identity"]}
        return found | {"randomisation": None}, summary.samples

    return measured


def judged_as_planted(measured: Measured) -> Results:
    plain, samples = measured
    return judge(PLANTED, parsed(plain), samples, TODAY)


@pytest.mark.parametrize("name", CHEATS)
def test_planted_cheats_are_named(name: str, planted: Callable[[Any], Measured]) -> None:
    make, names = CHEATS[name]
    found = judged_as_planted(planted(make))
    said = {result.id: result.status for result in found.checks}
    assert names <= set(said)
    assert found.verdict != "pass"
    assert [said[one] for one in EVIDENCE] == ["pass"] * len(EVIDENCE)


@pytest.mark.parametrize(("make", "control"), [(outlines, "edges"), (gaussian, "centred-gaussian")])
def test_a_control_that_poses_as_maps_fails(
    make: Callable[..., np.ndarray], control: str, planted: Callable[[Any], Measured]
) -> None:
    """Its figures equal the control's on every image, which no test of means could tell from a small margin."""
    checks = {result.id: result for result in judged_as_planted(planted(make)).checks}
    assert checks[f"not-above-{control}"].status == "fail"
    assert "On every image its curves are the control's." in checks[f"not-above-{control}"].reason
    assert checks["above"].status == "fail"


@pytest.mark.parametrize("method", ["gradient-input", "grad-cam"])
def test_honest_maps_are_not_called_cheats(method: str, planted: Callable[[Any], Measured]) -> None:
    said = {result.id: result.status for result in judged_as_planted(planted(method)).checks}
    assert not [name for name in said if name.startswith("cheat")]
    assert said["honest"] == "pass"


def test_the_reason_that_lies_with_the_model_is_the_evaluations_own(planted: Callable[[Any], Measured]) -> None:
    """Findings know it by its cause: the planted model is that sure of its images."""
    (best_effort,) = (entry for entry in parsed(planted(noise)[0]).metrics if entry.name == "best_effort")
    assert best_effort.not_assessed == NotAssessed("best_effort", "no-second-label", value=0.01)
    assert best_effort.not_assessed.by_nature


def test_a_stored_run_is_judged_like_one_in_memory(planted: Callable[[Any], Measured], tmp_path: Path) -> None:
    plain, samples = planted(noise)
    measured = parsed(plain)
    with Store.open(tmp_path / "run", {}) as store:
        store.finish(measured)
    stored, expected = (
        judge(PLANTED, source, samples, TODAY) for source in (Store(tmp_path / "run").results(), measured)
    )
    assert (stored.checks, stored.verdict, stored.verdict_reason) == (
        expected.checks, expected.verdict, expected.verdict_reason
    )  # fmt: skip


def test_a_failed_check_says_what_to_do_and_a_passed_one_does_not() -> None:
    asked = policy('complete; worst_completeness; min = 0.5; what_to_do = "Make better maps."')
    found = results(asked)
    assert verdict(asked, found) == "pass"
    assert "What to do" not in check(asked, found, "complete").reason
    for figure in pick(found, "metrics", name="worst_completeness"):
        figure |= {"value": 0.3, "low": 0.2, "high": 0.35}
    assert check(asked, found, "complete").reason.endswith("What to do: Make better maps.")
    assert judged(asked, found, TODAY)[2].endswith("What to do: Make better maps.")


# Preprocessing that nobody stated -------------------------------------------------------------------------------------


STATE_IT = (
    "State the preprocessing with --preset NAME or --card FILE, or write a card with auditkit inspect MODEL "
    "--write-card."
)
GUESS = "Nobody stated the preprocessing: preset imagenet is assumed."


def assumed(found: Plain) -> Plain:
    """The same results with a preset that was assumed."""
    origin = {"source": "preset imagenet (assumed)", "sha256": None, "assumed": "assumed"}
    return found | {"subject": found["subject"] | {"card_origin": origin}}


def test_an_input_size_that_nobody_stated_is_a_guess_too(good: Plain) -> None:
    good["subject"]["card_origin"] = {"source": "preset unit", "sha256": None, "assumed_size": [224, 192]}
    checks, said, _ = judged(DETAILED, good)
    assert said == "inconclusive"
    (finding,) = (entry for entry in checks if entry.id == "preprocessing-stated")
    assert finding.reason.startswith("Nobody stated the input size: 224x192 is assumed, since the file leaves it open.")
    assert finding.what_to_do.startswith("State the input size with --size HEIGHTxWIDTH or --card FILE")


@pytest.mark.parametrize(
    ("dtype", "source", "sha256", "reason"),
    [
        ("float32", "preset unit", None, "The preprocessing was stated by preset unit."),
        ("float32", "vendor.toml", "0" * 64, "The preprocessing was stated by the card vendor.toml."),
        ("uint8", "preset none", None, "The model takes whole pixels as they are."),
    ],
)
def test_the_check_says_who_stated_the_preprocessing(
    good: Plain, dtype: str, source: str, sha256: str | None, reason: str
) -> None:
    good["subject"] |= {"dtype": dtype, "card_origin": {"source": source, "sha256": sha256}}
    finding = check(DETAILED, good, "preprocessing-stated")
    assert (finding.status, finding.reason) == ("pass", reason)


@pytest.mark.parametrize("rules", [DETAILED, read_policy("standard"), read_policy("strict")], ids=lambda p: p.name)
def test_no_policy_passes_on_assumed_preprocessing(rules: Policy) -> None:
    assert rules is not DETAILED or verdict(rules, results(rules)) == "pass"
    checks, said, reason = judged(rules, assumed(results(rules)))
    assert said == "inconclusive"
    assert f"“the preprocessing was stated”. {GUESS}" in reason
    assert reason.endswith(STATE_IT)
    (finding,) = (entry for entry in checks if entry.id == "preprocessing-stated")
    assert (finding.status, finding.counts, finding.what_to_do) == ("inconclusive", True, STATE_IT)


def test_maps_do_not_fail_because_the_preprocessing_may_be_wrong(good: Plain) -> None:
    """A fact about the run, such as a machine that computes otherwise, fails all the same."""
    for one in pick(good, "metrics", name="best_effort"):
        one.update(value=0.33, low=0.31, high=0.35)
    _, said, reason = judged(DETAILED, assumed(good))
    assert (verdict(DETAILED, good), said) == ("fail", "inconclusive")
    assert reason.endswith(STATE_IT)
    good["runtime"]["alpha"] = 0.1
    assert verdict(DETAILED, assumed(good)) == "fail"
