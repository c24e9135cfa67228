"""Whether a gradient is right: along short lines through noise, its integral must be the change of the scores.

    f(x + d) - f(x)  =  ∫ gradient(x + td) · d dt

The integral is taken at many points, so that the kinks of a Relu network, which upset a plain difference by 0.1 % and
more, nearly cancel. A wrong rule shifts all lines in the same way; kinks and rounding shift each differently. So the
median over lines is judged, and lines are added until it tells an error of 0.1 % from none. Where no number of lines
does, a gradient passes whose median is known well enough; one that is wrong in another way on each line is not.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import NoGradient

# Scores [n, classes] and gradients [n, ...] with each of n moves added to what is differentiated by.
At = Callable[[Array], tuple[Array, Array]]

POINTS = 14
# Length of the line as a share of that of x: short enough for kinks, long enough for float32. Longer ones are for
# scores that are saturated.
STEPS = (1e-4, 1e-3, 1e-2)
_RESOLVED = 3e-4  # a change of scores that float32 holds to 0.03 %, as a share of the scores
LIMIT = 5e-4  # half of the error that must be found
_SURE = 3.3  # standard errors
_MOST_DOUBT = 1e-2  # right gradients of some 290 nets, real ones among them, left 0.16 % and less
_FEWEST, _MOST = 4, 16  # lines


@dataclass(frozen=True)
class Check:
    """How far a gradient is from the change of scores, and how well that is known."""

    error: float  # relative, the median over lines
    uncertainty: float  # of that median, one standard error
    lines: int

    @property
    def doubt(self) -> float:
        """The largest error that kinks and rounding alone may have caused."""
        return _SURE * self.uncertainty

    @property
    def passed(self) -> bool:
        """Whether the error is none, as far as can be told, and whether enough can be told."""
        return self.error <= max(LIMIT, self.doubt) and self.doubt <= _MOST_DOUBT

    def to_json(self) -> dict[str, object]:
        """As it is recorded in the file."""
        return asdict(self) | {"passed": self.passed}


def check(errors: Iterable[float | None]) -> Check:
    """The verdict over as many lines as it takes; None is a line along which the scores hardly change."""
    measured: list[float] = []
    for error in itertools.islice(errors, _MOST):
        measured += [] if error is None else [error]
        if len(measured) >= _FEWEST and (result := _judged(measured)).passed and result.doubt <= LIMIT:
            return result
    if len(measured) < _FEWEST:
        raise NoGradient("the gradient cannot be checked: on noise images the scores hardly change")
    return _judged(measured)


def _judged(errors: list[float]) -> Check:
    """The median, and its standard error from the median distance to it."""
    middle = float(np.median(errors))
    spread = 1.48 * float(np.median(np.abs(np.array(errors) - middle)))
    return Check(abs(middle), 1.25 * spread / len(errors) ** 0.5, len(errors))


def line_error(at: At, shape: tuple[int, ...], length: float, seed: Array, rng: np.random.Generator) -> float | None:
    """By how much the integral of the gradient along a line differs from the change of seed · scores."""
    _, first = at(np.zeros((1, *shape)))
    # The line follows the gradient, but each number with a weight of its own, so that no part can be wrong unseen.
    direction = first[0].astype(np.float64) * rng.uniform(0, 2, shape)
    direction *= length / max(float(np.linalg.norm(direction)), 1e-30)
    points, weights = np.polynomial.legendre.leggauss(POINTS)
    points = np.array([0.0, *(points + 1) / 2, 1.0]).reshape(-1, *[1] * len(shape))
    for step in STEPS:
        scores, gradients = at(points * step * direction)
        values = (scores.astype(np.float64) * seed).sum(axis=1)
        if abs(values[-1] - values[0]) > _RESOLVED * np.abs(scores * seed).max():
            slopes = step * (gradients.astype(np.float64) * direction).reshape(POINTS + 2, -1).sum(axis=1)
            return float(weights @ slopes[1:-1] / 2 / (values[-1] - values[0]) - 1)
    return None
