"""The report's tables: every figure of every source, by class, and what changed since an earlier run."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

from auditkit.metrics.table import METRICS, title
from auditkit.records import Json, to_json
from auditkit.report.formatting import count, exact, interval, name, number, percent, source
from auditkit.report.sections import Difference, Figure, better, bundles, difference, figure, first_infill
from auditkit.report.svg import strip
from auditkit.report.wording import Word, verdict
from auditkit.runs.folder.figures import MetricResult
from auditkit.runs.folder.results import Comparison, DifferenceResult, Results, RunIdentity

if TYPE_CHECKING:
    from auditkit.runs.pictures.gallery import GalleryIndex

_COLUMNS = 7  # sources of a table: what a sheet of paper has room for
_MOST_CLASSES, MOST_FAILED = 100, 200
TOO_FEW = "too few for an interval"  # of images, whose number stands beside it; longer words are wider than a phone
_COMPARED = {"verdict": "verdict", "suppressed": "suppressed checks", "policy": "policy", "model": "model",
             "images": "images", "bundles": "heatmaps", "environment": "environment"}  # fmt: skip
_DIGEST = re.compile("[0-9a-f]{64}")
_MODEL_DIGEST = ("model", "sha256")


class Row(NamedTuple):
    """The figures of a metric by source, or of a class by metric; the note is a direction or a number of images."""

    title: str
    note: str
    cells: list[Figure | None]


class Table(NamedTuple):
    """Rows of figures; a column has a title and, where it is a metric, a direction."""

    caption: str
    columns: list[tuple[str, str]]
    rows: list[Row]


class Stage(NamedTuple):
    """A stage of model randomisation with the layers that it added."""

    stage: str
    layers: list[str]
    share: str
    value: str
    interval: str
    n: str


class DifferenceRow(NamedTuple):
    """A figure of both runs."""

    title: str
    better: str
    before: str
    after: str
    value_before: str
    value_after: str
    infill: str
    difference: Difference


class FactChange(NamedTuple):
    """A fact about both runs."""

    what: str
    before: str
    after: str
    changed: bool


class Baseline(NamedTuple):
    """What changed since an earlier run."""

    comparison: Comparison
    verdict: Word
    outcome: str  # what became of the checks, and what the earlier verdict left out
    facts: list[FactChange]
    differences: list[DifferenceRow]  # one that is the same under each infill is listed once

    @property
    def repeated(self) -> bool:
        """Whether differences were left out because they are the same under each infill."""
        return len(self.differences) < len(self.comparison.differences)


def names(results: Results, gallery: "GalleryIndex | None") -> dict[int, str]:
    """What classes are called, as far as the run says."""
    if results.subject.class_names:
        return dict(enumerate(results.subject.class_names))
    entries = gallery["entries"] if gallery else []
    named = ((entry["label"], entry.get("label_name")) for entry in entries)
    return {int(label): str(label_name) for label, label_name in named if label_name is not None}


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
    columns = _columns(list(dict.fromkeys(metric.bundle or "" for metric in every)))
    metrics = list(dict.fromkeys(metric.name for metric in every))
    tables = []
    for infill, sources in product(infills, columns):
        shown = [metric for metric in metrics if infill == infills[0] or METRICS[metric].depends_on_infill]
        rows = [Row(title(metric), _direction(metric, infills), _cells(by_source, sources, metric, infill))
                for metric in shown]  # fmt: skip
        tables.append(
            Table(f"Means over images, infill {name(infill)}", [(source(bundle), "") for bundle in sources], rows)
        )
    return tables


def _direction(metric: str, infills: Sequence[str]) -> str:
    same = len(infills) > 1 and not METRICS[metric].depends_on_infill
    return f"{better(metric)}, the same under each infill" if same else better(metric)


def _columns(sources: list[str]) -> list[list[str]]:
    """The sources of each table, about as many in one as in another."""
    if not sources:
        return []
    tables = -(-len(sources) // _COLUMNS)
    return [part.tolist() for part in np.array_split(np.array(sources, object), tables)]


def _cells(
    by_source: Mapping[tuple[str, str, str], MetricResult], sources: Sequence[str], metric: str, infill: str
) -> list[Figure | None]:
    cells: list[Figure | None] = []
    for bundle in sources:
        entry = by_source.get((bundle, metric, infill))
        if entry is None and metric == "deletion":  # a protocol's may have an infill of its own
            entry = next((other for key, other in by_source.items() if key[:2] == (bundle, metric)), None)
        cells.append(None if entry is None else figure(entry))
    return cells


def effort(results: Results) -> list[tuple[str, Figure, Markup]]:
    """Best effort of every source, as a figure and as a dot on a line."""
    key = ("best_effort", first_infill(results))
    every = [*results.metrics, *results.controls]
    return [(source(metric.bundle), figure(metric), _dot(metric)) for metric in every
            if (metric.name, metric.infill) == key]  # fmt: skip


def _dot(metric: MetricResult) -> Markup:
    tone = "k" if metric.is_control else "b0"
    return Markup("") if metric.value is None else strip(metric.value, metric.low, metric.high, (), tone)


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
        labels = sorted(label for _, label in least)
        rows = [_class_row(by_class[label], metrics, class_text(label, class_names)) for label in labels]
        caption = f"{source(bundle)}, images by {results.classes_are} class, infill {name(infill)}"
        if len(rows) < len(by_class):
            caption += f"; of {exact(len(by_class))} classes, the {_MOST_CLASSES} with the lowest worst completeness"
        if rows:
            tables.append(Table(caption, [(title(metric), better(metric)) for metric in metrics], rows))
    return tables


def _class_row(figures: Mapping[str, MetricResult], metrics: Sequence[str], text: str) -> Row:
    cells = [_class_figure(figures[metric]) if metric in figures else None for metric in metrics]
    return Row(text, exact(max(entry.n for entry in figures.values())), cells)


def _class_figure(metric: MetricResult) -> Figure:
    """A figure whose interval, where a class has too few images for one, is that remark."""
    cell = figure(metric)
    return cell._replace(interval=TOO_FEW) if cell.assessed and not cell.interval else cell


def _completeness(figures: Mapping[str, MetricResult]) -> float:
    entry = figures.get("worst_completeness") or figures.get("insertion")
    return float("inf") if entry is None or entry.value is None else entry.value


def reliability(results: Results) -> list[tuple[str, str, str, str]]:
    """Whether images rank the bundles alike, and whether metrics agree."""
    return [
        (title(entry.name), title(entry.against or ""),
         number(entry.spearman if entry.against else entry.inter_method, 2), number(entry.krippendorff_alpha, 2))
        for entry in results.reliability
    ]  # fmt: skip


def stages(results: Results) -> list[Stage]:
    """The stages of model randomisation."""
    series = (results.randomisation.series if results.randomisation else None) or ()
    rows, before = [], set[str]()
    for stage in series:
        added = [layer for layer in stage.layers if layer not in before]
        before |= set(added)
        rows.append(Stage(exact(stage.stage), [name(layer, 60) for layer in added], percent(stage.share),
                          number(stage.spearman), interval(stage.low, stage.high), exact(stage.n)))  # fmt: skip
    return rows


def randomisation_limit(results: Results) -> float | None:
    """The limit that a check sets to the correlation."""
    checks = (check for check in results.checks if check.metric == "randomisation" and check.rule == "max")
    return next((check.limit for check in checks if check.limit is not None), None)


def baseline(results: Results) -> Baseline | None:
    """What changed since the earlier run; b is this one."""
    comparison = results.baseline
    if comparison is None:
        return None
    changed = sum(check.before != check.after for check in comparison.checks)
    differences = [_difference_row(pair) for pair in _distinct(comparison.differences)]
    facts = _compared(comparison.a, comparison.b)
    return Baseline(comparison, verdict(comparison.a.verdict), _outcome(comparison, changed), facts, differences)


def _difference_row(pair: DifferenceResult) -> DifferenceRow:
    infill = name(pair.infill) if pair.infill and METRICS[pair.name].depends_on_infill else "–"
    return DifferenceRow(title(pair.name), better(pair.name), source(pair.bundle_a), source(pair.bundle_b),
                         number(pair.value_a), number(pair.value_b), infill, difference(pair))  # fmt: skip


def _distinct(differences: Sequence[DifferenceResult]) -> list[DifferenceResult]:
    """The differences; one that is the same under each infill is listed once."""
    distinct: dict[tuple[str, str | None, str | None, str], DifferenceResult] = {}
    for pair in differences:
        infill = pair.infill if METRICS[pair.name].depends_on_infill else ""
        distinct.setdefault((pair.name, pair.bundle_a, pair.bundle_b, infill), pair)
    return list(distinct.values())


def _outcome(comparison: Comparison, changed: int) -> str:
    suppressed = comparison.a.suppressed
    parts = [f"{count(len(suppressed), 'check')} of it suppressed"] if suppressed else []
    if comparison.checks:
        parts.append(f"{count(changed, 'check')} changed" if changed else "no check changed")
    return "; ".join(parts)


def _compared(before: RunIdentity, after: RunIdentity) -> list[FactChange]:
    """What the two runs are of, each fact beside that of the other run."""
    first, second = _identity(before), _identity(after)
    parts = list(_COMPARED.values())
    keys = [key for key in dict.fromkeys([*first, *second]) if key[0] in parts]
    changes = []
    for key in sorted(keys, key=lambda key: parts.index(key[0])):
        old, new = first.get(key), second.get(key)
        if key != ("model", "identity") or (old, new) != (first.get(_MODEL_DIGEST), second.get(_MODEL_DIGEST)):
            changes.append(FactChange(name(" ".join(key)), _fact(old), _fact(new), old != new))
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
