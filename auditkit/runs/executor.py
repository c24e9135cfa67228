"""Runs units of work, several at a time: while one holds the device, the next ones are prepared."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Semaphore
from typing import Protocol, TypeVar

Unit = TypeVar("Unit")
Batch = TypeVar("Batch")
Result = TypeVar("Result")

FEWEST_AHEAD, MOST_AHEAD = 1, 3  # units; more threads than that wait for each other
SWITCH_SECONDS = 2e-4  # Python's 5 ms would let the device wait for a thread that prepares


class Tick(Protocol):
    """Reports progress."""

    def __call__(self, done: int, rows: int = 0, /) -> None:
        """Count images that are done, and rows that the model has run meanwhile."""


Progress = Callable[[int], Tick]  # of the number of images in all


def silent(_total: int) -> Tick:
    """Progress that nobody watches."""
    return lambda _done, _rows=0: None


def units_ahead() -> int:
    """How many units are prepared meanwhile: as many as half of the processor's cores can prepare."""
    return min(max(FEWEST_AHEAD, (os.cpu_count() or 1) // 2), MOST_AHEAD)


class _Stopped(Exception):
    """Another unit has failed."""


def execute(
    units: Iterable[Unit], prepare: Callable[[Unit], Batch],
    run: Callable[[Batch, AbstractContextManager[None]], Result], keep: Callable[[Unit, Result], None],
    running: int, ahead: int,
) -> None:  # fmt: skip
    """Prepare, run and keep every unit; after the first error no further unit is begun.

    Only `run` uses the device, inside the context that it is given. At most `running` units do so at once, while up to
    `ahead` are prepared.
    """
    device, stop = Semaphore(running), Event()

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
            keep(unit, run(prepare(unit), turn()))
        except _Stopped:
            return
        except BaseException:
            stop.set()
            raise

    with _quick_handover(), ThreadPoolExecutor(running + ahead) as threads:
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
