import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import auditkit
from auditkit.demo.planted import bundled_model
from auditkit.errors import BadInput, ModelFailure, OutOfMemory, RuntimeFailure
from auditkit.model import device, runtime, session
from auditkit.model.passes import in_precision
from auditkit.model.session import LEAST_MEMORY, Session, Settings, in_batches, measured_batch, measured_part
from auditkit.model.turns import Turns
from tests.support import onnx_models


def test_asking_for_cuda_without_cuda_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "cuda_problem", lambda: "libcudnn.so.9 is missing")
    with pytest.raises(BadInput, match=r"libcudnn\.so\.9 is missing"):
        session.resolved(Settings(device="cuda"))
    assert session.resolved(Settings(device="auto")).device == "cpu"


def test_auto_takes_cuda_and_tf32_where_there_is_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "cuda_problem", lambda: None)
    found = session.resolved(Settings())
    assert (found.device, found.precision) == ("cuda", "tf32")
    assert session.resolved(Settings(device="cpu")).precision == "strict"


def test_tf32_on_the_cpu_is_refused() -> None:
    with pytest.raises(BadInput, match="tf32"):
        session.resolved(Settings(device="cpu", precision="tf32"))


@pytest.mark.parametrize("wrong", [{"device": "tpu"}, {"precision": "int4"}, {"batch": 0}, {"threads": -1}])
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        Settings(**wrong)  # type: ignore[arg-type]


def test_the_runtime_stays_silent_about_missing_cuda(capfd: pytest.CaptureFixture[str]) -> None:
    session.cuda_problem()
    Session(onnx_models.convnet(), Settings(device="auto"))
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    assert device.load_with_dependencies(tmp_path / "libnothing.so.1") is not None
    match = device.MISSING.search("libcublasLt.so.13: cannot open shared object file: No such file or directory")
    assert match is not None
    assert match[1] == "libcublasLt.so.13"


def test_libraries_of_pip_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert device.pip_library("libcudnn.so.9") == library
    assert device.pip_library("libmissing.so.1") is None


