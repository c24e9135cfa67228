"""The cost of opening a model, and of predict() beside a bare session: python -m benchmarks.opening MODEL [...].

Prints one JSON object. Both are measured in turns, since a machine's speed drifts; rates and their ratio are medians.
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
from auditkit.demo.planted import bundled_model
from benchmarks.reporting import origin

ROWS, TURNS = 64, 15
SHORTEST_TURN = 0.1  # seconds, long enough for the clock and the scheduler not to matter


def seconds(work: Callable[[], object]) -> float:
    """Seconds that a call takes, averaged over the calls of one turn."""
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < SHORTEST_TURN:
        work()
        calls += 1
    return (time.perf_counter() - begin) / calls


def measure(path: Path) -> dict[str, Any]:
    """Opening time, and rows per second of predict() and of the bare session, on the CPU."""
    start = time.perf_counter()
    model = auditkit.load(path, settings=auditkit.Settings(device="cpu"))
    opening = time.perf_counter() - start
    plain = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rows = np.zeros(model.signature.array_shape(ROWS), model.signature.dtype)
    both: tuple[Callable[[], object], ...] = (
        lambda: plain.run(None, {model.signature.input: rows}), lambda: model.predict(rows)
    )  # fmt: skip
    turns = [tuple(map(seconds, both)) for _ in range(1 + TURNS)][1:]  # the first warms up
    bare, ours = (statistics.median(side) for side in zip(*turns, strict=True))
    ratio = statistics.median(alone / with_us for alone, with_us in turns)
    return {
        "model": path.name, "opening_s": round(opening, 3), "bare_rows_s": round(ROWS / bare, 1),
        "predict_rows_s": round(ROWS / ours, 1), "ratio": round(ratio, 3),
    }  # fmt: skip


if __name__ == "__main__":
    paths = [Path(name) for name in sys.argv[1:]] or [bundled_model("honest")]
    results = {**origin("benchmarks.opening"), "results": [measure(path) for path in paths]}
    print(json.dumps(results, indent=2))
