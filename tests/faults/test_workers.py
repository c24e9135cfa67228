"""Workers that are killed, hang or outgrow their memory while a command runs."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.model import worker
from tests.support import gated_models, onnx_models
from tests.support.commands import Completed, auditkit
from tests.support.interruptions import Undisturbed

pytestmark = pytest.mark.workers
_IN_UNITS = 60  # calls of a worker after which the checks are over


@pytest.mark.parametrize("moment", [12, 60])
@pytest.mark.parametrize("name", ["explain", "evaluate"])
def test_a_killed_worker_changes_nothing(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, moment: int
) -> None:
    """It is replaced; before explain's first unit, the run ends in one sentence and can be resumed."""
    real, calls = worker._Process.call, 0
    # As in a new process: neither checks of the gradient nor batches are known.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("auditkit.model.masks._MEASURED", {})

    def call(self: worker._Process, method: str, *arguments: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += method in ("run", "step", "run_rows", "pass_rows")
        if calls == moment:
            calls += 1
            os.kill(self._child.pid, signal.SIGKILL)
        return real(self, method, *arguments, **settings)

    monkeypatch.setattr(worker._Process, "call", call)
    done = undisturbed.run(name, tmp_path / "out")
    assert calls > moment, "the run was too short to be disturbed"
    if moment < _IN_UNITS and name == "explain":
        assert (done.returncode, len(done.stderr.splitlines())) == (4, 1), done.stderr
        done = undisturbed.run(name, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    undisturbed.check_same(name, tmp_path / "out")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "images.npz", images=rng.integers(0, 256, (3, 8, 8, 3), dtype=np.uint8), labels=[0, 1, 2])
    return tmp_path / "images.npz"


def _explain(model: Path, images: Path, out: Path, *more: str) -> Completed:
    return auditkit("explain", model, images, "-o", out, "--method", "rise", "--option", "passes=16", "--preset",
                    "unit", "--device", "cpu", *more)  # fmt: skip


def test_a_worker_that_hangs_is_one_sentence(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_LEAST_SECONDS", 0.5)
    monkeypatch.setattr(worker, "_TIMES_SLOWEST", 1)
    model = onnx_models.save(gated_models.slow(), tmp_path)
    done = _explain(model, images, tmp_path / "maps")
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "image '0'" in done.stderr
    assert not (tmp_path / "maps").exists()


def test_a_worker_that_outgrows_its_memory_is_one_sentence(images: Path, tmp_path: Path) -> None:
    model = onnx_models.save(gated_models.hungry(800_000_000), tmp_path)
    done = _explain(model, images, tmp_path / "maps", "--memory-limit", "0.75")
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "image '0'" in done.stderr
    assert "memory" in done.stderr
    assert not (tmp_path / "maps").exists()
