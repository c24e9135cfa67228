"""The guarded child process itself: a request on stdin, a reply on stdout, under limits of memory and time."""

import json
import os
import signal
import sys
from pathlib import Path

from auditkit.errors import AuditError
from auditkit.model.read import Limits, OnnxFile, read
from auditkit.model.sandbox import REPLY
from auditkit.model.signature import Overrides
from auditkit.records import Json, from_json, to_json

_UNCOUNTED = 192 * 2**20  # bytes that the limit does not see: the parent, and the code of the libraries


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    limits = from_json(Limits, request["limits"], "limits")
    _guard(limits, request["bytes"])
    try:
        file = read(Path(request["path"]), limits, announce=lambda size: _guard(limits, size))
        reply = {"signature": _signature(file, request["examiner"], request["expected"]), "identity": file.identity}
    except AuditError as error:
        reply = {"error": str(error)}
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a graph that is not put together properly
        reply = {"error": f"the file is damaged or malformed ({type(error).__name__}: {str(error)[:200]})."}
    print(REPLY + json.dumps(reply), flush=True)
    os._exit(0)  # a damaged graph can still crash the runtime while it is torn down


def _signature(file: OnnxFile, examiner: str, expected: Json) -> Json:
    from auditkit.model import masking_network, probe  # noqa: PLC0415 - under the limits only

    if examiner == "masking network":
        return to_json(masking_network.examine(file, from_json(masking_network.Pictures, expected, "pictures")))
    return to_json(probe.examine(file, from_json(Overrides, expected, "overrides")))


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
