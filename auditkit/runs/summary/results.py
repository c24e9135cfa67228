"""What a run says about itself: what it was about, the figures and their limits."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from auditkit import __version__
from auditkit.runs.evaluation.settings import CONTROL, Evaluation
from auditkit.runs.summary.summarise import Summary

LIMITATIONS = (
    "Worst-case figures are means of minima over images, not adversarial bounds.",
    "Figures hold for these images, settings and infill; figures under other settings do not compare.",
    "Insertion, deletion and the saliency metric are about the predicted label, or about each of the labels that were "
    "listed; lower is better in the last two.",
    "A faithful map of a cheating model can be complete and sound: where the evidence lies is another question.",
)
FIGURES = ("metrics", "controls", "comparisons", "classes", "reliability", "points", "flags", "failed_images", "checks")


def without_figures(subject: Mapping[str, Any], settings: Evaluation, environment: Mapping[str, Any]) -> dict[str, Any]:
    """The object of results.json for a run whose maps could not be used."""
    return {
        "tool": {"name": "auditkit", "version": __version__},
        "run": {"rows": 0, "bundles": {}, "bundle_paths": {}, "pool": None, "infill_images": {}, "copies": 0},
        "subject": subject, "settings": settings.to_json(), "environment": environment, "runtime": None,
        "classes_are": "predicted", **{name: [] for name in FIGURES}, "verdict": None,
        "limitations": list(LIMITATIONS),
    }  # fmt: skip


def results(summary: Summary) -> dict[str, Any]:
    """The object of results.json."""
    about = summary.about
    entries = [(metric, metric.to_json(summary.settings)) for metric in summary.metrics]
    return {
        "tool": {"name": "auditkit", "version": __version__},
        "run": {
            "rows": len(summary.items),
            "bundles": about["bundles"],
            "bundle_paths": about["bundle_paths"],
            "pool": about["pool"],
            "infill_images": about["infill_images"],
            "copies": summary.items.copies,
        },
        "subject": about["subject"],
        "settings": about["settings"],
        "environment": about["environment"],
        "runtime": summary.runtime.to_json(),
        "metrics": [entry for metric, entry in entries if not metric.bundle.startswith(CONTROL)],
        "controls": [entry for metric, entry in entries if metric.bundle.startswith(CONTROL)],
        "comparisons": [metric.to_json(summary.settings) for metric in summary.comparisons],
        "classes_are": "predicted" if np.isnan(summary.items.truth).all() else "given",
        "classes": [metric.to_json(summary.settings) for metric in summary.classes],
        "reliability": list(summary.reliability),
        "points": list(summary.points),
        "flags": list(summary.flags),
        "failed_images": about["failed_images"],
        "checks": [],
        "verdict": None,
        "limitations": list(LIMITATIONS),
    }
