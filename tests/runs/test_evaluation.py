"""Whole evaluations of models that can be solved by hand: a sum of pixels, a threshold on one pixel, a constant."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import auditkit
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import Order
from auditkit.errors import AuditError, BadInput, RuntimeFailure
from auditkit.graph import hard_masks
from auditkit.metrics.curves import FIRST_GAPS, parse_steps
from auditkit.model.masks import HostMasked, OnnxMasked
from auditkit.model.signature import Overrides
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation import measure, runtime_check
from auditkit.runs.evaluation.settings import Evaluation, resolved
from auditkit.runs.folder.figures import Flag, Runtime
from auditkit.runs.summary.summarise import Summary
from tests.support import onnx_models

Array = np.ndarray[Any, Any]
Function = Callable[[Array], Array]
SIZE = (6, 9)
PIXELS = 54
PROBABILITIES = Overrides(kind="probabilities")
SHARES = np.array([0.5, 0.375, 0.125], np.float32)  # of the channels in the mass
EXACT = parse_steps("exact")
PLAIN: dict[str, Any] = {"controls": False, "steps": EXACT, "ties": "first", "saliency": "none"}


# Models ---------------------------------------------------------------------------------------------------------------


def mass(images: Array) -> Array:
    """Label 1 has the mean brightness of the picture, each channel with its share; label 0 the rest."""
    share = (images.astype(np.float64) * SHARES[:, None, None]).sum(axis=1).mean(axis=(1, 2))
    return np.stack([1 - share, share], axis=1)


def threshold(row: int, column: int) -> Function:
    """Label 1 is certain when one pixel is bright, impossible when it is not."""

    def answer(images: Array) -> Array:
        bright = (images[:, 0, row, column] > 0.5).astype(np.float64)
        return np.stack([1 - bright, bright], axis=1)

    return answer


def constant(images: Array) -> Array:
    """The same answer to everything."""
    return np.tile([0.1, 0.7, 0.2], (len(images), 1))


def mass_file(folder: Path, *, one_number: bool = False, pixels_last: bool = False) -> Path:
    """The mass as an ONNX file: [N, 2] probabilities, or one number that is the second label's.

    `pixels_last` takes whole pixels 0..255, their channels last.
    """
    weights = {"shares": SHARES[:, None, None], "one": np.ones(1, np.float32)}
    nodes, given, kind = [], onnx_models.value("image", ["N", 3, *SIZE]), "image"
    if pixels_last:
        weights["shares"] = weights["shares"] / np.float32(255)
        given, kind = onnx_models.value("image", ["N", *SIZE, 3], onnx.TensorProto.UINT8), "turned"
        nodes = [
            helper.make_node("Cast", ["image"], ["cast"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Transpose", ["cast"], ["turned"], perm=[0, 3, 1, 2]),
        ]
    nodes += [
        helper.make_node("Mul", [kind, "shares"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "channel"], ["grey"], keepdims=0),
        helper.make_node("ReduceMean", ["grey"], ["flat"], axes=[1, 2], keepdims=0),
        helper.make_node("Unsqueeze", ["flat", "channel"], ["positive"]),
    ]
    if not one_number:
        nodes.append(helper.make_node("Sub", ["one", "positive"], ["negative"]))
        nodes.append(helper.make_node("Concat", ["negative", "positive"], ["scores"], axis=1))
    last = "positive" if one_number else "scores"
    proto = onnx_models.model(
        nodes, [given], [onnx_models.value(last, ["N", 1 if one_number else 2])],
        {**weights, "channel": np.array([1], np.int64)},
    )  # fmt: skip
    onnx.checker.check_model(proto)
    return onnx_models.save(proto, folder)


def card(folder: Path, gray: Sequence[float] = (0, 0, 0), size: tuple[int, int] = SIZE, more: str = "") -> Path:
    """Pixels over 255, and the gray that is asked for."""
    path = folder / "card.toml"
    preset = "" if "preset" in more else 'preset = "unit"\n'
    path.write_text(f"schema_version = 1\n[preprocessing]\n{preset}size = {list(size)}\ngray = {list(gray)}\n{more}")
    return path


def loaded(
    function: "Function | Path", folder: Path, gray: Sequence[float] = (0, 0, 0), size: tuple[int, int] = SIZE,
    more: str = "", overrides: Overrides = PROBABILITIES, batch: int | None = None,
) -> Any:  # fmt: skip
    return auditkit.load(
        function, card=card(folder, gray, size, more), overrides=overrides,
        settings=auditkit.Settings(device="cpu", batch=batch), **({} if isinstance(function, Path) else {"size": size}),
    )  # fmt: skip


# Pictures and maps ----------------------------------------------------------------------------------------------------


def photographs(count: int, size: tuple[int, int] = SIZE, seed: int = 0) -> Array:
    """Bright noise, so that the mass makes label 1 the prediction (its share is near 0.7)."""
    return np.random.default_rng(seed).integers(100, 256, (count, *size, 3), dtype=np.uint8)


def image_set(images: Array, names: Sequence[str] = ()) -> Dataset:
    ids = tuple(names) or tuple(f"image-{index}" for index in range(len(images)))
    return Dataset(Path("images"), ids, images)


def bundle(
    folder: Path, maps: Mapping[int, Array], count: int, name: str = "maps", frame: str = "model-input"
) -> HeatmapSet:
    """Maps [images, height, width] for each label."""
    writer = auditkit.Bundle(folder / name, frame=frame)
    for label, stack in maps.items():
        ids = [f"image-{index}" for index in range(count)]
        writer.add(ids, [label] * count, np.asarray(stack, np.float32), layout="NHW")
    return auditkit.open_bundle(folder / name)


def noise_maps(count: int, seed: int, size: tuple[int, int] = SIZE) -> Array:
    return np.random.default_rng(seed).standard_normal((count, *size)).astype(np.float32)


def rows_of(summary: Summary, source: str = "maps") -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["image"], row["label"]): row for row in summary.rows if row["bundle"] == source}


# Solutions, written another way than the software ---------------------------------------------------------------------


def order(scores: Array, ties: str = "first") -> list[int]:
    """Pixels, most important first, by a plain sort."""
    sign = {"first": 1, "last": -1}[ties]
    return sorted(range(scores.size), key=lambda index: (-float(scores.flat[index]), sign * index))


def grey_of(pictures: Array) -> Array:
    """Mass of each pixel of network inputs [..., 3, height, width]."""
    return (pictures.astype(np.float64) * SHARES[:, None, None]).sum(axis=-3)


def mass_curve(image: Array, infills: Sequence[Array], best_first: Sequence[int]) -> Array:
    """Label 1 on the picture with its first s pixels shown, s = 0..n, averaged over infills; masses [height, width]."""
    curves = []
    for infill in infills:
        shown = infill.ravel().copy()
        points = [shown.mean()]
        for pixel in best_first:
            shown[pixel] = image.flat[pixel]
            points.append(shown.mean())
        curves.append(points)
    return np.mean(curves, axis=0)


def exact_area(curve: Array) -> float:
    """The mean over every s in 1..n."""
    return float(np.mean(curve[1:]))


def straight_area(counts: Array, values: Array) -> float:
    """The mean over every s in 1..n of the straight lines through some points."""
    every = np.arange(1, int(counts[-1]) + 1)
    return float(np.interp(every, counts, np.asarray(values, np.float64)).mean())


def ratio(top: float, bottom: float) -> float:
    return 1.0 if bottom == 0 else min(top / bottom, 1.0)


def check(row: dict[str, Any], curve: Array, settings: Evaluation, deletion: Array | None = None) -> None:
    """One row against the curve known at every pixel count."""
    settings = resolved(settings, 2)
    counts = row["keep_counts"]
    assert (counts[0], counts[-1]) == (0, len(curve) - 1)
    assert (np.diff(counts) > 0).all()
    np.testing.assert_allclose(row["curve"], curve[counts], atol=1e-6)
    np.testing.assert_allclose(row["insertion"], straight_area(counts, curve[counts]), atol=1e-6)
    if settings.steps.rule == "exact":
        assert len(counts) == len(curve)
        assert row["insertion_error"] == 0
        np.testing.assert_allclose(row["insertion"], exact_area(curve), atol=1e-6)
    elif settings.steps.rule == "uniform":
        assert len(counts) == min(settings.steps.count, len(curve) - 1) + 1
        assert np.isnan(row["insertion_error"]) == (len(counts) == 2 < len(curve))
        assert row["insertion_error"] == 0 or len(counts) < len(curve)
    else:
        assert abs(row["insertion"] - exact_area(curve)) <= row["insertion_error"] + 1e-6
    np.testing.assert_allclose(row["prob"], curve[-1], atol=1e-6)
    np.testing.assert_allclose(row["alpha"], ratio(max(row["insertion"], settings.eps1), curve[-1]), atol=1e-5)
    np.testing.assert_allclose(row["beta"], ratio(max(curve[-1], settings.eps2), row["insertion"]), atol=1e-5)
    if deletion is None:
        assert row.get("deletion") is None
    elif settings.steps.rule == "uniform":
        np.testing.assert_allclose(row["deletion"], straight_area(counts, deletion[counts]), atol=1e-6)
    else:
        assert abs(row["deletion"] - exact_area(deletion)) <= row["deletion_error"] + 1e-6


def inputs_of(model: Any, images: Array) -> Array:
    """What the network is given, channels first and in 0..1."""
    inputs = model.preprocess(images)
    if model.signature.layout == "NHWC":
        inputs = inputs.transpose(0, 3, 1, 2)
    return np.asarray(inputs / 255 if inputs.dtype == np.uint8 else inputs)


def infills_of(model: Any, images: Array, infill: str, gray: Sequence[float], place: int) -> list[Array]:
    """Masses of the pictures that stand in for hidden pixels; for `random`, all others (as many as there are draws)."""
    inputs = inputs_of(model, images)
    if infill == "gray":
        return [grey_of(np.broadcast_to(np.array(gray)[:, None, None] / 255, inputs[0].shape))]
    if infill == "blur":
        from scipy import ndimage

        sigma = 5 * min(inputs.shape[-2:]) / 224
        smooth = np.stack([ndimage.gaussian_filter(c.astype(np.float64), sigma) for c in inputs[place]])
        return [grey_of(np.round(smooth * 255) / 255 if model.signature.dtype == "uint8" else smooth)]
    return [grey_of(picture) for index, picture in enumerate(inputs) if index != place]


def check_mass(
    model: Any, images: Array, maps: Mapping[int, Array], found: Summary, settings: Evaluation, gray: Sequence[float]
) -> None:
    """Every row of an evaluation of the mass, against the closed form."""
    rows, settings = rows_of(found), resolved(settings, 2)
    assert len(rows) == len(images) * len(maps)
    for place, picture in enumerate(grey_of(inputs_of(model, images))):
        infills = infills_of(model, images, settings.infills[0], gray, place)
        for label, stack in maps.items():
            best_first = order(stack[place], settings.ties)
            shown = mass_curve(picture, infills, best_first)
            hidden = np.mean([mass_curve(infill, [picture], best_first) for infill in infills], axis=0)
            predicted = shown[-1] > 0.5
            assert rows[f"image-{place}", label]["predicted"] == (predicted == label)
            check(
                rows[f"image-{place}", label], shown if label else 1 - shown, settings,
                (hidden if label else 1 - hidden) if predicted == label else None,
            )  # fmt: skip


def solve_mass(
    folder: Path, count: int = 3, function: "Function | Path" = mass, size: tuple[int, int] = SIZE,
    gray: Sequence[float] = (0, 0, 0), batch: int | None = None, overrides: Overrides = PROBABILITIES, more: str = "",
    **changed: Any,
) -> Summary:  # fmt: skip
    """An evaluation of the mass, every row of it checked."""
    settings = Evaluation(**{**PLAIN, **changed})
    images = photographs(count, size)
    maps = {0: noise_maps(count, 1, size), 1: noise_maps(count, 2, size)}
    model = loaded(function, folder, gray, size, more, batch=batch, overrides=overrides)
    found = evaluate(model, image_set(images), {"maps": bundle(folder, maps, count)}, settings)
    check_mass(model, images, maps, found, settings, gray)
    return found


# The sum of kept pixels -----------------------------------------------------------------------------------------------


def test_the_insertion_curve_of_a_sum_is_the_cumulative_sorted_mass(tmp_path: Path) -> None:
    """By numpy's own cumsum: maps equal to the mass itself, black infill."""
    images = photographs(1)
    model = loaded(mass, tmp_path)
    picture = grey_of(model.preprocess(images))
    found = evaluate(model, image_set(images), {"maps": bundle(tmp_path, {1: picture}, 1)}, Evaluation(**PLAIN))
    cumulative = np.concatenate([[0], np.cumsum(np.sort(picture.ravel())[::-1])]) / PIXELS
    row = rows_of(found)["image-0", 1]
    np.testing.assert_allclose(row["curve"], cumulative, atol=1e-6)
    np.testing.assert_allclose(row["insertion"], cumulative[1:].mean(), atol=1e-6)
    np.testing.assert_allclose(row["deletion"], (cumulative[-1] - cumulative)[1:].mean(), atol=1e-6)
    np.testing.assert_allclose(row["alpha"], cumulative[1:].mean() / cumulative[-1], atol=1e-6)
    assert row["beta"] == 1


