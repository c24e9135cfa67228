"""Runs units of work, several at a time: while one holds the device, the next ones are prepared."""

import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Event, Lock, Semaphore
from typing import Generic, NoReturn, Protocol, Self, TypeVar

from auditkit.cores import usable_cores
from auditkit.data.dataset import FailedImage
from auditkit.errors import BadInput, ModelFailure, RuntimeFailure
from auditkit.model.classifier import AnyClassifier
from auditkit.model.runtime import SWITCH_SECONDS

Unit = TypeVar("Unit")
Result = TypeVar("Result")

FEWEST_AHEAD, MOST_AHEAD = 1, 3  # units; more threads than that wait for each other
_AS_EXPECTED = 0.9  # of a unit that has run as many rows as expected; some need several times as many


class Tick(Protocol):
    """Reports progress."""

    def __call__(self, done: float, rows: int = 0, /) -> None:
        """Count images that are done, in fractions too, and rows that the model has run meanwhile."""


Progress = Callable[[int], Tick]  # of the number of images in all
Phase = Callable[[str], AbstractContextManager[Progress]]  # of work, by its name
# What is done with a unit, with the device inside its context. It can be pickled, as it may run in another process.
Work = Callable[[Unit, AbstractContextManager[None], Tick], Result]


def silent(_total: int) -> Tick:
    """Progress that is not reported."""
    return lambda _done, _rows=0: None


def silent_phase(_name: str) -> AbstractContextManager[Progress]:
    """A phase of work that is not reported."""
    return nullcontext(silent)


class UnitProgress:
    """Progress within a unit: rows count as fractions of its images until it ends, and then no longer."""

    def __init__(self, tick: Tick, images: int) -> None:
        self._tick, self._images = tick, images
        self._expected = self._done = 0  # rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._tick(-self._fraction())

    def expect(self, rows: int) -> None:
        """Say how many rows the unit will run, at most or about."""
        self._tick(-self._fraction())
        self._expected, self._done = rows, 0

    def count(self, rows: int) -> None:
        """Count rows that were run."""
        before = self._fraction()
        self._done += rows
        self._tick(self._fraction() - before, rows)

    def _fraction(self) -> float:
        if not self._done or not self._expected:
            return 0.0
        rows = self._done / self._expected
        return self._images * (_AS_EXPECTED * rows if rows < 1 else 1 - (1 - _AS_EXPECTED) / rows)


