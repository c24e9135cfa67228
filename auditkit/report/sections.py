"""What the first screen, the checks and the provenance say, row by row, taken from the results as they are."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

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
    title,
)
from auditkit.report.svg import strip
from auditkit.runs.evaluation.settings import CONTROL
from auditkit.runs.summary.summarise import LOWER_IS_BETTER

Results = Mapping[str, Any]
KEY = ("worst_completeness", "worst_soundness", "best_effort", "insertion", "pointing_game", "iou", "accuracy")
NOT_BLIND = f"{CONTROL}one-map:"  # made of the bundle's own maps
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
    return list(dict.fromkeys(one["bundle"] for one in results["metrics"] if one["bundle"]))


def first_infill(results: Results) -> str:
    """The infill that charts and key figures are about."""
    return str(next((one["infill"] for one in results["metrics"] if one["infill"]), ""))


def better(metric: str) -> str:
    """Which way a metric improves."""
    return DOWN if metric in LOWER_IS_BETTER else UP


def key_figures(results: Results) -> list[dict[str, Any]]:
    """The figures of the first screen, each beside the best map that knows nothing of the model."""
    infill = first_infill(results)
    return [
        _key_figure(one, results) for bundle in [*bundles(results)[:MOST_KEY_BUNDLES], None] for metric in KEY
        for one in results["metrics"]
        if (one["name"], one["bundle"]) == (metric, bundle) and one["infill"] in ("", infill)
    ]  # fmt: skip


def _key_figure(one: Results, results: Results) -> dict[str, Any]:
    low = one["name"] in LOWER_IS_BETTER
    blind = [other for other in results["controls"] if other["name"] == one["name"] and other["value"] is not None
             and other["infill"] == one["infill"] and not other["bundle"].startswith(NOT_BLIND)]  # fmt: skip
    best = (min if low else max)(blind, key=lambda other: other["value"], default=None)
    return {
        "title": title(one["name"]), "better": better(one["name"]), "bundle": source(one["bundle"]), **figure(one),
        "control": None if best is None else source(best["bundle"]),
        "control_value": None if best is None else number(best["value"]),
        "difference": None if best is None else _difference(one, best["bundle"], results["comparisons"]),
        "strip": _strip(one, [other["value"] for other in blind]),
    }  # fmt: skip


def figure(one: Results) -> dict[str, Any]:
    """Value, interval, n and reason of a metric as they are written."""
    assessed = one["value"] is not None
    return {
        "value": number(one["value"]) if assessed else "not assessed",
        "assessed": assessed,
        "interval": interval(one["low"], one["high"]),
        "n": exact(one["n"]),
        "reason": one.get("reason") or "",
    }


def _strip(one: Results, controls: Sequence[float]) -> Markup:
    if one["value"] is None or not 0 <= one["value"] <= 1:
        return Markup("")
    return strip(one["value"], one["low"], one["high"], controls)


def _difference(one: Results, against: str, comparisons: Iterable[Results]) -> dict[str, str] | None:
    for other in comparisons:
        if all(other[key] == one[key] for key in ("name", "bundle", "infill")) and other["against"] == against:
            return difference(other)
    return None


def difference(one: Results) -> dict[str, str]:
    """A paired difference and what it shows."""
    low, high, value = one["low"], one["high"], one["value"]
    shows, tone = "no clear difference", "open"
    shown = low is not None and high is not None and (low > 0 or high < 0)
    if shown and one.get("better", shown) is not None:  # a comparison of runs also weighs what the runtimes may cause
        shows = "higher" if low > 0 else "lower"
        tone = "pass" if (low > 0) == (one["name"] not in LOWER_IS_BETTER) else "fail"
    symbol = {"higher": "▲", "lower": "▼"}.get(shows, "≈")
    ends = interval(low, high) if low is None or low != high else "the same on every image"
    return {"value": signed(value), "interval": ends, "shows": shows, "tone": tone, "symbol": symbol,
            "n": exact(one["n"])}  # fmt: skip


def subject_line(results: Results) -> list[tuple[str, str]]:
    """What was judged, in a few words."""
    subject, run = results["subject"], results["run"]
    model, images = subject["model"], subject["images"]
    made = (results["explained"] or {}).get("method")
    methods = run.get("bundle_methods") or {}
    maps = [f"{source(bundle)}{f': {name(methods[bundle])}' if methods.get(bundle) else ''}"
            for bundle in bundles(results) or methods]  # fmt: skip
    policy = results["policy"]
    return [
        ("Model", last(model["path"]) if isinstance(model, Mapping) else "a function (no file)"),
        ("Images", f"{count(images['count'], 'image')} from {last(images['source'])}"),
        ("Heatmaps", f"made by this run: {name(made.partition('(')[0])}" if made else ", ".join(maps) or "none"),
        (
            "Policy",
            f"{name(policy['name'])}{OWN if policy.get('shipped') is False else ''}" if policy else "none was applied",
        ),
    ]


def checks(results: Results) -> list[dict[str, Any]]:
    """Every check, passed ones too."""
    return [_check(one) for one in results["checks"]]


def _check(one: Results) -> dict[str, Any]:
    held = one.get("suppression")
    return {
        "id": one["id"], "title": one.get("title") or one["id"], "metric": title(one.get("metric") or ""),
        "status": wording.status(one["status"]), "severity": one.get("severity") or "",
        "reason": one.get("reason") or "",
        "observed": _observed(one), "interval": interval(one.get("low"), one.get("high")),
        "n": exact(one.get("n")), "limit": _limit(one.get("limit"), str(one.get("rule") or "")), "suppression": held,
        "would_be": wording.status(one["would_be"]) if held and one.get("would_be") else None,
        "part_of": one.get("part_of") or "", "counts": counts(one), "optional": one.get("required") is False,
    }  # fmt: skip


def _observed(one: Results) -> str:
    value = one.get("observed")
    if value is not None and {one["id"], one.get("metric")} & set(COUNTED):
        return exact(int(value))
    return measured(value)


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
        "file": isinstance(results["subject"]["model"], Mapping), "policy": results["policy"],
        "controls": results["controls"], "classes": results["classes"], "gallery": gallery,
        "baseline": results["baseline"], "runtime": (results["runtime"] or {}).get("reference"),
        "randomisation": (results["randomisation"] or {}).get("series"),
    }  # fmt: skip
    assessed = {str(one["name"]) for one in results["metrics"] if one["bundle"] and one["value"] is not None}
    return {name for name, has in parts.items() if has} | assessed | ({"figures"} if assessed else set())


def counts(one: Results) -> bool:
    """Whether a check has a say in the verdict; results of old do not say."""
    return bool(one.get("counts", True))


def tally(results: Results) -> list[tuple[wording.Word, int]]:
    """How many of the checks that decide have each status."""
    said = [one["status"] for one in results["checks"] if counts(one)]
    return [(wording.status(status), said.count(status)) for status in dict.fromkeys([*wording.STATUSES, *said])
            if status in said]  # fmt: skip


def beside(results: Results) -> str:
    """How many findings have no say, in words."""
    some = sum(not counts(one) for one in results["checks"])
    said = f"{count(some, 'finding')} more in detail or for information, which the verdict does not count"
    return said if some else ""


Fact = tuple[str, str, bool]  # what, its value, and whether that is for machines


def identity(results: Results, digest: str) -> list[tuple[str, list[Fact]]]:
    """Where every number comes from."""
    subject, run, policy = results["subject"], results["run"], results["policy"]
    model, images = subject["model"], subject["images"]
    file = model if isinstance(model, Mapping) else {"path": model}
    groups = [
        ("Model", [("file", file["path"], True), ("sha256", file.get("sha256"), True),
                   *([("identity", file["identity"], True)] if file.get("identity") != file.get("sha256") else []),
                   ("input, output", f"{subject.get('input')}, {subject.get('output')}", True),
                   ("input's layout, type", _joined(subject.get("layout"), subject.get("dtype")), False),
                   ("scores", subject.get("kind"), False), ("classes", subject.get("classes"), False)]),
        ("Preprocessing (card)", [*_card_origin(subject.get("card_origin")), *_facts(subject.get("card") or {})]),
        ("Images", [("source", images["source"], True), ("count", images["count"], False),
                    ("digest", images["digest"], True), ("left out", len(results["failed_images"]), False)]),
        ("Heatmaps", _maps(results)),
        ("Policy", [("name", policy["name"], False), ("about", policy.get("description"), False),
                    ("sha256", policy["sha256"], True), ("least images", policy.get("minimum_images"), False),
                    ("as shipped", policy.get("shipped"), False),
                    ("fails on", run.get("fail_on") or policy.get("fail_on"), False)]
         if policy else [("name", "none was applied", False)]),
        ("Settings", _facts(results["settings"])),
        ("Software and device", _facts({**results["environment"], **(results.get("software") or {})})),
        ("Precision, measured", [*_precision(results["runtime"]), *_points(results.get("points") or ())]),
        ("Run", [("started", run.get("started"), False), ("ended", run.get("ended"), False),
                 ("command", _command(run.get("command")), True), ("git commit", run.get("git_commit"), True),
                 ("rows", run.get("rows"), False), ("pool", run.get("pool"), True),
                 ("results.json, sha256", digest, True)]),
    ]  # fmt: skip
    return [(head, [(what, _said(value), mono) for what, value, mono in facts if value not in (None, "")])
            for head, facts in groups]  # fmt: skip


def _card_origin(told: Results | None) -> list[tuple[str, Any, bool]]:
    """Where the card comes from; results of old do not say."""
    return [("from", told.get("source"), True), ("sha256", told.get("sha256"), True)] if told else []


def _joined(*parts: Any) -> str:
    return ", ".join(str(part) for part in parts if part)


def _maps(results: Results) -> list[tuple[str, Any, bool]]:
    run, made = results["run"], results["explained"]
    methods, models = run.get("bundle_methods") or {}, run.get("bundle_models") or {}
    found: list[tuple[str, Any, bool]] = []
    for bundle, digest in (run.get("bundles") or {}).items():
        said = (("method", methods.get(bundle)), ("digest", digest), ("made for model", models.get(bundle)))
        found += [(f"{source(bundle)}: {what}", value, what != "method") for what, value in said]
    for bundle, problems in (run.get("refused_bundles") or {}).items():
        found += [(f"{source(bundle)}: refused", problem, False) for problem in problems]
    if made:
        found += [
            ("made by this run", made.get("method"), True),
            ("forward passes", made.get("passes"), False),
            ("gradients", made.get("gradients"), False),
            ("computed on", "; ".join(made.get("computed") or []), False),
            *(("note", note, False) for note in made["notes"]),
        ]
    return found or [("bundles", "none", False)]


def _precision(runtime: Results | None) -> list[tuple[str, Any, bool]]:
    if not runtime:
        return [("error", "not measured in this run", False)]
    return [(words, runtime.get(key), False) for key, words in PRECISION.items()]


def _points(points: Iterable[Results]) -> list[tuple[str, Any, bool]]:
    """How far a figure may be off because its curves have few points."""
    return [(f"error by the number of points, {source(one['bundle'])}, {name(one['infill'])}",
             "not known" if one["error"] is None else measured(one["error"]), False)
            for one in points if not one["bundle"].startswith(CONTROL)]  # fmt: skip


def _facts(told: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    return [(str(key).replace("_", " "), value, False) for key, value in told.items()]


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
