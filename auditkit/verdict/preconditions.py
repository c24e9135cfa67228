"""Preconditions of every verdict: results are complete, were measured as the policy says, and there is enough of them.

A policy neither states nor suppresses them. Without them a verdict could be had by leaving things out.
"""

from collections.abc import Iterator, Mapping

from auditkit.errors import BadInput
from auditkit.metrics.table import METRICS
from auditkit.runs.evaluation.settings import resolved
from auditkit.runs.folder.figures import CONTROL, Severity, Status
from auditkit.runs.folder.results import ModelFile, Refusal
from auditkit.runs.summary.sampling_error import MATTERS
from auditkit.verdict.checks import NO_FIGURE, Finding
from auditkit.verdict.measurements import Figure, Measurements
from auditkit.verdict.policy import ONE_MAP_CONTROL, Check, Policy

MOST_COPIES = 0.9  # with fewer different images among them than this share, intervals are narrower than they may be


def preconditions(policy: Policy, measurements: Measurements) -> list[Finding]:
    """What the checks of the policy can rest on."""
    checks = [_record, _settings, _images, _labels, _controls, _points, _identity]
    return [check(policy, measurements) for check in checks] + list(_refused(measurements))


def _finding(
    name: str, title: str, status: Status, reason: str | tuple[str, ...], figure: Figure = NO_FIGURE, *,
    severity: Severity = "critical",
    limit: float | None = None, rule: str = "", required: bool = True,
) -> Finding:  # fmt: skip
    sentences = (reason,) if isinstance(reason, str) else reason
    return Finding(name, title, name, status, severity, sentences, figure, limit, rule, required)


def _record(_policy: Policy, measurements: Measurements) -> Finding:
    run = measurements.results.run
    unnamed = [f"run.bundles.{bundle}" for bundle in measurements.bundles if bundle not in run.bundles]
    reason = f"The results lack {', '.join(unnamed)}." if unnamed else "Nothing is missing from the results."
    return _finding("record", "the results are complete", "error" if unnamed else "pass", reason)


def _settings(policy: Policy, measurements: Measurements) -> Finding:
    """Whether it was measured as the policy asks: figures measured with other settings are not comparable."""
    title, recorded = "measured as the policy asks", vars(measurements.results.settings)
    try:
        expected = resolved(policy.evaluation, measurements.results.subject.classes).to_record()
    except BadInput as error:
        return _finding("settings", title, "error", str(error))
    for name, value in vars(expected).items():
        if recorded[name] != value:
            reason = f"{name} was {recorded[name]!r}, the policy asks for {value!r}."
            return _finding("settings", title, "error", reason)
    return _finding("settings", title, "pass", "Every setting is the policy's.")


def _images(policy: Policy, measurements: Measurements) -> Finding:
    """Whether enough images have figures, and no more were lost than may be."""
    title, minimum = f"at least {policy.minimum_images} images", float(policy.minimum_images)
    results, failed = measurements.results, len(measurements.results.failed_images)
    if not measurements.bundles:
        return _finding("images", title, "not assessed", "No image has a figure.", limit=minimum, rule="min")
    evaluated = min(measurements.evaluated(bundle) for bundle in measurements.bundles)
    copies = max(results.run.copies, 0)
    different = evaluated - copies
    left_out = sum(flag.count or 0 for flag in results.flags if flag.kind == "images-without-label")
    total = max(results.subject.images.count, evaluated + left_out + failed)
    lost = total - evaluated - left_out
    too_many_lost = lost > policy.max_failed_images * total
    sentences = [f"{evaluated} of {total} images have figures, {policy.minimum_images} are needed."]
    if copies:
        sentences.append(f"{copies} of them are copies of others, which prove nothing more.")
    if failed:
        sentences.append(f"{failed} of the others could not be read.")
    if left_out:
        sentences.append(f"{left_out} have no label in the label set.")
    if too_many_lost:
        sentences.append(f"Without figures: {lost}; the policy bears {policy.max_failed_images:.1%}.")
    enough = different >= policy.minimum_images and different > MOST_COPIES * evaluated and not too_many_lost
    figure = Figure("", float(different), n=evaluated, exact=True)
    return _finding("images", title, "pass" if enough else "inconclusive", tuple(sentences), figure, limit=minimum,
                    rule="min")  # fmt: skip


