"""Checks of the options of methods; each refuses a wrong value with one sentence."""

from auditkit.errors import BadInput

_MOST = 1_000_000  # of anything: more would exhaust memory or patience
_MOST_BLUR = 1000.0  # pixels; the kernel's reach costs memory and time
MOST_CELLS = 100  # per side of a grid


def require_whole(options: object, *names: str, least: int = 1, most: int = _MOST) -> None:
    """Refuse options that are not whole numbers from `least` to `most`; None is allowed."""
    for name in names:
        number = getattr(options, name)
        if number is not None and not (isinstance(number, int) and least <= number <= most):
            raise BadInput(f"{name} {number} is not a whole number from {least} to {most:,}.")


def require_not_negative(options: object, *names: str) -> None:
    """Refuse options that are negative, infinite or NaN; None is allowed."""
    for name in names:
        number = getattr(options, name)
        if number is not None and not 0 <= number < float("inf"):
            raise BadInput(f"{name} {number} is not a number from 0 up.")


def require_positive(options: object, *names: str) -> None:
    """Refuse options that are not finite numbers above 0."""
    for name in names:
        if not 0 < getattr(options, name) < float("inf"):
            raise BadInput(f"{name} {getattr(options, name)} is not a number above 0.")


def require_blur(sigma: float) -> None:
    """Refuse a blur that is not a width in pixels, or too wide to compute."""
    if not sigma > 0:
        raise BadInput(f"blur {sigma} is not a number above 0.")
    if sigma > _MOST_BLUR:
        raise BadInput(f"blur {sigma} is more than {_MOST_BLUR:g} pixels; at a few hundred, one colour is left.")