def test_an_old_driver_is_said_to_be_old(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def cuInit(self, _flags: int) -> int:  # noqa: N802 - the driver's own names
            return 0

        def cuDriverGetVersion(self, version: object) -> None:  # noqa: N802
            version._obj.value = 12040  # type: ignore[attr-defined]

    monkeypatch.setattr(device.ctypes, "CDLL", lambda _name: Driver())
    assert "12.4" in (device.driver_problem(13) or "")


def test_gpus_are_counted_in_a_process_that_has_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver counts none before it is started, and the process of an audit has its sessions in a worker."""

    class Driver:
        started = False

        def cuInit(self, _flags: int) -> int:  # noqa: N802 - the driver's own names
            self.started = True
            return 0

        def cuDeviceGetCount(self, count: object) -> None:  # noqa: N802
            count._obj.value = 2 if self.started else 0  # type: ignore[attr-defined]

        def cuDeviceGet(self, _device: object, _index: int) -> None:  # noqa: N802
            """Every device is alike."""

        def cuDeviceGetName(self, name: Any, _size: int, _device: object) -> None:  # noqa: N802
            name.value = b"A GPU"

        def cuDeviceTotalMem_v2(self, memory: object, _device: object) -> None:  # noqa: N802
            memory._obj.value = 2**33  # type: ignore[attr-defined]

    driver = Driver()
    monkeypatch.setattr(device.ctypes, "CDLL", lambda _name: driver)
    assert device.gpu_names() == ["A GPU (8 GiB)"] * 2


def test_a_session_equals_a_plain_one(device: str) -> None:
    proto = onnx_models.convnet()
    rows = np.random.default_rng(1).standard_normal((5, 3, 8, 8)).astype(np.float32)
    plain = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = plain.run(None, {"image": rows})[0]
    found = Session(proto, Settings(device=device, precision="strict")).run({"image": rows})[0]
    assert np.array_equal(found, expected) if device == "cpu" else np.allclose(found, expected, atol=1e-5)


def test_float16_keeps_inputs_and_outputs_in_float32(device: str) -> None:
    proto = onnx_models.convnet()
    rows = np.random.default_rng(1).standard_normal((5, 3, 8, 8)).astype(np.float32)
    exact = Session(proto, Settings(device="cpu")).run({"image": rows})[0]
    settings = Settings(device=device, precision="float16")
    found = Session(in_precision(proto, {}, settings)[0], settings).run({"image": rows})[0]
    assert found.dtype == np.float32
    assert 0 < np.abs(found - exact).max() < 1e-2 * np.abs(exact).max()


def test_statistics_of_a_float16_layer_norm_stay_in_float32() -> None:
    """A gradient reads the mean beside the float16 data."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["data"]),
        helper.make_node("LayerNormalization", ["data", "scale"], ["norm", "mean", "deviation"]),
        helper.make_node("Sub", ["data", "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "deviation"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "norm"], ["zero"]),
        helper.make_node("MatMul", ["zero", "w"], ["y"]),
    ]
    weights = {"w": np.random.default_rng(0).random((4, 4), np.float32), "scale": np.ones(4, np.float32)}
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "norm", floats[:1], floats[1:],
                              [numpy_helper.from_array(array, name) for name, array in weights.items()])  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    settings = Settings(device="cpu", precision="float16")
    found = Session(in_precision(proto, {}, settings)[0], settings).run({"x": np.eye(4, dtype=np.float32)})[0]
    assert np.abs(found).max() < 0.02


def test_a_graph_that_does_not_load_is_one_line() -> None:
    proto = onnx_models.convnet()
    proto.graph.node[0].op_type = "Konv"
    with pytest.raises(RuntimeFailure) as caught:
        Session(proto, Settings(device="cpu"))
    assert "Konv" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "ONNXRuntimeError" not in str(caught.value)


def test_the_runtime_running_out_of_memory_is_told_apart() -> None:
    arena = "Available memory of 26111232 is smaller than requested bytes of 51380224"
    told = ("Failed to allocate memory for requested buffer of size 99", "CUDA failure 2: out of memory", arena)
    for text in (*told, f"while running Conv node. Name:'{'_' * 400}' {arena}"):
        with pytest.raises(OutOfMemory), runtime._errors_as("x"):
            raise RuntimeError(text)
    with pytest.raises(RuntimeFailure) as caught, runtime._errors_as("x"):
        raise RuntimeError("Invalid rank for input")
    assert not isinstance(caught.value, OutOfMemory)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the processor's flags are read from /proc")
def test_processors_whose_eight_bit_sums_overflow_are_known() -> None:
    assert device.sums_may_overflow() == onnx_models.int8_saturates()


@pytest.mark.gpu
def test_batches_too_large_for_the_memory_allowed_become_smaller() -> None:
    rows = np.random.default_rng(1).standard_normal((4096, 3, 64, 64)).astype(np.float32)
    found = list[np.ndarray]()
    usual = Settings(device="cuda", precision="strict", batch=64)
    for settings in (replace(usual, batch=4096, memory_bytes=LEAST_MEMORY), usual):
        found.append(auditkit.load(bundled_model("honest"), settings=settings).probabilities(rows))
    assert np.abs(found[0] - found[1]).max() < 1e-4


def test_too_little_memory_for_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "cuda_problem", lambda: None)
    with pytest.raises(BadInput, match=r"--memory 2 is too little for a CUDA device.* give 3.25 or more"):
        session.resolved(Settings(memory_bytes=2 * 2**30))
    assert session.resolved(Settings(device="cpu", memory_bytes=2**30)).memory_bytes == 2**30
    assert session.resolved(Settings(memory_bytes=LEAST_MEMORY)).device == "cuda"


