"""Reliability of metrics: Krippendorff's alpha against published values and plain loops, Spearman against scipy."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from auditkit.errors import BadInput
from auditkit.metrics.reliability import (
    inter_rater,
    internal_consistency,
    krippendorff_alpha,
    mean_off_diagonal,
    spearman,
)

_ = math.nan
# Four observers, twelve units: the example of Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011).
PUBLISHED = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, _, _, _],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, _, 3],
    [_, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, _],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, _],
]


def test_the_published_example() -> None:
    assert krippendorff_alpha(PUBLISHED) == pytest.approx(0.815, abs=5e-4)


def test_three_raters_by_hand() -> None:
    """Two images rank three methods alike, the third swaps the first two: alpha is 19/27.

    Squared differences over ordered pairs within the units are 4, 4 and 0; each unit has 3 values, so the observed
    disagreement is (4/2 + 4/2) / 9 = 4/9. The nine ranks are 1, 2, 3 three times each: 9 pairs each at distance 1
    (1-2, 2-3) and 9 at distance 2, so the expected one is 2 (9 + 9 + 36) / (9 x 8) = 3/2; their ratio is 8/27.
    """
    assert krippendorff_alpha([[1, 2, 3], [1, 2, 3], [2, 1, 3]]) == pytest.approx(19 / 27)
    assert inter_rater([[0.1, 0.2, 0.9], [10, 30, 31], [0.5, 0.4, 0.6]]) == pytest.approx(19 / 27)


def test_agreement_is_one_and_two_that_contradict_are_below_chance() -> None:
    assert inter_rater([[1, 2, 3], [10, 20, 30], [0, 5, 6]]) == 1
    assert inter_rater([[1, 2, 3], [3, 2, 1]]) < 0


def test_chance_is_zero() -> None:
    scores = np.random.default_rng(0).random((2000, 5))
    assert inter_rater(scores) == pytest.approx(0, abs=0.01)


def test_no_differences_at_all_is_not_a_figure() -> None:
    assert math.isnan(krippendorff_alpha([[0.1, 0.1], [0.1, 0.1]]))
    assert math.isnan(inter_rater(np.full((4, 3), 0.1)))


def _looped_alpha(table: list[list[float]]) -> float:
    """From the coincidence matrix, as the textbook has it."""
    coincidences: Counter[tuple[float, float]] = Counter()
    for unit in zip(*table, strict=True):
        values = [value for value in unit if not math.isnan(value)]
        for first, second in itertools.permutations(range(len(values)), 2):
            coincidences[values[first], values[second]] += 1 / (len(values) - 1)  # type: ignore[assignment]
    totals: Counter[float] = Counter()
    for (first, _second), weight in coincidences.items():
        totals[first] += weight  # type: ignore[assignment]
    count = sum(totals.values())

    def distance(c: float, k: float) -> float:
        between = sum(weight for value, weight in totals.items() if min(c, k) <= value <= max(c, k))
        return float((between - (totals[c] + totals[k]) / 2) ** 2)

    observed = sum(weight * distance(c, k) for (c, k), weight in coincidences.items())
    expected = sum(totals[c] * totals[k] * distance(c, k) for c in totals for k in totals)
    return 1 - (count - 1) * observed / expected if expected else math.nan


ratings = st.integers(2, 5).flatmap(
    lambda raters: st.lists(
        st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.5, _]), min_size=raters, max_size=raters), min_size=1, max_size=6
    )
)


@settings(deadline=None)
@given(ratings)
def test_alpha_agrees_with_the_coincidence_matrix(units: list[list[float]]) -> None:
    table = [list(rater) for rater in zip(*units, strict=True)]
    if all(sum(not math.isnan(value) for value in unit) < 2 for unit in units):
        with pytest.raises(BadInput, match="two ratings"):
            krippendorff_alpha(table)
        return
    assert krippendorff_alpha(table) == pytest.approx(_looped_alpha(table), nan_ok=True, abs=1e-9)


def test_a_transposed_table_is_seen() -> None:
    """Raters for units is the mistake to make here; the published example tells them apart."""
    transposed = np.array(PUBLISHED).T
    assert krippendorff_alpha(transposed) != pytest.approx(0.815, abs=0.1)


def test_spearman_is_scipys_with_ties() -> None:
    table = np.random.default_rng(1).integers(0, 6, size=(40, 4)).astype(float)
    assert spearman(table) == pytest.approx(stats.spearmanr(table).statistic)


def test_a_column_without_differences_has_no_correlation() -> None:
    table = np.array([[1.0, 5.0, 3.0], [2.0, 5.0, 1.0], [3.0, 5.0, 2.0]])
    found = spearman(table)
    assert np.isnan(found[1]).all()
    assert np.isnan(found[:, 1]).all()
    assert found[0, 2] == pytest.approx(-0.5)
    assert math.isnan(mean_off_diagonal(found))


def test_metrics_that_agree_correlate_whichever_way_they_point() -> None:
    """Insertion up and deletion down both mean better."""
    insertion = np.array([0.1, 0.5, 0.7, 0.9])
    found = internal_consistency(np.stack([insertion, 1 - insertion**2], axis=1), [True, False])
    assert found == pytest.approx(np.ones((2, 2)))
    assert mean_off_diagonal(found) == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: inter_rater([[1, 2], [2, 1]]), "at least 3 methods"),
        (lambda: inter_rater([[1, 2, _], [2, 1, 3]]), "1 of 6"),
        (lambda: inter_rater([[1, 2, 3]]), "two rows"),
        (lambda: krippendorff_alpha([[1, _], [_, 1]]), "two ratings"),
        (lambda: krippendorff_alpha([[1, math.inf], [1, 2]]), "infinite"),
        (lambda: internal_consistency([[1, 2], [2, 1]], [True]), "each of the 2 metrics"),
        (lambda: mean_off_diagonal([[1.0]]), "square"),
    ],
)
def test_what_has_no_reliability_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()
