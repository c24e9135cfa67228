"""What options of methods may be, refused with one sentence."""

from typing import Any

from auditkit.errors import BadInput

MOST = 1_000_000  # of anything: more would fill the memory before it is worth waiting for
MOST_BLUR = 1000.0
MOST_CELLS = 100  # a side of a grid


def whole(options: Any, *names: str, most: int = MOST) -> None:
    """Whole numbers from 1 up to the most, or not set."""
    for name in names:
        number = getattr(options, name)
        if number is not None and not (isinstance(number, int) and 1 <= number <= most):
            raise BadInput(f"{name} {number} is not a whole number from 1 to {most:,}.")


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


def blur(options: Any) -> None:
    """The width of a blur, which takes memory and time by its reach."""
    positive(options, "blur")
    if options.blur > MOST_BLUR:
        raise BadInput(f"blur {options.blur} is more than {MOST_BLUR:g} pixels; at a few hundred, one colour is left.")
