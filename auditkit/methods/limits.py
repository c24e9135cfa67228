"""What options of methods may be, refused with one sentence."""

from typing import Any

from auditkit.errors import BadInput


def whole(options: Any, *names: str) -> None:
    """Whole numbers from 1 up, or not set."""
    for name in names:
        number = getattr(options, name)
        if number is not None and (not isinstance(number, int) or number < 1):
            raise BadInput(f"{name} {number} is not a whole number from 1 up.")


def not_negative(options: Any, *names: str) -> None:
    """Numbers from 0 up, or not set."""
    for name in names:
        number = getattr(options, name)
        if number is not None and not 0 <= number < float("inf"):
            raise BadInput(f"{name} {number} is not a number from 0 up.")


def positive(options: Any, *names: str) -> None:
    """Numbers above 0."""
    for name in names:
        if not 0 < getattr(options, name) < float("inf"):
            raise BadInput(f"{name} {getattr(options, name)} is not a number above 0.")
