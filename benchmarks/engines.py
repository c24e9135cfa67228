"""What worker processes and Ray cost: rows a second beside those of bare onnxruntime processes, at the same time.

    python -m benchmarks.engines cifar10_resnet20.onnx > benchmarks/results/engines-x86.json

Two workers of one thread are compared with two bare processes of one thread, which run the vendor's graph on random
batches of several sizes and nothing else, with the runtime's defaults as in a worker; the fastest size counts. Ray is
compared with local workers. The speed of a machine drifts by a tenth and more within minutes, so both sides run in
turns of four seconds: the other one is stopped meanwhile (SIGSTOP), and its clock does not count. Starting up is not
counted either.
"""

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.data.dataset import Dataset
from auditkit.engines.start import Workers
from auditkit.metrics.curves import parse_steps
from auditkit.model.classifier import OnnxClassifier, load
from auditkit.model.runtime import Feeds
from auditkit.report.markdown import table
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.batch import prepare
from auditkit.runs.evaluation.plan import plan_evaluation
from auditkit.runs.evaluation.settings import Evaluation
from benchmarks.reporting import log, origin, printed_at_end

# Prints rows and seconds of processor time for each size of a batch, again and again, and the time of day.
BARE = """
import sys, time, json
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
shape, name = json.loads(sys.argv[2]), session.get_inputs()[0].name
batches = [np.random.default_rng(0).random([count, *shape[1:]], np.float32) for count in json.loads(sys.argv[3])]
done = {len(rows): [0, 0.0] for rows in batches}
for rows in batches:
    session.run(None, {name: rows})
output = open(sys.argv[4], "w")
print("ready", file=output, flush=True)
sys.stdin.readline()
first = time.monotonic()
while True:
    for rows in batches:
        start = time.process_time()
        while time.process_time() - start < 0.1:
            session.run(None, {name: rows})
            done[len(rows)][0] += len(rows)
        done[len(rows)][1] += time.process_time() - start
    print(json.dumps({"done": done, "first": first, "last": time.monotonic()}), file=output, flush=True)
"""

_TICKS = os.sysconf("SC_CLK_TCK")
_TURN_SECONDS = 4.0
_UNIT = 16  # images
_SHARES = ("the model", "workers besides", "main process", "other processes of ours")
_ROLES = {"worker_main": _SHARES[0], "engines.local": _SHARES[1], "ray::_Actor": _SHARES[1]}


def family(root: int) -> dict[int, int]:
    """A process and its descendants, each with its parent."""
    parents = dict[int, int]()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    members, found = dict[int, int](), {root: parents.get(root, 0)}
    while found:
        members |= found
        found = {number: parent for number, parent in parents.items() if parent in found and number not in members}
    return members


def cpu_seconds() -> dict[str, float]:
    """Seconds of processor time that this process and its descendants took so far, by what they do."""
    seconds = dict.fromkeys(_SHARES, 0.0)
    for number in family(os.getpid()):
        with suppress(OSError):
            entry = Path("/proc") / str(number)
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            times = (entry / "stat").read_text().rpartition(")")[2].split()[11:13]
            role = next((role for word, role in _ROLES.items() if word in command), _SHARES[3])
            seconds[_SHARES[2] if number == os.getpid() else role] += sum(map(int, times)) / _TICKS
    return seconds


class Counted:
    """Rows that were run, and the times of the first of them and of the last."""

    def __init__(self) -> None:
        self.rows, self.first, self.last = 0, 0.0, 0.0

    def progress(self, _total: int) -> "Counted":
        return self

    def __call__(self, _done: float, rows: int = 0) -> None:
        now = time.monotonic()
        self.rows, self.first, self.last = self.rows + rows, self.first or now, now


def rate(model: OnnxClassifier, images: Dataset, settings: Evaluation) -> Counted:
    """The rows of an evaluation, with all that it does besides running the model."""
    counted = Counted()
    with tempfile.TemporaryDirectory() as folder:
        evaluate(model, images, {}, settings, Path(folder) / "run", counted.progress)
    return counted


def rows_besides(model: OnnxClassifier, images: Dataset, settings: Evaluation) -> int:
    """How many rows the model runs besides those of curves: whole images, infills, and crops of the saliency metric."""
    run, rows = model.session.run, 0

    def counted(feeds: Feeds, *more: Any, **limits: Any) -> Any:
        nonlocal rows
        rows += len(feeds[model.signature.input])
        return run(feeds, *more, **limits)

    model.session.run = counted  # type: ignore[method-assign]
    plan = plan_evaluation(model, images, {}, settings, None)
    prepare(plan, plan.load(range(len(images))))
    del model.session.run
    return rows


