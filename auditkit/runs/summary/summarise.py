"""Rows of figures become metrics with intervals, compared, cut by class, and asked how far they can be relied on."""

import html
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import FailedImage
from auditkit.errors import BadInput, unknown
from auditkit.metrics.per_image import MetricRows
from auditkit.metrics.protocols import infill_of
from auditkit.metrics.reliability import LEAST_METHODS, inter_rater, internal_consistency, mean_off_diagonal, spearman
from auditkit.metrics.statistics import Interval, mean_interval, share_interval
from auditkit.metrics.table import METRICS, compute_all, title
from auditkit.metrics.values import NotAssessed, Note, Values
from auditkit.runs.evaluation.plan import RunRecord
from auditkit.runs.evaluation.settings import NO_LABEL, Evaluation
from auditkit.runs.folder.figures import (
    CONTROL,
    Agreement,
    Flag,
    IntervalKind,
    MetricResult,
    Runtime,
    SamplingError,
)
from auditkit.runs.summary.row_table import RowTable, Source, Tables
from auditkit.runs.summary.samples import Assessed, Samples, paired_difference
from auditkit.runs.summary.sampling_error import sampling_errors
from auditkit.runs.summary.source_rows import map_flags
from auditkit.runs.summary.wording import figure_text, flag_text, remarks, sampling_remarks, source_name

SPREAD_THAT_MATTERS = 0.05  # of insertion, by the order in ties


