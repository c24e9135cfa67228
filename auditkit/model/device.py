"""Devices that a model runs on: what depends on them, and why CUDA cannot be used where it cannot.

onnxruntime falls back to the CPU with a mere line on stderr, so its CUDA part is loaded here first, by hand.
"""

import ctypes
import os
import platform
import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
MISSING = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


@dataclass(frozen=True)
class DeviceProfile:
    """How work is divided on one kind of device. Only the speed depends on it, and the units that a run is cut into."""

    name: Literal["cpu", "cuda"]
    provider: str  # the runtime's name for it
    largest_batch: int  # rows: the batch size is not measured beyond this
    shortest_batch: float  # seconds: a batch costs about 1 ms of a core on its way to the worker and back (Neoverse N1)
    runs_parts: bool  # whether a few rows of a batch at a time may be faster, as they stay in the cache
    first_batch: int | None  # rows of a batch while few images are run and nothing was measured; None: all of them
    pads_batches: bool  # short batches are filled up: CUDA sets up every new size, in 1/6 s for a ResNet-50
    batches_in_flight: int  # on a GPU others run while one comes back from the worker; on a CPU two compete for cores
    gradient_batch: int  # rows differentiated at once
    masks_in_graph: bool  # a CPU composes masked images faster outside the graph (see composer.Composer)
    casts_to_float16: bool  # a first cast to float16 is run on every image; the CPU's runtime removes it
    relu_gates: bool  # gates of a gradient stay Where nodes; a CPU multiplies faster (see graph.simplify)
    adds_in_order: bool  # what a scatter adds at one position; on a GPU the order varies, and with it the rounding
    units_at_once: int  # units of a run whose rows are on the device: one's pauses are the other's turn
    unit_images: int  # lost at most when a run is cut, and prepared before its first pass
    slow_unit_images: int  # of units whose images have more than `slow_pixels`
    slow_pixels: float  # a unit of larger images takes minutes on a CPU
    small_units: int | None  # images of the first and last units: a GPU waits for the first, two should end together
    sample_images: int  # run twice, and on the CPU, to see what the runtime is worth
    learning_factor: int  # times the images whose masks are learned together
    learning_rows: int  # images in a step of learning masks
    learning_pixels: int  # the backward pass keeps some 90 MB for each image of 224 pixels in a ResNet-50


CPU = DeviceProfile(
    name="cpu", provider="CPUExecutionProvider",
    largest_batch=256, shortest_batch=0.2, runs_parts=True, first_batch=None, pads_batches=False,
    batches_in_flight=1, gradient_batch=16, masks_in_graph=False, casts_to_float16=False, relu_gates=False,
    adds_in_order=True, units_at_once=1, unit_images=16, slow_unit_images=1, slow_pixels=96 * 96, small_units=None,
    sample_images=1, learning_factor=1, learning_rows=160, learning_pixels=20 * 224 * 224,
)  # fmt: skip
CUDA = DeviceProfile(
    name="cuda", provider="CUDAExecutionProvider",
    largest_batch=512, shortest_batch=0.0, runs_parts=False, first_batch=16, pads_batches=True,
    batches_in_flight=3, gradient_batch=64, masks_in_graph=True, casts_to_float16=True, relu_gates=True,
    adds_in_order=False, units_at_once=2, unit_images=32, slow_unit_images=32, slow_pixels=float("inf"), small_units=4,
    sample_images=4, learning_factor=4, learning_rows=1280, learning_pixels=640 * 224 * 224,
)  # fmt: skip
PROFILES: dict[str, DeviceProfile] = {profile.name: profile for profile in (CPU, CUDA)}


def pip_library(name: str) -> Path | None:
    """A CUDA library that pip packages brought, wherever on the import path they are."""
    for folder in map(Path, sys.path):
        for pattern in (f"nvidia/*/lib/{name}", f"nvidia/*/lib/*/{name}", f"torch/lib/{name}"):
            if library := next(folder.glob(pattern), None):
                return library
    return None


def load_with_dependencies(library: Path) -> str | None:
    """None once the library is loaded, else the dynamic loader's reason; libraries of pip packages are found."""
    tried: set[str] = set()
    while True:
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            return None
        except OSError as error:
            if (match := MISSING.search(str(error))) is None:
                return str(error)
            name = match.group(1)
            dependency = pip_library(name)
            if dependency is None or name in tried:
                return f"{name} is missing"
            tried.add(name)
            if reason := load_with_dependencies(dependency):
                return reason


def driver_problem(needed_major: int) -> str | None:
    """Why the NVIDIA driver cannot serve that major version of CUDA, or None."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver on this machine (libcuda.so.1 is not found)"
    if status := driver.cuInit(0):
        return f"the NVIDIA driver does not start (cuInit returned {status}); is a GPU present and free?"
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    if version.value < needed_major * 1000:
        have = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return f"the NVIDIA driver is too old: it serves CUDA {have}, and this onnxruntime needs {needed_major}"
    driver.cuDeviceGetCount(ctypes.byref(count))
    return None if count.value else "the NVIDIA driver sees no GPU"


def library_problem(provider_folder: Path, major: int) -> str | None:
    """Why onnxruntime's CUDA libraries cannot be loaded, with what to do about it; None once they are loaded."""
    if os.name == "nt":
        return None  # the loader's message there does not name the library; the session check remains
    for name in ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so"):
        if reason := load_with_dependencies(provider_folder / name):
            return f"{reason}; install CUDA {major} and cuDNN 9, for instance with: pip install 'onnx-auditkit[cuda]'"
    return None


def device_name(kind: str) -> str:
    """Name of the GPU or of the processor that computes on a device of this kind."""
    return gpu_names()[0] if kind == CUDA.name else _processor()


@dataclass(frozen=True)
class Location:
    """Where a process computes."""

    machine: str
    process: int
    gpu: str  # as CUDA_VISIBLE_DEVICES has it; tells GPUs of one name apart
    device: str

    def as_logged(self, worker: int | None, *, record_machine: bool) -> str:
        """A line of a log; only with `record_machine` does it have the names of the machine and of the process."""
        process = "main process" if worker is None else f"worker {worker}"
        if record_machine:
            process = f"{self.machine}, process {self.process}"
        gpu = f" on GPU {self.gpu}" if self.gpu else ""
        return f"{process}{gpu}, {self.device}"


def location(kind: str) -> Location:
    """Where this process computes on a device of this kind."""
    gpu = os.environ.get(VISIBLE_GPUS, "") if kind == CUDA.name else ""
    return Location(socket.gethostname(), os.getpid(), gpu, device_name(kind))


def _processor() -> str:
    """The processor as the system names it."""
    return _cpu_fact("model name") or platform.processor() or platform.machine()


def sums_may_overflow() -> bool:
    """Whether the runtime's sums of eight-bit products overflow: on x86 processors without VNNI, as far as is known."""
    flags = _cpu_fact("flags")  # other processors have none of this name
    return bool(flags) and "vnni" not in flags


def _cpu_fact(name: str) -> str:
    """What Linux says of the first processor; empty where it says nothing."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
    except OSError:
        return ""


def gpu_names() -> list[str]:
    """Name and memory of each GPU the driver shows."""
    driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    driver.cuInit(0)  # counts none before; the runtime starts it in a worker, not in this process
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    names: list[str] = []
    for index in range(count.value):
        device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        names.append(f"{name.value.decode(errors='replace')} ({memory.value / 2**30:.0f} GiB)")
    return names
