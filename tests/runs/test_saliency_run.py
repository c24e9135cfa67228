"""The saliency metric as an evaluation measures it, against plain numpy and Pillow: box, crop, resize, probability."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.runs.summary.summarise import Summary
from auditkit.runs.summary.wording import remark
from tests.metrics.test_protocols import CPU, SIZE, Array, Toy, small_toy
from tests.runs.test_evaluation import Counting, card, mass_file, photographs

DELTAS = [0.2 * step for step in range(26)]
COUNT = 9  # more than one picture for each half, and an odd one
KINDS = ("blob", "noise", "constant", "pixel", "two blobs")


@pytest.fixture(scope="module")
def toy() -> Toy:
    return small_toy()


def some_maps(count: int, size: tuple[int, int] = SIZE) -> Array:
    """A map of each kind in turn."""
    rng = np.random.default_rng(6)
    y, x = np.mgrid[: size[0], : size[1]]
    maps = []
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        middle = rng.uniform(2, np.array(size) - 3)
        heat = np.exp(-((y - middle[0]) ** 2 + (x - middle[1]) ** 2) / 8)
        if kind == "noise":
            heat = rng.standard_normal(size)
        elif kind == "constant":
            heat = np.full(size, -0.25)
        elif kind == "pixel":
            heat = (heat == heat.max()).astype(float)
        elif kind == "two blobs":
            heat = heat + 0.9 * heat[::-1, ::-1]
        maps.append(heat)
    return np.stack(maps).astype(np.float32)


def run(folder: Path, model: Any, images: Array, maps: Array, frame: str = "model-input", **settings: Any) -> Summary:
    """Every label gets the image's map."""
    bundle = auditkit.Bundle(folder / "maps", frame=frame)
    for index, values in enumerate(maps):
        labels = range(model.signature.classes)
        bundle.add([str(index)] * len(labels), list(labels), np.stack([values] * len(labels)), layout="NHW")
    asked = {"controls": False, "steps": 1, "deletion": False, "saliency": "both", **settings}
    return auditkit.evaluate(model, images, bundle, **asked)


def rows_of(found: Summary) -> list[dict[str, Any]]:
    """Those of the labels that the metric is about, by image."""
    rows = [row for row in found.rows if row["saliency_metric"] is not None or row["saliency_by_delta"]]
    return sorted(rows, key=lambda row: (int(row["image"]), row["label"]))


# A second implementation ----------------------------------------------------------------------------------------------


def box(heat: Array, delta: float, largest: bool) -> tuple[int, int, int, int] | None:
    """x0, y0, x1, y1 around what is above delta times the mean, or around the largest patch of it."""
    heat = heat.astype(np.float64)
    if heat.max() == heat.min():
        return None
    scaled = (heat - heat.min()) / (heat.max() - heat.min())
    kept = {(y, x) for y, x in np.argwhere(scaled > delta * scaled.mean()).tolist()}
    if largest:
        kept = max(patches(kept), key=len, default=set())
    if not kept:
        return None
    y, x = zip(*kept, strict=True)
    return min(x), min(y), max(x) + 1, max(y) + 1


def patches(kept: set[tuple[int, int]]) -> list[set[tuple[int, int]]]:
    left, found = set(kept), []
    for start in sorted(kept):
        patch, edge = set(), [start]
        while edge:
            at = edge.pop()
            if at in left:
                left.remove(at)
                patch.add(at)
                edge += [(at[0] + dy, at[1] + dx) for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0))]
        found.append(patch)
    return found


def metric(model: Any, seen: Array, heat: Array, label: int, delta: float, largest: bool) -> tuple[float, bool]:
    """SM of a picture as the network sees it [height, width, channels], and whether its box is degenerate."""
    height, width = heat.shape
    corners = box(heat, delta, largest)
    x0, y0, x1, y1 = corners or (0, 0, width, height)
    resizing = Image.Resampling.BICUBIC if largest else Image.Resampling.BILINEAR  # Phang et al.'s, and the usual one
    cut = Image.fromarray(np.ascontiguousarray(seen[y0:y1, x0:x1])).resize((width, height), resizing)
    share = (x1 - x0) * (y1 - y0) / (height * width)
    prob = float(model.probabilities([cut])[0, label])
    return np.log(max(share, 0.05)) - np.log(prob), corners is None or share < 0.05


