"""A model's external data is read from plain files in its own folder, and no byte comes from anywhere else.

Every way out of the folder is tried in every place where the format lets a tensor hide. What proves that nothing
was read: the opens that Python reports to an audit hook, the calls of os.pread, and for the whole command, its child
and the runtime in it, the system calls that strace sees.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

from auditkit.errors import BadInput
from auditkit.model import external_data
from auditkit.model.classifier import load
from auditkit.model.external_data import HELD_IN_MEMORY
from auditkit.model.read import Limits, read
from auditkit.model.session import Settings
from tests.support import onnx_models
from tests.support.commands import auditkit

SECRET = b"SECRET-OF-THE-AUDITOR-0123456789"
NUMBERS = np.array([0.5, -1.0, 2.0, 4.0, 0.25, -3.0], np.float32)  # one for each feature of onnx_models.convnet
POSITIONS = np.arange(6, dtype=np.int64)


def put_outside(tensor: TensorProto, location: str, **entries: object) -> None:
    """Make a tensor refer to a file instead of holding its bytes."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))


# ---------------------------------------------------------------- places where a tensor can hide


def _through(make: Callable[[onnx.ModelProto], None], opset: int = 17) -> onnx.ModelProto:
    """build.convnet with its features multiplied by a tensor 'm', which `make` provides."""
    proto = onnx_models.convnet(opset=opset)
    gemm = proto.graph.node.pop()
    make(proto)
    proto.graph.node.append(helper.make_node("Mul", ["f", "m"], ["multiplied"], name="multiply"))
    gemm.input[0] = "multiplied"
    proto.graph.node.append(gemm)
    return proto


def initializer() -> tuple[onnx.ModelProto, TensorProto]:
    proto = _through(lambda p: p.graph.initializer.append(numpy_helper.from_array(NUMBERS, "m")))
    return proto, proto.graph.initializer[-1]


def constant() -> tuple[onnx.ModelProto, TensorProto]:
    node = helper.make_node("Constant", [], ["m"], value=numpy_helper.from_array(NUMBERS, "m"))
    proto = _through(lambda p: p.graph.node.append(node))
    return proto, proto.graph.node[-3].attribute[0].t


def _sparse() -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(NUMBERS, "m"), numpy_helper.from_array(POSITIONS, "at"), [6]
    )


def sparse_values() -> tuple[onnx.ModelProto, TensorProto]:
    proto = _through(lambda p: p.graph.sparse_initializer.append(_sparse()))
    return proto, proto.graph.sparse_initializer[0].values


def sparse_indices() -> tuple[onnx.ModelProto, TensorProto]:
    proto, _ = sparse_values()
    return proto, proto.graph.sparse_initializer[0].indices


def sparse_constant() -> tuple[onnx.ModelProto, TensorProto]:
    proto = _through(lambda p: p.graph.node.append(helper.make_node("Constant", [], ["m"], sparse_value=_sparse())))
    return proto, proto.graph.node[-3].attribute[0].sparse_tensor.values


def sparse_constant_indices() -> tuple[onnx.ModelProto, TensorProto]:
    proto, _ = sparse_constant()
    return proto, proto.graph.node[-3].attribute[0].sparse_tensor.indices


def _branch(name: str, inner: bool) -> onnx.GraphProto:
    """A graph that gives the numbers, from an initializer or from a Constant."""
    tensor = numpy_helper.from_array(NUMBERS, f"{name}_m")
    node = (
        helper.make_node("Identity", [f"{name}_m"], [f"{name}_out"])
        if inner
        else helper.make_node("Constant", [], [f"{name}_out"], value=tensor)
    )
    return helper.make_graph([node], name, [], [onnx_models.value(f"{name}_out", [6])], [tensor] if inner else [])


def _with_if(inner: bool) -> onnx.ModelProto:
    def make(proto: onnx.ModelProto) -> None:
        proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        branches = {f"{name}_branch": _branch(name, inner) for name in ("then", "else")}
        proto.graph.node.append(helper.make_node("If", ["yes"], ["m"], name="if", **branches))

    return _through(make)


def if_initializer() -> tuple[onnx.ModelProto, TensorProto]:
    proto = _with_if(inner=True)
    return proto, proto.graph.node[-3].attribute[1].g.initializer[0]


