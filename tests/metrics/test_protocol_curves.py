"""Where the curves of the presets are known and how their areas are taken; test_protocols.py runs them whole."""

import numpy as np
import pytest

from auditkit.errors import BadInput
from auditkit.metrics.protocols import POINTS, PRESETS, preset, rise_blur
from tests.metrics.test_protocols import CLOSE, PIXELS, RECORDED, rise_blurred


def test_rise_blur_is_the_sum_over_neighbours() -> None:
    image = np.random.default_rng(4).standard_normal((3, 13, 11)).astype(np.float32)
    expected = rise_blurred(image)
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


@pytest.mark.parametrize("pixels", [1, 2, 27, 28, 29, 49, 56, 143, 784, 1024, 50176])
def test_paper_code_counts_lose_a_pixel_in_fractions(pixels: int) -> None:
    """Also where 1 of 49 becomes 0 and so, as the end of a slice, everything."""
    stride = max(1, pixels // 28)
    kept = [np.arange(pixels)[-int(float(i) / pixels * pixels) :].size for i in range(stride, pixels + 1, stride)]
    assert PRESETS["paper-code"].insertion.counts(pixels).tolist() == sorted(kept)


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


def test_refusals() -> None:
    with pytest.raises(BadInput, match="unknown protocol 'raise'; did you mean 'rise'"):
        preset("raise")
    with pytest.raises(BadInput, match="at least one step"):
        preset("rise").with_steps(0)
    with pytest.raises(BadInput, match="at least one pixel"):
        preset("rise").insertion.counts(0)
    with pytest.raises(BadInput, match="11 points needs one value per point, found 10"):
        preset("xplique").insertion.area(np.arange(11), np.zeros(10))


def test_every_rule_is_used() -> None:
    curves = [curve for one in PRESETS.values() for curve in (one.insertion, one.deletion)]
    assert {curve.points for curve in curves} == set(POINTS)
    assert all(one.about for one in PRESETS.values())
