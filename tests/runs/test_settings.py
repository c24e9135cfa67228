"""Settings of an evaluation against closed forms: labels, renormalised or not, ranges, infills, orders in ties."""

import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.errors import AuditError, BadInput
from auditkit.metrics.curves import Steps, parse_steps
from auditkit.model.device import PROFILES
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.settings import Evaluation, resolved, units
from auditkit.runs.folder.store import Store
from auditkit.runs.summary.summarise import Summary
from auditkit.runs.summary.wording import remark
from tests.runs.test_evaluation import (
    PIXELS,
    PLAIN,
    SIZE,
    Array,
    bundle,
    grey_of,
    image_set,
    infills_of,
    inputs_of,
    loaded,
    mass,
    mass_curve,
    noise_maps,
    order,
    photographs,
    ratio,
    rows_of,
    straight_area,
)
from tests.support import onnx_models
from tests.support.commands import auditkit as command
from tests.support.commands import refused


def three(images: Array) -> Array:
    """Three labels: the brightness has the last, the darkness is shared 3 to 1 by the others."""
    dark, bright = mass(images).T
    return np.stack([0.75 * dark, 0.25 * dark, bright], axis=1)


def three_of(bright: Array) -> Array:
    """The same from known brightness, labels last."""
    return np.stack([0.75 * (1 - bright), 0.25 * (1 - bright), bright], axis=-1)


def run(folder: Path, count: int = 3, function: Any = three, maps: Any = None, **settings: Any) -> Summary:
    model, images = loaded(function, folder, (30, 90, 200)), photographs(count)
    where = folder / "maps"
    given = auditkit.open_bundle(where) if where.exists() else bundle(folder, maps or all_maps(count), count)
    return evaluate(model, image_set(images), {"maps": given}, Evaluation(**{**PLAIN, **settings}))


def all_maps(count: int = 3, labels: int = 3) -> dict[int, Array]:
    return {label: noise_maps(count, label + 1) for label in range(labels)}


def brightness(folder: Path, place: int, scores: Array, infill: str = "gray", deletion: bool = False) -> Array:
    """[infills, n + 1] brightness of a photograph with its first s pixels shown, or hidden when deleting."""
    model, images = loaded(three, folder, (30, 90, 200)), photographs(3)
    picture, best_first = grey_of(inputs_of(model, images))[place], order(scores)
    infills = infills_of(model, images, infill, (30, 90, 200), place)
    ends = [(infill, [picture]) if deletion else (picture, [infill]) for infill in infills]
    return np.stack([mass_curve(*end, best_first) for end in ends])


# Labels ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("all", {0, 1, 2}), ("top1", {2}), ("top2", {0, 2}), ("f>=0.2", {0, 2}), ("1", {1}), ("2, 1", {1, 2})],
)
def test_a_label_set_is_what_is_measured(tmp_path: Path, labels: str, expected: set[int]) -> None:
    """Bright photographs: label 2 has near 0.7, label 0 near 0.23."""
    found = run(tmp_path, labels=labels)
    assert {row["label"] for row in found.rows} == expected
    assert len(found.rows) == 3 * len(expected)
    assert {metric.labels for metric in found.metrics} == {labels.replace(" ", "")}


@pytest.mark.parametrize(("labels", "text"), [(1, "1"), ([2, 1], "2,1"), (np.array([0, 2]), "0,2"), ("0,2", "0,2")])
def test_labels_as_python_has_them(tmp_path: Path, labels: Any, text: str) -> None:
    model = loaded(three, tmp_path)
    found = auditkit.evaluate(model, photographs(1), labels=labels, steps=2)
    assert found.settings.labels == text


@pytest.mark.parametrize("labels", [None, "all", "top2", "f>=0.1"])
def test_insertion_deletion_and_the_saliency_metric_are_about_the_predicted_label(
    tmp_path: Path, labels: str | None
) -> None:
    found = run(tmp_path, labels=labels, saliency="component")
    for name in ("insertion", "deletion", "saliency_metric"):
        own = [row[name] for row in found.rows if row["predicted"]]
        assert found.value(name, "maps") == pytest.approx(np.mean(own))
    assert all(row["deletion"] is None for row in found.rows if not row["predicted"])


