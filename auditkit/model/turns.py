"""Who may use a GPU at a time, in one process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets runs share a GPU, and the start of a session have it alone.

    When sessions are created, or choose their kernels in a first run, while others run in the same process, onnxruntime
    now and then fails (`operation not permitted when stream is capturing`) or crashes.
    """

    def __init__(self) -> None:
        self._changed, self._running, self._waiting = threading.Condition(), 0, 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Run beside others, once nobody waits to be alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run when all others have ended; none begins meanwhile."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._running)
                yield  # with the lock, which others need to begin
            finally:
                self._waiting -= 1
                self._changed.notify_all()
