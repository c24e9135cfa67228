"""Workers: guarded child processes in which a vendor's graphs run; the main process never runs one.

A worker holds sessions, uploaded arrays and steppers. If it crashes, hangs or takes too much memory, the call that it
was busy with raises WorkerLost, and the next call starts another worker.
"""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np

from auditkit import errors
from auditkit.arrays import Array
from auditkit.errors import AuditError, ModelFailure, RuntimeFailure
from auditkit.model.messages import SUPPORTED, Channel, Message, Slot, Value, packed, size_of, unpacked

START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from importlib import import_module; "
    "import_module(sys.argv[4]).main()"
)
MODELS = "auditkit.model.worker_main"  # what a worker runs by default
# Each thread of a numerical library reserves memory, and dozens of them reserve more than the limit.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_WATCH_SECONDS = 0.25
_LEAST_SECONDS, _TIMES_SLOWEST = 60.0, 50  # a call may take this, or that many times the slowest so far if longer
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MOST_REPLY = 2**32  # bytes of the arrays in one reply
_LONGEST_ERROR = 2000  # characters


CHILDREN: "weakref.WeakSet[subprocess.Popen[bytes]]" = weakref.WeakSet()

Cause = Literal["time", "memory", "crash", "exit"]


class WorkerLost(ModelFailure):
    """The worker died while it was busy with a call."""

    def __init__(self, message: str, cause: Cause = "exit") -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(eq=False)  # compared by content, list.remove would run Python code, in which other threads change the list
class _Lane:
    """A connection to a worker for one call at a time."""

    channel: Channel
    slot: Slot | None = None
    started: float = 0.0
    deadline: float = math.inf  # seconds after the start

    def ask(self, message: Message, arrays: Sequence[Array], least: int = 0) -> Message:
        """The reply to a message with arrays; the slot has room for at least that many bytes."""
        least, descriptor = max(least, size_of(arrays)), None
        if self.slot is None or len(self.slot.memory) < least:
            self.slot = Slot.make(least)
            descriptor = self.slot.descriptor
        self.channel.send(message | {"arrays": self.slot.put(arrays)}, descriptor)
        self.slot.close_file()
        return self.channel.receive()[0]

    def arrays(self, reply: Message) -> list[Array]:
        """Copies of the arrays of the last reply."""
        return [] if self.slot is None else [np.array(array) for array in self.slot.get(reply.get("arrays", []))]


