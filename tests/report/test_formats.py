"""A run in every form: what was found is there, nothing is green that did not pass, and no name is more than a name."""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import jsonschema
import pytest
import xmlschema
from markdown_it import MarkdownIt

from auditkit.errors import BadInput
from auditkit.records import to_json
from auditkit.report import wording
from auditkit.report.formats import FORMATS, render
from auditkit.report.load_run import load
from auditkit.runs.comparison.compare import compare
from auditkit.runs.folder import checksums
from tests.support.synthetic_runs import Command, command, digest, rows, run

__all__ = ["command"]  # a fixture
HERE = Path(__file__).parents[1] / "schemas"
PUBLISHED = Path(os.environ["AUDITKIT_SCHEMAS"]) if "AUDITKIT_SCHEMAS" in os.environ else None
STATUSES = ("pass", "fail", "inconclusive", "not assessed", "error", "suppressed")
VERDICTS = ("pass", "fail", "inconclusive", "measured", None)
HOSTILE = (
    "a|b`c`<script>alert(1)</script>\r\n# head\n- item\t**bold** _it_ [link](javascript:alert(1)) ![x](y) {0} ~~s~~ "
    "]]> &amp; \x00\x1b[31m\ufffe\ud800\u202e https://evil.example www.evil.example $x^2$ \\"
)


def check(status: str, **said: Any) -> dict[str, Any]:
    held = {"suppression": {"reason": "accepted until the next release", "approver": "A. Person",
                            "expires": "2031-01-01"}, "would_be": "fail"}  # fmt: skip
    return {
        "id": status.replace(" ", "-"), "title": f"A check: {status}", "metric": "worst_completeness", "status": status,
        "observed": 0.5, "low": 0.4, "high": 0.6, "n": 40, "limit": 0.45, "rule": "min", "severity": "medium",
        "required": True, "reason": f"because of {status}", **(held if status == "suppressed" else {}), **said,
    }  # fmt: skip


def figure(name: str, bundle: str | None, value: float | None) -> dict[str, Any]:
    ends = {"low": None, "high": None} if value is None else {"low": value - 0.1, "high": value + 0.1}
    missing = {"metric": name, "cause": "only-predicted-label"} if value is None else None
    return {"name": name, "bundle": bundle, "labels": "all", "infill": "gray" if bundle else "", "eps1": 0.01,
            "eps2": 0.001, "steps": "16", "range": [0.0, 1.0], "value": value, **ends, "confidence": 0.95, "n": 40,
            "not_assessed": missing}  # fmt: skip


AUDIT: dict[str, Any] = {
    "policy": {"name": "standard", "description": "what we ask", "sha256": digest("policy"), "shipped": False,
               "text": "secret = 1", "minimum_images": 200, "fail_on": "low"},
    "checks": [check(status) for status in STATUSES], "verdict": "fail", "verdict_reason": "One check was failed.",
    "metrics": [figure("accuracy", None, 0.75), figure("insertion", "maps", 0.612),
                figure("best_effort", "maps", None)],
    "controls": [figure("insertion", "control:random", 0.321), figure("insertion", "control:edges", 0.432)],
    "flags": [{"kind": "ties", "bundle": "maps", "count": 12, "total": 40}],
    "failed_images": [{"image": "torn.png", "reason": "it is cut short"}],
    "run": {"started": "2026-03-04T05:06:07+00:00", "ended": "2026-03-04T05:07:37.500000+00:00", "git_commit": "c0ffee",
            "command": ["auditkit", "audit", "vendor/model.onnx", "my images"]},
}  # fmt: skip


def finding(label: int | None = None, kind: str = "corner", **said: Any) -> dict[str, Any]:
    return {"kind": kind, "exchange": "upper left corner", "place": "the upper left corner", "label": label,
            "follows": 0.9, "low": 0.8, "high": 1.0, "chance": 0.1, "limit": 0.4, "n": 60, "images": 12,
            "severity": "high", "examples": [], "allowed": "", **said}  # fmt: skip


def examination(*findings: dict[str, Any]) -> dict[str, Any]:
    return {"method": "known", "images": 120, "proposing": 60, "passes": 9000, "proposals": len(findings), "rates": [],
            "probes": [], "zones": [], "findings": list(findings)}  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """A finished run that says what it is told to."""

    def make(**said: Any) -> Path:
        some = rows(range(2), {"insertion": lambda image, label: 0.5})
        return run(tmp_path / f"run{len(list(tmp_path.iterdir()))}", some, **said)

    return make


