"""Processes of an engine on a Ray cluster: an actor for each GPU, or for a share of a machine's cores.

Actors need no shared disk. Models and work travel through Ray's object store, and an actor that needs an image or a map
asks a helper actor on the machine of the main process, which has the files.
"""

import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from auditkit import elsewhere
from auditkit.elsewhere import Result
from auditkit.engines.pool import MOST_CALLS, ProcessLost, Tick
from auditkit.engines.unit_runner import Job, UnitRunner, outcome
from auditkit.errors import BadInput
from auditkit.model.device import Location
from auditkit.model.doctor import versions
from auditkit.model.messages import Value
from auditkit.model.runtime import SWITCH_SECONDS

_READERS = 8  # files that are read at once for all actors
_READY_SECONDS = 120.0  # for an actor to start
_REACH_SECONDS = 10.0  # for a machine of the cluster to answer


class Cluster:
    """A Ray cluster that this process has joined."""

    def __init__(self, address: str | None) -> None:
        """`address` as for ray.init; None starts a cluster on this machine, or joins the one that RAY_ADDRESS names."""
        at_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            _reach(address or "")
            ray.init(address=address, namespace="auditkit", log_to_driver=False, logging_level="ERROR",
                     include_dashboard=False, ignore_reinit_error=True)  # fmt: skip
        except (OSError, RuntimeError, ValueError) as error:
            where = f"at {address}" if address else "on this machine"
            raise BadInput(f"there is no Ray cluster {where}: {str(error).splitlines()[0].rstrip('.')}.") from None
        finally:
            if at_sigterm is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, at_sigterm)  # Ray's own would change the exit code
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._reader = ray.remote(_Reader).options(
            num_cpus=0, max_concurrency=_READERS, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1
        ).remote()  # fmt: skip
        self._sharing = threading.Lock()
        self._shared: dict[int | str, Value] = {}  # the last job and the recipes of its models, in the object store

    def resources(self, kind: str) -> list[int]:
        """How many GPUs or CPUs each machine of the cluster has."""
        return [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]

    def start(self, threads: int, gpus: int) -> "RayProcess":
        """A new actor."""
        return RayProcess(self, self._reader, threads, gpus)

    def share(self, job: Job, keys: Sequence[str]) -> list[Value]:
        """The job without its recipes, and those of some models, as references into the object store."""
        with self._sharing:
            if job.number not in self._shared:
                self._shared = {key: entry for key, entry in self._shared.items() if key in job.recipes}
                self._shared[job.number] = ray.put(replace(job, recipes={}))
            for key in keys:
                if key not in self._shared:
                    self._shared[key] = ray.put(job.recipes[key])
            return [self._shared[job.number], *(self._shared[key] for key in keys)]


def _reach(address: str) -> None:
    """OSError if nothing answers at the address; Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), _REACH_SECONDS).close()


class RayProcess:
    """An actor, seen from the main process."""

    def __init__(self, cluster: Cluster, reader: Value, threads: int, gpus: int) -> None:
        self._cluster = cluster
        self._actor = ray.remote(_Actor).options(
            num_cpus=threads, num_gpus=gpus, max_concurrency=MOST_CALLS, max_restarts=0
        ).remote(threads, reader)  # fmt: skip

    def load(self, job: Job) -> Location:
        """Prepare for the units of a job; where they run."""
        try:
            theirs, keys = ray.get(self._actor.lacks.remote(list(job.recipes)), timeout=_READY_SECONDS)
            _compare_versions(theirs)
            shared = self._cluster.share(job, keys)
            kind, value = ray.get(self._actor.load.remote(keys, *shared), timeout=_READY_SECONDS)
        except (RayError, GetTimeoutError) as error:
            raise ProcessLost(str(error)) from None
        if kind == "error":
            raise value
        where: Location = value
        return where

    def run(self, number: int, unit: Value, tick: Tick) -> Value:
        """What the work of a job returns for a unit."""
        try:
            for reference in self._actor.run.options(num_returns="streaming").remote(number, unit):
                kind, value = ray.get(reference)
                if kind == "tick":
                    tick(*value)
                elif kind == "error":
                    raise value
                else:
                    return value
        except RayError as error:
            raise ProcessLost(str(error)) from None
        raise ProcessLost("an actor gave no answer")

    def close(self) -> None:
        """End the actor and its worker."""
        ray.kill(self._actor)


def _compare_versions(theirs: Mapping[str, str]) -> None:
    """BadInput where a machine has other versions than this one, since its results would be others."""
    for name, version in versions().items():
        if theirs[name] != version:
            raise BadInput(f"the machine {theirs['machine']} of the Ray cluster has {name} {theirs[name]}, this one "
                           f"{version}; install the same versions on all machines.")  # fmt: skip


class _Reader:
    """Reads files for actors on other machines."""

    def call(self, folder: str, function: Callable[..., Value], arguments: tuple[Value, ...]) -> tuple[str, Value]:
        """What the function returns, or the error that it raises; relative paths refer to the folder."""
        os.chdir(folder)
        return outcome(lambda: function(*arguments))


class _Actor:
    """A process of the engine."""

    def __init__(self, threads: int, reader: Value) -> None:
        self._runner, self._folder = UnitRunner(threads), ""
        sys.setswitchinterval(SWITCH_SECONDS)

        def ask(function: Callable[..., Result], *arguments: object) -> Result:
            kind, value = ray.get(reader.call.remote(self._folder, function, arguments))
            if kind == "error":
                raise value
            result: Result = value
            return result

        elsewhere.use(ask)

    def lacks(self, keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """The versions of what computes here, and which of these models are not open."""
        return {"machine": socket.gethostname(), **versions()}, self._runner.lacks(keys)

    def load(self, keys: Sequence[str], job: Job, *recipes: bytes) -> tuple[str, Value]:
        """Prepare for the units of a job, with the recipes of the models that are not open."""

        def load() -> Location:
            self._folder = job.folder
            self._runner.load(replace(job, recipes=dict(zip(keys, recipes, strict=True))))
            return self._runner.where

        return outcome(load)

    def run(self, number: int, unit: Value) -> Iterator[tuple[str, Value]]:
        """Progress, and at last the result or the error."""
        replies: queue.SimpleQueue[tuple[str, Value]] = queue.SimpleQueue()

        def work() -> None:
            replies.put(outcome(lambda: self._runner.run(number, unit, tick)))

        def tick(done: float, rows: int = 0) -> None:
            replies.put(("tick", (done, rows)))

        threading.Thread(target=work, daemon=True).start()
        while True:
            reply = replies.get()
            yield reply
            if reply[0] != "tick":
                return
