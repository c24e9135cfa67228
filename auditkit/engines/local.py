"""Processes of an engine on this machine, one for each GPU or share of the cores."""

import json
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from socket import socketpair

from auditkit.engines.pool import ProcessLost, Tick
from auditkit.engines.unit_runner import Job, UnitRunner
from auditkit.errors import AuditError
from auditkit.model import worker
from auditkit.model.messages import Value
from auditkit.model.runtime import SWITCH_SECONDS

START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from auditkit.engines.local import main; main()"
_MOST_UNITS = 8  # of one process at a time


class LocalProcess:
    """A process on this machine, and the units that it is busy with."""

    def __init__(self, threads: int, environment: Mapping[str, str]) -> None:
        """`environment` are variables that it gets besides this process's."""
        ours, theirs = socketpair()
        arguments = json.dumps(worker.import_path()), str(theirs.fileno()), str(threads)
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-c", START, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()], start_new_session=True, env={**os.environ, **environment},
        )  # fmt: skip
        theirs.close()
        worker.CHILDREN.add(self._child)
        self._connection = Connection(ours.detach())
        self._sending, self._numbers = threading.Lock(), iter(range(2**62))
        self._waiting: dict[int, queue.SimpleQueue[tuple[str, Value]]] = {}
        self._ended = False
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        """Hand each message to the call that waits for it; this runs in a thread."""
        with suppress(EOFError, OSError):
            while True:
                number, kind, value = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - our own process
                self._waiting[number].put((kind, value))
        self._ended = True
        for waiting in list(self._waiting.values()):
            waiting.put(("lost", None))

    def _call(self, method: str, *arguments: Value, tick: Tick = lambda _done, _rows: None) -> Value:
        waiting: queue.SimpleQueue[tuple[str, Value]] = queue.SimpleQueue()
        number = next(self._numbers)
        self._waiting[number] = waiting
        try:
            with self._sending:
                self._connection.send_bytes(pickle.dumps((number, method, arguments)))
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
        except OSError:
            pass
        finally:
            del self._waiting[number]
        raise ProcessLost("a worker process ended")

    def load(self, job: Job) -> str:
        """Load a job; returns the machine, process and device that its units run on."""
        lacking = self._call("lacks", list(job.recipes))
        return str(self._call("load", replace(job, recipes={key: job.recipes[key] for key in lacking})))

    def run(self, number: int, unit: Value, tick: Tick) -> Value:
        """What the work of a job returns for a unit."""
        return self._call("run", number, unit, tick=tick)

    def close(self) -> None:
        """End the process and its own worker."""
        self._child.kill()
        self._child.wait()
        self._connection.close()


class _Server:
    """The other end: answers calls in threads."""

    def __init__(self, connection: Connection, threads: int) -> None:
        self._connection, self._runner = connection, UnitRunner(threads)
        self._sending = threading.Lock()

    def serve(self) -> None:
        with suppress(EOFError, OSError), ThreadPoolExecutor(_MOST_UNITS) as threads:
            while True:
                number, method, arguments = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - our own process
                threads.submit(self._answer, number, method, arguments)
        os._exit(0)  # with its worker, whatever still runs

    def _answer(self, number: int, method: str, arguments: tuple[Value, ...]) -> None:
        try:
            if method == "load":
                (job,) = arguments
                os.chdir(job.folder)
                self._runner.load(job)
                result: object = self._runner.where
            elif method == "lacks":
                result = self._runner.lacks(*arguments)
            else:

                def tick(done: float, rows: int = 0) -> None:
                    self._send(number, "tick", (done, rows))

                result = self._runner.run(arguments[0], arguments[1], tick)
            self._send(number, "result", result)
        except AuditError as error:
            self._send(number, "error", error)
        except Exception as error:
            self._send(number, "error", RuntimeError(f"{type(error).__name__} in a worker process: {error}"))

    def _send(self, number: int, kind: str, value: object) -> None:
        content = pickle.dumps((number, kind, value))
        with self._sending:
            self._connection.send_bytes(content)


def main() -> None:
    """Answer the calls that arrive on the socket whose descriptor is an argument."""
    sys.setswitchinterval(SWITCH_SECONDS)
    _Server(Connection(int(sys.argv[2])), int(sys.argv[3])).serve()