@pytest.mark.parametrize("steps", ["1", "2", "7", "10", "53", "54", "1000", "exact", "auto", "auto:1e-3", "auto:0.2"])
@pytest.mark.parametrize("infill", ["gray", "blur", "random"])
def test_the_mass_with_every_infill_and_step_rule(tmp_path: Path, infill: str, steps: str) -> None:
    solve_mass(tmp_path, infill=infill, steps=parse_steps(steps), gray=(30, 90, 200), draws=2)


@pytest.mark.parametrize("steps", ["28", "auto"])
def test_the_mass_behind_a_blur_worth_the_name(tmp_path: Path, steps: str) -> None:
    """At 45 pixels sigma is 1; at the other tests' six it is next to nothing."""
    solve_mass(tmp_path, count=2, size=(45, 60), infill="blur", steps=parse_steps(steps))


@pytest.mark.parametrize("size", [(9, 6), (1, 40), (40, 1), (16, 16), (31, 7)])
@pytest.mark.parametrize("steps", ["10", "exact", "auto"])
def test_the_mass_on_pictures_of_any_shape(tmp_path: Path, size: tuple[int, int], steps: str) -> None:
    solve_mass(tmp_path, size=size, steps=parse_steps(steps))


@pytest.mark.parametrize("side", [1, 2, 3, 4])
@pytest.mark.parametrize("steps", ["10", "exact", "auto"])
def test_the_mass_on_a_few_pixels(tmp_path: Path, side: int, steps: str) -> None:
    """Fewer pixels than the first grid has points, odd and even."""
    solve_mass(tmp_path, size=(side, side), steps=parse_steps(steps))
    solve_mass(tmp_path / "wide", size=(side, 3), steps=parse_steps(steps))


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()