def measure_engine(arguments: argparse.Namespace, engine: str) -> None:
    """Start workers, warm them up, wait for a line, and print what an evaluation took."""
    model = load(arguments.model, preset=arguments.preset)
    assert isinstance(model, OnnxClassifier)
    rng = np.random.default_rng(0)
    images = Dataset.from_array(rng.integers(0, 256, (arguments.images, *model.card.size, 3), np.uint8))
    settings = Evaluation(labels="top2", infill=("gray",), steps=parse_steps(arguments.steps))
    one_unit = images.select(range(min(_UNIT, len(images))))
    besides = rows_besides(model, one_unit, settings) * len(images) // len(one_unit)
    Workers("2", engine).serve(model)
    rate(model, images.select(range(min(2 * _UNIT, len(images)))), replace(settings, steps=parse_steps("2")))
    output = arguments.output.open("w")
    print("ready", file=output, flush=True)
    sys.stdin.readline()
    before = cpu_seconds()
    counted = rate(model, images, settings)
    entry = {"rows": counted.rows + besides, "first": counted.first, "last": counted.last}
    entry["cpu_s"] = {role: seconds - before[role] for role, seconds in cpu_seconds().items()}
    print(json.dumps(entry), file=output, flush=True)
    sys.stdin.readline()  # so that its processes end with the comparison and not within it


class Contender:
    """Processes that run in turns with others, and what they print."""

    def __init__(self, *commands: list[str]) -> None:
        self._outputs = [tempfile.NamedTemporaryFile("r") for _ in commands]  # noqa: SIM115 - closed with the processes
        self._children = [subprocess.Popen([*command, output.name], stdin=subprocess.PIPE)
                          for command, output in zip(commands, self._outputs, strict=True)]  # fmt: skip
        self._turns, self._stopped = list[tuple[float, float]](), list[int]()
        while not all(self.last_lines()):
            if any(child.poll() is not None for child in self._children):
                raise RuntimeError("a process that was to be measured has ended")
            time.sleep(0.1)

    def last_lines(self) -> list[str]:
        """What each process has printed last; empty where it was nothing yet."""
        texts = [Path(output.name).read_text() for output in self._outputs]
        return [(["", *text.split("\n")[:-1]])[-1] for text in texts]

    def begin(self) -> None:
        """Stop all processes; the measurement begins with their first turn."""
        self._stop()
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(b"\n")
            child.stdin.flush()

    def turn(self) -> None:
        """Let them run for a while."""
        begin = time.monotonic()
        self._send(signal.SIGCONT)
        time.sleep(_TURN_SECONDS)
        self._stop()
        self._turns.append((begin, time.monotonic()))

    def seconds_between(self, first: float, last: float) -> float:
        """How much of a span of time it had."""
        return sum(max(0.0, min(last, end) - max(first, begin)) for begin, end in self._turns)

    def end(self) -> None:
        """End all processes; an engine ends its own ones when its standard input is closed."""
        self._send(signal.SIGCONT)
        for child in self._children:
            if not isinstance(self, Engine):
                child.terminate()
            child.communicate()

    def _stop(self) -> None:
        self._stopped = [process for child in self._children for process in family(child.pid)]
        self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        for process in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(process, number)


class BareProcesses(Contender):
    """Two processes that run the vendor's graph and nothing else."""

    def __init__(self, arguments: argparse.Namespace, shape: tuple[int, ...]) -> None:
        command = [sys.executable, "-c", BARE, str(arguments.model), json.dumps(shape), json.dumps(arguments.rows)]
        super().__init__(command, command)

    def entry(self) -> dict[str, Any]:
        """Rows a second of both together, with whichever size of a batch is the fastest.

        They run in turns, so each size is timed by the processor; `busy` is how much of their turns that was.
        """
        lines = [json.loads(line) for line in self.last_lines()]
        done = [line["done"] for line in lines]
        turns = sum(self.seconds_between(line["first"], line["last"]) for line in lines)
        busy = sum(seconds for sizes in done for _, seconds in sizes.values()) / turns
        rates = {int(size): busy * sum(rows / seconds for rows, seconds in (sizes[size] for sizes in done))
                 for size in done[0]}  # fmt: skip
        return {"rate": max(rates.values()), "rates": rates, "busy": busy}


