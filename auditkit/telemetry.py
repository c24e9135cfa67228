"""The telemetry of libraries, switched off before any of them is imported: importing auditkit does it first."""

import os
import sys

_ONNXRUNTIME = "ORT_DISABLE_TELEMETRY"
_TRUE = {"1", "true", "yes", "on"}  # what onnxruntime takes as true
# Environment variables that switch telemetry off. Child processes need them too.
SWITCHES = {
    _ONNXRUNTIME: "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
OFF = "off: onnxruntime and Ray collect and send nothing"
_TOO_LATE = (
    "onnxruntime was imported before auditkit, with its telemetry on. "
    "It is off now as far as that is possible, but it may have stored a device identifier "
    "and may still send its first events. "
    "Import auditkit before onnxruntime, or set "
    f"{_ONNXRUNTIME}=1 in the environment."
)
_was_late = False


def switch_off() -> None:
    """Switch telemetry off in this process and its children; warn if onnxruntime has been imported with it."""
    global _was_late  # noqa: PLW0603 - like the runtime, it stays as it is while the process lives
    runtime = sys.modules.get("onnxruntime")
    is_off = os.environ.get(_ONNXRUNTIME, "").strip().lower() in _TRUE
    os.environ.update(SWITCHES)
    if runtime is None or is_off:
        return

    import warnings  # noqa: PLC0415 - hardly ever needed, and importing auditkit is to take no time

    _was_late = True
    disable = getattr(runtime, "disable_telemetry_events", None)
    if disable is not None:  # else a half imported module, or one in its place
        disable()
    warnings.warn(_TOO_LATE, stacklevel=3)  # at the line that imports auditkit


def problem() -> str | None:
    """Why telemetry may be on, or was, in this process or its children; None if it is off."""
    if _was_late:
        return _TOO_LATE
    for name, value in SWITCHES.items():
        if os.environ.get(name) != value:
            return f"may be on: the environment variable {name} is no longer {value}, to which auditkit has set it."
    return None