@pytest.mark.parametrize("labels", ["0", "1,0", "0,1,2"])
def test_or_about_the_labels_that_are_listed(tmp_path: Path, labels: str) -> None:
    """Not one of the first two is ever predicted; each has its own deletion curve all the same."""
    maps = all_maps()
    found, listed = run(tmp_path, labels=labels, saliency="component", maps=maps), labels.split(",")
    rows = rows_of(found)
    for (image, label), row in rows.items():
        scores = maps[label][int(image.removeprefix("image-"))]
        for name, deletion in (("insertion", False), ("deletion", True)):
            curve = three_of(brightness(tmp_path, int(image[-1]), scores, deletion=deletion)[0])[:, label]
            assert row[name] == pytest.approx(curve[1:].mean(), abs=1e-6)
    for name in ("insertion", "deletion", "saliency_metric", "degenerate_boxes"):
        column = {"degenerate_boxes": "box_degenerate"}.get(name, name)
        assert found.value(name, "maps") == pytest.approx(np.mean([row[column] for row in rows.values()]))
        (metric,) = (metric for metric in found.metrics if metric.name == name)
        assert metric.n == 3
    assert len(rows) == 3 * len(listed)


def test_a_listed_label_without_a_map_is_told(tmp_path: Path) -> None:
    found = run(tmp_path, labels="1", maps={0: noise_maps(3, 1)})
    reasons = {metric.name: remark(metric) for metric in found.metrics}
    assert reasons["insertion"] == reasons["deletion"] == "no map for a named label"
    found = run(tmp_path, labels="top1")
    assert {remark(m) for m in found.metrics if m.name == "deletion"} == {"no map for the predicted label"}


# Renormalised probabilities -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("infill", ["gray", "random"])
@pytest.mark.parametrize(("labels", "own"), [("0,2", [0, 2]), ("1,0", [0, 1]), ("top2", [0, 2]), ("all", [0, 1, 2])])
@pytest.mark.parametrize("steps", ["exact", "7"])
def test_probabilities_given_that_the_label_is_one_of_the_set(
    tmp_path: Path, infill: str, labels: str, own: list[int], steps: str
) -> None:
    """Also where an average over infills is taken: of the renormalised probabilities, not of the whole ones."""
    maps = all_maps()
    found = run(tmp_path, labels=labels, renormalise=True, infill=infill, draws=2, steps=parse_steps(steps), maps=maps)
    rows = rows_of(found)
    assert len(rows) == 3 * len(own)
    for (image, label), row in rows.items():
        place, at = int(image[-1]), own.index(label)
        curves = []
        for deletion in (False, True):
            shares = three_of(brightness(tmp_path, place, maps[label][place], infill, deletion))[..., own]
            curves.append((shares / shares.sum(axis=-1, keepdims=True)).mean(axis=0))
        shown, counts = curves[0][:, at], row["keep_counts"]
        assert row["predicted"] == (at == curves[0][-1].argmax())
        assert row["prob"] == pytest.approx(shown[-1], abs=1e-6)
        np.testing.assert_allclose(row["curve"], shown[counts], atol=1e-6)
        assert row["insertion"] == pytest.approx(straight_area(counts, shown[counts]), abs=1e-6)
        assert row["alpha"] == pytest.approx(ratio(max(row["insertion"], 0.01), shown[-1]), abs=1e-6)
        if row["predicted"]:
            hidden = curves[1][:, at]
            assert row["deletion"] == pytest.approx(straight_area(counts, hidden[counts]), abs=1e-6)
    assert all(metric.renormalised is True for metric in found.metrics)


def test_auto_knows_its_error_of_renormalised_curves(tmp_path: Path) -> None:
    maps = all_maps()
    exact = rows_of(run(tmp_path, labels="0,2", renormalise=True, maps=maps))
    auto = rows_of(run(tmp_path, labels="0,2", renormalise=True, steps=parse_steps("auto")))
    for key, row in auto.items():
        assert abs(row["insertion"] - exact[key]["insertion"]) <= row["insertion_error"] + 1e-6