def read(text: str) -> Xml.Element:
    return Xml.fromstring(text.encode())  # noqa: S314 - our own


def junit(folder: Path) -> Xml.Element:
    (suite,) = read(render(load(folder), "junit"))
    return suite


def page(folder: Path) -> Xml.Element:
    """Its Markdown as a reader shows it that would let raw HTML through."""
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return read(f"<page>{reader.render(render(load(folder), 'md'))}</page>")


def sarif(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(render(load(folder), "sarif"))["runs"][0]
    return found


def outcome(suite: Xml.Element, name: str) -> str:
    (case,) = (case for case in suite.iter("testcase") if case.get("name") == name)
    return case[0].tag if len(case) else "passed"


# Schemas --------------------------------------------------------------------------------------------------------------


def json_schemas() -> Iterator[Any]:
    yield json.loads((HERE / "sarif-2.1.0-as-used.json").read_text())
    if PUBLISHED:
        yield json.loads((PUBLISHED / "sarif-schema-2.1.0.json").read_text())


def xml_schemas() -> Iterator[xmlschema.XMLSchema]:
    yield xmlschema.XMLSchema(HERE / "junit-as-used.xsd")
    if PUBLISHED:
        yield xmlschema.XMLSchema(PUBLISHED / "JUnit.xsd")


def miscounted(suite: Xml.Element) -> list[str]:
    """What a reader of Jenkins would stumble over: wrong counts, cases of the same name, several outcomes of a case."""
    counts = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    wrong = [key for key, tag in counts.items() if suite.get(key) != str(len(list(suite.iter(tag))))]
    cases = list(suite.iter("testcase"))
    names = {(case.get("classname"), case.get("name")) for case in cases}
    return wrong + ["names"] * (len(names) < len(cases)) + ["outcomes"] * any(len(case) > 1 for case in cases)


@pytest.mark.parametrize("kind", ["audit", "hostile", "evaluation", "examined"])
def test_sarif_and_junit_fit_their_schemas(made: Callable[..., Path], kind: str) -> None:
    examined = AUDIT | {"examination": examination(finding(), finding(1, kind="mark", allowed=HOSTILE))}
    said = {"audit": AUDIT, "hostile": hostile(), "evaluation": {}, "examined": examined}[kind]
    loaded = load(made(**said))
    assert miscounted(read(render(loaded, "junit"))[0]) == []
    for schema in json_schemas():
        jsonschema.validate(json.loads(render(loaded, "sarif")), schema)
    for place, shape in enumerate(xml_schemas()):
        if place == 0 or kind in ("audit", "hostile"):  # Ant's schema wants a time, and no output of a case
            shape.validate(io.StringIO(render(loaded, "junit")))


NOT_HERE = pytest.mark.skipif(PUBLISHED is None, reason="AUDITKIT_SCHEMAS names no folder with published schemas")


@pytest.mark.parametrize("place", [0, pytest.param(1, marks=NOT_HERE)])
def test_the_schemas_see_mistakes(made: Callable[..., Path], place: int) -> None:
    loaded = load(made(**AUDIT))
    schema, shape = list(json_schemas())[place], list(xml_schemas())[place]
    mistakes = {"kind": "failed", "level": "critical", "message": {}, "locations": [{"uri": "x"}], "extra": 1,
                "suppressions": [{"kind": "external", "state": "accepted"}]}  # fmt: skip
    for key, wrong in mistakes.items():
        log = json.loads(render(loaded, "sarif"))
        log["runs"][0]["results"][0][key] = wrong
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(log, schema)
    text = render(loaded, "junit")
    for good, bad in (('errors="3"', 'errors="three"'), ("<failure ", "<failed /><failure "), (' type="fail"', ""),
                      ("<system-err", "<system-odd /><system-err"), ('timestamp="', 'timestamp="on ')):  # fmt: skip
        assert good in text
        assert not shape.is_valid(io.StringIO(text.replace(good, bad, 1)))
    suite = read(text.replace('failures="1"', 'failures="2"').replace('name="error"', 'name="fail"'))[0]
    assert miscounted(suite) == ["failures", "names"]


def test_only_failures_have_a_level(made: Callable[..., Path]) -> None:
    log = json.loads(render(load(made(**AUDIT)), "sarif"))
    log["runs"][0]["results"][1]["level"] = "error"  # of a check that is open
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(log, next(json_schemas()))


# JUnit ----------------------------------------------------------------------------------------------------------------


def test_junit_has_a_case_for_each_check(made: Callable[..., Path]) -> None:
    suite = junit(made(**AUDIT))
    names = [case.get("name") for case in suite.iter("testcase")]
    assert names == [one["id"] for one in AUDIT["checks"]]
    assert {name: outcome(suite, str(name)) for name in names} == {
        "pass": "passed", "fail": "failure", "inconclusive": "error", "not-assessed": "error",
        "error": "error", "suppressed": "skipped",
    }  # fmt: skip
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["6", "1", "3", "1"]
    assert (suite.get("timestamp"), suite.get("time")) == ("2026-03-04T05:06:07", "90.500")
    failure = next(suite.iter("failure"))
    assert failure.get("message") == "A check: fail: because of fail"
    assert "limit: at least 0.45" in str(failure.text)
    skipped = next(suite.iter("skipped"))
    assert skipped.get("message") == (
        "A check: suppressed: Suppressed (by A. Person until 2031-01-01, accepted until the next release). because of "
        "suppressed"
    )
    said = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert said["Model: sha256"] == digest("model")
    assert said["Policy: sha256"] == digest("policy")
    assert said["Run: git commit"] == "c0ffee"


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_pipeline_sees_green_only_where_the_verdict_allows_it(made: Callable[..., Path], verdict: str | None) -> None:
    """Whatever the checks say: the verdict of too few images is inconclusive though each of them passed."""
    folder = made(**AUDIT | {"verdict": verdict, "checks": [check("pass")]})
    suite, run = junit(folder), sarif(folder)
    red = verdict not in ("pass", "measured")
    assert int(suite.get("failures", "")) + int(suite.get("errors", "")) == red
    assert (outcome(suite, "verdict") == "passed") is (verdict == "pass")
    assert [(one["ruleId"], one["level"]) for one in run["results"]] == [("auditkit:verdict", "error")] * red
    assert (run["invocations"][0]["exitCode"] == 0) is not red


@pytest.mark.parametrize(("part", "wrong"), [
    ("verdict", "newly invented"), ("verdict", "Pass"), ("checks", [check("newly invented")]),
    ("checks", [check("measured")]), ("checks", [check("suppressed", would_be="newly invented")]),
    ("checks", [check("fail", severity="?")]),
])  # fmt: skip
def test_a_verdict_or_status_that_is_not_known_is_refused(made: Callable[..., Path], part: str, wrong: Any) -> None:
    folder = made(**AUDIT)
    held = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps(held | {part: wrong}))
    for form in FORMATS:
        with pytest.raises(BadInput, match=rf"results\.json\.{part}.* expected one of "):
            render(load(folder), form)