def test_batches_halve_on_out_of_memory_and_lose_no_row() -> None:
    asked: list[int] = []

    def run(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        if len(rows) > 3:
            raise OutOfMemory("full")
        return rows * 2

    scores, worked = in_batches(run, np.arange(10.0)[:, None], 8)
    assert np.array_equal(scores[:, 0], np.arange(10.0) * 2)
    assert (worked, asked[:3]) == (2, [8, 4, 2])


def test_one_row_that_does_not_fit_is_an_error() -> None:
    def full(rows: np.ndarray) -> np.ndarray:
        raise OutOfMemory("full")

    with pytest.raises(OutOfMemory, match="not even one image fits"):
        in_batches(full, np.zeros((4, 1)), 4)
    with pytest.raises(OutOfMemory, match="not even one image fits"):
        measured_batch(lambda rows: full(np.zeros((rows, 1))), device.CPU)


def test_the_last_batch_is_padded_where_shapes_are_dear() -> None:
    asked: list[int] = []
    scores, _ = in_batches(lambda rows: (asked.append(len(rows)), rows)[1], np.arange(10.0)[:, None], 4, pad=True)
    assert asked == [4, 4, 4]
    assert np.array_equal(scores[:, 0], np.arange(10.0))


def test_batch_size_is_where_the_rate_stops_to_grow() -> None:
    """A fixed cost of 4 and 1 a row: the rate at 64 is 94 % of the limit, and memory ends at 64."""
    now = [0.0]

    def run(rows: int) -> None:
        if rows > 64:
            raise OutOfMemory("full")
        now[0] += 4 + rows

    assert measured_batch(run, device.CUDA, clock=lambda: now[0]) == 64

    def flat(rows: int) -> None:
        now[0] += rows

    assert measured_batch(flat, device.CUDA, clock=lambda: now[0]) == 1


@pytest.mark.parametrize(("row_seconds", "expected"), [(1.0, 1), (0.03, 8), (0.004, 64), (1e-6, 256)])
def test_a_batch_on_the_cpu_takes_a_fifth_of_a_second_if_it_can(row_seconds: float, expected: int) -> None:
    """Though the rate does not grow: what a batch costs besides is not in it."""
    now = [0.0]

    def run(rows: int) -> None:
        now[0] += rows * row_seconds

    assert measured_batch(run, device.CPU, clock=lambda: now[0]) == expected


@pytest.mark.parametrize(("row_seconds", "expected"), [(1.0, 3), (0.03, 12), (0.004, 96)])
def test_batches_of_a_graph_with_one_size_are_several_of_it(row_seconds: float, expected: int) -> None:
    now = [0.0]

    def run(rows: int) -> None:
        now[0] += rows * row_seconds

    assert measured_batch(run, device.CPU, 3, clock=lambda: now[0]) == expected


@pytest.mark.parametrize(
    ("cost_of_a_run", "cost_of_more_rows", "expected"),
    [(0.0, 0.001, 4), (0.0, 0.0, 4), (1.0, 0.001, 16), (10.0, 0.001, 64)],
)
def test_a_batch_runs_in_parts_where_that_is_not_slower(
    cost_of_a_run: float, cost_of_more_rows: float, expected: int
) -> None:
    """A run of n rows takes so long besides: a constant, and a share of n * n, as where a cache is too small."""
    now = [0.0]

    def run(part: int) -> None:
        now[0] += 64 // part * (cost_of_a_run + part + cost_of_more_rows * part**2)

    assert measured_part(run, 64, clock=lambda: now[0]) == expected
    assert measured_part(run, 8, clock=lambda: now[0]) == 8  # too few to be divided


def test_rows_that_run_in_parts_are_the_same(device: str) -> None:
    proto = onnx_models.convnet()
    rows = np.random.default_rng(1).standard_normal((65, 3, 8, 8)).astype(np.float32)
    found = Session(proto, Settings(device=device, precision="strict"))
    whole, parts = found.run({"image": rows})[0], found.run({"image": rows}, at_once=4)[0]
    assert np.array_equal(whole, parts) if device == "cpu" else np.allclose(whole, parts, atol=1e-5)


def test_a_graph_that_gives_other_numbers_of_rows_in_parts_is_refused() -> None:
    """The sum fits: two parts of four rows give three and five."""
    proto = onnx_models.convnet()
    found = runtime.LocalSession(proto.SerializeToString(), {}, 1, True, "cpu", ["CPUExecutionProvider"])
    lengths = iter((3, 5))
    found._run = lambda _feeds, _outputs: [np.zeros((next(lengths), 2))]  # type: ignore[method-assign]
    with pytest.raises(ModelFailure, match=r"gave \[3, 2\] for 4 rows"):
        found.run({"image": np.zeros((8, 3, 8, 8), np.float32)}, ["scores"], 4)


def test_a_session_that_starts_has_the_device_alone() -> None:
    turns, together, seen = Turns(), threading.Barrier(2, timeout=10), list[str]()

    def run(name: str) -> None:
        with turns.shared():
            together.wait()  # both are running
            time.sleep(0.05)
            seen.append(name)

    def start() -> None:
        together.wait()
        with turns.alone():
            seen.append("alone")

    with ThreadPoolExecutor(2) as threads:
        for pair in ((run, "first"), (run, "first")), ((run, "before"), (start,)), ((run, "after"), (run, "after")):
            for future in [threads.submit(*call) for call in pair]:
                future.result()
    assert seen == ["first", "first", "before", "alone", "after", "after"]


def test_sessions_start_and_run_in_several_threads(device: str) -> None:
    proto, settings = onnx_models.convnet(), Settings(device=device)
    rows = np.random.default_rng(1).standard_normal((5, 3, 8, 8)).astype(np.float32)

    def scores(_number: int) -> np.ndarray:
        return Session(proto, settings).run({"image": rows})[0]

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(scores, range(16)))
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], atol=1e-3)