class _Process:
    """One child process and the calls that it is busy with."""

    def __init__(self, name: str, memory_bytes: int | None, module: str) -> None:
        """`name` appears in messages; with more resident memory than `memory_bytes` it is stopped."""
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        arguments = json.dumps(import_path()), str(theirs.fileno()), str(memory_bytes or 0), module
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-c", START, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=self._errors, pass_fds=[theirs.fileno()], start_new_session=True, env={**os.environ, **_ONE_THREAD},
        )  # fmt: skip
        theirs.close()
        self.name, self._memory_bytes = name, memory_bytes
        self._idle: list[_Lane] = []
        self._busy: list[_Lane] = []
        self._lock = threading.Lock()
        self.unused: list[int] = []  # objects that the worker may forget, told with the next call
        self._slowest: dict[str, float] = {}  # seconds, by method
        self.lost: tuple[Cause, str] | None = None  # why it ended
        self._sockets = [ours]
        self.stop = weakref.finalize(self, _end, self._child, self._sockets, self._errors)
        CHILDREN.add(self._child)
        threading.Thread(target=_watch, args=(weakref.ref(self), self._child), daemon=True).start()

    def call(self, method: str, number: int | None, arguments: Sequence[Value], seconds: float | None = None) -> Value:
        """What a method of an object in the worker returns, or a function of its module if `number` is None."""
        arrays: list[Array] = []
        request: Message = {"method": method, "number": number, "arguments": packed(arguments, arrays, self._number_of)}
        with self._lane(seconds or max(_LEAST_SECONDS, _TIMES_SLOWEST * self._slowest.get(method, 0))) as lane:
            reply = lane.ask(request | {"unused": self._forgotten()}, arrays)
            if "bytes" in reply:  # its arrays need a larger slot
                collect: Message = {"method": "collect", "unused": []}
                reply = lane.ask(collect, [], _checked_size(reply["bytes"]))
            copies = lane.arrays(reply)
            self._slowest[method] = max(self._slowest.get(method, 0), time.monotonic() - lane.started)
        if "error" in reply:
            kind = getattr(errors, str(reply["error"]), None)
            failure = kind if isinstance(kind, type) and issubclass(kind, AuditError) else RuntimeFailure
            raise failure(str(reply.get("text"))[:_LONGEST_ERROR])
        try:
            return unpacked(reply["result"], copies, lambda number: RemoteObject(self, int(number)))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError):
            raise RuntimeFailure(f"{self.name} gave a reply that cannot be read.") from None

    def _number_of(self, value: Value) -> int:
        if not isinstance(value, RemoteObject):
            raise TypeError(f"a {type(value).__name__} cannot be sent to a worker")
        if value.process is not self:
            raise WorkerLost(f"the worker of {self.name} was replaced, and its data is lost")
        return value.number

    def _forgotten(self) -> list[int]:
        numbers = self.unused[:]
        del self.unused[: len(numbers)]
        return numbers

    @contextmanager
    def _lane(self, deadline: float) -> Iterator[_Lane]:
        """A connection for one call; WorkerLost if the worker is lost meanwhile."""
        lane = self._take_lane(deadline)
        try:
            yield lane
        except (EOFError, OSError, ValueError, RecursionError):  # ValueError: what it sent is no JSON
            self.end()
            self._check_alive()
        except AuditError:
            raise
        except BaseException:  # such as KeyboardInterrupt: the worker is still busy with the call
            self.end(("exit", "was interrupted"))
            raise
        else:
            self._idle.append(lane)
        finally:
            self._busy.remove(lane)

    def _take_lane(self, deadline: float) -> _Lane:
        self._check_alive()
        try:
            lane = self._idle.pop()
        except IndexError:
            lane = self._new_lane()
        lane.started, lane.deadline = time.monotonic(), deadline
        self._busy.append(lane)
        return lane

    def _new_lane(self) -> _Lane:
        ours, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # if the worker has died, its first message finds out
            socket.send_fds(self._sockets[0], [b"+"], [theirs.fileno()])
        self._sockets.append(ours)
        return _Lane(Channel(ours))

    def _check_alive(self) -> None:
        if self.lost is not None:
            cause, what = self.lost
            raise WorkerLost(f"{self.name} {what}", cause)

    def overdue(self) -> tuple[Cause, str] | None:
        """Why the process must be stopped, if it must."""
        now = time.monotonic()
        for lane in list(self._busy):
            if now - lane.started > lane.deadline:
                return "time", f"was still busy after {lane.deadline:.0f} s"
        if self._memory_bytes is not None and _resident(self._child.pid) > self._memory_bytes:
            return "memory", f"took more than {self._memory_bytes / 2**30:.1f} GiB of memory"
        return None

    def end(self, lost: tuple[Cause, str] | None = None) -> None:
        """Kill the process, for a reason or because it is dying; every call that waits learns of it."""
        with self._lock:
            self.lost = self.lost or lost
            self._child.kill()
            code = self._child.wait()
            self.lost = self.lost or self._death(code)

    def _death(self, code: int) -> tuple[Cause, str]:
        text = ""
        with suppress(ValueError):  # closed with the process
            self._errors.seek(0)
            text = self._errors.read()[-4000:].decode(errors="replace")
        if "MemoryError" in text or "bad_alloc" in text or code == -signal.SIGKILL:
            return "memory", "ran out of memory"
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return "crash", f"crashed the runtime ({name})"
        last = (text.strip().splitlines() or ["no message"])[-1]
        return "exit", f"ended its worker (exit code {code}: {last[:200]})"