def if_constant() -> tuple[onnx.ModelProto, TensorProto]:
    proto = _with_if(inner=False)
    return proto, proto.graph.node[-3].attribute[0].g.node[0].attribute[0].t


def loop_body() -> tuple[onnx.ModelProto, TensorProto]:
    def make(proto: onnx.ModelProto) -> None:
        body = helper.make_graph(
            [helper.make_node("Identity", ["going"], ["go_on"]), helper.make_node("Add", ["state", "step"], ["next"])],
            "body",
            [
                onnx_models.value("round", [], TensorProto.INT64),
                onnx_models.value("going", [], TensorProto.BOOL),
                onnx_models.value("state", [6]),
            ],
            [onnx_models.value("go_on", [], TensorProto.BOOL), onnx_models.value("next", [6])],
            [numpy_helper.from_array(NUMBERS, "step")],
        )
        weights = {"yes": np.array(True), "rounds": np.array(1, np.int64), "start": np.zeros(6, np.float32)}
        proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
        proto.graph.node.append(helper.make_node("Loop", ["rounds", "yes", "start"], ["m"], name="loop", body=body))

    proto = _through(make)
    return proto, proto.graph.node[-3].attribute[0].g.initializer[0]


def function() -> tuple[onnx.ModelProto, TensorProto]:
    def make(proto: onnx.ModelProto) -> None:
        node = helper.make_node("Constant", [], ["out"], value=numpy_helper.from_array(NUMBERS, "m"))
        opsets = [helper.make_opsetid("", 17)]
        proto.functions.append(helper.make_function("local", "Numbers", [], ["out"], [node], opsets))
        proto.opset_import.append(helper.make_opsetid("local", 1))
        proto.graph.node.append(helper.make_node("Numbers", [], ["m"], domain="local"))

    proto = _through(make)
    return proto, proto.functions[0].node[0].attribute[0].t


def function_default() -> tuple[onnx.ModelProto, TensorProto]:
    """The default value of a function's attribute."""
    proto, _ = function()
    default = helper.make_attribute("value", numpy_helper.from_array(NUMBERS, "m"))
    proto.functions[0].attribute_proto.append(default)
    body = proto.functions[0].node[0]
    del body.attribute[:]
    body.attribute.add(name="value", ref_attr_name="value", type=onnx.AttributeProto.TENSOR)
    return proto, proto.functions[0].attribute_proto[0].t


def training_info() -> tuple[onnx.ModelProto, TensorProto]:
    proto, _ = initializer()
    algorithm = proto.training_info.add().algorithm
    algorithm.name = "step"
    algorithm.initializer.append(numpy_helper.from_array(NUMBERS, "rate"))
    return proto, algorithm.initializer[0]


def training_start() -> tuple[onnx.ModelProto, TensorProto]:
    proto, _ = initializer()
    start = proto.training_info.add().initialization
    start.name = "start"
    start.node.append(helper.make_node("Constant", [], ["x"], value=numpy_helper.from_array(NUMBERS, "rate")))
    return proto, start.node[0].attribute[0].t


def list_attribute() -> tuple[onnx.ModelProto, TensorProto]:
    """An attribute that is a list of tensors, which no standard operator has."""
    proto, _ = initializer()
    attribute = proto.graph.node[0].attribute.add(name="more", type=onnx.AttributeProto.TENSORS)
    attribute.tensors.append(numpy_helper.from_array(NUMBERS, "more"))
    return proto, attribute.tensors[0]


def list_of_graphs() -> tuple[onnx.ModelProto, TensorProto]:
    proto, _ = initializer()
    attribute = proto.graph.node[0].attribute.add(name="more", type=onnx.AttributeProto.GRAPHS)
    attribute.graphs.append(_branch("hidden", inner=True))
    return proto, attribute.graphs[0].initializer[0]


Place = Callable[[], tuple[onnx.ModelProto, TensorProto]]
RUNNABLE: tuple[Place, ...] = (
    initializer, constant, sparse_values, sparse_indices, sparse_constant, sparse_constant_indices, if_initializer,
    if_constant, loop_body, function, function_default,
)  # fmt: skip
PLACES: tuple[Place, ...] = (*RUNNABLE, training_info, training_start, list_attribute, list_of_graphs)
places = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)


