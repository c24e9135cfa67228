"""The guarded child process: whatever happens in it becomes one sentence, and nothing of it is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from auditkit.errors import BadInput
from auditkit.model import classifier, sandbox, worker
from auditkit.model.classifier import load
from auditkit.model.messages import packed
from auditkit.model.read import Limits
from auditkit.model.session import Settings
from auditkit.model.signature import Overrides, Signature
from tests.support import onnx_models
from tests.support.commands import auditkit

SIGNATURE = Signature("image", "NCHW", "float32", 3, 8, 8, None, "bitwise", "logits", "logits", 5)
QUICK = Limits(seconds=2.0)


def _attempt(file: Path, limits: Limits | None = None) -> sandbox.Outcome[Signature]:
    return sandbox.attempt(file, Overrides(), limits or Limits())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return onnx_models.save(onnx_models.convnet(), tmp_path)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put another program in the child's place."""

    def replaced(program: str) -> None:
        monkeypatch.setattr(worker, "START", program)

    return replaced


def _refusal(file: Path, limits: Limits | None = None) -> str:
    with pytest.raises(BadInput) as refused:
        _attempt(file, limits)
    assert "\n" not in str(refused.value)
    assert "Traceback" not in str(refused.value)
    return str(refused.value)


def _children() -> set[int]:
    """Processes whose parent this is, dead ones that nobody waited for included."""
    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc")
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }  # fmt: skip


