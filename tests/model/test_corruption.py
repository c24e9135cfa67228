"""Damaged copies of three models through the real command: a result or one sentence, never a crash.

Copy i of model m is made by `numpy.random.default_rng([m, i])` alone, so one case can be made again:
`damaged(m, original, i)`. `make test` runs the first copy with each kind of damage, `make test-slow` all of them.
Set AUDITKIT_CORRUPT_COPIES for more copies in total (2000 is the full run), AUDITKIT_CORRUPT_KEEP to a folder in which
failing files and one line for each case are kept.
"""

import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, helper

from tests.support import onnx_models

COPIES = int(os.environ.get("AUDITKIT_CORRUPT_COPIES", "240"))
CHUNKS = 12  # for each model; what pytest-xdist hands out
SECONDS = 60.0
REAL_MODELS = (
    "cifar10_resnet20.onnx",
    "variants/cifar10_resnet20_int8_qdq.onnx",
    "variants/cifar10_resnet20_uint8_nhwc.onnx",
)
CLI = [sys.executable, "-m", "auditkit", "inspect"]


# ---------------------------------------------------------------- the three models


def looped() -> onnx.ModelProto:
    """A convolutional net whose features pass through a Loop of three rounds and an If."""
    proto = onnx_models.convnet()
    graph = proto.graph
    body = helper.make_graph(
        [
            helper.make_node("Tanh", ["state"], ["bent"], name="bend"),
            helper.make_node("Add", ["bent", "shift"], ["next"], name="move"),
            helper.make_node("Identity", ["going"], ["go_on"], name="go"),
        ],
        "body",
        [
            onnx_models.value("round", [], TensorProto.INT64),
            onnx_models.value("going", [], TensorProto.BOOL),
            onnx_models.value("state", None),
        ],
        [onnx_models.value("go_on", [], TensorProto.BOOL), onnx_models.value("next", None)],
        [onnx.numpy_helper.from_array(np.linspace(-1, 1, 6, dtype=np.float32), "shift")],
    )
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["turned"], [f"{name}_out"], name=name)],
            name,
            [],
            [onnx_models.value(f"{name}_out", None)],
        )
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    gemm = graph.node.pop()
    graph.node.extend([
        helper.make_node("Loop", ["rounds", "yes", "f"], ["turned"], name="loop", body=body),
        helper.make_node("If", ["yes"], ["chosen"], name="if", **branches),
    ])  # fmt: skip
    gemm.input[0] = "chosen"
    graph.node.append(gemm)
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(3, np.int64), "rounds"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    return proto


