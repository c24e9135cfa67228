"""One peer in a process of its own: opens the network, answers once, then takes jobs as lines of JSON.

    python -m benchmarks.peers.worker NAME FOLDER

Needs numpy and the peer; auditkit only where the peer is auditkit.
"""

import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers.adapters import PEERS
from benchmarks.peers.job import Job

FIRST = {"points": 3, "batch": 32}  # of the answer that says it is ready


def peak_bytes() -> int:
    """The most memory that the process has held so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def answered(peer: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Seconds, rows and areas of a job; reading its file is not counted."""
    job, settings = Job.read(asked["job"]), asked.get("settings", {})
    if asked.get("alone"):
        areas = [peer.run(one, asked["points"], asked["batch"], **settings).areas[0] for one in job.alone()]
        return {"areas": areas}
    start, busy = time.perf_counter(), time.process_time()
    found = peer.run(job, asked["points"], asked["batch"], **settings)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    kept = {"areas": found.areas, **(found.more or {})} if asked.get("areas") else {}
    return {"seconds": seconds, "cpu_seconds": busy, "rows": found.rows, "peak_bytes": peak_bytes(), **kept}


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Answer until the input ends; what libraries print goes to the other stream."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        peer = PEERS[name](folder)
        answered(peer, {"job": str(folder / "first.npz"), **FIRST})
        about = {"versions": versions(peer.packages), "python": sys.version.split()[0], "peak_bytes": peak_bytes()}
        print(json.dumps(about), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(answered(peer, json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
