"""The cross-label matrix: areas of log-odds, margins of matrices that were made up, and why there may be none."""

from typing import Any

import numpy as np
import pytest

from auditkit.arrays import Array
from auditkit.metrics import label_specificity
from auditkit.metrics.curves import area, log_odds, log_odds_areas, uniform_counts
from auditkit.metrics.table import METRICS
from auditkit.metrics.values import NotAssessed, Note, Values
from auditkit.runs.evaluation.settings import NO_MAP
from tests.metrics.test_per_image import Row, group
from tests.support import synthetic_runs

# Areas ----------------------------------------------------------------------------------------------------------------


def together(curves: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Areas and errors of curves, each of counts and log-odds, from one call."""
    number = np.repeat(np.arange(len(curves)), [len(counts) for counts, _ in curves])
    return log_odds_areas(number, *(np.concatenate(parts) for parts in zip(*curves, strict=True)))


def walks(curves: int, pixels: int, seed: int = 0) -> Array:
    """Log-odds [curves, pixels + 1, 2] that wander."""
    return np.cumsum(np.random.default_rng(seed).normal(0, 0.2, (curves, pixels + 1, 2)), axis=1)


def sampled(odds: Array, steps: int) -> tuple[Array, Array, Array]:
    """True areas, areas at a number of steps, and the errors that are claimed."""
    counts = uniform_counts(odds.shape[1] - 1, steps)
    areas, errors = together([(counts, curve[counts]) for curve in odds])
    return odds[:, 1:].mean(axis=1), areas, errors


def test_areas_are_those_of_single_curves() -> None:
    rng, curves = np.random.default_rng(0), []
    for _ in range(5):
        counts = np.union1d(rng.choice(40, 6), (0, 40))
        curves.append((counts, rng.standard_normal((len(counts), 3))))
    expected = [area(counts, odds.T) for counts, odds in curves]
    np.testing.assert_allclose(together(curves)[0], expected)


@pytest.mark.parametrize("steps", [8, 16, 32, 64])
def test_errors_hold_and_are_not_idle(steps: int) -> None:
    exact, areas, errors = sampled(walks(400, 1024), steps)
    off = np.abs(areas - exact)
    assert (off <= errors).mean() >= 0.93
    assert (off <= errors / 3).mean() < 0.93


def test_every_count_leaves_no_error_and_two_ends_tell_none() -> None:
    odds = walks(3, 6)
    exact, areas, errors = sampled(odds, 6)
    np.testing.assert_allclose(areas, exact)
    assert not errors.any()
    assert np.isnan(sampled(odds, 1)[2]).all()


def test_log_odds_tell_sure_predictions_apart() -> None:
    """Where p rounds to 1 in half precision, the other labels' probabilities still differ."""
    prob, rest = np.ones(2, np.float16), np.array([1e-4, 1e-6], np.float16)
    odds = log_odds(prob.astype(np.float64), rest.astype(np.float64))
    assert odds == pytest.approx([9.21, 13.8], rel=0.01)
    assert np.isfinite(log_odds(np.array([0.0, 1.0]), np.array([1.0, 0.0]))).all()


# Margins --------------------------------------------------------------------------------------------------------------


def rows_of(matrices: dict[int, Any], predicted: int = 0) -> list[Row]:
    """Rows of images by number; S[a, b] is the entry [a][b], the labels are 0, 1, ..."""
    rows: list[Row] = []
    for image, matrix in matrices.items():
        columns = np.transpose(np.array(matrix, float))
        figures = {name: lambda *_: 0.5 for name in ("insertion", "alpha")}
        figures |= {"log_odds": lambda _, label, shown=columns: shown[label].tolist()}
        labels = range(len(columns))
        rows += synthetic_runs.rows([image], figures, labels=labels, predicted=lambda _: predicted)
    return rows


def computed(rows: list[Row], name: str) -> Any:
    compute = METRICS[name].compute
    assert compute is not None
    return compute(group(rows), name)


HONEST = [[4.0, 1.0, 0.0], [-2.0, 3.0, -1.0], [-5.0, -4.0, 1.0]]
PAIR = [[2.0, 1.0], [0.0, 0.5]]


def test_margins_by_hand() -> None:
    """Images with other numbers of labels stand beside each other."""
    rows = rows_of({0: np.array(HONEST) / 2, 1: PAIR})
    own = computed(rows, "label_specificity")
    assert own.values.tolist() == pytest.approx([(3.5 + 4.5 + 5.5) / 6, (1 + 0.5) / 2])
    other = computed(rows, "other_label_evidence")
    assert other.values.tolist() == pytest.approx([(5 + 6) / 4, 0.5])
    assert other.over_controls.tolist() == pytest.approx([(3 + 1) / 4, 0.5])
    assert own.images.tolist() == other.images.tolist() == [0, 1]


def test_the_prediction_decides_what_other_labels_are() -> None:
    other = computed(rows_of({0: np.array(HONEST) / 2}, predicted=2), "other_label_evidence")
    assert other.values.tolist() == pytest.approx([(4 - 0 + 3 + 1) / 4])


def test_one_map_for_all_labels_has_no_margin() -> None:
    rows = rows_of({image: np.repeat(np.random.default_rng(image).normal(size=(3, 1)), 3, axis=1) for image in (0, 1)})
    for name in ("label_specificity", "other_label_evidence"):
        assert computed(rows, name).values.tolist() == pytest.approx([0, 0], abs=1e-12)


@pytest.mark.parametrize("factor", [10, -10])
def test_margins_are_clipped_and_the_share_is_told(factor: float) -> None:
    found = computed(rows_of({0: PAIR, 1: np.array(PAIR) * factor}), "label_specificity")
    assert found.values.tolist() == pytest.approx([0.75, 3 * np.sign(factor)])
    assert found.note == Note("clipped", 1, 2, 3.0)


def test_images_with_one_label_do_not_count() -> None:
    rows = rows_of({0: PAIR})
    figures = {"insertion": lambda *_: 0.5, "alpha": lambda *_: 0.5}
    single = synthetic_runs.rows([1], figures, labels=[0])
    assert computed(rows + single, "label_specificity").images.tolist() == [0]
    assert computed(single, "label_specificity") == NotAssessed("label_specificity", "one-label")


def test_a_protocol_without_completeness_has_no_margins() -> None:
    bare = synthetic_runs.rows([1], {"insertion": lambda *_: 0.5}, labels=[0])
    assert computed(bare, "label_specificity") is None
    assert computed(bare, "other_label_evidence") is None


def test_a_missing_map_leaves_the_metric_open() -> None:
    rows = rows_of({0: HONEST, 1: HONEST})
    rows[1] |= {"error": NO_MAP, "insertion": None, "log_odds": None}
    for name in ("label_specificity", "other_label_evidence"):
        assert computed(rows, name) == NotAssessed(name, "maps-missing", 1, 6)


def test_without_the_predicted_label_other_labels_have_no_rival() -> None:
    rows = rows_of({0: PAIR}, predicted=2)
    assert computed(rows, "other_label_evidence").cause == "no-map-for-predicted-label"
    assert isinstance(computed(rows, "label_specificity"), Values)


def test_too_many_labels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_specificity, "MOST_LABELS", 2)
    assert computed(rows_of({0: HONEST}), "label_specificity") == NotAssessed("label_specificity", "too-many-labels", 2)


def test_rows_without_log_odds_have_no_such_metric() -> None:
    rows = synthetic_runs.rows([0], {"insertion": lambda *_: 0.5})
    assert computed(rows, "label_specificity") is None
