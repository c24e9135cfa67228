"""Pointing game and IoU as an evaluation measures them: boxes and masks from CSV and .npz, resized and cropped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.runs.summary.summarise import Summary
from tests.runs.test_evaluation import (
    PROBABILITIES,
    SIZE,
    Array,
    card,
    loaded,
    mass,
    mass_file,
    noise_maps,
    photographs,
)

LOCALISED = ("pointing_game", "iou")
COUNT = 5
BOXES = [(1, 1, 4, 3), (0, 0, 9, 6), None, (5.6, 2.4, 8.5, 5.5), (2, 0, 4, 6)]  # x0, y0, x1, y1 on 6x9 pixels


def three(images: Array) -> Array:
    """Label 1 is predicted, label 2 never."""
    dark, bright = mass(images).T
    return np.stack([0.75 * dark, bright, 0.25 * dark], axis=1)


def written(folder: Path, images: Array, rows: list[str], head: str) -> Path:
    for index, pixels in enumerate(images):
        Image.fromarray(pixels).save(folder / f"{index}.png")
    lines = [f"{index}.png{row}" for index, row in enumerate(rows)]
    (folder / "set.csv").write_text("\n".join([head, *lines]) + "\n")
    return folder / "set.csv"


def run(
    folder: Path, images: Any, maps: dict[int, Array], model: Any = None, frame: str = "model-input", **settings: Any
) -> Summary:
    model = model or loaded(three, folder)
    given = images if isinstance(images, Dataset) else Dataset.open(images, 3)
    if not (folder / "maps").exists():
        bundle = auditkit.Bundle(folder / "maps", frame=frame)
        for label, stack in maps.items():
            bundle.add(list(given.ids), [label] * len(given), stack, layout="NHW")
    return auditkit.evaluate(
        model, given, folder / "maps", **{"controls": False, "steps": 1, "saliency": "none", **settings}
    )


def all_maps(count: int = COUNT, size: tuple[int, int] = SIZE) -> dict[int, Array]:
    return {label: noise_maps(count, label + 1, size) for label in range(3)}


# A second implementation ----------------------------------------------------------------------------------------------


def region(box: tuple[float, ...] | None, size: tuple[int, int] = SIZE) -> Array | None:
    """Pixels whose centre the box holds."""
    if box is None:
        return None
    return np.array([
        [box[0] <= x + 0.5 < box[2] and box[1] <= y + 0.5 < box[3] for x in range(size[1])] for y in range(size[0])
    ])  # fmt: skip


def figures(heat: Array, inside: Array) -> tuple[float, float]:
    """Share of the hottest pixels inside, and the overlap of as many of the hottest as the object has."""
    hit = float(inside[heat == heat.max()].mean())
    kept = {tuple(at) for at in np.argwhere(heat > -np.inf)[np.argsort(-heat.ravel(), kind="stable")][: inside.sum()]}
    own = {tuple(at) for at in np.argwhere(inside)}
    return hit, len(kept & own) / len(kept | own)


def check(found: Summary, maps: dict[int, Array], regions: list[Array | None], labels: list[int]) -> None:
    """Rows of the label that each image shows, and their means."""
    expected = {place: figures(maps[label][place], inside)
                for place, (inside, label) in enumerate(zip(regions, labels, strict=True))
                if inside is not None and inside.any()}  # fmt: skip
    rows = {int(row["image"].removesuffix(".png")): row for row in found.rows if row["pointing_hit"] is not None}
    assert set(rows) == set(expected)
    for place, row in rows.items():
        assert row["label"] == labels[place]
        assert (row["pointing_hit"], row["iou"]) == pytest.approx(expected[place])
    assert all((row["iou"] is None) == (row["pointing_hit"] is None) for row in found.rows)
    for name, values in zip(LOCALISED, zip(*expected.values(), strict=True), strict=True):
        (metric,) = (metric for metric in found.metrics if metric.name == name and metric.bundle == "maps")
        assert metric.value == pytest.approx(np.mean(values))
        assert metric.n == len(expected)
        assert bool(metric.note and metric.note.kind == "images-with-region") == (
            len(expected) < len(regions)
        )  # it says how many there are


# Where the object is said to be ---------------------------------------------------------------------------------------

GIVEN = [2, 0, 1, 1, 2]


def text(box: tuple[float, ...] | None) -> str:
    return "," + ",".join("" if box is None else str(corner) for corner in (box or [0] * 4))


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("kind", ["csv boxes", "csv masks", "npz boxes", "npz masks"])
def test_regions_in_every_form(tmp_path: Path, kind: str, labelled: bool) -> None:
    """The map of the label that an image was given with; of the predicted one, 1, where labels are not given."""
    images, maps, regions = photographs(COUNT), all_maps(), [region(box) for box in BOXES]
    if kind == "csv boxes":
        rows = [f",{label}{text(box)}" if labelled else text(box) for label, box in zip(GIVEN, BOXES, strict=True)]
        path = written(tmp_path, images, rows, f"image,{'label,' if labelled else ''}x0,y0,x1,y1")
    elif kind == "csv masks":
        for place, inside in enumerate(regions):
            if inside is not None:
                Image.fromarray(inside).convert(["1", "L", "P", "RGB"][place % 4]).save(tmp_path / f"mask-{place}.png")
        names = ["" if inside is None else f"mask-{place}.png" for place, inside in enumerate(regions)]
        rows = [f",{name},{label}" if labelled else f",{name}" for label, name in zip(GIVEN, names, strict=True)]
        path = written(tmp_path, images, rows, f"image,mask{',label' if labelled else ''}")
    else:
        path, arrays = tmp_path / "set.npz", {"labels": np.array(GIVEN)} if labelled else {}
        if kind == "npz boxes":
            arrays["boxes"] = np.array([[np.nan] * 4 if box is None else box for box in BOXES])
        else:  # an empty mask is an object that is nowhere
            arrays["masks"] = np.stack([np.zeros(SIZE, bool) if r is None else r for r in regions]).astype(np.uint8)
        np.savez(path, images=images, **arrays)
    check(run(tmp_path, path, maps), maps, regions, GIVEN if labelled else [1] * COUNT)


def test_a_mask_goes_before_a_box(tmp_path: Path) -> None:
    """And the box is taken where there is no mask."""
    images, maps = photographs(2), all_maps(2)
    inside = noise_maps(1, 9)[0] > 0
    Image.fromarray(inside).save(tmp_path / "mask.png")
    path = written(tmp_path, images, [",mask.png,0,0,2,2", ",,0,0,2,2"], "image,mask,x0,y0,x1,y1")
    check(run(tmp_path, path, maps), maps, [inside, region((0, 0, 2, 2))], [1, 1])
    np.savez(tmp_path / "set.npz", images=images[:1], masks=inside[None], boxes=[[0, 0, 2, 2]])
    again = run(tmp_path, Dataset(Path("x"), ("0.png",), images[:1], masks=[inside]), maps)
    check(again, maps, [inside], [1])


@pytest.mark.parametrize("masked", [True, False])
def test_regions_are_resized_and_cropped_with_the_photograph(tmp_path: Path, masked: bool) -> None:
    """48x40 becomes 24x20, of which the network sees 6x9 in the middle: rows 9 to 14, columns 6 to 14."""
    images, maps = photographs(4, (48, 40)), all_maps(4)
    over = [(14, 20, 22, 28), (0, 0, 40, 48), (0, 0, 8, 8), (24, 10, 40, 26)]
    seen = [(1, 1, 5, 5), (0, 0, 9, 6), None, (6, 0, 9, 4)]  # the third is cropped away
    model = loaded(three, tmp_path, more='resize = 20\ncrop = "center"\n')
    boxes = np.array(over, float)
    said = {"masks": np.stack([region(box, (48, 40)) for box in over])} if masked else {"boxes": boxes}
    np.savez(tmp_path / "set.npz", images=images, labels=np.array([0, 1, 2, 0]), **said)
    found = run(tmp_path, tmp_path / "set.npz", maps, model)
    check(found, maps, [region(box) for box in seen], [0, 1, 2, 0])


def test_maps_over_the_photograph_and_its_box_move_together(tmp_path: Path) -> None:
    """A map that is hot in the box is, after resize and crop, hot in what is left of the box."""
    boxes = np.array([[14.0, 20, 22, 28], [24, 10, 40, 26]])
    heat = np.stack([region(tuple(box), (48, 40)) for box in boxes]).astype(np.float32)
    np.savez(tmp_path / "set.npz", images=photographs(2, (48, 40)), boxes=boxes)
    model = loaded(three, tmp_path, more='resize = 20\ncrop = "center"\n')
    found = run(tmp_path, tmp_path / "set.npz", dict.fromkeys(range(3), heat), model, frame="original-image")
    assert (found.value("pointing_game", "maps"), found.value("iou", "maps")) == (1, 1)


# Which label ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "counted"), [("all", [0, 1, 3, 4]), ("top1", [3]), ("top2", [1, 3]), ("1,2", [0, 3, 4])]
)
def test_images_whose_label_is_not_in_the_set_are_not_counted(tmp_path: Path, labels: str, counted: list[int]) -> None:
    maps, boxes = all_maps(), np.array([[np.nan] * 4 if box is None else box for box in BOXES])
    np.savez(tmp_path / "set.npz", images=photographs(COUNT), labels=np.array(GIVEN), boxes=boxes)
    regions = [region(box) if place in counted else None for place, box in enumerate(BOXES)]
    check(run(tmp_path, tmp_path / "set.npz", maps, labels=labels), maps, regions, GIVEN)


def test_controls_and_ties(tmp_path: Path) -> None:
    """A constant map scores the object's share of the picture; a map of the object itself scores 1."""
    inside = np.stack([region((2, 1, 7, 5)), region((3, 2, 6, 4))])
    np.savez(tmp_path / "set.npz", images=photographs(2), masks=inside)
    maps = {label: inside.astype(np.float32) for label in range(3)}
    found = run(tmp_path, tmp_path / "set.npz", maps, controls=True)
    assert (found.value("pointing_game", "maps"), found.value("iou", "maps")) == (1, 1)
    assert found.value("pointing_game", "control:constant") == pytest.approx(inside.mean())
    assert found.value("pointing_game", "control:centred-gaussian") == 1
    assert found.value("iou", "control:random") is not None


