"""A run as JUnit XML: a test case for the verdict and for each check.

Fails closed: of what the verdict counts, all is a failure or an error but a pass, a suppression, a check that may be
missing and a policy without limits. What it does not count is skipped where it is not a pass.
"""

from datetime import UTC, datetime
from xml.etree import ElementTree as Xml

from auditkit.metrics.table import title
from auditkit.report import sections, wording
from auditkit.report.formatting import exact, interval, name, visible
from auditkit.report.load_run import Loaded
from auditkit.runs.folder.results import CheckResult, Results

VERDICTS = {"pass": "", "fail": "failure", "measured": "skipped"}  # of all others: error
CHECKS = {"pass": "", "fail": "failure"}
COUNTS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def render_junit(loaded: Loaded) -> str:
    """The XML, which fits both the schema of Ant and that of Jenkins where the run says when it began."""
    results = loaded.results
    cases = [_verdict(results), *(_check(check, results) for check in results.checks)]
    suite = Xml.Element("testsuite", _head(results, cases))
    properties = Xml.SubElement(suite, "properties")
    Xml.SubElement(properties, "property", name="verdict", value=results.verdict or "none")
    for head, facts in sections.identity(results, loaded.digest):
        for what, value, _ in facts:
            Xml.SubElement(properties, "property", name=visible(f"{head}: {what}"), value=visible(value))
    suite.extend(cases)
    lines = [f"{wording.status(check.status).word}: {check.title or check.id}. {check.reason}"
             for check in results.checks]  # fmt: skip
    lines = [f"Verdict: {wording.headline(results).word}", *lines, *results.limitations]
    Xml.SubElement(suite, "system-out").text = visible("\n".join(lines))
    Xml.SubElement(suite, "system-err").text = visible("\n".join(sections.flags(results)))
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{Xml.tostring(root, encoding='unicode')}\n"


def _head(results: Results, cases: list[Xml.Element]) -> dict[str, str]:
    counts = {count: str(sum(case.find(kind) is not None for case in cases)) for kind, count in COUNTS.items()}
    started, ended = _time(results.run.started), _time(results.run.ended)
    seconds = (ended - started).total_seconds() if started and ended else 0.0
    head = {"name": f"auditkit {_policy(results)}", "package": "auditkit", "id": "0", "hostname": "localhost",
            "tests": str(len(cases)), **counts, "time": f"{max(seconds, 0.0):.3f}"}  # fmt: skip
    return head | ({"timestamp": started.strftime("%Y-%m-%dT%H:%M:%S")} if started else {})


def _policy(results: Results) -> str:
    return name(results.policy.name) if results.policy else "without a policy"


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except ValueError:
        return None


def _verdict(results: Results) -> Xml.Element:
    headline = wording.headline(results)
    reason = results.verdict_reason or headline.means
    outcome = VERDICTS.get(results.verdict or "", "error")
    return _case("verdict", "auditkit", outcome, results.verdict or "none", f"{headline.word}: {reason}", reason)


def _check(check: CheckResult, results: Results) -> Xml.Element:
    suppression, status = check.suppression, wording.status(check.status).word
    message, outcome = check.reason or status, CHECKS.get(check.status, "error")
    if check.status == "suppressed" and suppression is not None:
        message = f"suppressed by {suppression.approver} until {suppression.expires}: {suppression.reason}"
        outcome = "skipped"
    if check.status == "not assessed" and not check.required:
        outcome = "skipped"
    if outcome and not check.counts:
        about = f"in detail of {check.part_of}" if check.part_of else "for information"
        message, outcome = f"{status}, {about}, not counted by the verdict: {message}", "skipped"
    facts = {
        "title": check.title or check.id, "metric": title(check.metric), "severity": check.severity,
        "observed": sections.observed(check), "interval": interval(check.low, check.high),
        "limit": sections.limit(check), "n": exact(check.n), "reason": check.reason,
        "without the suppression": wording.status(check.would_be).word if suppression and check.would_be else "",
    }  # fmt: skip
    body = "\n".join(f"{what}: {value}" for what, value in facts.items() if value)
    return _case(check.id, f"auditkit.{_policy(results)}", outcome, check.status, message, body)


def _case(case_name: str, group: str, outcome: str, status: str, message: str, body: str) -> Xml.Element:
    case = Xml.Element("testcase", name=name(case_name), classname=group, time="0")
    if outcome:
        attributes = {"message": visible(message)} | ({} if outcome == "skipped" else {"type": visible(status)})
        Xml.SubElement(case, outcome, attributes).text = visible(body)
    return case
