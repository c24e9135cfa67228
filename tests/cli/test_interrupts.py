"""An interrupt while the command is still importing: exit code 130 and one line."""

import signal
import subprocess
import sys

import pytest

INTERRUPT = """\
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{number})
sys.argv = ["auditkit", "inspect", "none.onnx"]
from auditkit.cli.entry import main
sys.meta_path.insert(0, Finder())
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("module", ["auditkit.cli.main", "typer", "auditkit.cli.options", "auditkit.runs", "numpy"])
def test_an_interrupt_during_imports(module: str, number: signal.Signals) -> None:
    code = INTERRUPT.format(module=module, number=number.name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (130, "auditkit: interrupted.\n", "")


def test_little_is_imported_before_interrupts_are_answered() -> None:
    code = "import sys; before = set(sys.modules); import auditkit.cli.entry; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=False, text=True)
    assert set(done.stdout.split()) == {
        "auditkit",
        "auditkit.telemetry",
        "auditkit.cli",
        "auditkit.cli.entry",
    }


@pytest.mark.parametrize("failure", ["RuntimeError", "ImportError"])
def test_nothing_that_fails_meanwhile_keeps_the_command_running(failure: str) -> None:
    """Another thread may have just started a worker, which changes the set of them."""
    code = f"""
from auditkit.cli import entry
from auditkit.model import worker
def fail():
    raise {failure}
worker.kill_all = fail
entry._exit()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (130, "auditkit: interrupted.\n")
