"""What a pipeline is told about a run: an entry for the verdict, each check, and each finding about the model.

JUnit and SARIF show the same entries. They fail closed: whatever the verdict counts and does not know to hold is
failed or open. Where the policy sets no limits, nothing is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from auditkit.metrics.table import METRICS, title
from auditkit.report import answers, sections, wording
from auditkit.report import examination as relies
from auditkit.report.formatting import exact, marked_interval, name
from auditkit.runs.folder.examination import Finding
from auditkit.runs.folder.figures import Severity
from auditkit.runs.folder.results import CheckResult, Results

Outcome = Literal["passed", "failed", "open", "skipped"]
RED: tuple[Outcome, ...] = ("failed", "open")
_SKIPPED: Outcome = "skipped"
FOUND = "found"  # the status of a finding that the policy does not allow
VERDICT = "auditkit:verdict"  # a policy's own checks have no colon in their names
_EXAMINED, _EXAMINATION = "auditkit:examination", "examination"
_EXCHANGED = ("Parts are exchanged between images with different predicted labels. If the model relies on a part, its "
              "prediction follows the part.")  # fmt: skip
_QUESTIONS = "docs/policies.md#three-questions"
_PAGES = {
    VERDICT: "docs/ci.md#exit-codes", _EXAMINATION: "docs/examine.md#what-a-finding-means-and-what-to-do",
    "relevance_gain": _QUESTIONS, "other_label_evidence": _QUESTIONS, "label_specificity": _QUESTIONS,
    "randomisation": "docs/calibration.md#is-05-a-sensible-limit-for-randomisation",
    "reproduction": "docs/policies.md#are-these-the-maps-of-the-method-that-they-name",
}  # fmt: skip
_OTHERS = "docs/policies.md#other-checks"
PAGES = (*_PAGES.values(), _OTHERS)


@dataclass(frozen=True)
class Entry:
    """One line of a pipeline's page."""

    id: str
    rule: str  # the same for findings of a kind
    group: str
    requirement: str
    help: str
    page: str  # of the documentation
    status: str  # as results.json has it
    outcome: Outcome
    severity: Severity
    message: str
    facts: Mapping[str, str]
    accepted: Mapping[str, str]  # by whom, why and until when, where somebody answers for it


def entries(results: Results) -> list[Entry]:
    """The verdict, then the checks, then what the examination found."""
    checks = [_check(check, results) for check in results.checks]
    return [_verdict(results), *checks, *_examination(results)]


def accounts_for(results: Results, *outcomes: Outcome) -> bool:
    """Whether a check has one of the outcomes, so that the verdict need not be counted beside it."""
    return any(_check(check, results).outcome in outcomes for check in results.checks)


def _sets_limits(results: Results) -> bool:
    return results.policy is not None and results.verdict != "measured"


def _verdict(results: Results) -> Entry:
    headline = wording.headline(results)
    reason = results.verdict_reason or headline.means
    outcomes: dict[str | None, Outcome] = {"pass": "passed", "fail": "failed"}
    outcome = outcomes.get(results.verdict, "open") if _sets_limits(results) else "skipped"
    return Entry(VERDICT, VERDICT, "auditkit", "The policy's verdict is a pass",
                 "Every check that the policy counts must be shown to hold.", _PAGES[VERDICT],
                 _verdict_status(results), outcome, "critical", f"{headline.word}: {reason}", {"reason": reason}, {}
                 )  # fmt: skip


def _verdict_status(results: Results) -> str:
    return results.verdict or ("none" if results.run.preliminary is None else "preliminary")


def _check(check: CheckResult, results: Results) -> Entry:
    policy = name(results.policy.name) if results.policy else "without a policy"
    requirement, status = check.title or check.id, wording.status(check.status).word
    aside = "" if check.status == "pass" else _aside(check, results)
    message = (
        f"{requirement}: {status} ({aside}). {check.reason}" if aside else f"{requirement}: {check.reason or status}"
    )
    suppression = check.suppression if check.status == "suppressed" else None
    return Entry(
        check.id, check.id, f"auditkit.{policy}", requirement, _help(check),
        _PAGES.get(check.metric, _OTHERS), check.status, _outcome(check, aside), check.severity, message, _facts(check),
        vars(suppression) if suppression else {},
    )  # fmt: skip