@pytest.mark.parametrize("one_number", [False, True])
def test_the_mass_as_an_onnx_file(tmp_path: Path, one_number: bool) -> None:
    overrides = Overrides(kind="sigmoid" if one_number else "probabilities")
    path = mass_file(tmp_path, one_number=one_number)
    for infill in ("gray", "blur", "random"):
        folder = tmp_path / infill
        folder.mkdir()
        solve_mass(folder, function=path, infill=infill, gray=(128, 0, 255), draws=2, overrides=overrides)


def test_the_mass_of_whole_pixels_with_channels_last(tmp_path: Path) -> None:
    path = mass_file(tmp_path, pixels_last=True)
    for infill in ("gray", "blur", "random"):
        folder = tmp_path / infill
        folder.mkdir()
        solve_mass(folder, function=path, infill=infill, gray=(128, 0, 255), draws=2, more='preset = "none"\n')


def test_batch_sizes_change_nothing(tmp_path: Path) -> None:
    found = []
    path = mass_file(tmp_path)
    for function in (mass, path):
        for batch in (1, 17, None):
            folder = tmp_path / f"{len(found)}"
            folder.mkdir()
            found.append(solve_mass(folder, function=function, batch=batch, steps=parse_steps("auto")))
    for other in found[1:]:
        for first, second in zip(found[0].rows, other.rows, strict=True):
            assert first["keep_counts"] == second["keep_counts"]
            assert [first[key] for key in ("image", "label", "flags")] == [
                second[k] for k in ("image", "label", "flags")
            ]
            for figure in ("insertion", "alpha", "beta"):
                np.testing.assert_allclose(first[figure], second[figure], atol=1e-5)


@pytest.mark.parametrize("count", [16, 17, 35])
def test_more_images_than_a_unit_holds(tmp_path: Path, count: int) -> None:
    found = solve_mass(tmp_path, count=count, steps=parse_steps("4"))
    assert [row["image"] for row in found.rows][::2] == [f"image-{index}" for index in range(count)]


def test_the_same_image_has_the_same_figures_in_any_company(tmp_path: Path) -> None:
    """Alone, and as the last of twenty: shuffled ties and random infills depend on the image, not on its place."""
    images, flat = photographs(20), np.zeros((20, *SIZE), np.float32)
    model = loaded(mass, tmp_path)
    maps = bundle(tmp_path, {0: flat, 1: flat}, 20)
    settings = Evaluation(infill="random", steps=parse_steps("9"))
    everyone = image_set(images)
    found = rows_of(evaluate(model, everyone, {"maps": maps}, settings))["image-19", 1]
    alone = image_set(images[19:], ["image-19"])
    again = rows_of(evaluate(model, alone, {"maps": maps}, settings, pool=everyone))["image-19", 1]
    assert found["curve"] == again["curve"]


