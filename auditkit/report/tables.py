"""The report's tables: every figure of every source, by class, and what changed since an earlier run."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from auditkit.metrics.table import METRICS, title
from auditkit.records import Json, to_json
from auditkit.report.formatting import count, exact, marked_interval, name, source
from auditkit.report.sections import better, bundles, first_infill
from auditkit.report.wording import verdict
from auditkit.runs.folder.figures import MetricResult, RandomisationStage
from auditkit.runs.folder.groups import GroupFigure
from auditkit.runs.folder.results import Comparison, DifferenceResult, Results, RunIdentity
from auditkit.runs.pictures.gallery_index import GalleryIndex

_COLUMNS = 7  # sources of a table: what a sheet of paper has room for
_MOST_CLASSES, MOST_FAILED = 100, 200
TOO_FEW = "too few for an interval"  # of images, whose number is next to it; longer words are wider than a phone
_COMPARED = {"verdict": "verdict", "suppressed": "suppressed checks", "policy": "policy", "model": "model",
             "images": "images", "bundles": "heatmaps", "environment": "environment"}  # fmt: skip
_DIGEST = re.compile("[0-9a-f]{64}")
_MODEL_DIGEST = ("model", "sha256")
Cell = MetricResult | GroupFigure | None
Row = tuple[str, str, list[Cell]]  # title, note, cells


class Table(NamedTuple):
    """Figures by metric and source, or by class or group and metric; a row's note is a direction or a count."""

    caption: str
    columns: list[str]
    rows: list[Row]


def names(results: Results, gallery: GalleryIndex | None) -> dict[int, str]:
    """What classes are called, as far as the run says."""
    if results.subject.class_names:
        return dict(enumerate(results.subject.class_names))
    entries = gallery.entries if gallery else ()
    return {entry.label: entry.label_name for entry in entries if entry.label_name is not None}


def class_text(label: int | None, class_names: Mapping[int, str]) -> str:
    """A class by name and number."""
    if label is None:
        return "–"
    return f"{name(class_names[label], 60)} ({label})" if label in class_names else f"class {label}"


