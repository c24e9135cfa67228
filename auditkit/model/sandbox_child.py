"""The guarded child process itself: a request on stdin, a reply on stdout, under limits of memory and time."""

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from auditkit.errors import AuditError
from auditkit.model.read import Limits, OnnxFile, read
from auditkit.model.sandbox import REPLY, Reply, Request, from_fields
from auditkit.model.signature import Overrides

_UNCOUNTED = 192 * 2**20  # bytes that the limit does not see: the parent, and the code of the libraries


def main() -> None:
    """Answer the request on stdin."""
    request: Request = json.load(sys.stdin)
    limits = from_fields(Limits, request["limits"])
    _guard(limits, request["bytes"])
    try:
        file = read(Path(request["path"]), limits, announce=lambda size: _guard(limits, size))
        reply = Reply(signature=_signature(file, request), identity=file.identity)
    except AuditError as error:
        reply = Reply(error=str(error))
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a graph that is not put together properly
        reply = Reply(error=f"the file is damaged or malformed ({type(error).__name__}: {str(error)[:200]}).")
    print(REPLY + json.dumps(reply), flush=True)
    os._exit(0)  # a damaged graph can still crash the runtime while it is torn down


def _signature(file: OnnxFile, request: Request) -> dict[str, object]:
    """Fields of the signature that the requested examiner finds."""
    from auditkit.model import masking_network, probe  # noqa: PLC0415 - under the limits only

    if request["examiner"] == "masking network":
        pictures = from_fields(masking_network.Pictures, request["expected"])
        return asdict(masking_network.examine(file, pictures))
    return asdict(probe.examine(file, from_fields(Overrides, request["expected"])))


def _guard(limits: Limits, model_bytes: int) -> None:
    """Cap the memory and time of this process for a model of that size.

    The limit is on private writable memory. The runtime reserves much more address space than it uses.
    """
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limits.memory_for(model_bytes) - _UNCOUNTED
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, limits.seconds_for(model_bytes))