def test_a_random_infill_is_never_the_image_itself(tmp_path: Path) -> None:
    """Two images: each is the other's only infill."""
    solve_mass(tmp_path, count=2, infill="random", draws=1)
    with pytest.raises(BadInput, match="at least two"):
        solve_mass(tmp_path, count=1, infill="random")


def test_random_infills_come_from_the_pool_that_is_given(tmp_path: Path) -> None:
    """A pool of flat pictures: the empty end of the curve is one of their masses, or a mean of several."""
    images = photographs(3)
    pool = np.broadcast_to(np.array([0, 51, 102, 153], np.uint8)[:, None, None, None], (4, *SIZE, 3)).copy()
    model = loaded(mass, tmp_path)
    maps = {1: noise_maps(3, 2)}
    ends = []
    for seed in range(4):
        settings = Evaluation(**PLAIN, infill="random", draws=1, seed=seed)
        over = image_set(pool, [f"pool-{index}" for index in range(4)])
        opened = auditkit.open_bundle(tmp_path / "maps") if seed else bundle(tmp_path, maps, 3)
        found = evaluate(model, image_set(images), {"maps": opened}, settings, pool=over)
        ends += [float(row["curve"][0]) for row in rows_of(found).values() if not row.get("error")]
    np.testing.assert_allclose(np.array(ends) * 5, np.round(np.array(ends) * 5), atol=1e-5)
    assert len({round(end, 3) for end in ends}) > 1


def test_deletion_can_be_left_out(tmp_path: Path) -> None:
    images, maps = photographs(2), {0: noise_maps(2, 1), 1: noise_maps(2, 2)}
    settings = Evaluation(**PLAIN, deletion=False)
    model = loaded(mass, tmp_path)
    found = evaluate(model, image_set(images), {"maps": bundle(tmp_path, maps, 2)}, settings)
    assert all(row.get("deletion") is None for row in found.rows)
    assert found.value("deletion", "maps") is None
    assert found.value("insertion", "maps") is not None


def test_gray_in_bgr_order(tmp_path: Path) -> None:
    """The card's gray is RGB; a network that takes BGR sees it turned round."""
    images, maps = photographs(1), {1: noise_maps(1, 1)}
    model = loaded(mass, tmp_path, (10, 100, 250), more='channels = "BGR"\n')
    found = evaluate(model, image_set(images), {"maps": bundle(tmp_path, maps, 1)}, Evaluation(**PLAIN))
    empty = float(np.dot(SHARES, np.array([250, 100, 10]) / 255))
    np.testing.assert_allclose(rows_of(found)["image-0", 1]["curve"][0], empty, atol=1e-6)


# Ties -----------------------------------------------------------------------------------------------------------------


def half_tied() -> Array:
    """The upper half all different and above the lower half, which is all the same."""
    values = np.zeros(SIZE, np.float32)
    values[:3] = 1 + np.random.default_rng(8).permutation(27).reshape(3, 9)
    return values


@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize("values", [np.zeros(SIZE, np.float32), half_tied()], ids=["constant", "half-tied"])
@pytest.mark.parametrize("steps", ["8", "exact", "auto"])
def test_ties_by_index(tmp_path: Path, ties: str, values: Array, steps: str) -> None:
    images, maps = photographs(2), {0: np.stack([values] * 2), 1: np.stack([values] * 2)}
    settings = Evaluation(**{**PLAIN, "ties": ties, "steps": parse_steps(steps)})
    model = loaded(mass, tmp_path)
    found = evaluate(model, image_set(images), {"maps": bundle(tmp_path, maps, 2)}, settings)
    check_mass(model, images, maps, found, settings, (0, 0, 0))
    assert {row["tied_fraction"] for row in found.rows} == {float(np.mean(values == 0))}


def test_random_ties_shuffle_within_the_tie_alone(tmp_path: Path) -> None:
    """Each step of the curve is one pixel's mass, so the order can be read from the curve."""
    images, values = photographs(2), half_tied()
    model = loaded(mass, tmp_path)
    maps = bundle(tmp_path, {1: np.stack([values] * 2)}, 2)
    orders = []
    for seed in (0, 0, 1):
        settings = Evaluation(**{**PLAIN, "ties": "random", "seed": seed})
        rows = rows_of(evaluate(model, image_set(images), {"maps": maps}, settings))
        for place, picture in enumerate(grey_of(model.preprocess(images))):
            steps = np.diff(np.array(rows[f"image-{place}", 1]["curve"], np.float64)) * PIXELS
            np.testing.assert_allclose(steps[:27], picture.flat[order(values)[:27]], atol=2e-5)
            np.testing.assert_allclose(np.sort(steps[27:]), np.sort(picture[3:].ravel()), atol=2e-5)
            assert not np.allclose(steps[27:], picture[3:].ravel(), atol=1e-3)
            orders.append(tuple(np.argsort(np.argsort(steps[27:]))))
    assert orders[0] == orders[2]
    assert orders[1] == orders[3]
    assert orders[0] != orders[4]


# A threshold on one pixel ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pixel", [(0, 0), (2, 7), (5, 8)])
@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize("steps", ["1", "5", "13", "54", "exact", "auto", "auto:1e-3"])
@pytest.mark.parametrize("infill", ["gray", "random"])
def test_one_pixel_makes_a_step(tmp_path: Path, pixel: tuple[int, int], ties: str, steps: str, infill: str) -> None:
    """The curve is 0 until the pixel is shown and 1 from then on: the exact AUC is (n - rank) / n."""
    check_step(tmp_path, SIZE, pixel, ties=ties, steps=parse_steps(steps), infill=infill)


@pytest.mark.parametrize("steps", ["13", "exact", "auto"])
def test_one_pixel_that_the_blur_hides(tmp_path: Path, steps: str) -> None:
    """At 45 pixels the blur has a sigma of 1 and leaves a sixth of a bright pixel on black."""
    check_step(tmp_path, (45, 48), (30, 11), steps=parse_steps(steps), infill="blur")


