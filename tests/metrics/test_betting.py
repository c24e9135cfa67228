"""The betting test: exact, in any order, wrong in at most 5 % of runs whenever one looks, and strong enough."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from auditkit.errors import BadInput
from auditkit.metrics.betting import BETS, DECISIVE, FEWEST_IMAGES, Sample, e_above, images_to_decide

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
SHARES = [Fraction(3 * number, 100) for number in range(1, 34)]  # of the largest bet


def exact_e_above(values: list[Fraction], least: Fraction, limit: Fraction) -> Fraction:
    """The e-value by its definition, in fractions."""
    capitals = []
    for share in SHARES:
        bet = share / (limit - least)
        capitals.append(math.prod(1 + bet * (value - limit) for value in values))
    return sum(capitals, Fraction()) / len(SHARES)


# Exactness ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(0, 1), (-1, 1), (-6, 6)])
@pytest.mark.parametrize("n", [1, 7, 60])
def test_e_values_are_those_of_the_definition(bounds: tuple[int, int], n: int) -> None:
    rng, (least, most) = np.random.default_rng(n), bounds
    values = [Fraction(int(number), 1000) * (most - least) + least for number in rng.integers(0, 1001, n)]
    sample = Sample(np.array(values, dtype=float), (float(least), float(most)))
    for share in (Fraction(1, 50), Fraction(1, 3), Fraction(97, 100)):
        limit = least + share * (most - least)
        assert sample.e_above(float(limit)) == pytest.approx(float(exact_e_above(values, Fraction(least), limit)))
        mirrored = exact_e_above([-value for value in values], Fraction(-most), -limit)
        assert sample.e_below(float(limit)) == pytest.approx(float(mirrored))


def test_the_order_of_images_does_not_matter() -> None:
    values = np.random.default_rng(1).beta(2, 3, 200)
    samples = [Sample(np.random.default_rng(seed).permutation(values), (0.0, 1.0)) for seed in range(5)]
    assert len({(sample.e_above(0.35), sample.e_below(0.45), sample.interval) for sample in samples}) == 1


def test_the_interval_holds_the_limits_that_neither_test_rejects() -> None:
    for seed, n in itertools.product(range(3), (5, 20, 300)):
        sample = Sample(np.random.default_rng(seed).beta(3, 2, n), (0.0, 1.0))
        assert sample.interval is not None
        low, high = sample.interval
        assert low < sample.values.mean() < high
        step = 1e-7
        assert sample.e_above(low - step) >= DECISIVE > sample.e_above(low + step)
        assert sample.e_below(high + step) >= DECISIVE > sample.e_below(high - step)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_equal_values_leave_room_for_images_that_were_not_seen(value: float) -> None:
    sample = Sample(np.full(50, value), (0.0, 1.0))
    assert sample.interval is not None
    low, high = sample.interval
    assert low <= value <= high
    assert 0.03 < high - low < 0.2
    assert (low == 0) == (value == 0)
    assert (high == 1) == (value == 1)


def test_fewer_than_five_values_have_no_interval() -> None:
    assert Sample(np.full(4, 0.5), (0.0, 1.0)).interval is None
    assert Sample(np.full(5, 0.5), (0.0, 1.0)).interval is not None


def test_an_e_value_is_a_number_however_many_images_there_are() -> None:
    sample = Sample(np.full(100_000, 0.9), (0.0, 1.0))
    assert DECISIVE < sample.e_above(0.1) < math.inf
    assert 0 < sample.e_below(0.1) < 1
    for limit in (0.0, 1.0):  # at the ends of the range a bet would be infinite
        assert 0 < sample.e_above(limit) < math.inf
        assert 0 < sample.e_below(limit) < math.inf
    assert Sample(np.zeros(100_000), (0.0, 1.0)).e_above(0.0) < DECISIVE


def test_values_outside_their_range_are_refused_except_for_rounding() -> None:
    with pytest.raises(BadInput, match=r"between 0 and 1, found 0\.5 to 1\.2"):
        Sample(np.array([0.5, 1.2]), (0.0, 1.0))
    assert Sample(np.array([0.5, 1 + 1e-9]), (0.0, 1.0)).values.max() == 1
    with pytest.raises(BadInput, match="NaN"):
        Sample(np.array([0.5, np.nan]), (0.0, 1.0))


def test_a_wrong_test_would_be_noticed() -> None:
    """Even if its range is off by 1 %."""
    values = [Fraction(number, 10) for number in range(11)]
    wrong = e_above(np.array(values, dtype=float), -0.01, 0.4)
    assert wrong != pytest.approx(float(exact_e_above(values, Fraction(), Fraction(2, 5))))


# Errors, by simulation ------------------------------------------------------------------------------------------------


def clipped(mean: float, deviation: float, least: float = -1.0) -> Draw:
    """Normal values, clipped to a range around their mean, so that it stays the mean."""
    reach = min(mean - least, 1 - mean)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        return mean + np.clip(deviation * rng.standard_normal(shape), -reach, reach)

    return draw


def rarely(usual: float, rare: float, share: float) -> Draw:
    """One value, and another on a share of the images."""
    return lambda rng, shape: np.where(rng.random(shape) < share, rare, usual)


def beta(a: float, b: float) -> Draw:
    return lambda rng, shape: rng.beta(a, b, shape)


# The mean of each lies exactly at the limit, which is as hard as a limit can be for both tests.
AT_THE_LIMIT: dict[str, tuple[Draw, float, tuple[float, float]]] = {
    "normal": (clipped(0.0, 0.2), 0.0, (-1.0, 1.0)),
    "normal, wide": (clipped(0.0, 0.6), 0.0, (-1.0, 1.0)),
    "1 with rare losses": (rarely(1.0, 0.0, 0.02), 0.98, (0.0, 1.0)),
    "1 with rarer losses": (rarely(1.0, 0.5, 0.005), 0.9975, (0.0, 1.0)),
    "near 0": (beta(0.05, 4.95), 0.01, (0.0, 1.0)),
    "bimodal": (rarely(-0.8, 0.8, 0.5), 0.0, (-1.0, 1.0)),
    "skewed": (rarely(-0.1, 0.9, 0.1), 0.0, (-1.0, 1.0)),
    "sparse gains": (rarely(0.0, 0.5, 0.02), 0.01, (-1.0, 1.0)),
    "sparse losses": (rarely(0.0, -0.5, 0.02), -0.01, (-1.0, 1.0)),
    "log-odds": (clipped(0.0, 2.0, -6.0), 0.0, (-6.0, 6.0)),
}


def running_e_values(values: np.ndarray, least: float, limit: float) -> np.ndarray:
    """E-values [runs, images] after each image of runs [runs, images]."""
    gains = (values - least) / (limit - least) - 1
    total = np.zeros(values.shape)
    for share in SHARES:
        total += np.exp(np.cumsum(np.log1p(float(share) * gains), axis=1))
    return total / len(SHARES)


def ever_decided(e_values: np.ndarray) -> np.ndarray:
    """Whether each run decides at any number of images, looking after every one."""
    return np.asarray((e_values[:, FEWEST_IMAGES - 1 :] >= DECISIVE).any(axis=1))


def most_allowed(runs: int) -> int:
    """The most errors in so many runs that 5 % explain in 999 of 1,000 simulations."""
    return int(stats.binom.ppf(0.999, runs, 0.05))


def check_errors(name: str, runs: int, images: int) -> None:
    draw, limit, (least, most) = AT_THE_LIMIT[name]
    values = draw(np.random.default_rng(17), (runs, images))
    e_values = running_e_values(values, least, limit)
    assert e_values[0, -1] == pytest.approx(Sample(values[0], (least, most)).e_above(limit))
    assert ever_decided(e_values).sum() <= most_allowed(runs)
    assert ever_decided(running_e_values(-values, -most, -limit)).sum() <= most_allowed(runs)


@pytest.mark.parametrize("name", AT_THE_LIMIT)
def test_errors_stay_below_5_percent_when_one_looks_after_every_image(name: str) -> None:
    check_errors(name, 400, 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_THE_LIMIT)
def test_errors_stay_below_5_percent_up_to_1000_images(name: str) -> None:
    check_errors(name, 4000, 1000)


def test_the_simulation_notices_a_test_that_errs() -> None:
    """A bootstrap or t interval at every look errs far more often than 5 %."""
    draw, limit, _ = AT_THE_LIMIT["normal"]
    values, n = draw(np.random.default_rng(17), (400, 300)), np.arange(1, 301)
    mean = np.cumsum(values, axis=1) / n
    deviation = np.sqrt(np.maximum(np.cumsum(values**2, axis=1) / n - mean**2, 1e-12))
    passes = mean - 1.645 * deviation / np.sqrt(n) > limit
    assert passes[:, FEWEST_IMAGES - 1 :].any(axis=1).sum() > 3 * most_allowed(400)


# Power ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("margin", "deviation", "expected"), [(0.10, 0.2, 54), (0.15, 0.3, 39)])
def test_so_many_images_decide_in_half_of_the_runs(margin: float, deviation: float, expected: int) -> None:
    values = clipped(margin, deviation)(np.random.default_rng(3), (2000, 300))
    decided = running_e_values(values, -1.0, 0.0) >= DECISIVE
    first = np.where(decided.any(axis=1), decided.argmax(axis=1) + 1, 301)
    assert abs(np.median(first) - expected) <= 4


def test_a_small_margin_is_seldom_decided_below_100_images() -> None:
    values = clipped(0.05, 0.2)(np.random.default_rng(3), (1000, 100))
    assert 0.1 < (running_e_values(values, -1.0, 0.0) >= DECISIVE).any(axis=1).mean() < 0.5


# The whole verdict ----------------------------------------------------------------------------------------------------


def whole_verdicts(rng: np.random.Generator, means: list[float], runs: int, images: int) -> dict[str, Any]:
    """How many runs ever pass and ever fail, with a margin over 0 for each mean, all on the same images."""
    shared = 0.2 * rng.standard_normal((runs, images))
    holds, fails = np.full((runs, images), np.inf), np.zeros((runs, images))
    for mean in means:
        values = mean + np.clip(shared + 0.2 * rng.standard_normal((runs, images)), -0.9, 0.9)
        holds = np.minimum(holds, running_e_values(values, -1.0, 0.0))
        fails += running_e_values(-values, -1.0, 0.0) / len(means)
    return {"pass": int(ever_decided(holds).sum()), "fail": int(ever_decided(fails).sum())}


def test_many_checks_and_controls_do_not_add_errors() -> None:
    runs = 400
    on_the_limit = whole_verdicts(np.random.default_rng(5), [0.0] * 9, runs, 250)
    assert on_the_limit["pass"] <= most_allowed(runs)
    assert on_the_limit["fail"] <= most_allowed(runs)
    one_misses = whole_verdicts(np.random.default_rng(6), [0.1] * 8 + [0.0], runs, 250)
    assert one_misses["pass"] <= most_allowed(runs)
    assert whole_verdicts(np.random.default_rng(7), [0.1] * 8 + [-0.1], runs, 250)["fail"] > 0.9 * runs


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 11, 40])
def test_many_checks_and_controls_do_not_add_errors_up_to_1000_images(count: int) -> None:
    runs = 1000
    found = whole_verdicts(np.random.default_rng(count), [0.0] * count, runs, 1000)
    assert max(found.values()) <= most_allowed(runs)


# How many more images -------------------------------------------------------------------------------------------------


def _decided_at(values: np.ndarray, limit: float) -> int:
    """After how many images the test first decides, of those that are not decided at 20."""
    for count in range(FEWEST_IMAGES, len(values)):
        sample = Sample(values[:count], (-1.0, 1.0))
        if max(sample.e_above(limit), sample.e_below(limit)) >= DECISIVE:
            return count
    return len(values)


@pytest.mark.parametrize("mean", [0.1, -0.12])
def test_the_estimate_is_right_within_a_factor_of_two(mean: float) -> None:
    """In the middle of many samples of 20 images that do not decide by themselves."""
    rng, estimates, actual = np.random.default_rng(4), list[float](), list[int]()
    while len(actual) < 25:
        values = np.clip(rng.normal(mean, 0.2, 400), -1, 1)
        number = _decided_at(values, 0.0)
        if number > FEWEST_IMAGES:
            actual.append(number)
            estimates.append(images_to_decide(Sample(values[:FEWEST_IMAGES], (-1.0, 1.0)), 0.0, 0.0) or math.inf)
    assert 0.5 < np.median(estimates) / np.median(actual) < 2


def test_the_estimate_is_the_same_every_time_and_in_any_order() -> None:
    values = np.random.default_rng(2).normal(0.05, 0.2, 40).clip(-1, 1)
    estimates = {images_to_decide(Sample(order, (-1.0, 1.0)), 0.0, 0.0) for order in (values, values[::-1], values)}
    assert len(estimates) == 1
    assert None not in estimates


def test_nothing_is_estimated_where_ten_times_as_many_images_do_not_decide() -> None:
    values = np.tile([0.2, -0.2], 15)
    assert images_to_decide(Sample(values, (-1.0, 1.0)), -0.01, 0.01) is None


@pytest.mark.parametrize("mean", [0.0, 0.04, 0.08, -0.08])
def test_images_to_decide_are_those_of_all_e_values(mean: float) -> None:
    """Values in [-1, 1] and a limit of 0, so that an image multiplies the capital of a bet by 1 + bet * value."""
    values, rng = np.sort(np.clip(np.random.default_rng(3).normal(mean, 0.2, 30), -1, 1)), np.random.default_rng(0)
    numbers = list[float]()
    for order in [rng.integers(30, size=270) for _ in range(41)]:
        capitals = [np.cumprod(1 + BETS[:, None] * side * np.concatenate([values, values[order]]), axis=1).mean(axis=0)
                    for side in (1, -1)]  # fmt: skip
        decided = 1 + np.flatnonzero(np.max(capitals, axis=0) >= DECISIVE)
        numbers.append(min(decided[decided > 30], default=np.inf))
    assert (images_to_decide(Sample(values, (-1.0, 1.0)), 0.0, 0.0) or np.inf) == np.median(numbers)
