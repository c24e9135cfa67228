"""What benchmarks tell: where figures come from, and what they have found even when they are cut short."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from auditkit.model.doctor import describe


@contextmanager
def told(found: dict[str, Any]) -> Iterator[None]:
    """Print, as one JSON object and however the work ends, what was put into it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("cut short"))
    try:
        yield
    finally:
        print(json.dumps(found, indent=2))


def origin(module: str) -> dict[str, Any]:
    """The day, the machine with its versions, and the command: that of a module that runs now.

    It is told without the places on this machine where interpreters and folders lie.
    """
    command = ["python", "-m", module, *map(_placeless, sys.argv[1:])]
    return {"date": datetime.now(UTC).date().isoformat(), "machine": describe(), "command": command}


def _placeless(argument: str) -> str:
    """An option's value without its folder; of NAME=INTERPRETER the name."""
    name, given, path = argument.rpartition("=")
    return f"{name}=PYTHON" if given and not name.startswith("-") else name + given + Path(path).name


def one_line(line: dict[str, Any]) -> None:
    """Something on stderr to look at meanwhile."""
    print(json.dumps(line), file=sys.stderr, flush=True)
