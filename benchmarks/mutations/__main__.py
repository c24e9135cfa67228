"""Mutated input by the thousand: python -m benchmarks.mutations --record FILE [--count N] [--commands N] [--seed N].

Each case runs in a fork of this process, which has imported all but the runtime and started nothing; there the first
run of a model is not guarded, which saves starting a worker. A fork that dies, hangs or ends with an exit code other
than 0 and 2 is decided by the real command, which also runs some of the others. Cases in the record are not run
again. Prints one JSON object.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # threads do not survive a fork

import typer
from PIL import Image

from auditkit.cli import main as cli
from auditkit.errors import AuditError, BadInput
from auditkit.model import probe, runtime, sandbox
from auditkit.model.read import Limits, read
from auditkit.model.signature import Overrides, Signature
from auditkit.runs import inspection  # noqa: F401 - before the fork
from benchmarks.mutations.cases import Case, Originals
from benchmarks.reporting import log, origin

FORK_SECONDS, COMMAND_SECONDS = 20, 60
FORK_BYTES = 3 * 2**29  # of writable memory
MOST_MEGABYTES = {"fork": 1600, "command": 1000}  # resident, at most; a fork shares what this process holds
_CODES = {"fork": (0, 2), "command": (0, 2, 4)}
# Of an error in the program, of the runtime's own language, of a terminal, and of another machine.
_FORBIDDEN = (
    "Traceback",
    "internal error",
    "ONNXRuntimeError",
    "Status Message",
    "tensor(",
    "[Errno",
    "\x1b",
    "site-packages",
)


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int  # negative: the signal that ended it
    stderr: str
    stdout: str
    seconds: float
    megabytes: int
    how: str  # fork or command


@dataclass(frozen=True)
class Line:
    """A finished case in the record."""

    number: int
    kind: str
    asked: str  # fork or command
    how: str  # command also where a fork did not decide it
    code: int
    seconds: float
    megabytes: int
    sentence: str
    problems: tuple[str, ...]


def problems(outcome: Outcome) -> tuple[str, ...]:
    """What is wrong with the way a command ended."""
    lines, reasons = outcome.stderr.splitlines(), list[str]()
    if outcome.code not in _CODES[outcome.how]:
        reasons.append(f"exit code {outcome.code}")
    if len(lines) != (0 if outcome.code == 0 else 1):
        expected = "no line" if outcome.code == 0 else "one line"
        # `bundle check` lists problems on stdout and exits with 2.
        if lines or not outcome.stdout:
            reasons.append(f"{len(lines)} lines on stderr, expected {expected}")
    reasons += [f"{word!r} in the output" for word in _FORBIDDEN if word in outcome.stderr + outcome.stdout]
    if outcome.megabytes > MOST_MEGABYTES[outcome.how]:
        reasons.append(f"{outcome.megabytes} MB")
    return tuple(reasons)


def _attempt_here(path: Path, overrides: Overrides, limits: Limits) -> "sandbox.Outcome[Signature]":
    """What `sandbox.attempt` does in a worker."""
    try:
        file = read(path, limits)
        return sandbox.Outcome(probe.examine(file, overrides), file.identity, None)
    except AuditError as error:
        raise BadInput(str(error) if str(error).startswith(path.name) else f"{path.name}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"the file is damaged or malformed ({type(error).__name__}: {str(error)[:200]})"
        raise BadInput(f"{path.name}: {reason}.") from None


def _in_fork(case: Case, folder: Path, stdout: int, stderr: int) -> NoReturn:
    """Run the command: this is the child."""
    code = 99
    try:
        os.chdir(folder)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (FORK_BYTES, FORK_BYTES))
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["auditkit", *case.command]
        sandbox.attempt, runtime.IN_WORKER = _attempt_here, True
        cli.main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 98
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_in_fork(case: Case, folder: Path) -> Outcome:
    """The outcome of a case in a fork of this process."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        pid = os.fork()
        if pid == 0:
            _in_fork(case, folder, stdout.fileno(), stderr.fileno())
        code, megabytes = _waited(pid, FORK_SECONDS)
        texts = [_text(stream) for stream in (stderr, stdout)]
    return Outcome(code, *texts, round(time.monotonic() - began, 3), megabytes, "fork")


