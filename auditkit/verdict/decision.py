"""The verdict: what a policy asks, against what an evaluation found. Pure: results in, findings out.

An expired suppression is not applied: its check counts again, as in other audit tools, and a finding for information
says so. It does not fail the verdict by itself, since the check, which nobody answers for any more, speaks for itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from auditkit.verdict.checks import FEWEST, Finding, judged
from auditkit.verdict.flags import oddities
from auditkit.verdict.measurements import Measured
from auditkit.verdict.policy import Check, Policy, Suppression, at_least, deciding
from auditkit.verdict.preconditions import CURVES, evidence

OF_OTHER_LABELS = ("soundness", "worst_soundness", "best_effort")  # metrics that other labels than the first decide


def judge(
    policy: Policy, results: Mapping[str, Any], today: date, fail_on: str | None = None
) -> tuple[list[dict[str, Any]], str, str]:
    """The checks, the verdict and its reason; `fail_on` goes before the policy's."""
    level = deciding(fail_on or policy.fail_on)
    measured = Measured(results)
    active = {one.check: one for one in policy.suppressions if today <= one.expires}
    first = evidence(policy, measured)
    open_points = [one.figure.value or 0.0 for one in first if (one.id, one.status) == ("points", "inconclusive")]
    rough = max(open_points, default=0.0)
    asked = [_suppressed(_weighed(judged(check, policy, measured, active), rough), active) for check in policy.checks]
    named = _odd(policy, measured, active) + _not_above(policy, measured, active, rough)
    found = first + asked + named + _expired(policy, today)
    verdict, reason = _verdict(found, asked, policy, level)
    return [finding.to_json() | {"counts": _counts(finding, level)} for finding in found], verdict, reason


def _counts(finding: Finding, level: str) -> bool:
    """Whether a finding has a say in the verdict: it weighs enough, and no other stands for it."""
    return at_least(finding.severity, level) and not finding.part_of


def _weighed(finding: Finding, rough: float) -> Finding:
    """The finding, open where it failed by less than its curves may be off for want of points."""
    figure, limit = finding.figure, finding.limit
    if finding.status != "fail" or finding.metric not in CURVES or figure.equal or figure.value is None:
        return finding
    low, high = (figure.value if end is None else end for end in (figure.low, figure.high))
    beyond = low - (limit or 0.0) if finding.rule == "max" else (limit or 0.0) - high
    if beyond >= rough:
        return finding
    return replace(finding, status="inconclusive", reason=f"{finding.reason} Its curves have too few points to tell.")


def _suppressed(finding: Finding, active: Mapping[str, Suppression]) -> Finding:
    """The finding, suppressed where somebody answers for it or for the whole check; what holds needs nobody."""
    suppression = active.get(finding.id) or active.get(finding.part_of)
    if suppression is None:
        return finding
    if finding.status == "pass":
        return replace(finding, reason=f"{finding.reason} Its suppression is not needed.")
    return replace(finding, status="suppressed", would_be=finding.status, suppression=suppression)


def _odd(policy: Policy, measured: Measured, active: Mapping[str, Suppression]) -> list[Finding]:
    """Named findings of what is odd about the maps; what is or may be a cheat weighs what the check of flags weighs."""
    check, found = next((check for check in policy.checks if check.metric == "flags"), None), list[Finding]()
    for odd in oddities(measured.results):
        parent = check if odd.cheat or odd.open else None
        severity, name = (parent.severity, parent.id) if parent else ("info", "")
        status = "fail" if odd.cheat else "inconclusive"
        one = Finding(odd.id, odd.title, "flags", status, severity, odd.reason, part_of=name)
        found.append(_suppressed(one, active))
    return found


def _not_above(policy: Policy, measured: Measured, active: Mapping[str, Suppression], rough: float) -> list[Finding]:
    """Named findings of controls that the maps do not beat, by the policy's own margin or for information."""
    ignoring = replace(policy, minimum_images=1)  # few images are no sign of anything
    few = min(FEWEST, policy.minimum_images)
    margins = [check for check in policy.checks
               if check.rule == "min_margin_over" and check.limit >= 0 and check.metric != "best_effort"]  # fmt: skip
    found: dict[str, Finding] = {}
    for check in margins or _blind(policy, measured):
        for control in check.over:
            name = f"not-above-{control}"
            title = f"{check.metric.replace('_', ' ')} above control:{control}"
            own = replace(check, id=name, title=title, limit=0.0, over=(control,))
            one = _weighed(judged(own, ignoring, measured), rough)
            scarce = bool(one.figure.resting_on) and one.figure.n < few
            if one.status in ("fail", "inconclusive") and not scarce:
                found.setdefault(name, _suppressed(replace(one, part_of=check.id if margins else ""), active))
    return list(found.values())