def _aside(check: CheckResult, results: Results) -> str:
    """Why a check that did not pass fails no pipeline; empty where it does."""
    suppression = check.suppression
    if check.status == "suppressed" and suppression is not None:
        return f"by {suppression.approver} until {suppression.expires}, {suppression.reason}"
    if check.part_of:
        return f"part of {check.part_of}"
    if not check.counts:
        return "for information"
    if not _sets_limits(results):
        return "the policy sets no limits"
    return "not required" if check.status == "not assessed" and not check.required else ""


def _outcome(check: CheckResult, aside: str) -> Outcome:
    if check.status == "pass":
        return "passed"
    if aside:
        return "skipped"
    return "open" if check.status in ("inconclusive", "not assessed", "error") else "failed"


def _help(check: CheckResult) -> str:
    """What a check asks, and what its metric is."""
    asks = f"{title(check.metric) or check.title or check.id} {sections.limit(check)}".strip()
    metric = METRICS.get(check.metric)
    return f"{asks[:1].upper()}{asks[1:]}. {metric.definition if metric else ''}".strip()


def _facts(check: CheckResult) -> dict[str, str]:
    facts = {
        "title": check.title or check.id, "metric": title(check.metric), "severity": check.severity,
        "observed": sections.observed(check), "interval": marked_interval(check),
        "limit": sections.limit(check), "n": exact(check.n), "reason": check.reason,
        "without the suppression": wording.status(check.would_be).word if check.suppression and check.would_be else "",
    }  # fmt: skip
    return {what: value for what, value in facts.items() if value}


def _examination(results: Results) -> list[Entry]:
    """An entry for each finding, or one that says that there is none; one that says why the model was not judged."""
    examination, gate = results.examination, results.finding_gate
    findings = [_finding(finding, results) for finding in examination.findings] if examination else []
    not_judged = gate is not None and gate.status == "not assessed"
    if findings and not not_judged:
        return findings
    if examination is None and not results.not_examined:
        return []
    outcome: Outcome = "open" if gate else _SKIPPED
    status, message = "not assessed", f"The model was not examined: {results.not_examined}."
    if examination is not None and not_judged:
        message = " ".join(answers.gate(results))
    elif examination is not None:
        status, outcome, message = "pass", "passed", relies.summary(examination, results.subject.class_names)
    entry = Entry(
        _EXAMINED, _EXAMINED, f"auditkit.{_EXAMINATION}", "The model relies on no shortcut", _EXCHANGED,
        _PAGES[_EXAMINATION], status, outcome, "info", message, {"found": message}, {},
    )  # fmt: skip
    return [*findings, entry]


def _finding(finding: Finding, results: Results) -> Entry:
    names, examination = results.subject.class_names, results.examination
    rule = f"{_EXAMINATION}:{finding.kind}"
    where = "" if finding.label is None else f"[{relies.label(finding.label, names)}]"
    how_many = relies.how_many(finding, examination) if examination else ""
    facts = {"severity": finding.severity, "seen": f"{relies.seen(finding, names)} {how_many}",
             "allowed by the policy": finding.allowed,
             "what to do": "" if finding.allowed else relies.to_do(finding)}  # fmt: skip
    return Entry(
        f"{rule}{where}", rule, f"auditkit.{_EXAMINATION}", f"The model relies on a shortcut: {finding.kind}",
        f"{_EXCHANGED} {relies.to_do(finding)}", _PAGES[_EXAMINATION], "allowed" if finding.allowed else FOUND,
        _finding_outcome(finding, results), finding.severity, f"{relies.title(finding, names)}.",
        {what: value for what, value in facts.items() if value}, {"reason": finding.allowed} if finding.allowed else {},
    )  # fmt: skip


def _finding_outcome(finding: Finding, results: Results) -> Outcome:
    """A finding fails where the run or its policy asks for that; an allowed one passes."""
    if finding.allowed:
        return "passed"
    gate, severities = results.finding_gate, get_args(Severity)
    if gate is None or gate.status == "not assessed":
        return _SKIPPED
    return _SKIPPED if severities.index(finding.severity) < severities.index(gate.fail_on) else "failed"
