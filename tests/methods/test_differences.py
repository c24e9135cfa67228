"""Maps from forward passes alone: regression against brute force, and models whose evidence is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import auditkit
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.methods.differences import refinement, regression
from auditkit.methods.differences.grids import coin_flips, jittered, stretched
from auditkit.methods.differences.method import Differences, differences
from auditkit.methods.differences.regression import Cosines, Prior
from auditkit.methods.notes import sentences
from auditkit.methods.request import Pool, Request
from tests.support import method_requests, onnx_models

SIZE = (16, 16)
FEW = Differences(most_passes=256, tolerance=0.0)


def _two_patches() -> Any:
    """Label 0 looks at the upper left, label 1 at the lower right; label 2 at nothing."""
    weights = np.stack([method_requests.patch(*SIZE, 2, 2, 5), method_requests.patch(*SIZE, 9, 9, 5), np.zeros(SIZE)])
    return method_requests.linear(weights.astype(np.float32) * 0.2)


def _middle(field: np.ndarray) -> tuple[int, int]:
    return tuple(int(place) for place in np.unravel_index(field.argmax(), field.shape))  # type: ignore[return-value]


# Regression


def _features(pairs: int = 40, size: tuple[int, int] = (12, 10)) -> tuple[np.ndarray, Cosines, np.ndarray]:
    spread, cosines = jittered(*size, 3), Cosines.of(*size, 9)
    grids = coin_flips(spread, pairs, 0.5, np.random.default_rng(0))
    masks = np.stack([spread.down[d] @ v @ spread.across[a]
                      for v, d, a in zip(grids.values, grids.down, grids.across, strict=True)])  # fmt: skip
    return cosines.features(grids, spread), cosines, masks


def test_features_are_the_cosines_of_the_masks() -> None:
    features, cosines, masks = _features()
    expected = [(cosines.rows @ (mask - 0.5) @ cosines.columns.T).ravel() for mask in masks]
    np.testing.assert_allclose(features, expected, atol=1e-6)
    np.testing.assert_allclose(cosines.rows @ cosines.rows.T, np.eye(9), atol=1e-12)


def test_the_prior_is_a_gaussian_kernel_between_pixels() -> None:
    """Far from the edges, the prior's covariance falls off with the distance as exp(-d^2 / 2 l^2)."""
    cosines, length = Cosines.of(64, 64, 64), 0.06
    variances = cosines.variances(length).reshape(64, 64)[:, 0]
    covariance = cosines.rows.T @ (variances[:, None] * cosines.rows)
    middle = covariance[32] / covariance[32, 32]
    np.testing.assert_allclose(middle, np.exp(-(((np.arange(64) - 32) / (64 * length)) ** 2) / 2), atol=1e-3)


def test_leave_one_out_is_what_leaving_one_out_gives() -> None:
    """Mask and complement stand as rows of their own; each of the 2 n is taken out and predicted by the others."""
    features, cosines, _ = _features(pairs=12)
    rng = np.random.default_rng(1)
    responses = rng.standard_normal((12, 2, 2))
    responses -= responses.mean(axis=(0, 1))  # the one thing that is not refitted
    kept, factors = regression.scales(features, cosines, 0.15)
    scaled = features[:, kept] * factors
    rows = np.stack([scaled, -scaled], axis=1).reshape(24, -1)
    answers = responses.reshape(24, 2)
    for noise, errors in regression.left_out_errors(scaled, responses, (0.3, 10.0)).items():
        for out in range(24):
            rest = np.arange(24) != out
            system = rows[rest].T @ rows[rest] + noise * np.eye(rows.shape[1])
            predicted = rows[out] @ np.linalg.solve(system, rows[rest].T @ answers[rest])
            np.testing.assert_allclose(errors.reshape(24, 2)[out], answers[out] - predicted, atol=1e-9)


