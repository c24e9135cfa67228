"""What a worker that runs foreign code can do to the process that started it: nothing but end."""

import errno
import json
import os
import platform
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import auditkit
from auditkit import user_cache
from auditkit.errors import (
    BadInput,
    MachineFailure,
    ModelFailure,
    NoGradient,
    OutOfMemory,
    RuntimeFailure,
)
from auditkit.model import worker as workers
from auditkit.model.messages import Slot
from auditkit.model.session import Settings
from auditkit.model.worker import Worker, WorkerLost
from tests.support import gated_models, onnx_models

pytestmark = [
    pytest.mark.workers,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them"),
]
Fake = Callable[[str], Worker]
_PRELUDE = """
import json, os, socket, sys, time
sys.path[:] = json.loads(sys.argv[1])
from auditkit.model.confinement import confine
from auditkit.model.messages import Channel
lanes = socket.socket(fileno=int(sys.argv[2]))
_, descriptors, *_ = socket.recv_fds(lanes, 1, 1)
channel = Channel(socket.socket(fileno=descriptors[0]))
channel.receive()
"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A worker that runs a program once it has been called."""
    started: list[Worker] = []

    def start(program: str) -> Worker:
        monkeypatch.setattr(workers, "START", _PRELUDE + program)
        started.append(Worker("the file"))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


def _answers(reply: object) -> str:
    """A program that answers the first call."""
    return f"channel.send(json.loads({json.dumps(reply)!r})); time.sleep(60)"


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the slots that this process asks for."""
    sizes: list[int] = []
    make = Slot.make

    def recorded(size: int) -> Slot:
        sizes.append(size)
        return make(size)

    monkeypatch.setattr(Slot, "make", recorded)
    return sizes


@pytest.mark.parametrize(
    "arrays",
    [
        [["uint8", [2**20], 0]] * 1000,  # a gigabyte in a slot of one megabyte
        [["uint8", [2**19], 0], ["uint8", [2**19], 2**18]],
        [["uint8", [64], 64]],  # a gap
        [["uint8", [0, 2**62], 0], ["uint8", [2**21], 0]],
    ],
    ids=["the same", "overlapping", "gap", "beyond"],
)
def test_arrays_lie_one_behind_the_other(fake: Fake, arrays: list[object]) -> None:
    result = [{"array": index} for index in range(len(arrays))]
    with pytest.raises(RuntimeFailure, match="announced arrays that do not fit into its memory"):
        fake(_answers({"result": result, "arrays": arrays})).call("examine")


def test_an_array_is_taken_once(fake: Fake) -> None:
    """Else a short message could name a megabyte a million times."""
    result = [{"bytes": {"array": 0}}] * 2
    with pytest.raises(RuntimeFailure, match="the file gave a reply that cannot be read"):
        fake(_answers({"result": result, "arrays": [["uint8", [2**20], 0]]})).call("examine")


@pytest.mark.parametrize("size", [2**31, 2**70, -1, "many", None], ids=str)
def test_no_memory_is_allocated_for_a_giant_reply(
    fake: Fake,
    slots: list[int],
    size: object,
) -> None:
    with pytest.raises((ModelFailure, WorkerLost)):
        fake(_answers({"bytes": size})).call("examine")
    assert max(slots) <= 2**20


def test_a_model_with_a_giant_answer_is_refused_by_its_size(
    tmp_path: Path,
    slots: list[int],
) -> None:
    path = onnx_models.save(gated_models.tiled(1, 5 * 10**6), tmp_path)
    model = auditkit.load(path, preset="unit", settings=Settings(device="cpu"))
    with pytest.raises(ModelFailure, match=r"gave 80,000,000 bytes at once; at most 32 are expected"):
        model.predict(np.zeros((1, 8, 8, 3), np.uint8))
    assert max(slots) <= 2**20


@pytest.mark.parametrize(
    "program",
    [
        "channel.socket.sendall((60 * 10**6).to_bytes(8, 'big')); time.sleep(60)",
        "text = b'[' * 10**5; channel.socket.sendall(len(text).to_bytes(8, 'big') + text); time.sleep(60)",
        "text = b'[]'; channel.socket.sendall(len(text).to_bytes(8, 'big') + text); time.sleep(60)",
    ],
    ids=["long", "nested", "no object"],
)
def test_what_is_no_message_ends_the_worker(fake: Fake, program: str) -> None:
    with pytest.raises(WorkerLost, match=r"^the file sent its main process something that is no message$"):
        fake(program).call("examine")


def test_a_worker_that_only_closes_its_connection_did_not_run_out_of_memory(fake: Fake) -> None:
    with pytest.raises(WorkerLost, match=r"^the file closed its connection to the main process$"):
        fake("channel.socket.close(); time.sleep(60)").call("examine")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("BadInput", BadInput),
        ("OutOfMemory", OutOfMemory),
        ("MachineFailure", MachineFailure),
        ("IntegrityFailure", RuntimeFailure),  # exit code 5 says that a run was tampered with
        ("NotChecked", RuntimeFailure),
        ("WorkerLost", RuntimeFailure),
        ("copyreg", RuntimeFailure),
    ],
)
def test_only_the_errors_of_a_worker_are_taken_over(
    fake: Fake,
    name: str,
    kind: type[Exception],
) -> None:
    with pytest.raises(kind) as error:
        fake(_answers({"error": name, "text": "It failed."})).call("examine")
    assert (type(error.value), str(error.value)) == (kind, "It failed.")


def test_nothing_is_added_to_a_reported_error(fake: Fake) -> None:
    reported = NoGradient("the model rounds", ", or ask the vendor")
    reply = {"error": "NoGradient", "text": str(reported), "reason": reported.reason}
    with pytest.raises(NoGradient) as error:
        fake(_answers(reply)).call("examine")
    assert (str(error.value), error.value.reason) == (str(reported), reported.reason)


def test_what_a_worker_prints_takes_no_space(fake: Fake) -> None:
    worker = fake("print('x' * 2**20, file=sys.stderr); print('the end', file=sys.stderr); sys.exit(5)")
    process = worker.process
    assert stat.S_ISFIFO(os.stat(f"/proc/{process._child.pid}/fd/2").st_mode)
    with pytest.raises(WorkerLost, match=r"ended its worker \(exit code 5: the end\)") as error:
        worker.call("examine")
    assert error.value.exit_code == 4
    assert len(process._errors.read()) <= 4000


def test_a_worker_finds_no_secret_in_its_environment(
    fake: Fake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("VENDOR_PASSWORD", "AWS_SECRET_ACCESS_KEY", "NVIDIA_API_KEY", "LD_PRELOAD_SECRET"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    worker = fake("channel.send({'result': {'mapping': list(os.environ.items())}}); time.sleep(60)")
    environment = worker.call("examine")
    assert "secret" not in environment.values()
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment["ORT_DISABLE_TELEMETRY"] == "1"
    assert environment["PATH"] == os.environ["PATH"]
    assert environment["CUDA_CACHE_PATH"] == str(user_cache.folder() / "cuda")


def test_file_descriptors_that_a_worker_sends_are_not_taken(fake: Fake) -> None:
    program = """
