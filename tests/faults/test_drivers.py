"""Two drivers on one folder, a clock that goes back, and inputs that change between two runs."""

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from auditkit.runs.explanation.record import RECORD
from auditkit.runs.folder import provenance
from tests.support import onnx_models
from tests.support.commands import Completed, auditkit, refused
from tests.support.interruptions import VERBS, Undisturbed, start, wait_for


@pytest.fixture
def copies(undisturbed: Undisturbed, tmp_path: Path) -> Path:
    """A copy of the inputs and outputs, to change."""
    for name in ("explain", "evaluate"):
        undisturbed.output(name)
    return Path(shutil.copytree(undisturbed.folder, tmp_path / "copies"))


def _run(name: str, folder: Path, out: Path) -> Completed:
    return auditkit(*VERBS[name].words(folder, out))


@contextmanager
def _other_driver(words: tuple[object, ...], sign: Path) -> Iterator[None]:
    """Another process that is at work; the sign is a file that it has written."""
    process = start(words)
    try:
        wait_for(sign, process)
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("name", "sign"), [("explain", RECORD), ("evaluate", "items")])
def test_the_second_driver_is_refused_and_harms_nothing(
    undisturbed: Undisturbed, tmp_path: Path, name: str, sign: str
) -> None:
    out = tmp_path / "out"
    with _other_driver(undisturbed.words(name, out), out / sign):
        refused(undisturbed.run(name, out), "in use by another process")
    assert undisturbed.run(name, out).returncode == 0
    undisturbed.check_same(name, out)


def _other_picture(folder: Path) -> None:
    for name in ("images.npz", "first.npz"):
        with np.load(folder / name) as arrays:
            pictures = arrays["images"].copy()
        pictures[3] = 255 - pictures[3]
        np.savez(folder / name, images=pictures)


def _other_model(folder: Path) -> None:
    onnx_models.save(onnx_models.convnet(size=8, classes=4, seed=1), folder)


@pytest.mark.parametrize(("name", "change", "words"), [
    ("explain", _other_picture, "image '3' has other content here"),
    ("explain", _other_model, "has model"),
    ("evaluate", _other_picture, "other settings"),
    ("evaluate", _other_model, "another model"),
])  # fmt: skip
def test_inputs_that_changed_between_two_runs_are_refused(
    copies: Path, name: str, change: Callable[[Path], None], words: str
) -> None:
    """Their times are those of before, as if the change had come with a clock that went back."""
    before = {path: path.stat() for path in copies.iterdir()}
    change(copies)
    for path, status in before.items():
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    refused(_run(name, copies, copies / name), words)


@pytest.mark.parametrize("name", ["explain", "evaluate"])
def test_a_clock_that_goes_back_changes_nothing(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each look at the clock is an hour earlier; the second run begins before the first, and finds it finished."""
    clock = itertools.count(time.time(), -3600.0)
    monkeypatch.setattr(time, "time", lambda: next(clock))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(clock) * 1e9))
    monkeypatch.setattr(provenance, "now", lambda: time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time())))
    out = tmp_path / "out"
    for _ in range(2):
        assert undisturbed.run(name, out).returncode == 0
        undisturbed.check_same(name, out)


def test_files_of_the_future_are_read_again(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """A digest in the cache is used only while nothing about the file has changed, whatever its times say."""
    folder = Path(
        shutil.copytree(
            undisturbed.folder, tmp_path / "copies", ignore=shutil.ignore_patterns("explain", "evaluate", "audit")
        )
    )
    for path in folder.glob("*.npz"):
        os.utime(path, (2e9, 2e9))
    assert _run("evaluate", folder, tmp_path / "out").returncode == 0
    _other_picture(folder)
    for path in folder.glob("*.npz"):
        os.utime(path, (2e9, 2e9))
    refused(_run("evaluate", folder, tmp_path / "out"), "other settings")
