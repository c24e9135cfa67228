"""The report's tables: every figure of every source, by class, and what changed since an earlier run."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from auditkit.metrics.table import METRICS, title
from auditkit.records import to_json
from auditkit.report import wording
from auditkit.report.formatting import count, exact, interval, name, number, percent, source
from auditkit.report.sections import better, bundles, difference, figure, first_infill
from auditkit.report.svg import strip
from auditkit.runs.folder.results import Comparison, DifferenceResult, MetricResult, Results, RunIdentity

COLUMNS = 7  # sources of a table: what a sheet of paper has room for
MOST_CLASSES, MOST_FAILED = 100, 200
TOO_FEW = "too few for an interval"  # of images, whose number stands beside it; longer words are wider than a phone
COMPARED = {"verdict": "verdict", "suppressed": "suppressed checks", "policy": "policy", "model": "model",
            "images": "images", "bundles": "heatmaps", "environment": "environment"}  # fmt: skip
DIGEST = re.compile("[0-9a-f]{64}")


ByClass = dict[int, dict[str, MetricResult]]


class Table(NamedTuple):
    """Head and rows of a table, with what it is about."""

    caption: str
    head: Sequence[Any]
    rows: Sequence[Any]


def names(results: Results, gallery: Mapping[str, Any] | None) -> dict[int, str]:
    """What classes are called, as far as the run says."""
    if results.subject.class_names:
        return dict(enumerate(results.subject.class_names))
    entries = (gallery or {}).get("entries", ())
    return {int(one["label"]): str(one["label_name"]) for one in entries if one.get("label_name") is not None}


def class_text(label: Any, known: Mapping[int, str]) -> str:
    """A class by name and number."""
    if label is None:
        return "–"
    return f"{name(known[int(label)], 60)} ({int(label)})" if int(label) in known else f"class {int(label)}"


def figures(results: Results) -> list[Table]:
    """Every metric of every source, a few sources a table, under each infill; what has none, under the first."""
    every = [one for one in [*results.metrics, *results.controls] if one.bundle]
    infills = list(dict.fromkeys(one.infill for one in every if one.name == "insertion")) or [""]
    by_source = {(one.bundle or "", one.name, one.infill): one for one in every}
    sources = list(dict.fromkeys(one.bundle or "" for one in every))
    metrics = list(dict.fromkeys(one.name for one in every))
    found = []
    for infill in infills:
        shown = [metric for metric in metrics if infill == infills[0] or METRICS[metric].depends_on_infill]
        for columns in _in_turn(sources):
            rows = [(title(metric), _direction(metric, infills), [_cell(by_source, bundle, metric, infill)
                                                                  for bundle in columns])
                    for metric in shown]  # fmt: skip
            head = [source(bundle) for bundle in columns]
            found.append(Table(f"Means over images, infill {name(infill)}", head, rows))
    return found


def _direction(metric: str, infills: Sequence[str]) -> str:
    same = len(infills) > 1 and not METRICS[metric].depends_on_infill
    return f"{better(metric)}, the same under each infill" if same else better(metric)


def _in_turn(sources: list[str]) -> list[list[str]]:
    """The sources of each table, about as many in one as in another."""
    count = -(-len(sources) // COLUMNS)
    return [[str(one) for one in part] for part in np.array_split(np.array(sources, object), count)] if sources else []


def _cell(
    by_source: Mapping[tuple[str, str, str], MetricResult], bundle: str, metric: str, infill: str
) -> dict[str, Any] | None:
    entry = by_source.get((bundle, metric, infill))
    if entry is None and metric == "deletion":  # a protocol's may have an infill of its own
        entry = next((other for key, other in by_source.items() if key[:2] == (bundle, metric)), None)
    return None if entry is None else figure(entry)


def effort(results: Results) -> list[dict[str, Any]]:
    """Best effort of every source as a dot on a line."""
    infill = first_infill(results)
    listed = [one for one in [*results.metrics, *results.controls]
              if one.name == "best_effort" and one.infill == infill]  # fmt: skip
    return [{"source": source(one.bundle), **figure(one),
             "strip": _dot(one)} for one in listed]  # fmt: skip


def _dot(one: MetricResult) -> Markup:
    tone = "k" if one.is_control else "b0"
    return Markup("") if one.value is None else strip(one.value, one.low, one.high, (), tone)


def classes(results: Results, known: Mapping[int, str]) -> list[Table]:
    """Figures of each bundle by class, the least complete classes where there are very many."""
    infill, found = first_infill(results), []
    for bundle in bundles(results):
        mine = [one for one in results.classes if one.bundle == bundle and one.infill == infill]
        by_class: ByClass = {}
        for one in mine:
            by_class.setdefault(one.class_index or 0, {})[one.name] = one
        metrics = list(dict.fromkeys(one.name for one in mine))
        every = sorted(by_class)
        shown = sorted(sorted(every, key=lambda label: _least(by_class[label], label))[:MOST_CLASSES])
        rows = [_class_row(by_class[label], metrics, class_text(label, known)) for label in shown]
        said = f"{source(bundle)}, images by {results.classes_are} class, infill {name(infill)}"
        if len(shown) < len(every):
            said += f"; of {exact(len(every))} classes, the {MOST_CLASSES} with the lowest worst completeness"
        if rows:
            found.append(Table(said, [(title(metric), better(metric)) for metric in metrics], rows))
    return found


def _class_row(
    figures: Mapping[str, MetricResult], metrics: Sequence[str], text: str
) -> tuple[str, str, list[dict[str, Any] | None]]:
    cells = [_of_class(figures[metric]) if metric in figures else None for metric in metrics]
    return text, exact(max(entry.n for entry in figures.values())), cells


def _of_class(one: MetricResult) -> dict[str, Any]:
    """A figure whose interval, where a class has too few images for one, is that remark."""
    found = figure(one)
    return found | {"interval": TOO_FEW} if found["assessed"] and not found["interval"] else found


def _least(figures: Mapping[str, MetricResult], label: int) -> tuple[float, int]:
    entry = figures.get("worst_completeness") or figures.get("insertion")
    return (float("inf") if entry is None or entry.value is None else entry.value, label)


def reliability(results: Results) -> list[tuple[str, str, str, str]]:
    """Whether images rank the bundles alike, and whether metrics agree."""
    return [
        (title(one.name), title(one.against or ""), number(one.spearman if one.against else one.inter_method, 2),
         number(one.krippendorff_alpha, 2))
        for one in results.reliability
    ]  # fmt: skip


def stages(results: Results) -> list[dict[str, Any]]:
    """The stages of model randomisation, each with the layers that it added."""
    series = (results.randomisation.series if results.randomisation else None) or ()
    found, before = [], set[str]()
    for one in series:
        added = [layer for layer in one.layers if layer not in before]
        before |= set(added)
        found.append({"stage": exact(one.stage), "layers": [name(layer, 60) for layer in added],
                      "share": percent(one.share), "value": number(one.spearman),
                      "interval": interval(one.low, one.high), "n": exact(one.n)})  # fmt: skip
    return found


def randomisation_limit(results: Results) -> float | None:
    """The limit that a check sets to the correlation."""
    checks = (one for one in results.checks if one.metric == "randomisation" and one.rule == "max")
    return next((one.limit for one in checks if one.limit is not None), None)


def baseline(results: Results) -> dict[str, Any] | None:
    """What changed since the earlier run; b is this one."""
    comparison = results.baseline
    if comparison is None:
        return None
    changed = [{"id": one.id, "before": wording.status(one.before), "after": wording.status(one.after),
                "changed": one.before != one.after} for one in comparison.checks]  # fmt: skip
    rows = [{"title": title(one.name), "better": better(one.name), "before": source(one.bundle_a),
             "after": source(one.bundle_b), "value_before": number(one.value_a), "value_after": number(one.value_b),
             "infill": _infill(one), **difference(one)} for one in _once(comparison.differences)]  # fmt: skip
    shared = (("in both", comparison.shared_images), ("only in the baseline", comparison.only_a),
              ("only in this run", comparison.only_b))  # fmt: skip
    return {"run": comparison.a.run, "digest": comparison.a.results, "checks": changed, "differences": rows,
            "repeated": len(comparison.differences) - len(rows), "notes": comparison.notes,
            "compared": _compared(comparison.a, comparison.b), "verdict": wording.verdict(comparison.a.verdict),
            "said": _said(comparison, sum(bool(one["changed"]) for one in changed)),
            "shared": [(what, exact(images)) for what, images in shared]}  # fmt: skip


def _once(differences: Sequence[DifferenceResult]) -> list[DifferenceResult]:
    """The differences, those that are the same under each infill but once."""
    distinct: dict[tuple[str, str | None, str | None, str], DifferenceResult] = {}
    for one in differences:
        infill = one.infill if METRICS[one.name].depends_on_infill else ""
        distinct.setdefault((one.name, one.bundle_a, one.bundle_b, infill), one)
    return list(distinct.values())


def _infill(one: DifferenceResult) -> str:
    return name(one.infill) if one.infill and METRICS[one.name].depends_on_infill else "–"


def _said(comparison: Comparison, changed: int) -> str:
    """What became of the checks since the baseline, and what its verdict left out."""
    suppressed = comparison.a.suppressed
    parts = [f"{count(len(suppressed), 'check')} of it suppressed"] if suppressed else []
    if comparison.checks:
        parts.append(f"{count(changed, 'check')} changed" if changed else "no check changed")
    return "; ".join(parts)


def _compared(before: RunIdentity, after: RunIdentity) -> list[dict[str, Any]]:
    """What the two runs are of, each fact beside that of the other run."""
    first, second = (dict(_identity(run)) for run in (before, after))
    keys = [key for part in COMPARED.values() for key in dict.fromkeys([*first, *second]) if key[0] == part]
    found = [(key, first.get(key), second.get(key)) for key in keys if _says_more(key, first, second)]
    return [{"what": name(" ".join(key)), "changed": one != other,
             "cells": [(text, digest(text)) for text in (_fact(one), _fact(other))]}
            for key, one, other in found]  # fmt: skip


def _says_more(key: tuple[str, ...], *runs: Mapping[tuple[str, ...], Any]) -> bool:
    """Whether a fact is more than the digest of the model's file once again."""
    return key != ("model", "identity") or any(run.get(key) != run.get(("model", "sha256")) for run in runs)


def digest(text: str) -> bool:
    """Whether a text is a sha256."""
    return DIGEST.fullmatch(text) is not None


def _identity(run: RunIdentity) -> list[tuple[tuple[str, ...], Any]]:
    """What a run says of itself, in pairs of what and its value."""
    plain: Any = to_json(run)
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in {**plain, "verdict": wording.verdict(run.verdict).word}.items():
        if isinstance(value, Mapping):
            found += [((COMPARED.get(key, key), str(part)), held) for part, held in value.items()]
        else:
            found.append(((COMPARED.get(key, key),), value))
    return [(what, value) for what, value in found if value is not None]


def _fact(value: Any) -> str:
    return name((", ".join(map(exact, value)) or "none") if isinstance(value, list) else exact(value))
