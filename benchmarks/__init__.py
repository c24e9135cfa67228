"""Measurements of auditkit, which is imported before any of them imports onnxruntime: see auditkit.telemetry."""

import auditkit  # noqa: F401