@pytest.mark.parametrize("wrong", [check("suppressed", suppression=None), check("suppressed", would_be=None)])
def test_a_suppression_that_says_too_little_is_never_green(made: Callable[..., Path], wrong: dict[str, Any]) -> None:
    folder = made(**AUDIT | {"verdict": "pass", "checks": [wrong]})
    (found,) = sarif(folder)["results"]
    assert found["kind"] == "fail"
    if wrong.get("suppression"):
        assert found["suppressions"]
    else:
        assert (outcome(junit(folder), wrong["id"]), found["suppressions"]) == ("failure", [])


def test_what_the_verdict_does_not_count_makes_no_pipeline_red(made: Callable[..., Path]) -> None:
    beside = [
        check("inconclusive", id="not-above-random", counts=False, severity="info"),
        check("fail", id="detail", counts=False, part_of="pass"),
        check("pass", id="fine", counts=False),
    ]
    folder = made(**AUDIT | {"verdict": "pass", "checks": [check("pass"), *beside]})
    suite = junit(folder)
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["5", "0", "0", "2"]
    said = [one.get("message") for one in suite.iter("skipped")]
    assert said == ["A check: inconclusive: Inconclusive (for information). because of inconclusive",
                    "A check: fail: Fail (part of pass). because of fail"]  # fmt: skip
    assert sarif(folder)["results"] == []
    text = render(load(folder), "md")
    assert "1 pass; 3 more for information." in text
    assert "Inconclusive (not counted)" in text.replace("\\", "")


def test_a_check_named_verdict_is_told_from_the_verdict(made: Callable[..., Path]) -> None:
    folder = made(**AUDIT | {"checks": [check("pass", id="verdict")]})
    cases = {(case.get("classname"), case.get("name")) for case in junit(folder).iter("testcase")}
    assert cases == {("auditkit", "verdict"), ("auditkit.standard", "verdict")}
    assert sarif(folder)["properties"]["statuses"] == {"auditkit:verdict": "fail", "verdict": "pass"}


