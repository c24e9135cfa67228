"""Identifiers for forms that need them: the same run always has the same, and another run has others."""

from uuid import NAMESPACE_URL, uuid5

from auditkit.report.formatting import visible
from auditkit.report.load_run import Loaded

_NAMESPACE = uuid5(NAMESPACE_URL, "urn:auditkit")


def identifier(loaded: Loaded, *names: str) -> str:
    """The UUID of a part of a run, by the digest of its results."""
    return str(uuid5(_NAMESPACE, "\0".join((loaded.digest, *map(visible, names)))))


def line(text: str) -> str:
    """A text on one line, without what hides or reorders characters."""
    return " ".join(visible(text).split())
