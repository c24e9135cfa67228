"""The executor: every unit prepared, run and kept, within its limits, and nothing begun after an error."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import fields

import pytest

from auditkit.errors import BadInput
from auditkit.runs.evaluation.measure import Row
from auditkit.runs.executor import InOrder, Shard, Tick, UnitProgress, execute_here, silent, units_ahead
from auditkit.runs.folder.parquet import COLUMNS

BOTH = pytest.mark.parametrize(("running", "ahead"), [(1, 0), (1, 1), (2, 3)], ids=["one thread", "cpu", "cuda"])


class Watched:
    """Stages that square a number and count how many units are in each of them."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken
        self.begun: list[int] = []
        self.kept: dict[int, int] = {}
        self.now = self.most = 0
        self.lock = threading.Lock()

    def work(self, unit: int, device: AbstractContextManager[None], _tick: Tick) -> int:
        self.begun.append(unit)
        if unit == self.broken:
            raise RuntimeError("out of order")
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

    def execute(self, units: range, running: int, ahead: int) -> None:
        execute_here(self.work, units, self.keep, silent(0), running, ahead)


@BOTH
def test_every_unit_is_kept_once(running: int, ahead: int) -> None:
    watched = Watched()
    watched.execute(range(20), running, ahead)
    assert watched.kept == {unit: unit * unit for unit in range(20)}
    assert sorted(watched.begun) == list(range(20))


@BOTH
def test_no_more_units_run_than_the_device_takes(running: int, ahead: int) -> None:
    watched = Watched()
    watched.execute(range(30), running, ahead)
    assert 1 <= watched.most <= running


@BOTH
def test_nothing_is_begun_after_an_error(running: int, ahead: int) -> None:
    watched = Watched(broken=3)
    with pytest.raises(RuntimeError, match="out of order"):
        watched.execute(range(200), running, ahead)
    assert len(watched.begun) < 100
    assert 3 not in watched.kept
    assert set(watched.kept) <= set(watched.begun)


def test_the_interpreter_switches_threads_as_before_afterwards() -> None:
    before = sys.getswitchinterval()
    Watched().execute(range(3), 1, 1)
    assert sys.getswitchinterval() == before


def test_results_are_kept_in_order_whichever_is_finished_first() -> None:
    kept: list[int] = []
    in_order = InOrder[int, None](range(5), lambda unit, _result: kept.append(unit))
    for unit in (2, 0, 1):
        in_order.keep(unit, None)
    assert kept == [0, 1, 2]
    in_order.keep(4, None)
    in_order.leave_out(3)
    assert kept == [0, 1, 2, 4]


def test_only_results_that_wait_are_shrunk() -> None:
    kept: list[tuple[int, str]] = []
    in_order = InOrder[int, str](range(3), lambda unit, result: kept.append((unit, result)), str.lower)
    for unit in (0, 2, 1):
        in_order.keep(unit, "RESULT")
    assert kept == [(0, "RESULT"), (1, "RESULT"), (2, "result")]


def test_results_of_several_threads_are_kept_in_order() -> None:
    """While one thread keeps a result, another one that brings the next waits."""
    kept, overtaken = list[int](), threading.Event()

    def keep(unit: int, _result: None) -> None:
        if unit == 0:
            overtaken.wait(0.2)
        kept.append(unit)
        overtaken.set()

    in_order = InOrder[int, None](range(2), keep)
    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(in_order.keep, unit, None) for unit in (0, 1)]:
            future.result()
    assert kept == [0, 1]


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_shards_share_the_units_without_gap_or_overlap(of: int) -> None:
    units = list(range(17))
    shards = [Shard(number, of).part(units) for number in range(1, of + 1)]
    assert [unit for shard in shards for unit in shard] == units
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "1/0", "a/b", "-1/2", "1/2/3"])
def test_a_shard_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a shard such as 2/8"):
        Shard.parse(text)


@pytest.mark.parametrize(("cores", "ahead"), [(1, 1), (2, 1), (4, 2), (64, 3)])
def test_units_ahead_follow_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, ahead: int) -> None:
    monkeypatch.setattr("auditkit.runs.executor.usable_cores", lambda: cores)
    assert units_ahead() == ahead


def test_the_fields_of_a_row_are_the_columns_of_the_file() -> None:
    assert [field.name for field in fields(Row)] == list(COLUMNS)


def test_a_unit_that_needs_more_rows_than_expected_goes_on() -> None:
    done = [0.0]
    with UnitProgress(lambda images, _rows=0: done.append(done[-1] + images), 10) as progress:
        progress.expect(100)
        for _ in range(50):
            progress.count(10)
        counted = done[2:]
        assert counted == sorted(set(counted))  # always further
        assert counted[9] == pytest.approx(9)
        assert counted[-1] == pytest.approx(9.8)  # five times as many rows as expected
    assert done[-1] == pytest.approx(0)  # the unit itself is counted by whoever runs it
