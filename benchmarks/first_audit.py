"""How long a first audit takes, and how well it foresees that: `auditkit audit` without options, as a user runs it.

    python -m benchmarks.first_audit MODEL.onnx IMAGES --preset imagenet [--cores 0,1] [--cores 2,3]

One audit for each --cores, side by side. Prints one JSON object.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from auditkit.report.markdown import table
from benchmarks.reporting import origin, printed_at_end

_UNITS = {"s": 1, "min": 60, "h": 3600}
_EARLIEST = 0.1  # of the whole: progress before it is not judged
_VERDICTS = ("PASS", "FAIL", "INCONCLUSIVE")

Line = tuple[float, str]  # seconds since the start, and what was printed


def audited(arguments: argparse.Namespace, cores: str) -> dict[str, Any]:
    """The figures of one audit on some cores."""
    with tempfile.TemporaryDirectory() as folder:
        report, reported = Path(folder) / "run" / "report.html", list[float]()
        command = [sys.executable, "-u", "-m", "auditkit", "audit", str(arguments.model), str(arguments.images), "-o",
                   str(report.parent), *(["--preset", arguments.preset] if arguments.preset else [])]  # fmt: skip
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 env={**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"})  # fmt: skip
        os.sched_setaffinity(child.pid, {int(core) for core in cores.split(",")})

        def watch() -> None:
            while child.poll() is None and not report.exists():
                time.sleep(0.5)
            reported.append(time.perf_counter() - begin)

        threading.Thread(target=watch, daemon=True).start()
        assert child.stdout is not None
        lines = [(time.perf_counter() - begin, line.rstrip()) for line in child.stdout]
        child.wait()
    return figures(lines, reported[0])


def figures(lines: list[Line], first_report: float) -> dict[str, Any]:
    """What an audit announced, and what it took."""
    (plan, _), announced = lines[0], next(_seconds(text) for _, text in lines if text.startswith("total"))
    ended, verdict = next((at, text.split()[0]) for at, text in lines if text.startswith(_VERDICTS))
    errors = [(at + _seconds(text.rpartition("about")[2])) / ended - 1
              for at, text in lines if text.endswith(" left") and at >= _EARLIEST * ended]  # fmt: skip
    return {"plan_s": plan, "first_report_s": first_report, "verdict_s": ended, "verdict": verdict,
            "announced_s": announced, "factor": ended / announced,
            "largest_eta_error": max(errors, key=abs, default=None)}  # fmt: skip


def _seconds(text: str) -> float:
    """The time in a text such as `about 9 min`."""
    match = re.search(r"(\d+) (s|min|h)\b", text)
    assert match is not None, text
    return float(match[1]) * _UNITS[match[2]]


def first_audit_table(results: dict[str, Any]) -> str:
    """A line for each audit."""
    head = ["cores", "plan, s", "first report, s", "verdict, s", "announced, s", "taken / announced",
            "largest error of the time left", "verdict"]  # fmt: skip
    rows = [[one["cores"], f"{one['plan_s']:.1f}", f"{one['first_report_s']:.0f}", f"{one['verdict_s']:.0f}",
             f"{one['announced_s']:.0f}", f"{one['factor']:.2f}", f"{one['largest_eta_error']:+.0%}",
             one["verdict"].lower()] for one in results["audits"]]  # fmt: skip
    return f"{results['model']}, {results['images']} images.\n\n{table(head, rows)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--preset")
    parser.add_argument("--cores", action="append", help="such as 0,1; all by default")
    arguments = parser.parse_args()
    each = arguments.cores or [",".join(map(str, sorted(os.sched_getaffinity(0))))]
    results: dict[str, Any] = {**origin("benchmarks.first_audit"), "model": arguments.model.name,
                               "images": arguments.images.name}  # fmt: skip
    with printed_at_end(results), ThreadPoolExecutor(len(each)) as threads:
        audits = list(threads.map(lambda cores: audited(arguments, cores), each))
        results["audits"] = [{"cores": cores, **one} for cores, one in zip(each, audits, strict=True)]


if __name__ == "__main__":
    main()