def test_one_renormalised_label_is_certain(tmp_path: Path) -> None:
    found = run(tmp_path, labels="1", renormalise=True)
    assert all((row["prob"], row["insertion"]) == pytest.approx((1, 1)) and row["predicted"] for row in found.rows)


def test_labels_that_the_model_rules_out_cannot_share_anything(tmp_path: Path) -> None:
    def sure(images: Array) -> Array:
        return np.tile([0.0, 0.0, 1.0], (len(images), 1))

    with pytest.raises(AuditError, match="every label of the set has probability 0"):
        run(tmp_path, function=sure, labels="0,1", renormalise=True)


# Ranges ---------------------------------------------------------------------------------------------------------------

RANGES = [(0.2, 0.6), (0.0, 0.5), (0.5, 1.0), (0.33, 0.35), (0.0, 0.03), (0.98, 1.0)]


@pytest.mark.parametrize("kept", RANGES)
@pytest.mark.parametrize("steps", ["1", "5", "1000", "exact", "auto", "auto:1e-3"])
@pytest.mark.parametrize("infill", ["gray", "random"])
def test_areas_over_a_part_of_the_curve(tmp_path: Path, kept: tuple[float, float], steps: str, infill: str) -> None:
    """The mean over every count above the low end, up to the high one; down to a single pixel."""
    maps = all_maps()
    settings = {"range": kept, "steps": parse_steps(steps), "infill": infill, "draws": 2}
    found = run(tmp_path, maps=maps, **settings)
    low, high = (math.floor(end * PIXELS) for end in kept)
    off = []  # in claimed errors
    for (image, label), row in rows_of(found).items():
        place = int(image[-1])
        for name, deletion in (("insertion", False), ("deletion", True)):
            if deletion and not row["predicted"]:
                continue
            curves = brightness(tmp_path, place, maps[label][place], infill, deletion)
            curve = three_of(curves)[..., label].mean(axis=0)
            if steps.startswith("auto"):
                off.append(abs(row[name] - curve[low + 1 : high + 1].mean()) / (row[f"{name}_error"] + 1e-6))
            else:
                width = high - low
                gaps = min(int(steps), width) if steps != "exact" else width
                at = np.unique(np.round(np.linspace(0, width, 1 + gaps))).astype(int) + low
                assert row[name] == pytest.approx(straight_area(at - low, curve[at]), abs=1e-6)
                assert (row[f"{name}_error"] == 0) == (len(at) == width + 1)
        shown = three_of(brightness(tmp_path, place, maps[label][place], infill))[..., label].mean(axis=0)
        counts = row["keep_counts"]
        assert (counts[0], counts[-1]) == (low, high)
        np.testing.assert_allclose(row["curve"], shown[counts], atol=1e-6)
        assert row["prob"] == pytest.approx(shown[-1], abs=1e-6)  # of the whole image, whatever the range
        assert row["alpha"] == pytest.approx(ratio(max(row["insertion"], 0.01), shown[-1]), abs=1e-6)
    assert np.sum(np.array(off) > 1) <= 1  # of twelve; it holds 95 times in 100
    assert max(off, default=0) < 2
    assert {metric.range for metric in found.metrics} == {kept}


def test_parts_of_a_curve_make_up_the_whole(tmp_path: Path) -> None:
    whole, first, second = (run(tmp_path, range=kept) for kept in ((0.0, 1.0), (0.0, 0.5), (0.5, 1.0)))
    for name in ("insertion", "deletion"):
        halves = [part.value(name, "maps") for part in (first, second)]
        assert whole.value(name, "maps") == pytest.approx(np.mean(halves), abs=1e-6)


# Infills --------------------------------------------------------------------------------------------------------------


