"""Decides the verdict: compares results with a policy. Pure: results in, findings out.

A pass needs every check to pass. It is wrong only if a check passes whose limit is not kept, which is as improbable as
for that check alone: at most 5 %. A fail needs more than one failed check out of many: the mean of the e-values of all
tests must reach 20, which keeps its error at 5 % too.

An expired suppression is not applied: its check counts again, as in other audit tools, and a finding for information
says so. The expiry alone does not fail the verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from auditkit.metrics.betting import DECISIVE, FEWEST_IMAGES
from auditkit.metrics.table import METRICS
from auditkit.runs.folder.figures import Severity, Verdict
from auditkit.runs.folder.results import PREPROCESSING, Results
from auditkit.runs.summary.samples import Samples
from auditkit.runs.summary.wording import BY_CHANCE, images_to_add, source_text
from auditkit.verdict.checks import Finding, judge_check
from auditkit.verdict.examination import finding_gate
from auditkit.verdict.flags import flag_findings
from auditkit.verdict.measurements import Figure, Measurements
from auditkit.verdict.policy import NOT_REPRODUCED, Check, Policy, Suppression, at_least, deciding
from auditkit.verdict.preconditions import preconditions

_MOST_EXPLAINED = 3  # findings
_NOT_KEPT = {"fail": "Failed", "inconclusive": "Open", "error": "Error"}


@dataclass(frozen=True)
class Decision:
    """A verdict, and the findings it rests on."""

    verdict: Verdict
    because: tuple[Finding, ...] = ()  # that failed, are open, or were set aside
    counted: int = 0  # findings that affect the verdict
    passed: tuple[Finding, ...] = ()
    passed_of_policy: int = 0  # how many of them are checks of the policy
    no_other_labels: bool = False  # no label other than the prediction could be assessed
    tested: bool = False  # it rests on tests, which chance affects


def judge(
    policy: Policy, results: Results, samples: Samples | None, today: date, fail_on: str | None = None
) -> Results:
    """The results with checks, verdict and reason; `samples` are the values of each image, `fail_on` overrides.

    Preliminary results have neither checks nor a verdict, which a reader could take for those of the finished run.
    """
    if results.run.preliminary is not None:
        return replace(results, checks=(), verdict=None, verdict_reason=results.run.preliminary.text)
    level = deciding(fail_on or policy.fail_on)
    measurements = Measurements(results, samples)
    active = {suppression.check: suppression for suppression in policy.suppressions if today <= suppression.expires}
    required = preconditions(policy, measurements)
    judged = [judge_check(check, policy, measurements, active) for check in policy.checks]
    of_policy = [_suppressed(finding, active) for finding in judged]
    named = _odd(policy, measurements, active) + _not_above(policy, measurements, active)
    named += [_suppressed(finding, active) for finding in _not_reproduced(policy, results)]
    findings = required + of_policy + named + _expired(policy, today)
    decision = decide(findings, of_policy, level)
    checks = tuple(finding.to_record(counts=_counts(finding, level)) for finding in findings)
    reason = explain(decision, policy, of_policy, level)
    return replace(
        results,
        checks=checks,
        verdict=decision.verdict,
        verdict_reason=reason,
        finding_gate=finding_gate(policy, results),
    )


def _counts(finding: Finding, level: Severity) -> bool:
    """Whether a finding affects the verdict: it is severe enough, and no other finding includes it."""
    return at_least(finding.severity, level) and not finding.part_of


def _suppressed(finding: Finding, active: Mapping[str, Suppression]) -> Finding:
    """The finding, suppressed if a suppression names it or its check and it does not pass."""
    suppression = active.get(finding.id) or active.get(finding.part_of)
    if suppression is None:
        return finding
    if finding.status == "pass":
        return replace(finding, sentences=(*finding.sentences, "Its suppression is not needed."))
    return replace(finding, status="suppressed", would_be=finding.status, suppression=suppression)


def _odd(policy: Policy, measurements: Measurements, active: Mapping[str, Suppression]) -> list[Finding]:
    """Findings about flagged maps; possible cheats have the severity of the check on flags."""
    check = next((check for check in policy.checks if check.metric == "flags"), None)
    findings = []
    for flagged in flag_findings(measurements.results.flags, measurements.results.subject.classes):
        finding = Finding(flagged.id, flagged.title, "flags", "fail" if flagged.cheat else "inconclusive", "info",
                          (flagged.reason,))  # fmt: skip
        if check is not None and (flagged.cheat or flagged.open):
            finding = replace(finding, severity=check.severity, part_of=check.id)
        findings.append(_suppressed(finding, active))
    return findings


def _not_above(policy: Policy, measurements: Measurements, active: Mapping[str, Suppression]) -> list[Finding]:
    """Findings about controls that the maps do not beat, by the policy's margin or for information."""
    any_count = replace(policy, minimum_images=FEWEST_IMAGES)
    margins = [check for check in policy.checks
               if check.rule == "min_margin_over" and check.limit >= 0 and check.metric != "best_effort"]  # fmt: skip
    findings: dict[str, Finding] = {}
    for check in margins or _default_margins(policy, measurements):
        for control in check.over:
            name = f"not-above-{control}"
            over_control = replace(check, id=name, limit=0.0, over=(control,), what_to_do="", every_group=False)
            title = over_control.requirement
            titled = replace(over_control, title=f"{title[:1].upper()}{title[1:]}")
            finding = judge_check(titled, any_count, measurements)
            few = finding.figure.n < FEWEST_IMAGES  # they are not a sign of anything
            if finding.status in ("fail", "inconclusive") and not few:
                finding = replace(finding, part_of=check.id if margins else "")
                findings.setdefault(name, _suppressed(finding, active))
    return list(findings.values())