def test_a_pass_that_rests_on_suppressions_says_so_wherever_it_is_read(made: Callable[..., Path]) -> None:
    checks = [check("pass"), check("suppressed"), check("suppressed", id="single", part_of="pass"),
              check("suppressed", id="detail", part_of="suppressed")]  # fmt: skip
    folder = made(**AUDIT | {"verdict": "pass", "checks": checks})
    said = "Pass, with 2 findings suppressed"
    assert f"**✓ {said}.**" in render(load(folder), "md")
    assert sarif(folder)["invocations"][0]["exitCodeDescription"] == said
    assert [one["level"] for one in sarif(folder)["results"]] == ["note"] * 3
    assert str(next(junit(folder).iter("system-out")).text).startswith(f"Verdict: {said}\n")
    assert f"<title>{said}: " in render(load(folder), "html")
    for verdict, expected in (("inconclusive", ", with 1 finding suppressed"), ("fail", ""), ("measured", "")):
        found = wording.headline(load(made(verdict=verdict, checks=[check("suppressed")])).results)
        assert found == wording.verdict(verdict)._replace(word=f"{verdict.capitalize()}{expected}")


def test_what_may_be_missing_is_skipped_and_not_an_error(made: Callable[..., Path]) -> None:
    """A verdict that passed without it would be red in a pipeline otherwise."""
    suite = junit(made(**AUDIT | {"verdict": "pass", "checks": [check("pass"), check("not assessed", required=False)]}))
    assert [suite.get(key) for key in ("failures", "errors", "skipped")] == ["0", "0", "1"]


# SARIF ----------------------------------------------------------------------------------------------------------------


def test_sarif_says_what_became_of_each_problem(made: Callable[..., Path]) -> None:
    found = sarif(made(**AUDIT))
    by = {one["ruleId"]: one for one in found["results"]}
    assert {name: (one["kind"], one["level"]) for name, one in by.items()} == {
        "fail": ("fail", "warning"), "inconclusive": ("open", "none"), "not-assessed": ("review", "none"),
        "error": ("open", "none"), "suppressed": ("fail", "note"),
    }  # fmt: skip
    assert by["fail"]["message"]["text"] == "A check: fail: because of fail"
    assert by["suppressed"]["suppressions"] == [
        {"kind": "external", "status": "accepted", "justification": "accepted until the next release",
         "properties": {"approver": "A. Person", "expires": "2031-01-01"}},
    ]  # fmt: skip
    assert all(one["suppressions"] == [] for name, one in by.items() if name != "suppressed")
    rules = found["tool"]["driver"]["rules"]
    assert [rules[one["ruleIndex"]]["id"] for one in found["results"]] == [one["ruleId"] for one in found["results"]]
    assert len({one["partialFingerprints"]["primaryLocationLineHash"] for one in found["results"]}) == len(by)


def test_sarif_names_the_file_the_command_and_what_was_left_out(made: Callable[..., Path]) -> None:
    found = sarif(made(**AUDIT))
    location = {"uri": "vendor/model.onnx", "uriBaseId": "%SRCROOT%"}
    assert found["artifacts"] == [
        {"location": location, "roles": ["analysisTarget"], "hashes": {"sha-256": digest("model")}}
    ]
    assert list(found["originalUriBaseIds"]) == ["%SRCROOT%"]
    for one in found["results"]:
        (where,) = one["locations"]
        assert where["physicalLocation"]["artifactLocation"] == {**location, "index": 0}
    (call,) = found["invocations"]
    assert (call["exitCode"], call["startTimeUtc"]) == (1, "2026-03-04T05:06:07Z")
    assert call["commandLine"] == "auditkit audit vendor/model.onnx 'my images'"
    assert [(one["level"], one["message"]["text"]) for one in call["toolExecutionNotifications"]] == [
        ("error", "A check: error: because of error"), ("warning", "torn.png was left out: it is cut short"),
        ("warning", "maps: many pixels are tied in 12 of 40 maps, so their order is drawn at random."),
    ]  # fmt: skip
    assert found["properties"]["settings"]["eps1"] == 0.01
    assert "text" not in found["properties"]["policy"]


@pytest.mark.parametrize(("severity", "level"), [
    ("critical", "error"), ("high", "error"), ("medium", "warning"), ("low", "note"), ("info", "note"),
])  # fmt: skip
def test_a_failure_is_as_loud_as_it_is_severe(made: Callable[..., Path], severity: str, level: str) -> None:
    found = sarif(made(**AUDIT | {"checks": [check("fail", severity=severity)]}))
    assert found["results"][0]["level"] == found["tool"]["driver"]["rules"][1]["defaultConfiguration"]["level"] == level


