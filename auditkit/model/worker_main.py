"""What runs in a worker: it answers the calls of the main process, several at a time, until that ends.

The objects that calls make (sessions, arrays on the device, steppers) stay here; the main process knows their numbers.
"""

import itertools
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from auditkit.arrays import Array
from auditkit.cores import usable_cores
from auditkit.errors import AuditError
from auditkit.model import masking_network, probe, runtime
from auditkit.model.messages import Channel, Message, Slot, Value, packed, size_of, unpacked
from auditkit.model.read import Limits, read
from auditkit.model.signature import Overrides
from auditkit.records import from_json, to_json

_UNCOUNTED = 192 * 2**20  # bytes that the limit does not see: the main process, and the code of the libraries
_STACK = 8 * 2**20  # bytes that a thread reserves where the system has no limit for its stack
_GROWING = threading.Lock()  # held while the limit is raised


class _Objects:
    """What calls have made and the main process still refers to, by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._objects: dict[int, Value] = {}

    def keep(self, value: Value) -> int:
        number = next(self._numbers)
        self._objects[number] = value
        return number

    def get(self, number: int) -> Value:
        return self._objects[number]

    def forget(self, numbers: list[int]) -> None:
        for number in numbers:
            self._objects.pop(number, None)


class _Lane:
    """A connection on which one call after the other is answered; several lanes are served at once."""

    def __init__(self, channel: Channel, objects: _Objects) -> None:
        self._channel, self._objects = channel, objects
        self._slot: Slot | None = None
        self._waiting: tuple[Value, list[Array]] = None, []  # a result that needs a larger slot

    def serve(self) -> None:
        """Answer calls until the connection is closed."""
        while True:
            try:
                message, descriptor = self._channel.receive()
                if descriptor is not None:
                    self._slot = Slot(descriptor)
                    self._slot.close_file()
                self._channel.send(self._answer(message))
            except (EOFError, OSError):
                return

    def _answer(self, message: Message) -> Message:
        self._objects.forget(message["unused"])
        try:
            return self._reply(message, self._slot or Slot.make(0))
        except AuditError as error:
            return {"error": type(error).__name__, "text": str(error)}
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # of a graph that is malformed
            text = f"the file is damaged or malformed ({type(error).__name__}: {str(error)[:200]})."
            return {"error": "BadInput", "text": text}
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def _reply(self, message: Message, slot: Slot) -> Message:
        if message["method"] == "collect":
            result, arrays = self._waiting
        else:
            arrays = []
            arguments = unpacked(message["arguments"], slot.get(message["arrays"]), self._objects.get)
            result = packed(self._function(message)(*arguments), arrays, self._objects.keep)
        size = size_of(arrays)
        if size > len(slot.memory):
            self._waiting = result, arrays
            return {"bytes": size}
        return {"result": result, "arrays": slot.put(arrays)}

    def _function(self, message: Message) -> Callable[..., Value]:
        if message["number"] is None:
            return _FUNCTIONS[message["method"]]
        function: Callable[..., Value] = getattr(self._objects.get(message["number"]), message["method"])
        return function


def limit_memory(limit: int) -> None:
    """Cap the private writable memory of this process; the runtime reserves much more address space than it uses."""
    _limit_data(limit - _UNCOUNTED)


def _limit_data(limit: int) -> None:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard_limit))


def session(graph: bytes, weights: dict[str, Array], threads: int, *options: Value) -> runtime.LocalSession:
    """A session of the runtime; the limit on memory grows by what the stacks of its threads reserve.

    If there were no room for them, the runtime would wait for threads that never start.
    """
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stacks = (threads or usable_cores()) * (_STACK if stack == resource.RLIM_INFINITY else stack)
    with _GROWING:
        limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
        if limit != resource.RLIM_INFINITY:
            _limit_data(limit + stacks)
    return runtime.LocalSession(graph, weights, threads, *options)


def examine(path: str, size: int, examiner: str, expected: Value, plain_limits: Value) -> dict[str, Value]:
    """The signature of an unknown file, from its graph and from runs on noise under the limits of a first run."""
    limits = from_json(Limits, plain_limits, "limits")
    limit_memory(limits.memory_for(size))
    file = read(Path(path), limits, announce=lambda announced: limit_memory(limits.memory_for(announced)))
    if examiner == "masking network":
        requirements = from_json(masking_network.Requirements, expected, "requirements")
        signature = to_json(masking_network.examine(file, requirements))
    else:
        signature = to_json(probe.examine(file, from_json(Overrides, expected, "overrides")))
    limit_memory(limits.run_memory_for(size))
    return {"signature": signature, "identity": file.identity}


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "examine": examine, "LocalSession": session, "folded": runtime.folded,
    "cuda_problem": runtime.cuda_problem,
}  # fmt: skip


def main() -> None:
    """Serve the lanes whose file descriptors arrive on a socket: its descriptor and a limit on memory are arguments."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes := int(sys.argv[3]):
        limit_memory(memory_bytes)
    runtime.IN_WORKER = True
    sys.setswitchinterval(runtime.SWITCH_SECONDS)
    objects, lanes = _Objects(), socket.socket(fileno=int(sys.argv[2]))
    while True:
        _, descriptors, *_ = socket.recv_fds(lanes, 1, 1)
        if not descriptors:
            os._exit(0)  # whatever still runs; a damaged graph can also crash the runtime as it is torn down
        lane = _Lane(Channel(socket.socket(fileno=descriptors[0])), objects)
        threading.Thread(target=lane.serve, daemon=True).start()
