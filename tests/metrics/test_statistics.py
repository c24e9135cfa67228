"""Bootstrap intervals: they hold as often as they say, over images, and come out the same every time."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr, ndtri, stdtrit

from auditkit.errors import BadInput
from auditkit.metrics import statistics
from auditkit.metrics.statistics import METHODS, mean_interval, paired_difference, share_interval
from auditkit.metrics.values import Note

DRAWS = 1000
Ends = dict[str, tuple[np.ndarray, np.ndarray]]


def _many_intervals(samples: np.ndarray, seed: int) -> Ends:
    """95 % intervals of each row by every method: a second implementation, all samples at once by a matrix product."""
    count, n = samples.shape
    drawn = np.random.default_rng(seed).integers(0, n, size=(DRAWS, n))
    times_drawn = np.stack([np.bincount(row, minlength=n) for row in drawn])
    means = np.sort(samples @ times_drawn.T / n, axis=1)
    value = samples.mean(axis=1, keepdims=True)
    below = (means < value - 1e-12).mean(axis=1) / 2 + (means <= value + 1e-12).mean(axis=1) / 2
    bias = ndtri(below)[:, None]
    gap = samples - value  # for a mean, leaving one out moves it in proportion
    acceleration = ((gap**3).sum(axis=1) / (6 * (gap**2).sum(axis=1) ** 1.5))[:, None]
    z = np.array([[ndtri(0.025), ndtri(0.975)]])
    levels = {
        "percentile": np.full((count, 2), [0.025, 0.975]),
        "bca": ndtr(bias + (bias + z) / (1 - acceleration * (bias + z))),
        "expanded": np.tile(ndtr(stdtrit(n - 1, [0.025, 0.975]) * np.sqrt(n / (n - 1))), (count, 1)),
    }
    place = {method: level * (DRAWS - 1) for method, level in levels.items()}
    ends = {}
    for method, at in place.items():
        lower = np.minimum(at.astype(int), DRAWS - 2)
        step = np.take_along_axis(means, lower + 1, axis=1) - np.take_along_axis(means, lower, axis=1)
        found = np.take_along_axis(means, lower, axis=1) + (at - lower) * step
        ends[method] = (found[:, 0], found[:, 1])
    return ends


SOURCES: dict[str, tuple[Callable[[np.random.Generator, tuple[int, int]], np.ndarray], float]] = {
    "normal": (lambda chance, size: chance.normal(0.3, 0.1, size), 0.3),
    "skewed": (lambda chance, size: chance.beta(0.5, 1.5, size), 0.25),
    "near one": (lambda chance, size: chance.beta(5, 1, size), 5 / 6),
}


@pytest.mark.parametrize("n", [100, 400])
@pytest.mark.parametrize("source", SOURCES)
def test_a_95_percent_interval_holds_95_times_in_100(source: str, n: int) -> None:
    """4,000 samples with a known mean, eight seeds; a few of them go through the function itself, to the same ends."""
    draw, truth = SOURCES[source]
    chance = np.random.default_rng(n)
    held: dict[str, list[float]] = {method: [] for method in METHODS}
    for seed in range(8):
        samples = draw(chance, (500, n))
        for method, (low, high) in _many_intervals(samples, seed).items():
            held[method].append(float(((low <= truth) & (truth <= high)).mean()))
            own = mean_interval(samples[seed], method=method, draws=DRAWS, seed=seed)  # type: ignore[arg-type]
            assert (own.low, own.high) == pytest.approx((low[seed], high[seed]), rel=1e-9)
    for method, shares in held.items():
        assert 0.93 <= np.mean(shares) <= 0.97, method


def test_few_images_need_the_expanded_interval() -> None:
    """With 10 images the percentiles hold some 90 times in 100, and the expanded ones come near what they say."""
    samples = np.random.default_rng(3).normal(size=(4000, 10))
    held = {m: ((low <= 0) & (high >= 0)).mean() for m, (low, high) in _many_intervals(samples, 1).items()}
    assert held["percentile"] < 0.92
    assert 0.93 <= held["expanded"] <= 0.97


def _clustered(chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """40 images of 1 to 9 rows, all of an image near a value of its own; the true mean is 0."""
    index = np.repeat(np.arange(40), chance.integers(1, 10, size=40))
    return (chance.normal(size=40)[index] + 0.1 * chance.normal(size=index.size)), index


def test_rows_of_one_image_are_resampled_together() -> None:
    """Rows taken for independent give an interval that fails half of the time: the test sees that mistake."""
    chance = np.random.default_rng(11)
    together, apart = [], []
    for _ in range(400):
        values, index = _clustered(chance)
        order = chance.permutation(len(values))
        for found, image_index in ((together, index[order]), (apart, None)):
            interval = mean_interval(values[order], image_index, draws=400)
            assert interval.n == (40 if image_index is not None else len(values))
            found.append(interval.low <= 0 <= interval.high)  # type: ignore[operator]
    assert np.mean(together) > 0.9
    assert np.mean(apart) < 0.7


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000))
def test_resampled_means_agree_with_a_plain_loop(seed: int) -> None:
    """Drawing images by hand, with all of their rows, gives the same means."""
    chance = np.random.default_rng(seed)
    index = chance.permutation(np.concatenate([np.arange(5), chance.integers(0, 7, size=9)]))
    values = chance.random(14)
    rows = [values[index == image] for image in np.unique(index)]
    drawn = np.random.default_rng(seed).integers(0, len(rows), size=(100, len(rows)))
    means = [float(np.mean(np.concatenate([rows[image] for image in draw]))) for draw in drawn]
    found = mean_interval(values, index, method="percentile", draws=100, seed=seed)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    assert found.value == pytest.approx(values.mean())


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_bca_and_percentile_are_near_scipy(confidence: float) -> None:
    """scipy's own bootstrap, with other draws, ends within a few percent of the width."""
    values = np.random.default_rng(2).gamma(1.0, size=80)
    for method, name in (("percentile", "percentile"), ("bca", "BCa")):
        theirs = stats.bootstrap(
            (values,), np.mean, n_resamples=20_000, method=name, confidence_level=confidence, rng=1
        ).confidence_interval
        ours = mean_interval(values, method=method, confidence=confidence, draws=20_000)  # type: ignore[arg-type]
        assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.04 * (theirs.high - theirs.low))


