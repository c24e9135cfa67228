"""Presets give the numbers of the tools they are named after.

RISE and the paper's code are written out again here as plain loops over their published rule; Xplique and OpenVINO-XAI
are held against outputs recorded by the scripts in peers/recorded; torchcam itself runs in peers/test_torchcam.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

import auditkit
from auditkit.data.ranks import Ties, ranks
from auditkit.errors import BadInput
from auditkit.metrics import faithfulness
from auditkit.metrics.presets import POINTS, PRESETS, Curve, Preset, fill_in, preset, rise_blur
from auditkit.model.masked import masked

Array = np.ndarray[Any, Any]
RECORDED = Path(__file__).parent / "peers" / "recorded"
HEIGHT, WIDTH, CLASSES = 13, 11, 5
PIXELS = HEIGHT * WIDTH
CLOSE = 1e-5


class Toy:
    """Two layers over all pixels, so that every pixel counts and none counts alike."""

    def __init__(self, first: Array, second: Array) -> None:
        self.first, self.second = first, second

    def __call__(self, images: Array) -> Array:
        return np.asarray(np.tanh(images.reshape(len(images), -1) @ self.first) @ self.second)

    def probabilities(self, image: Array, labels: list[int] | None = None) -> Array:
        logits = self(image[None])[0].astype(np.float64)[labels if labels is not None else slice(None)]
        powers = np.exp(logits - logits.max())
        return np.asarray(powers / powers.sum())


@pytest.fixture(scope="module")
def toy() -> Toy:
    rng = np.random.default_rng(3)
    return Toy(
        (rng.standard_normal((3 * PIXELS, 8)) * 0.15).astype(np.float32),
        (rng.standard_normal((8, CLASSES)) * 1.5).astype(np.float32),
    )


@pytest.fixture(scope="module")
def image() -> Array:
    return np.random.default_rng(4).standard_normal((3, HEIGHT, WIDTH)).astype(np.float32)


def _map(kind: str) -> Array:
    rng = np.random.default_rng(5)
    if kind == "ties":  # 6 scores for 143 pixels
        return rng.integers(-2, 4, (HEIGHT, WIDTH)).astype(np.float32)
    return rng.standard_normal((HEIGHT, WIDTH)).astype(np.float32)


def _curve(model: Any, curve: Curve, top: Array, bottom: Array, scores: Array, ties: Ties | None = None) -> Array:
    """Probabilities [points, classes] through auditkit's masks, the most important pixels from `top`."""
    counts = curve.counts(scores.size)
    rows = np.zeros((len(counts), 4), np.int32)
    rows[:, 1], rows[:, 3] = 1, counts
    runner = masked(model)
    runner.fill(np.stack([top, bottom]), ranks(scores, ties or curve.ties)[None])
    return np.concatenate([part for _, part in runner.run(rows)])


def _areas(model: Any, which: Preset, image: Array, scores: Array, **colours: Array) -> tuple[Array, Array]:
    """Insertion and deletion areas of every label."""
    found = []
    for curve, inserting in ((which.insertion, True), (which.deletion, False)):
        infill = fill_in(curve.infill, image[None], colours.get("gray", np.zeros(1)), colours.get("black", np.zeros(1)))
        top, bottom = (image, infill[0]) if inserting else (infill[0], image)
        values = _curve(model, curve, top, bottom, scores)
        found.append(curve.area(curve.counts(scores.size), values.T))
    return found[0], found[1]


# --- RISE ------------------------------------------------------------------------------------------------------------


def _rise(toy: Toy, start: Array, finish: Array, scores: Array, step: int, label: int) -> float:
    """Turn `start` into `finish`, `step` pixels at a time, by an ascending sort read backwards."""
    order = np.argsort(scores.ravel(), kind="stable")[::-1]
    now = start.reshape(3, -1).copy()
    found = [toy.probabilities(now)[label]]
    while len(order):
        now[:, order[:step]] = finish.reshape(3, -1)[:, order[:step]]
        order = order[step:]
        found.append(toy.probabilities(now)[label])
    return (sum(found) - (found[0] + found[-1]) / 2) / (len(found) - 1)


