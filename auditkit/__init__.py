"""auditkit: audits image classifiers through their ONNX files."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from auditkit.api import audit as audit
    from auditkit.api import evaluate as evaluate
    from auditkit.api import explain as explain
    from auditkit.data.bundles import Bundle as Bundle
    from auditkit.data.bundles import open_bundle as open_bundle
    from auditkit.errors import AuditError as AuditError
    from auditkit.errors import BadInput as BadInput
    from auditkit.model.classifier import CallableClassifier as CallableClassifier
    from auditkit.model.classifier import OnnxClassifier as OnnxClassifier
    from auditkit.model.classifier import load as load
    from auditkit.model.read import Limits as Limits
    from auditkit.model.session import Settings as Settings
    from auditkit.model.signature import Overrides as Overrides

# Where each public name lives; importing auditkit alone imports nothing heavy.
_HOMES = {
    "AuditError": "auditkit.errors", "BadInput": "auditkit.errors",
    "audit": "auditkit.api", "Bundle": "auditkit.data.bundles", "open_bundle": "auditkit.data.bundles",
    "CallableClassifier": "auditkit.model.classifier", "OnnxClassifier": "auditkit.model.classifier",
    "evaluate": "auditkit.api", "explain": "auditkit.api",
    "load": "auditkit.model.classifier", "Limits": "auditkit.model.read", "Overrides": "auditkit.model.signature",
    "Settings": "auditkit.model.session",
}  # fmt: skip
__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 - the names are strings, made from the table above


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'auditkit' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
