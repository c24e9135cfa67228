"""Runs of the `auditkit` command: in this process where the process is not the point, in a child where it is."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from unittest import mock

from auditkit.cli.main import main

PROGRESS = re.compile(
    r"[\w :]+: [\d.]+%,? ([\d,]+ )?of (about )?[\d,]+ [\w ]+, [\d,.e+]+ [\w ]+/s(, (about )?[\d.]+ (s|min|h) left)?\n"
)
SALT = "5a" * 16  # of the tests' audits
Completed = subprocess.CompletedProcess[str]


def auditkit_process(*words: object, folder: Path | None = None) -> Completed:
    """Run the command in a child process. Its stderr lacks progress lines, which only a slow machine prints."""
    command = [sys.executable, "-m", "auditkit", *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    done.stderr = PROGRESS.sub("", done.stderr)
    return done


def auditkit(*words: object, folder: Path | None = None) -> Completed:
    """Run the command in this process, from `main` to its exit code, which saves the imports of a child.

    Both descriptors are redirected, so that what the runtime itself writes is captured as it is from a child.
    """
    command = ["auditkit", *map(str, words)]
    with (
        contextlib.chdir(folder or Path.cwd()),
        mock.patch.object(sys, "argv", command),
        _redirected("stdout") as stdout,
        _redirected("stderr") as stderr,
    ):
        try:
            main()
        except SystemExit as exit_request:
            code = exit_request.code
    assert isinstance(code, int)
    return Completed(command, code, _content(stdout), PROGRESS.sub("", _content(stderr)))


def refused(done: Completed, *words: str) -> None:
    """Assert that a command was refused in one line on stderr that contains these words."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("auditkit: ")
    assert all(word in line for word in words), line


@contextlib.contextmanager
def _redirected(name: str) -> Iterator[IO[bytes]]:
    """The file that receives what is written to a standard stream, through Python or to its descriptor."""
    descriptor = {"stdout": 1, "stderr": 2}[name]
    getattr(sys, name).flush()
    original = os.dup(descriptor)
    file = tempfile.TemporaryFile()  # noqa: SIM115 (read after the block)
    os.dup2(file.fileno(), descriptor)
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as stream, mock.patch.object(sys, name, stream):
            yield file
    finally:
        os.dup2(original, descriptor)
        os.close(original)


def _content(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode()
