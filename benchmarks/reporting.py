"""The output of benchmarks: where figures come from, results as JSON, progress on stderr."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from auditkit.model.doctor import describe
from auditkit.records import to_json


@contextmanager
def printed_at_end(results: dict[str, Any]) -> Iterator[None]:
    """Print the results as one JSON object when the work ends, even if it fails or is cut short."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("cut short"))
    try:
        yield
    finally:
        print(json.dumps(results, indent=2))


def origin(module: str) -> dict[str, Any]:
    """The date, the machine with its versions, and the command line of the running module, without local paths."""
    command = ["python", "-m", module, *map(_without_path, sys.argv[1:])]
    return {"date": datetime.now(UTC).date().isoformat(), "machine": to_json(describe()), "command": command}


def _without_path(argument: str) -> str:
    """An option's value without its folder; for NAME=INTERPRETER, NAME=PYTHON."""
    name, separator, path = argument.rpartition("=")
    interpreter = separator and not name.startswith("-") and Path(path).name != path
    return f"{name}=PYTHON" if interpreter else name + separator + Path(path).name


def log(entry: dict[str, Any]) -> None:
    """Report progress on stderr."""
    print(json.dumps(entry), file=sys.stderr, flush=True)