def check_step(folder: Path, size: tuple[int, int], pixel: tuple[int, int], **changed: Any) -> None:
    images = np.full((3, *size, 3), 20, np.uint8)
    images[0][pixel] = 255
    maps = np.random.default_rng(4).integers(0, 9, (3, *size)).astype(np.float32)
    settings = Evaluation(**{**PLAIN, "draws": 1, **changed})
    model = loaded(threshold(*pixel), folder, size=size)
    found = evaluate(model, image_set(images), {"maps": bundle(folder, {0: maps, 1: maps}, 3)}, settings)
    rank, pixels = order(maps[0], settings.ties).index(pixel[0] * size[1] + pixel[1]), maps[0].size
    shown = (np.arange(pixels + 1) > rank).astype(float)
    rows = rows_of(found)
    check(rows["image-0", 1], shown, settings, 1 - shown)
    check(rows["image-0", 0], 1 - shown, settings)
    if settings.steps.rule == "exact":
        np.testing.assert_allclose(rows["image-0", 1]["insertion"], (pixels - rank) / pixels, atol=1e-6)
        np.testing.assert_allclose(rows["image-0", 1]["deletion"], rank / pixels, atol=1e-6)


# A constant -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("infill", ["gray", "blur", "random"])
@pytest.mark.parametrize("steps", ["3", "exact", "auto"])
@pytest.mark.parametrize("ties", ["first", "last", "random"])
def test_a_constant_is_complete_and_sound(tmp_path: Path, infill: str, steps: str, ties: str) -> None:
    images, maps = photographs(3), {label: noise_maps(3, label) for label in range(3)}
    settings = Evaluation(infill=infill, steps=parse_steps(steps), ties=ties, controls=False, draws=2)
    model = loaded(constant, tmp_path)
    found = evaluate(model, image_set(images), {"maps": bundle(tmp_path, maps, 3)}, settings)
    for row in found.rows:
        level = [0.1, 0.7, 0.2][row["label"]]
        check(row, np.full(PIXELS + 1, level), settings, np.full(PIXELS + 1, level) if row["label"] == 1 else None)
    for name in ("completeness", "soundness", "worst_completeness", "worst_soundness", "best_effort"):
        np.testing.assert_allclose(found.value(name, "maps"), 1, atol=1e-6)
    for name in ("insertion", "deletion"):
        np.testing.assert_allclose(found.value(name, "maps"), 0.7, atol=1e-6)


def test_a_constant_needs_the_first_grid_only(tmp_path: Path) -> None:
    found = evaluate(
        loaded(constant, tmp_path), image_set(photographs(1)),
        {"maps": bundle(tmp_path, {1: noise_maps(1, 1)}, 1)}, Evaluation(controls=False),
    )  # fmt: skip
    assert len(rows_of(found)["image-0", 1]["keep_counts"]) == 2 * FIRST_GAPS + 1


# Completeness and soundness -------------------------------------------------------------------------------------------


def test_metrics_are_means_and_means_of_minima(tmp_path: Path) -> None:
    """From the closed form of every pair, without looking at the rows."""
    images, maps = photographs(5), {0: noise_maps(5, 1), 1: noise_maps(5, 2)}
    images[3:] //= 4  # dark: label 0 is the prediction
    settings = Evaluation(**PLAIN)
    model = loaded(mass, tmp_path, (40, 40, 40))
    found = evaluate(model, image_set(images), {"maps": bundle(tmp_path, maps, 5)}, settings)
    table = np.zeros((5, 2, 4))  # alpha, beta, insertion, deletion
    for place, picture in enumerate(grey_of(model.preprocess(images))):
        for label in (0, 1):
            best_first = order(maps[label][place])
            infill = np.full(SIZE, 40 / 255)
            shown, hidden = mass_curve(picture, [infill], best_first), mass_curve(infill, [picture], best_first)
            shown, hidden = (shown, hidden) if label else (1 - shown, 1 - hidden)
            area, whole = exact_area(shown), shown[-1]
            table[place, label] = (
                ratio(max(area, 0.01), whole),
                ratio(max(whole, 0.001), area),
                area,
                exact_area(hidden),
            )
    predicted = np.array([1, 1, 1, 0, 0])
    expected = {
        "completeness": table[..., 0].mean(), "soundness": table[..., 1].mean(),
        "worst_completeness": table[..., 0].min(axis=1).mean(), "worst_soundness": table[..., 1].min(axis=1).mean(),
        "best_effort": table[np.arange(5), 1 - predicted, 0].mean(),
        "insertion": table[np.arange(5), predicted, 2].mean(), "deletion": table[np.arange(5), predicted, 3].mean(),
    }  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(found.value(name, "maps"), value, atol=1e-5, err_msg=name)
    assert 0.1 < expected["worst_soundness"] < 0.95  # the figures say something
    assert all(metric.value is not None and metric.n in (5, 10) for metric in found.metrics)


@pytest.mark.parametrize(("eps1", "eps2"), [(0.0, 0.0), (0.3, 0.2)])
@pytest.mark.parametrize("steps", ["exact", "auto"])
def test_the_floors_of_alpha_and_beta(tmp_path: Path, eps1: float, eps2: float, steps: str) -> None:
    """A label of probability 0 that the curve never shows either, and one that it shows in part."""
    images, maps = photographs(2), {0: noise_maps(2, 1), 1: noise_maps(2, 2)}
    settings = Evaluation(**{**PLAIN, "steps": parse_steps(steps)}, eps1=eps1, eps2=eps2)
    images[0] = 255  # the whole picture has label 1 for certain, and label 0 not at all
    model = loaded(mass, tmp_path)
    found = evaluate(model, image_set(images), {"maps": bundle(tmp_path, maps, 2)}, settings)
    check_mass(model, images, maps, found, settings, (0, 0, 0))
    assert rows_of(found)["image-0", 0]["alpha"] == 1
    sure = loaded(lambda rows: np.tile([0.0, 1.0], (len(rows), 1)), tmp_path)
    for row in evaluate(sure, image_set(images), {"maps": auditkit.open_bundle(tmp_path / "maps")}, settings).rows:
        assert (row["alpha"], row["beta"], row["insertion"]) == pytest.approx((1, 1, row["label"]), abs=1e-12)


