"""Rows of figures become metrics with intervals, compared, cut by class, and asked how far they can be relied on."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from auditkit.metrics.reliability import (
    LEAST_METHODS,
    inter_method,
    inter_rater,
    internal_consistency,
    mean_off_diagonal,
)
from auditkit.metrics.statistics import Interval, mean_interval, paired_difference, share_interval
from auditkit.runs.figures import Gap, Items, Values, image_means, paired
from auditkit.runs.plan import NO_LABEL, Evaluation
from auditkit.runs.sanity import Runtime

Array = np.ndarray[Any, Any]
CONTROL = "control:"
MODEL = "model"  # the bundle of figures that are about no map
COMPARED = ("insertion", "completeness", "soundness", "worst_completeness", "worst_soundness", "best_effort")
BY_CLASS = ("insertion", "worst_completeness", "worst_soundness")
LOWER_IS_BETTER = ("deletion", "saliency_metric", "saliency_metric_tuned", "degenerate_boxes", "degenerate_boxes_tuned")
SPREAD_THAT_MATTERS = 0.05  # of insertion, by the order in ties


@dataclass(frozen=True)
class Metric:
    """One figure of one source."""

    name: str
    bundle: str
    infill: str
    interval: Interval | None  # None: not assessed
    reason: str = ""
    against: str = ""  # the source whose figure was taken away
    by_class: int | None = None

    def text(self) -> str:
        """Value and interval for a table."""
        if self.interval is None:
            return "not assessed"
        if self.interval.low is None or self.interval.high is None:
            return f"{self.interval.value:.3f}"
        low, high = (f"{end:.3f}".replace("0.", ".", 1) if abs(end) < 1 else f"{end:.3f}"
                     for end in (self.interval.low, self.interval.high))  # fmt: skip
        return f"{self.interval.value:.3f} ({low}-{high})"

    def to_json(self, settings: Evaluation) -> dict[str, Any]:
        """The entry of results.json."""
        found = self.interval
        entry = {
            "name": self.name, "bundle": self.bundle, "labels": settings.labels, "infill": self.infill,
            "eps1": settings.eps1, "eps2": settings.eps2, "steps": str(settings.steps), "range": list(settings.range),
            "value": found.value if found else None, "low": found.low if found else None,
            "high": found.high if found else None, "confidence": settings.confidence, "n": found.n if found else 0,
            "reason": self.reason or (found.note if found else "") or None,
        }  # fmt: skip
        extra = {"against": self.against or None, "class": self.by_class, "protocol": settings.protocol,
                 "renormalised": settings.renormalise or None}  # fmt: skip
        return entry | {name: value for name, value in extra.items() if value is not None}


@dataclass(frozen=True)
class Summary:
    """All metrics of an evaluation, and the rows they come from."""

    metrics: tuple[Metric, ...]
    comparisons: tuple[Metric, ...]
    classes: tuple[Metric, ...]
    reliability: tuple[dict[str, Any], ...]
    flags: tuple[str, ...]
    items: Items
    settings: Evaluation
    runtime: Runtime

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every row of figures; the points of its curve are here, or in the folder of the run if there is one."""
        return list(self.items.table.to_pylist())

    def value(self, name: str, bundle: str, infill: str | None = None) -> float | None:
        """One figure, or None when it was not assessed; the first infill's unless one is named."""
        for metric in self.metrics:
            if (metric.name, metric.bundle) == (name, bundle) and infill in (None, metric.infill):
                return metric.interval.value if metric.interval else None
        return None

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of a table: a source a row (under each infill), a metric a column."""
        listed = [metric for metric in self.metrics if metric.bundle != MODEL]
        names = list(dict.fromkeys(metric.name for metric in listed))
        lines = list(dict.fromkeys((metric.bundle, metric.infill) for metric in listed))
        by = {(metric.bundle, metric.infill, metric.name): metric for metric in self.metrics}
        several = len({infill for _, infill in lines}) > 1
        head = ["maps", *(["infill"] if several else []), *(name.replace("_", " ") for name in names)]
        return head, [
            [source, *([infill] if several else []),
             *(by[source, infill, name].text() if (source, infill, name) in by else "" for name in names)]
            for source, infill in lines
        ]  # fmt: skip

    def __str__(self) -> str:
        head, rows = self.grid()
        # Values on one line, their intervals beneath them.
        halves = [[cell.partition(" (")[::2] for cell in row] for row in rows]
        lines = [head]
        for row in halves:
            lines += [[value for value, _ in row], [f"({rest}" if rest else "" for _, rest in row]]
        widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join(line.rstrip() for line in [*text, *self.flags])

    def _repr_html_(self) -> str:
        head, rows = self.grid()
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
        top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        return f"<table><tr>{top}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def summarise(tables: Sequence[Any], settings: Evaluation, runtime: Runtime) -> Summary:
    """The metrics of each source under each infill, in the order in which the sources come."""
    items = Items(tables)
    groups = {(source, infill): items.of(i, j)
              for j, infill in enumerate(items.infills) for i, source in enumerate(items.sources)}  # fmt: skip
    found = {key: group.metrics() for key, group in groups.items()}
    metrics = [_metric(metric, *key, settings) for key, listed in found.items() for metric in listed]
    assessed = {key: {metric.name: metric for metric in listed if isinstance(metric, Values)}
                for key, listed in found.items()}  # fmt: skip
    flags = _left_out(items, settings) + _doubts(runtime)
    for (source, infill), group in groups.items():
        if source.startswith(CONTROL):  # odd on purpose
            continue
        if infill == items.infills[0]:
            flags += [f"{source}: {flag}" for flag in group.flags()]
        if (group.tie_spread() or 0.0) > SPREAD_THAT_MATTERS:
            flags.append(
                f"{source}: the order in ties moves insertion ({infill}) by {group.tie_spread():.3f} on average"
            )
    return Summary(
        tuple(_accuracy(items, settings) + metrics), tuple(_compared(assessed, settings)),
        tuple(_by_class(items, assessed, settings)), tuple(_reliability(items, assessed)), tuple(flags), items,
        settings, runtime,
    )  # fmt: skip


def _metric(metric: "Values | Gap", source: str, infill: str, settings: Evaluation) -> Metric:
    if isinstance(metric, Gap):
        return Metric(metric.name, source, infill, None, metric.reason)
    return Metric(metric.name, source, infill, _interval(metric.values, metric.images, settings), metric.note)


def _interval(values: Array, images: Array, settings: Evaluation) -> Interval:
    return mean_interval(values, images, confidence=settings.confidence, method=settings.interval, seed=settings.seed)


def _left_out(items: Items, settings: Evaluation) -> list[str]:
    out = len(np.unique(items.image[items.why == NO_LABEL]))
    said = f"{out} of {len(items.images)} images have no label in '{settings.labels}' and are left out"
    return [said] if out else []


def _doubts(runtime: Runtime) -> list[str]:
    if runtime.note:
        return [runtime.note]
    if not runtime.matters:
        return []
    changes = f"insertion {runtime.insertion:.2g}, alpha {runtime.alpha:.2g}, beta {runtime.beta:.2g}"
    return [f"the runtime is off from strict float32 on the CPU by more than it may be: {changes} on average"]


def _accuracy(items: Items, settings: Evaluation) -> list[Metric]:
    """Share of the images whose given label is the predicted one, where every image has both."""
    truth, chief = items.truth(), np.full(len(items.images), np.nan)
    chief[items.image[items.predicted]] = items.label[items.predicted]
    known = np.isfinite(truth) & np.isfinite(chief)
    if not known.all():
        return []
    hits = int((truth == chief).sum())
    return [Metric("accuracy", MODEL, "", share_interval(hits, len(truth), settings.confidence))]


Assessed = dict[tuple[str, str], dict[str, Values]]


def _compared(assessed: Assessed, settings: Evaluation) -> Iterator[Metric]:
    """Paired differences of every bundle to the bundles after it and to every control, on what both have."""
    for first, second in combinations(assessed, 2):
        if first[1] != second[1] or (first[0].startswith(CONTROL) and second[0].startswith(CONTROL)):
            continue
        if first[0].startswith(CONTROL):
            first, second = second, first  # noqa: PLW2901
        for name in COMPARED:
            if name in assessed[first] and name in assessed[second]:
                found = paired(assessed[first][name], assessed[second][name], lambda a, b, images: paired_difference(
                    a, b, images, confidence=settings.confidence, method=settings.interval, seed=settings.seed
                ))  # fmt: skip
                if found is not None:
                    yield Metric(name, first[0], first[1], found, against=second[0])


def _by_class(items: Items, assessed: Assessed, settings: Evaluation) -> Iterator[Metric]:
    """Figures of each bundle on the images of each given class; of each predicted one where none is given."""
    classes = items.truth()
    if np.isnan(classes).all():
        classes[items.image[items.predicted]] = items.label[items.predicted]
    for (source, infill), metrics in assessed.items():
        for metric in (metrics[name] for name in BY_CLASS if name in metrics and not source.startswith(CONTROL)):
            own = classes[metric.images]
            for group in np.unique(own[np.isfinite(own)]):
                mine = own == group
                found = _interval(metric.values[mine], metric.images[mine], settings)
                yield Metric(metric.name, source, infill, found, by_class=int(group))


def _reliability(items: Items, assessed: Assessed) -> Iterator[dict[str, Any]]:
    """With three bundles or more: whether images rank them alike, and whether metrics agree (Tomsett et al.)."""
    for infill in items.infills:
        bundles = [source for source in items.sources if not source.startswith(CONTROL)]
        mine = [assessed[source, infill] for source in bundles if (source, infill) in assessed]
        names = [name for name in mine[0] if all(name in other for other in mine)] if mine else []
        if len(mine) < LEAST_METHODS:
            continue
        tables = {name: np.stack([image_means(metrics[name], len(items.images)) for metrics in mine], axis=1)
                  for name in names}  # fmt: skip
        for name, table in tables.items():
            whole = table[np.isfinite(table).all(axis=1)]
            if len(whole) > 1:
                yield {"infill": infill, "name": name, "n": len(whole), "krippendorff_alpha": inter_rater(whole),
                       "inter_method": mean_off_diagonal(inter_method(whole))}  # fmt: skip
        for first, second in combinations(names, 2):
            yield {"infill": infill, "name": first, "against": second,
                   "spearman": _agreement(tables[first], tables[second], first, second)}  # fmt: skip


def _agreement(first: Array, second: Array, *names: str) -> float:
    """Spearman between two metrics over images, the mean over the bundles; higher is better in both."""
    better = np.array([name not in LOWER_IS_BETTER for name in names])
    found = []
    for mine, other in zip(first.T, second.T, strict=True):
        both = np.stack([mine, other], axis=1)
        both = both[np.isfinite(both).all(axis=1)]
        found.append(internal_consistency(both, better)[0, 1] if len(both) > 1 else np.nan)
    known = [value for value in found if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
