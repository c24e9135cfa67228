"""Preconditions of every verdict: results are complete, measured as the policy says, and rest on enough images.

A policy neither states nor suppresses them. Without them, a verdict could be obtained by leaving things out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from auditkit.errors import BadInput
from auditkit.metrics.table import METRICS
from auditkit.runs.evaluation.settings import resolved
from auditkit.runs.folder.figures import CONTROL, Severity, Status
from auditkit.runs.folder.results import PREPROCESSING, ModelFile, Refusal, Settings
from auditkit.runs.summary.wording import source_text
from auditkit.verdict.checks import NO_FIGURE, Finding
from auditkit.verdict.measurements import Figure, Measurements
from auditkit.verdict.policy import ONE_MAP_CONTROL, Policy

LEAST_DIFFERENT = 0.9  # share of the images; with more copies, intervals would be too narrow


def preconditions(policy: Policy, measurements: Measurements) -> list[Finding]:
    """Findings about what the checks of the policy rest on."""
    checks = [_record, _settings, _preprocessing, _images, _labels, _controls, _identity]
    return [check(policy, measurements) for check in checks] + list(_refused(measurements))


def _finding(
    name: str, title: str, status: Status, reason: str, figure: Figure = NO_FIGURE, *,
    severity: Severity = "critical", limit: float | None = None, rule: str = "", required: bool = True,
    what_to_do: str = "",
) -> Finding:  # fmt: skip
    return Finding(name, title, name, status, severity, (reason,), figure, limit, rule, required, what_to_do=what_to_do)


def _record(_policy: Policy, measurements: Measurements) -> Finding:
    run = measurements.results.run
    unnamed = [f"run.bundles.{bundle}" for bundle in measurements.bundles if bundle not in run.bundles]
    reason = f"The results lack {', '.join(unnamed)}." if unnamed else "Nothing is missing from the results."
    return _finding("record", "the results are complete", "error" if unnamed else "pass", reason)


def _settings(policy: Policy, measurements: Measurements) -> Finding:
    title, results = "measured as the policy asks", measurements.results
    try:
        others = changed_settings(policy, results.settings, results.subject.classes)
    except BadInput as error:
        return _finding("settings", title, "error", str(error))
    if others:
        changes = [f"{name} {_written(used)} instead of {_written(asked)}" for name, (used, asked) in others.items()]
        reason = f"Measured with {', '.join(changes)}; the metrics are valid, but the policy cannot be passed."
        return _finding("settings", title, "error", reason)
    return _finding("settings", title, "pass", "Every setting is the policy's.")


def _preprocessing(_policy: Policy, measurements: Measurements) -> Finding:
    """Whether somebody stated the preprocessing; with a guess, figures may be about inputs of another kind."""
    title, subject = "the preprocessing was stated", measurements.results.subject
    origin, assumption = subject.card_origin, subject.card_origin.assumption
    if assumption is not None:
        return _finding(PREPROCESSING, title, "inconclusive", assumption.text, what_to_do=assumption.remedy)
    if subject.dtype == "uint8" and origin.sha256 is None:
        return _finding(PREPROCESSING, title, "pass", "The model takes whole pixels as they are.")
    source = origin.source if origin.sha256 is None else f"the card {origin.source}"
    return _finding(PREPROCESSING, title, "pass", f"The preprocessing was stated by {source}.")


def changed_settings(policy: Policy, settings: Settings, classes: int) -> dict[str, tuple[object, object]]:
    """What was measured otherwise than the policy asks: the value that was used, and the policy's.

    The seed follows from the audit's salt.
    """
    evaluation = replace(policy.evaluation, seed=settings.seed)
    asked = vars(resolved(evaluation, classes).to_record())
    return {name: (value, asked[name]) for name, value in vars(settings).items() if value != asked[name]}


def _written(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _images(policy: Policy, measurements: Measurements) -> Finding:
    """Whether enough images have figures, and no more were lost than the policy allows."""
    title, minimum = f"at least {policy.images_needed} images", float(policy.images_needed)
    results, failed = measurements.results, len(measurements.results.failed_images)
    if not measurements.bundles:
        return _finding("images", title, "not assessed", "No image has a result.", limit=minimum, rule="min")
    evaluated = min(measurements.evaluated(bundle) for bundle in measurements.bundles)
    copies = max(results.run.copies, 0)
    different = evaluated - copies
    left_out = sum(flag.count or 0 for flag in results.flags if flag.kind == "images-without-label")
    total = max(results.subject.images.count, evaluated + left_out + failed)
    lost = total - evaluated - left_out
    too_many_lost = lost > policy.max_failed_images * total
    sentences = [f"{evaluated} of {total} images were measured, {policy.images_needed} are needed."]
    if copies:
        sentences.append(f"{copies} of them are copies of others and do not count.")
    if failed:
        sentences.append(f"{failed} images could not be read.")
    if left_out:
        sentences.append(f"{left_out} have no label in the label set.")
    if too_many_lost:
        sentences.append(f"{lost} have no figures; the policy allows {policy.max_failed_images:.1%}.")
    enough = different >= policy.images_needed and different > LEAST_DIFFERENT * evaluated and not too_many_lost
    figure = Figure("", float(different), n=evaluated, exact=True)
    status: Status = "pass" if enough else "inconclusive"
    return Finding("images", title, "images", status, "critical", tuple(sentences), figure, minimum, "min")


def _labels(policy: Policy, measurements: Measurements) -> Finding:
    """Whether every label has a map of its own; without it, soundness is not known."""
    title, needed = "maps for every label", any(METRICS[check.metric].of_every_label for check in policy.checks)
    severity: Severity = "critical" if needed else "info"
    missing = [figure for figure in measurements.figures("soundness") if figure.value is None]
    if missing:
        reason = f"{missing[0].of}: {missing[0].reason}."
        return _finding("labels", title, "not assessed", reason, severity=severity)
    return _finding("labels", title, "pass", "Completeness and soundness are known.", severity=severity)


def _controls(policy: Policy, measurements: Measurements) -> Finding:
    """Whether every control of the policy was measured; one-map means nothing where only one label has maps."""
    title = "controls measured with the maps"
    if not policy.controls:
        return _finding("controls", title, "not assessed", "The policy has no controls.", severity="info")
    expected = [name for name in policy.controls if name != ONE_MAP_CONTROL]
    if ONE_MAP_CONTROL in policy.controls and _labels(policy, measurements).status == "pass":
        expected += [f"{ONE_MAP_CONTROL}:{bundle}" for bundle in measurements.bundles]
    missing = [name for name in expected
               if not all(measurements.has_control(name, infill) for infill in measurements.infills)]  # fmt: skip
    names = ", ".join(source_text(f"{CONTROL}{name}") for name in missing)
    if missing or not measurements.infills:
        return _finding("controls", title, "not assessed", f"No figures of {names or 'any control'}.")
    return _finding("controls", title, "pass", f"{len(expected)} controls were measured.")


def _identity(_policy: Policy, measurements: Measurements) -> Finding:
    """Whether the maps were made for this model, as far as their bundles say."""
    title, model = "maps made for this model", measurements.results.subject.model
    digests = measurements.results.run.bundle_models or {}
    if not isinstance(model, ModelFile) or not digests:
        reason = "No bundle names its model." if isinstance(model, ModelFile) else "The model is not a file."
        return _finding("identity", title, "not assessed", reason, severity="info", required=False)
    identity = model.identity.lower()
    others = {name: digest for name, digest in digests.items() if digest is not None and digest.lower() != identity}
    if others:
        first = next(iter(others.values())).lower()
        reason = f"{', '.join(others)}: made for the model {first[:12]}..., this one is {model.identity[:12]}..."
        return _finding("identity", title, "fail", reason)
    silent = [name for name in dict.fromkeys([*measurements.bundles, *digests]) if digests.get(name) is None]
    if silent:
        reason = f"{', '.join(silent)}: the bundle does not say which model it explains."
        return _finding("identity", title, "not assessed", reason)
    return _finding("identity", title, "pass", "Every bundle names this model's digest.")


def _refused(measurements: Measurements) -> Iterator[Finding]:
    """Bundles that could not be used at all."""
    refused = measurements.results.run.refused_bundles or {}
    coloured = {name: problems for name, problems in refused.items()
                if any(problem.kind == "colour-picture" for problem in problems)}  # fmt: skip
    if coloured:
        yield _finding("cheat-colour-pictures", "pictures instead of maps", "fail", _problems(coloured))
    if refused:
        yield _finding("maps-usable", "all maps can be used", "error", _problems(refused))


def _problems(refused: Mapping[str, tuple[Refusal, ...]]) -> str:
    sentences = []
    for name, problems in refused.items():
        messages = "; ".join(problem.message for problem in problems)
        sentences.append(f"{name}: {messages.removesuffix('.')}.")
    return " ".join(sentences)