SUMS = ("completeness", "soundness", "worst_completeness", "worst_soundness", "best_effort")


def test_maps_for_the_predicted_label_alone_assess_no_soundness(tmp_path: Path) -> None:
    images = photographs(3)
    model = loaded(mass, tmp_path)
    for settings in (Evaluation(**PLAIN), Evaluation(**PLAIN, labels="top1"), Evaluation(**PLAIN, labels="1")):
        maps = tmp_path / "maps"
        opened = auditkit.open_bundle(maps) if maps.exists() else bundle(tmp_path, {1: noise_maps(3, 2)}, 3)
        found = evaluate(model, image_set(images), {"maps": opened}, settings)
        for name in SUMS:
            (metric,) = (m for m in found.metrics if m.name == name)
            assert metric.value is None
            assert metric.not_assessed
        assert found.value("insertion", "maps") is not None
        missing = [row for row in found.rows if row.get("error")]
        assert len(missing) == (3 if settings.labels is None else 0)
        assert all(row.get("alpha") is None and row.get("beta") is None for row in missing)
        assert any(flag.kind == "maps-missing" for flag in found.flags) == bool(missing)


@pytest.mark.parametrize("absent", [(0, 0), (2, 1)])
def test_one_missing_map_of_many_assesses_no_soundness(tmp_path: Path, absent: tuple[int, int]) -> None:
    writer = auditkit.Bundle(tmp_path / "maps")
    for label in (0, 1):
        for place in range(3):
            if (place, label) != absent:
                writer.add([f"image-{place}"], [label], noise_maps(1, 2 * place + label))
    settings = Evaluation(**{**PLAIN, "controls": True, "steps": parse_steps("4")})
    model = loaded(mass, tmp_path)
    found = evaluate(model, image_set(photographs(3)), {"maps": auditkit.open_bundle(tmp_path / "maps")}, settings)
    assert [found.value(name, "maps") for name in SUMS] == [None] * 5
    assert all(found.value(name, "control:random") is not None for name in SUMS)
    assert [flag for flag in found.flags if flag.kind == "maps-missing"] == [Flag("maps-missing", "maps", 1)]
    assert len([row for row in found.rows if row["bundle"] == "maps"]) == 6


def test_an_image_without_any_map_is_recorded(tmp_path: Path) -> None:
    maps = bundle(tmp_path, {0: noise_maps(2, 1), 1: noise_maps(2, 2)}, 2)
    found = evaluate(loaded(mass, tmp_path), image_set(photographs(3)), {"maps": maps}, Evaluation(**PLAIN))
    assert found.value("soundness", "maps") is None
    assert [row["image"] for row in found.rows if row.get("error")] == ["image-2"] * 2


@pytest.mark.parametrize("wrong", [{"ties": "sideways"}, {"seed": -1}, {"infill": "pink"}, {"draws": 0}, {"eps1": 1.0}])
def test_impossible_settings_are_refused_before_anything_is_run(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=str(next(iter(wrong.values())))):
        Evaluation(**wrong)


@pytest.mark.parametrize("size", [SIZE, (24, 24)], ids=["small", "large"])
@pytest.mark.parametrize("steps", ["8", "exact", "auto"])
def test_a_model_that_answers_nan_to_a_masked_picture_is_told(
    tmp_path: Path, steps: str, size: tuple[int, int]
) -> None:
    """Whole and empty pictures are fine, so only the curves meet it; no step rule may ask on and on."""
    asked = 0

    def moody(images: Array) -> Array:
        nonlocal asked
        asked += len(images)
        assert asked < 20_000, "there are not so many points on these curves"
        answer = mass(images)
        answer[(answer[:, 1] > 0.2) & (answer[:, 1] < 0.4)] = np.nan
        return answer

    maps = bundle(tmp_path, {label: noise_maps(2, label, size) for label in (0, 1)}, 2)
    settings = Evaluation(**{**PLAIN, "steps": parse_steps(steps)})
    with pytest.raises(AuditError, match="NaN"):
        evaluate(loaded(moody, tmp_path, size=size), image_set(photographs(2, size)), {"maps": maps}, settings)


# Flags ----------------------------------------------------------------------------------------------------------------


def flags_of(folder: Path, maps: Mapping[int, Array], count: int = 2) -> set[str]:
    found = evaluate(
        loaded(mass, folder), image_set(photographs(count)), {"maps": bundle(folder, maps, count)},
        Evaluation(steps=parse_steps("4")),
    )  # fmt: skip
    assert all(flag.bundle == "maps" for flag in found.flags)  # controls are odd on purpose
    return {flag.kind for flag in found.flags}


def test_good_maps_raise_no_flag(tmp_path: Path) -> None:
    assert flags_of(tmp_path, {0: noise_maps(2, 1), 1: noise_maps(2, 2)}) == set()


def test_one_map_for_all_labels_is_flagged(tmp_path: Path) -> None:
    assert flags_of(tmp_path, {0: noise_maps(2, 1), 1: noise_maps(2, 1)}) == {"same-map-for-all-labels"}


def test_zero_and_minus_zero_are_the_same_score(tmp_path: Path) -> None:
    """Cut off below zero: what a class activation map leaves is 0.0 or -0.0, and means the same."""
    maps = np.maximum(noise_maps(2, 1), 0)
    found = flags_of(tmp_path, {0: np.where(maps == 0, np.float32(0), maps), 1: np.where(maps == 0, -maps, maps)})
    assert "same-map-for-all-labels" in found


def test_one_map_for_all_images_is_flagged(tmp_path: Path) -> None:
    same = np.stack([noise_maps(1, 1)[0]] * 2)
    assert flags_of(tmp_path, {0: same, 1: same}) == {"same-map-for-all-labels", "position-only"}


