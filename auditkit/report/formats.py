"""The forms that a run can be shown in."""

from importlib import import_module

from auditkit.errors import BadInput, unknown
from auditkit.report.load_run import Loaded
from auditkit.runs.folder.names import RESULTS

# The modules that draw them; what one form needs is slow to import for the others.
_DRAWN = {
    "html": "html", "md": "markdown", "json": "", "junit": "junit", "sarif": "sarif", "oscal": "oscal",
    "cyclonedx": "cyclonedx",
}  # fmt: skip
FORMATS = tuple(_DRAWN)


def render(loaded: Loaded, form: str) -> str:
    """The run in one of FORMATS; nothing is recomputed, and the model is not run."""
    if form not in _DRAWN:
        raise BadInput(unknown("format", form, FORMATS))
    if form == "json":
        return (loaded.folder / RESULTS).read_text(encoding="utf-8")
    module = import_module(f"auditkit.report.{_DRAWN[form]}")
    return str(getattr(module, f"render_{_DRAWN[form]}")(loaded))