def check(model: Any, found: Summary, seen: Array, maps: Array, labels: Array) -> None:
    """Every row of one label an image."""
    rows = rows_of(found)
    assert [(int(row["image"]), row["label"]) for row in rows] == list(enumerate(labels))
    for row, shown, heat, label in zip(rows, seen, maps, labels, strict=True):
        value, degenerate = metric(model, shown, heat, label, 1.0, True)
        assert row["saliency_metric"] == pytest.approx(value, abs=1e-5)
        assert row["box_degenerate"] == degenerate
        by_delta = [metric(model, shown, heat, label, delta, False) for delta in DELTAS]
        np.testing.assert_allclose(row["saliency_by_delta"], [value for value, _ in by_delta], atol=1e-5)
        assert row["degenerate_by_delta"] == [degenerate for _, degenerate in by_delta]
    tables = np.array([row["saliency_by_delta"] for row in rows])
    best = int(np.argmin(tables[::2].mean(axis=0)))
    degenerate_tuned = [row["degenerate_by_delta"][best] for row in rows[1::2]]
    expected = {
        "saliency_metric": np.mean([row["saliency_metric"] for row in rows]),
        "degenerate_boxes": np.mean([row["box_degenerate"] for row in rows]),
        "saliency_metric_tuned": tables[1::2, best].mean(), "degenerate_boxes_tuned": np.mean(degenerate_tuned),
    }  # fmt: skip
    for name, value in expected.items():
        (entry,) = (entry for entry in found.metrics if entry.name == name)
        assert entry.value == pytest.approx(value, abs=1e-5)
        assert entry.n == (len(rows) // 2 if name.endswith("tuned") else len(rows))
        if name.endswith("tuned"):
            assert remark(entry) == f"delta {DELTAS[best]:g}, tuned on {-(-len(rows) // 2)} images"


# Whole evaluations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["callable", "file"])
def test_box_crop_resize_and_probability(tmp_path: Path, toy: Toy, kind: str) -> None:
    given: dict[str, Any] = {"size": SIZE} if kind == "callable" else {"settings": CPU}
    model = auditkit.load(toy if kind == "callable" else toy.file(tmp_path), preset="imagenet", **given)
    images, maps = photographs(COUNT, SIZE), some_maps(COUNT)
    found = run(tmp_path, model, images, maps)
    check(model, found, images, maps, model.probabilities(images).argmax(axis=1))
    flags = [row["box_degenerate"] for row in rows_of(found)]
    assert flags[2]  # constant: nothing is above the mean
    assert flags[3]  # one pixel of 143
    assert not flags[0]


def test_the_label_is_the_best_of_those_renormalised_over(tmp_path: Path, toy: Toy) -> None:
    """And so is its probability on the crop."""
    model = auditkit.load(toy, size=SIZE, preset="imagenet")
    listed = auditkit.load(lambda rows: toy(rows)[:, [1, 3]], size=SIZE, preset="imagenet")
    images, maps = photographs(4, SIZE), some_maps(4)
    found = run(tmp_path, model, images, maps, labels="1,3", renormalise=True)
    best = listed.probabilities(images).argmax(axis=1)
    for row, shown, heat, at in zip(rows_of(found), images, maps, best, strict=True):
        assert row["label"] == (1, 3)[at]
        assert row["saliency_metric"] == pytest.approx(metric(listed, shown, heat, at, 1.0, True)[0], abs=1e-5)


def test_listed_labels_have_one_each(tmp_path: Path, toy: Toy) -> None:
    model = auditkit.load(toy, size=SIZE, preset="imagenet")
    images, maps = photographs(2, SIZE), some_maps(2)
    found = run(tmp_path, model, images, maps, labels=[0, 4])
    expected = [metric(model, images[i], maps[i], label, 1.0, True)[0] for i in range(2) for label in (0, 4)]
    np.testing.assert_allclose([row["saliency_metric"] for row in rows_of(found)], expected, atol=1e-5)
    assert found.value("saliency_metric", "maps") == pytest.approx(np.mean(expected), abs=1e-5)


def test_the_crop_is_cut_from_what_the_network_sees(tmp_path: Path, toy: Toy) -> None:
    """A photograph that is resized and cropped, and maps over the photograph: both are, and the box is in the rest."""
    path = card(tmp_path, (0, 0, 0), SIZE, 'resize = 20\ncrop = "center"\ninterpolation = "bilinear"\n')
    model = auditkit.load(toy, size=SIZE, card=path)
    images = photographs(4, (50, 40))
    over = np.stack([np.kron(heat, np.ones((3, 3)))[:50, :40] for heat in some_maps(4, (17, 14))]).astype(np.float32)
    found = run(tmp_path, model, images, over, frame="original-image")

    def centre(values: Array) -> Array:  # 50x40 becomes 25x20, of which 13x11 is kept
        small = np.asarray(Image.fromarray(values).resize((20, 25), Image.Resampling.BILINEAR))
        return small[6:19, 4:15]

    seen, maps = (np.stack([centre(values) for values in stack]) for stack in (images, over))
    flat = auditkit.load(toy, size=SIZE, preset="unit")
    check(flat, found, seen, maps, flat.probabilities(seen).argmax(axis=1))


def test_whole_pixels_with_channels_last(tmp_path: Path) -> None:
    path = card(tmp_path, more='preset = "none"\n')
    overrides = auditkit.Overrides(kind="probabilities")
    model = auditkit.load(mass_file(tmp_path, pixels_last=True), card=path, overrides=overrides, settings=CPU)
    images, maps = photographs(4), some_maps(4, (6, 9))
    check(model, run(tmp_path, model, images, maps), images, maps, model.probabilities(images).argmax(axis=1))


def test_nothing_outside_the_box_is_seen(tmp_path: Path) -> None:
    """White inside, black around: a crop that is all white has label 1 for certain."""

    def white(rows: Array) -> Array:
        least = rows.min(axis=(1, 2, 3))
        return np.stack([1 - least, least], axis=1)

    model = auditkit.load(white, size=(12, 12), preset="unit", overrides=auditkit.Overrides(kind="probabilities"))
    images, maps = np.zeros((1, 12, 12, 3), np.uint8), np.zeros((1, 12, 12), np.float32)
    images[0, 3:7, 4:10], maps[0, 3:7, 4:10] = 255, 1
    found = run(tmp_path, model, images, maps, labels=[1], saliency="component")
    assert rows_of(found)[0]["saliency_metric"] == pytest.approx(np.log(24 / 144))


def test_a_label_that_a_crop_rules_out_has_a_floor(tmp_path: Path) -> None:
    """Of 1e-12: an infinite metric would swallow every mean."""

    def sure(rows: Array) -> Array:
        return np.tile([1.0, 0.0], (len(rows), 1))

    model = auditkit.load(sure, size=SIZE, preset="unit", overrides=auditkit.Overrides(kind="probabilities"))
    found = run(tmp_path, model, photographs(2, SIZE), some_maps(2), labels=[1], saliency="component")
    for row, heat in zip(rows_of(found), some_maps(2), strict=True):
        x0, y0, x1, y1 = box(heat, 1.0, True) or (0, 0, *SIZE[::-1])
        share = (x1 - x0) * (y1 - y0) / heat.size
        assert row["saliency_metric"] == pytest.approx(np.log(max(share, 0.05)) + 12 * np.log(10))


# What is measured, and what it costs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saliency", "names"),
    [
        ("none", set()),
        ("component", {"saliency_metric", "degenerate_boxes"}),
        ("tuned", {"saliency_metric_tuned", "degenerate_boxes_tuned"}),
        ("both", {"saliency_metric", "degenerate_boxes", "saliency_metric_tuned", "degenerate_boxes_tuned"}),
    ],
)
def test_each_rule_alone_and_both(tmp_path: Path, toy: Toy, saliency: str, names: set[str]) -> None:
    counting = Counting(toy)
    model = auditkit.load(counting, size=SIZE, preset="imagenet")
    images, maps, asked = photographs(4, SIZE), some_maps(4), []
    for number, rule in enumerate(("none", saliency)):
        (tmp_path / str(number)).mkdir()
        counting.seen.clear()
        found = run(tmp_path / str(number), model, images, maps, saliency=rule)
        asked.append(len(counting.seen))
    assert {entry.name for entry in found.metrics if "saliency" in entry.name or "boxes" in entry.name} == names
    component, tuned = [(1.0, True)], [(delta, False) for delta in DELTAS]
    rules = {"none": [], "component": component, "tuned": tuned, "both": component + tuned}[saliency]
    crops = {(place, box(maps[place], *rule) or (0, 0, *SIZE[::-1]), rule[1]) for place in range(4) for rule in rules}
    assert asked[1] - asked[0] == len(crops)  # equal boxes of an image, resized alike, are asked about once


