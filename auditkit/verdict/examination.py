"""The examination of the model as part of an audit: what the policy asks for, allows and calls severe."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.examination.examine import examine
from auditkit.runs.executor import Progress
from auditkit.runs.folder.examination import FOLDER, Examination
from auditkit.runs.folder.results import FindingGate, Results
from auditkit.verdict.policy import Policy, at_least, deciding


def examined(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], policy: Policy, results: Results,
    folder: Path, progress: Progress,
) -> Results:  # fmt: skip
    """The results with what the model relies on, by the first set of maps, or with why that is not known."""
    if not bundles:
        return replace(results, not_examined="no set of maps can be used")
    maps = next(iter(bundles.values()))
    try:
        examination = examine(model, images, maps, folder / FOLDER, results.settings.seed, progress)
    except BadInput as error:
        return replace(results, not_examined=str(error).removesuffix("."))
    return replace(results, examination=judged(examination, policy))


def judged(examination: Examination, policy: Policy) -> Examination:
    """The same with the policy's severity, and with its reason where it allows a cue."""
    rules = policy.examination
    if rules is None:
        return examination
    findings = tuple(
        replace(finding, severity=rules.severity or finding.severity, allowed=rules.allowed.get(finding.kind, ""))
        for finding in examination.findings
    )
    return replace(examination, findings=findings)


def finding_gate(policy: Policy, results: Results) -> FindingGate | None:
    """Whether findings about the model fail the audit; None where neither the run nor the policy asks for it.

    With preprocessing that nobody stated, the model may rely on other things than it does in use.
    """
    severity = results.run.fail_on_finding or policy.fail_on_finding
    if severity is None:
        return None
    level = deciding(severity)
    if results.examination is None or results.subject.card_origin.assumption:
        return FindingGate(level, "not assessed")
    counted = [finding.severity for finding in results.examination.findings if not finding.allowed]
    failed = any(at_least(found, level) for found in counted)
    return FindingGate(level, "fail" if failed else "pass")
