"""What worker processes and Ray cost: rows a second beside bare onnxruntime processes, in turns in the same run.

    python -m benchmarks.engines models/honest.onnx --images 96 --repeats 3

Two workers of one thread are compared with two bare processes of one thread, which run the vendor's graph on random
batches and nothing else; Ray with the local workers. Starting up is not counted: each engine first runs a small job.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.data.dataset import Dataset
from auditkit.engines.start import Workers
from auditkit.metrics.curves import parse_steps
from auditkit.model.classifier import OnnxClassifier, load
from auditkit.report.markdown import table
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.settings import Evaluation
from benchmarks.reporting import log, origin, printed_at_end

BARE = """
import sys, time, json
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
rows = np.random.default_rng(0).random(json.loads(sys.argv[2]), np.float32)
name, seconds, done = session.get_inputs()[0].name, float(sys.argv[3]), 0
session.run(None, {name: rows})
print("ready", flush=True)
sys.stdin.readline()
start = time.perf_counter()
while time.perf_counter() - start < seconds:
    session.run(None, {name: rows})
    done += len(rows)
print(done / (time.perf_counter() - start))
"""


def bare_rate(path: Path, shape: tuple[int, ...], processes: int, seconds: float) -> float:
    """Rows a second of several bare processes together."""
    command = [sys.executable, "-c", BARE, str(path), json.dumps(shape), str(seconds)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for _ in range(processes)]  # fmt: skip
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    return sum(float(child.communicate()[0]) for child in children)


class Counted:
    """Rows that were run, and the time from the first of them to the last."""

    def __init__(self) -> None:
        self.rows, self.first, self.last = 0, 0.0, 0.0

    def progress(self, _total: int) -> "Counted":
        return self

    def __call__(self, _done: float, rows: int = 0) -> None:
        now = time.perf_counter()
        self.rows, self.first, self.last = self.rows + rows, self.first or now, now


def rate(model: OnnxClassifier, images: Dataset, settings: Evaluation) -> float:
    """Rows a second of an evaluation, with all that it does besides running the model."""
    counted = Counted()
    with tempfile.TemporaryDirectory() as folder:
        evaluate(model, images, {}, settings, Path(folder) / "run", counted.progress)
    return counted.rows / (counted.last - counted.first)


def served(path: Path, workers: Workers, images: Dataset, settings: Evaluation) -> OnnxClassifier:
    """The model with its workers, warmed up."""
    model = load(path)
    assert isinstance(model, OnnxClassifier)
    workers.serve(model)
    rate(model, images.select(range(32)), settings)
    return model


def engines_table(results: dict[str, Any]) -> str:
    """Rows a second of bare processes and of engines, turn by turn; or how alike the results of engines are."""
    if "comparisons" in results:
        rows = [[one["what"], one["one_worker_twice"], one["two_workers"]] for one in results["comparisons"]]
        return table(["", "one worker, the same command twice", "one worker and two"], rows)
    rates: dict[str, list[float]] = results["rows_per_second"]
    turns = [[str(turn + 1), *(f"{values[turn]:,.0f}" for values in rates.values())]
             for turn in range(len(rates["bare"]))]  # fmt: skip
    shares = ", ".join(f"{name} {share:.2f}" for name, share in results["of_bare"].items())
    drawn = table(["turn", *(f"{name}, rows/s" for name in rates)], turns)
    return (
        f"{results['model']}, {results['images']} images. Of the bare processes, median of turns: {shares}.\n\n{drawn}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", default="64")
    parser.add_argument("--rows", type=int, default=64, help="in a batch of the bare processes")
    parser.add_argument("--seconds", type=float, default=15)
    arguments = parser.parse_args()
    results = origin("benchmarks.engines")
    with printed_at_end(results):
        model = load(arguments.model)
        assert isinstance(model, OnnxClassifier)
        size, rng = model.card.size, np.random.default_rng(0)
        images = Dataset.from_array(rng.integers(0, 256, (arguments.images, *size, 3), np.uint8))
        settings = Evaluation(labels="top2", infill=("gray",), steps=parse_steps(arguments.steps))
        engines = {"local": served(arguments.model, Workers("2"), images, settings)}
        if importlib.util.find_spec("ray") is not None:
            engines["ray"] = served(arguments.model, Workers("2", "ray"), images, settings)
        rates: dict[str, list[float]] = {name: [] for name in ("bare", *engines)}
        for _ in range(arguments.repeats):
            shape = model.signature.array_shape(arguments.rows)
            rates["bare"].append(bare_rate(arguments.model, shape, 2, arguments.seconds))
            for name, served_model in engines.items():
                rates[name].append(rate(served_model, images, settings))
            log({name: round(values[-1], 1) for name, values in rates.items()})
        ratios = {name: [ours / bare for ours, bare in zip(values, rates["bare"], strict=True)]
                  for name, values in rates.items() if name != "bare"}  # fmt: skip
        results |= {"model": arguments.model.name, "images": arguments.images, "rows_per_second": rates,
                    "of_bare": {name: statistics.median(values) for name, values in ratios.items()}}  # fmt: skip
        with suppress(KeyError):
            results["ray_of_local"] = statistics.median(
                ray / local for ray, local in zip(rates["ray"], rates["local"], strict=True)
            )


if __name__ == "__main__":
    main()
