"""Inputs that all tests of faults share."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.interruptions import Undisturbed


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Inputs of the verbs, and their output, made when it is first needed."""
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 kB, where one can be mounted."""
    disk, mount = tmp_path / "disk", shutil.which("mount")
    disk.mkdir()
    words = ["-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    if mount is None or subprocess.run([mount, *words], capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    yield disk
    subprocess.run([shutil.which("umount") or "umount", "-l", str(disk)], check=True)
