"""Small files that stand for graphs without end are refused or opened in seconds, by a worker first."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from auditkit.errors import BadInput
from auditkit.graph import edit
from auditkit.graph.gradient import missing_rules
from auditkit.graph.randomise import layers
from auditkit.model import passes, read
from auditkit.model.read import Limits, OnnxFile
from auditkit.model.session import Settings
from tests.support import hostile_models, onnx_models
from tests.support.commands import auditkit

_SECONDS = 10.0
_MOST_MEMORY = 500 * 2**20


def _opened(proto: onnx.ModelProto, folder: Path, *tensors: str) -> OnnxFile:
    return read.describe(onnx_models.save(proto, folder), Limits()).live(tensors)


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (hostile_models.doubling(live=True), r"3,221,225,476 nodes once its functions are put in place"),
        (hostile_models.circle(live=True), r"the function 'A' calls itself"),
        (hostile_models.tower(40), r"nests functions more than 32 deep"),
        (hostile_models.copied_constant(), r"4,000,\d+,\d+ bytes more once its functions"),
        (hostile_models.many_nodes(20_001, live=False), r"20,006 nodes, more than 20,000"),
        (hostile_models.nested_ifs(13), r"nests graphs more than 12 deep"),
        (hostile_models.nested_loops(13), r"nests graphs more than 12 deep"),
        (hostile_models.unused_weights(20_001), r"20,004 weights, more than 20,000"),
        (hostile_models.many_types(100_001), r"100,001 declared types"),
        (hostile_models.many_outputs(1_001), r"1,002 outputs, more than 1,000"),
        (hostile_models.long_name(4_097), r"a name of 4,097 characters"),
        (hostile_models.long_text(2**26), r"bytes besides its tensors"),
        (hostile_models.many_numbers(2**22 + 1), r"numbers in attributes"),
    ],
    ids=[
        "doubling",
        "circle",
        "tower",
        "copies",
        "nodes",
        "ifs",
        "loops",
        "weights",
        "types",
        "outputs",
        "name",
        "text",
        "numbers",
    ],
)
def test_a_graph_is_counted_before_it_is_expanded(
    proto: onnx.ModelProto,
    reason: str,
    tmp_path: Path,
) -> None:
    begin = time.process_time()
    with pytest.raises(BadInput, match=reason) as refusal:
        _opened(proto, tmp_path)
    assert str(refusal.value).endswith(("refused.", "proper export."))
    assert time.process_time() - begin < 3


@pytest.mark.parametrize(
    "proto",
    [
        hostile_models.doubling(live=False),
        hostile_models.circle(live=False),
        hostile_models.declared_weight(live=False),
        hostile_models.many_nodes(1_000, live=False),
    ],
    ids=["doubling", "circle", "weight", "nodes"],
)
def test_what_no_output_needs_is_dropped(proto: onnx.ModelProto, tmp_path: Path) -> None:
    """The graph that is left is the classifier without it; the digest is that of the file."""
    plain = onnx_models.convnet()
    file = _opened(proto, tmp_path)
    assert file.proto.graph.SerializeToString() == plain.graph.SerializeToString()
    assert not file.proto.functions
    assert file.identity == read.read(file.path).identity
    assert missing_rules(passes.inlined(file.proto, Settings()), "image", "logits") == []


def test_a_tensor_that_is_named_is_kept(tmp_path: Path) -> None:
    proto = hostile_models.many_nodes(3, live=False)
    assert "n2" not in edit.producers(_opened(proto, tmp_path).proto.graph)
    assert "n2" in edit.producers(_opened(proto, tmp_path, "n2").proto.graph)


def test_an_output_that_no_other_output_needs_can_be_audited(tmp_path: Path) -> None:
    """A tensor that the user names is computed, even if the file has no output that needs it."""
    proto = onnx_models.convnet()
    proto.graph.node.append(helper.make_node("Mul", ["logits", "two"], ["doubled"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    model = onnx_models.save(proto, tmp_path)
    done = auditkit("inspect", model, "--output", "doubled", "--preset", "unit", "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert "doubled" in done.stdout


def test_functions_and_their_bodies_count_once_for_each_call(tmp_path: Path) -> None:
    """Functions that are called often are counted, not copied."""
    calls = {"A": ["B"] * 100, "B": ["C"] * 100, "C": ["Tanh"]}
    proto = hostile_models._with_functions(calls, first="A", live=True)
    # Nodes of the classifier and the call; in A 100, in B 100 times 100, in C 10,000 times 1.
    expected = 6 + 100 + 100 * 100 + 100 * 100 * 1
    with pytest.raises(BadInput, match=f"has {expected:,} nodes once"):
        _opened(proto, tmp_path)
    once = hostile_models._with_functions({**calls, "A": ["B"]}, first="A", live=True)
    inlined = passes.inlined(once, Settings())
    assert len(inlined.graph.node) == 5 + 100  # without the calls themselves


def test_wide_and_long_graphs_take_linear_time(tmp_path: Path) -> None:
    begin = time.process_time()
    wide = hostile_models.wide_if(900, 6_000)
    assert len(edit.ancestors(wide.graph, ["logits"])) > 900
    long = _opened(hostile_models.shared_chain(1_000, 6_000), tmp_path).proto
    assert layers(long, "logits")[0].operator == "Gemm"
    assert time.process_time() - begin < 2


_FUNCTIONS = {"A": ["Tanh"]}


@pytest.mark.workers
@pytest.mark.parametrize("verb", ["inspect", "differentiate"])
def test_passes_of_onnx_run_in_the_worker(
    verb: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process, none of them is called."""

    def refused(*_: object, **__: object) -> None:
        pytest.fail("a pass of onnx ran in the main process")

    for name in (
        "onnx.inliner.inline_local_functions",
        "onnx.inliner.inline_selected_functions",
        "onnx.version_converter.convert_version",
        "onnx.shape_inference.infer_shapes",
    ):
        monkeypatch.setattr(name, refused)
    proto = hostile_models._with_functions(_FUNCTIONS, first="A", live=True)
    model = onnx_models.save(proto, tmp_path)
    out = [] if verb == "inspect" else ["-o", tmp_path / "out.onnx"]
    done = auditkit(verb, model, "--preset", "unit", "--device", "cpu", *out)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_sparse_file_of_external_data_is_refused(tmp_path: Path) -> None:
    """It would take minutes to hash, and it once raised the limits of time and memory."""
    proto = onnx_models.convnet()
    weight = proto.graph.initializer[0]
    data = tmp_path / "data.bin"
    data.write_bytes(weight.raw_data)
    with data.open("r+b") as stream:
        stream.truncate(20 * 2**30)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="data.bin")
    with pytest.raises(BadInput, match=r"21,474,836,480 bytes, but hardly any of them are on"):
        _opened(proto, tmp_path)


