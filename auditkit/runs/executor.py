"""Runs units of work, several at a time: while one holds the device, the next ones are prepared."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Event, Semaphore
from typing import Generic, Protocol, TypeVar

Unit = TypeVar("Unit")
Batch = TypeVar("Batch")
Result = TypeVar("Result")

FEWEST_AHEAD, MOST_AHEAD = 1, 3  # units prepared meanwhile; more threads than that wait for each other
SWITCH_SECONDS = 2e-4  # Python's 5 ms would let the device wait for a thread that prepares


class Tick(Protocol):
    """Reports progress."""

    def __call__(self, done: int, rows: int = 0) -> None:
        """Count images that are done, and rows that the model has run meanwhile."""


Progress = Callable[[int], Tick]  # of the number of images in all


def silent(_total: int) -> Tick:
    """Progress that nobody watches."""

    def tick(done: int, rows: int = 0) -> None:
        del done, rows

    return tick


@dataclass(frozen=True)
class Limits:
    """How many units are in hand at once; the default is one after the other, in the caller's thread."""

    running: int = 1  # on the device
    ahead: int = 0  # being prepared meanwhile

    @classmethod
    def for_device(cls, running: int) -> "Limits":
        """As many units ahead as half of the processor's cores can prepare."""
        return cls(running, min(max(FEWEST_AHEAD, (os.cpu_count() or 1) // 2), MOST_AHEAD))


@dataclass(frozen=True)
class Stages(Generic[Unit, Batch, Result]):
    """What is done with a unit: `run` uses the device inside the context it is given; nothing else does."""

    prepare: Callable[[Unit], Batch]
    run: Callable[[Batch, AbstractContextManager[None]], Result]
    keep: Callable[[Unit, Result], None]


class _Stopped(Exception):
    """Another unit has failed."""


def execute(units: Sequence[Unit], stages: Stages[Unit, Batch, Result], limits: Limits = Limits()) -> None:
    """Prepare, run and keep every unit; after the first error no further unit is begun."""
    if limits.running + limits.ahead == 1:
        for unit in units:
            stages.keep(unit, stages.run(stages.prepare(unit), nullcontext()))
        return
    device, stop = Semaphore(limits.running), Event()

    @contextmanager
    def turn() -> Iterator[None]:
        with device:
            if stop.is_set():
                raise _Stopped
            yield

    def process(unit: Unit) -> None:
        if stop.is_set():
            return
        try:
            stages.keep(unit, stages.run(stages.prepare(unit), turn()))
        except _Stopped:
            return
        except BaseException:
            stop.set()
            raise

    with _quick_handover(), ThreadPoolExecutor(limits.running + limits.ahead) as threads:
        try:
            for future in [threads.submit(process, unit) for unit in units]:
                future.result()
        except BaseException:
            stop.set()
            raise


@contextmanager
def _quick_handover() -> Iterator[None]:
    """Let threads take turns often: the one that feeds the device must not wait for the one that prepares."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
