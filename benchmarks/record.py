"""Whether the cost of keeping maps grows in proportion to their number: `auditkit explain` with a method that is free.

    python -m benchmarks.record > benchmarks/results/record.json

Bytes are all that the process wrote while it explained, temporary files included. CPU time is that of the process,
without its worker; the machine may be busy with other work. Prints one JSON object.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.demo.planted import bundled_model
from auditkit.report.markdown import table
from auditkit.runs.explanation.record import RECORD
from benchmarks.reporting import log, origin, printed_at_end

_COUNTERS = Path("/proc/self/io")  # of Linux


def written() -> int:
    """Bytes that this process has written so far."""
    counters = dict(line.split(": ") for line in _COUNTERS.read_text().splitlines())
    return int(counters["wchar"])


def measured(count: int) -> dict[str, Any]:
    """Seconds and bytes that it takes to keep one map for each of some images."""
    model = auditkit.load(bundled_model("honest"))
    images = np.random.default_rng(count).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        begin, busy, before = time.perf_counter(), time.process_time(), written()
        maps = auditkit.explain(model, images, Path(folder) / "maps", "constant", labels="top1")
        seconds, busy, size = time.perf_counter() - begin, time.process_time() - busy, written() - before
        record = (Path(folder) / "maps" / RECORD).stat().st_size
    return {"images": len(maps), "seconds": round(seconds, 2), "cpu_seconds": round(busy, 2),
            "bytes_written": size, "record_bytes": record}  # fmt: skip


def record_table(results: dict[str, Any]) -> str:
    """Time and bytes for each image."""
    rows = []
    for line in results["lines"]:
        count = line["images"]
        rows.append([f"{count:,}", f"{1000 * line['cpu_seconds'] / count:.2f}", f"{1000 * line['seconds'] / count:.2f}",
                     f"{line['bytes_written'] / count:,.0f}", f"{line['record_bytes'] / count:,.0f}"])  # fmt: skip
    head = ["images", "ms of CPU an image", "ms an image", "bytes written an image", "bytes of the record an image"]
    return table(head, rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[2000, 4000, 8000])
    arguments = parser.parse_args()
    results: dict[str, Any] = {**origin("benchmarks.record"), "lines": []}
    with printed_at_end(results):
        for count in arguments.images:
            results["lines"].append(measured(count))
            log(results["lines"][-1])


if __name__ == "__main__":
    main()