def test_a_map_for_each_label_that_no_image_changes_is_flagged(tmp_path: Path) -> None:
    """Another map for each label, but the same for all images: still a function of the position only."""
    maps = {label: np.stack([noise_maps(1, label)[0]] * 2) for label in (0, 1)}
    assert flags_of(tmp_path, maps) == {"position-only"}


def test_one_image_says_nothing_about_position(tmp_path: Path) -> None:
    assert flags_of(tmp_path, {0: noise_maps(1, 1), 1: noise_maps(1, 2)}, count=1) == set()


def test_constant_maps_are_flagged(tmp_path: Path) -> None:
    maps = {0: noise_maps(2, 1), 1: noise_maps(2, 2)}
    maps[1][0] = 0.25
    found = evaluate(
        loaded(mass, tmp_path), image_set(photographs(2)), {"maps": bundle(tmp_path, maps, 2)},
        Evaluation(steps=parse_steps("4")),
    )  # fmt: skip
    assert found.flags == (Flag("constant", "maps", 1, 4), Flag("ties", "maps", 1, 4))


@pytest.mark.parametrize(("levels", "flagged"), [(28, False), (26, True)])
def test_ties_are_flagged_from_half_the_pixels(tmp_path: Path, levels: int, flagged: bool) -> None:
    """`levels` pixels with scores of their own, the others tied."""
    maps = {label: noise_maps(2, label) for label in (0, 1)}
    for stack in maps.values():
        for one in stack.reshape(2, -1):
            one[np.random.default_rng(int(abs(one[0]) * 1e6)).permutation(PIXELS)[levels:]] = 9
    assert flags_of(tmp_path, maps) == ({"ties"} if flagged else set())


# What is run, and how often -------------------------------------------------------------------------------------------


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rows are spent on whether the runtime can be trusted."""
    trusted: Future[Runtime] = Future()
    trusted.set_result(Runtime(None, 0, 0.0, largest=None, mean=None, insertion=None, alpha=None, beta=None, note=None))
    monkeypatch.setattr(runtime_check, "checked", lambda work, *_: (work, trusted))


class Counting:
    """A function that remembers every picture it was asked about."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.seen: list[bytes] = []

    def __call__(self, images: Array) -> Array:
        self.seen += [image.tobytes() for image in images]
        return self.function(images)


def passes(
    folder: Path, maps: Mapping[int, Array], count: int, images: Array | None = None, **changed: Any
) -> list[bytes]:
    """Every picture that an evaluation asks about."""
    counting = Counting(mass)
    model = loaded(counting, folder)
    counting.seen.clear()
    pictures = photographs(count) if images is None else images
    settings = Evaluation(**{**PLAIN, **changed})
    evaluate(model, image_set(pictures), {"maps": bundle(folder, maps, count)}, settings)
    return counting.seen


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("deletion", [False, True])
def test_no_picture_is_asked_about_twice(tmp_path: Path, count: int, deletion: bool) -> None:
    """One pass for each whole image and one for the gray; n-1 for each map, and again for the predicted's deletion."""
    maps = {0: noise_maps(count, 1), 1: noise_maps(count, 2)}
    seen = passes(tmp_path, maps, count, deletion=deletion)
    assert len(seen) == count + 1 + count * (PIXELS - 1) * (3 if deletion else 2)
    assert len(set(seen)) == len(seen)


@pytest.mark.usefixtures("unchecked")
def test_equal_maps_are_run_once(tmp_path: Path) -> None:
    seen = passes(tmp_path, {0: noise_maps(2, 1), 1: noise_maps(2, 1)}, 2, deletion=False)
    assert len(seen) == 2 + 1 + 2 * (PIXELS - 1)


@pytest.mark.usefixtures("unchecked")
def test_equal_maps_of_two_bundles_and_the_control_are_run_once(tmp_path: Path) -> None:
    """With the map of the prediction for both labels, the control has nothing to add; ties shuffled or not."""
    counting, count = Counting(mass), 2
    model = loaded(counting, tmp_path)
    bundles = {name: bundle(tmp_path, {0: noise_maps(2, 1), 1: noise_maps(2, 1)}, 2, name) for name in ("one", "two")}
    sole = {"one": bundles["one"]}
    asked = []
    for given in (sole, bundles):
        counting.seen.clear()
        evaluate(model, image_set(photographs(count)), given, Evaluation(steps=EXACT, saliency="none"))
        asked.append(len(counting.seen))
    controls = 2 + 6  # random: a map a label; gaussian, constant, edges, blurred edges, two with noise: one for both
    insertions = 1 + controls
    deletions = 1 + 1 + 6
    assert asked == [count + 1 + count * (insertions + deletions) * (PIXELS - 1)] * 2


