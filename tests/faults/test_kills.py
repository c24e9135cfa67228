"""Drivers killed with SIGKILL at random moments: the same command resumes them to the same results."""

import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.interruptions import Undisturbed, killed, start


@pytest.mark.parametrize(("name", "kills"), [
    ("explain", 4), ("explain by workers", 3), ("evaluate", 4), ("audit", 2),
])  # fmt: skip
def test_killed_again_and_again(undisturbed: Undisturbed, tmp_path: Path, name: str, kills: int) -> None:
    out, chance, longest = tmp_path / "out", np.random.default_rng(kills), undisturbed.seconds(name)
    words = undisturbed.words(name, out)
    assert sum(killed(words, out, chance.uniform(0, longest)) for _ in range(kills)) > 0
    assert undisturbed.run(name, out).returncode == 0
    undisturbed.check_same(name, out)


def _finished_parts(name: str, out: Path) -> dict[Path, int]:
    """Finished parts by the time of their last change: rows under their own name, maps that the manifest names."""
    if name == "evaluate":
        return {path: path.stat().st_mtime_ns for path in out.glob("items/*.parquet")}
    manifest = out / "manifest.csv"
    named = re.findall(r"maps/\d+\.npy", manifest.read_text()) if manifest.exists() else []
    return {out / path: (out / path).stat().st_mtime_ns for path in named}


@pytest.mark.parametrize("name", ["explain", "evaluate"])
def test_what_was_finished_is_kept(undisturbed: Undisturbed, tmp_path: Path, name: str) -> None:
    """Killed as soon as a part is there, which is not written again."""
    out = tmp_path / "out"
    process = start(undisturbed.words(name, out))
    while process.poll() is None and not _finished_parts(name, out):
        time.sleep(0.005)
    process.kill()
    process.communicate()
    before = _finished_parts(name, out)
    assert before
    assert undisturbed.run(name, out).returncode == 0
    assert before.items() <= _finished_parts(name, out).items()
    undisturbed.check_same(name, out)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kills"), [
    ("explain", 30), ("explain by workers", 20), ("evaluate", 25), ("audit", 25),
])  # fmt: skip
def test_a_hundred_kills(undisturbed: Undisturbed, tmp_path: Path, name: str, kills: int) -> None:
    out, chance, longest, struck = tmp_path / "out", np.random.default_rng(0), undisturbed.seconds(name), 0
    for _ in range(kills):
        struck += killed(undisturbed.words(name, out), out, chance.uniform(0, longest))
        assert undisturbed.run(name, out).returncode == 0
        undisturbed.check_same(name, out)
        shutil.rmtree(out)
    assert struck > kills / 3
    print(f"{name}: {struck} of {kills} kills found it at work")