def test_the_fit_is_ridge_regression_on_pixels_with_that_prior() -> None:
    features, cosines, masks = _features()
    responses = np.random.default_rng(2).standard_normal((40, 2, 3))
    priors = [Prior(0.1, 1.0, 0), Prior(0.2, 1.0, 0), Prior(0.1, 5.0, 0)]
    found = cosines.field(regression.fitted(features, responses, cosines, priors, [np.arange(len(features))])[0])
    for label, prior in enumerate(priors):
        kept, factors = regression.scales(features, cosines, prior.length)
        basis = np.stack([cosines.field(row).ravel() for row in np.eye(81)[kept]])
        covariance = basis.T @ np.diag(factors**2) @ basis
        rows = np.concatenate([masks - 0.5, 0.5 - masks]).reshape(80, -1)
        answers = np.concatenate([responses[:, 0, label], responses[:, 1, label]])
        kernel = rows @ covariance @ rows.T
        expected = covariance @ rows.T @ np.linalg.solve(kernel + prior.noise * np.eye(80), answers)
        np.testing.assert_allclose(found[label].ravel(), expected, atol=1e-6)


def test_the_chosen_prior_has_the_least_error_of_all() -> None:
    features, cosines, _ = _features()
    responses = np.random.default_rng(3).standard_normal((40, 2, 2)) + features[:, :1, None] * [[1], [-1]]
    lengths = (0.1, 0.2, 0.3)
    for label, prior in enumerate(regression.best_priors(features, responses, cosines, lengths)):
        every = {}
        for length in lengths:
            kept, factors = regression.scales(features, cosines, length)
            for noise, errors in regression.left_out_errors(
                features[:, kept] * factors, responses, regression.NOISES
            ).items():
                every[length, noise] = np.mean(errors[:, :, label] ** 2)
        assert (prior.length, prior.noise) == min(every, key=lambda key: every[key])


def test_agreement_is_one_without_noise_and_near_none_with_nothing_else() -> None:
    features, cosines, _ = _features(pairs=400)
    signal = features @ np.random.default_rng(4).standard_normal(features.shape[1]) / 10
    noise = np.random.default_rng(5).standard_normal((400, 2))
    responses = np.stack([np.stack([signal, -signal], axis=1), noise], axis=2)
    priors = regression.best_priors(features, responses, cosines, (0.1, 0.2))
    agreement = regression.split_half_agreement(features, responses, cosines, priors)
    assert agreement[0] > 0.95
    assert agreement[1] < 0.6


# The method


def test_a_linear_model_gives_back_the_smooth_shape_of_its_weights() -> None:
    """Log-odds of one sigmoid are linear in the mask: the map is the weights, blurred."""
    y, x = np.mgrid[:16, :16]
    weights = np.exp(-((y - 5) ** 2 + (x - 10) ** 2) / 18).astype(np.float32)
    model = auditkit.load(lambda r: np.einsum("nchw,hw->n", r, weights)[:, None] / 30, size=SIZE, preset="unit")
    (maps,) = differences(method_requests.request(model, SIZE, ("a",)), FEW).maps
    assert np.corrcoef(maps[1].ravel(), weights.ravel())[0, 1] > 0.98
    np.testing.assert_allclose(maps[0], -maps[1], atol=1e-4)
    # In log-odds the whole image stands this far above black: the weights' sum.
    assert maps[1].sum() == pytest.approx(weights.sum() / 10, rel=0.1)


def test_each_label_peaks_where_it_looks() -> None:
    found = differences(method_requests.request(_two_patches(), SIZE, labels=(0, 1)), FEW)
    for maps in found.maps:
        assert set(maps) == {0, 1}
        assert all(field.dtype == np.float32 and field.shape == SIZE for field in maps.values())
        assert np.abs(np.subtract(_middle(maps[0]), (4, 4))).max() <= 2
        assert np.abs(np.subtract(_middle(maps[1]), (11, 11))).max() <= 2