@pytest.mark.usefixtures("unchecked")
def test_the_end_points_of_random_infills_are_asked_once(tmp_path: Path) -> None:
    """Four images with the three others as infills: the pictures themselves, once as images and once as infills."""
    maps = {0: noise_maps(4, 1), 1: noise_maps(4, 2)}
    seen = passes(tmp_path, maps, 4, infill="random", draws=3, deletion=False)
    assert len(seen) == 4 + 4 + 3 * 4 * 2 * (PIXELS - 1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("steps", ["1", "2", "10"])
def test_uniform_steps_cost_one_pass_less_than_steps(tmp_path: Path, steps: str) -> None:
    maps = {0: noise_maps(2, 1), 1: noise_maps(2, 2)}
    seen = passes(tmp_path, maps, 2, steps=parse_steps(steps), deletion=False)
    assert len(seen) == 2 + 1 + 4 * (int(steps) - 1)


# Frames ---------------------------------------------------------------------------------------------------------------


def test_maps_over_the_photograph_are_cropped_with_it(tmp_path: Path) -> None:
    """No resize and a centre crop: the map loses what the picture loses."""
    images = photographs(2, (10, 15))
    maps = {label: noise_maps(2, label, (10, 15)) for label in (0, 1)}
    model = loaded(mass, tmp_path, more='resize = "none"\ncrop = "center"\n')
    settings = Evaluation(**PLAIN)
    over = bundle(tmp_path, maps, 2, frame="original-image")
    found = evaluate(model, image_set(images), {"maps": over}, settings)
    cropped = {label: stack[:, 2:8, 3:12] for label, stack in maps.items()}
    check_mass(model, images, cropped, found, settings, (0, 0, 0))
    with pytest.raises(AssertionError):
        check_mass(model, images, {k: v[:, 1:7, 3:12] for k, v in maps.items()}, found, settings, (0, 0, 0))


def test_maps_over_a_larger_photograph_are_shrunk_with_it(tmp_path: Path) -> None:
    """Scores that rise along the lines of the picture keep their order in any average over neighbours."""
    tall = (18, 27)
    images = photographs(2, tall)
    rising = np.arange(tall[0] * tall[1], dtype=np.float32).reshape(tall)
    rising[:, :] = np.arange(18)[:, None] * 100 + np.arange(27)
    maps = {0: np.stack([rising, -rising]), 1: np.stack([-rising, rising])}
    model = loaded(mass, tmp_path)
    settings = Evaluation(**PLAIN)
    over = bundle(tmp_path, maps, 2, frame="original-image")
    found = evaluate(model, image_set(images), {"maps": over}, settings)
    small = np.arange(PIXELS, dtype=np.float32).reshape(SIZE)
    check_mass(model, images, {0: np.stack([small, -small]), 1: np.stack([-small, small])}, found, settings, (0, 0, 0))


def doubled(cam: Array) -> Array:
    """A map at twice its size, bilinear with half-pixel centres."""
    side = np.clip((np.arange(2 * len(cam)) + 0.5) / 2 - 0.5, 0, len(cam) - 1)
    low = np.minimum(side.astype(int), len(cam) - 2)
    share = side - low
    lines = cam[low] * (1 - share)[:, None] + cam[low + 1] * share[:, None]
    return np.asarray(lines[:, low] * (1 - share) + lines[:, low + 1] * share)


def test_small_maps_are_stretched_over_the_input(tmp_path: Path) -> None:
    """7x7, as class activation maps are, over 14x14."""
    cams = {label: np.random.default_rng(label).random((2, 7, 7)) for label in (0, 1)}
    images, settings = photographs(2, (14, 14)), Evaluation(**PLAIN)
    model = loaded(mass, tmp_path, size=(14, 14))
    found = evaluate(model, image_set(images), {"maps": bundle(tmp_path, cams, 2)}, settings)
    large = {label: np.stack([doubled(cam) for cam in stack]) for label, stack in cams.items()}
    check_mass(model, images, large, found, settings, (0, 0, 0))


def test_a_map_out_of_proportion_is_refused(tmp_path: Path) -> None:
    maps = bundle(tmp_path, {0: noise_maps(1, 1, (9, 6)), 1: noise_maps(1, 2, (9, 6))}, 1)
    with pytest.raises(BadInput, match="9x6"):
        evaluate(loaded(mass, tmp_path), image_set(photographs(1)), {"maps": maps}, Evaluation(**PLAIN))


# Planted bugs ---------------------------------------------------------------------------------------------------------


def shifted_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (HostMasked, OnnxMasked):
        run = kind.run

        def late(self: Any, rows: Array, banks: Any, run: Any = run) -> Any:
            moved = rows.copy()
            moved[:, hard_masks.KEEP] = np.maximum(moved[:, hard_masks.KEEP] - 1, 0)
            return run(self, moved, banks)

        monkeypatch.setattr(kind, "run", late)


def swapped_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    run = HostMasked.run
    turned = [hard_masks.BOTTOM, hard_masks.TOP, hard_masks.MAP, hard_masks.KEEP]
    monkeypatch.setattr(HostMasked, "run", lambda self, rows, banks: run(self, rows[:, turned], banks))


def ascending_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditkit.runs.evaluation.maps.Order", lambda values: Order(-values))


def rows_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    run = HostMasked.run

    def turned(self: Any, rows: Array, banks: Any) -> Any:
        for part, probabilities in run(self, rows, banks):
            yield part, probabilities[::-1]

    monkeypatch.setattr(HostMasked, "run", turned)


def trapezoid_area(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over 0..n with half weights at the ends is another figure than the mean over 1..n."""
    monkeypatch.setattr(
        "auditkit.runs.evaluation.curves.area", lambda counts, values: np.trapezoid(values, counts) / counts[-1]
    )


def eps_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "soundness", lambda shown, whole, _eps: np.minimum(1, 0.999 * whole / shown))


PLANTED = [shifted_keep, swapped_pictures, ascending_ranks, rows_out_of_order, trapezoid_area, eps_left_out]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """The check that passes above fails on each of these, so that its passing means something.

    Rows that are out of order are found by the run itself.
    """
    plant(monkeypatch)
    with pytest.raises(RuntimeFailure if plant is rows_out_of_order else AssertionError):
        solve_mass(tmp_path, gray=(60, 60, 60))


def test_a_planted_shift_is_caught_in_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shifted_keep(monkeypatch)
    with pytest.raises(AssertionError):
        solve_mass(tmp_path, function=mass_file(tmp_path), gray=(60, 60, 60))


@pytest.mark.parametrize(("less", "labels"), [(0.0, {0, 2}), (1e-7, {0, 2}), (1e-3, {0, 1})])
def test_maps_of_a_label_that_is_as_probable_as_the_chosen_one_are_taken(
    less: float, labels: set[int], tmp_path: Path
) -> None:
    """If rounding alone puts label 1 before label 2, the maps of label 2 will do; if a clear difference does, not."""

    def answer(images: Array) -> Array:
        return np.tile([0.6, 0.2, 0.2 - less, less], (len(images), 1))

    maps = bundle(tmp_path, {label: noise_maps(2, label) for label in (0, 2)}, 2)
    settings = Evaluation(**PLAIN, labels="top2")
    summary = evaluate(loaded(answer, tmp_path), image_set(photographs(2)), {"maps": maps}, settings)
    rows = rows_of(summary)
    assert {label for _, label in rows} == labels
    assert all((row["error"] is None) == (label != 1) for (_, label), row in rows.items())