def test_no_region_no_figure(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=photographs(2), boxes=np.full((2, 4), np.nan))
    found = run(tmp_path, tmp_path / "set.npz", all_maps(2))
    assert not {metric.name for metric in found.metrics} & set(LOCALISED)


def test_a_file_finds_the_same_as_a_function(tmp_path: Path) -> None:
    """None of this looks at the model, except for what is predicted."""
    np.savez(tmp_path / "set.npz", images=photographs(COUNT), boxes=np.array([box or BOXES[0] for box in BOXES]))
    maps = {label: noise_maps(COUNT, label) for label in (0, 1)}
    model = auditkit.load(mass_file(tmp_path), card=card(tmp_path), overrides=PROBABILITIES,
                          settings=auditkit.Settings(device="cpu"))  # fmt: skip
    regions = [region(box or BOXES[0]) for box in BOXES]
    given = Dataset.open(tmp_path / "set.npz", 2)
    check(run(tmp_path, given, maps, model), maps, regions, [1] * COUNT)


# Wrong input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "row", "words"),
    [
        ("image,x0,y0,x1,y1", ",4,0,2,2", r"box 1 \(4, 0, 2, 2\) needs four numbers, x0 < x1"),
        ("image,x0,y0,x1,y1", ",0,0,inf,2", "needs four numbers"),
        ("image,x0,y0,x1,y1", ",0,0,,2", "needs four numbers"),
        ("image,x0,y0,x1,y1", ",0,0,two,2", "is not four numbers"),
        ("image,x0,y0,width,height", ",0,0,2,2", "no column x1; a box has x0, y0, x1, y1"),
        ("image,mask", ",none.png", "line 2: there is no mask"),
    ],
)
def test_boxes_that_are_none(tmp_path: Path, head: str, row: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Dataset.open(written(tmp_path, photographs(1), [row], head), 3)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"boxes": np.zeros((2, 3))}, "expected 2 x 4 numbers"),
        ({"boxes": np.array([[0, 0, 2, 2], [0, 0, np.inf, 2]])}, "box 2"),
        ({"masks": np.zeros((2, 5, 9), bool)}, "masks are bool"),
        ({"masks": np.zeros((2, *SIZE))}, "masks are float64"),
    ],
)
def test_arrays_that_are_none(tmp_path: Path, said: dict[str, Array], words: str) -> None:
    np.savez(tmp_path / "set.npz", images=photographs(2), **said)
    with pytest.raises(BadInput, match=words):
        Dataset.open(tmp_path / "set.npz", 3)


