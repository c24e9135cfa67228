"""Results of evaluations that were made up, complete to the last key, for a policy to judge."""

from pathlib import Path
from typing import Any

from auditkit.metrics.table import METRICS
from auditkit.records import to_json
from auditkit.runs.evaluation.settings import resolved
from auditkit.runs.folder.figures import FlagKind
from auditkit.runs.folder.results import Results
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
        "points": [{"name": "soundness", "bundle": source, "infill": infill, "error": 0.02,
                    "errors": dict.fromkeys(VALUES, 0.001) | {"soundness": 0.02}, "n": n} for infill in infills
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
             "absolute": 0.1, "constant": 0} for stage in range(1, 6)]},
    }  # fmt: skip


def parsed(plain: Plain) -> Results:
    """The results as a command reads them."""
    return Results.parse(plain, Path("results.json"))


def flag(kind: FlagKind, count: int, total: int = 1000, bundle: str = "maps") -> Plain:
    """An entry of the flags."""
    return {"kind": kind, "bundle": bundle, "count": count, "total": total}
