"""What the first screen, the checks and the provenance say, taken from the results as they are."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from auditkit.metrics.table import METRICS, SHARE
from auditkit.report import wording
from auditkit.report.formatting import DOWN, UP, count, exact, last, marked_interval, measured, name, source
from auditkit.runs.folder.examination import Finding
from auditkit.runs.folder.figures import CONTROL, ONE_MAP_PREFIX, Flag, MetricResult, Taken
from auditkit.runs.folder.results import CheckResult, DifferenceResult, ModelFile, Results
from auditkit.runs.summary.wording import flag_text, source_text, why_not_randomised

MOST_KEY_BUNDLES = 3
_RULES = {"min": "at least", "max": "at most"}
_PRECISION = {
    "reference": "compared with", "rows": "rows compared", "largest": "largest error of a probability",
    "mean": "mean error of a probability", "insertion": "mean change of insertion", "alpha": "mean change of α",
    "beta": "mean change of β", "log_odds": "mean change of log-odds",
    "repeated": "largest change when repeated", "note": "note",
}  # fmt: skip
_COUNTED = ("flags", "images")  # checks of whole numbers
Fact = tuple[str, str, bool]  # what, its value, and whether that is for machines
_Value = tuple[str, object, bool]  # the same before it is written out


def bundles(results: Results) -> list[str]:
    """The maps that are judged, in the order of the results."""
    return list(dict.fromkeys(metric.bundle for metric in results.metrics if metric.bundle))


def first_infill(results: Results) -> str:
    """The infill that charts and key figures are about."""
    return next((metric.infill for metric in results.metrics if metric.infill), "")


def better(metric: str) -> str:
    """Which way a metric improves."""
    return DOWN if METRICS[metric].lower_is_better else UP


def key_figures(results: Results) -> list[MetricResult]:
    """The figures of the first screen."""
    infills, chosen = ("", first_infill(results)), []
    for bundle in [*bundles(results)[:MOST_KEY_BUNDLES], None]:
        by_name = {metric.name: metric for metric in results.metrics
                   if metric.bundle == bundle and metric.infill in infills}  # fmt: skip
        chosen += [by_name[key] for key, metric in METRICS.items() if metric.key_figure and key in by_name]
    return chosen


def controls(metric: MetricResult, results: Results) -> list[MetricResult]:
    """The same metric of the maps that ignore the model."""
    return [control for control in results.controls
            if (control.name, control.infill) == (metric.name, metric.infill) and control.value is not None
            and not (control.bundle or "").startswith(ONE_MAP_PREFIX)]  # fmt: skip


def best_control(metric: MetricResult, results: Results) -> tuple[MetricResult | None, MetricResult | None]:
    """The control that a check names, else the one beside which a figure looks worst; the paired difference from it."""
    sign = -1 if METRICS[metric.name].lower_is_better else 1
    candidates = {control.bundle: control for control in controls(metric, results)}
    key = (metric.name, metric.bundle, metric.infill)
    pairs = [pair for pair in results.comparisons if (pair.name, pair.bundle, pair.infill) == key
             and pair.against in candidates and pair.value is not None]  # fmt: skip
    pair = min(pairs, key=lambda pair: (tested_by(pair, results) is None, sign * (pair.value or 0.0)), default=None)
    best = max(candidates.values(), key=lambda control: sign * (control.value or 0.0), default=None)
    return (candidates[pair.against], pair) if pair else (best, None)


def tested_by(metric: MetricResult, results: Results) -> CheckResult | None:
    """The check over all images that tested a figure or a difference."""
    return next((check for check in results.checks if check.low is not None and not check.group
                 and (metric.name, metric.against, metric.n) == (check.metric, check.against, check.n)
                 and math.isclose(metric.value or 0.0, check.observed or 0.0, abs_tol=1e-9)), None)  # fmt: skip


def with_tested_intervals(results: Results) -> Results:
    """The results with the interval of its test beside each figure that a check tested: one figure, one interval."""

    def mended(metric: MetricResult) -> MetricResult:
        check = tested_by(metric, results)
        return replace(metric, low=check.low, high=check.high, interval=check.interval) if check else metric

    return replace(results, metrics=tuple(map(mended, results.metrics)),
                   comparisons=tuple(map(mended, results.comparisons)))  # fmt: skip


def is_checked(metric: str, results: Results) -> bool:
    """Whether the policy sets a limit to a metric; only then is a figure good or bad."""
    return any(check.metric == metric and check.counts for check in results.checks)


def over_controls(results: Results) -> list[MetricResult]:
    """Other-label evidence of each bundle over the blind controls and over its own map of the predicted label."""
    infill, pairs = first_infill(results), []
    for pair in results.comparisons:
        of_bundle = pair.against == f"{ONE_MAP_PREFIX}{pair.bundle}"
        blind = (pair.against or "").startswith(CONTROL) and not (pair.against or "").startswith(ONE_MAP_PREFIX)
        if (pair.name, pair.infill) == ("other_label_evidence", infill) and (blind or of_bundle):
            pairs.append(pair)
    return pairs


def is_share(metric: MetricResult) -> bool:
    """Whether it can be drawn on a line from 0 to 1."""
    return METRICS[metric.name].bounds == SHARE


def change(pair: MetricResult | DifferenceResult, *, toned: bool = True) -> wording.Word:
    """What a paired difference shows; without a tone where nothing says what is good."""
    low, high = pair.low, pair.high
    from_runtimes = isinstance(pair, DifferenceResult) and pair.change is None  # they may have caused it
    if low is None or high is None:
        return wording.Word("too few images", "?", "open")
    if low <= 0 <= high or from_runtimes:
        return wording.Word("no clear difference", "≈", "open")
    tone = "pass" if (low > 0) != METRICS[pair.name].lower_is_better else "fail"
    other_model = isinstance(pair, DifferenceResult) and pair.better is None  # nothing is better then
    tone = tone if toned and not other_model else "none"
    return wording.Word("higher", "▲", tone) if low > 0 else wording.Word("lower", "▼", tone)


def difference_interval(pair: MetricResult | DifferenceResult) -> str:
    """The interval of a paired difference."""
    equal = pair.low is not None and pair.low == pair.high
    return "the same on every image" if equal else marked_interval(pair)


def subject_name(results: Results) -> str:
    """The model's file, or that there is none."""
    model = results.subject.model
    return last(model.path) if isinstance(model, ModelFile) else "a function"


