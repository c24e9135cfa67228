"""Processes of an engine on this machine, one for each GPU or share of the cores."""

import json
import os
import pickle
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from socket import socketpair

from auditkit.engines.pool import ProcessLost, Tick
from auditkit.engines.unit_runner import Job, UnitRunner, outcome
from auditkit.model import worker
from auditkit.model.device import Location
from auditkit.model.messages import Value
from auditkit.model.runtime import SWITCH_SECONDS

START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from auditkit.engines.local import main; main()"


def _own_cache() -> dict[str, str]:
    """Where the user has put caches, if not in their usual place: these processes keep digests there."""
    return {name: os.environ[name] for name in ("XDG_CACHE_HOME",) if name in os.environ}


class LocalProcess:
    """A process on this machine, and the units that it is busy with."""

    def __init__(self, threads: int, environment: dict[str, str]) -> None:
        """`environment` are variables that it gets besides those of a worker."""
        ours, theirs = socketpair()
        arguments = json.dumps(worker.import_path()), str(theirs.fileno()), str(threads)
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-c", START, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env=worker.environment() | _own_cache() | environment,
        )
        theirs.close()
        worker.CHILDREN.add(self._child)
        self._connection = Connection(ours.detach())
        self._sending, self._numbers = threading.Lock(), iter(range(2**62))
        self._waiting: dict[int, queue.SimpleQueue[tuple[str, Value]]] = {}
        self._ended = False
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        """Hand each message to the call that waits for it; this runs in a thread."""
        try:
            with suppress(EOFError, OSError, MemoryError):
                while True:
                    number, kind, value = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - our own process
                    waiting = self._waiting.get(number)
                    if waiting is not None:  # its call was not interrupted
                        waiting.put((kind, value))
        finally:  # whatever happened, nobody waits for an answer that never comes
            self._ended = True
            for waiting in list(self._waiting.values()):
                waiting.put(("lost", None))
            with self._sending:
                self._connection.close()

    def _call(self, method: str, *arguments: Value, tick: Tick = lambda _done, _rows: None) -> Value:
        waiting: queue.SimpleQueue[tuple[str, Value]] = queue.SimpleQueue()
        number = next(self._numbers)
        self._waiting[number] = waiting
        try:
            self._send(pickle.dumps((number, method, arguments)))
            while not (self._ended and waiting.empty()):
                kind, value = waiting.get()
                if kind == "tick":
                    tick(*value)
                elif kind == "result":
                    return value
                elif kind == "error":
                    raise value
                else:
                    break
        finally:
            del self._waiting[number]
        raise ProcessLost("a worker process ended")

    def _send(self, content: bytes) -> None:
        with self._sending, suppress(OSError):  # _receive notices that the process has ended
            self._connection.send_bytes(content)

    def load(self, job: Job) -> Location:
        """Load a job; returns where its units run."""
        lacking = self._call("lacks", list(job.recipes))
        where: Location = self._call("load", replace(job, recipes={key: job.recipes[key] for key in lacking}))
        return where

    def run(self, number: int, unit: Value, tick: Tick) -> Value:
        """What the work of a job returns for a unit."""
        return self._call("run", number, unit, tick=tick)

    def close(self) -> None:
        """End the process and its own worker."""
        worker.kill(self._child)


class _Server:
    """The other end: answers calls in threads."""

    def __init__(self, connection: Connection, threads: int) -> None:
        self._connection, self._runner = connection, UnitRunner(threads)
        self._sending = threading.Lock()

    def serve(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                call = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - our own process
                threading.Thread(target=self._answer, args=call, daemon=True).start()
        os._exit(0)  # with its worker, whatever still runs

    def _answer(self, number: int, method: str, arguments: tuple[Value, ...]) -> None:
        kind, value = outcome(lambda: pickle.dumps((number, "result", self._result(number, method, arguments))))
        self._send(value if kind == "result" else pickle.dumps((number, kind, value)))

    def _result(self, number: int, method: str, arguments: tuple[Value, ...]) -> Value:
        if method == "lacks":
            return self._runner.lacks(*arguments)
        if method == "load":
            (job,) = arguments
            os.chdir(job.folder)
            self._runner.load(job)
            return self._runner.where

        def tick(done: float, rows: int = 0) -> None:
            self._send(pickle.dumps((number, "tick", (done, rows))))

        return self._runner.run(arguments[0], arguments[1], tick)

    def _send(self, content: bytes) -> None:
        with self._sending, suppress(OSError):  # serve notices that the main process has ended
            self._connection.send_bytes(content)


def main() -> None:
    """Answer the calls that arrive on the socket whose descriptor is an argument."""
    sys.setswitchinterval(SWITCH_SECONDS)
    _Server(Connection(int(sys.argv[2])), int(sys.argv[3])).serve()
