"""onnxruntime itself: sessions, arrays on the device, graphs that step. No other file imports it.

Sessions run in a worker (see worker_main), or here for who trusts the model (`Settings(in_process=True)`).
"""

import functools
import importlib.util
import math
import os
import re
import runpy
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from auditkit.arrays import Array
from auditkit.cores import threads_if_limited
from auditkit.errors import LoadFailure, ModelFailure, OutOfMemory, RuntimeFailure
from auditkit.model import device as devices
from auditkit.model.composer import Composer
from auditkit.model.device import CPU
from auditkit.model.runtime_messages import plain_message
from auditkit.model.turns import Turns

SWITCH_SECONDS = 2e-4  # Python's 5 ms would let the device wait for a thread that prepares or copies
IN_WORKER = False  # whether this process is a worker, which alone may run a vendor's graph unasked
_LOADING, _RUNNING = "the runtime cannot load the model", "the runtime failed while running the model"
_ALLOCATION = r"fail\w* to allocate|bad_alloc|ALLOC_FAILED|smaller than requested bytes"  # the last: an arena's limit
_OUT_OF_MEMORY = re.compile(rf"{_ALLOCATION}|out of memory|CUDA (failure|error) 2\b", re.I)


class DeviceArray(Protocol):
    """An array in the device's memory (the runtime's OrtValue)."""

    def numpy(self) -> Array:
        """A copy in main memory."""

    def shape(self) -> list[int]:
        """Its shape."""

    def update_inplace(self, array: Array) -> None:
        """Overwrite it with another array of the same shape and type."""


