"""auditkit: audits image classifiers through their ONNX files."""

from auditkit import telemetry as _telemetry

_telemetry.switch_off()  # before anything can import onnxruntime

TYPE_CHECKING = False  # as typing has it, whose import takes longer than all else here
if TYPE_CHECKING:
    from auditkit.api import audit, evaluate, examine, explain
    from auditkit.data.bundles import Bundle, open_bundle
    from auditkit.errors import AuditError, BadInput
    from auditkit.model.classifier import CallableClassifier, OnnxClassifier, load
    from auditkit.model.read import Limits
    from auditkit.model.session import Settings
    from auditkit.model.signature import Overrides

__version__ = "0.1.0"
__all__ = [
    "AuditError", "BadInput", "Bundle", "CallableClassifier", "Limits", "OnnxClassifier", "Overrides", "Settings",
    "__version__", "audit", "evaluate", "examine", "explain", "load", "open_bundle",
]  # fmt: skip

# The module of each public name, imported when the name is used: importing auditkit imports nothing heavy.
_MODULES = {
    "auditkit.api": ("audit", "evaluate", "examine", "explain"),
    "auditkit.data.bundles": ("Bundle", "open_bundle"),
    "auditkit.errors": ("AuditError", "BadInput"),
    "auditkit.model.classifier": ("CallableClassifier", "OnnxClassifier", "load"),
    "auditkit.model.read": ("Limits",),
    "auditkit.model.session": ("Settings",),
    "auditkit.model.signature": ("Overrides",),
}


def __getattr__(name: str) -> object:
    from importlib import import_module  # noqa: PLC0415 - before this, an interrupt would end in a traceback

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'auditkit' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
