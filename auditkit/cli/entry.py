"""Starts the command. An interrupt (Ctrl-C, SIGTERM) ends it within two seconds: what is finished is on the disk."""

import os
import sys

TYPE_CHECKING = False  # as typing has it; until its import were done, an interrupt would end in a traceback
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_GRACE_SECONDS = 1.0  # for an orderly end
INTERRUPTED = 130  # as a shell reports SIGINT: no verdict, good or bad


def main() -> None:
    """Run the command and exit."""
    try:
        import signal

        signals = signal.SIGINT, signal.SIGTERM
        for number in signals:
            signal.signal(number, _exit)  # nothing has begun, and imports take a second
        from auditkit.cli.main import main as run

        for number in signals:
            signal.signal(number, _end_soon)
        run()
    except KeyboardInterrupt:
        _exit()


def _end_soon(_number: int, _frame: "FrameType | None") -> "NoReturn":
    """Interrupt the command, and exit if it takes longer than the grace to end, or at the next signal."""
    import signal
    import threading

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)
    timer = threading.Timer(_GRACE_SECONDS, _exit)
    timer.daemon = True
    timer.start()
    raise KeyboardInterrupt


def _exit(_number: int = 0, _frame: "FrameType | None" = None) -> "NoReturn":
    """Exit now, with the workers; threads may be busy for long."""
    try:
        if "auditkit.model.worker" in sys.modules:
            from auditkit.model.worker import kill_all

            kill_all()
    finally:  # also where another thread has just started a worker
        try:
            os.write(sys.stderr.fileno(), b"auditkit: interrupted.\n")
        finally:  # also where stderr is closed
            os._exit(INTERRUPTED)
