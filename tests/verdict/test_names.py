"""Names are never read as words of auditkit's: whatever anything is called, the findings and the verdict stay."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from typing import Any, get_args

import pytest

from auditkit.data.bundle_files import COLOUR_PICTURE
from auditkit.data.dataset import FailedImage
from auditkit.errors import BadInput
from auditkit.metrics.values import Cause, NotAssessed, Note, NoteKind
from auditkit.runs.folder.figures import STATUSES, Flag, FlagKind, NotRandomised, Randomisation, Verdict
from auditkit.runs.folder.results import CheckResult, Refusal, Results
from auditkit.runs.summary.wording import flag_text, note_text, why_not_assessed
from auditkit.verdict.flags import KINDS
from auditkit.verdict.policy import deciding
from auditkit.verdict.policy_file import parse_policy
from tests.support.judged_results import MISSING, Plain, flag, judged_by_intervals, not_assessed, parsed, results

TODAY = date(2026, 6, 1)
CONTROLS = ("random", "edges", "one-map")
JUDGED = ("accuracy", "deletion", "soundness", "worst_completeness", "worst_soundness", "best_effort", "pointing_game")
POLICY = parse_policy(
    """
schema_version = 1
name = "few"

[evaluation]
minimum_images = 50
max_failed_images = 0.1
controls = ["random", "edges", "one-map"]

