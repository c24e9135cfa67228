"""Maps found by search: whichever of many smooth random maps shows a label best, improved by a few rounds of mutation.

They are tuned to the very figure that judges them, by whoever can run the model, and look at nothing else.
"""

from pathlib import Path

import numpy as np
from scipy import ndimage

from auditkit.arrays import Array
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import ranks
from auditkit.graph.hard_masks import BOTTOM, KEEP, MAP, TOP
from auditkit.model import preprocessing
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.masks import masked
from auditkit.runs.evaluation.images import load_images

SEED, ROUNDS, CANDIDATES, PARENTS, POINTS = 2022, 4, 24, 6, 8


def searched(model: OnnxClassifier, images: Dataset, like: HeatmapSet, folder: Path) -> HeatmapSet:
    """A map for every image and label that another set has one for."""
    if (folder / "done").exists():
        return open_bundle(folder / "maps")
    gray = preprocessing.flat_picture(model.card, model.signature, model.card.gray)
    bundle = Bundle(folder / "maps")
    for place, image in enumerate(images.ids):
        unit = load_images([place], images, model.card, model.signature)
        pictures = np.concatenate([unit.inputs, np.broadcast_to(gray, unit.inputs.shape)])
        rng, labels = np.random.default_rng([SEED, place]), sorted(like.labels[image])
        maps = [_best(model, pictures, label, like.get(image, label).shape, rng) for label in labels]
        bundle.add([image] * len(labels), labels, np.stack(maps))
    (folder / "done").touch()
    return open_bundle(folder / "maps")


def _best(
    model: OnnxClassifier, pictures: Array, label: int, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:
    """The map with the largest area under the label's curve."""
    width = min(shape) / 10
    candidates = np.stack([_blobs(shape, width, rng) for _ in range(CANDIDATES)])
    for _ in range(ROUNDS):
        areas = _areas(model, pictures, candidates, label)
        parents = candidates[np.argsort(-areas, kind="stable")[:PARENTS]]
        children = [parents[rng.integers(PARENTS)] + 0.7 * _blobs(shape, width, rng)
                    for _ in range(CANDIDATES - PARENTS)]  # fmt: skip
        candidates = np.concatenate([parents, np.stack(children)])
    return np.asarray(candidates[_areas(model, pictures, candidates, label).argmax()], np.float32)


def _blobs(shape: tuple[int, ...], width: float, rng: np.random.Generator) -> Array:
    blurred = ndimage.gaussian_filter(rng.standard_normal(shape), width)
    return np.asarray(blurred / blurred.std())


def _areas(model: OnnxClassifier, pictures: Array, maps: Array, label: int) -> Array:
    """The mean probability of the label while the pixels of each map appear."""
    classifier, pixels = masked(model), maps[0].size
    banks = classifier.load(pictures, np.stack([ranks(values, "first", 0) for values in maps]))
    rows = np.zeros((len(maps) * POINTS, 4), np.int32)
    rows[:, TOP], rows[:, BOTTOM] = 0, 1
    rows[:, MAP] = np.repeat(np.arange(len(maps)), POINTS)
    rows[:, KEEP] = np.tile(np.linspace(0, pixels, POINTS + 2)[1:-1].round(), len(maps))
    shown = np.concatenate([part[:, label] for _, part in classifier.run(rows, banks)])
    return np.asarray(shown.reshape(len(maps), POINTS).mean(axis=1))
