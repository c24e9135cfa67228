"""What benchmarks tell: by which command, and what they have found even when they are cut short."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def told(found: dict[str, Any]) -> Iterator[None]:
    """Print, as one JSON object and however the work ends, what was put into it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("cut short"))
    try:
        yield
    finally:
        print(json.dumps(found, indent=2))


def command(*program: str) -> list[str]:
    """The command that runs now, without the places on this machine where interpreters and folders lie."""
    return ["python", *program, *map(_placeless, sys.argv[1:])]


def _placeless(argument: str) -> str:
    """An option's value without its folder; of NAME=INTERPRETER the name."""
    name, given, path = argument.rpartition("=")
    return f"{name}=PYTHON" if given and not name.startswith("-") else name + given + Path(path).name


def one_line(line: dict[str, Any]) -> None:
    """Something on stderr to look at meanwhile."""
    print(json.dumps(line), file=sys.stderr, flush=True)
