"""Ctrl-C and SIGTERM at random moments: the command and its workers end within two seconds, and nothing is lost."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.interruptions import Undisturbed

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
_SECONDS = 2.0  # until everything has ended
_LONG = {  # work that does not end by itself
    "explain": ("explain", "first.npz", "--option", "steps=1000000"),
    "evaluate": ("evaluate", "images.npz", "--heatmaps", "maps", "--steps", "exact", "--infill", "random"),
}


def _descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that these have started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    found, new = set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found |= new
    return found


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _interrupted(words: tuple[str, ...], folder: Path, out: Path, number: int, moment: float) -> float:
    """Seconds that a command and all it has started need to end after a signal."""
    command = [sys.executable, "-m", "auditkit", words[0], "model.onnx", *words[1:], "-o", str(out)]
    process = subprocess.Popen([*command, "--preset", "unit", "--device", "cpu"], cwd=folder, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    time.sleep(moment)
    started = _descendants(process.pid)
    assert process.poll() is None
    process.send_signal(number)
    begin = time.monotonic()
    _, errors = process.communicate(timeout=60)
    while any(map(_is_running, started)):
        assert time.monotonic() - begin < 60, "a process that the command started goes on"
        time.sleep(0.02)
    assert (process.returncode, errors.splitlines()[-1:]) == (130, ["auditkit: interrupted."])
    return time.monotonic() - begin


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize(("name", "signals"), [
    ("explain", 1), ("evaluate", 1), pytest.param("explain", 10, marks=pytest.mark.slow),
    pytest.param("evaluate", 10, marks=pytest.mark.slow),
])  # fmt: skip
def test_all_ends_within_two_seconds(
    undisturbed: Undisturbed, tmp_path: Path, number: signal.Signals, name: str, signals: int
) -> None:
    chance = np.random.default_rng([signals, number, len(name)])
    moments = chance.uniform(0.3, 6.0, signals).tolist()
    seconds = [_interrupted(_LONG[name], undisturbed.folder, tmp_path / "out", number, moment) for moment in moments]
    print(f"{name}, {number.name}: {max(seconds):.2f} s at most")
    assert max(seconds) < _SECONDS
