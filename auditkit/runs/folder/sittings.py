"""The log of a run's sittings: when each began, with which command, where, and which worker computed what."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path

from auditkit.data.atomic_write import append, write_errors, write_whole
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.model.classifier import AnyClassifier
from auditkit.model.device import Location, location
from auditkit.records import Json, parse_object
from auditkit.regular_files import read_regular
from auditkit.runs.folder import provenance

SITTINGS = "sittings.jsonl"
_MOST_BYTES = 2**28  # of the log: a line for each unit
_KINDS = {"started", "command", "where"}, {"unit", "worker"}  # the keys of an entry of either kind


@contextmanager
def logged(
    out: Path, model: AnyClassifier, command: tuple[str, ...] = (), *, record_machine: bool = False
) -> Iterator[str]:
    """Log a sitting, and each unit as soon as a worker has computed it; gives the time of the first sitting.

    What no worker computed, the main process did. Machines and processes are named with `record_machine` only.
    """
    where = None  # a function's device is its own business
    if model.settings is not None:
        where = location(model.device.name).as_logged(None, record_machine=record_machine)
    _heal(out)
    _log(out, {"started": provenance.now(), "command": list(command), "where": where})
    engine = model.engine
    if engine is None:
        yield _first_start(out)
        return

    def log_unit(worker: int, at: Location, unit: str) -> None:
        _log(out, {"unit": unit, "worker": at.as_logged(worker, record_machine=record_machine)})

    engine.on_unit = log_unit
    try:
        yield _first_start(out)
    finally:
        engine.on_unit = None


def has_own_log(model: AnyClassifier, *, shard: bool) -> bool:
    """Whether work outside of an audit is logged: with several workers, or as a shard."""
    return shard if model.engine is None else model.engine.on_unit is None  # else an audit logs it with its own


def units_logged(
    out: Path,
    model: AnyClassifier,
    command: tuple[str, ...] = (),
    *,
    shard: bool = False,
    record_machine: bool = False,
) -> AbstractContextManager[object]:
    """The same for such work; other work is not logged."""
    if not has_own_log(model, shard=shard):
        return nullcontext()
    return logged(out, model, command, record_machine=record_machine)


def add_logs(out: Path, folders: Iterable[Path]) -> None:
    """Add the logs of other folders, as far as they are not there."""
    present = entries(out)
    for entry in chain.from_iterable(map(entries, folders)):
        if entry not in present:
            _log(out, entry)


def entries(out: Path) -> list[dict[str, Json]]:
    """The entries of the log, but for a torn one; none where there is no log."""
    path = out / SITTINGS
    lines = read_regular(path, _MOST_BYTES).split(b"\n")[:-1] if path.exists() else []
    return [parse_object(line, path) for line in lines]


def problems(out: Path) -> list[str]:
    """Entries that auditkit does not write."""
    foreign = [entry for entry in entries(out) if entry.keys() not in _KINDS]
    return [f"{SITTINGS} has entries that are neither the start of a sitting nor a unit of a worker"] if foreign else []


def _heal(out: Path) -> None:
    """Remove a line that a power failure left torn."""
    path = out / SITTINGS
    with write_errors(path):
        content = read_regular(path, _MOST_BYTES) if path.exists() else b""
    if not content.endswith(b"\n") and content:
        write_whole(path, content[: content.rfind(b"\n") + 1])


def _log(out: Path, entry: Mapping[str, object]) -> None:
    path = out / SITTINGS
    try:
        append(path, json.dumps(entry).encode() + b"\n")
    except OSError as error:
        raise RuntimeFailure(f"{path} cannot be written ({error}). Finished work is kept.") from None


def _first_start(out: Path) -> str:
    try:
        return min(str(entry["started"]) for entry in entries(out) if "started" in entry)
    except (OSError, BadInput) as error:
        remedy = "" if isinstance(error, OSError) else " Remove this file and run the command again."
        raise RuntimeFailure(f"{out / SITTINGS} cannot be read ({error}). Finished work is kept.{remedy}") from None
