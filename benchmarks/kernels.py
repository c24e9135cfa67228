"""Where a GPU's time goes, kernel by kernel: the bare session, a step of mask learning, and torch.compile beside them.

    python -m benchmarks.kernels [MODEL.onnx] --precision float16 --precision tf32 --batch 256 --masks 1 16

Without a model, a torchvision ResNet-50 is exported on the spot, and the same network runs compiled by torch, in
channels-last and in the same precision. Each is timed by the clock first and then run again under torch's profiler,
which also sees the kernels of onnxruntime. Prints one JSON object.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import auditkit
from auditkit.model.classifier import OnnxClassifier
from benchmarks.evaluate import bare_runs, export_resnet50
from benchmarks.reporting import log, origin, printed_at_end

RUNS, TOP = 10, 12
KINDS = {
    "layout and copies": r"transpose|memcpy|memset|_pad|padding|slice|concat|gather|scatter|copy|expand",
    "pooling and reductions": r"pool|reduce_|softmax|triton_(per|red)",
    "convolutions and products": r"fprop|dgrad|gemm|nvjet|conv|cutlass|winograd",
    "activations, sums, biases": r"elementwise|triton_poi|op_tensor|op_generic|bias",
}
Kernels = Mapping[str, tuple[float, float]]  # milliseconds and launches a run, by name


def kind_of(kernel: str) -> str:
    """What a kernel does, by its name."""
    return next((kind for kind, words in KINDS.items() if re.search(words, kernel, re.I)), "other")


def summary(kernels: Kernels) -> dict[str, Any]:
    """Kernels by kind, and those that take longest."""
    kinds = dict.fromkeys((*KINDS, "other"), 0.0)
    for name, (ms, _) in kernels.items():
        kinds[kind_of(name)] += ms
    longest = sorted(kernels.items(), key=lambda one: -one[1][0])[:TOP]
    return {
        "kernels_ms": round(sum(ms for ms, _ in kernels.values()), 3),
        "launches": round(sum(count for _, count in kernels.values())),
        "kinds_ms": {kind: round(ms, 3) for kind, ms in kinds.items()},
        "longest": [{"kernel": name[:120], "ms": round(ms, 3), "launches": round(count, 1)}
                    for name, (ms, count) in longest],
    }  # fmt: skip


def profiled(run: Callable[[int], object]) -> dict[str, Any]:
    """Milliseconds of a run by the clock, and of its kernels."""
    import torch  # noqa: PLC0415
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    run(3)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run(RUNS)
    torch.cuda.synchronize()
    wall = 1e3 * (time.perf_counter() - begin) / RUNS
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run(RUNS)
        torch.cuda.synchronize()
    kernels = defaultdict[str, tuple[float, float]](lambda: (0.0, 0.0))
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            ms, count = kernels[event.name]
            kernels[event.name] = ms + event.device_time_total / 1e3 / RUNS, count + 1 / RUNS
    return {"ms": round(wall, 3), **summary(kernels)}


def compiled(precision: str, batch: int) -> Callable[[int], object]:
    """Runs of the network compiled by torch."""
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    kind = torch.float16 if precision == "float16" else torch.float32
    network = torchvision.models.resnet50(weights=None).eval().to("cuda", kind, memory_format=torch.channels_last)
    rows = torch.randn(batch, 3, 224, 224, device="cuda").to(kind, memory_format=torch.channels_last)
    fast = torch.compile(network)

    def run(count: int) -> None:
        with torch.inference_mode():
            for _ in range(count):
                fast(rows)

    return run


def subjects(model: OnnxClassifier, asked: argparse.Namespace) -> Iterator[tuple[str, int, Callable[[int], object]]]:
    """What is looked at, with its rows."""
    from benchmarks.explain import ours  # noqa: PLC0415 - which needs torch

    yield "bare session", asked.batch, bare_runs(model, asked.batch)
    if asked.model is None:
        yield "torch.compile", asked.batch, compiled(model.settings.precision, asked.batch)
    for masks in asked.masks:
        steps = argparse.Namespace(distractors=asked.distractors, steps=RUNS)
        yield f"a step of {masks} masks", masks * asked.distractors, ours(model, masks, steps)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--preset", default="imagenet")
    parser.add_argument("--precision", action="append")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--masks", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--distractors", type=int, default=10)
    asked = parser.parse_args()
    found: dict[str, Any] = {
        **origin("benchmarks.kernels"),
        "model": asked.model.name if asked.model else "torchvision ResNet-50, exported on the spot", "lines": [],
    }  # fmt: skip
    with printed_at_end(found), tempfile.TemporaryDirectory() as folder:
        path = asked.model or export_resnet50(Path(folder))
        for precision in asked.precision or ["float16"]:
            settings = auditkit.Settings(device="cuda", precision=precision, batch=asked.batch)
            model = auditkit.load(path, preset=asked.preset, settings=settings)
            assert isinstance(model, OnnxClassifier)
            for what, rows, run in subjects(model, asked):
                seen = profiled(run)
                line = {"what": what, "precision": precision, "rows": rows, "rows_s": round(1e3 * rows / seen["ms"])}
                found["lines"].append(line | seen)
                log(line)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # torch's profiler and onnxruntime, each at home in CUDA, may free the same memory as they leave
