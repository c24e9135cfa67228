"""The report's tables: every figure of every source, by class, and what changed since an earlier run."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from auditkit.report import wording
from auditkit.report.formatting import count, exact, interval, name, number, percent, source, title
from auditkit.report.sections import Results, better, bundles, difference, figure, first_infill
from auditkit.report.svg import strip
from auditkit.runs.evaluation.settings import CONTROL

COLUMNS = 7  # sources of a table: what a sheet of paper has room for
MOST_CLASSES, MOST_FAILED = 100, 200
BY_CLASS = ("insertion", "worst_completeness", "worst_soundness")
WITHOUT_INFILL = (  # the same under each infill: no pixel is replaced for them
    "saliency_metric", "saliency_metric_tuned", "degenerate_boxes", "degenerate_boxes_tuned", "pointing_game", "iou",
)  # fmt: skip
TOO_FEW = "too few for an interval"  # of images, whose number stands beside it; longer words are wider than a phone
COMPARED = {"verdict": "verdict", "suppressed": "suppressed checks", "policy": "policy", "model": "model",
            "images": "images", "bundles": "heatmaps", "environment": "environment"}  # fmt: skip
DIGEST = re.compile("[0-9a-f]{64}")


class Table(NamedTuple):
    """Head and rows of a table, with what it is about."""

    caption: str
    head: Sequence[Any]
    rows: Sequence[Any]


def names(results: Results, gallery: Mapping[str, Any] | None) -> dict[int, str]:
    """What classes are called, as far as the run says."""
    subject = results["subject"]
    listed = subject.get("class_names") or (subject.get("card") or {}).get("names")
    if isinstance(listed, list):
        return dict(enumerate(map(str, listed)))
    entries = (gallery or {}).get("entries", ())
    return {int(one["label"]): str(one["label_name"]) for one in entries if one.get("label_name") is not None}


def class_text(label: Any, known: Mapping[int, str]) -> str:
    """A class by name and number."""
    if label is None:
        return "–"
    return f"{name(known[int(label)], 60)} ({int(label)})" if int(label) in known else f"class {int(label)}"


def figures(results: Results) -> list[Table]:
    """Every metric of every source, a few sources a table, under each infill; what has none, under the first."""
    every = [one for one in [*results["metrics"], *results["controls"]] if one["bundle"]]
    infills = list(dict.fromkeys(one["infill"] for one in every if one["name"] == "insertion")) or [""]
    by = {(one["bundle"], one["name"], one["infill"]): one for one in every}
    listed, metrics = (list(dict.fromkeys(one[key] for one in every)) for key in ("bundle", "name"))
    found = []
    for infill in infills:
        for some in _in_turn(listed):
            rows = [(title(metric), _direction(metric, infills), [_cell(by, bundle, metric, infill) for bundle in some])
                    for metric in metrics if infill == infills[0] or metric not in WITHOUT_INFILL]  # fmt: skip
            found.append(Table(f"Means over images, infill {name(infill)}", [source(bundle) for bundle in some], rows))
    return found


def _direction(metric: str, infills: Sequence[str]) -> str:
    same = len(infills) > 1 and metric in WITHOUT_INFILL
    return f"{better(metric)}, the same under each infill" if same else better(metric)


def _in_turn(sources: list[str]) -> list[list[str]]:
    """The sources of each table, about as many in one as in another."""
    count = -(-len(sources) // COLUMNS)
    return [[str(one) for one in part] for part in np.array_split(np.array(sources, object), count)] if sources else []


def _cell(by: Mapping[Any, Results], bundle: str, metric: str, infill: str) -> dict[str, Any] | None:
    one = by.get((bundle, metric, infill))
    if one is None and metric == "deletion":  # a protocol's may have an infill of its own
        one = next((held for key, held in by.items() if key[:2] == (bundle, metric)), None)
    return None if one is None else figure(one)


def effort(results: Results) -> list[dict[str, Any]]:
    """Best effort of every source as a dot on a line."""
    infill = first_infill(results)
    listed = [one for one in [*results["metrics"], *results["controls"]]
              if one["name"] == "best_effort" and one["infill"] == infill]  # fmt: skip
    return [{"source": source(one["bundle"]), **figure(one),
             "strip": _dot(one)} for one in listed]  # fmt: skip


def _dot(one: Results) -> Markup:
    tone = "k" if one["bundle"].startswith(CONTROL) else "b0"
    return Markup("") if one["value"] is None else strip(one["value"], one["low"], one["high"], (), tone)


def classes(results: Results, known: Mapping[int, str]) -> list[Table]:
    """Figures of each bundle by class, the least complete classes where there are very many."""
    infill, found = first_infill(results), []
    for bundle in bundles(results):
        mine = [one for one in results["classes"] if one["bundle"] == bundle and one["infill"] == infill]
        by = {(one["class"], one["name"]): one for one in mine}
        metrics = [metric for metric in BY_CLASS if any(key[1] == metric for key in by)]
        every = sorted({one["class"] for one in mine})
        shown = sorted(sorted(every, key=lambda label: _least(by, label))[:MOST_CLASSES])
        rows = [(class_text(label, known), exact(max(by[label, metric]["n"] for metric in metrics
                                                     if (label, metric) in by)),
                 [_of_class(by[label, metric]) if (label, metric) in by else None for metric in metrics])
                for label in shown]  # fmt: skip
        said = f"{source(bundle)}, images by {results.get('classes_are', 'given')} class, infill {name(infill)}"
        if len(shown) < len(every):
            said += f"; of {exact(len(every))} classes, the {MOST_CLASSES} with the lowest worst completeness"
        if rows:
            found.append(Table(said, [(title(metric), better(metric)) for metric in metrics], rows))
    return found


def _of_class(one: Results) -> dict[str, Any]:
    """A figure whose interval, where a class has too few images for one, is that remark."""
    found = figure(one)
    return found | {"interval": TOO_FEW} if found["assessed"] and not found["interval"] else found


def _least(by: Mapping[Any, Results], label: int) -> tuple[float, int]:
    one = by.get((label, "worst_completeness")) or by.get((label, "insertion"))
    return (float("inf") if one is None or one["value"] is None else one["value"], label)


def reliability(results: Results) -> list[tuple[str, str, str, str]]:
    """Whether images rank the bundles alike, and whether metrics agree."""
    return [
        (title(one["name"]), title(one.get("against") or ""),
         number(one.get("spearman", one.get("inter_method")), 2), number(one.get("krippendorff_alpha"), 2))
        for one in results["reliability"]
    ]  # fmt: skip


def stages(results: Results) -> list[dict[str, Any]]:
    """The stages of model randomisation, each with the layers that it added."""
    series = (results["randomisation"] or {}).get("series") or ()
    found, before = [], set[str]()
    for one in series:
        added = [layer for layer in one.get("layers") or () if layer not in before]
        before |= set(added)
        found.append({"stage": exact(one.get("stage")), "layers": [name(layer, 60) for layer in added],
                      "share": percent(one["share"]), "value": number(one.get("spearman")),
                      "interval": interval(one.get("low"), one.get("high")), "n": exact(one.get("n"))})  # fmt: skip
    return found


def randomisation_limit(results: Results) -> float | None:
    """The limit that a check sets to the correlation."""
    for one in results["checks"]:
        if "randomis" in str(one.get("metric")) and one.get("rule") == "max" and one.get("limit") is not None:
            return float(one["limit"])
    return None


def baseline(results: Results) -> dict[str, Any] | None:
    """What changed since the earlier run; b is this one."""
    told = results["baseline"]
    if not told:
        return None
    changed = [{"id": one["id"], "before": wording.status(one.get("before")), "after": wording.status(one.get("after")),
                "changed": one.get("before") != one.get("after")} for one in told.get("checks") or ()]  # fmt: skip
    every = told.get("differences") or ()
    rows = [{"title": title(one["name"]), "better": better(one["name"]), "before": source(one.get("bundle_a")),
             "after": source(one.get("bundle_b")), "value_before": number(one.get("value_a")),
             "value_after": number(one.get("value_b")), "infill": _infill(one), **difference(one)}
            for one in _once(every)]  # fmt: skip
    return {"run": told.get("run"), "digest": told.get("results_sha256") or told.get("digest"), "checks": changed,
            "differences": rows, "repeated": len(every) - len(rows), "notes": told.get("notes") or (),
            "compared": _compared(told.get("a"), told.get("b")), "verdict": _verdict(told.get("a")),
            "said": _said(told, sum(one["changed"] for one in changed)),
            "shared": [(what, exact(told[key])) for what, key in (("in both", "shared_images"), ("only in the baseline",
                       "only_a"), ("only in this run", "only_b")) if told.get(key) is not None]}  # fmt: skip


def _once(every: Sequence[Results]) -> list[Results]:
    """The differences, those that are the same under each infill but once."""
    found: dict[tuple[Any, ...], Results] = {}
    for one in every:
        infill = None if one["name"] in WITHOUT_INFILL else one.get("infill")
        found.setdefault((one["name"], one.get("bundle_a"), one.get("bundle_b"), infill), one)
    return list(found.values())


def _infill(one: Results) -> str:
    return "–" if one["name"] in WITHOUT_INFILL or not one.get("infill") else name(one["infill"])


def _verdict(told: Any) -> wording.Word | None:
    """The verdict of a run that says one, or that it has none; nothing where it does not say."""
    if not isinstance(told, Mapping) or "verdict" not in told:
        return None
    return wording.verdict(None if told["verdict"] is None else str(told["verdict"]))


def _said(told: Results, changed: int) -> str:
    """What became of the checks since the baseline, and what its verdict left out."""
    before = told.get("a")
    held = before.get("suppressed") if isinstance(before, Mapping) else None
    parts = [f"{count(len(held), 'check')} of it suppressed"] if held else []
    if told.get("checks"):
        parts.append(f"{count(changed, 'check')} changed" if changed else "no check changed")
    return "; ".join(parts)


def _compared(before: Any, after: Any) -> list[dict[str, Any]]:
    """What the two runs are of, each fact beside that of the other run."""
    first, second = (dict(_identity(told)) for told in (before, after))
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


def _identity(told: Any) -> list[tuple[tuple[str, ...], Any]]:
    """What a run says of itself, in pairs of what and its value."""
    if not isinstance(told, Mapping):
        return []
    word = _verdict(told)
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in {**told, "verdict": word and word.word}.items():
        if isinstance(value, Mapping):
            found += [((COMPARED.get(key, key), str(part)), held) for part, held in value.items()]
        else:
            found.append(((COMPARED.get(key, key),), value))
    return [(what, value) for what, value in found if value is not None]


def _fact(value: Any) -> str:
    return name((", ".join(map(exact, value)) or "none") if isinstance(value, list) else exact(value))