def run_command(case: Case, folder: Path) -> Outcome:
    """The outcome of a case by the real command."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        words = [sys.executable, "-m", "auditkit", *case.command]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        child = subprocess.Popen(words, cwd=folder, stdout=stdout, stderr=stderr, env=environment)
        code, megabytes = _waited(child.pid, COMMAND_SECONDS)
        child.returncode = code
        texts = [_text(stream) for stream in (stderr, stdout)]
    return Outcome(code, *texts, round(time.monotonic() - began, 3), megabytes, "command")


def _text(stream: Any) -> str:
    stream.seek(0)
    return str(stream.read().decode(errors="backslashreplace"))


def _waited(pid: int, seconds: float) -> tuple[int, int]:
    """Exit code and peak of resident megabytes of a child, which is killed when its time is up."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss // 1024
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)


def run_case(case: Case, folder: Path, how: str) -> Line:
    """Run a case in that way; by the real command too where a fork does not decide it."""
    outcome = run_in_fork(case, folder) if how == "fork" else run_command(case, folder)
    if outcome.code not in _CODES[outcome.how]:
        outcome = run_command(case, folder)
    values = (outcome.seconds, outcome.megabytes, outcome.stderr.strip()[:400], problems(outcome))
    return Line(case.number, case.kind, how, outcome.how, outcome.code, *values)


def recorded(path: Path) -> dict[tuple[int, str], Line]:
    """The finished cases of a record; a torn last line is none."""
    lines: dict[tuple[int, str], Line] = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            values = json.loads(text)
        except ValueError:
            continue
        lines[values["number"], values["asked"]] = Line(**values | {"problems": tuple(values["problems"])})
    return lines


def _warm(folder: Path) -> None:
    """Build the command, and load what it loads late by commands that start no runtime."""
    cli.app = typer.main.get_command(cli.app)
    for words in (("policy", "check", "standard"), ("bundle", "check", str(folder / "maps")), ("inspect", "none.onnx"),
                  ("bundle", "import", "none", "-o", "none", "--frame", "model-input")):  # fmt: skip
        nowhere = io.StringIO()
        with (
            mock.patch.object(sys, "argv", ["auditkit", *words]),
            contextlib.suppress(SystemExit),
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            cli.main()


def run(count: int, commands: int, seed: int, record: Path) -> list[Line]:
    """Run what the record does not hold: all cases in forks, and some of them by the real command."""
    done, step = recorded(record), count // max(commands, 1)
    wanted = [(number, "fork") for number in range(count)]
    wanted += [(number * step, "command") for number in range(commands)]
    Image.init()  # the decoders, before the fork
    with tempfile.TemporaryDirectory() as base, record.open("a") as stream:
        os.environ["XDG_CACHE_HOME"] = f"{base}/cache"
        folder = Path(base, "originals")
        folder.mkdir()
        originals = Originals(folder)
        _warm(folder)
        if len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208
            raise RuntimeError("this process has threads, which a fork does not copy")
        for number, how in wanted:
            if (number, how) in done:
                continue
            folder = Path(base, "case")
            folder.mkdir()
            case = originals.case(number, seed, folder)
            line = done[number, how] = run_case(case, folder, how)
            stream.write(json.dumps(asdict(line)) + "\n")
            stream.flush()
            if line.problems:
                log({"command": case.command, **asdict(line)})
            shutil.rmtree(folder)
    return [done[key] for key in wanted]


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """Counts by kind of file, exit code and way of running; the extremes; every case with a problem."""
    kinds: dict[str, Any] = {}
    for kind in sorted({line.kind for line in lines}):
        of_kind = [line for line in lines if line.kind == kind]
        codes = Counter(str(line.code) for line in of_kind if line.asked == "fork")
        kinds[kind] = {
            "cases": sum(line.asked == "fork" for line in of_kind), "exit_codes": dict(sorted(codes.items())),
            "by_command": sum(line.asked == "command" for line in of_kind),
            "decided_by_command": sum(line.asked != line.how for line in of_kind),
            "sentences": len({line.sentence for line in of_kind}),
            "problems": sum(bool(line.problems) for line in of_kind),
        }  # fmt: skip
    extremes = {}
    for how in ("fork", "command"):
        chosen = [line for line in lines if line.how == how]
        extremes[how] = {name: max((getattr(line, name) for line in chosen), default=0)
                         for name in ("seconds", "megabytes")}  # fmt: skip
    return {"kinds": kinds, "at_most": extremes, "problems": [asdict(line) for line in lines if line.problems]}


def main() -> None:
    """Run the cases and print the summary."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--commands", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    lines = run(given.count, given.commands, given.seed, given.record)
    print(json.dumps({**origin("benchmarks.mutations"), "seed": given.seed, **summary(lines)}, indent=2))


if __name__ == "__main__":
    main()
