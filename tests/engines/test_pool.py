"""The pool: every unit is kept once whatever happens to its processes, which are threads here."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.engines import travel, unit_runner
from auditkit.engines.pool import Pool, ProcessLost, Tick, _Running, _Slot
from auditkit.engines.travel import Recipes, packed
from auditkit.engines.unit_runner import Job, UnitRunner
from auditkit.errors import ModelFailure, OutOfMemory, RuntimeFailure
from auditkit.model.device import Location
from tests.support import onnx_models


def square(unit: int, _device: object, _tick: Tick) -> int:
    return unit * unit


def shape(images: Dataset, _unit: int, _device: object, _tick: Tick) -> tuple[int, int]:
    return len(images), len(images.images[0])


class FakeProcess:
    """A process that ends, or whose model fails, when a function says so."""

    def __init__(self, number: int, event: Callable[[int, int], Exception | None]) -> None:
        self._number, self._event = number, event
        self.jobs: list[int] = []
        self.closed = False

    def load(self, job: Job) -> Location:
        error = self._event(self._number, -1)
        if error is not None:
            raise error
        self.jobs.append(job.number)
        return Location("here", self._number, "", "a processor")

    def run(self, number: int, unit: Any, tick: Tick) -> Any:
        assert self.jobs[-1] == number
        tick(0.5, 10)
        error = self._event(self._number, unit)
        if error is not None:
            raise error
        tick(-0.5, 0)
        return unit * unit

    def close(self) -> None:
        self.closed = True


class Watched:
    """A pool of such processes, and what it kept."""

    def __init__(self, count: int, event: Callable[[int, int], Exception | None] = lambda _slot, _unit: None) -> None:
        self.processes: list[FakeProcess] = []
        self.kept: Counter[int] = Counter()
        self.done = 0.0
        self._event = event
        self.pool, self.log = Pool(self._start, count), list[tuple[int, Location, str]]()
        self.pool.on_unit = lambda *entry: self.log.append(entry)

    def _start(self, number: int) -> FakeProcess:
        process = FakeProcess(number, self._event)
        self.processes.append(process)
        return process

    def run(self, units: int = 30) -> tuple[list[int], list[int]]:
        def keep(unit: int, result: int) -> None:
            assert result == unit * unit
            self.kept[unit] += 1

        def tick(done: float, _rows: int) -> None:
            self.done += done

        return self.pool.run(square, range(units), keep, tick, 1)


class Lacking(FakeProcess):
    """A process that lacks the models of its first job."""

    def load(self, job: Job) -> Location:
        if not self.jobs:
            dict(job.recipes)
        return super().load(job)


class Once:
    """An error the first time that a unit is run."""

    def __init__(self, error: Exception, *units: int) -> None:
        self._error, self._units, self._lock = error, set(units), threading.Lock()

    def __call__(self, _slot: int, unit: int) -> Exception | None:
        with self._lock:
            if unit not in self._units:
                return None
            self._units.discard(unit)
            return self._error


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_unit_is_kept_once(count: int) -> None:
    watched = Watched(count)
    assert watched.run() == ([], [])
    assert watched.kept == Counter(range(30))
    assert len(watched.log) == 30
    assert all(worker == where.process + 1 for worker, where, _unit in watched.log)


def test_processes_serve_one_job_after_the_other() -> None:
    watched = Watched(2)
    for _ in range(3):
        watched.run()
    assert len(watched.processes) <= 2
    assert set(watched.kept.values()) == {3}


def test_a_model_is_pickled_once_for_the_processes_that_lack_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = auditkit.load(onnx_models.save(onnx_models.convnet(), tmp_path), preset="unit")
    monkeypatch.setattr(travel.Recipe, "of", lambda _model: pickled.append(1))
    jobs, pickled = Pool(lambda number: Lacking(number, lambda _slot, _unit: None), 2), list[int]()
    for _ in range(3):
        jobs.run(partial(square, model), range(9), lambda _unit, _result: None, lambda _done, _rows: None, 1)
        assert pickled == [1]


def test_a_dataset_is_sent_to_a_process_once_and_kept_as_long_as_jobs_need_it() -> None:
    runner, images = UnitRunner(1), Dataset.from_array(np.zeros((9, 64, 64, 3), np.uint8))
    for number, dataset in enumerate((images, images, images.select([0])), start=1):
        content, parts = packed(partial(shape, dataset))
        assert len(content) < 500
        lacking = runner.lacks(parts)
        assert lacking == ([] if number == 2 else [dataset.key])
        runner.load(Job(number, content, {key: Recipes(parts)[key] for key in lacking}, 1, "."))
        assert runner.run(number, 0, lambda _done, _rows: None) == (len(dataset), 64)
    assert runner.lacks([images.key]) == [images.key]


def test_the_last_units_are_left_to_processes_that_have_nothing_to_do() -> None:
    """A busy process takes one ahead, but not where another would then wait for it at the end."""
    first, second = (_Slot(FakeProcess, number) for number in range(2))  # type: ignore[arg-type]
    running = _Running(Job(1, b"", {}, 1, "."), list(range(4)), 2, lambda *_: None, lambda *_: None)
    assert [running._next(slot) for slot in (first, first, second)] == [0, 1, 2]
    assert running._has_to_wait(first)
    assert running._has_to_wait(second)
    del running._busy[2]
    assert running._has_to_wait(first)
    assert running._next(second) == 3


def test_units_of_a_lost_process_run_again_in_another() -> None:
    watched = Watched(2, Once(ProcessLost("killed"), 3, 7, 29))
    assert watched.run() == ([], [])
    assert watched.kept == Counter(range(30))
    assert len(watched.processes) >= 3
    assert watched.done == 0  # progress of lost units is taken back


def test_a_unit_that_ends_every_process_ends_the_run() -> None:
    watched = Watched(2, lambda _slot, unit: ProcessLost("killed") if unit == 5 else None)
    with pytest.raises(RuntimeFailure, match="3 worker processes died on the same unit of work"):
        watched.run()
    assert all(process.closed for process in watched.processes)


def test_a_seat_that_no_process_takes_is_left_to_the_others() -> None:
    watched = Watched(2, lambda slot, unit: ProcessLost("no room") if slot == 1 and unit == -1 else None)
    assert watched.run() == ([], [])
    assert watched.kept == Counter(range(30))


@pytest.mark.parametrize("error", [ProcessLost("no room\nat line 3"), OutOfMemory("no room."), OSError("no room")])
def test_without_any_process_there_is_an_error_that_says_why(error: Exception) -> None:
    watched = Watched(2, lambda _slot, unit: error if unit == -1 else None)
    with pytest.raises(
        RuntimeFailure, match=r"^no worker process could be started \(no room\); run 'auditkit doctor', or"
    ):
        watched.run()
    assert all(process.closed for process in watched.processes)


def test_a_process_that_cannot_load_the_model_is_no_image_that_fails() -> None:
    watched = Watched(2, Once(OutOfMemory("no room."), -1))
    assert watched.run() == ([], [])
    assert watched.kept == Counter(range(30))


def test_a_unit_that_the_model_fails_on_is_returned_and_the_others_stop() -> None:
    watched = Watched(2, lambda _slot, unit: ModelFailure("it hangs") if unit == 4 else None)
    failed, left = watched.run(200)
    assert failed == [4]
    assert watched.kept == Counter(set(range(200)) - set(left) - {4})


def test_any_other_error_ends_the_run_and_the_processes() -> None:
    watched = Watched(2, lambda _slot, unit: ValueError("a defect") if unit == 4 else None)
    with pytest.raises(ValueError, match="a defect"):
        watched.run()
    assert all(process.closed for process in watched.processes)


def ticking(_unit: int, _device: object, tick: Tick) -> None:
    for _ in range(1000):
        tick(0.001, 2)
    raise ModelFailure("it hangs")


@pytest.mark.parametrize(("seconds", "messages"), [(0.0, 1001), (60.0, 1)])
def test_progress_is_gathered_and_none_is_lost(monkeypatch: pytest.MonkeyPatch, seconds: float, messages: int) -> None:
    monkeypatch.setattr(unit_runner, "_TICK_SECONDS", seconds)
    runner, ticks = UnitRunner(1), list[tuple[float, int]]()
    runner.load(Job(1, packed(ticking)[0], {}, 1, "."))
    with pytest.raises(ModelFailure):
        runner.run(1, 0, lambda done, rows: ticks.append((done, rows)))
    assert len(ticks) == messages
    assert sum(done for done, _ in ticks) == pytest.approx(1)
    assert sum(rows for _, rows in ticks) == 2000