def _blind(policy: Policy, measured: Measured) -> list[Check]:
    """What maps are set beside the controls by when the policy does not say: completeness, or else insertion."""
    known = any(figure.value is not None for figure in measured.figures("worst_completeness"))
    metric = "worst_completeness" if known else "insertion"
    over = tuple(name for name in policy.controls if known or name != "one-map")
    return [Check("not-above", metric, "min_margin_over", 0.0, "info", "", over=over)] if over else []


def _expired(policy: Policy, today: date) -> list[Finding]:
    return [
        Finding(f"suppression-expired:{one.check}", f"the suppression of {one.check} is in force", "suppression",
                "inconclusive", "info", f"It expired on {one.expires} and is not applied: {one.check} counts again. "
                f"{one.approver} approved it because: {one.reason.removesuffix('.')}.")
        for one in policy.suppressions if one.expires < today
    ]  # fmt: skip


def _verdict(found: Sequence[Finding], asked: Sequence[Finding], policy: Policy, level: str) -> tuple[str, str]:
    """Fails closed: what was asked and is not known to hold never passes."""
    weighed = [finding for finding in asked if at_least(finding.severity, level)]
    if not weighed:
        about = f"asks nothing of severity {level} or above" if policy.checks else "asks for nothing"
        return "measured", f"The policy {policy.name} {about}: the figures are there, and nobody judged them."
    counted = [finding for finding in found if _counts(finding, level)]
    failed = [finding for finding in counted if finding.status == "fail"]
    open_ = [finding for finding in counted if finding.status in ("inconclusive", "error")
             or (finding.status == "not assessed" and finding.required)]  # fmt: skip
    held = [finding for finding in counted if finding.status == "pass"]
    if failed:
        return "fail", _because(f"{len(failed)} of {len(counted)} checks failed", failed)
    if open_:
        return "inconclusive", _because(f"{len(open_)} of {len(counted)} checks are open", open_)
    by_name = [finding for finding in found if finding.suppression and finding.suppression.check == finding.id]
    by_name.sort(key=lambda finding: finding.would_be != "fail")  # what would have failed comes first
    aside = [*by_name, *(finding for finding in weighed if finding.status == "not assessed")]
    own = sum(finding.status == "pass" for finding in weighed)
    if not own:
        return "inconclusive", _because("No check of the policy was judged", aside)
    others = [finding for finding in weighed if finding.metric in OF_OTHER_LABELS]
    if others and all(finding.status == "not assessed" for finding in others):
        return "inconclusive", _because("Nothing could be told of labels other than the prediction; images that leave "
                                        "the model in doubt would tell", others)  # fmt: skip
    which = f"{len(held)} checks hold, {own} of the policy and {len(held) - own} of the measurement itself"
    said = f"All {which}." if not aside else _because(f"{which}; {len(aside)} suppressed or not assessed", aside)
    below = [finding.id for finding in asked if finding.status == "fail" and not at_least(finding.severity, level)]
    more = f" Failed, but below the severity {level} that decides: {', '.join(below)}." if below else ""
    for finding in held:
        if finding.left_out:
            more += f" In {finding.id}, {', '.join(finding.left_out)} was left out, not beaten."
    return "pass", said + more


def _because(what: str, findings: Sequence[Finding]) -> str:
    """How many, which, and why the first; or who answers for each that would have failed."""
    told = [finding for finding in findings if finding.would_be == "fail"] or findings[:1]
    why = " ".join(f"Of {finding.id}: {_why(finding)}." for finding in told)
    return f"{what}: {', '.join(finding.id for finding in findings)}. {why}"


def _why(finding: Finding) -> str:
    if finding.suppression is None:
        said = finding.reason if finding.status == "not assessed" else finding.reason.partition(". ")[0]
        return said.removesuffix(".")
    failed = "would have failed, " if finding.would_be == "fail" else ""
    return f"{failed}suppressed until {finding.suppression.expires} by {finding.suppression.approver}"
