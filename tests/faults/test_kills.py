"""Drivers killed with SIGKILL at random moments: the same command resumes them to the same results."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.interruptions import Undisturbed, killed, start


@pytest.mark.parametrize(("name", "kills"), [("explain", 4), ("evaluate", 4), ("audit", 2)])
def test_killed_again_and_again(undisturbed: Undisturbed, tmp_path: Path, name: str, kills: int) -> None:
    out, chance, longest = tmp_path / "out", np.random.default_rng(kills), undisturbed.seconds(name)
    words = undisturbed.words(name, out)
    assert sum(killed(words, out, chance.uniform(0, longest)) for _ in range(kills)) > 0
    assert undisturbed.run(name, out).returncode == 0
    undisturbed.check_same(name, out)


@pytest.mark.parametrize(("name", "pattern"), [("explain", "maps/*.npy"), ("evaluate", "items/*.parquet")])
def test_what_was_finished_is_kept(undisturbed: Undisturbed, tmp_path: Path, name: str, pattern: str) -> None:
    """Killed as soon as a part is there, which is not written again."""
    out = tmp_path / "out"
    process = start(undisturbed.words(name, out))
    while process.poll() is None and not list(out.glob(pattern)):
        time.sleep(0.005)
    process.kill()
    process.communicate()
    before = {path: path.stat().st_mtime_ns for path in out.glob(pattern)}
    assert before
    assert undisturbed.run(name, out).returncode == 0
    after = {path: path.stat().st_mtime_ns for path in out.glob(pattern)}
    assert before.items() <= after.items()
    undisturbed.check_same(name, out)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kills"), [("explain", 40), ("evaluate", 30), ("audit", 30)])
def test_a_hundred_kills(undisturbed: Undisturbed, tmp_path: Path, name: str, kills: int) -> None:
    out, chance, longest, struck = tmp_path / "out", np.random.default_rng(0), undisturbed.seconds(name), 0
    for _ in range(kills):
        struck += killed(undisturbed.words(name, out), out, chance.uniform(0, longest))
        assert undisturbed.run(name, out).returncode == 0
        undisturbed.check_same(name, out)
        shutil.rmtree(out)
    assert struck > kills / 3
    print(f"{name}: {struck} of {kills} kills found it at work")