def test_every_rule_says_what_it_asks_and_where_to_read_more(made: Callable[..., Path]) -> None:
    rules = sarif(made(**AUDIT | {"examination": examination(finding())}))["tool"]["driver"]["rules"]
    by = {rule["id"]: rule for rule in rules}
    fail = by["fail"]
    assert fail["shortDescription"]["text"] == "A check: fail"
    assert fail["fullDescription"]["text"].startswith("Worst completeness at least 0.45. ")
    assert fail["help"]["text"] == f"A check: fail. {fail['fullDescription']['text']} See {fail['helpUri']}."
    assert fail["help"]["markdown"].startswith("**A check: fail**\n\nWorst completeness")
    corner = by["examination:corner"]
    assert corner["helpUri"] == "docs/examine.md#what-a-finding-means-and-what-to-do"
    assert "Crop or cover them" in corner["help"]["text"]


@pytest.mark.parametrize(("verdict", "extra", "code"), [
    ("pass", [], 0), ("measured", [], 0), ("fail", [], 1), ("inconclusive", [], 3), ("fail", ["--exit-zero"], 0)
])  # fmt: skip
def test_the_exit_code_is_that_of_the_verdict(
    made: Callable[..., Path], verdict: str, extra: list[str], code: int
) -> None:
    said = AUDIT | {"verdict": verdict, "run": {**AUDIT["run"], "command": ["auditkit", "audit", *extra]}}
    assert sarif(made(**said))["invocations"][0]["exitCode"] == code


@pytest.mark.parametrize(("path", "uri"), [
    ("model.onnx", "model.onnx"), ("a b/ü#1?.onnx", "a%20b/%C3%BC%231%3F.onnx"), ("a:b.onnx", "a%3Ab.onnx"),
    ("/srv/m.onnx", "file:///srv/m.onnx"), ("C:\\m\\a b.onnx", "file:///C:/m/a%20b.onnx"), ("m\\a.onnx", "m/a.onnx"),
    ("//host/share/m.onnx", "file://host/share/m.onnx"), ("../m.onnx", "../m.onnx"),
])  # fmt: skip
def test_paths_become_addresses(made: Callable[..., Path], path: str, uri: str) -> None:
    found = sarif(made(**AUDIT, subject={"model": {"path": path}}))
    assert found["artifacts"][0]["location"]["uri"] == uri
    assert ("originalUriBaseIds" in found) is not uri.startswith("file:")


def test_a_model_that_is_a_function_has_its_results_for_a_file(made: Callable[..., Path]) -> None:
    folder = made(**AUDIT, subject={"model": "callable"})
    assert sarif(folder)["artifacts"] == [{"location": {"uri": "results.json"}, "roles": ["resultFile"]}]
    assert "a function" in render(load(folder), "md")
    assert junit(folder).get("tests") == "6"


# Names are names ------------------------------------------------------------------------------------------------------


def hostile() -> dict[str, Any]:
    bad = check("suppressed", title=HOSTILE, reason=HOSTILE,
                suppression={"reason": HOSTILE, "approver": HOSTILE, "expires": HOSTILE})  # fmt: skip
    return AUDIT | {
        "checks": [check("fail", id=HOSTILE, title=HOSTILE, reason=HOSTILE, metric=HOSTILE), bad,
                   check("error", reason=HOSTILE)],
        "verdict_reason": HOSTILE, "flags": [{"kind": "maps-missing", "bundle": HOSTILE, "count": 3}],
        "failed_images": [{"image": HOSTILE, "reason": HOSTILE}],
        "metrics": [figure("insertion", HOSTILE, 0.5), figure("best_effort", HOSTILE, None)],
        "policy": {**AUDIT["policy"], "name": HOSTILE}, "subject": {"model": {"path": HOSTILE}},
        "run": {**AUDIT["run"], "bundles": {HOSTILE: digest("maps")}, "command": ["auditkit", HOSTILE]},
        "limitations": [HOSTILE],
    }  # fmt: skip


