"""The log of a run's sittings: when each began, with which command, where, and which worker computed what."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from auditkit.data.atomic_write import append, write_whole
from auditkit.errors import RuntimeFailure
from auditkit.model.classifier import AnyClassifier
from auditkit.model.device import location
from auditkit.runs.folder import provenance

SITTINGS = "sittings.jsonl"
START, UNIT = {"started", "command", "where"}, {"unit", "worker"}  # the keys of an entry of either kind


@contextmanager
def logged(out: Path, model: AnyClassifier, command: tuple[str, ...] = ()) -> Iterator[str]:
    """Log a sitting, and each unit as soon as a worker has computed it; gives the time of the first sitting.

    What no worker computed, the main process did.
    """
    where = None if model.settings is None else location(model.device.name)  # a function's device is its own business
    _heal(out)
    _log(out, {"started": provenance.now(), "command": list(command), "where": where})
    engine = None if model.settings is None else model.settings.engine
    if engine is None:
        yield _first_start(out)
        return
    engine.on_unit = lambda worker, unit: _log(out, {"unit": unit, "worker": worker})
    try:
        yield _first_start(out)
    finally:
        engine.on_unit = None


def _heal(out: Path) -> None:
    """Remove a line that a power failure left torn."""
    path = out / SITTINGS
    content = path.read_bytes() if path.exists() else b""
    if not content.endswith(b"\n") and content:
        write_whole(path, content[: content.rfind(b"\n") + 1])


def _log(out: Path, entry: Mapping[str, object]) -> None:
    path = out / SITTINGS
    try:
        append(path, json.dumps(entry).encode() + b"\n")
    except OSError as error:
        raise RuntimeFailure(f"{path} cannot be written ({error}). Finished work is kept.") from None


def _first_start(out: Path) -> str:
    path = out / SITTINGS
    try:
        with path.open("rb") as stream:
            return str(json.loads(stream.readline())["started"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "" if isinstance(error, OSError) else " Remove this file and run the command again."
        raise RuntimeFailure(f"{path} cannot be read ({error}). Finished work is kept.{remedy}") from None
