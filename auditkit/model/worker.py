"""Workers: guarded child processes in which a vendor's graphs run; the main process never runs one.

A worker holds sessions, uploaded arrays and steppers. If it crashes, hangs or takes too much memory, the call that it
was busy with raises WorkerLost, and the next call starts another worker.
"""

import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from auditkit import telemetry, user_cache
from auditkit.arrays import Array
from auditkit.errors import (
    AuditError,
    BadInput,
    LoadFailure,
    MachineFailure,
    ModelFailure,
    NoGradient,
    OutOfMemory,
    RuntimeFailure,
)
from auditkit.model.messages import (
    LONGEST_REPLY,
    SUPPORTED,
    Channel,
    Message,
    Slot,
    Unreadable,
    Value,
    packed,
    size_of,
    unpacked,
)
from auditkit.user_cache import unusable

START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from importlib import import_module; "
    "import_module(sys.argv[4]).main()"
)
MODELS = "auditkit.model.worker_main"  # what a worker runs by default
# Each thread of a numerical library reserves memory, and dozens of them reserve more than the limit.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_WATCH_SECONDS = 0.25
_LAST_SECONDS = 0.5  # that a process may take to end once it has closed its connection
_LEAST_SECONDS, _TIMES_SLOWEST = 60.0, 50  # a call may take this, or that many times the slowest so far if longer
_LONGEST_SECONDS = 1200.0  # but no more: else each call could take longer than the one before it
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MOST_REPLY = 2**30  # bytes of the arrays in one reply, where a caller does not know better
_PADDING = 2**16  # bytes between the arrays of a reply
_MOST_OBJECTS = 1000  # in one reply; an honest one has at most as many as a graph has outputs
_LARGEST_KEPT_SLOT = 2**27  # bytes; the memory of larger replies is given back
_LONGEST_ERROR = 2000  # characters
_TAIL = 4000  # bytes of what a worker last wrote to its stderr
_MOST_READ = 2**20  # bytes of it that are read at once: something may go on writing
# The errors that a worker may report; whatever else it reports is a failure of the runtime.
_ERRORS: dict[str, type[AuditError]] = {
    kind.__name__: kind
    for kind in (
        BadInput,
        NoGradient,
        RuntimeFailure,
        MachineFailure,
        LoadFailure,
        ModelFailure,
        OutOfMemory,
    )
}
# What a worker finds in its environment: where its libraries are and keep their caches, and no secret.
_ENVIRONMENT = frozenset({
    "PATH", "HOME", "TMPDIR", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "DYLD_FALLBACK_LIBRARY_PATH", "MALLOC_ARENA_MAX", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_AFFINITY",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH", "CUDA_CACHE_DISABLE",
    "CUDA_CACHE_MAXSIZE", "CUDA_MODULE_LOADING", "CUDA_LAUNCH_BLOCKING", "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_TF32_OVERRIDE", *telemetry.SWITCHES,
})  # fmt: skip


CHILDREN: "weakref.WeakSet[subprocess.Popen[bytes]]" = weakref.WeakSet()
_FORKED: "weakref.WeakSet[_Process | Worker | RemoteSession]" = weakref.WeakSet()  # what forks copy

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
        return self.channel.receive()

    def shrink(self) -> None:
        """Give back the memory of an unusually large message."""
        if self.slot is not None and len(self.slot.memory) > _LARGEST_KEPT_SLOT:
            self.slot = None

    def views(self, reply: Message) -> list[Array]:
        """The arrays of the last reply, in memory that the worker can still change."""
        return [] if self.slot is None else self.slot.get(reply.get("arrays", []))