def _rise_blurred(image: Array) -> Array:
    """A sum over 11x11 neighbours, those outside the picture being 0."""
    spike = np.zeros((11, 11))
    spike[5, 5] = 1
    kernel = gaussian_filter(spike, 5).astype(np.float32)
    padded = np.pad(image, ((0, 0), (5, 5), (5, 5)))
    blurred = np.zeros(image.shape)
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            blurred[:, y, x] = (padded[:, y : y + 11, x : x + 11] * kernel).sum(axis=(1, 2))
    return blurred.astype(np.float32)


@pytest.mark.parametrize("kind", ["ties", "no ties"])
@pytest.mark.parametrize(("steps", "step"), [(224, 1), (13, 11), (6, 23), (28, 5), (1, 143)])
def test_rise(toy: Toy, image: Array, kind: str, steps: int, step: int) -> None:
    """Also where the last step is shorter: 143 pixels are 6 steps of 23 and one of 5."""
    scores, label = _map(kind), 2
    model = auditkit.load(toy, size=(HEIGHT, WIDTH))
    insertion, deletion = _areas(model, PRESETS["rise"].with_steps(steps), image, scores)
    assert insertion[label] == pytest.approx(_rise(toy, _rise_blurred(image), image, scores, step, label), abs=CLOSE)
    assert deletion[label] == pytest.approx(_rise(toy, image, np.zeros_like(image), scores, step, label), abs=CLOSE)


def test_rise_blur_is_the_sum_over_neighbours(image: Array) -> None:
    expected = _rise_blurred(image)
    np.testing.assert_allclose(rise_blur(image), expected, atol=1e-6)
    np.testing.assert_allclose(rise_blur(image[None])[0], expected, atol=1e-6)
    np.testing.assert_allclose(
        rise_blur(image.transpose(1, 2, 0), channels_last=True).transpose(2, 0, 1), expected, atol=1e-6
    )


def test_rise_blur_keeps_a_level_and_fades_at_borders() -> None:
    level = rise_blur(np.ones((1, 32, 32), np.float32))
    np.testing.assert_allclose(level[0, 5:-5, 5:-5], 1, atol=1e-6)
    assert level[0, 0, 0] < 0.4
    assert rise_blur(np.full((1, 32, 32), 200, np.uint8))[0, 16, 16] == 200


# --- the paper's code ------------------------------------------------------------------------------------------------


def _paper_code(probability: Callable[[Array], float], image: Array, scores: Array, step: int, deleting: bool) -> float:
    """Mean over fractions of the probability of what the last of an ascending sort leave of the image."""
    pixels = scores.size
    order = np.argsort((-scores if deleting else scores).ravel(), kind="stable")
    kept_counts = list(range(0, pixels + 1, step))
    found = []
    for kept in kept_counts[:-1] if deleting else kept_counts[1:]:
        shown = np.zeros(pixels, bool)
        if kept:
            shown[order[-int(float(kept) / pixels * pixels) :]] = True
        found.append(probability(np.where(shown, image.reshape(3, -1), 0).astype(np.float32)))
    return float(np.mean(found))


@pytest.mark.parametrize("kind", ["ties", "no ties"])
@pytest.mark.parametrize(("steps", "step"), [(28, 5), (6, 23), (13, 11), (200, 1)])
def test_paper_code(toy: Toy, image: Array, kind: str, steps: int, step: int) -> None:
    scores, label = _map(kind), 2
    model = auditkit.load(toy, size=(HEIGHT, WIDTH))
    areas = _areas(model, PRESETS["paper-code"].with_steps(steps), image, scores)
    for found, deleting in zip(areas, (False, True), strict=True):
        expected = _paper_code(lambda shown: toy.probabilities(shown)[label], image, scores, step, deleting)
        assert found[label] == pytest.approx(expected, abs=CLOSE)


