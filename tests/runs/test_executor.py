"""The executor: every unit prepared, run and kept, within its limits, and nothing begun after an error."""

import sys
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import fields

import pytest

from auditkit.runs.evaluation.measure import Row
from auditkit.runs.executor import Limits, Stages, execute
from auditkit.runs.folder.parquet import COLUMNS

BOTH = pytest.mark.parametrize("limits", [Limits(), Limits(1, 1), Limits(2, 3)], ids=["inline", "cpu", "cuda"])


class Watched:
    """Stages that square a number and count how many units are in each of them."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken
        self.begun: list[int] = []
        self.kept: dict[int, int] = {}
        self.now = self.most = 0
        self.lock = threading.Lock()

    def prepare(self, unit: int) -> int:
        self.begun.append(unit)
        if unit == self.broken:
            raise RuntimeError("out of order")
        return unit

    def run(self, unit: int, device: AbstractContextManager[None]) -> int:
        with device:
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
            time.sleep(0.002)
            with self.lock:
                self.now -= 1
        return unit * unit

    def keep(self, unit: int, result: int) -> None:
        self.kept[unit] = result

    @property
    def stages(self) -> Stages[int, int, int]:
        return Stages(self.prepare, self.run, self.keep)


@BOTH
def test_every_unit_is_kept_once(limits: Limits) -> None:
    watched = Watched()
    execute(range(20), watched.stages, limits)
    assert watched.kept == {unit: unit * unit for unit in range(20)}
    assert sorted(watched.begun) == list(range(20))


@BOTH
def test_no_more_units_run_than_the_device_takes(limits: Limits) -> None:
    watched = Watched()
    execute(range(30), watched.stages, limits)
    assert 1 <= watched.most <= limits.running


@BOTH
def test_nothing_is_begun_after_an_error(limits: Limits) -> None:
    watched = Watched(broken=3)
    with pytest.raises(RuntimeError, match="out of order"):
        execute(range(200), watched.stages, limits)
    assert len(watched.begun) < 100
    assert 3 not in watched.kept
    assert set(watched.kept) <= set(watched.begun)


def test_units_without_threads_stay_in_the_callers_thread_and_in_order() -> None:
    threads: set[threading.Thread] = set()
    order: list[tuple[str, int]] = []

    def note(stage: str, unit: int) -> int:
        threads.add(threading.current_thread())
        order.append((stage, unit))
        return unit

    stages = Stages[int, int, int](
        lambda unit: note("prepare", unit),
        lambda unit, _device: note("run", unit),
        lambda unit, _: order.append(("keep", unit)),
    )
    execute([1, 2], stages)
    assert threads == {threading.current_thread()}
    assert order == [(stage, unit) for unit in (1, 2) for stage in ("prepare", "run", "keep")]


def test_the_interpreter_switches_threads_as_before_afterwards() -> None:
    before = sys.getswitchinterval()
    execute(range(3), Watched().stages, Limits(1, 1))
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize(("cores", "ahead"), [(1, 1), (2, 1), (4, 2), (64, 3)])
def test_units_ahead_follow_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, ahead: int) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert Limits.for_device(2) == Limits(2, ahead)


def test_the_fields_of_a_row_are_the_columns_of_the_file() -> None:
    assert [field.name for field in fields(Row)] == list(COLUMNS)