def picture(folder: Path, mode: str = "RGB", size: tuple[int, int] = SIZE) -> Path:
    pixels = np.random.default_rng(7).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(folder / "infill.png")
    return folder / "infill.png"


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("size", [SIZE, (18, 27)])
def test_a_given_image_stands_in_for_hidden_pixels(tmp_path: Path, mode: str, size: tuple[int, int]) -> None:
    """Prepared as any image is: in colour, and at the model's size."""
    maps, path = all_maps(), picture(tmp_path, mode, size)
    found = run(tmp_path, infill=f"image:{path}", maps=maps)
    model = loaded(three, tmp_path)
    stands_in = grey_of(model.preprocess([Image.open(path)]))[0]
    for place, shown in enumerate(grey_of(inputs_of(model, photographs(3)))):
        for label in range(3):
            row, best_first = rows_of(found)[f"image-{place}", label], order(maps[label][place])
            curve = three_of(mass_curve(shown, [stands_in], best_first))[:, label]
            np.testing.assert_allclose(row["curve"], curve, atol=1e-6)
            assert row["infill"] == f"image:{path.name}"


def test_several_infills_are_measured_as_each_would_be_alone(tmp_path: Path) -> None:
    path = picture(tmp_path)
    infills = {"blur": "blur", f"image:{path.name}": f"image:{path}", "gray": "gray", "random": "random"}
    asked = (*infills.values(), "gray")
    together = run(tmp_path, infill=asked, controls=True, draws=2, saliency="component")
    assert together.settings.infills == tuple(infills)
    for name, infill in infills.items():
        alone = run(tmp_path, infill=infill, controls=True, draws=2, saliency="component")
        mine = [row for row in together.rows if row["infill"] == name]
        assert mine == alone.rows
        for metric in alone.metrics:
            assert together.value(metric.name, metric.bundle, name) == alone.value(metric.name, metric.bundle)
            assert metric.infill == name
    assert len(together.rows) == 4 * len(alone.rows)
    assert together.value("insertion", "maps") == together.value("insertion", "maps", "blur")  # the first
    assert together.grid()[0][:2] == ["maps", "infill"]


def test_one_image_with_several_infills(tmp_path: Path) -> None:
    """One picture of a kind serves one image as it serves many."""
    names = ("gray", "blur", f"image:{picture(tmp_path)}")
    found = run(tmp_path, count=1, infill=names)
    firsts = {row["infill"]: row["curve"][0] for row in found.rows if row["label"] == 2}
    assert len(set(firsts.values())) == 3
    assert firsts["gray"] == pytest.approx(np.dot([0.5, 0.375, 0.125], [30 / 255, 90 / 255, 200 / 255]), abs=1e-6)


def test_a_run_goes_on_only_with_the_image_that_it_began_with(tmp_path: Path) -> None:
    model, path = loaded(three, tmp_path), picture(tmp_path)
    asked: dict[str, Any] = {"steps": 2, "infill": f"image:{path}", "out": tmp_path / "run"}
    auditkit.evaluate(model, photographs(2), **asked)
    auditkit.evaluate(model, photographs(2), **asked)
    Image.new("RGB", (9, 6)).save(path)
    with pytest.raises(BadInput, match="infill_images"):
        auditkit.evaluate(model, photographs(2), **asked)


def test_a_random_infill_is_never_the_image_itself_under_another_name(tmp_path: Path) -> None:
    """A pool that holds the audited images, which are called otherwise there."""
    images, model = photographs(3), loaded(three, tmp_path)
    masses = grey_of(inputs_of(model, images)).mean(axis=(1, 2))
    pool = image_set(images, ["x", "image-1", "y"])  # where image-1 is, it is by chance the same picture
    maps = {"maps": bundle(tmp_path, all_maps(), 3)}
    for pictures, draws in ((pool, 2), (image_set(images[[1, 2, 0]], ["image-0", "z", "w"]), 1)):
        settings = Evaluation(**PLAIN, infill="random", draws=draws)
        found = rows_of(evaluate(model, image_set(images), maps, settings, pool=pictures))
        for place in range(3):
            allowed = [m for other, m in enumerate(masses) if other != place]
            means = [*allowed, np.mean(allowed)]  # of one or of both others
            assert min(abs(found[f"image-{place}", 2]["curve"][0] - mean) for mean in means) < 1e-6
    same = image_set(images[[0, 0]], ["x", "y"])
    with pytest.raises(BadInput, match="the pool has none other than that of 'image-0'"):
        evaluate(model, image_set(images), maps, Evaluation(**PLAIN, infill="random"), pool=same)