def units_ahead() -> int:
    """How many units are prepared meanwhile: as many as half of the processor's cores can prepare."""
    return min(max(FEWEST_AHEAD, usable_cores() // 2), MOST_AHEAD)


@dataclass(frozen=True)
class Shard:
    """One of several parts of a job, which are computed apart and merged."""

    number: int  # from 1
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """The shard of a text such as 2/8."""
        parts = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        number, of = (int(parts[1]), int(parts[2])) if parts else (0, 0)
        if not 1 <= number <= of:
            raise BadInput(f"--shard {text} is not a shard such as 2/8, the second of eight.")
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def part(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Its share of the units, which follow each other."""
        count = len(units)
        if self.of > count:
            raise BadInput(f"--shard {self} asks for more shards than there are units of work, {count}; use fewer.")
        return units[count * (self.number - 1) // self.of : count * self.number // self.of]


class InOrder(Generic[Unit, Result]):
    """Keeps results in the order of their units, whichever is finished first and in whichever thread."""

    def __init__(
        self, units: Iterable[Unit], keep: Callable[[Unit, Result], None],
        shrink: Callable[[Result], Result] = lambda result: result,
    ) -> None:  # fmt: skip
        """`shrink` saves a result that has to wait, and gives what stays in memory."""
        self._order, self._keep, self._shrink, self._lock = deque(units), keep, shrink, Lock()
        self._waiting: dict[Unit, Result] = {}

    def keep(self, unit: Unit, result: Result) -> None:
        """Keep the result as soon as those before it are kept."""
        with self._lock:
            self._waiting[unit] = result if unit == self._order[0] else self._shrink(result)
            self._go_on()

    def leave_out(self, unit: Unit) -> None:
        """Wait no longer for a unit."""
        with self._lock:
            self._order.remove(unit)
            self._go_on()

    def _go_on(self) -> None:
        while self._order and self._order[0] in self._waiting:
            unit = self._order[0]
            self._keep(unit, self._waiting.pop(unit))
            self._order.popleft()  # not before: after an error, all later units have to wait


class _Stopped(Exception):
    """Another unit has failed."""


def execute(
    model: AnyClassifier, work: Work[Unit, Result], units: Iterable[Unit], keep: Callable[[Unit, Result], None],
    tick: Tick, at_once: int | None = None,
) -> tuple[list[Unit], list[Unit]]:  # fmt: skip
    """Run work on units and keep the results, until the model fails on one.

    Returns the units that it failed on, and those not begun. The work runs in the processes of the model's engine, or
    else in threads of this one; `at_once` units are on a device at a time, by default as many as it likes.
    """
    at_once = at_once or model.device.units_at_once
    if model.engine is not None:
        return model.engine.run(work, units, keep, tick, at_once)
    return execute_here(work, units, keep, tick, at_once, units_ahead())


def execute_all(
    model: AnyClassifier, work: Work[Unit, Result], units: Sequence[Unit],
    done: Callable[[Unit], None] = lambda _unit: None, at_once: int | None = None,
) -> list[Result]:  # fmt: skip
    """What the work returns for each unit; `done` is called as soon as one is. The model's error if it fails on one."""
    results = dict[Unit, Result]()

    def keep(unit: Unit, result: Result) -> None:
        results[unit] = result
        done(unit)

    failed, _ = execute(model, work, units, keep, silent(0), at_once)
    if failed:
        raise_failure(work, failed[0])
    return [results[unit] for unit in units]


def raise_failure(work: Work[Unit, Result], unit: Unit) -> NoReturn:
    """Try a unit that the model failed on once more, so that the error is the model's own."""
    work(unit, nullcontext(), silent(0))
    raise RuntimeFailure("the model failed on some images, but not on a second try; run the command again.")


def execute_here(
    work: Work[Unit, Result], units: Iterable[Unit], keep: Callable[[Unit, Result], None], tick: Tick,
    running: int, ahead: int,
) -> tuple[list[Unit], list[Unit]]:  # fmt: skip
    """The same in threads of this process: at most `running` units are on the device, while up to `ahead` prepare."""
    device, stop = Semaphore(running), Event()
    failed, not_begun = list[Unit](), list[Unit]()

    @contextmanager
    def turn() -> Iterator[None]:
        with device:
            if stop.is_set():
                raise _Stopped
            yield

    def process(unit: Unit) -> None:
        if stop.is_set():
            not_begun.append(unit)
            return
        try:
            keep(unit, work(unit, turn(), tick))
        except _Stopped:
            not_begun.append(unit)
        except ModelFailure:
            failed.append(unit)
            stop.set()
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
    return failed, not_begun


@contextmanager
def errors_naming(images: Sequence[str]) -> Iterator[None]:
    """Name the images in the error if the model gives no answer for them."""
    try:
        yield
    except ModelFailure as error:
        several = f" and {len(images) - 1} more up to '{images[-1]}'" if len(images) > 1 else ""
        raise RuntimeFailure(f"image '{images[0]}'{several}: {as_sentence(error)}") from None


def as_sentence(error: ModelFailure) -> str:
    """The reason as it is recorded: a sentence."""
    return str(error).removesuffix(".") + "."


class SkippedImages:
    """Images that are left out because the model gives no answer for them: no more than its settings allow.

    A model must not be able to drop images of its choice unnoticed, so by default the first one ends the run.
    """

    def __init__(self, model: AnyClassifier) -> None:
        self._allowed = model.settings.allow_failed if model.settings is not None else 0
        self.images: list[FailedImage] = []

    def add(self, image: str, error: ModelFailure) -> None:
        """Leave out an image; RuntimeFailure if there are too many."""
        self.images.append(FailedImage(image, as_sentence(error), by_model=True))
        self.check(self.images)

    def check(self, images: Iterable[FailedImage]) -> None:
        """RuntimeFailure if the model failed on more of these images than allowed."""
        failed = [failure for failure in images if failure.by_model]
        if len(failed) > self._allowed:
            reason = failed[-1].reason.removesuffix(".")
            remedy = f"to leave out images on which the model fails, give --allow-failed {len(failed)} or more"
            raise RuntimeFailure(f"image '{failed[-1].image}': {reason}; {remedy}.")


def retry_without_failing_images(
    unit: Sequence[int], images: Sequence[str], work: Callable[[Sequence[int]], Result], left_out: SkippedImages
) -> Result:
    """The work on a unit that the model failed on, without the images that it fails on when they are alone."""
    try:
        return work(unit)
    except ModelFailure as error:
        together = error
    sound: list[int] = []
    for position in unit:
        try:
            work([position])
            sound.append(position)
        except ModelFailure as error:
            left_out.add(images[position], error)
    if len(sound) == len(unit):
        with errors_naming([images[position] for position in unit]):
            raise together
    return work(sound)


@contextmanager
def _quick_handover() -> Iterator[None]:
    """Let threads take turns often: the one that feeds the device must not wait for the one that prepares."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