def test_limits_follow_from_the_data_that_tensors_use(tmp_path: Path) -> None:
    """Whatever else lies in the model's folder."""
    proto = onnx_models.convnet()
    with (tmp_path / "other.bin").open("wb") as stream:
        stream.truncate(20 * 2**30)
    path = onnx_models.save(proto, tmp_path)
    assert read.describe(path, Limits()).bytes == path.stat().st_size


# ---------------------------------------------------------------- the whole command


def _running(folder: Path, words: tuple[str, ...]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "auditkit", *words],
        cwd=folder,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _most_memory(pid: int) -> int:
    """Bytes of memory that a process has held at most."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def _watched(command: "subprocess.Popen[str]") -> tuple[float, int]:
    """Seconds that a command takes, and the most memory that its main process holds."""
    begin, memory = time.monotonic(), 0
    while command.poll() is None:
        memory = max(memory, _most_memory(command.pid))
        time.sleep(0.02)
    return time.monotonic() - begin, memory


@pytest.mark.slow
@pytest.mark.workers
@pytest.mark.parametrize("name", hostile_models.MODELS)
def test_every_hostile_model_is_refused_or_opened(name: str, tmp_path: Path) -> None:
    onnx_models.save(hostile_models.MODELS[name](), tmp_path)
    command = _running(tmp_path, ("inspect", "model.onnx", "--device", "cpu"))
    seconds, memory = _watched(command)
    _, errors = command.communicate()
    # Processes that wait for a core make all others slower.
    load = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    used = f"{seconds:.1f} s at a load of {load:.1f}, {memory / 2**20:.0f} MiB"
    print(f"{name}: exit code {command.returncode}, {used}")
    assert command.returncode in (0, 2), errors
    assert len(errors.splitlines()) == (command.returncode == 2)
    assert seconds < _SECONDS * load
    assert memory < _MOST_MEMORY


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (100, 8, 8, 3), dtype=np.uint8)  # as many as the policy needs
    np.savez(tmp_path / "images.npz", images=pictures, labels=np.arange(100) % 5)
    return tmp_path / "images.npz"


@pytest.mark.slow
@pytest.mark.workers
@pytest.mark.parametrize(
    "name",
    ["functions that double, dead", "a weight of 4 TiB, dead", "nearly too many nodes"],
)
def test_an_audit_of_a_hostile_model_can_be_planned(
    name: str,
    tmp_path: Path,
    images: Path,
) -> None:
    onnx_models.save(hostile_models.MODELS[name](), tmp_path)
    words = (
        "audit",
        "model.onnx",
        images.name,
        "--policy",
        "strict",
        "--dry-run",
        "-o",
        "out",
        "--preset",
        "unit",
    )
    command = _running(tmp_path, (*words, "--device", "cpu"))
    seconds, memory = _watched(command)
    _, errors = command.communicate()
    used = f"{seconds:.1f} s, {memory / 2**20:.0f} MiB"
    print(f"{name}: exit code {command.returncode}, {used}: {errors.strip()}")
    assert command.returncode in (0, 2, 4)
    assert "internal error" not in errors
    assert memory < _MOST_MEMORY


def _descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that these have started."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.workers
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("moments", "times"),
    [(1, 1), (1, 2), pytest.param(10, 1, marks=pytest.mark.slow)],
)
def test_an_interrupt_ends_the_opening_of_a_hostile_model(
    moments: int,
    times: int,
    tmp_path: Path,
) -> None:
    onnx_models.save(hostile_models.many_nodes(19_900, live=True), tmp_path)
    numbers = [signal.SIGINT, signal.SIGTERM]
    for index, moment in enumerate(np.random.default_rng(20261119).uniform(0.3, 1.8, moments)):
        command = _running(tmp_path, ("inspect", "model.onnx", "--device", "cpu"))
        time.sleep(moment)
        started = list(_descendants(command.pid))
        assert command.poll() is None
        for _ in range(times):
            command.send_signal(numbers[index % 2])
            time.sleep(0.05)
        begin = time.monotonic()
        _, errors = command.communicate(timeout=30)
        while any(map(_is_running, started)):
            assert time.monotonic() - begin < 30, "a process goes on"
            time.sleep(0.01)
        seconds = time.monotonic() - begin
        name = numbers[index % 2].name
        print(f"after {moment:.1f} s, {name}: {seconds:.2f} s until all had ended")
        assert (command.returncode, errors) == (130, "auditkit: interrupted.\n")
        assert seconds < 2