def test_paper_code_takes_its_labels_alone(toy: Toy, image: Array) -> None:
    """A softmax over the listed logits is the probability among the listed; alpha and beta use 0.1 and 0.1."""
    which, listed, scores = PRESETS["paper-code"], [1, 2, 4], _map("no ties")
    model = auditkit.load(toy, size=(HEIGHT, WIDTH))
    values = _curve(model, which.insertion, image, np.zeros_like(image), scores)
    assert which.renormalise
    shares = faithfulness.renormalised(values, listed)
    auc = which.insertion.area(which.insertion.counts(PIXELS), shares.T)
    prob = faithfulness.renormalised(model.probabilities(image[None])[0], listed)
    expected_prob = toy.probabilities(image, listed)
    assert which.eps1 is not None
    assert which.eps2 is not None
    alpha, beta = faithfulness.alpha(auc, prob, which.eps1), faithfulness.beta(auc, prob, which.eps2)
    for at in range(len(listed)):
        expected = _paper_code(lambda s, at=at: toy.probabilities(s, listed)[at], image, scores, 5, False)
        assert auc[at] == pytest.approx(expected, abs=CLOSE)
        assert alpha[at] == pytest.approx(min(max(0.1, expected) / expected_prob[at], 1), abs=CLOSE)
        assert beta[at] == pytest.approx(min(max(0.1, expected_prob[at]) / expected, 1), abs=CLOSE)


