"""What a run says about itself: the subject, the machine, the settings, the figures and their limits."""

import platform
from collections.abc import Mapping
from typing import Any

from auditkit import __version__
from auditkit.data.images import ImageSet
from auditkit.model.classifier import CallableClassifier, OnnxClassifier
from auditkit.model.session import runtime_version
from auditkit.runs.summary import CONTROL, Summary

LIMITATIONS = (
    "Worst-case figures are means of minima over images, not adversarial bounds.",
    "Figures hold for these images, settings and infill; figures under other settings do not compare.",
    "A faithful map of a cheating model can be complete and sound: where the evidence lies is another question.",
)


def subject(model: "OnnxClassifier | CallableClassifier", images: ImageSet) -> dict[str, Any]:
    """Which model, prepared how, on which images."""
    signature = model.signature
    file = model.file if isinstance(model, OnnxClassifier) else None
    return {
        "model": {"path": str(file.path), "sha256": file.sha256, "identity": file.identity} if file else "callable",
        "input": signature.input, "output": signature.output, "kind": signature.kind, "classes": signature.classes,
        "card": {key: value for key, value in model.card.to_json().items() if key != "source"},
        "images": {"source": str(images.source), "count": len(images), "digest": images.digest()},
    }  # fmt: skip


def environment(model: "OnnxClassifier | CallableClassifier") -> dict[str, Any]:
    """What computed it; all of this can change a last digit."""
    base = {"auditkit": __version__, "onnxruntime": runtime_version(), "system": platform.machine()}
    if isinstance(model, OnnxClassifier):
        base |= {"device": model.settings.device, "precision": model.settings.precision}
    return base


def results(about: Mapping[str, Any], summary: Summary) -> dict[str, Any]:
    """The object of results.json; `about` is what the run was opened with."""
    entries = [(metric, metric.to_json(summary.settings)) for metric in summary.metrics]
    return {
        "tool": {"name": "auditkit", "version": __version__},
        "run": {"rows": len(summary.rows), "bundles": about["bundles"], "pool": about["pool"]},
        "subject": about["subject"],
        "settings": about["settings"],
        "environment": about["environment"],
        "metrics": [entry for metric, entry in entries if not metric.bundle.startswith(CONTROL)],
        "controls": [entry for metric, entry in entries if metric.bundle.startswith(CONTROL)],
        "flags": list(summary.flags),
        "checks": [],
        "verdict": None,
        "limitations": list(LIMITATIONS),
    }