def _not_reproduced(policy: Policy, results: Results) -> list[Finding]:
    """A finding about supplied maps that are not those of the method that they name."""
    others = [entry for entry in results.reproductions if entry.reproduced is False]
    if not policy.reproduce or not others:
        return []
    worst = min(others, key=lambda entry: entry.median or 0.0)
    figure = Figure("", getattr(worst, worst.decides), n=worst.maps, exact=True)
    return [Finding(NOT_REPRODUCED, "maps are those of the method that they name", "reproduction", "fail", "high",
                    tuple(entry.text for entry in others), figure, worst.limit, "min")]  # fmt: skip


def _default_margins(policy: Policy, measurements: Measurements) -> list[Check]:
    """The margin over controls if the policy has none: of completeness if it is known, else of insertion."""
    known = any(figure.value is not None for figure in measurements.figures("worst_completeness"))
    metric = "worst_completeness" if known else "insertion"
    over = tuple(name for name in policy.controls if known or name != "one-map")
    return [Check("not-above", metric, "min_margin_over", 0.0, "info", "", over=over)] if over else []


def _expired(policy: Policy, today: date) -> list[Finding]:
    expired = [suppression for suppression in policy.suppressions if suppression.expires < today]
    return [
        Finding(f"suppression-expired:{suppression.check}", f"the suppression of {suppression.check} is in force",
                "suppression", "inconclusive", "info", (
                    f"It expired on {suppression.expires} and is not applied: {suppression.check} counts again.",
                    f"{suppression.approver} approved it because: {suppression.reason.removesuffix('.')}.",
                ))
        for suppression in expired
    ]  # fmt: skip


def decide(findings: Sequence[Finding], of_policy: Sequence[Finding], level: Severity) -> Decision:
    """The verdict; a check that is not known to hold never passes."""
    severe = [finding for finding in of_policy if at_least(finding.severity, level)]
    if not severe:
        return Decision("measured")
    counted = [finding for finding in findings if _counts(finding, level)]
    failed = tuple(finding for finding in counted if finding.status == "fail")
    certain = any(finding.certain for finding in failed)
    # Maps may miss a limit because the model is shown inputs that it was not made for.
    stated = all(finding.status == "pass" for finding in findings if finding.id == PREPROCESSING)
    if certain or (failed and stated and _mean_e_value(severe) >= DECISIVE):
        return Decision("fail", failed, len(counted), tested=not certain)
    undecided = tuple(
        finding for finding in counted
        if finding.status in ("inconclusive", "error") or (finding.status == "not assessed" and finding.required)
    )  # fmt: skip
    if failed or undecided:
        return Decision("inconclusive", (*failed, *undecided), len(counted))
    aside = _set_aside(findings, severe)
    passed_of_policy = sum(finding.status == "pass" for finding in severe)
    if not passed_of_policy:
        return Decision("inconclusive", aside)
    of_other_labels = tuple(finding for finding in severe if METRICS[finding.metric].of_other_labels)
    if of_other_labels and all(finding.status == "not assessed" for finding in of_other_labels):
        return Decision("inconclusive", of_other_labels, no_other_labels=True)
    passed = tuple(finding for finding in counted if finding.status == "pass")
    tested = any(finding.evidence for finding in passed)
    return Decision("pass", aside, len(counted), passed, passed_of_policy, tested=tested)


def _mean_e_value(of_policy: Sequence[Finding]) -> float:
    """The mean, over all tests that can fail the verdict, of the e-values for a limit that is missed.

    If all limits are kept, it ever reaches 20 with a probability of at most 5 %, however many tests there are.
    """
    evidence = [finding.evidence for finding in of_policy if finding.evidence and finding.suppression is None]
    tests = sum(entry.tests for entry in evidence)
    return sum(entry.fails * entry.tests for entry in evidence) / tests if tests else 0.0