def _labels(policy: Policy, measurements: Measurements) -> Finding:
    """Whether every label has a map of its own: without that, soundness is not known."""
    title = "maps for every label"
    asked = any(METRICS[check.metric].of_every_label for check in policy.checks)
    severity: Severity = "critical" if asked else "info"
    missing = [figure for figure in measurements.figures("soundness") if figure.value is None]
    if missing:
        reason = f"{missing[0].of}: {missing[0].reason}."
        return _finding("labels", title, "not assessed", reason, severity=severity)
    return _finding("labels", title, "pass", "Completeness and soundness are known.", severity=severity)


def _controls(policy: Policy, measurements: Measurements) -> Finding:
    """Whether every control of the policy was measured; maps for one label alone leave the one map without a sense."""
    title = "controls measured beside the maps"
    if not policy.controls:
        return _finding("controls", title, "not assessed", "The policy has no controls.", severity="info")
    expected = [name for name in policy.controls if name != ONE_MAP_CONTROL]
    if ONE_MAP_CONTROL in policy.controls and _labels(policy, measurements).status == "pass":
        expected += [f"{ONE_MAP_CONTROL}:{bundle}" for bundle in measurements.bundles]
    missing = [name for name in expected
               if not all(measurements.has_control(name, infill) for infill in measurements.infills)]  # fmt: skip
    if missing or not measurements.infills:
        reason = f"No figures of {', '.join(missing) or 'any control'}."
        return _finding("controls", title, "not assessed", reason)
    return _finding("controls", title, "pass", f"{len(expected)} controls were measured.")


def _points(policy: Policy, measurements: Measurements) -> Finding:
    """Whether curves have points enough: what too few of them miss is no smaller on more images."""
    title = "curves have enough points"
    of_curves = [check for check in policy.checks if METRICS[check.metric].curve]
    if not of_curves:
        reason = "The policy asks nothing of curves."
        return _finding("points", title, "not assessed", reason, severity="info", required=False)
    errors: list[tuple[str, float | None]] = []
    for check in of_curves:
        errors += _errors(check, measurements)
    unknown = [source for source, error in errors if error is None]
    if unknown or not errors:
        reason = f"How far the figures of {unknown[0] if unknown else 'the run'} may be off is not known."
        return _finding("points", title, "not assessed", reason, limit=MATTERS, rule="max")
    source, error = max(((source, error or 0.0) for source, error in errors), key=lambda pair: pair[1])
    reason = f"With {_steps(measurements)} a figure of {source} may be off by {error:.2g}; at most {MATTERS:g} is asked"
    status: Status = "pass" if error <= MATTERS else "inconclusive"
    reason += "." if status == "pass" else f": {_more_points(measurements)}"
    return _finding("points", title, status, reason, Figure("", error, exact=True), limit=MATTERS, rule="max")


def _errors(check: Check, measurements: Measurements) -> Iterator[tuple[str, float | None]]:
    """Whose figures a check judges, and how far each may be off; None where the results do not say."""
    by_source = {(entry.bundle, entry.infill): entry for entry in measurements.results.points}
    metric = "insertion" if check.metric == "deletion" else check.metric  # both have the same steps
    for bundle, infill in measurements.sources:
        controls = (f"{CONTROL}{name}{f':{bundle}' if name == ONE_MAP_CONTROL else ''}" for name in check.over)
        for source in (bundle, *controls):
            entry = by_source.get((source, infill))
            if entry is None or not entry.errors:
                yield source, None if entry is None else entry.error
            elif metric in entry.errors:  # else it has no such figure
                yield source, entry.errors[metric]


def _steps(measurements: Measurements) -> str:
    steps = measurements.results.settings.steps
    return f"{steps} points" if steps.isdecimal() else f"steps = '{steps}'"


def _more_points(measurements: Measurements) -> str:
    """What would give better figures."""
    if measurements.results.settings.steps.startswith("auto"):
        return "a smaller tolerance, such as steps = 'auto:0.001', asks for more points."
    return "steps = 'auto' finds as many as it needs."


def _identity(_policy: Policy, measurements: Measurements) -> Finding:
    """Whether the maps were made for this model, as far as their bundles say."""
    title, model = "maps made for this model", measurements.results.subject.model
    digests = measurements.results.run.bundle_models or {}
    if not isinstance(model, ModelFile) or not digests:
        known = "Nothing is known of the bundles' models." if isinstance(model, ModelFile) else "The model is no file."
        return _finding("identity", title, "not assessed", known, severity="info", required=False)
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
