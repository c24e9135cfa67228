"""Distributes the units of a job over processes, and replaces those that are lost."""

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from auditkit.engines.travel import Recipes, packed
from auditkit.engines.unit_runner import Job
from auditkit.errors import ModelFailure, RuntimeFailure
from auditkit.model.device import PROFILES, Location
from auditkit.model.messages import Value

Tick = Callable[[float, int], None]  # of images done, in fractions too, and of rows run

AHEAD = 1  # units that wait in a process while others are on its device
MOST_CALLS = max(profile.units_at_once for profile in PROFILES.values()) + AHEAD  # of a process at a time
_MOST_LOST = 3  # processes that may end with a unit, or one after the other before they are ready


class ProcessLost(Exception):
    """A process ended before it gave an answer."""


class NotReady(Exception):
    """A process could not be started or could not load its job."""


class WorkerProcess(Protocol):
    """A process that runs units, wherever it is."""

    def load(self, job: Job) -> Location:
        """Prepare for the units of a job; where they run."""

    def run(self, number: int, unit: Value, tick: Tick) -> Value:
        """What the work of a job returns for a unit; ProcessLost if the process ends before."""

    def close(self) -> None:
        """End the process."""


class Pool:
    """An engine: processes that are started when they are needed, and that run the units of one job at a time."""

    def __init__(self, start: Callable[[int], WorkerProcess], count: int, speedup: float = 1.0) -> None:
        """`start` starts the process of a number below `count`; `speedup` is that of all over this process."""
        self.speedup = speedup
        self._slots = [_Slot(start, number) for number in range(count)]
        self._jobs = 0
        self._by_kind: dict[str, dict[str, Value]] = {}  # results of a subject, by the kind of device
        # Called for each unit with the number of its worker from 1, where that runs, and the unit's description.
        self.on_unit: Callable[[int, Location, str], None] | None = None

    @property
    def count(self) -> int:
        """How many processes there are."""
        return len(self._slots)

    def run(
        self, work: Callable[..., Value], units: Iterable[Value], keep: Callable[[Value, Value], None], tick: Tick,
        at_once: int,
    ) -> tuple[list[Value], list[Value]]:  # fmt: skip
        """Run work on units and keep the results; those that the model failed on, and those not begun."""
        job = self._job(work, at_once)

        def keep_and_log(unit: Value, result: Value, slot: _Slot) -> None:
            keep(unit, result)
            if self.on_unit is not None and slot.where is not None:
                self.on_unit(slot.number + 1, slot.where, _described(work, unit))

        running, lanes = _Running(job, list(units), self.count, keep_and_log, tick), at_once + AHEAD
        with ThreadPoolExecutor(self.count * lanes) as threads:
            futures = [threads.submit(running.serve, slot) for slot in self._slots * lanes]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                running.stop()
                self.close()  # so that no thread waits for an answer
                raise
        return running.outcome(self._slots[0].problem)

    def on_each_kind(self, work: Callable[..., Value], besides: str, subject: str) -> dict[str, Value]:
        """What work on a subject returns in one process on each kind of device, besides one kind.

        It is run once on each kind, however often this is called.
        """
        results = self._by_kind.setdefault(subject, {})
        if {slot.kind for slot in self._slots} <= {besides, *results}:
            return results
        job, ready = self._job(work, 1), dict[str, WorkerProcess]()

        def start(slot: _Slot) -> None:
            with suppress(NotReady):  # another process fills the slot when units are run
                process = slot.ready(job)
                ready.setdefault(slot.kind, process)

        with ThreadPoolExecutor(self.count) as threads:
            list(threads.map(start, self._slots))
        for kind in sorted(ready.keys() - {besides, *results}):
            with suppress(ProcessLost):
                results[kind] = ready[kind].run(job.number, None, lambda _done, _rows: None)
        return results

    def _job(self, work: Callable[..., Value], at_once: int) -> Job:
        content, parts = packed(work)
        self._jobs += 1
        return Job(self._jobs, content, Recipes(parts), at_once, os.getcwd())

    def close(self) -> None:
        """End all processes; the next job starts new ones."""
        for slot in self._slots:
            slot.close()


def _described(work: Callable[..., Value], unit: Value) -> str:
    """A unit of some work, as it is logged."""
    name = str(getattr(unit, "name", "") or getattr(work, "name", type(work).__name__))
    positions: Sequence[int] = unit if isinstance(unit, range) else getattr(unit, "positions", ())
    if len(positions) > 1 and list(positions) == list(range(positions[0], positions[-1] + 1)):
        return f"{name} {positions[0]} to {positions[-1]}"
    return " ".join([name, ", ".join(map(str, positions))]).rstrip()


