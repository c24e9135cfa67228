"""Cores are counted as this process may use them."""

import os
from pathlib import Path

import pytest

from auditkit import cores


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of 16 cores; the file that limits a container there."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(16)), raising=False)
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "cpu.max")
    return tmp_path / "cpu.max"


def test_an_unlimited_process_leaves_the_threads_to_the_runtime(machine: Path) -> None:
    assert (cores.usable_cores(), cores.threads_if_limited()) == (16, 0)
    machine.write_text("max 100000\n")
    assert (cores.usable_cores(), cores.threads_if_limited()) == (16, 0)


def test_taskset_limits_cores_and_threads(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {4, 5})
    assert (cores.usable_cores(), cores.threads_if_limited()) == (2, 2)


@pytest.mark.parametrize(("quota", "count"), [("300000 100000", 3), ("50000 100000", 1), ("3200000 100000", 16)])
def test_the_quota_of_a_container_limits_cores(machine: Path, quota: str, count: int) -> None:
    machine.write_text(quota)
    assert cores.usable_cores() == count


def test_a_system_without_affinity_counts_all_cores(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores.usable_cores() == 16
