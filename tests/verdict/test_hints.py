"""What would make failing maps fit is said where it is plain, and nothing where it is not."""

from pathlib import Path

import numpy as np
import pytest

import auditkit
from auditkit.arrays import Array
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.figures import Hint
from auditkit.verdict import hints
from auditkit.verdict.hints import CHANGES, find_hints

SIDE, CELL, COUNT = 16, 4, 30
TILES = SIDE // CELL  # in a row; each tile is a class
CENTRES = [(down, across) for down in range(TILES) for across in range(TILES)]


def _scores(rows: Array) -> Array:
    """Each class is the brightness of its tile."""
    tiles = rows.mean(axis=1).reshape(len(rows), TILES, CELL, TILES, CELL).mean(axis=(2, 4))
    return np.asarray(40 * tiles.reshape(len(rows), -1))


MODEL = auditkit.load(_scores, size=(SIDE, SIDE), preset="unit")


def _tile(label: int) -> Array:
    """The tile of a class, falling off around it."""
    down, across = (CELL * place + (CELL - 1) / 2 for place in CENTRES[label])
    grids = np.indices((SIDE, SIDE))
    return np.asarray(-np.hypot(grids[0] - down, grids[1] - across), np.float32)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """One bright tile each."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(100, 140, (COUNT, SIDE, SIDE, 3), dtype=np.uint8)
    for picture in pictures:
        picture[_tile(int(rng.integers(TILES**2))) > -CELL / 2] = 200
    path = tmp_path_factory.mktemp("images") / "tiles.npz"
    np.savez(path, images=pictures)
    return Dataset.open(path, TILES**2)


def _maps(images: Dataset, folder: Path, change: hints.Change) -> HeatmapSet:
    """Maps of three labels of each image, changed."""
    bundle = auditkit.Bundle(folder)
    for position, image in enumerate(images.ids):
        best = int(MODEL.probabilities([images.images[position]]).argmax())
        labels = sorted({best, (best + 5) % TILES**2, (best + 10) % TILES**2})
        made = change({label: _tile(label) for label in labels})
        bundle.add([image] * len(made), list(made), np.stack(list(made.values())))
    return auditkit.open_bundle(folder)


def _found(images: Dataset, folder: Path, change: hints.Change) -> tuple[Hint, ...]:
    return find_hints(MODEL, images, {"vendor": _maps(images, folder, change)}, Evaluation(labels="top3"))


@pytest.mark.parametrize("change", ["flipped left to right", "flipped upside down", "transposed", "inverted"])
def test_a_change_that_undoes_itself_is_named(change: str, images: Dataset, tmp_path: Path) -> None:
    (hint,) = _found(images, tmp_path / "maps", CHANGES[change])
    assert (hint.bundle, hint.change, hint.n) == ("vendor", change, hints.SAMPLE)
    assert hint.after > hint.before + 0.2
    assert hint.text == (
        f"The maps of vendor fit the model better when {change}: relevance gain {hint.after:.2f} instead of "
        f"{hint.before:.2f} on 24 images."
    )


def test_maps_that_were_moved_are_moved_back(images: Dataset, tmp_path: Path) -> None:
    (hint,) = _found(images, tmp_path / "maps", CHANGES["moved to the right by 12% of the side"])
    assert hint.change == "moved to the left by 12% of the side"


def test_maps_under_other_labels(images: Dataset, tmp_path: Path) -> None:
    def two_on(maps: hints.LabelMaps) -> hints.LabelMaps:
        return CHANGES["exchanged between the labels of an image"](
            CHANGES["exchanged between the labels of an image"](maps)
        )

    (hint,) = _found(images, tmp_path / "maps", two_on)  # a third exchange brings them back
    assert hint.change == "exchanged between the labels of an image"


def test_nothing_is_said_of_right_maps_nor_of_noise(images: Dataset, tmp_path: Path) -> None:
    assert _found(images, tmp_path / "right", dict) == ()
    rng = np.random.default_rng(1)
    noise = hints._each(lambda values: rng.random(values.shape, dtype=np.float32))
    assert _found(images, tmp_path / "noise", noise) == ()


def test_few_images_give_no_hint(images: Dataset, tmp_path: Path) -> None:
    assert _found(images.select(range(19)), tmp_path / "maps", CHANGES["inverted"]) == ()
