"""Sessions of onnxruntime: devices, precision, buffers, batch size and memory. No other file imports the runtime."""

import functools
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import onnx

from auditkit.arrays import Array, Weights
from auditkit.errors import BadInput, LoadFailure, OutOfMemory, RuntimeFailure
from auditkit.graph import float_types, simplify
from auditkit.model import device as devices
from auditkit.model.device import CPU, PROFILES

Device = Literal["auto", "cuda", "cpu"]
Precision = Literal["auto", "strict", "tf32", "float16"]

# Of the memory allowed: CUDA's own libraries and the banks of images took up to 1.6 GiB beside the sessions' (H200).
_OUTSIDE_SESSIONS = 7 * 2**28
_SESSIONS = 2  # of a model at once: its own, and the one over masks
LEAST_MEMORY = 13 * 2**28  # a ResNet-50's sessions run in 0.75 GiB each and not in 0.5
_LOADING, _RUNNING = "the runtime cannot load the model", "the runtime failed while running the model"
_NO_IMAGE_FITS = "not even one image fits into memory; allow more (--memory), use a device with more, or another model."
_ALLOCATION = r"fail\w* to allocate|bad_alloc|ALLOC_FAILED|smaller than requested bytes"  # the last: an arena's limit
_OUT_OF_MEMORY = re.compile(rf"{_ALLOCATION}|out of memory|CUDA (failure|error) 2\b", re.I)


class DeviceArray(Protocol):
    """An array in the device's memory (the runtime's OrtValue)."""

    def numpy(self) -> Array:
        """A copy in main memory."""

    def update_inplace(self, array: Array) -> None:
        """Overwrite it with another array of the same shape and type."""


DeviceArrays = dict[str, DeviceArray]
Feeds = Mapping[str, Array | DeviceArray]  # by the name of the input


@dataclass(frozen=True)
class Settings:
    """How a model is run. All of it is recorded with the results."""

    device: Device = "auto"
    precision: Precision = "auto"
    threads: int = 0  # 0: the runtime's own default, so that results are those of a plain session
    batch: int | None = None  # None: measured
    arena: bool = True
    memory_bytes: int | None = None  # of the device, for all sessions of a model together; None: no limit

    @property
    def channels_last(self) -> bool:
        """Whether convolutions want channels last, as tensor cores do: 12,844 rows/s for 10,322 (H200, ResNet-50)."""
        return self.device == "cuda" and self.precision != "strict"

    def __post_init__(self) -> None:
        for name, value, kind in (("device", self.device, Device), ("precision", self.precision, Precision)):
            if value not in get_args(kind):
                raise BadInput(f"{name} '{value}' is not one of {', '.join(get_args(kind))}.")
        for name, number in (("batch", self.batch), ("memory", self.memory_bytes)):
            if number is not None and number < 1:
                raise BadInput(f"{name} {number} is not a positive number.")
        if self.threads < 0:
            raise BadInput(f"threads {self.threads} is negative; 0 leaves it to the runtime.")


@functools.cache
def runtime() -> Any:
    """onnxruntime, imported late and with its log silenced: errors are raised as exceptions."""
    import onnxruntime  # noqa: PLC0415

    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


def _options() -> Any:
    options = runtime().SessionOptions()
    options.log_severity_level = 4
    return options


@contextmanager
def _errors_as(what: str, kind: type[RuntimeFailure] = RuntimeFailure) -> Iterator[None]:
    """What the runtime raises, as a failure with its message on one short line without codes and source positions."""
    try:
        yield
    except RuntimeFailure:
        raise
    except Exception as error:  # the runtime's exceptions have no common parent
        text = " ".join(str(error)[:4000].split())  # names out of the file may be megabytes long
        text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
        text = re.sub(r"(/[\w./+-]+|\w:\\[\w.\\]+):\d+ [^ ]+(\(.*?\))? ", "", text)
        text = text if len(text) <= 300 else text[:297] + "..."
        if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):  # the whole: the reason comes last
            raise OutOfMemory(f"{what}: out of memory ({text})") from None
        raise kind(f"{what}: {text}") from None


def cuda_version() -> str:
    """The CUDA version that the installed onnxruntime was built for; empty for a CPU build."""
    return str(getattr(runtime(), "cuda_version", "") or "")


