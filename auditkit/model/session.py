"""How a model's graphs are run: device, precision, worker, batch size and memory."""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol, TypeVar, get_args

import numpy as np
import onnx

from auditkit.arrays import Array, Weights
from auditkit.errors import BadInput, OutOfMemory, unknown
from auditkit.graph import simplify
from auditkit.model import runtime
from auditkit.model.device import CPU, PROFILES, DeviceProfile, Location
from auditkit.model.runtime import AnyFeeds, DeviceArray, Feeds, LocalSession, Stepper, cuda_problem
from auditkit.model.worker import RemoteSession, Worker

Device = Literal["auto", "cuda", "cpu"]
Precision = Literal["auto", "strict", "tf32", "float16"]
Unit = TypeVar("Unit")
Result = TypeVar("Result")

# Of the memory allowed: CUDA's own libraries and the banks of images took up to 1.6 GiB beside the sessions' (H200).
_OUTSIDE_SESSIONS = 7 * 2**28
_SESSIONS = 2  # of a model at once: its own, and the one over masks
LEAST_MEMORY = 13 * 2**28  # a ResNet-50's sessions run in 0.75 GiB each and not in 0.5
FEWEST_ROWS = 2  # of a batch on a CPU: some split a single image over their cores, which rounds otherwise
FEWEST_IN_PART = 4  # rows: of parts that are about equal, none then has fewer than FEWEST_ROWS
_TURNS = 3  # that parts are measured in
_MOST_THREADS = 4096  # of the runtime; no machine has more cores to give them
_NO_IMAGE_FITS = "not even one image fits into memory; allow more (--memory on a GPU, --memory-limit on the CPU)."


class Engine(Protocol):
    """Runs units of work in other processes."""

    # Called for each unit with the number of its worker from 1, where that runs, and the unit's description.
    on_unit: Callable[[int, Location, str], None] | None

    @property
    def count(self) -> int:
        """How many processes there are."""

    @property
    def speedup(self) -> float:
        """How many times as fast as this process they are together while all are busy, as far as is known."""

    def run(
        self, work: Callable[..., Result], units: Iterable[Unit], keep: Callable[[Unit, Result], None],
        tick: Callable[[float, int], None], at_once: int,
    ) -> tuple[list[Unit], list[Unit]]:  # fmt: skip
        """Run work on units and keep the results; returns those that the model failed on, and those not started."""

    def on_each_kind(self, work: Callable[..., Result], besides: str, subject: str) -> dict[str, Result]:
        """What work on a subject returns in one process on each kind of device, besides one kind; it is run once."""


@dataclass(frozen=True)
class Settings:
    """How a model is run."""

    device: Device = "auto"
    precision: Precision = "auto"
    threads: int = 0  # 0: the runtime's own default, so that results are those of a plain session
    batch: int | None = None  # None: measured
    arena: bool = True
    memory_bytes: int | None = None  # of the device, for all sessions of a model together; None: no limit
    in_process: bool = False  # run the model without a worker, unguarded: for models that one trusts
    allow_failed: int = 0  # images that end a worker and are left out, before a run fails
    worker: Worker | None = field(default=None, repr=False, compare=False)  # of the file that was opened
    engine: "Engine | None" = field(default=None, repr=False, compare=False)  # None: units run in this process

    @property
    def channels_last(self) -> bool:
        """Whether convolutions want channels last, as tensor cores do: 12,844 rows/s for 10,322 (H200, ResNet-50)."""
        return self.device == "cuda" and self.precision != "strict"

    def __post_init__(self) -> None:
        for name, value, kind in (("device", self.device, Device), ("precision", self.precision, Precision)):
            if value not in get_args(kind):
                raise BadInput(unknown(name, value, get_args(kind)))
        for name, number in (("batch", self.batch), ("memory", self.memory_bytes)):
            if number is not None and number < 1:
                raise BadInput(f"{name} {number} is not a positive number.")
        if not 0 <= self.threads <= _MOST_THREADS:
            raise BadInput(f"threads {self.threads} is not from 0 to {_MOST_THREADS:,}; 0 leaves it to the runtime.")
        if self.allow_failed < 0:
            raise BadInput(f"allow_failed {self.allow_failed} is negative.")


def resolved(settings: Settings) -> Settings:
    """The settings with each `auto` decided; a device or precision that is not available is an error."""
    device, precision = settings.device, settings.precision
    if device != "cpu":
        problem = cuda_problem() if settings.worker is None else _text(settings.worker.call("cuda_problem"))
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


def _text(reply: object) -> str | None:
    return None if reply is None else str(reply)


def on_cpu(settings: Settings, threads: int = 0, *, arena: bool = True) -> Settings:
    """Settings for strict float32 on the CPU, in the same worker."""
    return Settings("cpu", "strict", threads, arena=arena, in_process=settings.in_process, worker=settings.worker)