def figures(results: Results) -> list[Table]:
    """Every metric of every source, a few sources a table, under each infill; what has none, under the first."""
    every = [metric for metric in [*results.metrics, *results.controls] if metric.bundle]
    infills = list(dict.fromkeys(metric.infill for metric in every if metric.name == "insertion")) or [""]
    by_source = {(metric.bundle or "", metric.name, metric.infill): metric for metric in every}
    sources = np.array(list(dict.fromkeys(metric.bundle or "" for metric in every)), object)
    columns = [part.tolist() for part in np.array_split(sources, max(1, -(-len(sources) // _COLUMNS))) if len(part)]
    metrics = list(dict.fromkeys(metric.name for metric in every))
    once, tables = ", the same under each infill" if len(infills) > 1 else "", []
    for infill, column in product(infills, columns):
        rows = [(title(metric), better(metric) + ("" if METRICS[metric].depends_on_infill else once),
                 _cells(by_source, column, metric, infill))
                for metric in metrics if infill == infills[0] or METRICS[metric].depends_on_infill]  # fmt: skip
        tables.append(Table(f"Means over images, infill {name(infill)}", column, rows))
    return tables


def _cells(
    by_source: Mapping[tuple[str, str, str], MetricResult], sources: Sequence[str], metric: str, infill: str
) -> list[Cell]:
    cells: list[Cell] = [by_source.get((bundle, metric, infill)) for bundle in sources]
    if metric != "deletion":
        return cells
    # A protocol's deletion may have an infill of its own.
    of_any_infill = {key[0]: by_source[key] for key in reversed(list(by_source)) if key[1] == metric}
    return [cell or of_any_infill.get(bundle) for bundle, cell in zip(sources, cells, strict=True)]


def classes(results: Results, class_names: Mapping[int, str]) -> list[Table]:
    """Figures of each bundle by class, the least complete classes where there are very many."""
    infill, tables = first_infill(results), []
    for bundle in bundles(results):
        figures = [metric for metric in results.classes if metric.bundle == bundle and metric.infill == infill]
        by_class: dict[int, dict[str, MetricResult]] = {}
        for metric in figures:
            by_class.setdefault(metric.class_index or 0, {})[metric.name] = metric
        metrics = list(dict.fromkeys(metric.name for metric in figures))
        least = sorted((_completeness(entries), label) for label, entries in by_class.items())[:_MOST_CLASSES]
        rows: list[Row] = []
        for label in sorted(label for _, label in least):
            of_class = by_class[label]
            images = exact(max(metric.n for metric in of_class.values()))
            rows.append((class_text(label, class_names), images, [of_class.get(metric) for metric in metrics]))
        caption = f"{source(bundle)}, images by {results.classes_are} class, infill {name(infill)}"
        if len(rows) < len(by_class):
            caption += f"; of {exact(len(by_class))} classes, the {_MOST_CLASSES} with the lowest worst completeness"
        if rows:
            tables.append(Table(caption, metrics, rows))
    return tables


def class_interval(metric: MetricResult | GroupFigure) -> str:
    """The interval of a class or group, or that it has too few images for one."""
    return marked_interval(metric) or ("" if metric.value is None else TOO_FEW)


def _completeness(figures: Mapping[str, MetricResult]) -> float:
    entry = figures.get("worst_completeness") or figures.get("insertion")
    return float("inf") if entry is None or entry.value is None else entry.value


def stages(results: Results) -> list[tuple[RandomisationStage, list[str]]]:
    """The stages of model randomisation, each with the layers that it added."""
    series = (results.randomisation.series if results.randomisation else None) or ()
    rows, earlier = [], set[str]()
    for stage in series:
        rows.append((stage, [name(layer, 60) for layer in stage.layers if layer not in earlier]))
        earlier |= set(stage.layers)
    return rows


def randomisation_limit(results: Results) -> float | None:
    """The limit that a check sets to the correlation."""
    checks = (check for check in results.checks if check.metric == "randomisation" and check.rule == "max")
    return next((check.limit for check in checks if check.limit is not None), None)


def difference_infill(pair: DifferenceResult) -> str:
    """The infill of a difference; a dash where it is the same under each."""
    return name(pair.infill) if pair.infill and METRICS[pair.name].depends_on_infill else "–"


def distinct(differences: Sequence[DifferenceResult]) -> list[DifferenceResult]:
    """The differences; one that is the same under each infill is listed once."""
    first: dict[tuple[str, str | None, str | None, str], DifferenceResult] = {}
    for pair in differences:
        infill = pair.infill if METRICS[pair.name].depends_on_infill else ""
        first.setdefault((pair.name, pair.bundle_a, pair.bundle_b, infill), pair)
    return list(first.values())


def outcome(comparison: Comparison) -> str:
    """What became of the checks, and what the earlier verdict left out."""
    suppressed, changed = comparison.a.suppressed, sum(check.before != check.after for check in comparison.checks)
    parts = [f"{count(len(suppressed), 'check')} of it suppressed"] if suppressed else []
    if comparison.checks:
        parts.append(f"{count(changed, 'check')} changed" if changed else "no check changed")
    return "; ".join(parts)


def compared(comparison: Comparison) -> list[tuple[str, str, str, bool]]:
    """What the two runs are of: a fact, its value before and after, and whether it changed."""
    first, second = _identity(comparison.a), _identity(comparison.b)
    parts = list(_COMPARED.values())
    keys = [key for key in dict.fromkeys([*first, *second]) if key[0] in parts]
    changes = []
    for key in sorted(keys, key=lambda key: parts.index(key[0])):
        old, new = first.get(key), second.get(key)
        if key != ("model", "identity") or (old, new) != (first.get(_MODEL_DIGEST), second.get(_MODEL_DIGEST)):
            changes.append((name(" ".join(key)), _fact(old), _fact(new), old != new))
    return changes


def is_digest(text: str) -> bool:
    """Whether a text is a sha256."""
    return _DIGEST.fullmatch(text) is not None


def _identity(run: RunIdentity) -> dict[tuple[str, ...], Json]:
    """What a run says of itself; the key of a fact is its part, and its name where the part has several."""
    facts: dict[tuple[str, ...], Json] = {}
    for key, part in _COMPARED.items():
        value = verdict(run.verdict).word if key == "verdict" else to_json(getattr(run, key))
        if isinstance(value, dict):
            facts |= {(part, fact): entry for fact, entry in value.items()}
        else:
            facts[(part,)] = value
    return {key: value for key, value in facts.items() if value is not None}


def _fact(value: Json) -> str:
    return name((", ".join(map(exact, value)) or "none") if isinstance(value, list) else exact(value))
