"""A run as JUnit XML: a test case for the verdict and for each check.

Fails closed: of what the verdict counts, all that is not a pass, a suppression, a check that may be missing or a policy
without limits is a failure or an error. What it does not count is skipped where it is not a pass.
"""

from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as Xml

from auditkit.report import sections, wording
from auditkit.report.formatting import name, visible
from auditkit.report.load_run import Loaded
from auditkit.runs.folder.results import CheckResult, Results

VERDICTS = {"pass": "", "fail": "failure", "measured": "skipped"}  # of all others: error
CHECKS = {"pass": "", "fail": "failure"}
COUNTS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def render_junit(loaded: Loaded) -> str:
    """The XML, which fits both the schema of Ant and that of Jenkins where the run says when it began."""
    results = loaded.results
    cases = [_verdict(results), *(_check(one, results) for one in results.checks)]
    suite = Xml.Element("testsuite", _head(results, cases))
    listed = Xml.SubElement(suite, "properties")
    for what, value in _properties(loaded):
        Xml.SubElement(listed, "property", name=visible(what), value=visible(value))
    suite.extend(cases)
    Xml.SubElement(suite, "system-out").text = visible("\n".join(_lines(results)))
    Xml.SubElement(suite, "system-err").text = visible("\n".join(sections.flags(results)))
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{Xml.tostring(root, encoding='unicode')}\n"


def _head(results: Results, cases: list[Xml.Element]) -> dict[str, str]:
    found = {count: str(sum(case.find(kind) is not None for case in cases)) for kind, count in COUNTS.items()}
    began, ended = (_time(moment) for moment in (results.run.started, results.run.ended))
    took = (ended - began).total_seconds() if began and ended else 0.0
    head = {"name": f"auditkit {_policy(results)}", "package": "auditkit", "id": "0", "hostname": "localhost",
            "tests": str(len(cases)), **found, "time": f"{max(took, 0.0):.3f}"}  # fmt: skip
    return head | ({"timestamp": began.strftime("%Y-%m-%dT%H:%M:%S")} if began else {})


def _policy(results: Results) -> str:
    return name(results.policy.name) if results.policy else "without a policy"


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError):
        return None


def _verdict(results: Results) -> Xml.Element:
    said = results.verdict
    means = wording.headline(results)
    reason = results.verdict_reason or means.means
    outcome = "error" if said is None else VERDICTS.get(said, "error")
    return _case("verdict", "auditkit", outcome, said or "none", f"{means.word}: {reason}", reason)


def _check(one: CheckResult, results: Results) -> Xml.Element:
    told = sections.check(one)
    message, outcome = told["reason"] or told["status"].word, CHECKS.get(one.status, "error")
    if one.status == "suppressed" and one.suppression is not None:
        held = one.suppression
        message, outcome = f"suppressed by {held.approver} until {held.expires}: {held.reason}", "skipped"
    if one.status == "not assessed" and told["optional"]:
        outcome = "skipped"
    if outcome and not told["counts"]:
        about = f"in detail of {told['part_of']}" if told["part_of"] else "for information"
        message, outcome = f"{told['status'].word}, {about}, not counted by the verdict: {message}", "skipped"
    facts = {key: told[key] for key in ("title", "metric", "severity", "observed", "interval", "limit", "n", "reason")}
    facts["without the suppression"] = told["would_be"].word if told["would_be"] else ""
    body = "\n".join(f"{what}: {value}" for what, value in facts.items() if value)
    return _case(one.id, f"auditkit.{_policy(results)}", outcome, one.status, message, body)


def _case(called: str, group: str, outcome: str, status: str, message: str, body: str) -> Xml.Element:
    case = Xml.Element("testcase", name=name(called), classname=group, time="0")
    if outcome:
        said = {"message": visible(message)} | ({} if outcome == "skipped" else {"type": visible(status)})
        Xml.SubElement(case, outcome, said).text = visible(body)
    return case


def _properties(loaded: Loaded) -> list[tuple[str, str]]:
    groups = sections.identity(loaded.results, loaded.digest)
    facts = [(f"{head}: {what}", value) for head, listed in groups for what, value, _ in listed]
    return [("verdict", loaded.results.verdict or "none"), *facts]


def _lines(results: Results) -> list[str]:
    """Every check on a line, and how far the figures reach."""
    checks = [f"{told['status'].word}: {told['title']}. {told['reason']}" for told in sections.checks(results)]
    return [f"Verdict: {wording.headline(results).word}", *checks, *results.limitations]
