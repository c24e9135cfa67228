"""Insertion areas by auditkit and by its peers, on the CPU.

    python -m benchmarks.peers --assets FOLDER -o peers-cpu.json --python torchcam=PYTHON --python quantus=PYTHON ...

Each peer runs in a process of its own with the interpreter named for it; `rise` and `paper` take torchcam's, as loops
that need torch alone, and `openvino-f32` takes openvino's. Those without an interpreter are left out and named. The
environments hold:

    torchcam  torch==2.13.0 torchcam==0.5.0 scipy
    quantus   torch==2.13.0 quantus==0.6.0 'numpy<2.4'
    xplique   as in tests/peers/recorded/record_xplique.py
    openvino  openvino-xai==1.1.0
    dianna    dianna==1.8.1

All get the same arrays in memory, and networks with the same weights, whose scores are checked by the areas agreeing.
Seconds are medians of repeats in turns; each peer has the batch that it is fastest at. On a machine that others use,
set OMP_NUM_THREADS=1 and TF_NUM_INTRAOP_THREADS=1 and look at CPU seconds: threads that wait for each other on taken
cores make nonsense of the clock (DIANNA's runner cannot be told). --table prints the tables of a
result that is there already.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers import study, tables
from benchmarks.peers.adapters import BATCHED, PEERS
from benchmarks.peers.jobs import Bench, Case, QuickBench, cifar_pictures, photographs
from benchmarks.peers.turns import OURS, THREADS, best_batches, opened, starts
from benchmarks.reporting import origin

BORROWED = {"rise": "torchcam", "paper": "torchcam", "openvino-f32": "openvino"}
BATCHES, LARGE_BATCHES = (32, 64, 128), (8, 16)
LARGE = Case(4, 1, 48)


def interpreters(given: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The interpreter of each peer, and why the others are left out."""
    named = dict(one.split("=", 1) for one in given)
    if unknown := set(named) - set(PEERS):
        sys.exit(f"there is no peer '{min(unknown)}'; the peers are {', '.join(PEERS)}.")
    found = {
        OURS: sys.executable,
        **{name: path for name in PEERS if (path := named.get(name, named.get(BORROWED.get(name, ""))))},
    }
    return found, {name: "no interpreter given" for name in PEERS if name not in found}


def small(asked: argparse.Namespace, pythons: dict[str, str], folder: Path) -> dict[str, Any]:
    """Everything about small pictures."""
    bench = Bench(folder, asked.assets / "models" / "cifar10_resnet20.onnx", "imagenet",
                  cifar_pictures(asked.assets, 128), labels=10, few=8)  # fmt: skip
    workers, failed = opened(pythons, folder)
    batches = best_batches(workers, BATCHED, bench.asked(study.MAIN), BATCHES)
    head: dict[str, Any] = {
        "model": "cifar10_resnet20", "failed": failed, "batches": batches,
        "versions": {name: worker.about["versions"] for name, worker in workers.items()},
    }  # fmt: skip
    agreed = study.agreement(bench, workers, batches)
    _say("agreement", agreed)
    cases = sorted(
        {case for some in study.GROWTH.values() for case in some},
        key=lambda case: case.images * case.labels * case.points,
    )
    measured = {}
    for case in cases:
        repeats = asked.repeats if case != study.MAIN else 2 * asked.repeats - 1
        measured[case] = study.timed(bench, workers, batches, case, repeats)
        _say(case.name, {name: one["seconds"] for name, one in measured[case].items()})
    known = study.known_error(bench, workers, batches, asked.known, asked.repeats)
    for name, worker in workers.items():
        worker.close()
        if worker.crashes:
            head["crashes"] = head.get("crashes", {}) | {name: worker.crashes}
    alone = {name: study.asked(bench, name, batches, study.MAIN) for name in workers}
    return head | {
        "start_up": starts({name: pythons[name] for name in workers}, folder, alone, asked.repeats),
        "main": {"case": study.MAIN.name, "peers": measured[study.MAIN]}, "known_error": known, "agreement": agreed,
        "growth": {what: [{"case": vars(case), "peers": measured[case]} for case in some]
                   for what, some in study.GROWTH.items()},
    }  # fmt: skip


def large(asked: argparse.Namespace, pythons: dict[str, str], folder: Path) -> dict[str, Any]:
    """The same work on photographs."""
    bench = QuickBench(folder, asked.assets / "models" / "resnet50.onnx", "caffe",
                       photographs(asked.assets, LARGE.images), labels=1, few=LARGE.images)  # fmt: skip
    workers, failed = opened(pythons, folder)
    batches = best_batches(workers, BATCHED, bench.asked(LARGE), LARGE_BATCHES)
    found = study.timed(bench, workers, batches, LARGE, asked.repeats)
    for worker in workers.values():
        worker.close()
    return {"model": "resnet50, 224 pixels", "case": LARGE.name, "failed": failed, "batches": batches, "peers": found}


def _say(what: str, found: Any) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {what}: {json.dumps(found)}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", type=Path, help="folder with models/ and images/")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--known", type=int, default=64, help="images for the cost of a known error")
    parser.add_argument("--no-photographs", action="store_true")
    parser.add_argument("--table", type=Path, metavar="RESULT")
    asked = parser.parse_args()
    if asked.table:
        print(tables.markdown(json.loads(asked.table.read_text())))
        return
    pythons, skipped = interpreters(asked.python)
    found: dict[str, Any] = {
        **origin("benchmarks.peers"), "load_before": os.getloadavg()[0], "repeats": asked.repeats, "skipped": skipped,
        "threads": {name: os.environ[name] for name in THREADS if name in os.environ} or "as each chooses",
    }  # fmt: skip
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        found |= small(asked, pythons, Path(name) / "small")
        _write(asked.out, found)
        if not asked.no_photographs:
            found["pixels"] = large(asked, pythons, Path(name) / "large")
    _write(asked.out, found | {"seconds": round(time.perf_counter() - begin)})
    print(tables.markdown(found))


def _write(out: Path | None, found: dict[str, Any]) -> None:
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
