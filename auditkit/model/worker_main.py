"""What a model's worker does for the main process: it examines a file and runs sessions of its graphs."""

import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from auditkit.arrays import Array
from auditkit.cores import usable_cores
from auditkit.model import masking_network, passes, probe, read, runtime
from auditkit.model.messages import Value
from auditkit.model.read import Description, Limits, file_size
from auditkit.model.serving import limit_data, limit_memory, serve
from auditkit.model.signature import Overrides
from auditkit.records import from_json, to_json

_STACK = 8 * 2**20  # bytes that a thread reserves where the system has no limit for its stack
_GROWING = threading.Lock()  # held while the limit is raised


def session(graph: bytes, weights: dict[str, Array], threads: int, *options: Value) -> runtime.LocalSession:
    """A session of the runtime; the limit on memory grows by what the stacks of its threads reserve.

    If there were no room for them, the runtime would wait for threads that never start.
    """
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stacks = (threads or usable_cores()) * (_STACK if stack == resource.RLIM_INFINITY else stack)
    with _GROWING:
        limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
        if limit != resource.RLIM_INFINITY:
            limit_data(limit + stacks)
    return runtime.LocalSession(graph, weights, threads, *options)


def describe(path: str, plain_limits: Value) -> dict[str, Value]:
    """An unknown file, checked under the limits of a first run, and the bytes from which further limits follow."""
    limits = from_json(Limits, plain_limits, "limits")
    limit_memory(limits.memory_for(file_size(Path(path), limits)))
    description = read.describe(Path(path), limits)
    limit_memory(limits.memory_for(description.bytes))
    return {"file": description, "bytes": description.bytes}


def examine(description: Description, examiner: str, expected: Value) -> dict[str, Value]:
    """The signature of an unknown file, from its graph and from runs on noise under the limits of a first run."""
    if examiner == "masking network":
        requirements = from_json(masking_network.Requirements, expected, "requirements")
        file = description.live()
        signature = to_json(masking_network.examine(file, requirements))
    else:
        overrides = from_json(Overrides, expected, "overrides")
        file = description.live(filter(None, [overrides.output]))
        signature = to_json(probe.examine(file, overrides))
    limit_memory(description.limits.run_memory_for(description.bytes))
    return {"signature": signature, "identity": file.identity}


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "describe": describe, "examine": examine, "LocalSession": session, "folded": runtime.folded,
    "cuda_problem": runtime.cuda_problem, "run_pass": passes.run,
}  # fmt: skip


def main() -> None:
    """Answer the calls of the main process."""
    runtime.IN_WORKER = True
    sys.setswitchinterval(runtime.SWITCH_SECONDS)
    serve(_FUNCTIONS)
