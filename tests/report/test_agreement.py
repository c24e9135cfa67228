"""Every form of a run says the same: what failed in one is not green in another, and nothing is counted twice."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditkit.report import wording
from auditkit.report.formats import FORMATS, render
from auditkit.report.load_run import Loaded, load
from tests.report.test_formats import AUDIT, check, examination, finding, junit, made, outcome, page, sarif

__all__ = ["made"]  # a fixture
HELD = check("pass", id="held")
FAILED = check("fail", id="failed", severity="critical")
DETAIL = check("fail", id="detail", counts=False, part_of="failed")
OPEN = check("inconclusive", id="undecided")
ALLOWED = "The tag is part of the task."
RUNS: dict[str, dict[str, Any]] = {
    "pass": {"verdict": "pass", "checks": [HELD, check("suppressed"), check("fail", counts=False)]},
    "fail": {"verdict": "fail", "checks": [HELD, FAILED, DETAIL, OPEN]},
    "inconclusive": {"verdict": "inconclusive", "checks": [HELD, OPEN, check("not assessed", required=False)]},
    "explore": {"verdict": "measured", "checks": [HELD, check("fail", severity="info", counts=False), OPEN,
                                                  check("error")]},
    "shortcut": {"verdict": "pass", "checks": [HELD], "examination": examination(finding(), finding(1, kind="mark"))},
    "allowed": {"verdict": "pass", "checks": [HELD], "examination": examination(finding(allowed=ALLOWED))},
    "mild": {"verdict": "pass", "checks": [HELD], "examination": examination(finding(severity="info"))},
    "explored shortcut": {"verdict": "measured", "checks": [HELD], "examination": examination(finding())},
    "failing shortcut": {"verdict": "pass", "checks": [HELD], "examination": examination(finding()),
                         "finding_gate": {"fail_on": "high", "status": "fail"}},
    "shortcut too mild to fail": {"verdict": "pass", "checks": [HELD], "examination": examination(finding()),
                                  "finding_gate": {"fail_on": "critical", "status": "pass"}},
    "not examined, though a finding would fail": {
        "verdict": "pass", "checks": [HELD], "not_examined": "there are too few images",
        "finding_gate": {"fail_on": "high", "status": "not assessed"},
    },
    "shortcut on a guess": {"verdict": "measured", "checks": [HELD], "examination": examination(finding()),
                            "finding_gate": {"fail_on": "high", "status": "not assessed"}},
    "no shortcut on a guess": {"verdict": "measured", "checks": [HELD], "examination": examination(),
                               "finding_gate": {"fail_on": "high", "status": "not assessed"}},
    "no shortcut": {"verdict": "pass", "checks": [HELD], "examination": examination()},
    "not examined": {"verdict": "pass", "checks": [HELD], "not_examined": "there are too few images"},
}  # fmt: skip
# Failures and errors in JUnit; levels of SARIF's results.
RED: dict[str, tuple[int, int, list[str]]] = {
    "pass": (0, 0, ["note"]), "fail": (1, 1, ["error", "none"]), "inconclusive": (0, 1, ["error", "none"]),
    "explore": (0, 0, []), "shortcut": (0, 0, ["error", "error"]), "allowed": (0, 0, ["note"]),
    "mild": (0, 0, ["note"]), "explored shortcut": (0, 0, ["error"]), "no shortcut": (0, 0, []),
    "failing shortcut": (1, 0, ["error"]), "shortcut too mild to fail": (0, 0, ["error"]),
    "not examined": (0, 0, []), "not examined, though a finding would fail": (0, 1, ["none"]),
    "shortcut on a guess": (0, 1, ["error", "none"]), "no shortcut on a guess": (0, 1, ["none"]),
}  # fmt: skip


@pytest.fixture(params=RUNS)
def loaded(made: Callable[..., Path], request: pytest.FixtureRequest) -> tuple[str, Loaded]:
    return request.param, load(made(**AUDIT | RUNS[request.param]))


def test_statuses_are_the_same_in_every_form(loaded: tuple[str, Loaded]) -> None:
    results, folder = loaded[1].results, loaded[1].folder
    statuses = {entry.id: entry.status for entry in results.checks}
    in_sarif = sarif(folder)["properties"]["statuses"]
    assert {key: in_sarif[key] for key in statuses} == statuses
    assert in_sarif["auditkit:verdict"] == results.verdict
    words = {entry.title: wording.status(entry.status).word for entry in results.checks}
    cells = [["".join(cell.itertext()) for cell in row] for row in page(folder).iter("tr")]
    in_markdown = {row[1]: row[0].split(" ", 1)[1].removesuffix(" (not counted)") for row in cells if row[1] in words}
    assert in_markdown == words
    html = render(loaded[1], "html")  # what does not count has a table of its own
    rows = re.findall(r'data-label="status">.*?</span>\s*([\w ]+?)</span>.*?<th scope="row">([^<]+)', html, re.DOTALL)
    assert {title: word for word, title in rows} == words
    output = str(junit(folder).findtext("system-out"))
    assert all(f"{word}: {title}: " in output for title, word in words.items())
    bom = json.loads(render(loaded[1], "cyclonedx"))["metadata"]["properties"]
    marked = {
        entry["name"].removeprefix("auditkit:status:"): entry["value"]
        for entry in bom
        if entry["name"] not in ("auditkit:results.json:sha256", "auditkit:finding_gate")
    }
    assert marked == in_sarif
    (assessed,) = json.loads(render(loaded[1], "oscal"))["assessment-results"]["results"]
    observed = [{each["name"]: each["value"] for each in entry["props"]} for entry in assessed["observations"]]
    assert {entry["id"]: entry["status"] for entry in observed} == in_sarif


def test_oscal_satisfies_what_junit_passes(loaded: tuple[str, Loaded]) -> None:
    """What is red in the one is not satisfied in the other, and nothing else is."""
    (assessed,) = json.loads(render(loaded[1], "oscal"))["assessment-results"]["results"]
    states = {entry["props"][0]["value"].removeprefix("auditkit:"): entry["target"]["status"]["state"]
              for entry in assessed["findings"]}  # fmt: skip
    suite, verdict = junit(loaded[1].folder), states.pop("verdict", None)
    outcomes = {str(case.get("name")): outcome(suite, str(case.get("name"))) for case in suite.iter("testcase")}
    for name, seen in outcomes.items():
        if seen in ("failure", "error"):
            assert states.get(name, verdict) == "not-satisfied"
        elif name != "verdict":
            assert states.get(name) in (None, "satisfied")
    assert (verdict == "satisfied") is (loaded[1].results.verdict == "pass")


def test_findings_are_the_same_in_every_form(loaded: tuple[str, Loaded]) -> None:
    results, folder = loaded[1].results, loaded[1].folder
    findings = results.examination.findings if results.examination else ()
    in_sarif = [one for one in sarif(folder)["results"] if one["ruleId"].startswith("examination:")]
    assert [one["ruleId"] for one in in_sarif] == [f"examination:{one.kind}" for one in findings]
    assert [bool(one["suppressions"]) for one in in_sarif] == [bool(one.allowed) for one in findings]
    cases = [case for case in junit(folder).iter("testcase") if case.get("classname") == "auditkit.examination"]
    gate = results.finding_gate
    not_judged = bool(results.not_examined) or (gate is not None and gate.status == "not assessed")
    no_finding = results.examination is not None and not findings
    assert len(cases) == len(findings) + (not_judged or no_finding)
    html = render(loaded[1], "html")
    for found, case in zip(findings, cases, strict=False):
        text = f"{case[0].get('message')}{case[0].text}"
        assert (ALLOWED in text) is (ALLOWED in html) is bool(found.allowed)
        assert ("what to do: " in text) is not bool(found.allowed)
        fails = loaded[0] == "failing shortcut"
        assert case[0].tag == ("system-out" if found.allowed else "failure" if fails else "skipped")


def test_each_problem_is_counted_once_and_a_code_of_0_is_not_red(loaded: tuple[str, Loaded]) -> None:
    """Except for the alerts of SARIF, which show every shortcut."""
    kind, folder, results = loaded[0], loaded[1].folder, loaded[1].results
    suite, run = junit(folder), sarif(folder)
    failures, errors, levels = RED[kind]
    assert (suite.get("failures"), suite.get("errors")) == (str(failures), str(errors))
    assert [one["level"] for one in run["results"]] == levels
    code = run["invocations"][0]["exitCode"]
    assert code == results.exit_code
    notices = [one["level"] for one in run["invocations"][0]["toolExecutionNotifications"]]
    alerts = [one["level"] for one in run["results"] if not one["ruleId"].startswith("examination:")]
    assert (code == 0) is (failures + errors == 0 and "error" not in alerts + notices)


@pytest.mark.parametrize(("kind", "code", "sentence"), [
    ("failing shortcut", 1, "A finding of severity high or above about the model fails the audit"),
    ("shortcut too mild to fail", 0, "No finding of severity critical or above about the model"),
    ("not examined, though a finding would fail", 3, "The model was not examined, so it is not known whether"),
    ("shortcut on a guess", 3, "The preprocessing is a guess, so it is not known whether the model has a finding of"),
    ("no shortcut on a guess", 3, "The preprocessing is a guess, so it is not known whether the model has a finding"),
])  # fmt: skip
def test_every_form_says_whether_a_finding_fails_the_audit_beside_the_verdict(
    made: Callable[..., Path], kind: str, code: int, sentence: str
) -> None:
    folder = made(**AUDIT | RUNS[kind])
    loaded = load(folder)
    assert (loaded.results.verdict, loaded.results.exit_code) == (RUNS[kind]["verdict"], code)
    invocation = sarif(folder)["invocations"][0]
    assert invocation["exitCode"] == code
    texts = [
        render(loaded, "html"),
        render(loaded, "md"),
        str(junit(folder).findtext("system-out")),
        invocation["exitCodeDescription"],
    ]
    verdict = wording.headline(loaded.results).word
    assert all(sentence in text and verdict in text for text in texts)
    for form in FORMATS:
        text = render(loaded, form)
        if form == "json":  # facts, without sentences
            assert json.loads(text)["finding_gate"] == RUNS[kind]["finding_gate"]
        else:
            assert sentence in text, form


def test_nobody_reads_of_an_exit_code_where_no_finding_can_fail(made: Callable[..., Path]) -> None:
    loaded = load(made(**AUDIT | RUNS["shortcut"]))
    assert loaded.results.exit_code == 0
    assert "Exit code:" not in render(loaded, "html")
