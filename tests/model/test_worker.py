"""Workers: what a session gives there is what it gives here; whatever happens to a worker is one sentence."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import auditkit
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.model import worker as workers
from auditkit.model.messages import Slot, packed, unpacked
from auditkit.model.session import Session, Settings
from auditkit.model.worker import RemoteObject, Worker, WorkerLost
from tests.support import gated_models, onnx_models

pytestmark = pytest.mark.workers
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
HERE = Settings(device="cpu", in_process=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return onnx_models.save(onnx_models.convnet(size=8, classes=4), tmp_path)


@pytest.fixture
def model(path: Path) -> auditkit.OnnxClassifier:
    opened = auditkit.load(path, preset="unit", settings=Settings(device="cpu"))
    assert isinstance(opened, auditkit.OnnxClassifier)
    return opened


def _worker(model: auditkit.OnnxClassifier) -> Worker:
    assert model.settings.worker is not None
    return model.settings.worker


def test_scores_are_those_of_this_process(model: auditkit.OnnxClassifier, path: Path) -> None:
    here = auditkit.load(path, preset="unit", settings=HERE)
    np.testing.assert_array_equal(model.predict(IMAGES), here.predict(IMAGES))
    assert here.settings is not None
    assert here.settings.worker is None


def test_uploaded_arrays_and_several_threads(model: auditkit.OnnxClassifier) -> None:
    rows, expected = model.preprocess(IMAGES), model.predict(IMAGES)
    uploaded = model.session.upload(rows)
    assert isinstance(uploaded, RemoteObject)
    np.testing.assert_array_equal(uploaded.numpy(), rows)
    results: list[np.ndarray] = []

    def run() -> None:
        results.extend(model.session.run({model.signature.input: uploaded})[0] for _ in range(20))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    for scores in results:
        np.testing.assert_array_equal(scores, expected)


def test_a_reply_larger_than_its_request(model: auditkit.OnnxClassifier) -> None:
    graph = onnx_models.model(
        [helper.make_node("Expand", ["x", "shape"], ["y"])], [onnx_models.value("x", [1, 1])],
        [onnx_models.value("y", [1, 2**20])], {"shape": np.array([1, 2**20])},
    )  # fmt: skip
    (wide,) = Session(graph, model.settings).run({"x": np.ones((1, 1), np.float32)})
    assert wide.shape == (1, 2**20)
    assert wide.all()


def test_a_killed_worker_is_one_sentence_and_is_replaced(model: auditkit.OnnxClassifier) -> None:
    expected, worker = model.predict(IMAGES), _worker(model)
    uploaded = model.session.upload(model.preprocess(IMAGES))
    os.kill(worker.process._child.pid, signal.SIGSEGV)
    _wait_for_the_end(worker)
    with pytest.raises(WorkerLost, match=r"^the worker of model.onnx was replaced, and its data is lost$"):
        model.session.run({model.signature.input: uploaded})
    np.testing.assert_array_equal(model.predict(IMAGES), expected)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are read as on Linux")
def test_the_limit_on_memory_holds_for_a_worker_that_replaces_another(model: auditkit.OnnxClassifier) -> None:
    worker, limits = _worker(model), []
    for _ in range(2):
        model.predict(IMAGES)
        limits.append(resource.prlimit(worker.process._child.pid, resource.RLIMIT_DATA)[0])
        os.kill(worker.process._child.pid, signal.SIGKILL)
        _wait_for_the_end(worker)
    assert worker.memory_bytes is not None
    assert 0 < min(limits) <= max(limits) < 2 * worker.memory_bytes


def _wait_for_the_end(worker: Worker) -> None:
    process, until = worker.process, time.monotonic() + 10
    while process.lost is None and time.monotonic() < until:
        time.sleep(0.01)
    assert process.lost is not None


@pytest.fixture
def hanging(tmp_path: Path) -> auditkit.OnnxClassifier:
    """A model that does not end on pictures."""
    path = onnx_models.save(gated_models.slow(), tmp_path, "slow.onnx")
    opened = auditkit.load(path, preset="unit", settings=Settings(device="cpu"))
    assert isinstance(opened, auditkit.OnnxClassifier)
    return opened


def test_a_worker_that_is_killed_while_it_is_busy(hanging: auditkit.OnnxClassifier) -> None:
    pid = _worker(hanging).process._child.pid
    threading.Timer(0.3, lambda: os.kill(pid, signal.SIGABRT)).start()
    with pytest.raises(WorkerLost, match=r"^slow.onnx crashed the runtime \(SIGABRT\)$") as error:
        hanging.predict(IMAGES)
    assert error.value.cause == "crash"


def test_a_worker_that_hangs(hanging: auditkit.OnnxClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workers, "_LEAST_SECONDS", 1.0)
        patch.setattr(workers, "_TIMES_SLOWEST", 0)
        with pytest.raises(WorkerLost, match=r"^slow.onnx was still busy after 1 s$") as error:
            hanging.predict(IMAGES)
    assert error.value.cause == "time"
    assert hanging.predict(5 * np.ones((1, 3, 8, 8), np.float32)).shape == (1, 4)  # no picture


@pytest.mark.parametrize("name", gated_models.REFUSED)
def test_an_answer_that_is_none(tmp_path: Path, name: str) -> None:
    path = onnx_models.save(gated_models.REFUSED[name], tmp_path)
    opened = auditkit.load(path, preset="unit", settings=Settings(device="cpu"))
    with pytest.raises(RuntimeFailure, match=r"gave|memory"):
        opened.predict(IMAGES)


def test_a_worker_that_outgrows_its_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_resident", lambda _pid: 5 * 2**30)
    with pytest.raises(BadInput, match=r"asked for more than 1\.0 GiB plus 4 times its size at its first load and run"):
        auditkit.load(path, preset="unit")


def test_an_interrupted_call_ends_the_worker(model: auditkit.OnnxClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    process = _worker(model).process

    def interrupted(_channel: workers.Channel) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workers.Channel, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.predict(IMAGES)
    assert process.lost == ("exit", "was interrupted")
    assert len(model.predict(IMAGES)) == 5


@pytest.mark.parametrize(
    "places",
    [[["float32", [2**40], 0]], [["float32", [4], 2**20]], [["float32", [-1], 0]], [["object", [1], 0]],
     [["float32", [4]]], [["float32", [4], -8]], 7, None, [["float32", ["4"], 0]], [["float32", [2**62, 4], 0]]],
)  # fmt: skip
def test_arrays_that_a_worker_only_announces_are_refused(places: object) -> None:
    with pytest.raises(RuntimeFailure, match="do not fit"):
        Slot.make(2**20).get(places)


def test_values_survive_packing() -> None:
    arrays: list[np.ndarray] = []
    value = {"a": [1, 2.5, None, "x", True], "b": b"bytes", "c": np.arange(6).reshape(2, 3), "d": {}}
    plain = packed(value, arrays, lambda _value: 7)
    back = unpacked(plain, arrays, lambda number: number)
    np.testing.assert_array_equal(back.pop("c"), value.pop("c"))
    assert back == value


@pytest.mark.parametrize(
    "reply", [{}, {"result": {"array": 3}}, {"result": {"mapping": 1}}, {"result": {"a": 1, "b": 2}}]
)
def test_a_reply_that_is_none(model: auditkit.OnnxClassifier, monkeypatch: pytest.MonkeyPatch, reply: object) -> None:
    monkeypatch.setattr(workers._Lane, "ask", lambda *_: reply)
    with pytest.raises(RuntimeFailure, match="cannot be read"):
        model.predict(IMAGES)


def test_lanes_are_compared_by_identity() -> None:
    """list.remove is one step then; else a thread that ends its call could shift the list while another searches."""
    assert workers._Lane.__eq__ is object.__eq__


def test_a_script_without_a_main_guard(path: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import auditkit, numpy
model = auditkit.load({str(path)!r}, preset="unit", settings=auditkit.Settings(device="cpu"))
print(model.predict(numpy.zeros((2, 8, 8, 3), numpy.uint8)).shape)
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("(2, 4)\n", "", 0)


def test_no_worker_outlives_its_user(path: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import auditkit, os, signal
model = auditkit.load({str(path)!r}, preset="unit", settings=auditkit.Settings(device="cpu"))
print(model.settings.worker.process._child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    pid, until = int(done.stdout), time.monotonic() + 5
    while _is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_what_is_no_longer_used_is_forgotten(model: auditkit.OnnxClassifier) -> None:
    for _ in range(3):
        model.session.upload(model.preprocess(IMAGES))
    assert len(_worker(model).process.unused) == 1  # the others were told of with the next upload
    model.predict(IMAGES)
    assert _worker(model).process.unused == []


def test_a_session_without_a_worker_is_refused(path: Path) -> None:
    with pytest.raises(RuntimeError, match="in_process"):
        Session(onnx_models.convnet(size=8, classes=4), Settings(device="cpu"))


def test_the_stacks_of_many_threads_do_not_count_as_memory_of_the_model(model: auditkit.OnnxClassifier) -> None:
    settings = replace(model.settings, threads=128)  # whose stacks reserve 1 GiB in each session
    sessions = [Session(model.graph, settings, model.weights) for _ in range(6)]
    assert len(sessions) == 6