def test_the_same_seed_gives_the_same_ends_whatever_fits_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random(30)
    first = mean_interval(values, seed=4)
    monkeypatch.setattr(statistics, "_CHUNK", 100)
    monkeypatch.setattr(statistics, "_MOST_KEPT", 0)
    assert mean_interval(values, seed=4) == first
    assert mean_interval(values, seed=5) != first


@pytest.mark.parametrize("method", METHODS)
def test_no_spread_no_width_no_warning(method: statistics.Method) -> None:
    for values, index in (([0.1] * 7, None), ([0.0, 1.0] * 5, [3, 3, 8, 8, 9, 9, 1, 1, 4, 4]), ([0.0] * 5, None)):
        found = mean_interval(values, index, method=method)
        assert found.low == found.value == found.high
        assert found.note == Note("no-spread")


@pytest.mark.parametrize(("value", "n"), [(1.0, 1000), (1.0, 5), (0.3, 50), (0.0, 5)])
def test_equal_values_leave_room_for_others_within_bounds(value: float, n: int) -> None:
    share = 1 - 0.025 ** (1 / n)
    found = mean_interval([value] * n, bounds=(0.0, 1.0))
    assert found.value == value
    assert (found.low, found.high) == pytest.approx((value * (1 - share), value + share * (1 - value)))
    assert found.note is not None
    assert found.note.kind == "equal-values"
    apart = paired_difference([0.5] * n, [0.5 - value] * n, bounds=(-1.0, 1.0))
    assert (apart.low, apart.high) == pytest.approx((value - share * (1 + value), value + share * (1 - value)))


def test_an_interval_of_equal_images_holds_as_often_as_it_says() -> None:
    """Of samples that show no failure at all, the interval misses the true mean in 2.5 of 100 at most."""
    rng = np.random.default_rng(0)
    for n, failures in ((20, 0.17), (100, 0.0363)):
        low = mean_interval(np.ones(n), bounds=(0.0, 1.0)).low
        assert low is not None
        missed = np.mean((rng.random((20_000, n)) >= failures).all(axis=1)) if 1 - failures < low else 0.0
        assert 0.02 < missed <= 0.0275


@pytest.mark.parametrize("method", METHODS)
def test_four_images_have_a_mean_and_no_interval(method: statistics.Method) -> None:
    rows, index = [0.1, 0.3, 0.2, 0.6, 0.6, 0.6], [5, 5, 1, 2, 9, 9]
    for values, images, n in (([0.4], None, 1), ([0.2, 0.6], [5, 5], 1), (rows, index, 4), ([0.4] * 4, None, 4)):
        found = mean_interval(values, images, method=method, bounds=(0.0, 1.0))
        assert (found.value, found.low, found.high, found.n) == (pytest.approx(0.4), None, None, n)
        assert found.note == Note("few-images")