def test_one_image_has_no_half_to_tune_on(tmp_path: Path, toy: Toy) -> None:
    model = auditkit.load(toy, size=SIZE, preset="imagenet")
    found = run(tmp_path, model, photographs(1, SIZE), some_maps(1))
    (entry,) = (entry for entry in found.metrics if entry.name == "saliency_metric_tuned")
    assert entry.value is None
    assert "one half" in remark(entry)
    assert found.value("saliency_metric", "maps") is not None


def test_halves_are_of_the_images_that_have_a_map(tmp_path: Path, toy: Toy) -> None:
    """Maps for every other image: one of them tunes, the next is reported."""
    model = auditkit.load(toy, size=SIZE, preset="imagenet")
    images, maps = photographs(8, SIZE), some_maps(8)
    bundle = auditkit.Bundle(tmp_path / "maps")
    labels = model.probabilities(images).argmax(axis=1)
    bundle.add([str(index) for index in range(0, 8, 2)], labels[::2].tolist(), maps[::2], layout="NHW")
    found = auditkit.evaluate(model, images, bundle, controls=False, steps=1, saliency="tuned")
    tables = np.array([row["saliency_by_delta"] for row in rows_of(found)])
    best = int(tables[::2].mean(axis=0).argmin())
    assert found.value("saliency_metric_tuned", "maps") == pytest.approx(tables[1::2, best].mean())