class Session:
    """One graph ready to run on one device, in the worker of its settings or in this process."""

    def __init__(self, model: onnx.ModelProto, settings: Settings, weights: Weights | None = None) -> None:
        self.settings = resolved(settings)
        self.device = PROFILES[self.settings.device]
        if not self.device.relu_gates:
            model = simplify.gates_as_products(model)
        names = {tensor.name for tensor in model.graph.initializer}
        large = {name: array for name, array in (weights or {}).items() if name in names}
        options = (self.settings.threads, self.settings.arena, self.device.name, self._providers())
        graph = model.SerializeToString()
        self.sha256 = hashlib.sha256(graph).hexdigest()  # of the graph as it runs, without weights that are kept apart
        self._session: LocalSession | RemoteSession
        if settings.worker is not None:
            self._session = RemoteSession(settings.worker, graph, large, *options)
        elif settings.in_process or runtime.IN_WORKER:
            self._session = LocalSession(graph, large, *options)
        else:
            raise RuntimeError("a vendor's graph runs in a worker; settings without one must say in_process")
        self.inputs: list[str]
        self.outputs: list[str]
        self.inputs, self.outputs = self._session.names()

    def _providers(self) -> list[str | tuple[str, dict[str, str]]]:
        if self.device is CPU:
            return [CPU.provider]
        options = {"use_tf32": str(int(self.settings.precision != "strict"))}
        options["cudnn_conv_algo_search"] = "HEURISTIC"  # by the shapes alone; a timed search could end differently
        options["prefer_nhwc"] = str(int(self.settings.channels_last))
        if self.settings.memory_bytes is not None:
            options["gpu_mem_limit"] = str((self.settings.memory_bytes - _OUTSIDE_SESSIONS) // _SESSIONS)
            options["arena_extend_strategy"] = "kSameAsRequested"
        return [(self.device.provider, options), CPU.provider]

    def upload(self, array: Array) -> DeviceArray:
        """The array in the device's memory, to be fed to any number of runs."""
        return self._session.upload(array)

    def composer(self, pictures: Array, ranks: Array, layout: str) -> object:
        """A composer of masked images, in the process that the graph runs in; it is fed with rows of integers."""
        return self._session.composer(pictures, ranks, layout)

    def run(
        self, feeds: AnyFeeds, outputs: list[str] | None = None, at_once: int | None = None, most: int | None = None
    ) -> list[Array]:
        """The named outputs (by default all) for one batch of arrays, uploaded values or rows with their composer.

        With `at_once`, the graph sees at most so many rows at a time. Outputs of more than `most` bytes are refused
        before this process has memory for them.
        """
        arguments = feeds, outputs or self.outputs, at_once
        if isinstance(self._session, RemoteSession):
            return list(self._session.run(*arguments, most=most))
        return self._session.run(*arguments)

    def stepper(
        self, links: Mapping[str, str], start: Mapping[str, Array], feeds: Feeds, outputs: list[str]
    ) -> "Stepper":
        """A graph whose outputs become its next inputs, on the device: `links` says which becomes which.

        `feeds` are arrays to upload, or uploaded values.
        """
        return self._session.stepper(links, start, feeds, outputs)


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


def measured_batch(
    run: Callable[[int], object], device: DeviceProfile, unit: int = 1, clock: Callable[[], float] = time.perf_counter
) -> int:
    """The fewest rows, a multiple of a unit, whose rate is within 5 % of the best and which take long enough.

    Doubling ends when it no longer helps, or at the device's largest batch.
    """
    rates: dict[int, float] = {}
    size = unit
    while size <= max(device.largest_batch, unit):
        try:
            run(size)  # warm-up: algorithm search, arena growth
            rates[size] = size / _seconds(partial(run, size), clock)
        except OutOfMemory:
            break
        if size >= max(8 * unit, rates[size] * device.shortest_batch) and rates[size] < 1.02 * rates[size // 4]:
            break
        size *= 2
    if not rates:
        raise OutOfMemory(_NO_IMAGE_FITS)
    long_enough = [size for size, rate in rates.items() if size >= rate * device.shortest_batch] or [max(rates)]
    best = max(rates[size] for size in long_enough)
    return min(size for size in long_enough if rates[size] >= 0.95 * best)


def measured_part(run: Callable[[int], object], batch: int, clock: Callable[[], float] = time.perf_counter) -> int:
    """How many rows of a batch a CPU runs at a time: a few, which stay in its cache, unless that is slower by 2 %.

    Four at a time are 5 % faster than 64 for a ResNet-20, and 10 % faster than 16 for a MobileNet (Xeon, one thread).
    A network that reads many weights for little work, or that is very small, is faster with a whole batch.
    """
    parts = [part for part in (batch // 16, batch // 4) if part >= FEWEST_IN_PART] + [batch]
    if len(parts) == 1:
        return batch
    turns = [{part: _seconds(partial(run, part), clock) for part in parts} for _ in range(_TURNS)]
    seconds = {part: min(turn[part] for turn in turns) for part in parts}
    return next(part for part in parts if seconds[part] <= 1.02 * min(seconds.values()))


def _seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return max(clock() - start, 1e-9)


def folded(model: onnx.ModelProto, weights: Weights, settings: Settings) -> onnx.ModelProto:
    """The graph with constants folded and normalisations merged by the runtime, if it keeps to standard operators."""
    if weights:  # kept apart, as they would not fit into one file
        return model
    content = model.SerializeToString()
    folded_content = runtime.folded(content) if settings.worker is None else settings.worker.call("folded", content)
    simplified = onnx.load_from_string(folded_content)
    standard = all(node.domain in ("", "ai.onnx") for node in simplified.graph.node)
    return simplified if standard else model