def cuda_problem() -> str | None:
    """Why CUDA cannot be used here, or None when it can."""
    folder = Path(runtime().__file__).parent / "capi"
    return devices.cuda_problem(folder, cuda_version(), "CUDAExecutionProvider" in runtime().get_available_providers())


def resolved(settings: Settings) -> Settings:
    """The settings with each `auto` decided; a device or precision that is not available is an error."""
    device, precision = settings.device, settings.precision
    if device != "cpu":
        problem = cuda_problem()
        if device == "cuda" and problem:
            raise BadInput(f"--device cuda is not possible here: {problem}.")
        device = "cpu" if problem else "cuda"
    if precision == "auto":
        precision = "tf32" if device == "cuda" else "strict"
    if precision == "tf32" and device == "cpu":
        raise BadInput("--precision tf32 exists on CUDA devices only; on the CPU use strict.")
    if device == "cuda" and settings.memory_bytes is not None and settings.memory_bytes < LEAST_MEMORY:
        memory, libraries, least = (size / 2**30 for size in (settings.memory_bytes, _OUTSIDE_SESSIONS, LEAST_MEMORY))
        reason = f"is too little for a CUDA device, whose own libraries take up to {libraries:g} GiB of it"
        raise BadInput(f"--memory {memory:g} {reason}; give {least:g} or more, or --device cpu.")
    return replace(settings, device=device, precision=precision)


def in_precision(model: onnx.ModelProto, weights: Weights, settings: Settings) -> tuple[onnx.ModelProto, Weights]:
    """The graph and its weights in the precision asked for; float32 stays at its inputs and outputs."""
    if resolved(settings).precision != "float16":
        return model, weights
    return float_types.to_float16(model, weights)