class _Tail:
    """The last lines that a process writes to a pipe, which takes no space on the disk."""

    def __init__(self) -> None:
        end, self.writer = os.pipe()
        os.set_blocking(end, False)
        self._pipe = os.fdopen(end, "rb", buffering=0)
        self._text = b""

    def read(self) -> str:
        """The last characters so far."""
        with suppress(OSError, ValueError):  # the pipe was closed
            for _ in range(_MOST_READ // _TAIL):
                part = self._pipe.read(_TAIL)
                if not part:  # nothing more is there now, or ever
                    break
                self._text = (self._text + part)[-_TAIL:]
        return self._text.decode(errors="replace")

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()


class _Process:
    """One child process and the calls that it is busy with."""

    def __init__(self, name: str, memory_bytes: int | None, module: str) -> None:
        """`name` appears in messages; with more resident memory than `memory_bytes` it is stopped."""
        ours, theirs = _connection()
        try:
            self._errors = _Tail()
        except OSError as error:
            ours.close()
            theirs.close()
            raise _refused("start another process", error) from None
        self.name, self.memory_bytes = name, memory_bytes
        self._idle: list[_Lane] = []
        self._busy: list[_Lane] = []
        self._lock = threading.Lock()
        self.unused: list[int] = []  # objects that the worker may forget, told with the next call
        self._slowest: dict[str, float] = {}  # seconds, by method
        self.lost: tuple[Cause, str] | None = None  # why it ended
        self._sockets = [ours]
        self._started: Future[subprocess.Popen[bytes]] = Future()
        start = partial(_start, theirs.fileno(), self._errors.writer, memory_bytes or 0, module)
        arguments = weakref.ref(self), start, self._started
        threading.Thread(target=_watch, args=arguments, daemon=True).start()
        try:
            self._started.result()
        except OSError as error:
            raise _refused("start another process", error) from None
        finally:
            theirs.close()
            os.close(self._errors.writer)
        self.stop = weakref.finalize(self, _end, self._child, self._sockets, self._errors)
        _FORKED.add(self)

    @property
    def _child(self) -> "subprocess.Popen[bytes]":
        return self._started.result()

    def call(
        self,
        method: str,
        number: int | None,
        arguments: Sequence[Value],
        seconds: float | None = None,
        most: int = _MOST_REPLY,
    ) -> Value:
        """What a method of an object in the worker, or a function of its module, returns.

        Its arrays may have `most` bytes together; nothing is allocated for a larger reply.
        """
        arrays: list[Array] = []
        request: Message = {"method": method, "number": number, "arguments": packed(arguments, arrays, self._number_of)}
        with self._lane(seconds or self._deadline(method)) as lane:
            reply = lane.ask(request | {"unused": self._forgotten()}, arrays)
            if "bytes" in reply:  # its arrays need a larger slot
                collect: Message = {"method": "collect", "unused": []}
                reply = lane.ask(collect, [], self._checked_size(reply["bytes"], most))
            views = lane.views(reply)
            self._checked_size(size_of(views), most)
            copies = [np.array(view) for view in views]
            del views  # which refer to the slot
            lane.shrink()
            self._slowest[method] = max(self._slowest.get(method, 0), time.monotonic() - lane.started)
        if "error" in reply:
            raise _reported(reply)
        try:
            return unpacked(reply["result"], copies, self._objects())
        except (
            KeyError,
            IndexError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
            RecursionError,
        ):
            raise RuntimeFailure(f"{self.name} gave a reply that cannot be read.") from None

    def _deadline(self, method: str) -> float:
        usual = max(_LEAST_SECONDS, _TIMES_SLOWEST * self._slowest.get(method, 0))
        return min(usual, _LONGEST_SECONDS)

    def _objects(self) -> "Callable[[int], RemoteObject]":
        """A function from the numbers in one reply to objects; ValueError for too many."""
        count = itertools.count(1)

        def remote(number: int) -> RemoteObject:
            if next(count) > _MOST_OBJECTS:
                raise ValueError
            return RemoteObject(self, int(number))

        return remote

    def _checked_size(self, size: object, most: int) -> int:
        if not isinstance(size, int) or not 0 <= size <= most + _PADDING:
            amount = f"{size:,}" if isinstance(size, int) else "an unknown number of"
            reason = f"gave {amount} bytes at once; at most {most:,} are expected"
            raise ModelFailure(f"{self.name} {reason}")
        return size

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
        except Unreadable:
            self.end(("exit", "sent its main process something that is no message"))
            self._check_alive()
        except (EOFError, OSError):
            self.end()
            self._check_alive()
        except AuditError:  # the worker may still hold a reply
            self._sockets.remove(lane.channel.socket)
            lane.channel.socket.close()
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
        ours, theirs = _connection()
        with theirs, suppress(OSError):  # if the worker has died, its first message finds out
            socket.send_fds(self._sockets[0], [b"+"], [theirs.fileno()])
        self._sockets.append(ours)
        return _Lane(Channel(ours, LONGEST_REPLY))

    def _check_alive(self) -> None:
        if self.lost is not None:
            cause, what = self.lost
            raise WorkerLost(f"{self.name} {what}", cause)

    def watch(self) -> None:
        """End the process if it must be stopped; read what it wrote, so that it need not wait."""
        lost = self._overdue()
        if lost is not None:
            self.end(lost)
        self._errors.read()

    def _overdue(self) -> tuple[Cause, str] | None:
        """Why the process must be stopped, if it must."""
        now = time.monotonic()
        for lane in list(self._busy):
            if now - lane.started > lane.deadline:
                return "time", f"was still busy after {lane.deadline:.0f} s"
        try:
            if self.memory_bytes is not None and _resident(self._child.pid) > self.memory_bytes:
                return "memory", f"took more than {self.memory_bytes / 2**30:.1f} GiB of memory"
        except OSError as error:  # such as too many open files
            return "exit", f"can no longer be watched ({error.strerror})"
        return None

    def end(self, lost: tuple[Cause, str] | None = None) -> None:
        """Kill the process, for a reason or because it is dying; every call that waits learns of it."""
        with self._lock:
            self.lost = self.lost or lost
            until = time.monotonic() + _LAST_SECONDS
            while self.lost is None and not _has_ended(self._child) and time.monotonic() < until:
                time.sleep(0.01)  # its connection is closed first; its exit code says why
            if self.lost is None and not _has_ended(self._child):
                self.lost = "exit", "closed its connection to the main process"
            code = kill(self._child)
            self.lost = self.lost or self._death(code)

    def after_fork(self) -> None:
        """In a forked process: leave the child to the process that started it."""
        self._lock = threading.Lock()
        self.lost = "exit", "runs for the process that started it, and not for one forked from that"
        self.stop()  # which kills nothing here

    def _death(self, code: int) -> tuple[Cause, str]:
        text = self._errors.read()
        if "MemoryError" in text or "bad_alloc" in text or code == -signal.SIGKILL:
            return "memory", "ran out of memory"
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return "crash", f"crashed the runtime ({name})"
        last = (text.strip().splitlines() or ["no message"])[-1]
        return "exit", f"ended its worker (exit code {code}: {last[:200]})"


def _connection() -> tuple[socket.socket, socket.socket]:
    """The two ends of a new connection."""
    try:
        return socket.socketpair()
    except OSError as error:
        raise _refused("open another connection to a process", error) from None


def _refused(action: str, error: OSError) -> MachineFailure:
    return MachineFailure(
        f"this system cannot {action} ({error.strerror}); end other programs, and run the command again."
    )


def guards() -> str:
    """What guards a worker on this system."""
    if not SUPPORTED:
        return "none: models cannot be opened on this system"
    watched = "the main process and the system" if Path("/proc/self/statm").exists() else "the system alone"
    return f"time limited by the main process, memory by {watched}"


def kill_all() -> None:
    """Kill every worker of this process, which is about to exit."""
    for child in list(CHILDREN):
        _signal(child)


def environment() -> dict[str, str]:
    """This process's environment without what a worker does not need: it may hold passwords."""
    names = [name for name in os.environ if name in _ENVIRONMENT or name.startswith("LC_")]
    variables = {name: os.environ[name] for name in names}
    with unusable():  # else NVIDIA's driver keeps compiled kernels in a folder of its own in the user's home
        variables.setdefault("CUDA_CACHE_PATH", str(user_cache.folder() / "cuda"))
    return variables


def _reported(reply: Message) -> AuditError:
    """The error that a worker reports; its message is final, so no __init__ adds to it again."""
    kind = _ERRORS.get(str(reply["error"]), RuntimeFailure)
    text = str(reply.get("text"))[:_LONGEST_ERROR]
    error = kind.__new__(kind, text)
    if isinstance(error, NoGradient):
        error.reason = str(reply.get("reason"))[:_LONGEST_ERROR]
    return error


def _start(
    connection: int,
    errors: int,
    memory_bytes: int,
    module: str,
) -> "subprocess.Popen[bytes]":
    """A new child, with the descriptors of its connection and of its stderr."""
    arguments = json.dumps(import_path()), str(connection), str(memory_bytes), module
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", START, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        pass_fds=[connection],
        start_new_session=True,
        env=environment() | _ONE_THREAD,
    )
    CHILDREN.add(child)
    return child