class Engine(Contender):
    """An evaluation by two workers of an engine."""

    def __init__(self, engine: str) -> None:
        super().__init__([sys.executable, "-m", "benchmarks.engines", *sys.argv[1:], "--measure", engine, "--output"])

    @property
    def is_over(self) -> bool:
        """Whether the evaluation is finished."""
        return self.last_lines() != ["ready"]

    def entry(self) -> dict[str, Any]:
        """Rows a second, and what took the processor time."""
        line = json.loads(self.last_lines()[0])
        seconds = self.seconds_between(line["first"], line["last"])
        return {"rate": line["rows"] / seconds, "seconds": seconds, "cpu_s": line["cpu_s"]}


def beside(engine: Engine, other: BareProcesses | Engine) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries of both, which run in turns until the evaluations are over."""
    sides: list[BareProcesses | Engine] = [engine, other]
    evaluations = [side for side in sides if isinstance(side, Engine)]
    for side in sides:
        side.begin()
    try:
        while not all(side.is_over for side in evaluations):
            for side in sides:
                if side not in evaluations or not side.is_over:
                    side.turn()
        return engine.entry(), other.entry()
    finally:
        for side in sides:
            side.end()


Pair = tuple[dict[str, Any], dict[str, Any]]


def engines_table(results: dict[str, Any]) -> str:
    """Rates beside bare processes, and where the processor time went."""
    rates, shares = results["rows_per_second"], results["cpu_shares"]
    rows = [["two bare processes", f"{statistics.median(rates['bare']):,.1f}", "1", "-", *["-"] * len(_SHARES)]]
    for name, of_role in shares.items():
        of_bare = f"{results['of_bare'][name]:.3f}" if name in results["of_bare"] else "-"
        of_local = f"{results['ray_of_local']:.3f}" if name == "ray" else "-"
        parts = [f"{100 * of_role[role]:.1f} %" for role in _SHARES]
        rows.append([f"two workers, {name}", f"{statistics.median(rates[name]):,.1f}", of_bare, of_local, *parts])
    head = ["one thread each", "rows/s", "of bare", "of local", *_SHARES]
    job = f"{results['model']}, {results['images']} images, {results['steps']} points a curve"
    seconds = statistics.median(results["seconds"]["local"])
    return (f"{job}: {seconds:.0f} s with local workers; medians of {len(rates['local'])} measurements, and shares of "
            f"the processor time.\n\n{table(head, rows)}")  # fmt: skip


def summed_up(local: list[Pair], ray: list[Pair]) -> dict[str, Any]:
    """Rates, medians of the ratios of an engine and what ran beside it, and shares of the processor time."""
    engines = {"local": [engine for engine, _ in local], "ray": [engine for engine, _ in ray]}
    rates = {"bare": [bare["rate"] for _, bare in local]}
    shares = {}
    for name, entries in engines.items():
        if entries:
            taken = {role: sum(entry["cpu_s"][role] for entry in entries) for role in _SHARES}
            shares[name] = {role: seconds / sum(taken.values()) for role, seconds in taken.items()}
            rates[name] = [entry["rate"] for entry in entries]
    results = {
        "rows_per_second": rates, "cpu_shares": shares, "bare_batches": [bare["rates"] for _, bare in local],
        "seconds": {name: [entry["seconds"] for entry in engines[name]] for name in shares},
        "of_bare": {"local": _median_ratio(local)},
    }  # fmt: skip
    return results | ({"ray_of_local": _median_ratio(ray)} if ray else {})


def _median_ratio(pairs: list[Pair]) -> float:
    return statistics.median(engine["rate"] / other["rate"] for engine, other in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--preset", help="of the model's card, as for auditkit audit")
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", default="64")
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 16, 32], help="in a batch of the bare processes")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # an engine, in a process of its own
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure_engine(arguments, arguments.measure)
        return
    results = origin("benchmarks.engines")
    results |= {"model": arguments.model.name, "images": arguments.images, "steps": arguments.steps}
    with printed_at_end(results):
        model = load(arguments.model, preset=arguments.preset)
        shape, local, ray = model.signature.array_shape(1), list[Pair](), list[Pair]()
        del model  # with its worker
        for _ in range(arguments.repeats):
            local.append(beside(Engine("local"), BareProcesses(arguments, shape)))
            log({"local, bare": local[-1]})
            if importlib.util.find_spec("ray") is not None:
                ray.append(beside(Engine("ray"), Engine("local")))
                log({"ray, local": ray[-1]})
            results |= summed_up(local, ray)


if __name__ == "__main__":
    main()