# ---------------------------------------------------------------- ways out of the folder


class Folders:
    """A model's folder and, beside it, a secret that no model may reach."""

    def __init__(self, root: Path) -> None:
        self.model, self.outside = root / "model", root / "outside"
        self.model.mkdir()
        self.outside.mkdir()
        self.secret = self.outside / "secret.bin"
        self.secret.write_bytes(SECRET * 8)


def dots(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, "../outside/secret.bin")


def dots_inside(at: Folders, tensor: TensorProto, size: int) -> None:
    (at.model / "sub").mkdir()
    put_outside(tensor, "sub/../../outside/secret.bin", length=size)


def backslashes(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, "..\\outside\\secret.bin")


def drive(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, "C:\\secret.bin")


def absolute(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, str(at.secret))


def two_slashes(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, f"/{at.secret}")


def address(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, f"file://{at.secret}")


def link(at: Folders, tensor: TensorProto, size: int) -> None:
    (at.model / "data.bin").symlink_to(at.secret)
    put_outside(tensor, "data.bin")


def link_within(at: Folders, tensor: TensorProto, size: int) -> None:
    """Links are refused even where they stay in the folder: they could be moved a moment later."""
    (at.model / "real.bin").write_bytes(SECRET * 8)
    (at.model / "data.bin").symlink_to("real.bin")
    put_outside(tensor, "data.bin")


def folder_link(at: Folders, tensor: TensorProto, size: int) -> None:
    (at.model / "sub").symlink_to(at.outside, target_is_directory=True)
    put_outside(tensor, "sub/secret.bin")


def folder_link_with_dot(at: Folders, tensor: TensorProto, size: int) -> None:
    (at.model / "sub").symlink_to(at.outside, target_is_directory=True)
    put_outside(tensor, "./sub/./secret.bin")


def hard_link(at: Folders, tensor: TensorProto, size: int) -> None:
    (at.model / "data.bin").hardlink_to(at.secret)
    put_outside(tensor, "data.bin")


def pipe(at: Folders, tensor: TensorProto, size: int) -> None:
    os.mkfifo(at.model / "data.bin")
    put_outside(tensor, "data.bin")


def folder(at: Folders, tensor: TensorProto, size: int) -> None:
    (at.model / "data.bin").mkdir()
    put_outside(tensor, "data.bin")


def folder_itself(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, ".")


def missing(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, "data.bin")


def file_as_folder(at: Folders, tensor: TensorProto, size: int) -> None:
    (at.model / "data.bin").write_bytes(SECRET * 8)
    put_outside(tensor, "data.bin/more.bin")


def no_location(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, "")


def nul(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, "data.bin\0../outside/secret.bin")


def too_long_a_name(at: Folders, tensor: TensorProto, size: int) -> None:
    put_outside(tensor, "d" * 5000)


def memory_address(at: Folders, tensor: TensorProto, size: int) -> None:
    """The runtime takes the offset of such a tensor for an address in its own memory."""
    put_outside(tensor, "*/_ORT_MEM_ADDR_/*", offset=id(tensor), length=size)


def undeclared(at: Folders, tensor: TensorProto, size: int) -> None:
    """Entries alone, without the mark that the data is external."""
    put_outside(tensor, "../outside/secret.bin")
    tensor.data_location = TensorProto.DEFAULT