def taken(results: Results) -> str:
    """How many of how many images were taken, and in which order; empty if all were taken at once."""
    if results.run.taken is None:
        return ""
    number = f"{results.subject.images.count:,} of {count(results.run.taken.count, 'image')}"
    how = "by the SHA256 of the seed, which follows from the salt, and of each image"
    return f"{number}, taken in an order fixed before the run ({how})"


def subject_line(results: Results) -> list[tuple[str, str]]:
    """What was judged, in a few words."""
    images, policy, methods = results.subject.images, results.policy, results.run.bundle_methods or {}
    no_file = "" if isinstance(results.subject.model, ModelFile) else " (no file)"
    texts = {bundle: f": {name(method)}" for bundle, method in methods.items() if method}
    heatmaps = ", ".join(source(bundle) + texts.get(bundle, "") for bundle in bundles(results) or methods) or "none"
    if results.explained and results.explained.method:
        heatmaps = f"made by this run: {name(results.explained.method.partition('(')[0])}"
    policy_name = "none was applied"
    if policy:
        policy_name = f"{name(policy.name)} ({policy.origin})" if policy.origin else name(policy.name)
    return [
        ("Model", f"{subject_name(results)}{no_file}"),
        ("Images", f"{taken(results) or count(images.count, 'image')} from {last(images.source)}"),
        ("Heatmaps", heatmaps), ("Policy", policy_name),
        *(("Reproduction", name(entry.text, 400)) for entry in results.reproductions),
    ]  # fmt: skip


def observed(check: CheckResult) -> str:
    """What a check found."""
    if check.observed is not None and {check.id, check.metric} & set(_COUNTED):
        return exact(int(check.observed))
    return measured(check.observed)


def limit(check: CheckResult) -> str:
    """What a check asks for, in words."""
    if check.limit is None:
        return ""
    if check.group:
        return f"{limit(replace(check, group=None))}, in every group"
    if not check.rule.startswith("margin over "):
        return f"{_RULES.get(check.rule, check.rule)} {exact(check.limit)}"
    control = name(source_text(check.rule.removeprefix("margin over ")))
    if check.limit > 0:
        return f"more than {exact(check.limit)} above {control}"
    return f"less than {exact(-check.limit)} below {control}" if check.limit < 0 else f"above {control}"


def available(results: Results, *, gallery: bool) -> set[str]:
    """What a run has to show: its parts, and the metrics of its maps that were assessed."""
    parts = {
        "file": isinstance(results.subject.model, ModelFile), "policy": results.policy,
        "controls": results.controls, "classes": results.classes, "gallery": gallery, "baseline": results.baseline,
        "runtime": results.runtime and results.runtime.reference,
        "randomisation": results.randomisation and results.randomisation.series,
        "groups": results.groups and results.groups.figures, "examination": results.examination,
        "accuracy": any(metric.name == "accuracy" for metric in results.metrics),
    }  # fmt: skip
    assessed = {metric.name for metric in results.metrics if metric.bundle and metric.value is not None}
    return {part for part, value in parts.items() if value} | assessed | ({"figures"} if assessed else set())


