"""Reads files on the machine that has them: a worker on another machine asks the one that started it."""

from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Asker(Protocol):
    """Calls functions where the files are."""

    def __call__(self, function: Callable[..., Result], /, *arguments: object) -> Result:
        """What the function returns there."""


asker: Asker | None = None  # None: the files are here


def use(new_asker: Asker) -> None:
    """Let this process read files through another one."""
    global asker  # noqa: PLW0603 - a process is on one machine
    asker = new_asker