def test_a_function_gives_the_maps_of_the_file(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((3 * 256, 3)).astype(np.float32) * 0.05
    nodes = [helper.make_node("Flatten", ["image"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["logits"])]
    proto = onnx_models.model(
        nodes, [onnx_models.value("image", ["N", 3, 16, 16])], [onnx_models.value("logits", ["N", 3])], {"w": weights}
    )
    file = auditkit.load(onnx_models.save(proto, tmp_path), preset="unit", settings=auditkit.Settings(device="cpu"))
    function = auditkit.load(lambda rows: rows.reshape(len(rows), -1) @ weights, size=SIZE, preset="unit")
    for hide in ("random", "gray"):
        options = Differences(most_passes=64, hide=hide)
        found = [differences(method_requests.request(model, SIZE), options).maps for model in (file, function)]
        for ours, theirs in zip(*found, strict=True):
            for label in ours:
                np.testing.assert_allclose(ours[label], theirs[label], atol=1e-4 * np.abs(ours[label]).max())


def test_a_map_is_the_same_alone_and_in_company() -> None:
    options = Differences(most_passes=64, refine=64)
    together = differences(method_requests.request(_two_patches(), SIZE, ("a", "b", "c")), options)
    alone = differences(method_requests.request(_two_patches(), SIZE, ("b",)), options)
    for label in (0, 1):
        np.testing.assert_allclose(alone.maps[0][label], together.maps[1][label], atol=1e-5)
        assert not np.array_equal(together.maps[0][label], together.maps[1][label])  # each draws its own masks


def test_another_seed_draws_other_masks() -> None:
    maps = [
        differences(method_requests.request(_two_patches(), SIZE, ("a",), seed=seed), FEW).maps[0][0]
        for seed in (0, 0, 1)
    ]
    assert np.array_equal(maps[0], maps[1])
    assert not np.array_equal(maps[0], maps[2])


def test_every_pass_is_counted_once_and_all_labels_share_them() -> None:
    ticked: list[int] = []
    seen: list[int] = []
    model = auditkit.load(lambda rows: (seen.append(len(rows)), _two_patches()(rows))[1], size=SIZE, preset="unit")
    seen.clear()  # the noise that opened it
    request = method_requests.request(model, SIZE, labels=(0, 1, 2), count=ticked.append)
    found = differences(request, Differences(most_passes=100, tolerance=0.0))
    assert found.passes == sum(ticked) == sum(seen) == 2 * 100
    assert "passes an image: 100" in sentences(found.notes)


def test_an_image_whose_halves_agree_is_done_early() -> None:
    """Looks are an eighth of the most passes apart; with much tolerance the first that counts is the last."""
    found = differences(method_requests.request(_two_patches(), SIZE, ("a",)), Differences(most_passes=512))
    assert 128 <= found.passes < 512
    assert found.passes % 64 == 0
    assert "1 of 1 images stopped early" in sentences(found.notes)
    for least in (64, 128, 192):
        lax = Differences(most_passes=512, least_passes=least, tolerance=0.5)
        assert differences(method_requests.request(_two_patches(), SIZE, ("a",)), lax).passes == least
    full = differences(
        method_requests.request(_two_patches(), SIZE, ("a",)), Differences(most_passes=512, tolerance=0.0)
    )
    assert full.passes == 512


def test_the_fewest_passes_give_maps_too() -> None:
    found = differences(
        method_requests.request(_two_patches(), SIZE, ("a",)), Differences(most_passes=17, least_passes=16)
    )
    assert found.passes == 16
    assert np.isfinite(found.maps[0][0]).all()


def test_noise_is_asked_to_the_end() -> None:
    rng = np.random.default_rng(0)
    found = differences(method_requests.request(lambda rows: rng.standard_normal((len(rows), 3)), SIZE, ("a",)),
                        Differences(most_passes=256))  # fmt: skip
    assert found.passes == 256


def test_never_the_image_itself_behind_it() -> None:
    """The pool holds the image by its name, as a picture that would turn every answer; it is never drawn."""
    base = method_requests.request(_two_patches(), SIZE, ("a",))
    loud = np.concatenate([base.pool.inputs, np.full_like(base.inputs, 1e6)])
    pool = Pool((*base.pool.ids, "a"), loud)
    request = Request(base.model, base.ids, base.pixels, base.inputs, base.labels, base.gray, pool)
    expected = differences(base, FEW).maps[0][0]
    assert np.corrcoef(differences(request, FEW).maps[0][0].ravel(), expected.ravel())[0, 1] > 0.99
    for name in ("a", "its twin"):
        alone = Request(
            base.model, base.ids, base.pixels, base.inputs, base.labels, base.gray, Pool((name,), base.inputs)
        )
        with pytest.raises(BadInput, match="use gray as infill"):
            differences(alone, FEW)
    assert differences(alone, Differences(most_passes=64, hide="gray")).passes == 64


def test_an_image_without_labels_costs_nothing() -> None:
    found = differences(method_requests.request(_two_patches(), SIZE, ("a",), labels=()), FEW)
    assert found.maps == ({},)
    assert found.passes == 0


def test_a_model_that_answers_nan_is_told() -> None:
    calls: list[int] = []

    def broken(rows: np.ndarray) -> np.ndarray:
        calls.append(1)
        return np.full((len(rows), 3), np.nan if len(calls) > 1 else 0.5)

    with pytest.raises(RuntimeFailure, match="NaN"):
        differences(method_requests.request(broken, SIZE), FEW)


@pytest.mark.parametrize(("given", "said"), [
    ({"most_passes": 8}, "most_passes"), ({"least_passes": 1}, "least_passes"), ({"tolerance": -1.0}, "tolerance"),
    ({"grid": 1}, "grid"), ({"hide": "noise"}, "random or gray"), ({"refine": 7}, "refine"),
    ({"most_passes": 64, "least_passes": 128}, "more than"), ({"tv": float("nan")}, "tv"),
])  # fmt: skip
def test_options_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Differences(**given)


# Refinement


def test_directions_stand_at_right_angles() -> None:
    found = refinement.directions(64, 16, np.random.default_rng(0))
    np.testing.assert_allclose(found @ found.T, 64 * np.eye(16))


def test_the_slope_of_the_penalties_is_exact() -> None:
    spread = stretched(12, 10, 4, 4)
    objective = refinement.Objective(lambda grids, _spread: grids, generators=(), tv=0.3, l1=0.05)
    logits = np.random.default_rng(0).standard_normal((2, 4, 4))

    def penalty(at: np.ndarray) -> float:
        masks = refinement.mask(at, spread)
        variation = sum(np.sum(np.diff(masks, axis=axis) ** 2) for axis in (1, 2))
        return float(objective.tv * variation + objective.l1 * masks.sum())

    found = objective.penalty_slope(logits, spread)
    for place in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[place] = 1e-5
        assert found[place] == pytest.approx((penalty(logits + step) - penalty(logits - step)) / 2e-5, abs=1e-7)


def test_refinement_gives_a_mask_with_a_lower_objective() -> None:
    """A mask that shows the patch and hides the rest, and a lower objective with more passes."""
    request = method_requests.request(_two_patches(), SIZE, ("a",), labels=(0,))
    inside = method_requests.patch(*SIZE, 2, 2, 5) > 0

    def objective(mask: np.ndarray) -> float:
        scores = _two_patches()(np.broadcast_to(mask, (1, 3, *SIZE)))[0]
        variation = sum(np.sum(np.diff(mask, axis=axis) ** 2) for axis in (0, 1))
        return float(np.log(np.exp(scores - scores[0]).sum()) + 0.01 * variation + 0.02 * mask.sum())

    reached = []
    for passes in (32, 320, 1280):
        found = differences(request, Differences(most_passes=64, refine=passes, l1=0.02))
        assert found.passes == 64 + passes
        assert f"{passes} passes per label" in sentences(found.notes)[-1]
        mask = found.maps[0][0]
        assert mask.min() >= 0
        assert mask.max() <= 1
        reached.append(objective(mask))
    assert reached == sorted(reached, reverse=True)
    assert mask[inside].mean() - mask[~inside].mean() > 0.4
