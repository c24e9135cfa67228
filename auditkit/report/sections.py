"""What the first screen, the checks and the provenance say, row by row, taken from the results as they are."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from auditkit.metrics.table import METRICS, title
from auditkit.report import wording
from auditkit.report.formatting import (
    DOWN,
    UP,
    count,
    exact,
    interval,
    last,
    measured,
    name,
    number,
    signed,
    source,
)
from auditkit.report.svg import strip
from auditkit.runs.folder.results import (
    CONTROL,
    ONE_MAP,
    CheckResult,
    DifferenceResult,
    MetricResult,
    ModelFile,
    Results,
    Runtime,
    SamplingError,
)
from auditkit.runs.summary.wording import flag_text, remark, why_not_randomised

MOST_KEY_BUNDLES = 3
RULES = {"min": "at least", "max": "at most"}
PRECISION = {
    "reference": "compared with", "rows": "rows compared", "largest": "largest error of a probability",
    "mean": "mean error of a probability", "insertion": "mean change of insertion", "alpha": "mean change of α",
    "beta": "mean change of β", "repeated": "largest change when repeated", "note": "note",
}  # fmt: skip
COUNTED = ("flags", "images")  # checks of whole numbers
OWN = " (not one that auditkit ships)"


def bundles(results: Results) -> list[str]:
    """The maps that are judged, in the order of the results."""
    return list(dict.fromkeys(one.bundle for one in results.metrics if one.bundle))


def first_infill(results: Results) -> str:
    """The infill that charts and key figures are about."""
    return next((one.infill for one in results.metrics if one.infill), "")


def better(metric: str) -> str:
    """Which way a metric improves."""
    return DOWN if METRICS[metric].lower_is_better else UP


def key_figures(results: Results) -> list[dict[str, Any]]:
    """The figures of the first screen, each beside the best map that knows nothing of the model."""
    infills, chosen = ("", first_infill(results)), []
    for bundle in [*bundles(results)[:MOST_KEY_BUNDLES], None]:
        mine = {one.name: one for one in results.metrics if one.bundle == bundle and one.infill in infills}
        chosen += [mine[name] for name, metric in METRICS.items() if metric.key_figure and name in mine]
    return [_key_figure(one, results) for one in chosen]


def _key_figure(one: MetricResult, results: Results) -> dict[str, Any]:
    choose = min if METRICS[one.name].lower_is_better else max
    blind = [other for other in results.controls if (other.name, other.infill) == (one.name, one.infill)
             and other.value is not None and not (other.bundle or "").startswith(ONE_MAP)]  # fmt: skip
    best = choose(blind, key=lambda other: other.value or 0.0, default=None)
    return {
        "title": title(one.name), "better": better(one.name), "bundle": source(one.bundle), **figure(one),
        "control": None if best is None else source(best.bundle),
        "control_value": None if best is None else number(best.value),
        "difference": None if best is None else _difference(one, best.bundle, results.comparisons),
        "strip": _strip(one, [other.value for other in blind if other.value is not None]),
    }  # fmt: skip


def figure(one: MetricResult) -> dict[str, Any]:
    """Value, interval, n and reason of a metric as they are written."""
    assessed = one.value is not None
    return {
        "value": number(one.value) if assessed else "not assessed",
        "assessed": assessed,
        "interval": interval(one.low, one.high),
        "n": exact(one.n),
        "reason": remark(one),
    }


def _strip(one: MetricResult, controls: Sequence[float]) -> Markup:
    if one.value is None or not 0 <= one.value <= 1:
        return Markup("")
    return strip(one.value, one.low, one.high, controls)


def _difference(one: MetricResult, against: str | None, comparisons: Iterable[MetricResult]) -> dict[str, str] | None:
    for other in comparisons:
        if (other.name, other.bundle, other.infill, other.against) == (one.name, one.bundle, one.infill, against):
            return difference(other)
    return None


def difference(one: MetricResult | DifferenceResult) -> dict[str, str]:
    """A paired difference and what it shows."""
    low, high, value = one.low, one.high, one.value
    shows, tone = "no clear difference", "open"
    shown = low is not None and high is not None and (low > 0 or high < 0)
    if isinstance(one, DifferenceResult) and one.better is None:  # the runtimes may have caused it
        shown = False
    if shown:
        higher = (low or 0.0) > 0
        shows = "higher" if higher else "lower"
        tone = "pass" if higher != METRICS[one.name].lower_is_better else "fail"
    symbol = {"higher": "▲", "lower": "▼"}.get(shows, "≈")
    ends = interval(low, high) if low is None or low != high else "the same on every image"
    return {"value": signed(value), "interval": ends, "shows": shows, "tone": tone, "symbol": symbol,
            "n": exact(one.n)}  # fmt: skip


def subject_line(results: Results) -> list[tuple[str, str]]:
    """What was judged, in a few words."""
    subject, run = results.subject, results.run
    model, images = subject.model, subject.images
    made = results.explained.method if results.explained else None
    methods = run.bundle_methods or {}
    maps = [f"{source(bundle)}{f': {name(methods[bundle])}' if methods.get(bundle) else ''}"
            for bundle in bundles(results) or methods]  # fmt: skip
    policy = results.policy
    return [
        ("Model", last(model.path) if isinstance(model, ModelFile) else "a function (no file)"),
        ("Images", f"{count(images.count, 'image')} from {last(images.source)}"),
        ("Heatmaps", f"made by this run: {name(made.partition('(')[0])}" if made else ", ".join(maps) or "none"),
        (
            "Policy",
            f"{name(policy.name)}{'' if policy.shipped else OWN}" if policy else "none was applied",
        ),
    ]


def checks(results: Results) -> list[dict[str, Any]]:
    """Every check, passed ones too."""
    return [check(one) for one in results.checks]


def check(one: CheckResult) -> dict[str, Any]:
    """One check as it is written."""
    return {
        "id": one.id, "title": one.title or one.id, "metric": title(one.metric), "status": wording.status(one.status),
        "severity": one.severity, "reason": one.reason, "observed": _observed(one),
        "interval": interval(one.low, one.high), "n": exact(one.n), "limit": _limit(one.limit, one.rule),
        "suppression": one.suppression,
        "would_be": wording.status(one.would_be) if one.suppression and one.would_be else None,
        "part_of": one.part_of or "", "counts": one.counts, "optional": not one.required,
    }  # fmt: skip


def _observed(one: CheckResult) -> str:
    if one.observed is not None and {one.id, one.metric} & set(COUNTED):
        return exact(int(one.observed))
    return measured(one.observed)


def _limit(limit: Any, rule: str) -> str:
    """What a check asks for, in words."""
    if limit is None:
        return ""
    if not rule.startswith("margin over "):
        return f"{RULES.get(rule, rule)} {exact(limit)}"
    control = source(rule.removeprefix("margin over "))
    if limit > 0:
        return f"more than {exact(limit)} above {control}"
    return f"less than {exact(-limit)} below {control}" if limit < 0 else f"above {control}"


def there(results: Results, *, gallery: bool) -> set[str]:
    """What a run has to show: its parts, and the metrics of its maps that were assessed."""
    parts = {
        "file": isinstance(results.subject.model, ModelFile), "policy": results.policy,
        "controls": results.controls, "classes": results.classes, "gallery": gallery, "baseline": results.baseline,
        "runtime": results.runtime and results.runtime.reference,
        "randomisation": results.randomisation and results.randomisation.series,
    }  # fmt: skip
    assessed = {one.name for one in results.metrics if one.bundle and one.value is not None}
    return {name for name, has in parts.items() if has} | assessed | ({"figures"} if assessed else set())


def tally(results: Results) -> list[tuple[wording.Word, int]]:
    """How many of the checks that decide have each status."""
    statuses = [one.status for one in results.checks if one.counts]
    return [(wording.status(status), statuses.count(status)) for status in wording.STATUSES if status in statuses]


def beside(results: Results) -> str:
    """How many findings have no say, in words."""
    others = sum(not one.counts for one in results.checks)
    return f"{count(others, 'more finding')} for information; they do not affect the verdict" if others else ""


Fact = tuple[str, str, bool]  # what, its value, and whether that is for machines
_Value = tuple[str, Any, bool]  # the same before it is written out


def not_randomised(results: Results) -> str:
    """Why the model was not randomised; empty where it was, or nobody asked."""
    missing = results.randomisation.not_assessed if results.randomisation else None
    return why_not_randomised(missing) if missing else ""


def not_assessed(results: Results) -> list[tuple[str, str, str]]:
    """The bundle, metric and reason of each figure that is missing, once."""
    missing = [one for one in results.metrics if one.value is None]
    return list(dict.fromkeys((one.bundle or "", one.name.replace("_", " "), remark(one)) for one in missing))


def flags(results: Results) -> list[str]:
    """The flags as sentences."""
    return [flag_text(flag, results.failed_images, results.runtime, results.settings.labels) for flag in results.flags]


def identity(results: Results, digest: str) -> list[tuple[str, list[Fact]]]:
    """Where every number comes from."""
    subject, run, policy, images = results.subject, results.run, results.policy, results.subject.images
    groups: list[tuple[str, list[_Value]]] = [
        ("Model", [*_model(subject.model), ("input, output", f"{subject.input}, {subject.output}", True),
                   ("input's layout, type", f"{subject.layout}, {subject.dtype}", False),
                   ("scores", subject.kind, False), ("classes", subject.classes, False)]),
        ("Preprocessing (card)", [("from", subject.card_origin.source, True),
                                  ("sha256", subject.card_origin.sha256, True), *_facts(subject.card)]),
        ("Images", [("source", images.source, True), ("count", images.count, False), ("digest", images.digest, True),
                    ("left out", len(results.failed_images), False)]),
        ("Heatmaps", _maps(results)),
        ("Policy", [("name", policy.name, False), ("about", policy.description, False), ("sha256", policy.sha256, True),
                    ("least images", policy.minimum_images, False), ("as shipped", policy.shipped, False),
                    ("fails on", run.fail_on or policy.fail_on, False)]
         if policy else [("name", "none was applied", False)]),
        ("Settings", _facts(vars(results.settings))),
        ("Software and device", _facts({**results.environment, **(results.software or {})})),
        ("Precision, measured", [*_precision(results.runtime), *_points(results.points)]),
        ("Run", [("started", run.started, False), ("ended", run.ended, False), ("command", _command(run.command), True),
                 ("git commit", run.git_commit, True), ("rows", run.rows, False), ("pool", run.pool, True),
                 ("results.json, sha256", digest, True)]),
    ]  # fmt: skip
    return [(head, [(what, _said(value), mono) for what, value, mono in facts if value not in (None, "")])
            for head, facts in groups]  # fmt: skip


def _model(model: ModelFile | str) -> list[_Value]:
    if not isinstance(model, ModelFile):
        return [("file", model, True)]
    identity = [("identity", model.identity, True)] if model.identity != model.sha256 else []
    return [("file", model.path, True), ("sha256", model.sha256, True), *identity]


def _maps(results: Results) -> list[_Value]:
    run, explained = results.run, results.explained
    methods, models = run.bundle_methods or {}, run.bundle_models or {}
    facts: list[_Value] = []
    for bundle, digest in run.bundles.items():
        about = (("method", methods.get(bundle)), ("digest", digest), ("made for model", models.get(bundle)))
        facts += [(f"{source(bundle)}: {what}", value, what != "method") for what, value in about]
    for bundle, problems in (run.refused_bundles or {}).items():
        facts += [(f"{source(bundle)}: refused", problem.message, False) for problem in problems]
    if explained:
        facts += [
            ("made by this run", explained.method, True), ("forward passes", explained.passes, False),
            ("gradients", explained.gradients, False), ("computed on", "; ".join(explained.computed), False),
            *(("note", note, False) for note in explained.notes),
        ]  # fmt: skip
    return facts or [("bundles", "none", False)]


def _precision(runtime: Runtime | None) -> list[_Value]:
    if not runtime:
        return [("error", "not measured in this run", False)]
    values = vars(runtime)
    return [(words, values[key], False) for key, words in PRECISION.items()]


def _points(points: Iterable[SamplingError]) -> list[_Value]:
    """How far a figure may be off because its curves have few points."""
    return [(f"error by the number of points, {source(one.bundle)}, {name(one.infill)}",
             "not known" if one.error is None else measured(one.error), False)
            for one in points if not one.bundle.startswith(CONTROL)]  # fmt: skip


def _facts(values: Mapping[str, Any]) -> list[_Value]:
    return [(key.replace("_", " "), value, False) for key, value in values.items()]


def _command(words: Any) -> str | None:
    if not words:
        return None
    return " ".join(word if word and not set(word) & set(" '\"\\$") else json.dumps(word) for word in map(str, words))


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(not isinstance(one, Mapping | list) for one in value):
        return ", ".join(exact(one) for one in value)
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | Sequence) else exact(value)
