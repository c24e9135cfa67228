"""Whether two workers give the results of one, and how long both take: the commands as a user types them.

    python -m benchmarks.two_workers cifar10_resnet20.onnx cifar10_test_1000.npz --preset imagenet --limit 48

One worker runs a command twice, two run it once. The first maps of `explain` are what is evaluated and audited, so that
rows and figures can be compared. An audit by two workers that learns its masks is verified by one and by two. Commands
that are finished in --folder are not run again. Prints one JSON object.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.data.bundles import open_bundle
from auditkit.report.markdown import table
from auditkit.runs.folder.names import EXAMINATION_RECORD
from auditkit.runs.folder.sittings import SITTINGS
from auditkit.runs.folder.store import Store
from benchmarks.reporting import log, origin, printed_at_end

TURNS = {"one": "1", "again": "1", "two": "2"}  # worker processes


class Commands:
    """Commands of auditkit with the same model, images and options, in a folder that remembers them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.folder, self.files = folder, [str(arguments.model), str(arguments.images)]
        self.device = ["--device", arguments.device]
        self.common, self.labels = [*self.device, "--limit", str(arguments.limit)], ["--labels", arguments.labels]
        if arguments.preset:
            self.common += ["--preset", arguments.preset]

    def run(self, verb: str, name: str, turn: str, *options: str) -> Path:
        """Run a command with one worker or two; its folder."""
        out = self.folder / f"{name}-{turn}"
        options = options if verb == "examine" else (*self.labels, *options)
        self._finished(out.name, [verb, *self.files, "-o", str(out), *self.common, *options, "--workers", TURNS[turn]])
        return out

    def verify(self, run: Path, turn: str) -> dict[str, Any]:
        """What `verify` says of a run."""
        words = ["verify", str(run), "--model", self.files[0], "--images", self.files[1], *self.device, "--seed", "0"]
        entry = self._finished(f"verify-{turn}", [*words, "--workers", TURNS[turn]])
        maps = re.search(r"maps (\d+ maps of .*?) chance", " ".join(entry.pop("output").split()))
        return {**entry, "maps": maps and maps[1]}

    def seconds(self) -> dict[str, float]:
        """How long each command took."""
        records = sorted(self.folder.glob("*.json"), key=lambda record: record.stat().st_mtime)
        return {record.stem: json.loads(record.read_text())["seconds"] for record in records}

    def _finished(self, name: str, words: list[str]) -> dict[str, Any]:
        record = self.folder / f"{name}.json"
        if not record.exists():
            begin = time.perf_counter()
            done = subprocess.run([sys.executable, "-m", "auditkit", *words, "--quiet"], capture_output=True, text=True,
                                  check=False)  # fmt: skip
            entry = {"seconds": round(time.perf_counter() - begin, 1), "exit": done.returncode, "output": done.stdout}
            log({"command": name, **entry, "errors": done.stderr[-2000:]})
            assert done.returncode not in (2, 4), done.stderr
            record.write_text(json.dumps(entry))
        return dict(json.loads(record.read_text()))


def maps_alike(first: Path, second: Path) -> dict[str, float]:
    """Correlation and difference of the maps of two bundles."""
    one, other = open_bundle(first), open_bundle(second)
    pairs = [(one.read(entry), other.get(entry.image, entry.label)) for entry in one.entries]
    correlations = [float(np.corrcoef(left.ravel(), right.ravel())[0, 1]) for left, right in pairs]
    return {"maps": len(pairs), "median": float(np.median(correlations)), "least": min(correlations),
            "mean_difference": float(np.mean([np.abs(left - right).mean() for left, right in pairs]))}  # fmt: skip


def rows_alike(first: Path, second: Path) -> dict[str, Any]:
    """Largest differences of two evaluations, in each column and in the figures, and the error that they state."""
    one, other = Store(first), Store(second)
    differences, rows, equal = dict[str, float | None](), 0, one.keys() == other.keys()
    for left, right in zip(one.tables(one.keys()), other.tables(one.keys()), strict=True):
        rows, equal = rows + left.num_rows, equal and left.equals(right)
        for name in left.column_names:
            pair = left[name].combine_chunks(), right[name].combine_chunks()
            before, now = differences.get(name, 0.0), _largest_difference(*map(_numbers, pair))
            differences[name] = None if before is None or now is None else max(before, now)
    results = one.results(), other.results()
    figures = [np.array([entry.value for entry in (*each.metrics, *each.controls)], float) for each in results]
    runtime = results[1].runtime
    columns = {name: most for name, most in differences.items() if most != 0}
    return {"rows": rows, "equal": bool(equal), "columns": columns, "figures": _largest_difference(*figures),
            "stated": runtime and runtime.largest}  # fmt: skip


def _numbers(column: Any) -> np.ndarray[Any, Any]:
    """The numbers of a column, of lists too; texts as numbers that tell them apart."""
    values = column.flatten() if hasattr(column, "flatten") and "list" in str(column.type) else column
    values = values.to_numpy(zero_copy_only=False)
    return np.array([hash(value) for value in values], float) if values.dtype == object else values.astype(float)