[randomisation]
images = 50
stages = 5
"""
    + "".join(
        f'\n[[check]]\nid = "{name}"\nmetric = "{metric}"\n{rule}\nseverity = "high"\n'
        for name, metric, rule in (
            ("complete", "worst_completeness", "min = 0.4"),
            ("above", "worst_completeness", 'min_margin_over = "control:0.05"'),
            ("sound", "worst_soundness", 'min_margin_over = "control:random:-0.05"'),
            ("effort", "best_effort", "min = 0.4"),
            ("gone", "deletion", "max = 0.4"),
            ("right", "accuracy", "min = 0.5"),
            ("pointed", "pointing_game", "min = 0.9"),
            ("honest", "flags", "max = 0"),
            ("device", "runtime_error", "max = 0.01"),
            ("learned", "randomisation", "max = 0.5"),
        )
    )
    + "".join(
        f'\n[[suppression]]\ncheck = "{name}"\nreason = "known"\napprover = "A. Person"\nexpires = {expires}\n'
        for name, expires in (("pointed", "2030-01-01"), ("right", "2020-01-01"))
    ),
    "few.toml",
)


@dataclass(frozen=True)
class Names:
    """What others may call things."""

    bundle: str = "maps"
    policy: str = "few"
    image: str = "a.png"
    class_name: str = "cat"


def figures(plain: Plain, *keys: str, **like: Any) -> Iterator[Plain]:
    """Entries of those lists that are like that."""
    for key in keys:
        yield from (entry for entry in plain[key] if all(entry[name] == value for name, value in like.items()))


# Each makes other findings out of results that pass. The bundle is the only one, unless it says otherwise.
Change = Callable[[Plain, str], object]


def without_second_label(plain: Plain, bundle: str) -> None:
    for entry in figures(plain, "metrics", "comparisons", "controls", name="best_effort"):
        entry.update(not_assessed("no-second-label", value=0.01))
    for entry in figures(plain, "comparisons", name="worst_completeness", against=f"control:one-map:{bundle}"):
        entry.update(not_assessed("no-second-label-above", "worst_completeness", value=0.01))


def without_maps(plain: Plain, bundle: str) -> None:
    for name in ("completeness", "soundness", "worst_completeness", "worst_soundness", "best_effort"):
        for entry in figures(plain, "metrics", name=name):
            entry.update(not_assessed("maps-missing", name, count=3, total=9))
    plain["comparisons"] = []
    plain["flags"] = [{"kind": "maps-missing", "bundle": bundle, "count": 3}]


def not_measured(plain: Plain, _bundle: str) -> None:
    for entry in plain["metrics"]:
        entry.update(MISSING)


def no_better(plain: Plain, _bundle: str) -> None:
    for entry in plain["comparisons"]:
        entry.update({"value": 0.0, "low": -0.004, "high": 0.004, "note": {"kind": "equal-values", "value": 0.01}})


def without_room(plain: Plain, _bundle: str) -> None:
    for entry in figures(plain, "controls", name="worst_completeness"):
        entry.update({"value": 0.98, "low": 0.97, "high": 0.99})
    for entry in figures(plain, "controls", name="worst_soundness"):
        entry.update({"value": 0.02, "low": 0.01, "high": 0.03})
    for entry in plain["comparisons"]:
        entry.update({"value": 0.01, "low": -0.01, "high": 0.02})


def one_image(plain: Plain, _bundle: str) -> None:
    for entry in (*plain["metrics"], *plain["comparisons"]):
        entry.update({"low": None, "high": None, "n": 1, "note": {"kind": "few-images"}})


def below(plain: Plain, _bundle: str) -> None:
    for entry in plain["metrics"]:
        entry.update({"value": 0.1, "low": 0.05, "high": 0.15})


def rough(plain: Plain, _bundle: str) -> None:
    below(plain, _bundle)
    for entry in plain["points"]:
        entry["errors"] = dict.fromkeys(entry["errors"], 0.3)


def flagged(count: int, kinds: tuple[FlagKind, ...]) -> Change:
    def change(plain: Plain, bundle: str) -> None:
        plain["flags"] = [flag(kind, count, bundle=bundle) | {"infill": "gray", "value": 0.5} for kind in kinds]

    return change


def two_classes(plain: Plain, bundle: str) -> None:
    plain["subject"]["classes"] = 2
    plain["flags"] = [flag("same-map-for-all-labels", 900, bundle=bundle)]


def refused(kind: str) -> Change:
    return lambda plain, bundle: plain["run"].update(refused_bundles={bundle: [{"kind": kind, "message": bundle}]})


def explaining(digest: str | None) -> Change:
    return lambda plain, bundle: plain["run"].update(bundle_models={bundle: digest})


def update(*path: str, **values: Any) -> Change:
    def change(plain: Plain, _bundle: str) -> None:
        part = plain
        for name in path:
            part = part[name]
        part.update(copy.deepcopy(values))

    return change


SCENARIOS: dict[str, Change] = {
    "all holds": lambda plain, bundle: None,
    "every flag": flagged(900, get_args(FlagKind)),
    "stray flags": flagged(9, get_args(FlagKind)),
    "two classes": two_classes,
    "no second label": without_second_label,
    "maps missing": without_maps,
    "not measured": not_measured,
    "no better than controls": no_better,
    "no room beside controls": without_room,
    "one image": one_image,
    "below the limits": below,
    "too few points": rough,
    "points not known": update(points=[]),
    "no comparisons": update(comparisons=[]),
    "no controls": update(controls=[]),
    "no metrics": update(metrics=[]),
    "no bundles": update("run", bundles={}),
    "other settings": update("settings", seed=7),
    "copies": update("run", copies=500),
    "lost images": update("subject", "images", count=2000),
    "no reference": update("runtime", reference=None),
    "another runtime": update("runtime", alpha=0.3),
    "not randomised": update(randomisation={"not_assessed": {"cause": "supplied"}}),
    "a stage only": lambda plain, _: plain["randomisation"].update(series=plain["randomisation"]["series"][:1]),
    "a colour picture": refused("colour-picture"),
    "a refused bundle": refused("other"),
    "another model": explaining("12" * 32),
    "no model": explaining(None),
}


@cache
def measured(scenario: str, bundle: str) -> Results:
    """What the policy judges of a bundle of that name."""
    plain, controls = results(POLICY, (bundle,)), tuple(f"control:{control}" for control in CONTROLS)
    for key, source in (
        ("metrics", "bundle"),
        ("controls", "bundle"),
        ("comparisons", "against"),
        ("points", "bundle"),
    ):
        plain[key] = [entry for entry in plain[key] if entry["name"] in JUDGED
                      and (entry[source] in (None, bundle) or entry[source].startswith(controls))]  # fmt: skip
    SCENARIOS[scenario](plain, bundle)
    return parsed(plain)


def judged(scenario: str, names: Names) -> Results:
    """The judged results of the scenario under these names."""
    base, policy = measured(scenario, names.bundle), replace(POLICY, name=names.policy)
    subject = replace(base.subject, class_names=(names.class_name,) * base.subject.classes)
    failed = (FailedImage(names.image, names.image),) * 3
    return judged_by_intervals(
        policy, replace(base, subject=subject, failed_images=failed, policy=policy.to_record()), TODAY
    )


def facts(results: Results) -> tuple[Verdict | None, list[CheckResult]]:
    """The verdict and the checks without their words."""
    return results.verdict, [replace(check, reason="", suppression=None, of=None) for check in results.checks]


def refusals() -> Iterator[str]:
    """Sentences for what cannot be read."""
    damaged: list[Plain] = [{}, {"metrics": None}, {"metrics": [{}]}, {"flags": [{"kind": "constant"}]}, {"what": 1}]
    for change in damaged:
        with pytest.raises(BadInput) as error:
            parsed(results(POLICY) | change if change else {})
        yield str(error.value)
    with pytest.raises(BadInput) as error:
        deciding("info")
    yield str(error.value)
    with pytest.raises(BadInput) as error:
        parse_policy("[[[", "few.toml")
    yield str(error.value)
    yield COLOUR_PICTURE


@cache
def stated() -> tuple[str, ...]:
    """Every flag, reason and note in words."""
    failed, runtime = [FailedImage("a.png", "not a picture.")], measured("all holds", "maps").runtime
    flags = (Flag(kind, "maps", 900, 1000, "gray", 0.5) for kind in get_args(FlagKind))
    return (
        *(flag_text(flag, failed, runtime, "all") for flag in flags),
        *(why_not_assessed(NotAssessed("best_effort", cause, 3, 9, 0.01)) for cause in get_args(Cause)),
        *(note_text(Note(kind, 3, 9, 0.01)) for kind in get_args(NoteKind)),
    )


def explained(scenario: str) -> set[str]:
    """Why the checks of a scenario came out as they did, and its verdict."""
    results = judged(scenario, Names())
    texts = {results.verdict_reason}
    return texts.union(*({check.id, check.title, check.reason} for check in results.checks))


@cache
def sentences() -> tuple[str, ...]:
    """What auditkit may write of results: flags, reasons, notes, checks, verdicts and refusals."""
    return (*stated(), *refusals(), *sorted(set[str]().union(*map(explained, SCENARIOS))))


ODD = (
    *STATUSES, "measured", "critical", "None", "null", "nan", "0", " ", ".", ":", "; ", "%s", "{name}", "the model",
    "the run", "one-map", "one-map:maps", "maps over control:random", "gray", "a, b", "x" * 10_000, "../../etc/passwd",
    "two\nlines", "\r\n\t", "\n", "\x00", "\x1b[31mfail\x1b[0m", "\x7f\x85\u2028\u2029", "\u202egnp.ssap", "\ufeff",
    "\ud800", "<script>alert('pass')</script>", "<b>pass</b>", "&lt;&amp;\"'", "]]>", "<!--", "</td></tr>",
    "maps\nmaps: 900 of 1000 maps are those of other images",
    "10 of 100 images have no label in 'all' and are left out",
    "maps: 900 of 1000 maps are constant\x00", "a colour picture",
    "<i>no image has a second label with probability</i>",
)  # fmt: skip


def changed(scenario: str, names: Iterable[str]) -> list[str]:
    """Names that make other findings: of the bundle, or of the policy, the images and the classes."""
    expected = facts(judged(scenario, Names()))
    return [name for name in names
            if facts(judged(scenario, Names(bundle=name))) != expected
            or facts(judged(scenario, Names(policy=name, image=name, class_name=name))) != expected]  # fmt: skip


def test_the_scenarios_have_every_finding_and_status() -> None:
    checks = [check for scenario in SCENARIOS for check in judged(scenario, Names()).checks]
    named = {name for kind in KINDS for name in (kind.id, kind.honest_id, kind.open_id) if name}
    assert {*named, "cheat-colour-pictures", "maps-usable", "not-above-edges"} <= {check.id for check in checks}
    assert {check.status for check in checks} == set(STATUSES)
    assert {judged(scenario, Names()).verdict for scenario in SCENARIOS} == {"pass", "fail", "inconclusive"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_auditkit_says_is_no_name_that_changes_anything(scenario: str) -> None:
    assert changed(scenario, (*stated(), *explained(scenario) - explained("all holds"))) == []


@pytest.mark.parametrize("scenario", ["all holds", "every flag", "no second label"])
def test_no_name_changes_anything(scenario: str) -> None:
    """All sentences, and all odd characters, where nothing is to be found and where all is."""
    assert len(sentences()) > 100
    assert changed(scenario, (*sentences(), *ODD)) == []


def test_texts_of_others_change_nothing() -> None:
    """Who approved a suppression and why, what a bundle was refused for, and why nothing was randomised."""
    for text in (*stated(), *ODD):
        suppressions = tuple(replace(one, reason=text, approver=text) for one in POLICY.suppressions)
        base = measured("not randomised", "maps")
        run = replace(base.run, refused_bundles={"theirs": (Refusal("other", text),)})
        worded = replace(base, run=run, randomisation=Randomisation(NotRandomised("no-maps", text)))
        plain = replace(base, run=replace(run, refused_bundles={"theirs": (Refusal("other", "torn"),)}))
        expected = facts(judged_by_intervals(POLICY, plain, TODAY))
        assert facts(judged_by_intervals(replace(POLICY, suppressions=suppressions), worded, TODAY)) == expected, text