# ---------------------------------------------------------------- children that die


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE", "SIGBUS"])
def test_a_crash_of_the_runtime_is_told_by_its_signal(name: str, file: Path, child: Callable[[str], None]) -> None:
    """A child that kills itself stands for a file that crashes the runtime."""
    child(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    said = _refusal(file)
    assert said.startswith("model.onnx crashed the runtime")
    assert name in said


def test_a_child_killed_from_outside_is_told_as_out_of_memory(file: Path, child: Callable[[str], None]) -> None:
    """The system's own guard against memory shortage kills without a word."""
    child("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "--memory-limit" in _refusal(file)


def test_a_child_that_ends_without_a_word_is_an_error(file: Path, child: Callable[[str], None]) -> None:
    child("import sys; sys.exit(7)")
    assert "exit code 7: no message" in _refusal(file)


def test_the_last_line_of_a_childs_traceback_is_told(file: Path, child: Callable[[str], None]) -> None:
    child("raise KeyError('a mistake of ours')")
    assert "KeyError: 'a mistake of ours'" in _refusal(file)


def test_a_crash_after_chatter_is_still_a_crash(file: Path, child: Callable[[str], None]) -> None:
    child("import os; print('all is well', flush=True); os.abort()")
    assert "SIGABRT" in _refusal(file)


# ---------------------------------------------------------------- replies

_DESCRIBED = json.dumps({"result": {"mapping": [["file", None], ["bytes", 1]]}})


def _reply(content: str) -> str:
    """A program that describes a file of one byte, and answers its second call with that content."""
    return f"""
import json, socket, sys
sys.path[:] = json.loads(sys.argv[1])
from auditkit.model.messages import Channel
_, descriptors, *_ = socket.recv_fds(socket.socket(fileno=int(sys.argv[2])), 1, 1)
channel = Channel(socket.socket(fileno=descriptors[0]))
for content in ({_DESCRIBED!r}, {content!r}):
    channel.receive()
    channel.socket.sendall(len(content.encode()).to_bytes(8, "big") + content.encode())
"""


def _result(value: object) -> str:
    arrays: list[Any] = []
    return json.dumps({"result": packed(value, arrays, lambda _value: 0)})


def test_garbage_before_the_reply_does_not_matter(file: Path, child: Callable[[str], None]) -> None:
    """Libraries print what they like, in whatever encoding."""
    reply = {"signature": asdict(SIGNATURE), "identity": "x"}
    garbage = (
        r"import sys; sys.stdout.buffer.write(b'\xff\xfe{}\n\0\x85' + b'garbage' * 99999 + b'\n'); sys.stdout.flush()"
    )
    child(f"{garbage}; print('more', file=sys.stderr)\n{_reply(_result(reply))}")
    outcome = _attempt(file)
    assert (outcome.signature, outcome.identity) == (SIGNATURE, "x")


def test_a_reply_of_the_real_child_survives_any_garbage_before_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = _attempt(file)
    monkeypatch.setattr(worker, "START", "print('auditkit says hello');" + worker.START)
    assert _attempt(file).signature == honest.signature


def test_an_error_in_the_reply_is_told_with_the_files_name(file: Path, child: Callable[[str], None]) -> None:
    child(_reply('{"call": 2, "error": "BadInput", "text": "it will not do."}'))
    assert _refusal(file) == "model.onnx: it will not do."


@pytest.mark.parametrize(
    "reply",
    ['{"call": 2, "res', "", "[]", "null", _result({"identity": "x"}), '{"call": 2, "error": null}',
     _result({"signature": {"sort": 1}, "identity": "x"}), _result({"signature": None, "identity": "x"}), _result(None),
     '{"call": 2, "error": ["a"]}', '{"call": 2, "arrays": [["float32", [9], 0]]}', '{"call": 2}', "[" * 100_000],
    ids=lambda reply: reply[:12],
)  # fmt: skip
def test_a_torn_or_forged_reply_is_refused(reply: str, file: Path, child: Callable[[str], None]) -> None:
    """A child that dies while it writes, or that a file has taken over, cannot make the caller fail."""
    child(_reply(reply))
    _refusal(file)


# ---------------------------------------------------------------- limits


def test_a_child_that_eats_memory_is_stopped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real child, with a reader in it that never has enough: 4 GiB are not to be had under a limit of 1."""
    greedy = (
        "import auditkit.model.read as r\n"
        "def describe(*a, **k):\n"
        "    held = [bytearray(b'x' * 2**26) for _ in range(64)]\n"
        "    raise SystemExit('took it all')\n"
        "r.describe = describe\n"
    )
    monkeypatch.setattr(worker, "START", worker.START.replace("; from", f"\nexec({greedy!r})\nfrom"))
    said = _refusal(file)
    assert "1.0 GiB" in said
    assert "--memory-limit" in said


def test_a_child_that_sleeps_and_ignores_signals_is_stopped(file: Path, child: Callable[[str], None]) -> None:
    """By force, after its time and a grace of five seconds; and nothing of it stays behind."""
    before = _children()
    child(
        "import signal, time\n"
        "for s in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM): signal.signal(s, signal.SIG_IGN)\n"
        "time.sleep(60)"
    )
    start = time.perf_counter()
    assert "--time-limit" in _refusal(file, Limits(seconds=0.5))
    assert time.perf_counter() - start < 15
    assert _children() <= before


def _expanding(shape: list[int], op: str) -> onnx.ModelProto:
    """build.convnet with a tensor of that shape made on the way, from the image so that nothing is folded."""
    proto = onnx_models.convnet()
    gemm = proto.graph.node.pop()
    proto.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), "shape"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "zero"))
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "nought"))
    if op == "ConstantOfShape":
        proto.graph.node.append(helper.make_node(op, ["shape"], ["large"]))
    else:
        proto.graph.node.append(helper.make_node("ReduceMax", ["f"], ["top"], keepdims=0))
        proto.graph.node.append(helper.make_node(op, ["top", "shape"], ["large"]))
    proto.graph.node.append(helper.make_node("ReduceMax", ["large"], ["one"], keepdims=0))
    proto.graph.node.append(helper.make_node("Mul", ["one", "nought"], ["little"]))
    proto.graph.node.append(helper.make_node("Add", ["f", "little"], ["added"]))
    gemm.input[0] = "added"
    proto.graph.node.append(gemm)
    return proto


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand"])
@pytest.mark.parametrize("shape", [[3 * 2**30], [2**20, 2**20], [2**31, 2**31, 2**31]], ids=str)
def test_a_model_that_asks_for_far_too_much_memory_is_refused(op: str, shape: list[int], tmp_path: Path) -> None:
    """12 GiB, 4 TiB, and more than can be counted."""
    _refusal(onnx_models.save(_expanding(shape, op), tmp_path))


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand"])
def test_the_same_model_with_little_memory_is_accepted(op: str, tmp_path: Path) -> None:
    """It is the memory that is refused, not the graph."""
    assert _attempt(onnx_models.save(_expanding([1000], op), tmp_path)).signature.outputs == 5


def test_a_huge_declared_input_is_refused(tmp_path: Path) -> None:
    _refusal(onnx_models.save(onnx_models.convnet(batch=2**40), tmp_path, "batch.onnx"))
    _refusal(onnx_models.save(onnx_models.convnet(size=2**31), tmp_path, "size.onnx"))


def _endless(rounds: int = 2**62) -> onnx.ModelProto:
    """build.convnet with its features sent round and round."""
    proto = onnx_models.convnet()
    gemm = proto.graph.node.pop()
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["go_on"]), helper.make_node("Tanh", ["state"], ["next"])],
        "body",
        [
            onnx_models.value("round", [], TensorProto.INT64),
            onnx_models.value("going", [], TensorProto.BOOL),
            onnx_models.value("state", None),
        ],
        [onnx_models.value("go_on", [], TensorProto.BOOL), onnx_models.value("next", None)],
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.array(rounds, np.int64), "rounds"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.node.append(helper.make_node("Loop", ["rounds", "yes", "f"], ["turned"], name="loop", body=body))
    gemm.input[0] = "turned"
    proto.graph.node.append(gemm)
    return proto


def test_an_endless_loop_is_stopped(tmp_path: Path) -> None:
    start = time.perf_counter()
    assert "still busy" in _refusal(onnx_models.save(_endless(), tmp_path), QUICK)
    assert time.perf_counter() - start < 20
    assert _attempt(onnx_models.save(_endless(rounds=3), tmp_path, "short.onnx")).signature.outputs == 5


def _circle(length: int) -> onnx.ModelProto:
    """build.convnet with an output that is computed from itself."""
    proto = onnx_models.convnet()
    for index in range(length):
        node = helper.make_node("Identity", [f"round{index}"], [f"round{(index + 1) % length}"])
        proto.graph.node.append(node)
    proto.graph.output.append(onnx_models.value("round0", None))
    return proto


@pytest.mark.parametrize("length", [1, 3])
def test_a_graph_that_runs_in_a_circle_is_refused_at_once(length: int, tmp_path: Path) -> None:
    assert "still busy" not in _refusal(onnx_models.save(_circle(length), tmp_path), Limits(seconds=8.0))


def _functions(bodies: dict[str, list[str]], first: str) -> onnx.ModelProto:
    """build.convnet with its features sent through a function; each function calls those listed, one by one."""
    proto = onnx_models.convnet()
    gemm = proto.graph.node.pop()
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for name, called in bodies.items():
        nodes = [
            helper.make_node(callee, [f"t{i}" if i else "x"], [f"t{i + 1}"], domain="" if callee == "Tanh" else "local")
            for i, callee in enumerate(called)
        ]
        nodes.append(helper.make_node("Identity", [f"t{len(called)}"], ["y"]))
        proto.functions.append(helper.make_function("local", name, ["x"], ["y"], nodes, opsets))
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.graph.node.append(helper.make_node(first, ["f"], ["called"], domain="local"))
    gemm.input[0] = "called"
    proto.graph.node.append(gemm)
    return proto


def test_functions_that_call_each_other_in_a_circle_are_refused(tmp_path: Path) -> None:
    _refusal(onnx_models.save(_functions({"A": ["A"]}, "A"), tmp_path, "self.onnx"), Limits(seconds=10.0))
    _refusal(onnx_models.save(_functions({"A": ["B"], "B": ["A"]}, "A"), tmp_path, "pair.onnx"), Limits(seconds=10.0))


def test_functions_that_double_at_every_level_are_refused(tmp_path: Path) -> None:
    """Forty levels of two calls each: 2^40 nodes in a file of 5 kB."""
    bodies = {f"F{i}": [f"F{i + 1}"] * 2 for i in range(40)} | {"F40": ["Tanh"]}
    _refusal(onnx_models.save(_functions(bodies, "F0"), tmp_path), Limits(seconds=2.0))
    bodies = {f"F{i}": [f"F{i + 1}"] * 2 for i in range(3)} | {"F3": ["Tanh"]}
    assert _attempt(onnx_models.save(_functions(bodies, "F0"), tmp_path, "few.onnx")).signature.outputs == 5


def _command(file: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "auditkit", "inspect", str(file), *options]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


@pytest.mark.parametrize("case", ["memory", "time"])
def test_the_command_says_one_sentence_and_ends_with_2(case: str, tmp_path: Path) -> None:
    proto = _expanding([2**20, 2**20], "Expand") if case == "memory" else _endless()
    limit = "3" if case == "memory" else "1"
    done = auditkit("inspect", onnx_models.save(proto, tmp_path), "--time-limit", limit)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("auditkit: model.onnx")


# ---------------------------------------------------------------- between trial and use


def test_a_file_that_changes_between_trial_and_use_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = sandbox.attempt

    def then_changed(*args: Any) -> sandbox.Outcome[Signature]:
        outcome = attempt(*args)
        onnx_models.save(onnx_models.convnet(seed=1), file.parent)
        return outcome

    monkeypatch.setattr(classifier.sandbox, "attempt", then_changed)
    with pytest.raises(BadInput, match="was modified while it was being opened"):
        load(file, settings=Settings(device="cpu"))


def test_data_that_changes_between_trial_and_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = onnx_models.convnet()
    weight = proto.graph.initializer[0]
    data = tmp_path / "data.bin"
    data.write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="data.bin")
    file = onnx_models.save(proto, tmp_path)
    attempt = sandbox.attempt

    def then_changed(*args: Any) -> sandbox.Outcome[Signature]:
        outcome = attempt(*args)
        data.write_bytes(bytes(data.stat().st_size))
        return outcome

    monkeypatch.setattr(classifier.sandbox, "attempt", then_changed)
    with pytest.raises(BadInput, match="was modified while it was being opened"):
        load(file, settings=Settings(device="cpu"))


# ---------------------------------------------------------------- nothing stays behind


def test_no_process_is_left_behind(file: Path, child: Callable[[str], None]) -> None:
    """Neither a zombie nor a child that runs on, however it ended."""
    before = _children()
    _attempt(file)
    for program in ("import os; os.abort()", "raise SystemExit(3)"):
        child(program)
        _refusal(file)
    assert _children() <= before


def _waiting_child(parent: int) -> int:
    """The process id of the trial's child, once there is one."""
    for _ in range(600):
        children = (path.read_text().split() for path in Path(f"/proc/{parent}/task").glob("*/children"))
        for child in chain.from_iterable(children):
            if b"auditkit.model.worker_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        time.sleep(0.05)
    raise AssertionError("the child never started")


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_the_child_does_not_outlive_the_command(name: str, tmp_path: Path) -> None:
    """Interrupted by hand, the command says so; ended by others, its child stops at its own time limit."""
    file = onnx_models.save(_endless(), tmp_path)
    limit = "60" if name == "SIGINT" else "4"  # a loaded machine may need seconds to hand the interrupt on
    command = subprocess.Popen(_command(file, "--time-limit", limit), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=_environment(), start_new_session=True)  # fmt: skip
    pid = _waiting_child(command.pid)
    time.sleep(1.0)
    assert _is_running(pid)
    command.send_signal(signal.Signals[name])
    # The pipes belong to the command alone: they close with it, whatever its child does.
    out, err = command.communicate(timeout=20)
    if name == "SIGINT":
        assert (command.returncode, out, err) == (130, "", "auditkit: interrupted.\n")
        assert not _is_running(pid)
    deadline = time.perf_counter() + 15
    while _is_running(pid) and time.perf_counter() < deadline:
        time.sleep(0.1)
    assert not _is_running(pid)


def test_the_child_leaves_no_core_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in the auditor's folder must not write gigabytes into it."""
    resource = pytest.importorskip("resource")
    file = onnx_models.save(onnx_models.convnet(), tmp_path)
    probe = "\nimport auditkit.model.read as r, resource\n" \
            "def describe(*a, **k): raise SystemExit(str(resource.getrlimit(resource.RLIMIT_CORE)))\n" \
            "r.describe = describe\n"  # fmt: skip
    monkeypatch.setattr(worker, "START", worker.START.replace("; from", f"\nexec({probe!r})\nfrom"))
    before = resource.getrlimit(resource.RLIMIT_CORE)
    assert "(0, 0)" in _refusal(file)
    assert resource.getrlimit(resource.RLIMIT_CORE) == before, "the limits are the child's alone"


@pytest.mark.parametrize("by", ["load", "command"])
def test_modules_that_lie_beside_the_model_are_not_imported(
    by: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vendor's folder may hold a numpy.py, and the auditor may stand in that folder."""
    for name in ("numpy", "onnx", "onnxruntime", "typer", "rich", "resource", "json"):
        (file.parent / f"{name}.py").write_text("open('imported', 'w').close(); raise ImportError(__name__)")
    monkeypatch.chdir(file.parent)
    if by == "load":
        monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in an interactive session
        assert _attempt(Path(file.name)).signature.outputs == 5
    else:
        command = _command(Path(file.name))
        done = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert not (file.parent / "imported").exists()