def guards() -> str:
    """What guards a worker on this system."""
    if not SUPPORTED:
        return "none: models cannot be opened on this system"
    watched = "the main process and the system" if Path("/proc/self/statm").exists() else "the system alone"
    return f"time limited by the main process, memory by {watched}"


def kill_all() -> None:
    """Kill every worker of this process, which is about to exit."""
    for child in list(CHILDREN):
        child.kill()


def _checked_size(size: object) -> int:
    if not isinstance(size, int) or not 0 <= size <= _MOST_REPLY:
        raise RuntimeFailure(f"the worker wants to send {size} bytes at once; at most {_MOST_REPLY} are accepted.")
    return size


def _end(child: "subprocess.Popen[bytes]", sockets: list[socket.socket], errors: IO[bytes]) -> None:
    child.kill()
    child.wait()
    for end in sockets:
        end.close()
    errors.close()


def _watch(reference: "weakref.ref[_Process]", child: "subprocess.Popen[bytes]") -> None:
    """Stop a worker that hangs or takes too much memory: this runs in a thread."""
    while child.poll() is None:
        process = reference()
        if process is None:
            return
        lost = process.overdue()
        if lost is not None:
            process.end(lost)
        del process
        time.sleep(_WATCH_SECONDS)
    process = reference()
    if process is not None:
        process.end()


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def import_path() -> list[str]:
    """Where the child finds its modules: not in the current folder, which may be the vendor's and hold a numpy.py."""
    current = Path.cwd().resolve()
    package = str(Path(__file__).resolve().parents[2])
    return [entry for entry in sys.path if entry and Path(entry).resolve() != current] + [package]


class Worker:
    """A worker, such as for the graphs of one file, started when it is first needed and replaced when it is lost."""

    def __init__(self, name: str, memory_bytes: int | None = None, module: str = MODELS) -> None:
        """`name` appears in messages; `memory_bytes` of main memory is what it may hold; it runs main of `module`."""
        self.name, self.memory_bytes, self.module = name, memory_bytes, module
        self._process: _Process | None = None
        self._lock = threading.Lock()

    @property
    def process(self) -> _Process:
        """The running child."""
        if not SUPPORTED:
            raise RuntimeFailure(
                "models run and images are decoded in worker processes, which need Linux or macOS; use WSL on Windows."
            )
        with self._lock:
            if self._process is None or self._process.lost is not None:
                self._process = _Process(self.name, self.memory_bytes, self.module)
            return self._process

    def call(self, function: str, *arguments: Value, seconds: float | None = None) -> Value:
        """What a function of the module returns."""
        return self.process.call(function, None, arguments, seconds)

    def close(self) -> None:
        """Stop the child."""
        with self._lock:
            if self._process is not None:
                self._process.stop()
                self._process = None


class RemoteObject:
    """An object in a worker: an array on its device, a session, a stepper. Its methods run there."""

    def __init__(self, process: _Process, number: int) -> None:
        self.process, self.number = process, number
        weakref.finalize(self, process.unused.append, number)

    def __getattr__(self, method: str) -> Callable[..., Value]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *arguments: self.process.call(method, self.number, arguments)


class RemoteSession:
    """A session in a worker; made again when the worker was replaced."""

    def __init__(self, worker: Worker, *arguments: Value) -> None:
        """`arguments` are those of the runtime's session (see runtime.LocalSession)."""
        self._worker, self._arguments = worker, arguments
        self._session: RemoteObject | None = None
        self._lock = threading.Lock()
        self._current()

    def _current(self) -> RemoteObject:
        with self._lock:
            process = self._worker.process
            if self._session is None or self._session.process is not process:
                self._session = process.call("LocalSession", None, self._arguments)
            return self._session

    def __getattr__(self, method: str) -> Callable[..., Value]:
        function: Callable[..., Value] = getattr(self._current(), method)
        return function