class Stepper(Protocol):
    """A graph whose outputs become its next inputs."""

    def step(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of one run, but for those that become inputs."""

    def state(self) -> dict[str, Array]:
        """The state after the last run."""


DeviceArrays = dict[str, DeviceArray]
Feeds = Mapping[str, Array | DeviceArray]  # by the name of the input
Composed = list[Any] | tuple[Any, ...]  # a composer of the session, and the rows that it composes
AnyFeeds = Mapping[str, Array | DeviceArray | Composed]


@functools.cache
def library() -> Any:
    """onnxruntime, imported late and with its log silenced: errors are raised as exceptions."""
    import onnxruntime  # noqa: PLC0415

    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


def _options() -> Any:
    options = library().SessionOptions()
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
        text = plain_message(str(error))
        if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):  # the whole: the reason comes last
            raise OutOfMemory(f"{what}: out of memory ({text})") from None
        raise kind(f"{what}: {text}") from None


@dataclass(frozen=True)
class Build:
    """The installed onnxruntime, read from its files: to import it takes a second, and only workers need it."""

    version: str
    cuda_version: str  # empty for a CPU build
    libraries: Path


@functools.cache
def build() -> Build:
    """Facts about the installed onnxruntime."""
    package = importlib.util.find_spec("onnxruntime")
    if package is None or package.origin is None:
        raise RuntimeFailure("onnxruntime is not installed; install onnxruntime-gpu, or onnxruntime for the CPU.")
    libraries = Path(package.origin).parent / "capi"
    facts = runpy.run_path(str(libraries / "build_and_package_info.py"))
    return Build(str(facts["__version__"]), str(facts.get("cuda_version") or ""), libraries)


@functools.cache
def cuda_problem() -> str | None:
    """Why CUDA cannot be used here, or None when it can; its libraries are then loaded."""
    if not build().cuda_version:
        return "the installed onnxruntime is a CPU build; install onnxruntime-gpu"
    major = int(build().cuda_version.partition(".")[0])
    if reason := devices.driver_problem(major):
        return reason
    library()  # its CUDA libraries crash if they are loaded first
    return devices.library_problem(build().libraries, major)


_TURNS = Turns()


class LocalSession:
    """One graph ready to run on one device in this process; inputs and outputs are bound to that device."""

    def __init__(
        self, graph: bytes, weights: Mapping[str, Array], threads: int, arena: bool, device: str,
        providers: list[str | tuple[str, dict[str, str]]],
    ) -> None:  # fmt: skip
        """`providers` in the runtime's form; the first must accept the graph."""
        self._on_gpu, self._shapes = device != CPU.name, set[tuple[tuple[int, ...], ...]]()
        self._composing = threading.Lock()
        if self._on_gpu:
            cuda_problem()  # loads CUDA's libraries
        onnxruntime, options = library(), _options()
        options.intra_op_num_threads = threads or threads_if_limited()
        options.enable_cpu_mem_arena = arena
        # The runtime refers to these arrays; they live as long as the session.
        self._weights = {name: _own(array) for name, array in weights.items()}
        if self._weights:
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self._weights.values()]
            options.add_external_initializers(list(self._weights), values)
        with _errors_as(_LOADING, LoadFailure), _TURNS.alone() if self._on_gpu else nullcontext():
            self.session = onnxruntime.InferenceSession(
                graph, options, [entry if isinstance(entry, str) else tuple(entry) for entry in providers],
                enable_fallback=0,  # or it would hide why a provider fails, and use the CPU
            )  # fmt: skip
        self.session.disable_fallback()
        self.device = device
        first = providers[0] if isinstance(providers[0], str) else providers[0][0]
        if self.session.get_providers()[0] != first:
            raise RuntimeFailure(f"the runtime refused {first} without a reason; run 'auditkit doctor'.")

    def names(self) -> tuple[list[str], list[str]]:
        """The names of the inputs and of the outputs."""
        values = self.session.get_inputs(), self.session.get_outputs()
        return [value.name for value in values[0]], [value.name for value in values[1]]

    def upload(self, array: Array) -> DeviceArray:
        """The array in the device's memory, to be fed to any number of runs."""
        return self._value(_own(array) if self.device == CPU.name else array)  # another device has its own memory

    @contextmanager
    def turn(self, inputs: Iterable[DeviceArray] | None = None) -> Iterator[None]:
        """A turn on the device: alone for the first inputs of some shapes, since kernels are chosen for them."""
        shapes = None if inputs is None else tuple(tuple(value.shape()) for value in inputs)
        if not self._on_gpu:
            yield
        elif shapes is None or shapes in self._shapes:
            with _TURNS.shared():
                yield
        else:
            with _TURNS.alone():
                yield
                self._shapes.add(shapes)

    def _value(self, array: Array) -> DeviceArray:
        with _errors_as("the device cannot take the data"), self.turn():
            value: DeviceArray = library().OrtValue.ortvalue_from_numpy(array, self.device, 0)
            return value

    def composer(self, pictures: Array, ranks: Array, layout: str) -> Composer:
        """A composer of masked images, which are fed with its rows."""
        return Composer(np.array(pictures), np.array(ranks), layout, reuses_memory=True)

    def run(self, feeds: AnyFeeds, outputs: list[str], at_once: int | None = None) -> list[Array]:
        """The named outputs for one batch of inputs, which are arrays, uploaded values or rows with their composer.

        With `at_once`, the graph sees at most so many rows at a time, in parts of about equal size; an array of one row
        serves all of them.
        """
        composes = any(isinstance(value, list | tuple) for value in feeds.values())
        with self._composing if composes else nullcontext():  # until they have run: the next images take their memory
            with _errors_as(_RUNNING, ModelFailure):  # all at once: between runs, it would take three times as long
                inputs = {name: _composed(value) for name, value in feeds.items()}
            return self._run_in_parts(inputs, outputs, at_once)

    def _run_in_parts(self, feeds: Feeds, outputs: list[str], at_once: int | None) -> list[Array]:
        """The outputs for arrays and uploaded values, at most so many rows at a time."""
        count = max(map(_row_count, feeds.values()), default=0)
        if at_once is None or count <= at_once:
            return self._run(feeds, outputs)
        ends = np.linspace(0, count, math.ceil(count / at_once) + 1).astype(int).tolist()
        parts = []
        for start, end in pairwise(ends):
            part = self._run({name: _rows_of(value, slice(start, end)) for name, value in feeds.items()}, outputs)
            if wrong := [list(output.shape) for output in part if output.shape[:1] != (end - start,)]:
                raise ModelFailure(f"{_RUNNING}: it gave {wrong[0]} for {end - start} rows")
            parts.append(part)
        return [np.concatenate(output) for output in zip(*parts, strict=True)]

    def _run(self, feeds: Feeds, outputs: list[str]) -> list[Array]:
        """The outputs for arrays and uploaded values."""
        with _errors_as(_RUNNING, ModelFailure):
            if not self._on_gpu and all(isinstance(value, np.ndarray) for value in feeds.values()):
                return list(self.session.run(outputs, dict(feeds)))  # a binding would take three times as long
            binding = self.session.io_binding()
            inputs = {name: self._value(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
                      for name, value in feeds.items()}  # fmt: skip
            for name, value in inputs.items():
                binding.bind_ortvalue_input(name, value)
            for name in outputs:
                binding.bind_output(name, self.device)
            with self.turn(inputs.values()):
                self.session.run_with_iobinding(binding)
                return list(binding.copy_outputs_to_cpu())

    def stepper(
        self, links: Mapping[str, str], start: Mapping[str, Array], feeds: Feeds, outputs: list[str]
    ) -> "LocalStepper":
        """A stepper of this session."""
        return LocalStepper(self, links, start, feeds, outputs)


def _row_count(value: Array | DeviceArray) -> int:
    """How many rows an input has of its own."""
    return len(value) if isinstance(value, np.ndarray) and value.ndim else 0


def _rows_of(value: Array | DeviceArray, part: slice) -> Array | DeviceArray:
    """Some rows of an input; what has one row, or was uploaded, serves all."""
    return value[part] if isinstance(value, np.ndarray) and _row_count(value) > 1 else value


def _composed(value: Array | DeviceArray | Composed) -> Array | DeviceArray:
    """An input; where it is a composer with rows, the images that it makes of them."""
    if isinstance(value, list | tuple):
        composer, rows = value
        return np.asarray(composer(rows))
    return value


def _own(array: Array) -> Array:
    """The array in contiguous memory of its own: memory shared with another process is used again."""
    return np.ascontiguousarray(array) if array.flags.owndata else np.array(array, order="C")


class LocalStepper:
    """A stepper in this process. Its state stays on the device, in two sets of buffers."""

    def __init__(
        self,
        session: LocalSession,
        links: Mapping[str, str],
        start: Mapping[str, Array],
        feeds: Feeds,
        outputs: list[str],
    ) -> None:
        """`links` says which output becomes which input; `feeds` are arrays to upload, or uploaded values."""
        self._session, self._outputs = session, outputs
        arrays = {name: value for name, value in feeds.items() if isinstance(value, np.ndarray)}
        self._inputs = {name: session.upload(array.copy()) for name, array in arrays.items()}
        first, second = ({name: session.upload(array.copy()) for name, array in start.items()} for _ in range(2))
        uploaded = [value for value in feeds.values() if not isinstance(value, np.ndarray)]
        self._bound = [*uploaded, *self._inputs.values(), *first.values()]  # the shapes are those of every step
        self._turns = [
            (self._binding(links, feeds, *buffers), buffers[1]) for buffers in ((first, second), (second, first))
        ]

    def _binding(self, links: Mapping[str, str], feeds: Feeds, read: DeviceArrays, written: DeviceArrays) -> Any:
        binding = self._session.session.io_binding()
        for name, value in {**feeds, **self._inputs, **read}.items():
            binding.bind_ortvalue_input(name, value)
        for name, output in links.items():
            binding.bind_ortvalue_output(output, written[name])
        for name in self._outputs:
            binding.bind_output(name, self._session.device)
        return binding

    def step(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of one run, but for those that become inputs."""
        with _errors_as(_RUNNING, ModelFailure), self._session.turn(self._bound):
            for name, array in feeds.items():
                self._inputs[name].update_inplace(np.ascontiguousarray(array))
            binding, _ = self._turns[0]
            self._session.session.run_with_iobinding(binding)
            self._turns.reverse()
            first = len(binding.get_outputs()) - len(self._outputs)
            return [np.array(value.numpy()) for value in binding.get_outputs()[first:]]

    def state(self) -> dict[str, Array]:
        """The state after the last run."""
        with self._session.turn():
            return {name: np.array(value.numpy()) for name, value in self._turns[1][1].items()}


@contextmanager
def _passing_file() -> Iterator[Path]:
    """A file that leaves nothing behind; it lies in memory where the system can, so that no disk need have room."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        descriptor = os.memfd_create("auditkit")
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / "graph.onnx"


def folded(graph: bytes) -> bytes:
    """The serialised graph with constants folded and normalisations merged by the runtime."""
    onnxruntime, options = library(), _options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = 1
    with _passing_file() as target:
        options.optimized_model_filepath = str(target)
        with _errors_as(_LOADING, LoadFailure):
            onnxruntime.InferenceSession(graph, options, providers=[CPU.provider])
        return target.read_bytes()
