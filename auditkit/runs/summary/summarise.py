"""Rows of figures become metrics with intervals, compared, cut by class, and asked how far they can be relied on."""

import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import FailedImage, left_out
from auditkit.metrics.protocols import preset
from auditkit.metrics.reliability import (
    LEAST_METHODS,
    inter_method,
    inter_rater,
    internal_consistency,
    mean_off_diagonal,
)
from auditkit.metrics.statistics import Interval, mean_interval, paired_difference, share_interval
from auditkit.runs.evaluation.runtime_check import Runtime
from auditkit.runs.evaluation.settings import CONTROL, NO_LABEL, Evaluation
from auditkit.runs.summary.per_image import Gap, Group, Values, image_means, on_images, paired
from auditkit.runs.summary.row_table import Items
from auditkit.runs.summary.sampling_error import by_points, remarks

MODEL = ""  # the bundle of figures that are about no map
COMPARED = (
    "insertion", "deletion", "saliency_metric", "completeness", "soundness", "worst_completeness", "worst_soundness",
    "best_effort", "pointing_game", "iou",
)  # fmt: skip
OWN_MAPS = ("completeness", "worst_completeness")  # where no second label counts, one map for all has the same
SHARE, DIFFERENCE = (0.0, 1.0), (-1.0, 1.0)  # between which figures lie, but saliency metrics, and their differences
BY_CLASS = ("insertion", "worst_completeness", "worst_soundness")
FEWEST_OF_A_CLASS = 5  # images; of fewer, an interval would end at the worst and the best of them
LOWER_IS_BETTER = (
    "deletion", "tie_spread", "saliency_metric", "saliency_metric_tuned", "degenerate_boxes", "degenerate_boxes_tuned",
)  # fmt: skip
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
        return f"{self.interval.value:.3f} ({low}{' to ' if self.interval.low < 0 else '-'}{high})"

    def to_json(self, settings: Evaluation) -> dict[str, Any]:
        """The entry of results.json."""
        found, infill = self.interval, self.infill
        if settings.protocol is not None and self.name == "deletion":  # RISE's has another than its insertion
            infill = preset(settings.protocol).deletion.infill
        entry = {
            "name": self.name, "bundle": self.bundle or None, "labels": settings.labels, "infill": infill,
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
    points: tuple[dict[str, Any], ...]  # how far figures may be off by the number of points
    flags: tuple[str, ...]
    items: Items
    settings: Evaluation
    runtime: Runtime
    tables: Callable[[], Iterable[Any]]  # the rows, from memory or from the folder of the run
    about: Mapping[str, Any]  # what the evaluation was of; in memory, just the images that cannot be used

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every row of figures with the points of its curve."""
        return [row for table in self.tables() for row in table.to_pylist()]

    def value(self, name: str, bundle: str = MODEL, infill: str | None = None) -> float | None:
        """One figure, or None when it was not assessed; the first infill's unless one is named.

        Those that are about no map, such as `accuracy`, have no bundle.
        """
        for metric in self.metrics:
            if (metric.name, metric.bundle) == (name, bundle) and infill in (None, metric.infill):
                return metric.interval.value if metric.interval else None
        return None

    def measured(self) -> str:
        """What was measured how: the part of every figure's name that a table has no room for."""
        said = self.settings
        parts = [
            f"protocol {said.protocol}" if said.protocol else "",
            f"labels {said.labels}{' renormalised' if said.renormalise else ''}", f"infill {', '.join(said.infills)}",
            f"steps {said.steps}", "range {:g} to {:g}".format(*said.range) if tuple(said.range) != (0, 1) else "",
            "" if said.eps1 is None else f"eps {said.eps1:g} and {said.eps2:g}", f"ties {said.ties}",
            f"{len(self.items.images)} images", f"{said.confidence:.0%} intervals",
        ]  # fmt: skip
        return "; ".join(filter(None, parts))

    def remarks(self) -> list[tuple[str, str]]:
        """Why figures of the bundles are not assessed, and what others rest on."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for metric in self.metrics:
            if metric.reason and not metric.bundle.startswith(CONTROL):
                kind = "not assessed" if metric.interval is None else "note"
                found.setdefault((kind, metric.bundle, metric.reason), []).append(metric.name.replace("_", " "))
        return [(kind, f"{bundle}, {', '.join(dict.fromkeys(names))}: {reason}")
                for (kind, bundle, reason), names in found.items()]  # fmt: skip

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
        return "\n".join(line.rstrip() for line in [*text, *self._below()])

    def __repr__(self) -> str:  # what a Python prompt shows
        return str(self)

    def _below(self) -> list[str]:
        points = remarks(self.points, self.settings)
        return [self.measured(), *(f"{kind}: {said}" for kind, said in self.remarks()), *points, *self.flags]

    def _repr_html_(self) -> str:
        head, rows = self.grid()
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
        top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        table = f"<table><tr>{top}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in self._below())


def summarise(
    tables: Callable[[], Iterable[Any]], settings: Evaluation, runtime: Runtime, about: Mapping[str, Any]
) -> Summary:
    """The metrics of each source under each infill, in the order in which the sources come."""
    items = Items(tables(), named=settings.targets_listed_labels)
    groups = {(source, infill): Group(items, np.flatnonzero((items.source == i) & (items.infill == j)))
              for j, infill in enumerate(items.infills) for i, source in enumerate(items.sources)}  # fmt: skip
    found = {key: group.metrics() for key, group in groups.items()}
    metrics = [_metric(metric, *key, settings) for key, listed in found.items() for metric in listed]
    assessed = {key: {metric.name: metric for metric in listed if isinstance(metric, Values)}
                for key, listed in found.items()}  # fmt: skip
    unusable = [FailedImage(**one) for one in about["failed_images"]]
    copies = [f"{items.copies} of {len(items.images)} images are copies of others"] if items.copies else []
    flags = copies + left_out(unusable, len(items.images)) + _without_label(items, settings) + _doubts(runtime)
    for (source, infill), group in groups.items():
        if source.startswith(CONTROL):  # odd on purpose
            continue
        if infill == items.infills[0]:
            flags += [f"{source}: {flag}" for flag in group.flags()]
        spread = assessed[source, infill].get("tie_spread")
        if spread is not None and (moved := spread.values.mean()) > SPREAD_THAT_MATTERS:
            flags.append(f"{source}: the order in ties moves insertion ({infill}) by {moved:.3f} on average")
    return Summary(
        tuple(_accuracy(items, settings) + metrics), tuple(_compared(assessed, groups, settings)),
        tuple(_by_class(items, assessed, settings)), tuple(_reliability(items, assessed)),
        tuple(by_points(groups, found, items, settings)), tuple(flags), items, settings, runtime, tables, about,
    )  # fmt: skip


def _metric(metric: "Values | Gap", source: str, infill: str, settings: Evaluation) -> Metric:
    if isinstance(metric, Gap):
        return Metric(metric.name, source, infill, None, metric.reason)
    found = _interval(metric.name, metric.values, metric.images, settings)
    return Metric(metric.name, source, infill, found, metric.note)


def _interval(name: str, values: Array, images: Array, settings: Evaluation) -> Interval:
    bounds = None if name.startswith("saliency") else SHARE
    return mean_interval(values, images, confidence=settings.confidence, method=settings.interval, seed=settings.seed,
                         bounds=bounds)  # fmt: skip


def _without_label(items: Items, settings: Evaluation) -> list[str]:
    out = len(np.unique(items.image[items.failed(NO_LABEL)]))
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
    """Share of the images whose given label is the predicted one, where labels are given."""
    known = np.isfinite(items.truth)
    if not known.any():
        return []
    hits = int((items.truth == items.prediction)[known].sum())
    return [Metric("accuracy", MODEL, "", share_interval(hits, int(known.sum()), settings.confidence))]


Assessed = dict[tuple[str, str], dict[str, Values]]


def _compared(assessed: Assessed, groups: Mapping[tuple[str, str], Group], settings: Evaluation) -> Iterator[Metric]:
    """Paired differences of every bundle to the bundles after it and to every control, on what both have."""
    for first, second in combinations(assessed, 2):
        if first[1] != second[1] or (first[0].startswith(CONTROL) and second[0].startswith(CONTROL)):
            continue
        if first[0].startswith(CONTROL):
            first, second = second, first  # noqa: PLW2901
        for name in COMPARED:
            if name in assessed[first] and name in assessed[second]:
                both = assessed[first][name], assessed[second][name]
                yield from _difference(*both, first, second[0], groups[first], settings)


def _difference(
    mine: Values, theirs: Values, of: tuple[str, str], against: str, group: Group, settings: Evaluation
) -> Iterator[Metric]:
    """A paired difference, over the bundle's own map of one label on the images where another label counts."""
    own = against == f"{CONTROL}one-map:{of[0]}"
    if own and mine.name in OWN_MAPS and settings.eps1 is not None:
        mine = on_images(mine, group.unsure(settings.eps1))
        if not len(mine.keys):
            why = f"no image has a second label with probability above {settings.eps1:g}, so one map does for all"
            yield Metric(mine.name, *of, None, why, against)
    same = own and mine.name in ("insertion", "deletion") and not settings.targets_listed_labels  # the very same map
    bounds = None if same or mine.name == "saliency_metric" else DIFFERENCE
    found = paired(mine, theirs, lambda a, b, images: paired_difference(
        a, b, images, confidence=settings.confidence, method=settings.interval, seed=settings.seed, bounds=bounds
    ))  # fmt: skip
    if found is not None:
        yield Metric(mine.name, *of, found, against=against)


def _by_class(items: Items, assessed: Assessed, settings: Evaluation) -> Iterator[Metric]:
    """Figures of each bundle on the images of each given class; of each predicted one where none is given."""
    classes = items.prediction if np.isnan(items.truth).all() else items.truth
    for (source, infill), metrics in assessed.items():
        for metric in (metrics[name] for name in BY_CLASS if name in metrics and not source.startswith(CONTROL)):
            own = classes[metric.images]
            for group in np.unique(own[np.isfinite(own)]):
                mine = own == group
                found = _interval(metric.name, metric.values[mine], metric.images[mine], settings)
                if found.n < FEWEST_OF_A_CLASS:
                    found = replace(found, low=None, high=None, note="too few images for an interval")
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