class Session:
    """One graph ready to run on one device; inputs and outputs are bound to that device."""

    def __init__(self, model: onnx.ModelProto, settings: Settings, weights: Weights | None = None) -> None:
        self.settings = resolved(settings)
        self.device = PROFILES[self.settings.device]
        if not self.device.relu_gates:
            model = simplify.gates_as_products(model)
        names = {tensor.name for tensor in model.graph.initializer}
        # The runtime refers to these arrays; they live as long as the session.
        self._weights = {name: array for name, array in (weights or {}).items() if name in names}
        self._session = self._inference_session(model)
        self.inputs = [value.name for value in self._session.get_inputs()]
        self.outputs = [value.name for value in self._session.get_outputs()]

    def _inference_session(self, model: onnx.ModelProto) -> Any:
        onnxruntime, options = runtime(), _options()
        options.intra_op_num_threads = self.settings.threads
        options.enable_cpu_mem_arena = self.settings.arena
        if self._weights:
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self._weights.values()]
            options.add_external_initializers(list(self._weights), values)
        with _errors_as(_LOADING, LoadFailure):
            session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=self._providers())
        session.disable_fallback()
        if session.get_providers()[0] != self.device.provider:
            raise RuntimeFailure(f"the runtime refused {self.device.provider} without a reason; run 'auditkit doctor'.")
        return session

    def _providers(self) -> list[str | tuple[str, dict[str, str]]]:
        if self.device is CPU:
            return [CPU.provider]
        options = {"use_tf32": str(int(self.settings.precision != "strict"))}
        options["prefer_nhwc"] = str(int(self.settings.channels_last))
        if self.settings.memory_bytes is not None:
            options["gpu_mem_limit"] = str((self.settings.memory_bytes - _OUTSIDE_SESSIONS) // _SESSIONS)
            options["arena_extend_strategy"] = "kSameAsRequested"
        return [(self.device.provider, options), CPU.provider]

    def upload(self, array: Array) -> DeviceArray:
        """The array in the device's memory, to be fed to any number of runs."""
        array = np.ascontiguousarray(array)
        with _errors_as("the device cannot take the data"):
            value: DeviceArray = runtime().OrtValue.ortvalue_from_numpy(array, self.device.name, 0)
            return value

    def run(self, feeds: Feeds, outputs: list[str] | None = None) -> list[Array]:
        """The named outputs (by default all) for one batch of inputs, which are arrays or uploaded values."""
        binding = self._session.io_binding()
        with _errors_as(_RUNNING):
            for name, value in feeds.items():
                binding.bind_ortvalue_input(name, self.upload(value) if isinstance(value, np.ndarray) else value)
            for name in outputs or self.outputs:
                binding.bind_output(name, self.device.name)
            self._session.run_with_iobinding(binding)
            return list(binding.copy_outputs_to_cpu())


class Stepper:
    """A graph whose outputs become its next inputs. They stay on the device, in two sets of buffers."""

    def __init__(
        self, session: Session, links: Mapping[str, str], start: Mapping[str, Array], feeds: Feeds, outputs: list[str]
    ) -> None:
        """`links` says which output becomes which input; `feeds` are arrays to be fed anew, or uploaded values."""
        self._session, self._outputs = session, outputs
        arrays = {name: value for name, value in feeds.items() if isinstance(value, np.ndarray)}
        self._inputs = {name: session.upload(array.copy()) for name, array in arrays.items()}
        first, second = ({name: session.upload(array.copy()) for name, array in start.items()} for _ in range(2))
        pairs = (first, second), (second, first)
        self._turns = [(self._binding(links, feeds, *pair), pair[1]) for pair in pairs]

    def _binding(self, links: Mapping[str, str], feeds: Feeds, read: DeviceArrays, written: DeviceArrays) -> Any:
        binding = self._session._session.io_binding()
        for name, value in {**feeds, **self._inputs, **read}.items():
            binding.bind_ortvalue_input(name, value)
        for name, output in links.items():
            binding.bind_ortvalue_output(output, written[name])
        for name in self._outputs:
            binding.bind_output(name, self._session.device.name)
        return binding

    def step(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of one run, but for those that become inputs."""
        with _errors_as(_RUNNING):
            for name, array in feeds.items():
                self._inputs[name].update_inplace(np.ascontiguousarray(array))
            binding, _ = self._turns[0]
            self._session._session.run_with_iobinding(binding)
            self._turns.reverse()
            first = len(binding.get_outputs()) - len(self._outputs)
            return [np.array(value.numpy()) for value in binding.get_outputs()[first:]]

    def state(self) -> dict[str, Array]:
        """The state after the last run."""
        return {name: np.array(value.numpy()) for name, value in self._turns[1][1].items()}


def filled(rows: Array, count: int) -> Array:
    """The rows, and their first one again until there are `count`."""
    return rows if len(rows) >= count else np.concatenate([rows, rows[:1].repeat(count - len(rows), axis=0)])


def in_batches(run: Callable[[Array], Array], rows: Array, batch: int, *, pad: bool = False) -> tuple[Array, int]:
    """All rows through `run`, at most `batch` at a time, halving on out-of-memory; also the batch that worked."""
    results: list[Array] = []
    start = 0
    while start < len(rows):
        part = rows[start : start + batch]
        try:
            results.append(run(filled(part, batch) if pad else part)[: len(part)])
        except OutOfMemory:
            if batch == 1:
                raise OutOfMemory(_NO_IMAGE_FITS) from None
            batch = max(1, (batch if pad else len(part)) // 2)
            continue
        start += len(part)
    return np.concatenate(results), batch


def measured_batch(run: Callable[[int], object], most: int, clock: Callable[[], float] = time.perf_counter) -> int:
    """The smallest power of two whose rate is within 5 % of the best. Doubling ends when it no longer helps."""
    rates: dict[int, float] = {}
    size = 1
    while size <= most:
        try:
            run(size)  # warm-up: algorithm search, arena growth
            start = clock()
            run(size)
            rates[size] = size / max(clock() - start, 1e-9)
        except OutOfMemory:
            break
        if size >= 8 and rates[size] < 1.02 * rates[size // 4]:
            break
        size *= 2
    if not rates:
        raise OutOfMemory(_NO_IMAGE_FITS)
    best = max(rates.values())
    return min(size for size, rate in rates.items() if rate >= 0.95 * best)


def folded(model: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """The graph with constants folded and normalisations merged by the runtime, if it keeps to standard operators."""
    if weights:  # kept apart, as they would not fit into one file
        return model
    onnxruntime, options = runtime(), _options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(target)
        with _errors_as(_LOADING, LoadFailure):
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU.provider])
        simplified = onnx.load(target)
    standard = all(node.domain in ("", "ai.onnx") for node in simplified.graph.node)
    return simplified if standard else model