def _signal(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child and what it has started."""
    if child.returncode is None:  # else its number may be that of another process by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def kill(child: "subprocess.Popen[bytes]") -> int:
    """Kill a child and what it has started, and wait for its end; returns its exit code."""
    _signal(child)
    return child.wait()


def _has_ended(child: "subprocess.Popen[bytes]") -> bool:
    """Whether a child has ended; its number stays its own until it is waited for."""
    if child.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return child.poll() is not None
    try:
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # another thread waits for it
        return True


def _end(child: "subprocess.Popen[bytes]", sockets: list[socket.socket], errors: _Tail) -> None:
    kill(child)
    for end in sockets:
        end.close()
    errors.close()


def _watch(
    reference: "weakref.ref[_Process]",
    start: "Callable[[], subprocess.Popen[bytes]]",
    started: "Future[subprocess.Popen[bytes]]",
) -> None:
    """Start a worker, and stop it if it hangs or takes too much memory: this runs in a thread.

    The system kills a worker when the thread that started it ends (see confinement): this one.
    """
    try:
        child = start()
    except BaseException as error:
        started.set_exception(error)
        return
    started.set_result(child)
    while not _has_ended(child):
        process = reference()
        if process is None:
            break
        process.watch()
        del process
        time.sleep(_WATCH_SECONDS)
    process = reference()
    if process is not None:
        process.end()
    kill(child)


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 once it has ended, and on macOS."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
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
        _FORKED.add(self)

    def after_fork(self) -> None:
        """In a forked process: no thread holds the lock there."""
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

    def call(
        self,
        function: str,
        *arguments: Value,
        seconds: float | None = None,
        most: int = _MOST_REPLY,
    ) -> Value:
        """What a function of the module returns, with arrays of at most so many bytes."""
        return self.process.call(function, None, arguments, seconds, most)

    def allow(self, memory_bytes: int) -> None:
        """Let it, and the children that replace it, hold so many bytes of main memory."""
        with self._lock:
            self.memory_bytes = memory_bytes
            if self._process is not None:
                self._process.memory_bytes = memory_bytes

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
        _FORKED.add(self)
        self._current()

    def after_fork(self) -> None:
        """In a forked process: no thread holds the lock there."""
        self._lock = threading.Lock()

    def _current(self) -> RemoteObject:
        with self._lock:
            process = self._worker.process
            if self._session is None or self._session.process is not process:
                self._session = process.call("LocalSession", None, self._arguments)
            return self._session

    def __getattr__(self, method: str) -> Callable[..., Value]:
        function: Callable[..., Value] = getattr(self._current(), method)
        return function

    def run(self, *arguments: Value, most: int | None) -> Value:
        """The outputs of one batch (see runtime.LocalSession.run), of at most so many bytes."""
        session = self._current()
        return session.process.call("run", session.number, arguments, most=most or _MOST_REPLY)


def _after_fork() -> None:
    """In a forked process: it starts new workers, and ends none of its parent's."""
    for child in CHILDREN:
        child.returncode = 0  # as of a process that has ended: it is neither killed nor waited for
    CHILDREN.clear()
    for copied in list(_FORKED):
        copied.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
