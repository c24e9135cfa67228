"""Results of evaluations that were made up, complete to the last key, for a policy to judge."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.metrics.betting import DECISIVE, Sample
from auditkit.metrics.statistics import Bounds
from auditkit.metrics.table import METRICS
from auditkit.records import to_json
from auditkit.runs.evaluation.settings import resolved
from auditkit.runs.folder.figures import FlagKind, MetricResult
from auditkit.runs.folder.results import Results
from auditkit.verdict.decision import judge
from auditkit.verdict.policy import CONTROLS, Policy
from tests.support import synthetic_runs

Plain = dict[str, Any]
MODEL = "ab" * 32
VALUES = {"insertion": 0.9, "deletion": 0.2, "completeness": 0.95, "soundness": 0.8, "worst_completeness": 0.8,
          "worst_soundness": 0.5, "best_effort": 0.6, "pointing_game": 0.7, "iou": 0.5}  # fmt: skip
COMPARED = [name for name, metric in METRICS.items() if metric.compared == "always"]
MISSING: Plain = {"value": None, "low": None, "high": None, "n": 0}


def entry(name: str, bundle: str | None, value: float | None, n: int = 1000, **more: Any) -> Plain:
    """A figure of results.json, in the middle of its interval."""
    ends = {"low": None, "high": None} if value is None else {"low": value - 0.01, "high": value + 0.01}
    base = {"name": name, "bundle": bundle, "infill": "gray", "value": value, "confidence": 0.95, "labels": "all",
            "eps1": 0.01, "eps2": 0.001, "steps": "auto", "range": [0.0, 1.0]}  # fmt: skip
    return base | ends | {"n": 0 if value is None else n, "not_assessed": None, "note": None} | more


def not_assessed(cause: str, metric: str = "best_effort", **more: Any) -> Plain:
    """What an entry without a figure says of it."""
    return MISSING | {"not_assessed": {"metric": metric, "cause": cause} | more}


def results(policy: Policy, bundles: tuple[str, ...] = ("maps",), n: int = 1000) -> Plain:
    """What an evaluation by the policy could have found: all that it asks, with room to spare."""
    controls = [*(name for name in CONTROLS if name != "one-map"), *(f"one-map:{bundle}" for bundle in bundles)]
    infills = policy.evaluation.infills
    listed: list[Plain] = [entry("accuracy", None, 0.9, n, infill="")]
    listed += [entry(name, bundle, value, n, infill=infill)
               for infill in infills for bundle in bundles for name, value in VALUES.items()]  # fmt: skip
    base = synthetic_runs.results([])
    return base | {
        "points": [{"name": "soundness", "bundle": source, "infill": infill, "error": 0.0,
                    "errors": dict.fromkeys(VALUES, 0.0), "n": n} for infill in infills
                   for source in (*bundles, *(f"control:{control}" for control in controls))],
        "subject": base["subject"] | {
            "model": {"path": "model.onnx", "sha256": MODEL, "identity": MODEL}, "classes": 10,
            "images": {"source": "images", "count": n, "digest": MODEL}},
        "run": base["run"] | {"bundles": dict.fromkeys(bundles, "cd"), "bundle_models": dict.fromkeys(bundles, MODEL)},
        "settings": to_json(resolved(policy.evaluation, 10).to_record()), "metrics": listed,
        "controls": [entry(name, f"control:{control}", value - 0.2, n, infill=infill)
                     for infill in infills for control in controls for name, value in VALUES.items()],
        "comparisons": [entry(name, bundle, 0.2, n, infill=infill, against=f"control:{control}")
                        for infill in infills for bundle in bundles for control in controls for name in COMPARED],
        "runtime": {"reference": "the CPU", "rows": 18, "repeated": 0.0, "largest": 1e-3, "mean": 1e-4,
                    "insertion": 1e-8, "alpha": 2e-4, "beta": 0.0, "note": None},
        "randomisation": {"layers": 20, "series": [
            {"stage": stage, "layers": ["fc"], "share": stage / 5, "spearman": 0.1, "low": 0.0, "high": 0.2, "n": 100,
             "absolute": 0.1, "constant": 0, "correlations": [0.1] * 100} for stage in range(1, 6)]},
    }  # fmt: skip


def parsed(plain: Plain) -> Results:
    """The results as a command reads them."""
    return Results.parse(plain, Path("results.json"))


@dataclass(frozen=True)
class KnownInterval(Sample):
    """Values of which only the interval of the tests is known; beyond its ends, e-values grow steeply."""

    low: float = 0.0
    high: float = 0.0

    @cached_property
    def interval(self) -> Bounds:
        return self.low, self.high

    def e_above(self, limit: float) -> float:
        return DECISIVE * _steep(self.low - limit)

    def e_below(self, limit: float) -> float:
        return DECISIVE * _steep(limit - self.high)


def _steep(distance: float) -> float:
    return math.exp(min(max(1e4 * distance, -500.0), 500.0))


@dataclass(frozen=True)
class KnownIntervals:
    """Samples of made-up results, whose intervals are taken for those of the tests."""

    results: Results

    def of_metric(self, name: str, bundle: str, infill: str) -> Sample | None:
        return _known((*self.results.metrics, *self.results.controls), name, bundle, infill)

    def of_margin(self, name: str, bundle: str, infill: str, control: str) -> Sample | None:
        return _known(self.results.comparisons, name, bundle, infill, control)

    def same_curves(self, bundle: str, infill: str, control: str) -> bool:
        return any(_is(entry, entry.name, bundle, infill, control) and entry.value == 0 and entry.note is not None
                   and entry.note.kind == "no-spread" for entry in self.results.comparisons)  # fmt: skip


def _known(
    entries: Iterable[MetricResult], name: str, bundle: str, infill: str, against: str | None = None
) -> Sample | None:
    for entry in entries:
        if _is(entry, name, bundle, infill, against) and entry.low is not None and entry.high is not None:
            return KnownInterval(np.zeros(1), (-1.0, 1.0), entry.low, entry.high)
    return None


def _is(entry: MetricResult, name: str, bundle: str, infill: str, against: str | None) -> bool:
    return (entry.name, entry.bundle or "", entry.infill, entry.against) == (name, bundle, infill, against)


def judged_by_intervals(policy: Policy, results: Results, today: date, fail_on: str | None = None) -> Results:
    """The judged results, where the intervals of the figures are those of the tests."""
    return judge(policy, results, KnownIntervals(results), today, fail_on)  # type: ignore[arg-type]


def flag(kind: FlagKind, count: int, total: int = 1000, bundle: str = "maps") -> Plain:
    """An entry of the flags."""
    return {"kind": kind, "bundle": bundle, "count": count, "total": total}
