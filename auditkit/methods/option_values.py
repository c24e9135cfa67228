"""Checks of the options of methods; each refuses a wrong value with one sentence."""

from auditkit.errors import BadInput

_MOST = 1_000_000  # of anything: more would exhaust memory or patience
_MOST_BLUR = 1000.0  # pixels; the kernel's reach costs memory and time
MOST_CELLS = 100  # per side of a grid


def require(holds: bool, message: str) -> None:
    """Refuse options for which a condition does not hold."""
    if not holds:
        raise BadInput(message)


def require_whole(options: object, *names: str, least: int = 1, most: int = _MOST) -> None:
    """Refuse options that are not whole numbers from `least` to `most`; None is allowed."""
    for name in names:
        number = getattr(options, name)
        holds = number is None or (isinstance(number, int) and least <= number <= most)
        require(holds, f"{name} {number} is not a whole number from {least} to {most:,}.")


def require_not_negative(options: object, *names: str) -> None:
    """Refuse options that are negative, infinite or NaN; None is allowed."""
    for name in names:
        number = getattr(options, name)
        require(number is None or 0 <= number < float("inf"), f"{name} {number} is not a number from 0 up.")


def require_positive(options: object, *names: str) -> None:
    """Refuse options that are not finite numbers above 0."""
    for name in names:
        number = getattr(options, name)
        require(0 < number < float("inf"), f"{name} {number} is not a number above 0.")


def require_blur(sigma: float) -> None:
    """Refuse a blur that is not a width in pixels, or too wide to compute."""
    require(sigma > 0, f"blur {sigma} is not a number above 0.")
    require(sigma <= _MOST_BLUR, f"blur {sigma} is above {_MOST_BLUR:g} pixels; at a few hundred, one colour is left.")
