"""A process on this machine: every call ends, whatever happens at either end."""

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import auditkit
from auditkit.engines import local
from auditkit.engines.local import LocalProcess
from auditkit.engines.pool import ProcessLost
from auditkit.errors import RuntimeFailure
from tests.support import gated_models, onnx_models


@pytest.fixture
def process() -> Iterator[LocalProcess]:
    process = LocalProcess(1, {})
    yield process
    process.close()


def _outcome(process: LocalProcess) -> object:
    """What a call returns or raises, within a minute."""
    outcomes: queue.SimpleQueue[object] = queue.SimpleQueue()

    def call() -> None:
        try:
            outcomes.put(process._call("lacks", ["a model"]))
        except Exception as error:
            outcomes.put(error)

    threading.Thread(target=call, daemon=True).start()
    return outcomes.get(timeout=60)


def test_a_reply_that_cannot_be_read_ends_the_call(process: LocalProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_content: bytes) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(local, "pickle", SimpleNamespace(dumps=pickle.dumps, loads=no_memory))
        _outcome(process)  # its reply is read by what was there before
        assert isinstance(_outcome(process), ProcessLost)
    assert isinstance(_outcome(process), ProcessLost)


def test_a_reply_that_nobody_waits_for_is_ignored(process: LocalProcess) -> None:
    process._send(pickle.dumps((10**6, "lacks", ([],))))
    assert _outcome(process) == ["a model"]


def test_any_error_there_is_one_of_auditkits(process: LocalProcess) -> None:
    expected = r"^internal error in a worker process \(RuntimeError: job 1 was not loaded\); please report it.$"
    with pytest.raises(RuntimeFailure, match=expected):
        process.run(1, 0, lambda _done, _rows: None)


def test_an_error_of_the_progress_is_not_one_of_the_process(
    process: LocalProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_done: float, _rows: int) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(process, "_send", lambda _content: process._waiting[0].put(("tick", (1.0, 1))))
    with pytest.raises(BrokenPipeError):
        process.run(1, 0, closed)


def _processes(marker: str) -> dict[int, str]:
    """The command lines of living processes that have a marker in their environment."""
    processes = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (entry / "environ").read_bytes():
                processes[int(entry.name)] = (entry / "cmdline").read_text()
        except OSError:
            continue
    return processes


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are found through /proc")
def test_no_process_outlives_a_main_process_that_is_killed_in_a_long_unit(tmp_path: Path) -> None:
    """The unit hangs in the model, without progress."""
    model, script = onnx_models.save(gated_models.slow(), tmp_path), tmp_path / "script.py"
    script.write_text(f"""
import auditkit, numpy
from auditkit.engines.start import Workers
from auditkit.runs.examination.material import predictor
model = auditkit.load({str(model)!r}, preset="unit", settings=auditkit.Settings(device="cpu"))
Workers("2").serve(model)
predictor(model)([numpy.zeros((8, 8, 3), numpy.uint8)])
""")
    package, marker = str(Path(auditkit.__file__).parents[1]), f"AUDITKIT_TEST={tmp_path}"
    environment = {**os.environ, "AUDITKIT_TEST": str(tmp_path), "PYTHONPATH": package}
    main = subprocess.Popen([sys.executable, script], cwd=tmp_path, env=environment)
    guarded = 2  # of the main process, and of the worker that has the unit
    until = time.monotonic() + 60
    while sum("worker_main" in line for line in _processes(marker).values()) < guarded and time.monotonic() < until:
        assert main.poll() is None
        time.sleep(0.1)
    time.sleep(2)  # until the unit runs
    main.kill()
    main.wait()
    until = time.monotonic() + 5
    while _processes(marker) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _processes(marker)