def tally(results: Results) -> str:
    """How many of the checks that decide have each status, and how many findings do not affect the verdict."""
    statuses = [check.status for check in results.checks if check.counts]
    counted = ", ".join(f"{statuses.count(status)} {wording.status(status).word.lower()}" for status in wording.STATUSES
                        if status in statuses)  # fmt: skip
    others = len(results.checks) - len(statuses)
    return "; ".join(filter(None, (counted, f"{others} more for information" if others else "")))


def judged_by(results: Results) -> str:
    """The caption of the checks that decide."""
    by = f"Judged by the policy {name(results.policy.name)}: " if results.policy else ""
    return f"{by}{tally(results)}. {wording.TEST_INTERVAL}"


def first_finding(results: Results) -> Finding | None:
    """The first cue that the model should not rely on."""
    findings = results.examination.findings if results.examination else ()
    return next((finding for finding in findings if not finding.allowed), None)


def not_randomised(results: Results) -> str:
    """Why the model was not randomised; empty where it was, or nobody asked."""
    missing = results.randomisation.not_assessed if results.randomisation else None
    return why_not_randomised(missing) if missing else ""


def flags(results: Results) -> list[str]:
    """The flags as sentences."""
    return [_flag(flag, results) for flag in results.flags]


def _flag(flag: Flag, results: Results) -> str:
    """A flag, and whether it matters to the verdict."""
    text = flag_text(flag, results.failed_images, results.runtime, results.settings.labels)
    check = next((check for check in results.checks if check.metric == "flags" and text in check.reason), None)
    if check is None:
        return f"{text.removesuffix('.')}."
    return f"{text}. {'The verdict counts this.' if check.part_of else 'It does not affect the verdict.'}"


def identity(results: Results, digest: str) -> list[tuple[str, list[Fact]]]:
    """Where every number comes from."""
    subject, run, policy, images = results.subject, results.run, results.policy, results.subject.images
    command = " ".join(map(_shell_word, run.command or ()))
    groups: list[tuple[str, list[_Value]]] = [
        ("Model", [*_model(subject.model), ("input, output", f"{subject.input}, {subject.output}", True),
                   ("input's layout, type", f"{subject.layout}, {subject.dtype}", False),
                   ("scores", subject.kind, False), ("classes", subject.classes, False)]),
        ("Preprocessing (card)", [("from", subject.card_origin.source, True),
                                  ("sha256", subject.card_origin.sha256, True), *_facts(subject.card)]),
        ("Images", [("source", images.source, True), ("count", images.count, False), ("digest", images.digest, True),
                    *_taken(run.taken), ("left out", len(results.failed_images), False)]),
        ("Heatmaps", _maps(results)),
        ("Policy", [("name", policy.name, False), ("about", policy.description, False), ("sha256", policy.sha256, True),
                    ("least images", policy.minimum_images, False), ("as shipped", policy.shipped, False),
                    ("fails on", run.fail_on or policy.fail_on, False),
                    ("fails on findings", run.fail_on_finding or policy.fail_on_finding, False)]
         if policy else [("name", "none was applied", False)]),
        ("Settings", _facts(vars(results.settings))),
        ("Software and device", _facts({**results.environment, **(results.software or {})})),
        ("Precision, measured", _precision(results)),
        ("Run", [("started", run.started, False), ("ended", run.ended, False), ("command", command, True),
                 ("git commit", run.git_commit, True), ("rows", run.rows, False), ("pool", run.pool, True),
                 ("salt", run.salt, True), ("results.json, sha256", digest, True)]),
    ]  # fmt: skip
    return [(head, [(what, _value_text(value), mono) for what, value, mono in facts if value not in (None, "")])
            for head, facts in groups]  # fmt: skip


def _taken(taken: Taken | None) -> list[_Value]:
    if taken is None:
        return []
    looks = ", ".join(str(batch.images) for batch in taken.earlier)
    return [("taken from", count(taken.count, "image"), False), ("digest of all", taken.digest, True),
            ("interim looks after", looks, False)]  # fmt: skip


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


def _precision(results: Results) -> list[_Value]:
    values, facts = vars(results.runtime) if results.runtime else {}, list[_Value]()
    facts += [(words, values[key], False) for key, words in _PRECISION.items() if key in values]
    for point in results.points:
        if not point.bundle.startswith(CONTROL):
            what = f"error by the number of points, {source(point.bundle)}, {name(point.infill)}"
            facts.append((what, "not known" if point.error is None else measured(point.error), False))
    return facts if results.runtime else [("error", "not measured in this run", False), *facts]


def _facts(values: Mapping[str, object]) -> list[_Value]:
    return [(key.replace("_", " "), value, False) for key, value in values.items()]


def _shell_word(word: str) -> str:
    return word if word and not set(word) & set(" '\"\\$") else json.dumps(word)


def _value_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and not any(isinstance(part, Mapping | list) for part in value):
        return ", ".join(map(exact, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | Sequence) else exact(value)
