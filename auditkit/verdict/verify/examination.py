"""Examines the model again, and compares what comes out with what a run says."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.executor import Progress
from auditkit.runs.folder.examination import FOLDER, Examination, Finding
from auditkit.runs.folder.names import POLICY, RESULTS
from auditkit.runs.folder.results import Results
from auditkit.verdict.examination import examined, judged
from auditkit.verdict.policy import Policy
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify.pictures import IMPERCEPTIBLE, colour_difference
from auditkit.verdict.verify.run_record import Outcome, RecordedRun

MOVED = 0.05  # a rate, by the rounding of another device: some images lie on the edge between two labels


def check_examination(recorded: RecordedRun, plan: EvaluationPlan, progress: Progress) -> Outcome:
    """An examination that comes out otherwise."""
    results = recorded.results
    if results.policy is None:
        raise ValueError("the run has no policy")
    policy = parse_policy(results.policy.text, POLICY)
    if policy.examination is None:
        return Outcome("the policy asks for none")
    with tempfile.TemporaryDirectory() as folder:
        again = examined(plan.model, plan.images, plan.bundles, policy, results, Path(folder), progress)
        problems = [f"{RESULTS}: {text}" for text in _differences(results.examination, again.examination)]
        if results.not_examined != again.not_examined:
            problems.append(f"{RESULTS}: not_examined is '{results.not_examined}', expected '{again.not_examined}'")
        if not problems and again.examination is not None:
            problems += _other_pictures(again.examination, recorded.store.folder / FOLDER, Path(folder) / FOLDER)
    return Outcome("what the model relies on comes out again", problems)


def contradictions(results: Results, policy: Policy) -> Iterator[str]:
    """Contradictions about what the model relies on; whether it does needs the originals."""
    asked, stored = policy.examination is not None, results.examination
    if asked == (stored is None and not results.not_examined) or (stored is not None and results.not_examined):
        yield f"{RESULTS}: an examination, or why there is none, is {'' if asked else 'not '}expected"
    elif stored is not None and judged(stored, policy) != stored:
        yield f"{RESULTS}: the examination's findings have other severities or reasons than the policy gives"


def _differences(then: Examination | None, now: Examination | None) -> Iterator[str]:
    if then is None or now is None:
        if then is not now:
            yield f"the examination is {'missing' if then is None else 'not expected'}"
        return
    if [_named(finding) for finding in then.findings] != [_named(finding) for finding in now.findings]:
        yield "the examination has other findings than the model gives"
    elif any(_counted_otherwise(*pair) for pair in zip(then.findings, now.findings, strict=True)):
        yield "the examination counts other images of a group than the model gives"
    for what, pairs in (("exchange", zip(then.rates, now.rates, strict=False)),
                        ("probe", zip(then.probes, now.probes, strict=False))):  # fmt: skip
        for first, second in pairs:
            moved = [abs(a - b) for a, b in zip(_numbers(first), _numbers(second), strict=True)]
            if vars(first)[what] != vars(second)[what] or max(moved) > MOVED:
                yield f"the {what} '{vars(first)[what]}' has other figures than the model gives"
    sizes = [(entry.method, entry.images, entry.proposing, entry.passes, len(entry.rates), len(entry.probes))
             for entry in (then, now)]  # fmt: skip
    if sizes[0] != sizes[1] or then.zones != now.zones:
        yield "the examination describes other images or maps"


def _counted_otherwise(first: Finding, second: Finding) -> bool:
    """Whether more images of a group carry a cue, or fewer, than rounding explains."""
    if (first.groups or {}).keys() != (second.groups or {}).keys():
        return True
    for column, groups in (first.groups or {}).items():
        others = (second.groups or {})[column]
        if {group: entry.n for group, entry in groups.items()} != {group: entry.n for group, entry in others.items()}:
            return True
        if any(abs(entry.images - others[group].images) > max(1, MOVED * entry.n) for group, entry in groups.items()):
            return True
    return False


def _named(finding: Finding) -> tuple[object, ...]:
    examples = tuple((example.recipient, example.donor, example.before, example.after) for example in finding.examples)
    return finding.kind, finding.exchange, finding.place, finding.label, finding.severity, finding.allowed, examples


def _numbers(rate: object) -> list[float]:
    return [value for value in vars(rate).values() if isinstance(value, float)]


def _other_pictures(examination: Examination, stored: Path, drawn: Path) -> Iterator[str]:
    """Pictures that show something else than the exchange that they are said to show."""
    for finding in examination.findings:
        for example in finding.examples:
            path = stored / example.picture
            if (
                not path.is_file()
                or colour_difference(path.read_bytes(), (drawn / example.picture).read_bytes()) > IMPERCEPTIBLE
            ):
                yield f"{FOLDER}/{example.picture} does not show the exchange of the examination"