def test_a_mask_of_another_size_is_named(tmp_path: Path) -> None:
    Image.new("L", (4, 4), 255).save(tmp_path / "mask.png")
    path = written(tmp_path, photographs(1), [",mask.png"], "image,mask")
    with pytest.raises(BadInput, match=r"the mask of '0.png' has 4x4 pixels, its picture 6x9"):
        run(tmp_path, path, all_maps(1))


def test_a_run_goes_on_only_with_the_regions_that_it_began_with(tmp_path: Path) -> None:
    """A mask that changes, moves to another image, or is in memory only."""
    images, maps = photographs(2), all_maps(2)
    Image.new("L", (9, 6), 255).save(tmp_path / "mask.png")
    digests = [Dataset.open(written(tmp_path, images, rows, "image,mask"), 3).digest()
               for rows in ([",mask.png", ","], [",", ",mask.png"], [",", ","])]  # fmt: skip
    path = written(tmp_path, images, [",mask.png", ","], "image,mask")
    run(tmp_path, path, maps, out=tmp_path / "run")
    run(tmp_path, path, maps, out=tmp_path / "run")
    Image.new("L", (9, 6), 0).save(tmp_path / "mask.png")
    with pytest.raises(BadInput, match="digest"):
        run(tmp_path, path, maps, out=tmp_path / "run")
    digests += [Dataset(Path("x"), ("0", "1"), images, masks=[np.full(SIZE, at)] * 2).digest()
                for at in (False, True)]  # fmt: skip
    assert len(set(digests)) == len(digests)
