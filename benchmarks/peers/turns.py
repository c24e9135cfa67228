"""Workers as processes, and measurements that they take in turns, since machines have moods."""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OURS = "auditkit"
AUTO = "auditkit-auto"  # the same at points of its own choice
SLOWER = {"seconds": "times_slower", "cpu_seconds": "times_the_cpu"}
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")  # handed on, and recorded
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
Figure = dict[str, Any]


class Failed(Exception):
    """A peer that did not answer, and the last lines that it wrote."""


class Worker:
    """A peer in its own process; `started` is the time from nothing to its first answer."""

    def __init__(self, name: str, python: str, folder: Path) -> None:
        self.name, self.log, self.crashes = name, folder / f"{name}.log", 0
        self.command = [python, "-m", "benchmarks.peers.worker", name, str(folder)]
        self._start()

    def _start(self) -> None:
        begin = time.perf_counter()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        self.about = self._line()
        self.started = time.perf_counter() - begin

    def _line(self) -> Figure:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.close()
            *_, said = ["", *self.log.read_text().strip().splitlines()]
            raise Failed(f"{self.name} ended with {self.process.returncode}: {said}")
        found: Figure = json.loads(line)
        return found

    def ask(self, **asked: Any) -> Figure:
        """Its answer to a job; a peer that crashes is started once more, which is counted."""
        try:
            return self._ask(asked)
        except Failed:
            self.crashes += 1
            self._start()
            return self._ask(asked)

    def _ask(self, asked: Figure) -> Figure:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return self._line()

    def close(self) -> None:
        """Let it end."""
        self.process.communicate()


def opened(pythons: Mapping[str, str], folder: Path) -> tuple[dict[str, Worker], dict[str, str]]:
    """The peers that start, and why the others do not."""
    workers, failed = dict[str, Worker](), dict[str, str]()
    for name, python in pythons.items():
        try:
            workers[name] = Worker(name, python, folder)
        except (Failed, OSError) as problem:
            failed[name] = str(problem)
    return workers, failed


def starts(pythons: Mapping[str, str], folder: Path, asked: Mapping[str, Figure], repeats: int) -> dict[str, Figure]:
    """Seconds to the first answer, import and opening included, and the memory held once a job is done."""
    seconds: dict[str, list[float]] = {name: [] for name in pythons}
    memory: dict[str, int] = {}
    for _ in range(repeats):
        for name, python in pythons.items():
            worker = Worker(name, python, folder)
            seconds[name].append(worker.started)
            memory[name] = worker.ask(**asked[name])["peak_bytes"]
            worker.close()
    return {name: {"seconds": _short(statistics.median(seconds[name])), "all": [_short(one) for one in seconds[name]],
                   "peak_mb": round(memory[name] / 1e6)} for name in pythons}  # fmt: skip


def best_batches(workers: Mapping[str, Worker], batched: tuple[str, ...], asked: Figure,
                 choices: tuple[int, ...]) -> dict[str, int]:  # fmt: skip
    """The batch at which each is fastest; those without one get 0."""
    found = dict.fromkeys(workers, 0)
    for name in workers.keys() & set(batched):
        rates = {}
        for batch in choices:
            workers[name].ask(**asked, batch=batch)  # warm-up: some trace every new shape
            rates[batch] = workers[name].ask(**asked, batch=batch)["seconds"]
        found[name] = min(rates, key=lambda batch: rates[batch])
    return found


def in_turns(workers: Mapping[str, Worker], asked: Mapping[str, Figure], repeats: int) -> dict[str, Figure]:
    """Medians of every worker's answers, all asked once before any is asked again; ours beside."""
    heard: dict[str, list[Figure]] = {name: [] for name in asked}
    for _ in range(repeats):
        for name, figure in asked.items():
            heard[name].append(workers[name].ask(**figure))
    found = {name: summed_up(answers) for name, answers in heard.items()}
    if OURS in heard:
        for name, answers in heard.items():
            pairs = list(zip(answers, heard[OURS], strict=True))
            for what in ("seconds", "cpu_seconds"):
                ratio = statistics.median(theirs[what] / mine[what] for theirs, mine in pairs)
                found[name][SLOWER[what]] = _short(ratio)
    return found


def summed_up(answers: list[Figure]) -> Figure:
    """Medians, and the rates that follow."""
    seconds, busy = (statistics.median(one[what] for one in answers) for what in SLOWER)
    return {
        "seconds": _short(seconds), "all": [_short(one["seconds"]) for one in answers],
        "cpu_seconds": _short(busy), "rows": answers[0]["rows"],
        "rows_s": round(answers[0]["rows"] / seconds, 1), "rows_cpu_s": round(answers[0]["rows"] / busy, 1),
    }  # fmt: skip


def _short(number: float) -> float:
    return float(f"{number:.4g}")
