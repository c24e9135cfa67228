"""A run as JUnit XML: a test case for each check, for each finding about the model, and for the verdict.

A failed or open verdict has a case of its own only where no check accounts for it: each problem is counted once.
"""

from datetime import UTC, datetime
from xml.etree import ElementTree as Xml

from auditkit.report import answers, pipeline, sections, wording
from auditkit.report.formatting import name, visible
from auditkit.report.load_run import Loaded
from auditkit.report.notices import notices
from auditkit.report.pipeline import Entry
from auditkit.runs.folder.results import Results

_ELEMENTS = {"failed": "failure", "open": "error", "skipped": "skipped"}
_COUNTS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def render_junit(loaded: Loaded) -> str:
    """The XML, as Jenkins reads it; and Ant, where the run says when it began and no case that passed has output."""
    results = loaded.results
    verdict, *others = pipeline.entries(results)
    entries = others if pipeline.accounts_for(results, *pipeline.RED) else [verdict, *others]
    cases = [_case(entry) for entry in entries]
    suite = Xml.Element("testsuite", _head(results, cases))
    properties = Xml.SubElement(suite, "properties")
    Xml.SubElement(properties, "property", name="verdict", value=verdict.status)
    for head, facts in sections.identity(results, loaded.digest):
        for what, value, _ in facts:
            Xml.SubElement(properties, "property", name=visible(f"{head}: {what}"), value=visible(value))
    suite.extend(cases)
    verdicts = [f"Verdict: {wording.headline(results).word}", *answers.gate(results)]
    lines = [*map(str, notices(results)), *verdicts, *map(_line, others), *results.limitations]
    Xml.SubElement(suite, "system-out").text = visible("\n".join(lines))
    Xml.SubElement(suite, "system-err").text = visible("\n".join(sections.flags(results)))
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{Xml.tostring(root, encoding='unicode')}\n"


def _line(entry: Entry) -> str:
    return f"{wording.status(entry.status).word.capitalize()}: {entry.message}"


def _head(results: Results, cases: list[Xml.Element]) -> dict[str, str]:
    counts = {count: str(sum(case.find(kind) is not None for case in cases)) for kind, count in _COUNTS.items()}
    started, ended = _time(results.run.started), _time(results.run.ended)
    seconds = (ended - started).total_seconds() if started and ended else 0.0
    policy = name(results.policy.name) if results.policy else "without a policy"
    state = "" if results.run.preliminary is None else ", preliminary"
    head = {"name": f"auditkit {policy}{state}", "package": "auditkit", "id": "0", "hostname": "localhost",
            "tests": str(len(cases)), **counts, "time": f"{max(seconds, 0.0):.3f}"}  # fmt: skip
    return head | ({"timestamp": started.strftime("%Y-%m-%dT%H:%M:%S")} if started else {})


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except ValueError:
        return None


def _case(entry: Entry) -> Xml.Element:
    case = Xml.Element("testcase", name=name(entry.id.removeprefix("auditkit:")), classname=entry.group, time="0")
    body = visible("\n".join(f"{what}: {value}" for what, value in entry.facts.items()))
    element = _ELEMENTS.get(entry.outcome)
    if element is not None:
        kind = {} if element == "skipped" else {"type": visible(entry.status)}
        Xml.SubElement(case, element, {"message": visible(entry.message), **kind}).text = body
    elif entry.status != "pass":
        Xml.SubElement(case, "system-out").text = f"{visible(entry.message)}\n{body}"
    return case