def _largest_difference(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float | None:
    """None where the numbers are not of the same things, as when curves have other points."""
    if first.shape != second.shape or not np.array_equal(np.isnan(first), np.isnan(second)):
        return None
    return float(np.nan_to_num(np.abs(first - second)).max(initial=0.0))


def compared(commands: Commands, precisions: list[str]) -> Iterator[tuple[str, Any]]:
    """All comparisons, each with its name."""
    maps = {turn: commands.run("explain", "explain", turn) for turn in TURNS}
    yield "maps", {turn: maps_alike(maps["one"], maps[turn]) for turn in ("again", "two")}
    supplied = ("--heatmaps", str(maps["one"]))
    for precision in precisions:
        name, options = f"evaluate, {precision}", (*supplied, "--precision", precision)
        runs = {turn: commands.run("evaluate", name, turn, *options) for turn in TURNS}
        yield name, {turn: rows_alike(runs["one"], runs[turn]) for turn in ("again", "two")}
    one, two = (commands.run("audit", "audit", turn, *supplied, "--policy", "explore") for turn in ("one", "two"))
    yield "audit", {"two": rows_alike(one, two)}
    examined = [commands.run("examine", "examine", turn) / EXAMINATION_RECORD for turn in ("one", "two")]
    yield "examine", {"two": _examinations(*examined)}
    learned = commands.run("audit", "audit that learns masks", "two", "--method", "mask", "--policy", "explore")
    yield "workers", {run.name: _units(run) for run in (two, learned)}
    yield "verify", {turn: commands.verify(learned, turn) for turn in ("one", "two")}


def _examinations(first: Path, second: Path) -> dict[str, Any]:
    """Whether two examinations found the same, and the largest difference of their rates."""
    one, other = (json.loads(path.read_text())["examination"] for path in (first, second))
    rates = [np.array([entry["follows"] for entry in each["rates"]], float) for each in (one, other)]
    return {"findings": len(one["findings"]), "equal": one == other, "rates": _largest_difference(*rates)}


def _units(run: Path) -> dict[str, int]:
    """How many units each process of a run computed, by the log of its sittings."""
    entries = [json.loads(line) for line in (run / SITTINGS).read_text().splitlines()]
    return dict(Counter(entry["worker"] for entry in entries if "worker" in entry))


def two_workers_table(results: dict[str, Any]) -> str:
    """How alike the results are, how long each command took, and what `verify` says."""
    rows = []
    for name, words in (("explain", "maps"), *((name, name) for name in results if name.startswith("evaluate, ")),
                        ("audit", "audit"), ("examine", "examine")):  # fmt: skip
        alike = [_in_words(results[words][turn]) if turn in results[words] else "-" for turn in ("again", "two")]
        taken = [results["seconds"].get(f"{name}-{turn}") for turn in TURNS]
        rows.append([name, *alike, ", ".join(f"{seconds:.0f}" for seconds in taken if seconds)])
    head = ["", "one worker, the same command twice", "one worker and two", "seconds of one, one again, two"]
    holds = {0: "holds", 3: "could not be checked", 5: "does not hold"}
    one, two = (holds[results["verify"][turn]["exit"]] for turn in ("one", "two"))
    about = f"{results['model']}, {results['images']} images, labels {results['labels']}, {results['device']}."
    return (f"{about} An audit by two workers that learns its masks, verified by one: {one}; by two: {two}."
            f"\n\n{table(head, rows)}")  # fmt: skip


def _in_words(alike: dict[str, Any]) -> str:
    """How alike the results of two commands are."""
    if "median" in alike:
        return (f"correlation {alike['median']:.2f} (median of {alike['maps']}), {alike['least']:.2f} at least; "
                f"mean difference {alike['mean_difference']:.2g}")  # fmt: skip
    if alike["equal"]:
        return f"all {alike['rows']:,} rows equal" if "rows" in alike else "equal"
    if "rates" in alike:
        return f"rates differ by up to {alike['rates']:.2g}"
    area, point = max(alike["columns"].get(name, 0) for name in ("insertion", "deletion")), alike["columns"]["curve"]
    points = "some curves have other points" if point is None else f"points of curves by up to {point:.2g}"
    return (f"figures differ by up to {alike['figures']:.2g}, areas of rows by {area:.2g}, {points}; an error of "
            f"{alike['stated']:.2g} is stated")  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--preset")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", action="append", help="of evaluate; tf32 and strict by default")
    parser.add_argument("--limit", type=int, default=32)
    parser.add_argument("--labels", default="top3")
    parser.add_argument("--folder", type=Path, help="where commands leave their results; a temporary one by default")
    arguments = parser.parse_args()
    results = origin("benchmarks.two_workers")
    results |= {"model": arguments.model.name, "images": arguments.limit, "labels": arguments.labels}
    results["device"] = arguments.device
    with printed_at_end(results), tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        commands = Commands(arguments, folder)
        for name, comparison in compared(commands, arguments.precision or ["tf32", "strict"]):
            results |= {name: comparison, "seconds": commands.seconds()}


if __name__ == "__main__":
    main()
