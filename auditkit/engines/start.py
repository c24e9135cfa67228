"""Which engine runs a model: this process alone, several processes on this machine, or a Ray cluster."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass

from auditkit.cores import usable_cores
from auditkit.engines.local import LocalProcess
from auditkit.engines.pool import Pool
from auditkit.errors import BadInput
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.device import CPU, VISIBLE_GPUS, gpu_names

MOST_WORKERS = 1024


@dataclass(frozen=True)
class Workers:
    """Worker processes as a user asks for them."""

    number: str = "1"  # or auto: one for each GPU
    engine: str = "local"  # or ray, or ray:ADDRESS

    def __post_init__(self) -> None:
        on_ray = self.engine.partition(":")[0] == "ray"
        if not on_ray and self.engine != "local":
            raise BadInput(f"--engine {self.engine} is not local, ray or ray:ADDRESS.")
        if on_ray and importlib.util.find_spec("ray") is None:
            raise BadInput("--engine ray needs Ray; install it with: pip install 'onnx-auditkit[ray]'.")
        if self.number != "auto" and not (self.number.isdecimal() and 1 <= int(self.number) <= MOST_WORKERS):
            raise BadInput(f"--workers {self.number} is neither auto nor a number from 1 to {MOST_WORKERS:,}.")

    def serve(self, model: OnnxClassifier) -> None:
        """Let units of work with this model run in them."""
        number = None if self.number == "auto" else int(self.number)
        kind, _, address = self.engine.partition(":")
        engine = _on_ray(address or None, number, model) if kind == "ray" else _here(number, model)
        if engine is not None:
            model.use_engine(engine)


def _here(number: int | None, model: OnnxClassifier) -> Pool | None:
    """Processes on this machine, which may share GPUs; None where this process alone is enough."""
    gpus = [] if model.device is CPU else _visible_gpus()
    count = number or len(gpus) or 1
    if count == 1:
        return None
    threads = max(1, usable_cores() // count)

    def start(slot: int) -> LocalProcess:
        return LocalProcess(threads, {VISIBLE_GPUS: gpus[slot % len(gpus)]} if gpus else {})

    return Pool(start, count, speedup=min(count, len(gpus)) or 1)


def _visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: CUDA stops at the first that is none."""
    count, visible = len(gpu_names()), os.environ.get(VISIBLE_GPUS)
    return visible.split(",")[:count] if visible else [str(index) for index in range(count)]


def _on_ray(address: str | None, number: int | None, model: OnnxClassifier) -> Pool:
    from auditkit.engines.ray_cluster import Cluster  # noqa: PLC0415 - takes a second

    cluster = Cluster(address)
    on_cpu = model.device is CPU
    kind = "CPU" if on_cpu else "GPU"
    available = cluster.resources(kind)
    count = number or sum(available)
    if not 0 < count <= sum(available):
        raise BadInput(f"the Ray cluster has {sum(available)} {kind}s, and each worker needs one; give fewer "
                       "--workers, or another --device.")  # fmt: skip
    threads = threads_that_fit(available, count) if on_cpu else 1
    speedup = threads * count / usable_cores() if on_cpu else count
    return Pool(lambda _slot: cluster.start(threads, 0 if on_cpu else 1), count, speedup)


def threads_that_fit(cores: Sequence[int], workers: int) -> int:
    """The most threads that each worker can have on machines with so many cores."""
    return max(threads for threads in range(1, max(cores) + 1) if sum(each // threads for each in cores) >= workers)