def test_a_picture_of_the_pool_that_does_not_fit_is_named(tmp_path: Path) -> None:
    model = loaded(three, tmp_path, more='resize = "none"\ncrop = "none"\n')
    pool = image_set(photographs(2, (5, 5)), ["small", "smaller"])
    with pytest.raises(BadInput, match=r"Image 'small.*' of the pool cannot be used: a picture has 5x5 pixels"):
        evaluate(model, image_set(photographs(2)), {}, Evaluation(infill="random"), pool=pool)


# Orders in ties -------------------------------------------------------------------------------------------------------


def tied_maps(count: int = 3) -> dict[int, Array]:
    return {label: np.round(2 * stack) for label, stack in all_maps(count).items()}


@pytest.mark.parametrize("ties", ["first", "last", "random"])
def test_more_orders_of_tied_pixels_say_what_they_change(tmp_path: Path, ties: str) -> None:
    spreads = []
    plain = rows_of(run(tmp_path, ties=ties, maps=tied_maps()))
    for orders in (1, 2, 8):
        found = run(tmp_path, ties=ties, tie_orders=orders)
        rows = rows_of(found)
        for key, row in rows.items():
            assert row["insertion"] == plain[key]["insertion"]  # the figure itself stays
            assert row["insertion_low"] <= row["insertion"] <= row["insertion_high"]
        wide = [row["insertion_high"] - row["insertion_low"] for row in rows.values() if row["predicted"]]
        assert found.value("tie_spread", "maps") == pytest.approx(np.mean(wide))
        spreads.append(float(np.mean(wide)))
    assert 0 < spreads[0] < spreads[2]
    assert spreads[0] <= spreads[1] <= spreads[2]


def test_the_spread_of_a_constant_map_is_flagged(tmp_path: Path) -> None:
    """A picture that is bright on one side: the order alone decides when it shows."""
    images = photographs(2)
    images[:, :, :1], images[:, :, 1:] = 255, 0
    flat = {label: np.zeros((2, *SIZE), np.float32) for label in (0, 1)}
    settings = Evaluation(**{**PLAIN, "ties": "first"}, tie_orders=6)
    given = bundle(tmp_path, flat, 2)
    for steepness, flagged in ((9, True), (0.1, False)):

        def answer(rows: Array, steepness: float = steepness) -> Array:
            share = steepness * mass(rows)[:, 1]
            return np.stack([1 - share, share], axis=1)

        found = evaluate(loaded(answer, tmp_path), image_set(images), {"maps": given}, settings)
        assert any(flag.kind == "tie-order-matters" for flag in found.flags) == flagged


def test_untied_maps_have_no_spread(tmp_path: Path) -> None:
    found = run(tmp_path, tie_orders=5)
    assert found.value("tie_spread", "maps") == 0
    assert run(tmp_path).value("tie_spread", "maps") is None  # it was not asked for


