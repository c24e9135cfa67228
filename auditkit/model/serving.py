"""Answers the calls of the main process, several at a time, until that ends: what every kind of worker does.

The objects that calls make (sessions, arrays on the device, steppers) stay here; the main process knows their numbers.
"""

import itertools
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Mapping

from auditkit.arrays import Array
from auditkit.errors import AuditError
from auditkit.model.confinement import confine
from auditkit.model.messages import Channel, Message, Slot, Unreadable, Value, packed, size_of, unpacked

_UNCOUNTED = 192 * 2**20  # bytes that the limit does not see: the main process, and the code of the libraries
Functions = Mapping[str, Callable[..., Value]]  # that the main process may call, by name


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

    def __init__(self, channel: Channel, objects: _Objects, functions: Functions) -> None:
        self._channel, self._objects, self._functions = channel, objects, functions
        self._slot: Slot | None = None
        self._waiting: tuple[Value, list[Array]] = None, []  # a result that needs a larger slot

    def serve(self) -> None:
        """Answer calls until the connection is closed."""
        while True:
            try:
                message, descriptor = self._channel.receive_with_file()
                if descriptor is not None:
                    self._slot = Slot(descriptor)
                    self._slot.close_file()
                self._channel.send(self._answer(message))
            except (EOFError, OSError, Unreadable):
                return

    def _answer(self, message: Message) -> Message:
        self._objects.forget(message["unused"])
        try:
            return self._reply(message, self._slot or Slot.make(0))
        except AuditError as error:
            return {"error": type(error).__name__, "text": str(error), "reason": getattr(error, "reason", "")}
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # of a graph that is malformed
            text = f"the file is damaged or malformed ({type(error).__name__}: {str(error)[:200]})."
            return {"error": "BadInput", "text": text}
        except OSError as error:  # such as a full disk: the model is not to blame
            text = f"the system refused auditkit a file ({error.strerror or error}); free space for temporary files "
            return {"error": "MachineFailure", "text": f"{text}(TMPDIR), and run the command again."}
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def _reply(self, message: Message, slot: Slot) -> Message:
        if message["method"] == "collect":
            result, arrays = self._waiting
        else:
            self._waiting = None, []
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
            return self._functions[message["method"]]
        function: Callable[..., Value] = getattr(self._objects.get(message["number"]), message["method"])
        return function


def limit_memory(limit: int) -> None:
    """Cap the private writable memory of this process; the runtime reserves much more address space than it uses."""
    limit_data(limit - _UNCOUNTED)


def limit_data(limit: int) -> None:
    """Cap the private writable memory that the system counts for this process."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard_limit))


def serve(functions: Functions) -> None:
    """Serve the lanes whose file descriptors arrive on a socket: its descriptor and a limit on memory are arguments."""
    confine()
    if memory_bytes := int(sys.argv[3]):
        limit_memory(memory_bytes)
    objects, lanes = _Objects(), socket.socket(fileno=int(sys.argv[2]))
    while True:
        _, descriptors, *_ = socket.recv_fds(lanes, 1, 1)
        if not descriptors:
            os._exit(0)  # whatever still runs; a damaged graph can also crash the runtime as it is torn down
        lane = _Lane(Channel(socket.socket(fileno=descriptors[0])), objects, functions)
        threading.Thread(target=lane.serve, daemon=True).start()
