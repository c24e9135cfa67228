"""How much GPU memory the commands use under a --memory limit.

    python -m benchmarks.memory MODEL.onnx IMAGES --preset caffe --memory 3.25 --memory 4

Each command runs by itself. The memory in use on the device is read many times a second; what was in use before is
subtracted. Nothing else may run on the device meanwhile. Prints one JSON object.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from auditkit.report.markdown import table
from benchmarks.reporting import log, origin, printed_at_end

VERB = (sys.executable, "-m", "auditkit")
QUERY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
PAUSE = 0.02
VERBS = {
    "explain, gradient-input": ("explain", "--method", "gradient-input"),
    "evaluate": ("evaluate", "--steps", "64", "--heatmaps"),
    "explain, mask": ("explain", "--method", "mask", "--option", "steps=20"),
}


def in_use() -> int:
    """Bytes of the device's memory that are in use."""
    output = subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout
    return int(output.split()[0]) * 2**20


@contextmanager
def watched() -> Iterator[list[int]]:
    """Readings of the memory in use, taken in the background."""
    readings, stopped = list[int](), threading.Event()

    def watch() -> None:
        while not stopped.is_set():
            readings.append(in_use())
            time.sleep(PAUSE)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield readings
    finally:
        stopped.set()
        thread.join()


def measured(limit: str, arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The peak memory of each command, in GiB, and its exit code."""
    maps = str(folder / next(iter(VERBS)))
    for title, (verb, *options) in VERBS.items():
        inputs = [arguments.model, arguments.pictures, *options, *([maps] if verb == "evaluate" else [])]
        settings = ["--labels", "top2", "--preset", arguments.preset, "--device", "cuda", "--memory", limit]
        before = in_use()
        with watched() as readings:
            process = subprocess.run([*VERB, verb, *inputs, *settings, "-o", folder / title], check=False,
                                     capture_output=True)  # fmt: skip
        peak = (max(readings) - before) / 2**30
        yield {"verb": title, "allowed_gib": float(limit), "most_gib": round(peak, 2), "exit": process.returncode}


def memory_table(results: dict[str, Any]) -> str:
    """The peak memory of each command beside its limit."""
    rows = [[line["verb"], f"{line['allowed_gib']:g}", f"{line['most_gib']:.2f}", str(line["exit"])]
            for line in results["lines"]]  # fmt: skip
    head = ["verb", "--memory, GiB", "most in use, GiB", "exit code"]
    return f"{results['model']}, {results['images']} images, top2.\n\n{table(head, rows)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--preset", default="imagenet")
    parser.add_argument("--memory", action="append", required=True)
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        **origin("benchmarks.memory"), "model": arguments.model.name,
        "images": len(list(arguments.pictures.iterdir())), "lines": [],
    }  # fmt: skip
    with printed_at_end(results):
        for limit in arguments.memory:
            with tempfile.TemporaryDirectory() as folder:
                for line in measured(limit, arguments, Path(folder)):
                    results["lines"].append(line)
                    log(line)


if __name__ == "__main__":
    main()