content = json.dumps({'result': None}).encode()
content = len(content).to_bytes(8, 'big') + content
for _ in range(20):
    socket.send_fds(channel.socket, [content], [0])
    channel.receive()
"""
    worker = fake(program)
    worker.call("examine")
    before = _open_files()
    for _ in range(19):
        worker.call("examine")
    assert _open_files() == before


def test_a_refused_reply_leaves_no_connection_open(fake: Fake) -> None:
    program = """
channel.send({'bytes': 2**40})
while True:
    _, descriptors, *_ = socket.recv_fds(lanes, 1, 1)
    channel = Channel(socket.socket(fileno=descriptors[0]))
    channel.receive()
    channel.send({'bytes': 2**40})
"""
    worker = fake(program)
    process = worker.process
    before = _open_files()
    for _ in range(5):
        with pytest.raises(ModelFailure, match="gave 1,099,511,627,776 bytes at once"):
            worker.call("examine")
    assert worker.process is process
    assert _open_files() == before


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    "result",
    [{"object": float("inf")}, [{"object": 1}] * 1001],
    ids=["infinite", "many"],
)
def test_only_a_limited_number_of_objects_is_taken_over(fake: Fake, result: object) -> None:
    with pytest.raises(RuntimeFailure, match="the file gave a reply that cannot be read"):
        fake(_answers({"result": result})).call("examine")


def test_a_deadline_has_a_ceiling(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_LONGEST_SECONDS", 0.5)
    worker = fake("time.sleep(5)")
    worker.process._slowest["examine"] = 1000.0
    with pytest.raises(WorkerLost, match="was still busy") as error:
        worker.call("examine")
    assert error.value.cause == "time"


def test_too_many_open_files_are_no_fault_of_the_file(
    fake: Fake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    worker = fake("time.sleep(60)")
    _ = worker.process
    other = fake("time.sleep(60)")
    for module, name in ((socket, "socketpair"), (os, "pipe")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, refused)
            with pytest.raises(MachineFailure, match=r"cannot .* process \(Too many"):
                other.call("examine")
    monkeypatch.setattr(socket, "socketpair", refused)
    with pytest.raises(MachineFailure, match="cannot open another connection"):
        worker.call("examine")


def test_a_worker_that_cannot_be_watched_is_ended(
    fake: Fake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_path: Path) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    worker = fake("time.sleep(5)")
    worker.allow(2**40)
    _ = worker.process
    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(WorkerLost, match=r"can no longer be watched \(Too many open files\)"):
        worker.call("examine")


_STARTS = {
    "fork": "os.fork()",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "os.execv('/bin/true', ['true'])",
}


@pytest.mark.parametrize("name", _STARTS)
def test_a_worker_starts_no_process(fake: Fake, name: str) -> None:
    with pytest.raises(WorkerLost, match="PermissionError"):
        fake(f"confine(); {_STARTS[name]}; sys.exit(0)").call("examine")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 is a part of x86-64")
def test_a_worker_makes_no_call_by_its_number_of_x32(fake: Fake) -> None:
    fork = "ctypes.CDLL(None, use_errno=True).syscall(0x40000000 + 57), ctypes.get_errno()"
    worker = fake(f"import ctypes; confine(); channel.send({{'result': [{fork}]}}); time.sleep(60)")
    assert worker.call("examine") == [-1, errno.EPERM]


def test_a_worker_writes_no_core_file_and_no_huge_file(fake: Fake) -> None:
    limits = "[resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_FSIZE)]"
    worker = fake(f"import resource; confine(); channel.send({{'result': {limits}}}); time.sleep(60)")
    assert worker.call("examine") == [[0, 0], [2**31, 2**31]]


def _wait_for_the_end(pid: int) -> None:
    until = time.monotonic() + 5
    while _is_running(pid):
        assert time.monotonic() < until, "a process goes on"
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("end", ["os._exit(3)", "time.sleep(60)"], ids=["ends itself", "is ended"])
def test_the_processes_of_a_worker_end_with_it(fake: Fake, tmp_path: Path, end: str) -> None:
    """Where the system cannot keep it from starting some."""
    note = tmp_path / "pid"
    child = f"open({str(note)!r}, 'w').write(str(os.getpid())), time.sleep(60)"
    wait = f"while not os.path.exists({str(note)!r}): time.sleep(0.01)"
    worker = fake(f"if os.fork() == 0: {child}\n{wait}\ntime.sleep(0.1)\n{end}")
    process = worker.process
    if end.startswith("os"):
        with pytest.raises(WorkerLost):
            worker.call("examine")
    else:
        process._new_lane().channel.send({})
        while not note.exists() or not note.read_text():
            time.sleep(0.02)
        worker.close()
    _wait_for_the_end(int(note.read_text()))


# One operation, during which no other thread runs.
_BUSY = "confine(); channel.send({'result': None}); 3 ** (10**9)"


def test_a_worker_that_can_notice_nothing_ends_with_its_main_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import os, signal
from auditkit.model import worker
worker.START = {_PRELUDE + _BUSY!r}
busy = worker.Worker("the file")
busy.call("examine")
print(busy.process._child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    _wait_for_the_end(int(done.stdout))


def test_a_worker_outlives_the_thread_that_first_called_it(fake: Fake) -> None:
    """The system ends a worker with the thread that started it: none of those that call it."""
    program = "confine()\nfor _ in range(2):\n    channel.send({'result': None}); channel.receive()"
    worker = fake(program)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(worker.call, "examine").result()
        process = worker.process
    time.sleep(0.5)
    worker.call("examine")
    assert worker.process is process


def test_a_machine_without_room_is_told_as_such(tmp_path: Path) -> None:
    """A limit of 0 bytes for files stands for a full disk; the model is not to blame."""
    path = onnx_models.save(onnx_models.convnet(), tmp_path)
    command = f"ulimit -f 0; {sys.executable} -m auditkit inspect {path} 2>&1; echo $?"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    message, code = done.stdout.splitlines()
    assert code == "4"
    assert message.startswith("auditkit: this system has no 1,048,576 bytes of shared memory for")