def quantised() -> onnx.ModelProto:
    """A convolutional net with its image and its weights in eight bits between QuantizeLinear and DequantizeLinear."""
    proto = onnx_models.convnet(size=16, classes=7, seed=3)
    graph = proto.graph
    rng = np.random.default_rng(4)
    constants = {
        "w_q": rng.integers(-127, 128, (6, 3, 3, 3)).astype(np.int8),
        "w_scale": np.array(0.02, np.float32),
        "w_zero": np.array(0, np.int8),
        "x_scale": np.array(0.05, np.float32),
        "x_zero": np.array(128, np.uint8),
    }
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "x_scale", "x_zero"], ["image_q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["image_q", "x_scale", "x_zero"], ["image_d"], name="dequantise"),
        helper.make_node("DequantizeLinear", ["w_q", "w_scale", "w_zero"], ["w_d"], name="dequantise_w"),
        *graph.node,
        helper.make_node("Softmax", ["logits"], ["scores"], name="softmax", axis=1),
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.node[3].input[:] = ["image_d", "w_d"]
    graph.output[0].name = "scores"
    return proto


@functools.cache
def originals() -> tuple[bytes, ...]:
    """The three models: real ones where AUDITKIT_ASSETS names a folder, else built here."""
    folder = os.environ.get("AUDITKIT_ASSETS")
    if folder:
        return tuple((Path(folder) / "models" / name).read_bytes() for name in REAL_MODELS)
    return tuple(proto.SerializeToString() for proto in (onnx_models.convnet(), looped(), quantised()))


# ---------------------------------------------------------------- the damage

Rng = np.random.Generator
Damage = Callable[[onnx.ModelProto, Rng], None]


def _flipped(content: bytes, rng: Rng) -> bytes:
    """Some bytes replaced; half of the time in the first kilobytes, where the structure is rather than weights."""
    damaged = bytearray(content)
    reach = len(content) if rng.random() < 0.5 else min(len(content), 4096)
    for _ in range(int(rng.choice([1, 1, 2, 4, 16, 64]))):
        damaged[int(rng.integers(reach))] = int(rng.integers(256))
    return bytes(damaged)


def _bit_flipped(content: bytes, rng: Rng) -> bytes:
    damaged = bytearray(content)
    damaged[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def _cut(content: bytes, rng: Rng) -> bytes:
    return content[: int(rng.integers(len(content)))]


def _spliced(content: bytes, rng: Rng) -> bytes:
    """A stretch taken out, or written a second time."""
    start, end = sorted(int(place) for place in rng.integers(len(content), size=2))
    return content[:start] + content[end:] if rng.random() < 0.5 else content[:end] + content[start:]


def _messages(proto: Message, kind: type) -> list[Any]:
    """All messages of one kind below another, however deep."""
    found, waiting = [], [proto]
    while waiting:
        here = waiting.pop()
        if isinstance(here, kind):
            found.append(here)
        for descriptor, value in here.ListFields():
            if descriptor.message_type is not None:
                waiting += [value] if isinstance(value, Message) else list(value)
    return found


def _any(rng: Rng, things: list[Any]) -> Any:
    return things[int(rng.integers(len(things)))]


def _swap(rng: Rng, things: list[Any], field: str) -> None:
    one, other = _any(rng, things), _any(rng, things)
    if isinstance(getattr(one, field), str | int | bytes):
        first, second = getattr(one, field), getattr(other, field)
        setattr(one, field, second)
        setattr(other, field, first)
    else:
        first, second = list(getattr(one, field)), list(getattr(other, field))
        getattr(one, field)[:] = second
        getattr(other, field)[:] = first


def _op_types_swapped(proto: onnx.ModelProto, rng: Rng) -> None:
    _swap(rng, _messages(proto, onnx.NodeProto), "op_type")


def _op_type_replaced(proto: onnx.ModelProto, rng: Rng) -> None:
    others = ["Loop", "If", "Resize", "Expand", "Tile", "ConstantOfShape", "Range", "Einsum", "Pad", "Identity",
              "Reshape", "Gather", "Conv", "ConvTranspose", "TopK", "Softmax", "QuantizeLinear", "LSTM", "Split",
              "NoSuch"]  # fmt: skip
    _any(rng, _messages(proto, onnx.NodeProto)).op_type = str(rng.choice(others))


def _dims_swapped(proto: onnx.ModelProto, rng: Rng) -> None:
    _swap(rng, _messages(proto, TensorProto), "dims")


def _dim_changed(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = _any(rng, [t for t in _messages(proto, TensorProto) if t.dims])
    values = [0, -1, 1, 2**16, 2**31, 2**33, 2**62, -(2**63), int(rng.integers(1, 4096))]
    tensor.dims[int(rng.integers(len(tensor.dims)))] = values[int(rng.integers(len(values)))]


def _declared_dim_changed(proto: onnx.ModelProto, rng: Rng) -> None:
    values = [v for v in _messages(proto, onnx.ValueInfoProto) if v.type.tensor_type.shape.dim]
    dim = _any(rng, list(_any(rng, values).type.tensor_type.shape.dim))
    sizes = [0, -1, 1, 2, 7, 4096, 2**20, 2**31, 2**40, 2**62]
    dim.dim_value = sizes[int(rng.integers(len(sizes)))]


def _weight_names_swapped(proto: onnx.ModelProto, rng: Rng) -> None:
    _swap(rng, list(proto.graph.initializer), "name")


def _weight_name_doubled(proto: onnx.ModelProto, rng: Rng) -> None:
    _any(rng, list(proto.graph.initializer)).name = _any(rng, list(proto.graph.initializer)).name


def _data_swapped(proto: onnx.ModelProto, rng: Rng) -> None:
    _swap(rng, _messages(proto, TensorProto), "raw_data")


def _data_type_changed(proto: onnx.ModelProto, rng: Rng) -> None:
    _any(rng, _messages(proto, TensorProto)).data_type = int(rng.choice([0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 16, 22, 99]))


def _declared_type_changed(proto: onnx.ModelProto, rng: Rng) -> None:
    value = _any(rng, _messages(proto, onnx.ValueInfoProto))
    value.type.tensor_type.elem_type = int(rng.choice([0, 1, 2, 7, 8, 9, 10, 11, 16, 99]))


def _attribute_changed(proto: onnx.ModelProto, rng: Rng) -> None:
    attributes = _messages(proto, onnx.AttributeProto)
    if not attributes:
        return
    attribute = _any(rng, attributes)
    number = int(rng.choice([0, -1, 2, 3, 17, 2**20, 2**31, 2**62]))
    if attribute.ints:
        attribute.ints[int(rng.integers(len(attribute.ints)))] = number
    elif attribute.HasField("i"):
        attribute.i = number
    elif attribute.HasField("f"):
        attribute.f = float(rng.choice([0.0, -1.0, 1e38, float("nan"), float("inf")]))
    else:
        attribute.type = int(rng.integers(15))


def _attributes_swapped(proto: onnx.ModelProto, rng: Rng) -> None:
    nodes = [node for node in _messages(proto, onnx.NodeProto) if node.attribute]
    if len(nodes) > 1:
        one, other = _any(rng, nodes), _any(rng, nodes)
        first = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in one.attribute]
        second = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in other.attribute]
        for node, attributes in ((one, second), (other, first)):
            del node.attribute[:]
            node.attribute.extend(attributes)


def _node_doubled(proto: onnx.ModelProto, rng: Rng) -> None:
    graph = _any(rng, _messages(proto, onnx.GraphProto))
    if graph.node:
        graph.node.insert(int(rng.integers(len(graph.node) + 1)), _any(rng, list(graph.node)))


def _node_removed(proto: onnx.ModelProto, rng: Rng) -> None:
    graph = _any(rng, _messages(proto, onnx.GraphProto))
    if graph.node:
        del graph.node[int(rng.integers(len(graph.node)))]


def _edge_moved(proto: onnx.ModelProto, rng: Rng) -> None:
    """A node reads another tensor than its own: type errors, and circles."""
    nodes = _messages(proto, onnx.NodeProto)
    node = _any(rng, [n for n in nodes if n.input])
    names = [name for n in nodes for name in (*n.input, *n.output)] + ["", "nowhere"]
    node.input[int(rng.integers(len(node.input)))] = _any(rng, names)


def _edge_removed(proto: onnx.ModelProto, rng: Rng) -> None:
    node = _any(rng, _messages(proto, onnx.NodeProto))
    names = node.input if rng.random() < 0.7 else node.output
    if names:
        del names[int(rng.integers(len(names)))]


def _output_moved(proto: onnx.ModelProto, rng: Rng) -> None:
    names = [name for node in proto.graph.node for name in node.output] + ["", "nowhere"]
    fresh = onnx.ValueInfoProto(name=_any(rng, names))
    if rng.random() < 0.5:
        del proto.graph.output[:]
    proto.graph.output.append(fresh)


def _version_changed(proto: onnx.ModelProto, rng: Rng) -> None:
    if rng.random() < 0.3:
        proto.ir_version = int(rng.choice([0, 1, 3, 99, 2**40]))
    else:
        proto.opset_import[0].version = int(rng.choice([-1, 0, 1, 7, 9, 11, 13, 18, 21, 23, 999]))


def _outside(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = _any(rng, _messages(proto, TensorProto))
    tensor.data_location = TensorProto.EXTERNAL
    places = ["../outside", "/etc/hostname", "", "weights.bin", "*/_ORT_MEM_ADDR_/*", "/dev/zero", "."]
    tensor.external_data.add(key="location", value=str(rng.choice(places)))
    tensor.external_data.add(key="offset", value=str(rng.choice(["0", "-1", "x", "9" * 30])))


IN_BYTES: tuple[Callable[[bytes, Rng], bytes], ...] = (_flipped, _flipped, _bit_flipped, _cut, _spliced)
IN_FIELDS: tuple[Damage, ...] = (
    _op_types_swapped, _op_type_replaced, _dims_swapped, _dim_changed, _declared_dim_changed, _weight_names_swapped,
    _weight_name_doubled, _data_swapped, _data_type_changed, _declared_type_changed, _attribute_changed,
    _attributes_swapped, _node_doubled, _node_removed, _edge_moved, _edge_removed, _output_moved, _version_changed,
    _outside,
)  # fmt: skip


def damaged(which: int, original: bytes, copy: int) -> tuple[str, bytes]:
    """What was done to copy number `copy` of model `which`, and the damaged file."""
    rng = np.random.default_rng([which, copy])
    if copy % 3 == 0:
        harm = IN_BYTES[(copy // 3) % len(IN_BYTES)]
        return harm.__name__, harm(original, rng)
    proto = onnx.ModelProto.FromString(original)
    done = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        damage = IN_FIELDS[int(rng.integers(len(IN_FIELDS)))]
        damage(proto, rng)
        done.append(damage.__name__)
    return "+".join(done), proto.SerializeToString()


# ---------------------------------------------------------------- one run, measured and judged


@dataclass
class Run:
    """How one run of the command ended.

    `tree_bytes` is an upper bound on the memory of the command and its child together: the kernel's own peak of
    resident memory of the larger of the two (wait4 counts a process and the children it waited for, each by itself),
    plus what the command itself held while its child ran (polled every 20 ms; it only waits then). Pages of shared
    libraries are counted in both.
    """

    code: int | None  # None: it had to be killed
    out: str
    err: str
    seconds: float
    tree_bytes: int
    file_bytes: int
    faults: list[str] = field(default_factory=list)


# Runs a command from a process of its own, as small as can be: the kernel counts towards the peak of a process what its
# parent held when it was started, and a test runner may hold gigabytes.
MEASURE = r"""
import json, os, subprocess, sys, time
command, out, err, seconds = json.loads(sys.argv[1])
start = time.perf_counter()
with open(out, "wb") as stdout, open(err, "wb") as stderr:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True)

def held_while_waiting(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as children, open(f"/proc/{pid}/statm") as pages:
            return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") if children.read() else 0
    except (OSError, IndexError):
        return 0

held, done, late = 0, 0, False
while not done:
    done, status, usage = os.wait4(child.pid, os.WNOHANG)
    held = max(held, held_while_waiting(child.pid))
    if not done and not late and time.perf_counter() - start > seconds:
        late = True
        os.killpg(child.pid, 9)
    time.sleep(0 if done else 0.02)
child.returncode = os.waitstatus_to_exitcode(status)
peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
code = None if late else child.returncode
print(json.dumps({"code": code, "seconds": time.perf_counter() - start, "tree_bytes": peak + held}))
"""


def run(command: list[str], file: Path, folder: Path, seconds: float = SECONDS + 5) -> Run:
    """Run the command on a file and measure it; it is killed when it takes longer than that."""
    out, err = folder / "stdout", folder / "stderr"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    request = json.dumps([[*command, str(file)], str(out), str(err), seconds])
    done = subprocess.run([sys.executable, "-I", "-S", "-c", MEASURE, request], capture_output=True, text=True,
                          env=environment, check=True)  # fmt: skip
    return Run(
        **json.loads(done.stdout),
        out=out.read_text(errors="replace"),
        err=err.read_text(errors="replace"),
        file_bytes=file.stat().st_size,
    )


def judged(result: Run, seconds: float = SECONDS, memory: int = 2**30) -> list[str]:
    """What is wrong with a run; empty when it kept every promise."""
    lines = result.err.splitlines()
    faults = []
    if result.code not in (0, 2):
        faults.append(f"exit code {result.code}")
    if result.code == 0 and lines:
        faults.append(f"{len(lines)} line(s) on stderr although it succeeded")
    if result.code == 2 and (len(lines) != 1 or not lines[0].startswith("auditkit: ")):
        faults.append(f"{len(lines)} line(s) on stderr, expected one that starts with 'auditkit: '")
    if result.code == 2 and result.out:
        faults.append("it failed, but wrote to stdout")
    if "Traceback" in result.out + result.err:
        faults.append("a traceback")
    if not all(c.isprintable() or c == "\n" for c in result.err):
        faults.append("control characters on stderr")
    if result.seconds > seconds:
        faults.append(f"{result.seconds:.1f} s")
    if result.tree_bytes > memory + 4 * result.file_bytes:
        faults.append(f"{result.tree_bytes:,} bytes of memory for a file of {result.file_bytes:,}")
    return faults


def _keep(case: str, harm: str, result: Run, file: Path) -> None:
    folder = os.environ.get("AUDITKIT_CORRUPT_KEEP")
    if not folder:
        return
    kept = Path(folder)
    kept.mkdir(parents=True, exist_ok=True)
    if result.faults:
        (kept / f"{case}.onnx").write_bytes(file.read_bytes())
    line = json.dumps({"case": case, "harm": harm, **asdict(result)})
    with (kept / f"cases_{os.getpid()}.jsonl").open("a") as stream:
        stream.write(line + "\n")


# ---------------------------------------------------------------- the tests


def first_of_each_kind() -> list[list[int]]:
    """For each model, copies that together show every kind of damage, taken from the models in turn."""
    copies: list[list[int]] = [[], [], []]
    kinds: set[str] = set()
    for copy, which in itertools.product(range(20), range(3)):
        harm, _ = damaged(which, originals()[which], copy)
        if not kinds.issuperset(harm.split("+")):
            kinds.update(harm.split("+"))
            copies[which].append(copy)
    assert kinds == {damage.__name__ for damage in (*IN_BYTES, *IN_FIELDS)}
    return copies


def _broken_promises(which: int, copies: Iterable[int], folder: Path) -> list[str]:
    """What is wrong with the command's runs on these copies of a model."""
    failed = []
    for copy in copies:
        harm, content = damaged(which, originals()[which], copy)
        file = folder / "damaged.onnx"
        file.write_bytes(content)
        result = run(CLI, file, folder)
        result.faults = judged(result)
        _keep(f"{which}_{copy}", harm, result, file)
        if result.faults:
            failed.append(f"model {which}, copy {copy} ({harm}): {'; '.join(result.faults)}\n{result.err[-500:]}")
    return failed


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="measures memory with wait4")
@pytest.mark.parametrize("which", range(3))
def test_every_kind_of_damage_ends_in_a_result_or_in_one_sentence(which: int, tmp_path: Path) -> None:
    """Exit 0 or 2, one line at most, no traceback, within a minute and within 1 GiB plus four times the file."""
    failed = _broken_promises(which, first_of_each_kind()[which], tmp_path)
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "wait4"), reason="measures memory with wait4")
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("which", range(3))
def test_a_damaged_file_ends_in_a_result_or_in_one_sentence(which: int, chunk: int, tmp_path: Path) -> None:
    """The same of many copies, in which kinds of damage meet."""
    failed = _broken_promises(which, range(chunk, len(range(which, COPIES, 3)), CHUNKS), tmp_path)
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("which", range(3))
def test_the_models_are_accepted_before_they_are_damaged(which: int, tmp_path: Path) -> None:
    """Otherwise the copies would prove nothing: all would be refused for the same reason."""
    file = tmp_path / "whole.onnx"
    file.write_bytes(originals()[which])
    result = run(CLI, file, tmp_path)
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("which", range(3))
def test_copies_are_the_same_every_time_and_nearly_all_differ_from_the_original(which: int) -> None:
    """The seed makes the copy, so a failure can be looked at again; and the damage is real."""
    original = originals()[which]
    copies = [damaged(which, original, copy) for copy in range(60)]
    assert copies == [damaged(which, original, copy) for copy in range(60)]
    assert sum(content != original for _, content in copies) >= 50
    assert len({content for _, content in copies}) >= 50


def _parses(content: bytes) -> bool:
    try:
        onnx.ModelProto.FromString(content)
    except DecodeError:
        return False
    return True


def test_most_copies_get_past_the_parser() -> None:
    """Files that are refused for their first bytes test nothing further in."""
    contents = [damaged(which, original, copy)[1] for which, original in enumerate(originals()) for copy in range(60)]
    assert sum(map(_parses, contents)) >= 100


FAKES = {
    "traceback": "import sys; print('auditkit: Traceback (most recent call last):', file=sys.stderr); sys.exit(2)",
    "traceback on stdout": "print('Traceback (most recent call last):')",
    "exit 1": "import sys; print('auditkit: no.', file=sys.stderr); sys.exit(1)",
    "exit 4": "import sys; print('auditkit: internal error.', file=sys.stderr); sys.exit(4)",
    "killed": "import os; os.kill(os.getpid(), 11)",
    "two lines": "import sys; print('auditkit: no.\\nand no again.', file=sys.stderr); sys.exit(2)",
    "no line": "import sys; sys.exit(2)",
    "another's line": "import sys; print('onnxruntime: no.', file=sys.stderr); sys.exit(2)",
    "chatter": "import sys; print('warning', file=sys.stderr)",
    "escape": "import sys; print('auditkit: \\x1b[31mno.', file=sys.stderr); sys.exit(2)",
    "late": "import time; time.sleep(1.5)",
    "endless": "import time; time.sleep(60)",
    "large": "x = b'x' * 300_000_000",
    "large child": "import subprocess as s, sys; s.run([sys.executable, '-c', 'x = bytes(1) * 300_000_000'])",
}


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="measures memory with wait4")
@pytest.mark.parametrize("fake", FAKES)
def test_the_judge_sees_every_broken_promise(fake: str, tmp_path: Path) -> None:
    """Planted commands, each bad in one way: the harness that would pass one of them proves nothing."""
    file = tmp_path / "any.onnx"
    file.write_bytes(b"x")
    result = run([sys.executable, "-c", FAKES[fake]], file, tmp_path, seconds=2.0 if fake == "endless" else 30.0)
    assert len(judged(result, 1.0 if fake == "late" else 30.0, 250_000_000)) == 1


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="measures memory with wait4")
@pytest.mark.parametrize(
    "good", ["print('a table')", "import sys; print('auditkit: no.', file=sys.stderr); sys.exit(2)"]
)
def test_the_judge_accepts_a_result_and_a_sentence(good: str, tmp_path: Path) -> None:
    file = tmp_path / "any.onnx"
    file.write_bytes(b"x")
    assert judged(run([sys.executable, "-c", good], file, tmp_path)) == []


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="measures memory with wait4")
def test_memory_of_a_command_and_its_child_is_added_up(tmp_path: Path) -> None:
    """100 MB held by the command while its child takes 200 MB count as 300 MB at least."""
    grandchild = "x = bytes(1) * 200_000_000; import time; time.sleep(0.3)"
    parent = f"import subprocess as s, sys; x = b'x' * 100_000_000; s.run([sys.executable, '-c', '''{grandchild}'''])"
    file = tmp_path / "any.onnx"
    file.write_bytes(b"x")
    result = run([sys.executable, "-c", parent], file, tmp_path)
    assert 300_000_000 < result.tree_bytes < 450_000_000


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="measures memory with wait4")
def test_memory_of_the_test_runner_is_not_counted(tmp_path: Path) -> None:
    """What this process holds is not the command's."""
    held = b"x" * 400_000_000
    file = tmp_path / "any.onnx"
    file.write_bytes(held[:1])
    assert run([sys.executable, "-c", "pass"], file, tmp_path).tree_bytes < 100_000_000
