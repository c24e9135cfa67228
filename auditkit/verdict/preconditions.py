"""Checks that every verdict rests on: is the record whole, was it measured as the policy says, and enough of it?

A policy neither states nor suppresses them. Without them a verdict could be had by leaving things out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from auditkit.errors import BadInput
from auditkit.runs.evaluation.settings import CONTROL, resolved
from auditkit.runs.summary.per_image import FAITHFUL
from auditkit.runs.summary.sampling_error import MATTERS, MOVED
from auditkit.verdict.checks import NO_FIGURE, Finding
from auditkit.verdict.flags import left_out
from auditkit.verdict.measurements import Figure, Measured, entries_of, largest, part
from auditkit.verdict.policy import ONE_MAP, Policy

RECORD = (
    "tool", "run", "subject", "settings", "environment", "runtime", "metrics", "controls", "comparisons", "classes_are",
    "classes", "reliability", "points", "flags", "failed_images", "randomisation", "limitations",
)  # fmt: skip
FILED = {"subject": ("model", "images", "card", "classes"), "run": ("bundles",)}  # without which nobody knows of what
MOST_COPIES = 0.9  # with fewer different images among them than this share, intervals are narrower than they may be
CURVES = (*MOVED, "deletion")  # metrics that points of curves make up
COLOUR = "colour picture"  # how a refused map is told from a damaged one


def evidence(policy: Policy, measured: Measured) -> list[Finding]:
    """What the checks of the policy can rest on."""
    found = [_record, _settings, _images, _labels, _controls, _points, _identity]
    return [check(policy, measured) for check in found] + list(_refused(measured))


def _finding(name: str, title: str, status: str, reason: str, figure: Figure = NO_FIGURE, **more: Any) -> Finding:
    return Finding(name, title, name, status, more.pop("severity", "critical"), reason, figure, **more)


def _record(_policy: Policy, measured: Measured) -> Finding:
    results = measured.results
    missing = [key for key in RECORD if key not in results]
    missing += [f"{key}.{name}" for key, names in FILED.items() for name in names if name not in part(results, key)]
    unnamed = [bundle for bundle in measured.bundles if bundle not in part(results, "run", "bundles")]
    missing += [f"run.bundles.{bundle}" for bundle in unnamed]
    said = f"The results lack {', '.join(missing)}." if missing else "Nothing is missing from the results."
    return _finding("record", "the record is whole", "error" if missing else "pass", said)


def _settings(policy: Policy, measured: Measured) -> Finding:
    """Whether it was measured as the policy asks: figures under other settings do not compare."""
    title, found = "measured as the policy asks", part(measured.results, "settings")
    classes = part(measured.results, "subject").get("classes")
    if not isinstance(classes, int):
        return _finding("settings", title, "error", "The results do not say how many classes the model has.")
    try:
        expected = resolved(policy.evaluation(), classes).to_json()
    except BadInput as error:
        return _finding("settings", title, "error", str(error))
    for name, value in expected.items():
        if name not in found or found[name] != value:
            said = f"{name} was {found.get(name)!r}, the policy asks for {value!r}."
            return _finding("settings", title, "error", said)
    return _finding("settings", title, "pass", "Every setting is the policy's.")


def _images(policy: Policy, measured: Measured) -> Finding:
    """Whether enough images have figures, and no more were lost than may be."""
    title = f"at least {policy.minimum_images} images"
    limits: dict[str, Any] = {"limit": float(policy.minimum_images), "rule": "min"}
    results, failed = measured.results, len(entries_of(measured.results, "failed_images"))
    count = part(results, "subject", "images").get("count")
    if not isinstance(count, int) or not measured.bundles:
        return _finding("images", title, "not assessed", "No image has a figure.", **limits)
    evaluated = min(measured.evaluated(bundle) for bundle in measured.bundles)
    copies = part(results, "run").get("copies")
    different = evaluated - copies if isinstance(copies, int) and copies > 0 else evaluated
    flags = results.get("flags")
    aside = left_out(map(str, flags)) if isinstance(flags, list) else 0  # none of their labels is in the label set
    given = max(count, evaluated + aside + failed)
    lost = given - evaluated - aside
    figure = Figure("", float(different), n=evaluated, exact=True)
    said = [f"{evaluated} of {given} images have figures, {policy.minimum_images} are needed."]
    said += [f"{evaluated - different} of them are copies of others, which prove nothing more."] if copies else []
    said += [f"{failed} of the others could not be read."] if failed else []
    said += [f"{aside} have no label in the label set."] if aside else []
    too_many = lost > policy.max_failed_images * given
    said += [f"Without figures: {lost}; the policy bears {policy.max_failed_images:.1%}."] if too_many else []
    good = different >= policy.minimum_images and different > MOST_COPIES * evaluated and not too_many
    return _finding("images", title, "pass" if good else "inconclusive", " ".join(said), figure, **limits)


def _labels(policy: Policy, measured: Measured) -> Finding:
    """Whether every label has a map of its own: without that, soundness is not known."""
    title = "maps for every label"
    severity = "critical" if any(check.metric in FAITHFUL for check in policy.checks) else "info"
    missing = [figure for figure in measured.figures("soundness") if figure.value is None]
    if missing:
        said = f"{missing[0].of}: {missing[0].reason}."
        return _finding("labels", title, "not assessed", said, severity=severity)
    return _finding("labels", title, "pass", "Completeness and soundness are known.", severity=severity)


def _controls(policy: Policy, measured: Measured) -> Finding:
    """Whether every control of the policy was measured; maps for one label alone leave the one map without a sense."""
    title = "controls measured beside the maps"
    if not policy.controls:
        return _finding("controls", title, "not assessed", "The policy has no controls.", severity="info")
    wanted = [name for name in policy.controls if name != ONE_MAP]
    if ONE_MAP in policy.controls and _labels(policy, measured).status == "pass":
        wanted += [f"{ONE_MAP}:{bundle}" for bundle in measured.bundles]
    missing = [name for name in wanted for infill in measured.infills if not measured.control_values(name, infill)]
    if missing or not measured.infills:
        said = f"No figures of {', '.join(dict.fromkeys(missing)) or 'any control'}."
        return _finding("controls", title, "not assessed", said)
    return _finding("controls", title, "pass", f"{len(wanted)} controls were measured.")


def _points(policy: Policy, measured: Measured) -> Finding:
    """Whether curves have points enough: what too few of them miss is no smaller on more images."""
    title = "curves have enough points"
    limits: dict[str, Any] = {"limit": MATTERS, "rule": "max"}
    if not any(check.metric in CURVES for check in policy.checks):
        said = "The policy asks nothing of curves."
        return _finding("points", title, "not assessed", said, severity="info", required=False)
    judged = list(_errors(policy, measured))
    unknown = [source for source, error in judged if error is None]
    if unknown or not judged:
        said = f"How far the figures of {unknown[0] if unknown else 'the run'} may be off is not known."
        return _finding("points", title, "not assessed", said, **limits)
    error = largest(error for _, error in judged)
    if error is None:
        return _finding("points", title, "error", "An entry in the results is damaged.", **limits)
    of = next(source for source, found in judged if found == error)
    said = f"With {_steps(measured)} a figure of {of} may be off by {error:.2g}; at most {MATTERS:g} is asked"
    said += "." if error <= MATTERS else f": {_more_points(measured)}"
    status = "pass" if error <= MATTERS else "inconclusive"
    return _finding("points", title, status, said, Figure("", error, exact=True), **limits)


def _errors(policy: Policy, measured: Measured) -> Iterator[tuple[str, Any]]:
    """Whose figures are judged, and how far each may be off; None where the results do not say."""
    said = {(one.get("bundle"), one.get("infill")): one for one in entries_of(measured.results, "points")}
    for check in (check for check in policy.checks if check.metric in CURVES):
        for bundle, infill in measured.sources:
            controls = (f"{CONTROL}{name}{f':{bundle}' if name == ONE_MAP else ''}" for name in check.over)
            for source in (bundle, *controls):
                entry = said.get((source, infill), {})
                known = part(entry, "errors")
                metric = "insertion" if check.metric == "deletion" else check.metric  # both have the same steps
                if not known:
                    yield source, entry.get("error")
                elif metric in known:  # else it has no such figure
                    yield source, known[metric]


def _steps(measured: Measured) -> str:
    said = str(part(measured.results, "settings").get("steps"))
    return f"{said} points" if said.isdecimal() else f"steps = '{said}'"


def _more_points(measured: Measured) -> str:
    """What would give better figures."""
    said = str(part(measured.results, "settings").get("steps"))
    return "a smaller tolerance, such as steps = 'auto:0.001', asks for more points." if said.startswith("auto") else (
        "steps = 'auto' finds as many as it needs.")  # fmt: skip


def _identity(_policy: Policy, measured: Measured) -> Finding:
    """Whether the maps were made for this model, as far as their bundles say."""
    title, results = "maps made for this model", measured.results
    identity = part(results, "subject", "model").get("identity")
    said = part(results, "run", "bundle_models")
    if not isinstance(identity, str) or not said:
        why = "The model is no file" if not isinstance(identity, str) else "Nothing is known of the bundles' models"
        return _finding("identity", title, "not assessed", f"{why}.", severity="info", required=False)
    others = [name for name, digest in said.items() if digest is not None and _plain(digest) != _plain(identity)]
    if others:
        reason = (
            f"{', '.join(others)}: made for the model {_plain(said[others[0]])[:12]}..., this one is {identity[:12]}..."
        )
        return _finding("identity", title, "fail", reason)
    if silent := [name for name in {**dict.fromkeys(measured.bundles), **said} if said.get(name) is None]:
        reason = f"{', '.join(silent)}: the bundle does not say which model it explains."
        return _finding("identity", title, "not assessed", reason)
    return _finding("identity", title, "pass", "Every bundle names this model's digest.")


def _plain(digest: Any) -> str:
    return str(digest).lower()


def _refused(measured: Measured) -> Iterator[Finding]:
    """Bundles that could not be used at all."""
    refused: Mapping[str, Any] = part(measured.results, "run", "refused_bundles")
    told = {name: "; ".join(map(str, why)) if isinstance(why, list) else str(why) for name, why in refused.items()}
    coloured = {name: why for name, why in told.items() if COLOUR in why}
    if coloured:
        yield _finding("cheat-colour-pictures", "pictures instead of maps", "fail", _listed(coloured))
    if told:
        yield _finding("maps-usable", "all maps can be used", "error", _listed(told))


def _listed(told: Mapping[str, str]) -> str:
    return " ".join(f"{name}: {why.removesuffix('.')}." for name, why in told.items())
