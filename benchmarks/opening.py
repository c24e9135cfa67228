"""What opening a model costs, and what predict() adds to a bare session: python -m benchmarks.opening MODEL [...].

Prints one JSON object. Rates are medians of several repeats within one run, so that their ratio can be trusted.
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

ROWS, REPEATS = 64, 7


def seconds(work: Callable[[], object]) -> float:
    """Median time of several repeats, after one to warm up."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(path: Path) -> dict[str, Any]:
    """Opening time, and rows per second of predict() and of the bare session, on the CPU."""
    start = time.perf_counter()
    model = auditkit.load(path, settings=auditkit.Settings(device="cpu"))
    opened = time.perf_counter() - start
    plain = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rows = np.zeros(model.signature.array_shape(ROWS), model.signature.dtype)
    bare = seconds(lambda: plain.run(None, {model.signature.input: rows}))
    ours = seconds(lambda: model.predict(rows))
    return {
        "model": path.name, "opening_s": round(opened, 3), "bare_rows_s": round(ROWS / bare, 1),
        "predict_rows_s": round(ROWS / ours, 1), "ratio": round(bare / ours, 3),
    }  # fmt: skip


if __name__ == "__main__":
    paths = [Path(name) for name in sys.argv[1:]] or [bundled("honest")]
    found = {**origin("benchmarks.opening"), "results": [measure(path) for path in paths]}
    print(json.dumps(found, indent=2))