@pytest.mark.parametrize("method", METHODS)
def test_five_images_have_an_interval(method: statistics.Method) -> None:
    rows, index = [0.1, 0.3, 0.2, 0.6, 0.6, 0.7], [5, 5, 1, 2, 9, 8]
    for values, images in ((rows[1:], None), (rows, index)):
        found = mean_interval(values, images, method=method)
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.value < found.high
        assert (found.n, found.note) == (5, None)


def test_a_difference_of_four_pairs_has_no_interval() -> None:
    first, second = [0.9, 0.8, 0.9, 0.7, 0.8], [0.1, 0.2, 0.1, 0.1, 0.2]
    few, enough = paired_difference(first[:4], second[:4]), paired_difference(first, second)
    assert (few.value, few.low, few.high) == (pytest.approx(0.7), None, None)
    assert few.note == Note("few-images")
    assert enough.low is not None
    assert enough.low > 0


@pytest.mark.parametrize("hits", range(5))
def test_a_share_of_four_images_has_no_interval(hits: int) -> None:
    few, enough = share_interval(hits, 4), share_interval(hits, 5)
    assert (few.value, few.low, few.high, few.n) == (hits / 4, None, None, 4)
    assert few.note == Note("few-images")
    theirs = stats.binomtest(hits, 5).proportion_ci(method="wilson")
    assert (enough.low, enough.high) == pytest.approx(tuple(theirs), abs=1e-12)
    assert enough.note is None


@pytest.mark.parametrize("method", METHODS)
def test_extreme_samples_have_ordered_ends(method: statistics.Method) -> None:
    for values in (
        [0.0] * 4 + [1.0], [0.0] * 999 + [1.0], [1e-200, 2e-200, 3e-200, 5e-200, 9e-200],
        [1e300, -1e300, 0.0, 1e300, -1e300],
    ):  # fmt: skip
        found = mean_interval(values, method=method, confidence=0.999)
        assert found.low is not None
        assert found.high is not None
        assert min(values) <= found.low <= found.high <= max(values)


def test_a_paired_difference_is_narrower_than_its_parts() -> None:
    chance = np.random.default_rng(6)
    hard = chance.random(200)
    first, second = hard + 0.05 + 0.01 * chance.normal(size=200), hard + 0.01 * chance.normal(size=200)
    found, alone = paired_difference(first, second), mean_interval(first)
    assert found.value == pytest.approx(0.05, abs=0.003)
    assert 0 < found.low < found.high < alone.high - alone.low  # type: ignore[operator]
    swapped = paired_difference(second, first, method="percentile")
    straight = paired_difference(first, second, method="percentile")
    assert (swapped.low, swapped.high) == pytest.approx((-straight.high, -straight.low))  # type: ignore[operator]


def test_a_share_has_a_width_even_at_its_ends() -> None:
    """Wilson's interval; 20 hits of 20 leave 16 % of doubt, where the bootstrap would see none."""
    assert share_interval(20, 20).low == pytest.approx(20 / (20 + ndtri(0.975) ** 2))
    assert (share_interval(20, 20).high, share_interval(0, 20).low) == (1.0, 0.0)
    for hits, n in ((3, 10), (77, 100)):
        theirs = stats.binomtest(hits, n).proportion_ci(method="wilson")
        assert (share_interval(hits, n).low, share_interval(hits, n).high) == pytest.approx(tuple(theirs))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mean_interval([0.1, np.nan, np.inf]), "2 of 3"),
        (lambda: mean_interval([]), "at least one row"),
        (lambda: mean_interval([0.1, 0.2], [0]), "image_index"),
        (lambda: mean_interval([0.1, 0.2], confidence=95), "as in 0.95"),
        (lambda: mean_interval([0.1, 0.2], method="normal"), "percentile, bca, expanded"),
        (lambda: mean_interval([0.1, 0.2], draws=10), "at least 100"),
        (lambda: paired_difference([0.1, 0.2], [0.1]), "2 and 1"),
        (lambda: share_interval(3, 2), "3 of 2"),
    ],
)
def test_what_has_no_interval_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()


@pytest.mark.parametrize("method", statistics.METHODS)
def test_very_many_images_have_the_ends_that_resampling_would_give(
    method: statistics.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    values, images = rng.beta(0.5, 1.5, 18_000), rng.integers(0, 6000, 18_000)
    normal = statistics.mean_interval(values, images, method=method)
    monkeypatch.setattr(statistics, "_MOST_RESAMPLED", 10_000)
    drawn = statistics.mean_interval(values, images, method=method)
    assert normal.value == drawn.value
    assert drawn.low is not None
    assert drawn.high is not None
    width = drawn.high - drawn.low
    assert normal.low == pytest.approx(drawn.low, abs=0.05 * width)
    assert normal.high == pytest.approx(drawn.high, abs=0.05 * width)
