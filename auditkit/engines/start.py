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
from auditkit.model.device import CPU, gpu_names

MOST_WORKERS = 1024
_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Workers:
    """Worker processes as a user asks for them."""

    number: str = "1"  # or auto: one for each GPU
    engine: str = "local"  # or ray, or ray:ADDRESS

    def serve(self, model: OnnxClassifier) -> None:
        """Let units of work with this model run in them."""
        engine = _started(self.engine, _number(self.number), model)
        if engine is not None:
            model.use_engine(engine)


def _started(engine: str, number: int | None, model: OnnxClassifier) -> Pool | None:
    """The engine of this name for a model; None where this process alone is enough."""
    kind, _, address = engine.partition(":")
    if kind == "ray":
        return _on_ray(address or None, number, model)
    if engine != "local":
        raise BadInput(f"--engine {engine} is not local, ray or ray:ADDRESS.")
    on_cpu = model.device is CPU
    count = number or (0 if on_cpu else len(gpu_names())) or 1
    if count == 1:
        return None
    threads = max(1, usable_cores() // count)
    return Pool(lambda slot: LocalProcess(threads, {} if on_cpu else {_DEVICES: _gpu(slot)}), count)


def _number(workers: str) -> int | None:
    """The number of workers; None to choose one."""
    if workers == "auto":
        return None
    if not workers.isdecimal() or not 1 <= int(workers) <= MOST_WORKERS:
        raise BadInput(f"--workers {workers} is neither auto nor a number from 1 to {MOST_WORKERS:,}.")
    return int(workers)


def _gpu(slot: int) -> str:
    """The GPU of a slot, among those that this process may use; with more slots than GPUs, several share one."""
    visible = os.environ.get(_DEVICES)
    names = visible.split(",") if visible else [str(index) for index in range(len(gpu_names()))]
    return names[slot % len(names)]


def _on_ray(address: str | None, number: int | None, model: OnnxClassifier) -> Pool:
    if importlib.util.find_spec("ray") is None:
        raise BadInput("--engine ray needs Ray; install it with: pip install 'onnx-auditkit[ray]'.")
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
    return Pool(lambda _slot: cluster.start(threads, 0 if on_cpu else 1), count)


def threads_that_fit(cores: Sequence[int], workers: int) -> int:
    """The most threads that each worker can have on machines with so many cores."""
    return max(threads for threads in range(1, max(cores) + 1) if sum(each // threads for each in cores) >= workers)