@pytest.mark.parametrize("pixels", [1, 2, 27, 28, 29, 49, 56, 143, 784, 1024, 50176])
def test_paper_code_counts_lose_a_pixel_in_fractions(pixels: int) -> None:
    """Also where 1 of 49 becomes 0 and so, as the end of a slice, everything."""
    stride = max(1, pixels // 28)
    kept = [np.arange(pixels)[-int(float(i) / pixels * pixels) :].size for i in range(stride, pixels + 1, stride)]
    assert PRESETS["paper-code"].insertion.counts(pixels).tolist() == sorted(kept)


# --- recorded outputs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["xplique", "openvino"])
def recording(request: pytest.FixtureRequest) -> tuple[str, dict[str, Array]]:
    with np.load(RECORDED / f"{request.param}.npz") as file:
        return request.param, dict(file)


def test_recorded_outputs(recording: tuple[str, dict[str, Array]]) -> None:
    """To the default number of steps, one that does not divide the pixels, one a pixel, and more than pixels."""
    name, recorded = recording
    toy = Toy(recorded["first"], recorded["second"])
    # Xplique's network takes channels last and pictures as they are; OpenVINO-XAI's takes pixels normalised.
    channels_last = name == "xplique"
    model = auditkit.load(
        (lambda x: toy(x.transpose(0, 2, 3, 1))) if channels_last else toy, size=(HEIGHT, WIDTH), preset="imagenet"
    )
    pictures = recorded["images"].transpose(0, 3, 1, 2) if channels_last else model.preprocess(recorded["images"])
    black = model.preprocess(np.zeros((1, HEIGHT, WIDTH, 3), np.uint8))[0]
    for steps in recorded["steps"].tolist():
        which = PRESETS[name].with_steps(steps)
        for index, label in enumerate(recorded["labels"]):
            areas = _areas(model, which, pictures[index], recorded["maps"][index], black=black)
            for direction, found in zip(("insertion", "deletion"), areas, strict=True):
                assert found[label] == pytest.approx(recorded[f"{direction}_{steps}"][index], abs=CLOSE)


def test_xplique_averages_curves_before_their_area() -> None:
    with np.load(RECORDED / "xplique.npz") as recorded:
        for steps in recorded["steps"].tolist():
            curve = PRESETS["xplique"].with_steps(steps).insertion
            counts = curve.counts(PIXELS)
            assert counts.tolist() == recorded[f"insertion_{steps}_counts"].tolist()
            mean = float(recorded[f"insertion_{steps}_mean"])
            assert curve.area(counts, recorded[f"insertion_{steps}_values"]) == pytest.approx(mean, abs=CLOSE)
            assert recorded[f"insertion_{steps}"].mean() == pytest.approx(mean, abs=CLOSE)


def test_defaults_are_the_recorded_ones() -> None:
    for name in ("xplique", "openvino"):
        with np.load(RECORDED / f"{name}.npz") as recorded:
            assert PRESETS[name].insertion.steps == recorded["steps"][0]


# --- the paper, and all of them --------------------------------------------------------------------------------------


def test_paper_is_the_mean_over_every_count() -> None:
    """Of a model that counts the kept pixels, s of n give s/n, and the mean over 1..n is (n+1)/2n."""
    curve = PRESETS["paper"].insertion
    counts = curve.counts(PIXELS)
    assert counts.tolist() == list(range(1, PIXELS + 1))
    assert curve.area(counts, counts / PIXELS) == pytest.approx((PIXELS + 1) / (2 * PIXELS))
    assert (PRESETS["paper"].eps1, PRESETS["paper"].eps2) == (0.01, 0.001)
    with pytest.raises(BadInput, match="every pixel count"):
        PRESETS["paper"].with_steps(10)


def test_counts_at_imagenet_size() -> None:
    pixels = 224 * 224
    assert PRESETS["rise"].insertion.counts(pixels).tolist() == list(range(0, pixels + 1, 224))
    code = [1792 * i for i in range(1, 29)]
    code[16] -= 1
    assert PRESETS["paper-code"].insertion.counts(pixels).tolist() == code
    out = [pixels - (1792 * i - (i == 17)) for i in range(28)]
    assert PRESETS["paper-code"].deletion.counts(pixels).tolist() == sorted(out)
    assert PRESETS["xplique"].insertion.counts(pixels).tolist() == [i * pixels // 10 for i in range(11)]
    assert PRESETS["openvino"].insertion.counts(pixels).tolist() == [int(i * pixels / 30) for i in range(31)]
    assert PRESETS["torchcam"].insertion.counts(pixels).tolist() == [*range(0, pixels, 2509), pixels]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("pixels", [1, 2, 7, 10, 143, 1024, 50176])
def test_counts_ascend_within_the_picture(name: str, pixels: int) -> None:
    for curve in (PRESETS[name].insertion, PRESETS[name].deletion):
        counts = curve.counts(pixels)
        assert counts.dtype == np.int64
        assert counts[0] >= 0
        assert counts[-1] <= pixels
        assert (np.diff(counts) >= 0).all()
        assert curve.weights(counts).sum() == pytest.approx(1)
        assert curve.area(counts, np.full((2, len(counts)), 0.25)) == pytest.approx(0.25)


def test_presets_tell_each_other_apart(toy: Toy, image: Array) -> None:
    """What makes them differ moves the figure by more than the tests above allow."""
    model, scores = auditkit.load(toy, size=(HEIGHT, WIDTH)), _map("ties")
    black = np.full(1, -2.0)
    areas = {
        name: _areas(model, one if one.insertion.steps is None else one.with_steps(6), image, scores, black=black)
        for name, one in PRESETS.items()
    }
    for name, (insertion, _) in areas.items():
        for other, (others, _) in areas.items():
            assert name == other or abs(insertion - others).max() > 10 * CLOSE, (name, other)


@pytest.mark.parametrize("name", ["rise", "paper-code", "torchcam"])
def test_the_order_in_ties_is_seen(toy: Toy, image: Array, name: str) -> None:
    model, curve = auditkit.load(toy, size=(HEIGHT, WIDTH)), PRESETS[name].insertion
    other: Ties = "first" if curve.ties == "last" else "last"
    own, wrong = (_curve(model, curve, image, np.zeros_like(image), _map("ties"), ties) for ties in (None, other))
    assert abs(curve.area(curve.counts(PIXELS), (own - wrong).T)).max() > 10 * CLOSE


def test_infills(image: Array) -> None:
    gray, black = np.arange(3.0).reshape(3, 1, 1), np.full((3, 1, 1), -2.0)
    assert (fill_in("gray", image[None], gray, black)[0, 2] == 2).all()
    assert (fill_in("black", image[None], gray, black) == -2).all()
    assert (fill_in("zero", image[None], gray, black) == 0).all()
    np.testing.assert_array_equal(fill_in("rise-blur", image[None], gray, black)[0], rise_blur(image))
    for kind in ("gray", "zero", "black", "rise-blur"):
        filled = fill_in(kind, image[None], gray, black)
        assert (filled.shape, filled.dtype) == ((1, *image.shape), image.dtype)


def test_refusals() -> None:
    with pytest.raises(BadInput, match="the presets are paper, paper-code, rise"):
        preset("raise")
    with pytest.raises(BadInput, match="at least one step"):
        preset("rise").with_steps(0)
    with pytest.raises(BadInput, match="at least one pixel"):
        preset("rise").insertion.counts(0)
    with pytest.raises(BadInput, match="11 points has 10 values"):
        preset("xplique").insertion.area(np.arange(11), np.zeros(10))


def test_every_rule_is_used() -> None:
    curves = [curve for one in PRESETS.values() for curve in (one.insertion, one.deletion)]
    assert {curve.points for curve in curves} == set(POINTS)
    assert all(one.about for one in PRESETS.values())
