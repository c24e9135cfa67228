"""Completeness, soundness, best effort and label sets, by hand and against plain loops."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit.errors import BadInput
from auditkit.metrics import faithfulness as fa
from auditkit.metrics.faithfulness import LabelSet, choose_labels, default_labels, parse_labels

shares = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.01, 0.001, 5e-324])


def test_the_papers_desk_and_desktop_computer() -> None:
    """Section 3.3: f is 0.67 and 0.13; a map with AUC 0.5 for both recovers 3/4 of one and overclaims the other."""
    auc, prob = [0.5, 0.5], [0.67, 0.13]
    assert fa.completeness(auc, prob, 0).tolist() == [0.5 / 0.67, 1.0]
    assert fa.soundness(auc, prob, 0).tolist() == [1.0, 0.13 / 0.5]


def test_the_edges_of_the_definitions() -> None:
    assert fa.completeness([0.3, 0.0], [0.0, 0.0], 0).tolist() == [1.0, 1.0]  # f = 0
    assert fa.soundness([0.0, 0.0], [0.3, 0.0], 0).tolist() == [1.0, 1.0]  # AUC = 0
    assert fa.completeness([0.0], [0.5], 0).tolist() == [0.0]
    assert fa.soundness([0.5], [0.0], 0).tolist() == [0.0]
    assert fa.completeness([0.0], [0.5], 0.01).tolist() == [0.02]  # eps1 stands in for a vanishing AUC
    assert fa.soundness([0.5], [0.0], 0.001).tolist() == [0.002]  # eps2 for a vanishing f
    assert fa.completeness([0.0], [0.009], 0.01).tolist() == [1.0]  # labels below eps1 are not asked for


def _alpha(auc: float, prob: float, eps1: float) -> float:
    return 1.0 if prob == 0 or math.isinf(max(auc, eps1) / prob) else min(max(auc, eps1) / prob, 1.0)


def _beta(auc: float, prob: float, eps2: float) -> float:
    return 1.0 if auc == 0 or math.isinf(max(prob, eps2) / auc) else min(max(prob, eps2) / auc, 1.0)


@settings(deadline=None)
@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=8), st.sampled_from([0.0, 0.001, 0.01, 0.1]))
def test_alpha_and_beta_agree_with_the_formula_pair_by_pair(pairs: list[tuple[float, float]], eps: float) -> None:
    auc, prob = np.array(pairs).T
    assert fa.completeness(auc, prob, eps).tolist() == [_alpha(a, f, eps) for a, f in pairs]
    assert fa.soundness(auc, prob, eps).tolist() == [_beta(a, f, eps) for a, f in pairs]


def test_means_of_minima() -> None:
    image, scores = [4, 9, 4, 9, 9], [0.5, 0.4, 0.3, 0.8, 1.0]
    images, worst = fa.worst_per_image(scores, image)
    assert (images.tolist(), worst.tolist()) == ([4, 9], [0.3, 0.4])


def _worst(scores: list[float], images: list[int]) -> dict[int, float]:
    found: dict[int, float] = {}
    for score, image in zip(scores, images, strict=True):
        found[image] = min(score, found.get(image, 2.0))
    return found


rows = st.lists(st.tuples(st.floats(0, 1), st.integers(-3, 3)), min_size=1, max_size=20)


@settings(deadline=None)
@given(rows)
def test_minima_agree_with_a_plain_loop(pairs: list[tuple[float, int]]) -> None:
    scores, images = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    distinct, worst = fa.worst_per_image(scores, images)
    assert dict(zip(distinct.tolist(), worst.tolist(), strict=True)) == _worst(scores, images)


def test_grouping_that_is_off_by_one_row_is_caught() -> None:
    """The loop above tells apart a grouping whose image indices slipped by a row."""
    scores, images = [0.1, 0.9, 0.8, 0.7], [0, 0, 1, 1]
    distinct, slipped = fa.worst_per_image(scores, np.roll(images, 1))
    assert dict(zip(distinct.tolist(), slipped.tolist(), strict=True)) != _worst(scores, images)


BEST = {
    #        image 0: second best too small; image 1: two other labels; image 2: only the prediction was asked for
    "image": [0, 0, 1, 1, 1, 1, 2],
    "label": [0, 1, 0, 1, 2, 3, 5],
    "prob": [0.995, 0.005, 0.6, 0.3, 0.095, 0.005, 0.9],
    "alpha": [0.9, 0.1, 0.05, 0.7, 0.4, 0.0, 0.2],
}


def test_best_effort_by_hand() -> None:
    """Image 1: the prediction's 0.05 and the improbable label's 0.0 do not count, so 0.4 is the least."""
    predicted = [0, 0, 0, 0, 0, 0, 5]
    images, least = fa.best_effort(BEST["alpha"], BEST["prob"], BEST["label"], predicted, BEST["image"])
    assert (images.tolist(), least.tolist()) == ([1], [0.4])


def test_best_effort_of_no_image_is_empty() -> None:
    images, least = fa.best_effort([0.5], [0.9], [0], [0], [0])
    assert (images.size, least.size) == (0, 0)


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_best_effort_agrees_with_the_definition_in_loops(seed: int) -> None:
    """Means over images whose second-best label has f >= floor of the minimum over the other labels that have it."""
    chance = np.random.default_rng(seed)
    prob = chance.dirichlet(np.full(4, 0.2), size=6)
    scores, floor = chance.random((6, 4)), 0.05
    expected = []
    for image in range(6):
        best = int(np.argmax(prob[image]))
        if sorted(prob[image])[-2] >= floor:
            expected.append(min(scores[image, a] for a in range(4) if a != best and prob[image, a] >= floor))
    image, label = np.indices((6, 4))
    order = chance.permutation(24)
    columns = (scores, prob, label, np.repeat(prob.argmax(axis=1)[:, None], 4, axis=1), image)
    images, least = fa.best_effort(*(np.ravel(column)[order] for column in columns), floor=floor)
    assert least.tolist() == expected
    assert images.tolist() == [row for row in range(6) if sorted(prob[row])[-2] >= floor]


def test_one_map_for_all_labels_has_bad_best_effort() -> None:
    """A faithful map of the prediction shows none of the others: AUC 0 for them, and alpha falls to eps1 / f."""
    prob, auc = np.array([0.6, 0.4]), np.array([0.6, 0.0])
    _, least = fa.best_effort(fa.completeness(auc, prob), prob, [0, 1], [0, 0], [7, 7])
    assert least.tolist() == pytest.approx([0.01 / 0.4])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("all", LabelSet()),
        (" Top10 ", LabelSet(top=10)),
        ("f>=0.01", LabelSet(floor=0.01)),
        ("f >= 1e-2", LabelSet(floor=0.01)),
        ("3, 7,9", LabelSet(labels=(3, 7, 9))),
        ("5", LabelSet(labels=(5,))),
    ],
)
def test_label_sets_are_read_and_written(text: str, rule: LabelSet) -> None:
    assert parse_labels(text) == rule
    assert parse_labels(str(rule)) == rule


@pytest.mark.parametrize("text", ["", "top", "top0", "top-3", "f>=0", "f>=1.5", "f>=x", "f>0.1", "1,,2", "-1", "cat"])
def test_strange_label_sets_are_refused_with_the_ways_to_write_one(text: str) -> None:
    with pytest.raises(BadInput, match="top10"):
        parse_labels(text)


def test_default_labels_are_all_up_to_twenty_classes() -> None:
    assert [str(default_labels(classes)) for classes in (2, 20, 21, 1000)] == ["all", "all", "top10", "top10"]


PROB = np.array([[0.1, 0.4, 0.1, 0.4], [0.0, 0.0, 1.0, 0.0]], dtype=np.float32)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (None, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        ("all", [[0, 1, 2, 3], [0, 1, 2, 3]]),
        ("top2", [[1, 3], [2, 0]]),  # equal ones by lower index
        ("f>=0.1", [[1, 3, 0, 2], [2]]),  # a float32 0.1 reaches 0.1
        ("f>=0.5", [[], [2]]),
        ("3,0", [[3, 0], [3, 0]]),
    ],
)
def test_labels_of_each_image(text: str | None, labels: list[list[int]]) -> None:
    assert [chosen.tolist() for chosen in choose_labels(PROB, text)] == labels
    assert choose_labels(PROB[0], text)[0].tolist() == labels[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fa.completeness([np.nan], [0.5]), "1 of 1"),
        (lambda: fa.completeness([0.5], [1.5]), "between 0 and 1"),
        (lambda: fa.soundness([-0.5], [0.5]), "between 0 and 1"),
        (lambda: fa.completeness([0.5], [0.5], -1), "eps1"),
        (lambda: fa.worst_per_image([], []), "at least one row"),
        (lambda: fa.worst_per_image([0.5, np.nan], [0, 0]), "NaN"),
        (lambda: fa.worst_per_image([0.5, 0.6], [0]), "image_index"),
        (lambda: fa.best_effort([0.5, 0.6], [0.5], [1], [0], [0, 0]), "one entry"),
        (lambda: choose_labels(PROB, "top5"), "4 classes"),
        (lambda: choose_labels(PROB, "1,4"), "classes 0 to 3"),
        (lambda: parse_labels("1,2,1"), "label 1 is listed twice"),
    ],
)
def test_what_has_no_figure_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()
