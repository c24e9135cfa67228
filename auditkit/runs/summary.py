"""Rows of figures become metrics with intervals."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.metrics.faithfulness import best_effort, worst_per_image
from auditkit.metrics.statistics import Interval, mean_interval
from auditkit.runs.plan import NO_LABEL, NO_MAP, Evaluation

Array = np.ndarray[Any, Any]
Row = dict[str, Any]
CONTROL = "control:"


@dataclass(frozen=True)
class Metric:
    """One figure of one source."""

    name: str
    bundle: str
    interval: Interval | None  # None: not assessed
    reason: str = ""

    def text(self) -> str:
        """Value and interval for a table."""
        if self.interval is None:
            return "not assessed"
        if self.interval.low is None or self.interval.high is None:
            return f"{self.interval.value:.3f}"
        return f"{self.interval.value:.3f} ({self.interval.low:.3f}-{self.interval.high:.3f})"

    def to_json(self, settings: Evaluation) -> dict[str, Any]:
        """The entry of results.json."""
        found = self.interval
        return {
            "name": self.name, "bundle": self.bundle, "labels": settings.labels, "infill": settings.infill,
            "eps1": settings.eps1, "eps2": settings.eps2, "steps": str(settings.steps), "range": [0.0, 1.0],
            "value": found.value if found else None, "low": found.low if found else None,
            "high": found.high if found else None, "confidence": settings.confidence, "n": found.n if found else 0,
            "reason": self.reason or None,
        }  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """All metrics of an evaluation, and the rows they come from."""

    metrics: tuple[Metric, ...]
    flags: tuple[str, ...]
    rows: tuple[Row, ...]
    settings: Evaluation

    def value(self, name: str, bundle: str) -> float | None:
        """One figure, or None when it was not assessed."""
        for metric in self.metrics:
            if (metric.name, metric.bundle) == (name, bundle):
                return metric.interval.value if metric.interval else None
        return None

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of a table: a source a row, a metric a column."""
        names = list(dict.fromkeys(metric.name for metric in self.metrics))
        sources = list(dict.fromkeys(metric.bundle for metric in self.metrics))
        by = {(metric.bundle, metric.name): metric for metric in self.metrics}
        head = ["maps", *(name.replace("_", " ") for name in names)]
        return head, [[source, *(by[source, name].text() for name in names)] for source in sources]

    def __str__(self) -> str:
        head, rows = self.grid()
        widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
        return "\n".join(line.rstrip() for line in [*lines, *self.flags])

    def _repr_html_(self) -> str:
        head, rows = self.grid()
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
        top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        return f"<table><tr>{top}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def summarise(rows: Sequence[Row], settings: Evaluation) -> Summary:
    """The metrics of each source, in the order in which the sources come."""
    sources = list(dict.fromkeys(row["bundle"] for row in rows))
    metrics: list[Metric] = []
    flags: list[str] = []
    if left_out := {row["image"] for row in rows if row.get("error") == NO_LABEL}:
        images = len({row["image"] for row in rows})
        flags.append(f"{len(left_out)} of {images} images have no label in '{settings.labels}' and are left out")
    for source in sources:
        mine = [row for row in rows if row["bundle"] == source]
        metrics += _metrics(source, mine, settings)
        flags += _flags(source, mine)
    return Summary(tuple(metrics), tuple(flags), tuple(rows), settings)


def _column(rows: Sequence[Row], name: str) -> Array:
    return np.array([row[name] for row in rows])


def _interval(values: Array, images: Array, settings: Evaluation) -> Interval:
    return mean_interval(values, images, confidence=settings.confidence, seed=settings.seed)


def _metrics(source: str, rows: Sequence[Row], settings: Evaluation) -> list[Metric]:
    rows = [row for row in rows if row.get("error") != NO_LABEL]
    good = [row for row in rows if not row.get("error")]
    chief = [row for row in good if row["predicted"]]
    found = [_mean("insertion", source, chief, settings), _mean("deletion", source, chief, settings)]
    complete = len(good) == len(rows) and any(not row["predicted"] for row in good)
    if not complete:
        lacking = "are missing" if len(good) < len(rows) else "are not in the label set"
        why = f"maps for other labels than the predicted one {lacking}"
        names = ("completeness", "soundness", "worst_completeness", "worst_soundness", "best_effort")
        return [*found, *(Metric(name, source, None, why) for name in names)]
    index = np.unique(_column(good, "image"), return_inverse=True)[1]
    for name, column in (("completeness", "alpha"), ("soundness", "beta")):
        values = _column(good, column)
        found.append(Metric(name, source, _interval(values, index, settings)))
        worst = worst_per_image(values, index)
        found.append(Metric(f"worst_{name}", source, _interval(worst.values, worst.images, settings)))
    return [*found, _best_effort(source, good, index, settings)]


def _best_effort(source: str, rows: Sequence[Row], index: Array, settings: Evaluation) -> Metric:
    labels = _column(rows, "label")
    chief = {
        int(i): int(label)
        for i, label, is_chief in zip(index, labels, _column(rows, "predicted"), strict=True)
        if is_chief
    }
    predicted = np.array([chief.get(int(i), -1) for i in index])
    effort = best_effort(_column(rows, "alpha"), _column(rows, "prob"), labels, predicted, index)
    if not effort.counted.any():
        return Metric("best_effort", source, None, "no image has a second label with probability 0.01 or more")
    return Metric(
        "best_effort", source, _interval(effort.values[effort.counted], effort.images[effort.counted], settings)
    )


def _mean(name: str, source: str, rows: Sequence[Row], settings: Evaluation) -> Metric:
    have = [row for row in rows if row.get(name) is not None]
    if not have:
        return Metric(name, source, None, "no map for the predicted label" if name == "insertion" else "not measured")
    images = np.unique(_column(have, "image"), return_inverse=True)[1]
    return Metric(name, source, _interval(_column(have, name), images, settings))


def _flags(source: str, rows: Sequence[Row]) -> list[str]:
    """What is odd about a source's maps, counted; controls are odd on purpose."""
    if source.startswith(CONTROL):
        return []
    counts: dict[str, int] = {}
    for row in rows:
        for flag in row["flags"]:
            counts[flag] = counts.get(flag, 0) + 1
    found = [f"{source}: {flag} ({count} of {len(rows)} maps)" for flag, count in counts.items()]
    images = {row["image"] for row in rows}
    by_label: dict[int, set[str]] = {}
    for row in rows:
        by_label.setdefault(row["label"], set()).add(row.get("map_digest") or row["image"])
    repeated = len(rows) > len(by_label) and all(len(digests) == 1 for digests in by_label.values())
    if len(images) > 1 and repeated:
        found.append(f"{source}: position-only (the same map for all {len(images)} images)")
    missing = sum(row.get("error") == NO_MAP for row in rows)
    return found + ([f"{source}: {missing} maps are missing"] if missing else [])