def _set_aside(findings: Sequence[Finding], severe: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings suppressed by name, would-be failures first; then those not assessed."""
    by_name = [finding for finding in findings if finding.suppression and finding.suppression.check == finding.id]
    by_name.sort(key=lambda finding: finding.would_be != "fail")
    return (*by_name, *(finding for finding in severe if finding.status == "not assessed"))


def explain(decision: Decision, policy: Policy, of_policy: Sequence[Finding], level: Severity) -> str:
    """The decision in words."""
    because, counted = decision.because, decision.counted
    if decision.verdict == "measured":
        severity = f" of severity {level} or above" if policy.checks else ""
        return f"The policy {policy.name} sets no limits{severity}, so there is no verdict."
    if decision.verdict == "fail":
        reason = _weak(of_policy) + _because(f"{len(because)} of {counted} checks failed", because)
        sure = BY_CHANCE["fail"] if decision.tested else ""
        unsettled = [f"“{finding.title}”" for finding in of_policy if finding.status == "inconclusive"]
        also = f"Not settled: {', '.join(unsettled)}." if unsettled else ""
        return " ".join(filter(None, (reason, also, sure, _to_do(because))))
    if decision.verdict == "pass":
        return " ".join(filter(None, (_explain_pass(decision, of_policy, level), policy.pass_means)))
    if decision.no_other_labels:
        return _because("Nothing is known about labels other than the prediction; add images on which the model is "
                        "less sure. Not assessed", because)  # fmt: skip
    if not counted:
        return _because("No check of the policy could be judged", because)
    if any(finding.status == "fail" for finding in because):
        reason = _because(f"{len(because)} of {counted} checks failed or are undecided", because)
        guess = next((finding.what_to_do for finding in because if finding.id == PREPROCESSING), "")
        chance = "With so many tests, a failure may still be chance; add images to settle it."
        return f"{reason} {guess or chance}"
    reason = _because(f"{len(because)} of {counted} checks {'is' if len(because) == 1 else 'are'} undecided", because)
    return " ".join(filter(None, (reason, _to_do(because))))


def _weak(of_policy: Sequence[Finding]) -> str:
    """Says so where maps differ from label to label as they should, but do not beat one that ignores the model."""
    specific = any(finding.metric == "label_specificity" and finding.status == "pass" for finding in of_policy)
    beaten = [
        finding.figure for finding in of_policy if finding.metric == "relevance_gain" and finding.status == "fail"
    ]
    if not specific or not beaten or not beaten[0].against:
        return ""
    word = "worse" if (beaten[0].value or 0.0) < 0 else "hardly better"
    return f"The maps tell labels apart, but show the prediction {word} than {source_text(beaten[0].against)}. "


def _explain_pass(decision: Decision, of_policy: Sequence[Finding], level: Severity) -> str:
    passed, aside, count = decision.passed, decision.because, decision.passed_of_policy
    which = f"{len(passed)} checks hold, {count} of the policy and {len(passed) - count} of the measurement itself"
    ids = ", ".join(finding.id for finding in aside)
    several = f"{which}; {len(aside)} suppressed or not assessed: {ids}"
    sentences = [_because(several, aside) if aside else f"All {which}."]
    below = [finding.id for finding in of_policy if finding.status == "fail" and not at_least(finding.severity, level)]
    if below:
        sentences.append(f"Failed, but below the severity {level} that decides: {', '.join(below)}.")
    sentences += [f"Left out of {finding.id}, not beaten: {', '.join(map(source_text, finding.left_out))}."
                  for finding in passed if finding.left_out]  # fmt: skip
    if decision.tested:
        sentences.append(BY_CHANCE["pass"])
    return " ".join(sentences)


def _to_do(findings: Sequence[Finding]) -> str:
    """What to do about the first of them that says so; else how many images would decide them."""
    open_checks = [(finding.title, finding.more_images) for finding in findings if finding.more_images is not None]
    return next((finding.what_to_do for finding in findings if finding.what_to_do), images_to_add(open_checks))


def _because(what: str, findings: Sequence[Finding]) -> str:
    """The count, and what the first few ask and why they are not kept; every suppression of what would have failed."""
    would_fail = [finding for finding in findings if finding.would_be == "fail"]
    first, others = (would_fail, ()) if would_fail else (findings[:_MOST_EXPLAINED], findings[_MOST_EXPLAINED:])
    titles = ", ".join(f"“{finding.title or finding.id}”" for finding in others)
    rest = [f"The others: {titles}."] if others else []
    return " ".join([f"{what}.", *map(_why, first), *rest])


def _why(finding: Finding) -> str:
    if finding.suppression is None:
        word = f"{_NOT_KEPT.get(finding.status, 'Not assessed')}: “{finding.title or finding.id}”."
        return f"{word} {finding.reason if finding.status == 'not assessed' else finding.sentences[0]}"
    would_fail = "would have failed, but " if finding.would_be == "fail" else ""
    until = f"until {finding.suppression.expires} by {finding.suppression.approver}"
    return f"Check {finding.id} {would_fail}is suppressed {until}."
