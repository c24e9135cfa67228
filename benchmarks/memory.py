"""How much of a GPU's memory the verbs take where --memory allows so much.

    python -m benchmarks.memory MODEL.onnx IMAGES --preset caffe --memory 3.25 --memory 4

Each verb runs by itself, and what the device says is in use is read many times a second; what was in use before is
taken off. Nothing else may run on the device meanwhile. Prints one JSON object.
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
from benchmarks.telling import one_line, origin, told

VERB = (sys.executable, "-m", "auditkit")
QUERY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
PAUSE = 0.02
VERBS = {
    "explain, gradient-input": ("explain", "--method", "gradient-input"),
    "evaluate": ("evaluate", "--steps", "64", "--heatmaps"),
    "explain, mask": ("explain", "--method", "mask", "--option", "steps=20"),
}


def in_use() -> int:
    """Bytes of the device's memory."""
    read = subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout
    return int(read.split()[0]) * 2**20


@contextmanager
def watched() -> Iterator[list[int]]:
    """What is in use, read again and again."""
    seen, over = list[int](), threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.append(in_use())
            time.sleep(PAUSE)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def measured(allowed: str, asked: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The most that each verb took, in GiB, and its exit code."""
    maps = str(folder / next(iter(VERBS)))
    for what, (verb, *options) in VERBS.items():
        given = [*options, *([maps] if verb == "evaluate" else []), "--labels", "top2", "--preset", asked.preset]
        before = in_use()
        with watched() as seen:
            ran = subprocess.run([*VERB, verb, asked.model, asked.pictures, *given, "--device", "cuda", "--memory",
                                  allowed, "-o", folder / what], check=False, capture_output=True)  # fmt: skip
        most = (max(seen) - before) / 2**30
        yield {"verb": what, "allowed_gib": float(allowed), "most_gib": round(most, 2), "exit": ran.returncode}


def memory_table(found: dict[str, Any]) -> str:
    """What the verbs took of what they were allowed."""
    rows = [[one["verb"], f"{one['allowed_gib']:g}", f"{one['most_gib']:.2f}", str(one["exit"])]
            for one in found["lines"]]  # fmt: skip
    head = ["verb", "--memory, GiB", "most in use, GiB", "exit code"]
    return f"{found['model']}, {found['images']} images, top2.\n\n{table(head, rows)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--preset", default="imagenet")
    parser.add_argument("--memory", action="append", required=True)
    asked = parser.parse_args()
    found: dict[str, Any] = {
        **origin("benchmarks.memory"), "model": asked.model.name,
        "images": len(list(asked.pictures.iterdir())), "lines": [],
    }  # fmt: skip
    with told(found):
        for allowed in asked.memory:
            with tempfile.TemporaryDirectory() as folder:
                for line in measured(allowed, asked, Path(folder)):
                    found["lines"].append(line)
                    one_line(line)


if __name__ == "__main__":
    main()
