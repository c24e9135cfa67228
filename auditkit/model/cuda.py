"""Whether CUDA can be used here, and if not, the reason by name: driver, device or missing library.

onnxruntime falls back to the CPU with a mere line on stderr, so its CUDA part is loaded here first, by hand.
"""

import ctypes
import functools
import os
import re
import sys
from pathlib import Path

MISSING = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


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


@functools.cache
def problem(provider_folder: Path, cuda_version: str, built_in: bool) -> str | None:
    """Why CUDA cannot be used here, with what to do about it; None when it can."""
    if not built_in:
        return "the installed onnxruntime is a CPU build; install onnxruntime-gpu"
    major = int(cuda_version.partition(".")[0] or 0)
    if reason := driver_problem(major):
        return reason
    if os.name == "nt":
        return None  # the loader's message there does not name the library; the session check remains
    for name in ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so"):
        if reason := load_with_dependencies(provider_folder / name):
            return f"{reason}; install CUDA {major} and cuDNN 9, for instance with: pip install 'onnx-auditkit[cuda]'"
    return None


def device_names() -> list[str]:
    """Name and memory of each GPU the driver shows."""
    driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
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
