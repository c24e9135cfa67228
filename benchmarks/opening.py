"""What opening a model costs, and what predict() adds to a bare session: python -m benchmarks.opening MODEL [...].

Prints one JSON object. Both are measured in turns, since machines have moods; rates and their ratio are medians.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import auditkit
from auditkit.demo.planted import bundled
from benchmarks.telling import origin

ROWS, TURNS = 64, 15
LONG = 0.1  # seconds of a turn, at least


def seconds(work: Callable[[], object]) -> float:
    """Time that some work takes, done again and again for a while."""
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < LONG:
        work()
        done += 1
    return (time.perf_counter() - begin) / done


def measure(path: Path) -> dict[str, Any]:
    """Opening time, and rows per second of predict() and of the bare session, on the CPU."""
    start = time.perf_counter()
    model = auditkit.load(path, settings=auditkit.Settings(device="cpu"))
    opened = time.perf_counter() - start
    plain = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rows = np.zeros(model.signature.array_shape(ROWS), model.signature.dtype)
    both: tuple[Callable[[], object], ...] = (
        lambda: plain.run(None, {model.signature.input: rows}), lambda: model.predict(rows)
    )  # fmt: skip
    turns = [tuple(map(seconds, both)) for _ in range(1 + TURNS)][1:]  # the first is to warm up
    bare, ours = (statistics.median(side) for side in zip(*turns, strict=True))
    ratio = statistics.median(alone / with_us for alone, with_us in turns)
    return {
        "model": path.name, "opening_s": round(opened, 3), "bare_rows_s": round(ROWS / bare, 1),
        "predict_rows_s": round(ROWS / ours, 1), "ratio": round(ratio, 3),
    }  # fmt: skip


if __name__ == "__main__":
    paths = [Path(name) for name in sys.argv[1:]] or [bundled("honest")]
    found = {**origin("benchmarks.opening"), "results": [measure(path) for path in paths]}
    print(json.dumps(found, indent=2))