def test_no_name_becomes_markup(made: Callable[..., Path]) -> None:
    folder = made(**hostile())
    shown, text = page(folder), render(load(folder), "md")
    elements = {element.tag for element in shown.iter()}
    assert elements <= {"page", "h1", "h2", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
    words = "".join(shown.itertext())
    assert "a|b`c`<script>alert(1)</script>" in words
    assert "[link](javascript:alert(1)) ![x](y) {0} ~~s~~ ]]> &amp; ‹U+0000›‹U+001B›[31m‹U+FFFE›‹U+D800›" in words
    assert len(list(shown.iter("strong"))) == 1
    assert "https\\://evil" in text  # which a reader that looks for addresses does not take for one
    assert "www\\.evil" in text


@pytest.mark.parametrize(
    "said", ["1. one", "12) x", "- x", "+ x", "=== x", "--- x", "# x", "> x", "+0.25", "0.5", "-1"]
)
def test_the_first_signs_of_a_line_begin_no_list(made: Callable[..., Path], said: str) -> None:
    flag = {"kind": "maps-missing", "bundle": said, "count": 3}
    items = [item.text for item in page(made(**AUDIT | {"flags": [flag]})).iter("li")]
    assert f"{said}: 3 maps are missing." in items


@pytest.mark.parametrize("form", ["md", "junit", "sarif"])
def test_what_hides_or_breaks_text_is_written_out(made: Callable[..., Path], form: str) -> None:
    text = render(load(made(**hostile())), form)
    text.encode()
    assert not {"\x00", "\x1b", "\ufffe", "\u202e"} & set(text)
    assert "U+202E" in text
    if form == "junit":
        assert "<script>alert(1)</script>" in str(read(text).findall(".//failure")[0].get("message"))


def test_every_row_of_a_table_has_all_its_cells(made: Callable[..., Path]) -> None:
    tables = list(page(made(**hostile())).iter("table"))
    assert len(tables) == 4
    for table in tables:
        assert len({len(row) for row in table.iter("tr")}) == 1


# Markdown and JSON ----------------------------------------------------------------------------------------------------


def test_markdown_tells_the_whole_story(made: Callable[..., Path]) -> None:
    text = render(load(made(**AUDIT)), "md")
    lines = text.splitlines()
    assert lines[0] == "# Audit of model.onnx"
    assert lines[2] == "**✕ Fail.** Are the heatmaps faithful? No. The heatmaps do not meet the policy “standard”."
    heads = [line for line in lines if line.startswith("## ")]
    assert heads == ["## What to do next", "## What was not assessed", "## Checks",
                     "## Figures compared with the controls",
                     "## Flags", "## Provenance", "## Limits"]  # fmt: skip
    for one in AUDIT["checks"]:
        (row,) = (line for line in lines if f"| {one['title']} |" in line)
        assert "0.500 | 0.400 to 0.600, test | at least 0.45 | 40" in row
        assert one["reason"] in row
    (suppressed,) = (line for line in lines if "◌" in line)
    assert (
        "Suppressed by A. Person until 2031-01-01: accepted until the next release. Without that: Fail." in suppressed
    )
    (insertion,) = (line for line in lines if line.startswith("| insertion"))
    assert insertion.split(" | ")[1:4] == [
        "0.612 (0.512 to 0.712, bootstrap)",
        "0.321 (0.221 to 0.421, bootstrap)",
        "0.432 (0.332 to 0.532, bootstrap)",
    ]
    for words in ("the label set has no label other than the predicted one.", "One check was failed.",
                  "many pixels are tied in 12 of 40 maps", digest("model"),
                  "torn.png was left out: it is cut short", "c0ffee"):  # fmt: skip
        assert words in text


def test_markdown_tells_what_changed_since_the_baseline(made: Callable[..., Path]) -> None:
    before, after = (made(checks=[check(status, id="margin")]) for status in ("pass", "fail"))
    changes = to_json(compare(before, after))
    text = render(load(made(**AUDIT, baseline=changes)), "md")
    assert "## Changes since the baseline" in text
    assert "margin: Pass → Fail" in text


@pytest.mark.parametrize("form", ["md", "html"])
def test_a_finding_of_this_run_alone_is_among_the_changes(made: Callable[..., Path], form: str) -> None:
    before, after = (made(examination=examination(*findings)) for findings in ((), (finding(kind="border"),)))
    folder = made(**AUDIT, baseline=to_json(compare(before, after)), examination=examination(finding(kind="border")))
    text = render(load(folder), form)
    sentence = "Only in this run: The model relies on the border of the image, such as a frame"
    assert text.count(sentence) == {"md": 1, "html": 2}[form]  # the first screen of the page says so, too


def test_markdown_tells_what_was_compared(made: Callable[..., Path]) -> None:
    """Names out of both runs stay names, digests stand in code, and what differs is marked."""
    sides = [{"run": HOSTILE, "verdict": verdict, "suppressed": [], "bundles": {HOSTILE: "`x`"}, "environment": {},
              "model": {"path": HOSTILE, "sha256": digest(verdict), "identity": digest(verdict)},
              "images": {"source": HOSTILE, "count": 2, "digest": HOSTILE},
              "policy": {"name": HOSTILE, "sha256": digest("policy")}} for verdict in ("pass", "fail")]  # fmt: skip
    baseline = {"a": sides[0], "b": sides[1], "shared_images": 2, "only_a": 0, "only_b": 0, "differences": [],
                "checks": [{"id": "x", "before": "pass", "after": "fail"}], "notes": []}  # fmt: skip
    folder = made(**AUDIT, baseline=baseline)
    text, shown = render(load(folder), "md"), page(folder)
    assert f"| model sha256 | `{digest('pass')}` | `{digest('fail')}` | changed |" in text
    assert f"| policy sha256 | `{digest('policy')}` | `{digest('policy')}` |  |" in text
    assert "| verdict | Pass | Fail | changed |" in text
    (line,) = (line for line in text.splitlines() if line.startswith("Baseline: run "))
    assert line.endswith(", Pass; 1 check changed.")
    assert {element.text for element in shown.iter("code")} == {digest(one) for one in ("pass", "fail", "policy")}
    assert not {"script", "a", "img"} & {element.tag for element in shown.iter()}


def test_markdown_has_the_figures_by_class_and_the_randomisation(made: Callable[..., Path]) -> None:
    by_class = [figure("insertion", "maps", 0.25) | {"class": 0},
                figure("insertion", "maps", 0.75) | {"class": 1, "low": None, "high": None, "n": 2}]  # fmt: skip
    stages = [{"stage": 1, "layers": ["fc_1"], "share": 0.3, "spearman": 0.6, "low": 0.5, "high": 0.7, "n": 8,
               "absolute": None, "constant": 0, "correlations": [0.6] * 8},
              {"stage": 2, "layers": ["fc_1", *"abcdef"], "share": 1.0, "spearman": -0.1, "low": None, "high": None,
               "n": 8, "absolute": None, "constant": 0, "correlations": [-0.1] * 8}]  # fmt: skip
    text = render(load(made(**AUDIT, classes=by_class, randomisation={"series": stages})), "md")
    assert "## By class\n\nmaps, images by given class, infill gray\n\n| Class | Images | insertion" in text
    assert "| class 0 | 40 | 0.250 (0.150 to 0.350, bootstrap) |" in text
    assert "| class 1 | 2 | 0.750 (too few for an interval) |" in text
    assert "Rank correlation (Spearman) with the maps of the whole model, 95 % bootstrap intervals" in text
    assert "| 1 | fc\\_1 | 30 % | 0.600 (0.500 to 0.700) | 8 |" in text
    assert "| 2 | a, b, c, d and 2 more | 100 % | −0.100 | 8 |" in text
    why = render(load(made(**AUDIT, randomisation={"not_assessed": {"cause": "supplied"}})), "md")
    assert "re-initialised: the maps were supplied, so they cannot be made again" in why


def test_json_is_the_file_as_it_stands(made: Callable[..., Path]) -> None:
    folder = made(**AUDIT)
    assert render(load(folder), "json").encode() == (folder / "results.json").read_bytes()


def test_a_form_that_is_not_there_and_results_that_say_too_little_are_refused(made: Callable[..., Path]) -> None:
    folder = made(**AUDIT)
    with pytest.raises(BadInput, match="unknown format 'pdf'; choose from html, md, json, junit, sarif"):
        render(load(folder), "pdf")
    for said, why in (('{"schema_version": 2, "run": {}}', "lacks 'tool'"), ('{"run": {}}', "schema_version None"),
                      ('{"schema_version": 1, "run": {}}', "schema_version 1, but this auditkit reads 2")):  # fmt: skip
        (folder / "results.json").write_text(said)
        for form in FORMATS:
            with pytest.raises(BadInput, match=why):
                render(load(folder), form)


PARTS = (
    "checks", "metrics", "controls", "comparisons", "classes", "reliability", "points", "failed_images", "flags",
    "limitations", "verdict", "verdict_reason", "policy", "runtime", "subject", "settings", "software", "baseline",
)  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_another_form_is_refused_in_a_sentence_or_shown(made: Callable[..., Path], name: str) -> None:
    folder, count = made(**AUDIT), 0
    held = json.loads((folder / "results.json").read_text())
    for wrong in (None, 5, "x", [5], [None], [{}], {}):
        (folder / "results.json").write_text(json.dumps(held | {name: wrong}))
        for form in FORMATS:
            try:
                render(load(folder), form)
            except BadInput as error:
                assert f"{folder / 'results.json'}.{name}" in str(error)  # noqa: PT017 - what is empty may be shown
                count += 1
    assert count >= 4 * len(FORMATS)


def test_figures_that_are_no_numbers_are_refused(made: Callable[..., Path]) -> None:
    folder = made(**AUDIT)
    held = json.loads((folder / "results.json").read_text())
    for wrong in ("0.4", True, float("nan"), float("inf"), [0.4], 10**400):
        metrics = [figure("insertion", "maps", 0.5) | {"low": wrong}]
        (folder / "results.json").write_text(json.dumps(held | {"metrics": metrics}))
        expected = "finite number below 9007199254740992" if wrong == 10**400 else "finite number"
        with pytest.raises(BadInput, match=rf"metrics\[0\]\.low is .*, expected a {expected}"):
            load(folder)


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_needs_neither_rows_nor_model(made: Callable[..., Path], command: Command, tmp_path: Path) -> None:
    folder = made(**AUDIT)
    shutil.rmtree(folder / "items")
    for form in ("md", "json", "junit", "sarif"):
        done = command("report", folder, "-f", form)
        assert (done.code, done.err, done.out) == (0, "", render(load(folder), form))
        done = command("report", folder, "-f", form, "-o", tmp_path / f"out.{form}")
        assert (done.code, done.out) == (0, f"{tmp_path / f'out.{form}'}\n")
        assert (tmp_path / f"out.{form}").read_text() == render(load(folder), form)
    assert {path.name for path in folder.iterdir()} <= {"run.json", "results.json", ".lock"}


def test_a_page_goes_into_the_run_and_it_is_said_where(made: Callable[..., Path], command: Command) -> None:
    folder = made(**AUDIT)
    done = command("report", folder)
    assert (done.code, done.out, done.err) == (0, f"{folder / 'report.html'}\n", "")
    assert (folder / "report.html").read_text() == render(load(folder), "html")


def test_the_page_of_a_sealed_run_without_one_goes_beside_it(made: Callable[..., Path], command: Command) -> None:
    folder = made(**AUDIT)
    checksums.write(folder)
    done = command("report", folder)
    assert (done.code, done.out) == (0, f"{folder}.html\n")
    assert Path(f"{folder}.html").read_text() == render(load(folder), "html")
    assert not checksums.check(folder)


def test_a_sealed_run_is_not_written_into(made: Callable[..., Path], command: Command, tmp_path: Path) -> None:
    folder = made(**AUDIT)
    command("report", folder)
    checksums.write(folder)
    assert command("report", folder).code == 0  # the same page again
    assert not checksums.check(folder)
    (folder / "report.html").write_text("an older page")
    checksums.write(folder)
    for words in ((), ("-f", "junit", "-o", folder / "junit.xml")):
        done = command("report", folder, *words)
        assert (done.code, done.out) == (2, "")
        assert "sealed by its SHA256SUMS" in done.err
    assert not checksums.check(folder)
    assert command("report", folder, "-o", tmp_path / "page.html").code == 0


def test_the_command_refuses_in_one_line(made: Callable[..., Path], command: Command, tmp_path: Path) -> None:
    folder = made(**AUDIT)
    (tmp_path / "empty").mkdir()

    def refused(*words: object) -> str:
        done = command("report", *words)
        (line,) = done.err.splitlines()
        assert (done.code, done.out) == (2, "")
        return line

    assert "unknown format 'docx'" in refused(folder, "-f", "docx")
    assert "md has no gallery" in refused(folder, "-f", "md", "--gallery", "24")
    assert "is not a run" in refused(tmp_path / "empty")
    assert "there is no run" in refused(tmp_path / "nowhere")
    assert "cannot be written" in refused(folder, "-f", "md", "-o", tmp_path / "no" / "file.md")
    assert "cannot be written" in refused(folder, "-f", "json", "-o", tmp_path / "empty")
    assert not list(tmp_path.glob("*.part"))
    (folder / "results.json").write_text('{"schema_version": 99}')
    assert "schema_version 99" in refused(folder, "-f", "junit")
    (folder / "results.json").unlink()
    assert "not finished" in refused(folder, "-f", "sarif")