def unnamed(at: Folders, tensor: TensorProto, size: int) -> None:
    """The mark alone, without entries."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL


def said_twice(at: Folders, tensor: TensorProto, size: int) -> None:
    """A good location first and a bad one after it."""
    (at.model / "data.bin").write_bytes(SECRET * 8)
    put_outside(tensor, "data.bin")
    tensor.external_data.add(key="location", value="../outside/secret.bin")


def _ranged(**entries: object) -> "Attack":
    def attack(at: Folders, tensor: TensorProto, size: int) -> None:
        (at.model / "data.bin").write_bytes(bytes(size))
        put_outside(tensor, "data.bin", **entries)

    return attack


Attack = Callable[[Folders, TensorProto, int], None]
ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        dots, dots_inside, backslashes, drive, absolute, two_slashes, address, link, link_within, folder_link,
        folder_link_with_dot, hard_link, pipe, folder, folder_itself, missing, file_as_folder, no_location, nul,
        too_long_a_name, memory_address, undeclared, unnamed, said_twice,
    )
} | {
    "offset behind the end": _ranged(offset=8),
    "negative offset": _ranged(offset=-8),
    "huge offset": _ranged(offset=2**63),
    "endless offset": _ranged(offset="9" * 4300),
    "offset of no number": _ranged(offset="0x0"),
    "length of no number": _ranged(length="all"),
    "length too small": _ranged(length=4),
    "length too large": _ranged(length=4096),
    "negative length": _ranged(length=-1),
}  # fmt: skip
attacks = pytest.mark.parametrize("attack", ATTACKS)


def attacked(place: Place, attack: str, root: Path) -> tuple[Path, Folders]:
    """A model with one tensor in that place pointed where it should not."""
    at = Folders(root)
    proto, tensor = place()
    ATTACKS[attack](at, tensor, len(tensor.raw_data))
    return onnx_models.save(proto, at.model), at


# ---------------------------------------------------------------- what is opened and read


class Witness:
    """What a test's own thread opened, and how often it read by descriptor; workers' watchers open files too."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.opened: list[str] = []
        self.reads = 0

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and threading.get_ident() == self.thread:
            self.opened.append(os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else str(args[0]))


WITNESS = Witness()


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Witness]:
    if WITNESS.hook not in getattr(sys, "_auditkit_test_hooks", []):
        sys.addaudithook(WITNESS.hook)  # it cannot be taken off again, so there is one for all tests
        sys._auditkit_test_hooks = [WITNESS.hook]  # type: ignore[attr-defined]
    WITNESS.opened, WITNESS.reads = [], 0
    pread = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        WITNESS.reads += 1
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    WITNESS.thread = threading.get_ident()
    yield WITNESS
    WITNESS.thread = None


@attacks
@places
def test_what_leaves_the_folder_is_refused_in_one_line_and_no_byte_is_read(
    place: Place, attack: str, tmp_path: Path, witness: Witness
) -> None:
    file, at = attacked(place, attack, tmp_path)
    witness.opened.clear()
    with pytest.raises(BadInput) as refusal:
        read(file)
    assert "\n" not in str(refusal.value)
    assert "SECRET" not in str(refusal.value)
    assert witness.reads == 0
    # The model, its folder, folders beneath it and, to look at what kind of file it is, a file that lies in it.
    assert set(witness.opened) <= {str(file), str(at.model), "sub", "data.bin"}
    if attack in ("link", "link_within", "folder_link", "folder_link_with_dot"):
        assert list(dict.fromkeys(witness.opened)) == [str(file), str(at.model)]  # open() and its opener are both seen


def test_the_witness_sees_an_honest_read(tmp_path: Path, witness: Witness) -> None:
    """Otherwise the test above would pass for a reader that nobody watches."""
    proto, tensor = initializer()
    (tmp_path / "data.bin").write_bytes(tensor.raw_data)
    put_outside(tensor, "data.bin")
    file = onnx_models.save(proto, tmp_path)
    witness.opened.clear()
    read(file)
    assert "data.bin" in witness.opened
    assert witness.reads > 0


