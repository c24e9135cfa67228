"""How often the verdict of `standard` is wrong if one looks after every image and stops when it pleases.

    python -m benchmarks.calibration.simulation [--runs 1000] [--images 1000]

Values of images are drawn for every test of the policy at once, and depend on each other. A false pass: the mean of one
test lies at its limit, which is not kept, and all others are far above theirs. A false fail: the means of all tests lie
at their limits, which are just kept. Prints one JSON object: the share of runs that ever come to the wrong verdict from
20 images up, with exact 95 % intervals.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import binomtest

from auditkit.arrays import Array
from auditkit.metrics.betting import BETS, DECISIVE, FEWEST_IMAGES
from auditkit.report.markdown import table
from auditkit.verdict.policy_file import read_policy
from benchmarks.reporting import origin

SEED = 2022
SHARED = 0.7  # the probability that a test has the value of the first one on an image
PART = 100  # runs at once
LOOKS = (20, 50, 100, 300, 1000)
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def _sparse(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(rng.choice([-1.0, 0.0, 1.0], shape, p=[0.02, 0.96, 0.02]))


def _saturated(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Mostly 0.1, rarely at the lower end."""
    return np.where(rng.random(shape) < 1 / 11, -1.0, 0.1)


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(0.0, 0.4, shape).clip(-1, 1),
    "saturated": _saturated,
    "saturated, mirrored": lambda rng, shape: -_saturated(rng, shape),
    "near zero": lambda rng, shape: rng.normal(0.0, 0.01, shape).clip(-1, 1),
    "bimodal": lambda rng, shape: rng.choice([-0.8, 0.8], shape),
    "sparse": _sparse,
}  # in [-1, 1] with a mean of 0, where the limit is


def number_of_tests(policy: str) -> int:
    """How many tests can fail a verdict by this policy, with one bundle and one infill."""
    tested = (check for check in read_policy(policy).checks if check.metric not in ("flags", "runtime_error"))
    return sum(max(len(check.over), 1) for check in tested)


def drawn(draw: Draw, runs: int, images: int, tests: int, rng: np.random.Generator) -> Array:
    """Values [runs, images, tests] that are often the same on an image."""
    values = draw(rng, (runs, images, tests))
    same = rng.random(values.shape) < SHARED
    return np.where(same, values[..., :1], values)


def e_values(values: Array) -> Array:
    """The e-values [runs, images, tests] for a mean above 0, after every image."""
    capital = np.zeros(values.shape)
    for bet in BETS:
        capital += np.exp(np.cumsum(np.log1p(bet * values), axis=1))
    return np.asarray(capital / len(BETS))


def simulated(draw: Draw, runs: int, images: int, tests: int) -> dict[str, Any]:
    """The share of runs that were wrong by each look."""
    wrong: dict[str, list[Array]] = {"false pass": [], "false fail": []}
    for number in range(runs // PART):
        values = drawn(draw, PART, images, tests, np.random.default_rng([SEED, number]))
        wrong["false pass"].append(e_values(values[..., :1])[..., 0])
        wrong["false fail"].append(e_values(-values).mean(axis=2))
    found: dict[str, Any] = {}
    for name, parts in wrong.items():
        ever = np.maximum.accumulate(np.concatenate(parts)[:, FEWEST_IMAGES - 1 :] >= DECISIVE, axis=1)
        found[name] = {str(look): _rate(ever[:, look - FEWEST_IMAGES]) for look in LOOKS if look <= images}
    return found


def _rate(wrong: Array) -> dict[str, float]:
    ends = binomtest(int(wrong.sum()), len(wrong)).proportion_ci(method="exact")
    return {"share": float(wrong.mean()), "low": float(ends.low), "high": float(ends.high)}


def simulation_table(results: dict[str, Any]) -> str:
    """The shares by distribution and number of images."""
    looks = list(next(iter(results["distributions"].values()))["false pass"])
    lines = [[f"{name}, {kind}", *(f"{rates[look]['share']:.1%}" for look in looks)]
             for name, kinds in results["distributions"].items() for kind, rates in kinds.items()]  # fmt: skip
    about = (
        f"{results['samples']:,} runs of {results['tests']} tests; the share that came to the wrong verdict at any "
        "time up to so many images. At most 5 % is promised."
    )
    return f"{about}\n\n{table(['values', *(f'{look} images' for look in looks)], lines)}"


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--policy", default="standard")
    asked = parser.parse_args()
    tests = number_of_tests(asked.policy)
    found = {name: simulated(draw, asked.runs, asked.images, tests) for name, draw in DISTRIBUTIONS.items()}
    record = {"samples": asked.runs, "tests": tests, "policy": asked.policy, "distributions": found}
    print(json.dumps({**origin("benchmarks.calibration.simulation"), **record}, indent=1))


if __name__ == "__main__":
    main()
