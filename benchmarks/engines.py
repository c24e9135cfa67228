"""What worker processes and Ray cost: rows a second beside bare onnxruntime processes, in turns in the same run.

    python -m benchmarks.engines cifar10_resnet20.onnx --images 32 > benchmarks/results/engines-cpu.json

Two workers of one thread are compared with two bare processes of one thread, which run the vendor's graph on random
batches and nothing else, with the runtime's defaults as in a worker, and with whichever of several batch sizes is the
fastest; Ray with the local workers. Starting up is not counted: in each turn an engine is started, runs a small job, is
measured and ended. A measurement during which other programs took more than two hundredths of the machine is repeated
once.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.data.dataset import Dataset
from auditkit.engines.pool import Pool
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


_TICKS = os.sysconf("SC_CLK_TCK")
_QUIET = 0.02  # of the machine that other programs may take during a measurement
_MOST_TRIES = 2  # of a measurement that is disturbed
_SHARES = ("the model", "workers besides", "main process", "other processes of ours")
_ROLES = {"worker_main": _SHARES[0], "engines.local": _SHARES[1], "ray::_Actor": _SHARES[1]}


def cpu_seconds() -> dict[str, float]:
    """Seconds of processor time that this process and its descendants took so far, by what they do, and of all."""
    parents, seconds, roles = dict[int, int](), dict[int, float](), dict[int, str]()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            number, stat = int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            parents[number], seconds[number] = int(stat[1]), (int(stat[11]) + int(stat[12])) / _TICKS
            roles[number] = next((role for word, role in _ROLES.items() if word in command), _SHARES[3])
    roles[os.getpid()] = _SHARES[2]
    total = dict.fromkeys((*_SHARES, "all"), 0.0)
    for number, role in roles.items():
        ancestor = number
        while ancestor not in (os.getpid(), 0):
            ancestor = parents.get(ancestor, 0)
        if ancestor:
            total[role] += seconds[number]
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:9])
    total["all"] = (user + nice + system + sum(interrupts[:2])) / _TICKS
    return total


def undisturbed(measure: Callable[[], float]) -> dict[str, Any]:
    """A rate that was measured while hardly another program ran, or else the least disturbed one of several."""
    tries = list[dict[str, Any]]()
    while len(tries) < _MOST_TRIES and (not tries or tries[-1]["others"] > _QUIET):
        before, ended, start = cpu_seconds(), os.times(), time.perf_counter()
        rate = measure()
        wall, reaped = time.perf_counter() - start, os.times()
        taken = {role: seconds - before[role] for role, seconds in cpu_seconds().items()}
        children = reaped.children_user + reaped.children_system - ended.children_user - ended.children_system
        others = taken.pop("all") - sum(taken.values()) - children
        tries.append({"rate": rate, "seconds": wall, "others": others / wall / (os.cpu_count() or 1), "cpu_s": taken})
    return min(tries, key=lambda entry: entry["others"]) | {"tries": len(tries)}


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


def workers_turn(arguments: argparse.Namespace, engine: str, images: Dataset, settings: Evaluation) -> dict[str, Any]:
    """The rate of two workers: started and warmed up before, ended afterwards, since idle processes cost the others."""
    model = load(arguments.model, preset=arguments.preset)
    assert isinstance(model, OnnxClassifier)
    Workers("2", engine).serve(model)
    rate(model, images, replace(settings, steps=parse_steps("2")))
    entry = undisturbed(partial(rate, model, images, settings))
    pool = model.settings.engine
    assert isinstance(pool, Pool)
    pool.close()
    if engine == "ray":
        importlib.import_module("ray").shutdown()
    return entry


def engines_table(results: dict[str, Any]) -> str:
    """Rates beside bare processes, and where the processor time went."""
    rates, shares = results["rows_per_second"], results["cpu_shares"]
    rows = [["two bare processes", f"{statistics.median(rates['bare']):,.1f}", "1", "-", *["-"] * len(_SHARES)]]
    for name, of_bare in results["of_bare"].items():
        of_local = f"{results['ray_of_local']:.3f}" if name == "ray" else "-"
        parts = [f"{100 * shares[name][role]:.1f} %" for role in _SHARES]
        rows.append(
            [f"two workers, {name}", f"{statistics.median(rates[name]):,.1f}", f"{of_bare:.3f}", of_local, *parts]
        )
    head = ["one thread each", "rows/s", "of bare", "of local", *_SHARES]
    job = f"{results['model']}, {results['images']} images, {results['steps']} points a curve"
    seconds = statistics.median(results["seconds"]["local"])
    return (f"{job}: {seconds:.0f} s with local workers; medians of {len(rates['bare'])} turns, and shares of the "
            f"processor time. Other programs took at most {100 * results['others_at_most']:.1f} % of the machine."
            f"\n\n{table(head, rows)}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--preset", help="of the model's card, as for auditkit audit")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", default="64")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32], help="in a batch of the bare processes")
    parser.add_argument("--seconds", type=float, default=8, help="of the bare processes, for each batch size")
    arguments = parser.parse_args()
    results = origin("benchmarks.engines")
    with printed_at_end(results):
        model = load(arguments.model, preset=arguments.preset)
        assert isinstance(model, OnnxClassifier)
        size, rng = model.card.size, np.random.default_rng(0)
        images = Dataset.from_array(rng.integers(0, 256, (arguments.images, *size, 3), np.uint8))
        settings = Evaluation(labels="top2", infill=("gray",), steps=parse_steps(arguments.steps))
        shapes = [model.signature.array_shape(rows) for rows in arguments.rows]
        engines, turns = ["local", "ray"] if importlib.util.find_spec("ray") is not None else ["local"], []
        results |= {"model": arguments.model.name, "images": arguments.images, "steps": arguments.steps}
        for _ in range(arguments.repeats):
            turn = {"bare": undisturbed(lambda: max(
                bare_rate(arguments.model, shape, 2, arguments.seconds) for shape in shapes
            ))}  # fmt: skip
            turns.append(turn | {name: workers_turn(arguments, name, images, settings) for name in engines})
            log(turns[-1])
            results |= summed_up(turns)


def summed_up(turns: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Rates of all turns, medians of their ratios, and shares of the processor time."""
    rates = {name: [turn[name]["rate"] for turn in turns] for name in turns[0]}
    engines = [name for name in rates if name != "bare"]
    shares = {}
    for name in engines:
        taken = {role: sum(turn[name]["cpu_s"][role] for turn in turns) for role in _SHARES}
        shares[name] = {role: seconds / sum(taken.values()) for role, seconds in taken.items()}
    results = {
        "rows_per_second": rates, "cpu_shares": shares,
        "seconds": {name: [turn[name]["seconds"] for turn in turns] for name in rates},
        "tries": {name: [turn[name]["tries"] for turn in turns] for name in rates},
        "others_at_most": max(entry["others"] for turn in turns for entry in turn.values()),
        "of_bare": {name: _median_ratio(rates[name], rates["bare"]) for name in engines},
    }  # fmt: skip
    return results | ({"ray_of_local": _median_ratio(rates["ray"], rates["local"])} if "ray" in rates else {})


def _median_ratio(rates: list[float], others: list[float]) -> float:
    return statistics.median(rate / other for rate, other in zip(rates, others, strict=True))


if __name__ == "__main__":
    main()