def _traced(file: Path, *strace: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [*strace, sys.executable, "-m", "auditkit", "inspect", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)


def _refused(done: "subprocess.CompletedProcess[str]") -> bool:
    one_line = done.stderr.startswith("auditkit: ") and done.stderr.count("\n") == 1
    return done.returncode == 2 and done.stdout == "" and one_line and "SECRET" not in done.stderr


@pytest.mark.parametrize("attack", ["absolute", "link", "folder_link", "hard_link", "pipe", "memory_address", "nul"])
def test_the_command_refuses_with_exit_code_2_and_one_line(attack: str, tmp_path: Path) -> None:
    done = auditkit("inspect", attacked(initializer, attack, tmp_path)[0])
    assert _refused(done), done


@places
def test_the_command_refuses_wherever_the_tensor_hides(place: Place, tmp_path: Path) -> None:
    done = auditkit("inspect", attacked(place, "dots", tmp_path)[0])
    assert _refused(done), done
    assert "leaves the model's folder" in done.stderr


STRACE = shutil.which("strace")


@pytest.mark.skipif(STRACE is None, reason="needs strace")
@pytest.mark.parametrize("attack", ["dots", "absolute", "link", "folder_link", "hard_link", "pipe"])
def test_no_process_of_the_command_touches_the_secret(attack: str, tmp_path: Path) -> None:
    """The system calls of the command, its child and the runtime: nothing outside is opened, nothing linked is read."""
    file, at = attacked(initializer, attack, tmp_path)
    log = tmp_path / "calls"
    tracing = ["-f", "-y", "-o", str(log), "-e", "trace=open,openat,openat2,read,pread64,mmap,sendfile,execve"]
    done = _traced(file, str(STRACE), *tracing)
    calls = log.read_text(errors="replace").splitlines()
    assert _refused(done), done
    assert sum("execve(" in call for call in calls) >= 2, "the child was not traced"
    assert any(f"read(3<{file}>" in call or f"<{file}>" in call for call in calls), "the model's own read was not seen"
    assert not [call for call in calls if f"<{at.secret}>" in call]
    assert not [call for call in calls if "data.bin>" in call and not call.split(None, 1)[1].startswith("open")]


# ---------------------------------------------------------------- what is allowed


def _scores(file: Path, **options: Any) -> np.ndarray[Any, Any]:
    rows = np.random.default_rng(1).standard_normal((5, 3, 8, 8)).astype(np.float32)
    return load(file, settings=Settings(device="cpu"), **options).predict(rows)


def _same(found: onnx.ModelProto, whole: onnx.ModelProto) -> bool:
    """Whether two models are equal, apart from saying outright that a tensor's data is inside."""
    waiting: list[Message] = [found]
    while waiting:
        here = waiting.pop()
        if isinstance(here, TensorProto) and here.data_location == TensorProto.DEFAULT:
            here.ClearField("data_location")
        for descriptor, value in here.ListFields():
            if descriptor.message_type is not None:
                waiting += [value] if isinstance(value, Message) else list(value)
    return found == whole


@pytest.mark.parametrize("location", ["data.bin", "sub/deeper/data.bin", "./sub//data.bin", "sub\\data.bin", "..d"])
def test_plain_files_in_the_folder_and_beneath_it_are_read(location: str, tmp_path: Path) -> None:
    proto, tensor = initializer()
    data = tmp_path / location.replace("\\", "/")
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_bytes(b"before" + tensor.raw_data + b"behind")
    put_outside(tensor, location, offset=6, length=NUMBERS.nbytes)
    found = read(onnx_models.save(proto, tmp_path))
    assert _same(found.proto, initializer()[0])
    assert list(found.external) == [location]


@places
def test_data_in_the_folder_is_put_in_place_wherever_the_tensor_hides(place: Place, tmp_path: Path) -> None:
    """The graph that reaches the runtime is the self-contained one, and names no file."""
    proto, tensor = place()
    (tmp_path / "data.bin").write_bytes(tensor.raw_data)
    put_outside(tensor, "data.bin")
    assert _same(read(onnx_models.save(proto, tmp_path)).proto, place()[0])


def test_predictions_are_those_of_the_model_in_one_file(tmp_path: Path) -> None:
    """Bit for bit, with every tensor outside, from the folder and from a folder beneath it."""
    expected = _scores(onnx_models.save(initializer()[0], tmp_path, "whole.onnx"))
    for folder_name in (".", "weights"):
        (tmp_path / folder_name).mkdir(exist_ok=True)
        proto, _ = initializer()
        for tensor in proto.graph.initializer:
            location = f"{folder_name}/{tensor.name}.bin"
            (tmp_path / location).write_bytes(tensor.raw_data)
            put_outside(tensor, location)
        assert np.array_equal(_scores(onnx_models.save(proto, tmp_path, "apart.onnx")), expected)


@pytest.fixture(scope="module")
def expected_scores(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray[Any, Any]:
    """Scores of the model in one file."""
    return _scores(onnx_models.save(initializer()[0], tmp_path_factory.mktemp("plain")))


@pytest.mark.parametrize("place", RUNNABLE, ids=lambda place: place.__name__)
def test_models_with_a_tensor_in_each_place_run_and_agree(
    place: Place, expected_scores: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    """The places are real ones: the runtime accepts each model, and all compute the same."""
    proto, tensor = place()
    (tmp_path / "data.bin").write_bytes(tensor.raw_data)
    put_outside(tensor, "data.bin")
    assert np.allclose(_scores(onnx_models.save(proto, tmp_path)), expected_scores, rtol=1e-6, atol=1e-6)


def wide(classes: int = 900) -> onnx.ModelProto:
    """Flatten and Gemm with one weight above 4096 bytes, the least that stays beside the graph."""
    weight = np.random.default_rng(5).standard_normal((192, classes)).astype(np.float32)
    nodes = [
        helper.make_node("Flatten", ["image"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w", "b"], ["logits"], name="gemm"),
    ]
    bias = np.linspace(-1, 1, classes, dtype=np.float32)
    return onnx_models.model(
        nodes,
        [onnx_models.value("image", ["N", 3, 8, 8])],
        [onnx_models.value("logits", ["N", classes])],
        {"w": weight, "b": bias},
    )


def _apart(proto: onnx.ModelProto, root: Path, name: str = "apart.onnx") -> Path:
    content = b""
    for tensor in proto.graph.initializer:
        start, content = len(content), content + tensor.raw_data
        put_outside(tensor, f"{name}.data", offset=start, length=len(content) - start)
    (root / f"{name}.data").write_bytes(content)
    return onnx_models.save(proto, root, name)


def test_weights_beside_the_graph_give_bitwise_the_same_predictions(tmp_path: Path) -> None:
    """What models above 2 GB need: the runtime is handed the arrays."""
    expected = _scores(onnx_models.save(wide(), tmp_path, "whole.onnx"))
    file = _apart(wide(), tmp_path)
    found = read(file, Limits(inline_bytes=0))
    assert set(found.weights) == {"w"}
    assert [entry.value for entry in found.proto.graph.initializer[0].external_data] == [HELD_IN_MEMORY]
    assert np.array_equal(_scores(file, limits=Limits(inline_bytes=0)), expected)


def test_weights_beside_the_graph_may_serve_no_wanted_output(tmp_path: Path) -> None:
    """A second head's weights go when that head is cut off; the runtime must not be handed them then."""
    proto = wide()
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((192, 50), np.float32), "other_w"))
    proto.graph.node.append(helper.make_node("MatMul", ["f", "other_w"], ["features"], name="other"))
    proto.graph.output.append(onnx_models.value("features", ["N", 50]))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(5000, np.float32), "in_no_use"))
    expected = _scores(onnx_models.save(wide(), tmp_path, "whole.onnx"))
    assert np.array_equal(_scores(_apart(proto, tmp_path), limits=Limits(inline_bytes=0)), expected)


def test_a_weight_named_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two weights of one name the runtime is handed one, and for the other it would look for the file."""
    proto = wide()
    proto.graph.initializer.append(proto.graph.initializer[0])
    file = _apart(proto, tmp_path)
    (tmp_path / HELD_IN_MEMORY).write_bytes(bytes(192 * 900 * 4))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"'w'"):
        read(file, Limits(inline_bytes=0))


def test_a_linked_model_file_is_opened(tmp_path: Path) -> None:
    """The auditor named it; its data is looked for beside the name that was given."""
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").mkdir()
    real = onnx_models.save(initializer()[0], tmp_path / "real")
    linked = tmp_path / "linked" / "model.onnx"
    linked.symlink_to(real)
    assert read(linked).sha256 == read(real).sha256
    folder_link = tmp_path / "by_folder"
    folder_link.symlink_to(tmp_path / "real", target_is_directory=True)
    assert read(folder_link / "model.onnx").sha256 == read(real).sha256


def test_the_identity_of_a_model_covers_its_data_files(tmp_path: Path) -> None:
    """One changed byte of the data, even one that no tensor uses, makes it another model."""
    proto, tensor = initializer()
    data = tmp_path / "data.bin"
    data.write_bytes(tensor.raw_data + b"x")
    put_outside(tensor, "data.bin", offset=0, length=NUMBERS.nbytes)
    file = onnx_models.save(proto, tmp_path)
    first = read(file)
    data.write_bytes(numpy_helper.to_array(initializer()[1]).tobytes() + b"y")
    second = read(file)
    assert first.sha256 == second.sha256
    assert first.identity != second.identity


def test_more_data_than_allowed_is_refused_before_any_is_read(tmp_path: Path, witness: Witness) -> None:
    """Tensors that all name the same bytes count each for itself: so much memory would they take."""
    proto, tensor = initializer()
    (tmp_path / "data.bin").write_bytes(bytes(4096))
    put_outside(tensor, "data.bin")
    tensor.dims[:] = [1024]
    for index in range(9):
        proto.graph.initializer.append(tensor)
        proto.graph.initializer[-1].name = f"again{index}"
    with pytest.raises(BadInput, match="40,960 bytes of external data"):
        read(onnx_models.save(proto, tmp_path), Limits(external_bytes=40_000))
    assert witness.reads == 0


@pytest.mark.parametrize(("dims", "kind"), [([-6], 1), ([2**62, 2**62, 64], 1), ([6], 99), ([6], TensorProto.STRING)])
def test_impossible_shapes_and_types_of_external_tensors_are_refused(
    dims: list[int], kind: int, tmp_path: Path
) -> None:
    proto, tensor = initializer()
    (tmp_path / "data.bin").write_bytes(tensor.raw_data)
    put_outside(tensor, "data.bin")
    tensor.dims[:] = dims
    tensor.data_type = kind
    with pytest.raises(BadInput):
        read(onnx_models.save(proto, tmp_path))


def test_a_data_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(100))
    with external_data.opened(tmp_path, "data.bin", "m") as descriptor:
        (tmp_path / "data.bin").write_bytes(bytes(10))
        with pytest.raises(BadInput, match="shrank"):
            external_data.read_range(descriptor, 0, 100)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """Neither after a refusal nor after a read."""
    listing = Path("/proc/self/fd")
    if not listing.exists():
        pytest.skip("needs /proc")
    before = len(list(listing.iterdir()))
    for number, attack in enumerate(("pipe", "hard_link", "folder_link", "missing", "file_as_folder", "folder")):
        root = tmp_path / str(number)
        root.mkdir()
        with pytest.raises(BadInput):
            read(attacked(initializer, attack, root)[0])
    read(_apart(wide(), tmp_path))
    assert len(list(listing.iterdir())) == before


@pytest.mark.slow
def test_a_model_above_2_gb_loads_and_predicts(tmp_path: Path) -> None:
    """One weight of 2.3 GB in a sparse file: the first ten of 187,500 scores carry numbers, and can be worked out."""
    wide_by = 187_500
    nodes = [
        helper.make_node("Flatten", ["image"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w"], ["all"], name="gemm", transB=1),
        helper.make_node("Slice", ["all", "zero", "ten", "one"], ["logits"], name="slice"),
    ]
    small = {name: np.array([n], np.int64) for name, n in (("zero", 0), ("ten", 10), ("one", 1))}
    proto = onnx_models.model(
        nodes, [onnx_models.value("image", ["N", 3, 32, 32])], [onnx_models.value("logits", ["N", 10])], small, opset=17
    )
    proto.graph.initializer.append(TensorProto(name="w", dims=[wide_by, 3072], data_type=TensorProto.FLOAT))
    put_outside(proto.graph.initializer[-1], "huge.onnx.data")
    used = np.random.default_rng(6).standard_normal((10, 3072)).astype(np.float32)
    with (tmp_path / "huge.onnx.data").open("wb") as stream:
        stream.write(used.tobytes())
        stream.truncate(wide_by * 3072 * 4)
    model = load(onnx_models.save(proto, tmp_path, "huge.onnx"), settings=Settings(device="cpu"))
    rows = np.random.default_rng(7).standard_normal((3, 3, 32, 32)).astype(np.float32)
    expected = rows.reshape(3, -1).astype(np.float64) @ used.T.astype(np.float64)
    assert model.file.bytes > 2_300_000_000
    assert np.allclose(model.predict(rows), expected, rtol=1e-4, atol=1e-3)