# Wrong values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"labels": "some"}, "labels 'some' is not a label set"),
        ({"labels": "top0"}, "is not a label set"),
        ({"labels": "f>=0"}, "is not a label set"),
        ({"labels": []}, "is not a label set"),
        ({"labels": [1, 1]}, "label 1 is listed twice"),
        ({"labels": [3]}, "classes 0 to 2, but the list of labels contains 3"),
        ({"labels": "top4"}, "more labels than the model's 3 classes"),
        ({"infill": "pink"}, "unknown infill 'pink'; choose from gray, blur, random, blur:SIGMA, image:FILE"),
        ({"infill": "blur:wide"}, "infill 'blur:wide' needs a width above 0 and up to 1000 pixels"),
        ({"infill": ("gray", "blur:0")}, "infill 'blur:0' needs a width"),
        ({"infill": "blur:nan"}, "infill 'blur:nan' needs a width"),
        ({"infill": ("gray", "zero")}, "unknown infill 'zero'; choose from"),
        ({"infill": "image:"}, "there is no image"),
        ({"infill": "image:nowhere.png"}, "there is no image nowhere.png"),
        ({"steps": 0}, "steps '0'"),
        ({"steps": "auto:2"}, "steps 'auto:2'"),
        ({"range": (0.6, 0.2)}, "range 0.6 to 0.2"),
        ({"range": (0.2, 1.2)}, "range 0.2 to 1.2"),
        ({"range": (float("nan"), 1)}, "range nan to 1"),
        ({"range": "0.2:0.6"}, "range '0.2:0.6' is not two kept fractions"),
        ({"range": (0.2,)}, "not two kept fractions"),
        ({"range": (0.5, 0.501)}, "holds no pixel of 54"),
        ({"eps1": 1.0}, "eps1 1.0"),
        ({"eps2": -0.1}, "eps2 -0.1"),
        ({"ties": "none"}, "unknown ties 'none'; choose from random, first, last"),
        ({"tie_orders": -1}, "tie orders -1"),
        ({"draws": 0}, "draws 0"),
        ({"seed": -1}, "seed -1"),
        ({"saliency": "largest"}, "unknown saliency 'largest'; choose from none, component, tuned, both"),
        ({"interval": "normal"}, "unknown interval 'normal'; choose from"),
        ({"confidence": 95}, "confidence 95"),
        ({"protocols": "rise"}, "unknown setting 'protocols'; did you mean 'protocol'"),
        ({"pool": photographs(2)}, "a pool is for random infill"),
        ({"infill": "random", "pool": photographs(1)}, "at least two images"),
        ({"controls": False}, "nothing to evaluate"),
    ],
)
def test_a_wrong_value_is_refused_before_a_folder_is_made(tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    """So that the mended command can be given for the same folder."""
    model = loaded(three, tmp_path)
    with pytest.raises(BadInput, match=words.replace("(", r"\(")) as told:
        auditkit.evaluate(model, photographs(2), **{"out": tmp_path / "run", **wrong})
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_no_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("gray, please")
    with pytest.raises(BadInput, match=r"infill image:.*notes.txt cannot be read"):
        run(tmp_path, infill=f"image:{tmp_path / 'notes.txt'}")


def test_a_map_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """The bundle, the image and the label, before the size."""
    for infill in ("gray", "blur"):
        with pytest.raises(BadInput, match=r"maps, image 'image-0', label \d: a map of 9x6 does not fit"):
            run(tmp_path, infill=infill, maps={label: noise_maps(3, 1, (9, 6)) for label in range(3)})


def test_a_map_for_a_label_that_the_model_does_not_have_is_told(tmp_path: Path) -> None:
    """Labels counted from 1, say."""
    maps = {label + 1: stack for label, stack in all_maps().items()}
    with pytest.raises(BadInput, match="bundle maps has a map for label 3; the model has classes 0 to 2"):
        run(tmp_path, maps=maps)


@pytest.mark.parametrize("name", ["control:random", "control:mine", ""])
def test_a_bundle_cannot_take_the_name_of_a_control(tmp_path: Path, name: str) -> None:
    maps = bundle(tmp_path, all_maps(1), 1)
    with pytest.raises(BadInput, match=f"cannot be named '{name}'"):
        evaluate(loaded(three, tmp_path), image_set(photographs(1)), {name: maps}, Evaluation(**PLAIN))


def test_a_bundle_may_be_called_model(tmp_path: Path) -> None:
    """And is not taken for the figures that are about the model itself."""
    maps = bundle(tmp_path, all_maps(1), 1, "model")
    found = evaluate(loaded(three, tmp_path), image_set(photographs(1)), {"model": maps}, Evaluation(**PLAIN))
    assert [row[0] for row in found.grid()[1]] == ["model"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("files")
    np.savez(folder / "images.npz", images=photographs(2, (8, 8)))
    return onnx_models.save(onnx_models.convnet(size=8, classes=4), folder), folder / "images.npz"


def _evaluate(files: tuple[Path, Path], out: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    return command("evaluate", *files, "-o", out, "--preset", "unit", "--device", "cpu", *more)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--range", "0.2"], "--range 0.2 is not a range such as 0.2:0.6"),
        (["--labels", "top9"], "more labels than the model's 4 classes"),
        (["--protocol", "paper", "--steps", "auto"], "takes every pixel count"),
        (["--infill", "image:none.png"], "there is no image none.png"),
    ],
)
def test_the_command_gives_one_sentence(tmp_path: Path, files: tuple[Path, Path], more: list[str], words: str) -> None:
    refused(_evaluate(files, tmp_path / "run", *more), words)
    assert not (tmp_path / "run").exists()


def test_the_command_takes_them_all(tmp_path: Path, files: tuple[Path, Path]) -> None:
    """Each option arrives at its setting."""
    done = _evaluate(
        files, tmp_path / "run", "--labels", "0,2", "--renormalise", "--infill", "gray", "--infill", "blur", "--steps",
        "3", "--range", "0.2:0.6", "--eps1", "0.1", "--eps2", "0.2", "--ties", "last", "--tie-orders", "2",
        "--saliency", "both", "--seed", "5", "--draws", "2", "--confidence", "0.9", "--interval", "bca",
        "--no-deletion",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    whole = ("insertion", "spread", "degenerate", "completeness")  # no word is cut, however many tables it takes
    assert all(word in done.stdout for word in whole)
    said = "labels 0,2 renormalised; infill gray, blur; steps 3; range 0.2 to 0.6; eps 0.1 and 0.2; ties last"
    assert said in " ".join(done.stdout.split())
    settings = Store(tmp_path / "run").plain_results()["settings"]
    assert settings == {
        "labels": "0,2", "renormalise": True, "protocol": None, "infill": ["gray", "blur"], "steps": "3",
        "range": [0.2, 0.6], "eps1": 0.1, "eps2": 0.2, "ties": "last", "tie_orders": 2, "seed": 5, "draws": 2,
        "controls": True, "deletion": False, "saliency": "both", "confidence": 0.9, "interval": "bca",
        "conventions": {
            "blur_borders": "reflected", "deletion_area": "mean over 1 to n deleted pixels",
            "saliency_component": "4-connected, bicubic crop", "saliency_tuned": "bilinear crop",
            "shorter_side": "rounded down", "crop_offset": "rounded half to even",
            "gradient_map": "largest absolute value over channels", "chance": "seeded with the pixels",
        },
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 7, 64, 100, 640, 1000])
@pytest.mark.parametrize(("device", "pixels"), [("cuda", 50176), ("cpu", 50176), ("cpu", 1024)])
def test_units_hold_every_image_once_and_on_a_gpu_begin_and_end_small(device: str, pixels: int, count: int) -> None:
    found = units(range(count), pixels, 1000, PROFILES[device], resolved(Evaluation(), 1000))
    assert [image for unit in found for image in unit] == list(range(count))
    assert max(map(len, found)) <= {"cuda": 32, "cpu": 1 if pixels > 96 * 96 else 16}[device]
    if device == "cuda":
        assert len(found[0]) <= 2
        assert max(len(unit) for unit in found[-4:]) <= 4


@pytest.mark.parametrize(("device", "side", "changed", "expected"), [
    ("cuda", 224, {}, 32),
    ("cuda", 224, {"steps": Steps("uniform", count=128)}, 32),
    ("cuda", 224, {"steps": Steps("uniform", count=1000)}, 4),
    ("cuda", 224, {"steps": Steps("exact")}, 1),
    ("cuda", 224, {"infill": ("gray", "random"), "steps": Steps("auto", tolerance=1e-4)}, 1),
    ("cuda", 224, {"labels": "all"}, 1),
    ("cuda", 224, {"labels": "f>=0.01"}, 5),
    ("cuda", 32, {"steps": Steps("exact")}, 32),
    ("cpu", 64, {}, 16),
    ("cpu", 64, {"steps": Steps("exact")}, 6),
])  # fmt: skip
def test_units_of_many_rows_have_fewer_images(device: str, side: int, changed: dict[str, Any], expected: int) -> None:
    """At a usual speed a unit takes less than two minutes, or has one image."""
    settings = resolved(Evaluation(**changed), 1000)
    assert max(map(len, units(range(640), side * side, 1000, PROFILES[device], settings))) == expected
