"""What a benchmark has found is told even when it is cut short."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def told(found: dict[str, Any]) -> Iterator[None]:
    """Print, as one JSON object and however the work ends, what was put into it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("cut short"))
    try:
        yield
    finally:
        print(json.dumps(found, indent=2))


def one_line(line: dict[str, Any]) -> None:
    """Something on stderr to look at meanwhile."""
    print(json.dumps(line), file=sys.stderr, flush=True)