def test_every_source_is_tuned_by_itself(tmp_path: Path, toy: Toy) -> None:
    model = auditkit.load(toy, size=SIZE, preset="imagenet")
    images = photographs(6, SIZE)
    found = run(tmp_path, model, images, some_maps(6), controls=True)
    notes = {entry.bundle: remark(entry) for entry in found.metrics if entry.name == "saliency_metric_tuned"}
    assert set(notes) == {"maps", "control:one-map:maps", "control:random", "control:centred-gaussian",
                          "control:constant", "control:edges", "control:blurred-edges", "control:noisy-gaussian",
                          "control:noisy-edges"}  # fmt: skip
    assert notes["control:constant"] == "delta 0, tuned on 3 images"  # every delta leaves the whole image
    assert len({note.split(",")[0] for note in notes.values()}) > 1
    assert found.value("degenerate_boxes", "control:constant") == 1


def test_labels_do_not_change_the_predicted_ones_metric(tmp_path: Path, toy: Toy) -> None:
    model = auditkit.load(toy, size=SIZE, preset="imagenet")
    images, maps = photographs(4, SIZE), some_maps(4)
    first = run(tmp_path, model, images, maps)
    again = auditkit.evaluate(
        model, images, tmp_path / "maps", controls=False, steps=1, deletion=False, saliency="both", labels="top1"
    )
    assert [row["saliency_metric"] for row in rows_of(first)] == [row["saliency_metric"] for row in rows_of(again)]