class _Slot:
    """A slot for one process; when the process is lost, another one fills it."""

    def __init__(self, start: Callable[[int], WorkerProcess], number: int) -> None:
        self._start = start
        self.number = number
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._job, self._lost_in_a_row = 0, 0
        self.where: Location | None = None  # where its process runs
        self.problem = ""  # why its last process was not ready

    @property
    def kind(self) -> str:
        """The kind of device; empty before the first process is ready."""
        return "" if self.where is None else self.where.device

    @property
    def is_given_up(self) -> bool:
        """Whether no process stays alive here."""
        return self._lost_in_a_row >= _MOST_LOST

    def ready(self, job: Job) -> WorkerProcess:
        """The process, with the job loaded."""
        with self._lock:
            try:
                if self._process is None:
                    self._process, self._job = self._start(self.number), 0
                if self._job != job.number:
                    self.where, self._job = self._process.load(job), job.number
                    self._lost_in_a_row = 0
            except (ProcessLost, ModelFailure, OSError) as error:  # OSError: of the system, as it starts the process
                self._lost_in_a_row += 1
                self.problem = str(error).partition("\n")[0].removesuffix(".")
                self._end()
                raise NotReady from error
            return self._process

    def leave(self, process: WorkerProcess) -> None:
        """Empty the slot of a process that was lost."""
        with self._lock:
            if self._process is process:
                self._end()

    def close(self) -> None:
        """End the process, without waiting for one that is about to start."""
        process = self._process
        if process is not None:
            process.close()
            self.leave(process)

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


class _Running:
    """A job at work: its units, and the threads that wait for their results."""

    def __init__(
        self, job: Job, units: list[Value], processes: int, keep: Callable[[Value, Value, _Slot], None], tick: Tick
    ) -> None:  # fmt: skip
        self._job, self._units, self._processes, self._keep, self._tick = job, units, processes, keep, tick
        self._pending, self._failed = deque(range(len(units))), list[int]()
        self._busy, self._lost = dict[int, _Slot](), Counter[int]()  # units in hand, and where
        self._changed, self._stopped = threading.Condition(), False

    def outcome(self, problem: str) -> tuple[list[Value], list[Value]]:
        """The units that the model failed on, and those not begun; RuntimeFailure if no process was left for them.

        Its `problem` says why.
        """
        if self._pending and not self._stopped:
            raise RuntimeFailure(f"no worker process could be started ({problem}); run 'auditkit doctor', or try "
                                 "--workers 1.")  # fmt: skip
        return [self._units[index] for index in self._failed], [self._units[index] for index in self._pending]

    def stop(self) -> None:
        """Begin no further unit."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def serve(self, slot: _Slot) -> None:
        """Run one unit after the other in a slot's process, until all are done; several threads do."""
        while not slot.is_given_up and (index := self._next(slot)) is not None:
            try:
                self._run(slot, index)
            except NotReady:
                self._put_back(index)
            except ProcessLost:
                self._put_back(index, lost=1)
            except ModelFailure:
                self._failed.append(index)
                self.stop()
            except BaseException:
                self.stop()
                raise
            finally:
                with self._changed:
                    del self._busy[index]
                    self._changed.notify_all()

    def _next(self, slot: _Slot) -> int | None:
        """The next unit for a slot; None when all are done or the job is stopped."""
        with self._changed:
            while not self._stopped and self._has_to_wait(slot):
                self._changed.wait()
            if self._stopped or not self._pending:
                return None
            index = self._pending.popleft()
            self._busy[index] = slot
            return index

    def _has_to_wait(self, slot: _Slot) -> bool:
        """Whether a unit may yet have to be retried, or the last ones are left to processes that have nothing to do."""
        if not self._pending:
            return bool(self._busy)
        in_hand = sum(busy is slot for busy in self._busy.values())
        return len(self._pending) < self._processes and in_hand >= self._job.at_once

    def _run(self, slot: _Slot, index: int) -> None:
        process, unit, counted = slot.ready(self._job), self._units[index], 0.0

        def tick(done: float, rows: int = 0) -> None:
            nonlocal counted
            counted += done
            self._tick(done, rows)

        try:
            result = process.run(self._job.number, unit, tick)
        except ProcessLost:
            self._tick(-counted, 0)
            slot.leave(process)
            raise
        with self._changed:  # one at a time
            self._keep(unit, result, slot)

    def _put_back(self, index: int, lost: int = 0) -> None:
        """Let a unit run again, unless it has ended too many processes."""
        with self._changed:
            self._lost[index] += lost
            if self._lost[index] >= _MOST_LOST:
                self._stopped = True
                raise RuntimeFailure(f"{_MOST_LOST} worker processes died on the same unit of work. If memory is "
                                     "short, use fewer --workers.")  # fmt: skip
            self._pending.appendleft(index)
