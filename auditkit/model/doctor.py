"""What this machine offers: versions, devices, memory."""

import os
import platform
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from auditkit import __version__, telemetry
from auditkit.cores import usable_cores
from auditkit.model import device, runtime, worker

_DISTRIBUTION = "onnx-auditkit"  # on the package index, where another project holds the name auditkit


@dataclass(frozen=True)
class CudaFacts:
    """Whether the runtime can use CUDA."""

    built_for: str
    problem: str | None
    devices: list[str]


@dataclass(frozen=True)
class MachineFacts:
    """Versions, devices and memory of a machine."""

    versions: dict[str, str]
    system: str
    cores: int
    memory_bytes: int
    providers: list[str]
    cuda: CudaFacts
    workers: str  # what guards them
    telemetry: str  # whether it is off


def versions() -> dict[str, str]:
    """Versions of everything that computes figures."""
    packages = {name: _version(name) for name in ("numpy", "onnx", "pillow", "pyarrow", "scipy")}
    packages["onnxruntime"] = runtime.build().version
    return {"auditkit": __version__, "python": platform.python_version(), **packages}


_version = cache(metadata.version)  # it parses a file at each call


def providers() -> list[str]:
    """What the runtime can run a model on, if the machine has it."""
    return list(runtime.library().get_available_providers())


def describe() -> MachineFacts:
    """Facts for `doctor`."""
    system, problem = f"{platform.system()} {platform.machine()}", runtime.cuda_problem()
    gpus = CudaFacts(runtime.build().cuda_version, problem, [] if problem else device.gpu_names())
    return MachineFacts(
        versions(),
        system,
        usable_cores(),
        memory_bytes(),
        providers(),
        gpus,
        worker.guards(),
        telemetry=telemetry.problem() or telemetry.OFF,
    )


def name_clash() -> str | None:
    """A warning if another installed distribution provides the package `auditkit`; None if there is none."""
    providers = metadata.packages_distributions().get("auditkit", [])
    distributions = sorted(name for name in set(providers) if name and name != _DISTRIBUTION)
    if not distributions:
        return None
    reason = f"the distribution {distributions[0]} also provides the package auditkit, so that one may hide the other"
    return f"{reason}; uninstall it, or install {_DISTRIBUTION} into an environment of its own."


def memory_bytes() -> int:
    """Main memory of the machine; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