@dataclass(frozen=True)
class Summary:
    """All metrics of an evaluation, and the rows they come from."""

    metrics: tuple[MetricResult, ...]
    comparisons: tuple[MetricResult, ...]
    classes: tuple[MetricResult, ...]
    reliability: tuple[Agreement, ...]
    points: tuple[SamplingError, ...]  # how far figures may be off by the number of points
    flags: tuple[Flag, ...]
    table: RowTable
    samples: Samples  # the values of each image, for the tests that decide
    settings: Evaluation
    runtime: Runtime
    tables: Tables  # the rows, from memory or from the folder of the run
    failed_images: tuple[FailedImage, ...]  # that cannot be used
    record: RunRecord | None  # None in memory

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every row of figures with the points of its curve."""
        return list(chain.from_iterable(table.to_pylist() for table in self.tables()))

    def value(self, name: str, bundle: str | None = None, infill: str | None = None) -> float | None:
        """One figure (of no bundle for `accuracy`), or None if not assessed; the first infill's unless one is named."""
        if name not in METRICS:
            raise BadInput(unknown("metric", name, METRICS))
        for metric in self.metrics:
            if (metric.name, metric.bundle) == (name, bundle) and infill in (None, metric.infill):
                return metric.value
        return None

    def settings_text(self) -> str:
        """What was measured how: the part of every figure's name that a table has no room for."""
        settings = self.settings
        parts = [
            f"protocol {settings.protocol}" if settings.protocol else "",
            f"labels {settings.labels}{' renormalised' if settings.renormalise else ''}",
            f"infill {', '.join(settings.infills)}", f"steps {settings.steps}",
            "range {:g} to {:g}".format(*settings.range) if tuple(settings.range) != (0, 1) else "",
            "" if settings.eps1 is None else f"eps {settings.eps1:g} and {settings.eps2:g}", f"ties {settings.ties}",
            f"{len(self.table.images)} images", f"{settings.confidence:.0%} bootstrap intervals",
        ]  # fmt: skip
        return "; ".join(filter(None, parts))

    def flag_texts(self) -> list[str]:
        """The flags as sentences."""
        labels = self.settings.labels or ""
        return [flag_text(flag, self.failed_images, self.runtime, labels) for flag in self.flags]

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of a table: a source a row (under each infill), a metric a column."""
        of_maps = [metric for metric in self.metrics if metric.bundle]
        names = list(dict.fromkeys(metric.name for metric in of_maps))
        lines = list(dict.fromkeys((metric.bundle or "", metric.infill) for metric in of_maps))
        cells = {(metric.bundle, metric.infill, metric.name): figure_text(metric) for metric in of_maps}
        several = len({infill for _, infill in lines}) > 1
        head = ["maps", *(["infill"] if several else []), *map(title, names)]
        rows = []
        for source, infill in lines:
            figures = [cells.get((source, infill, name), "") for name in names]
            rows.append([source_name(source), *([infill] if several else []), *figures])
        return head, rows

    def __repr__(self) -> str:  # what a Python prompt shows
        head, rows = self.grid()
        # Names and values on one line, the intervals beneath them.
        names = 2 if head[1:2] == ["infill"] else 1
        halves = [[*((cell, "") for cell in row[:names]), *(cell.partition(" (")[::2] for cell in row[names:])]
                  for row in rows]  # fmt: skip
        lines = [head]
        for row in halves:
            lines += [[value for value, _ in row], [f"({rest}" if rest else "" for _, rest in row]]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join(line.rstrip() for line in [*text, *self._remarks_below()])

    def _remarks_below(self) -> list[str]:
        points = sampling_remarks(self.points, self.settings)
        return [self.settings_text(), *(f"{kind}: {text}" for kind, text in remarks(self.metrics)), *points,
                *self.flag_texts()]  # fmt: skip

    def _repr_html_(self) -> str:
        head, rows = self.grid()
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
        top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        table = f"<table><tr>{top}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in self._remarks_below())


def summarise(tables: Tables, settings: Evaluation, runtime: Runtime, record: RunRecord | None = None) -> Summary:
    """The metrics of each source under each infill, in the order in which the sources come."""
    table = RowTable(tables, named=settings.targets_listed_labels)
    figures = {source: compute_all(rows) for source, rows in table.metric_rows.items()}
    metrics = _accuracy(table, settings)
    for source, results in figures.items():
        metrics += [_metric_result(result, source, settings) for result in results]
    assessed = {source: {result.name: result for result in results if isinstance(result, Values)}
                for source, results in figures.items()}  # fmt: skip
    flags = [*_run_flags(table, runtime), *_map_flags(table, assessed)]
    return Summary(
        tuple(metrics), tuple(_comparisons(table, assessed, settings)), tuple(_by_class(table, assessed, settings)),
        tuple(_reliability(table, assessed)), tuple(sampling_errors(figures, table, settings)), tuple(flags),
        table, Samples(assessed, table, settings), settings, runtime, tables, table.failed_images, record,
    )  # fmt: skip


def _run_flags(table: RowTable, runtime: Runtime) -> Iterator[Flag]:
    total, failed = len(table.images), len(table.failed_images)
    if table.copies:
        yield Flag("copies", count=table.copies, total=total)
    if failed:
        yield Flag("unusable-images", count=failed, total=total + failed)
    without_label = set[int]().union(*(rows.pairs.image[rows.failed(NO_LABEL)] for rows in table.rows.values()))
    if without_label:
        yield Flag("images-without-label", count=len(without_label), total=total)
    if runtime.note:
        yield Flag("strict-precision-used")
    elif runtime.matters:
        yield Flag("runtime-off")


def _map_flags(table: RowTable, assessed: Assessed) -> Iterator[Flag]:
    for bundle, infill in table.rows:
        if bundle.startswith(CONTROL):  # odd on purpose
            continue
        if infill == table.infills[0]:
            yield from map_flags(bundle, table)
        spread = assessed[bundle, infill].get("tie_spread")
        if spread is not None and spread.values.mean() > SPREAD_THAT_MATTERS:
            yield Flag("tie-order-matters", bundle, infill=infill, value=float(spread.values.mean()))


def _result(
    name: str, source: Source, settings: Evaluation, interval: Interval | None, *, missing: NotAssessed | None = None,
    note: Note | None = None, against: str | None = None, class_index: int | None = None,
) -> MetricResult:  # fmt: skip
    bundle, infill = source
    result = MetricResult(
        name, bundle or None, settings.labels or "", infill_of(name, infill, settings.protocol), settings.eps1,
        settings.eps2, str(settings.steps), (settings.range[0], settings.range[1]), None, None, None,
        settings.confidence, 0, missing, note, against, class_index, settings.protocol, settings.renormalise or None,
    )  # fmt: skip
    if interval is None:
        return result
    kind: IntervalKind = "Wilson" if interval.method == "wilson" else "bootstrap"
    return replace(result, value=interval.value, low=interval.low, high=interval.high, n=interval.n,
                   note=note or interval.note, interval=kind)  # fmt: skip


def _metric_result(result: Values | NotAssessed, source: Source, settings: Evaluation) -> MetricResult:
    if isinstance(result, NotAssessed):
        return _result(result.metric, source, settings, None, missing=result)
    # A control with one map for all labels has a margin of 0 on every image there is, not on these alone.
    zero = METRICS[result.name].curve == "log_odds" and source[0].startswith(CONTROL) and not result.values.any()
    interval = _interval(result.name, result.values, result.images, settings, bounded=not zero)
    return _result(result.name, source, settings, interval, note=result.note)


def _interval(name: str, values: Array, images: Array, settings: Evaluation, *, bounded: bool = True) -> Interval:
    return mean_interval(values, images, confidence=settings.confidence, method=settings.interval, seed=settings.seed,
                         bounds=METRICS[name].bounds if bounded else None)  # fmt: skip


def _accuracy(table: RowTable, settings: Evaluation) -> list[MetricResult]:
    """Share of the images whose given label is the predicted one, where labels are given."""
    labelled = np.isfinite(table.truth)
    if not labelled.any():
        return []
    hits = int((table.truth == table.prediction)[labelled].sum())
    share = share_interval(hits, int(labelled.sum()), settings.confidence)
    return [_result("accuracy", ("", ""), settings, share)]


def _comparisons(table: RowTable, assessed: Assessed, settings: Evaluation) -> Iterator[MetricResult]:
    """Paired differences of every bundle to the bundles after it and to every control, on what both have."""
    for first, second in combinations(assessed, 2):
        if first[1] != second[1] or (first[0].startswith(CONTROL) and second[0].startswith(CONTROL)):
            continue
        if first[0].startswith(CONTROL):
            first, second = second, first  # noqa: PLW2901
        for name, values in assessed[first].items():
            if METRICS[name].compared == "always" and name in assessed[second]:
                rows = table.metric_rows[first]
                yield from _difference(values, assessed[second][name], first, second[0], rows, settings)


def _difference(
    values: Values, other: Values, source: Source, against: str, rows: MetricRows, settings: Evaluation
) -> Iterator[MetricResult]:
    """The mean of a paired difference with its interval, or why there is none."""
    name, difference = values.name, paired_difference(values, other, source[0], against, rows, settings)
    if isinstance(difference, NotAssessed):
        yield _result(name, source, settings, None, missing=difference, against=against)
    elif difference is not None:
        interval = mean_interval(
            difference.values, difference.images, confidence=settings.confidence, method=settings.interval,
            seed=settings.seed, bounds=difference.bounds,
        )  # fmt: skip
        yield _result(name, source, settings, interval, against=against)


def _by_class(table: RowTable, assessed: Assessed, settings: Evaluation) -> Iterator[MetricResult]:
    """Figures of each bundle on the images of each given class; of each predicted one where none is given."""
    classes = table.prediction if np.isnan(table.truth).all() else table.truth
    for source, metrics in assessed.items():
        if source[0].startswith(CONTROL):
            continue
        for metric in metrics.values():
            if METRICS[metric.name].by_class:
                yield from _of_each_class(metric, classes[metric.images], source, settings)


def _of_each_class(metric: Values, classes: Array, source: Source, settings: Evaluation) -> Iterator[MetricResult]:
    for class_index in np.unique(classes[np.isfinite(classes)]):
        chosen = classes == class_index
        interval = _interval(metric.name, metric.values[chosen], metric.images[chosen], settings)
        yield _result(metric.name, source, settings, interval, class_index=int(class_index))


def _reliability(table: RowTable, assessed: Assessed) -> Iterator[Agreement]:
    """With three bundles or more: whether images rank them alike, and whether metrics agree (Tomsett et al.)."""
    for infill in table.infills:
        metrics = [assessed[bundle, infill] for bundle in table.bundles if (bundle, infill) in assessed]
        if len(metrics) < LEAST_METHODS:
            continue
        names = [name for name in metrics[0] if all(name in other for other in metrics)]
        tables = {name: np.stack([values[name].image_means(len(table.images)) for values in metrics], axis=1)
                  for name in names}  # fmt: skip
        for name, means in tables.items():
            complete = means[np.isfinite(means).all(axis=1)]
            if len(complete) > 1:
                yield Agreement(infill, name, len(complete), inter_rater(complete),
                                mean_off_diagonal(spearman(complete)))  # fmt: skip
        for first, second in combinations(names, 2):
            correlation = _agreement(tables[first], tables[second], first, second)
            yield Agreement(infill, first, against=second, spearman=correlation)


def _agreement(first: Array, second: Array, *names: str) -> float:
    """Spearman between two metrics over images, the mean over the bundles; higher is better in both."""
    higher_is_better = np.array([not METRICS[name].lower_is_better for name in names])
    correlations = []
    for first_values, second_values in zip(first.T, second.T, strict=True):
        both = np.stack([first_values, second_values], axis=1)
        both = both[np.isfinite(both).all(axis=1)]
        correlations.append(internal_consistency(both, higher_is_better)[0, 1] if len(both) > 1 else np.nan)
    finite = [value for value in correlations if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")
