"""The log of an audit's sittings: when each began, with which command, and which process computed what."""

import json
from collections.abc import Mapping
from pathlib import Path

from auditkit.data.atomic_write import flush
from auditkit.errors import RuntimeFailure
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.folder import provenance

SITTINGS = "sittings.jsonl"


def log_start(out: Path, command: tuple[str, ...]) -> str:
    """Log that work begins; the time of the first log entry."""
    return _log(out, {"started": provenance.now(), "command": list(command)})


def log_workers(out: Path, model: AnyClassifier) -> None:
    """Log which process of an engine computed what."""
    engine, units = None if model.settings is None else model.settings.engine, dict[str, list[str]]()
    for where, unit in [] if engine is None else engine.log:
        units.setdefault(where, []).append(unit)
    if units:
        _log(out, {"workers": units})


def _log(out: Path, entry: Mapping[str, object]) -> str:
    """Add an entry to the log; the time of the first one."""
    path = out / SITTINGS
    try:
        with path.open("ab") as stream:
            stream.write(json.dumps(entry).encode() + b"\n")
            flush(stream)
        return str(json.loads(path.read_text().splitlines()[0])["started"])
    except (OSError, ValueError, KeyError) as error:
        remedy = "" if isinstance(error, OSError) else " Remove this file and run the command again."
        raise RuntimeFailure(f"{path} cannot be written or read ({error}). Finished work is kept.{remedy}") from None
