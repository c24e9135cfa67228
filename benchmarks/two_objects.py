"""Whether the strongest evidence for a label carries that label into other photographs, in pictures of two objects.

    python -m benchmarks.two_objects MODEL.onnx -o FOLDER --assets FOLDER [--preset imagenet] [--photographs 20]

Each picture shows two objects. A mask is learned for the label of each, and the square with its strongest evidence is
put into photographs of other labels, at the same place; so are the square of the other object's label, and one that
overlaps with neither more than it must. Counted is how often the label becomes the prediction, or one of the five
likeliest. Prints one JSON object.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.arrays import Array
from auditkit.data.dataset import Dataset
from auditkit.metrics.exchanges import Window, strongest_window
from auditkit.metrics.statistics import share_interval
from auditkit.model.classifier import OnnxClassifier
from auditkit.report.markdown import table
from auditkit.runs.evaluation.images import load_images
from auditkit.runs.evaluation.maps import fitted_map
from auditkit.runs.examination.material import Predict, predictor
from benchmarks.reporting import log, origin, printed_at_end

ELEPHANTS, ZEBRA, DOGS, CATS = (101, 385, 386), (340,), tuple(range(151, 269)), (281, 282, 283, 284, 285)
PICTURES = {"el1.png": (ELEPHANTS, ZEBRA), "el2.png": (ELEPHANTS, ZEBRA), "both_dog_cat.png": (DOGS, CATS)}
SIZES = {"a quarter": 1 / 4, "a half": 1 / 2}  # of the side; the first is the largest square of an examination
REGIONS = ("its own", "the other object's", "elsewhere")
SEED, FIVE = 2022, 5
DEPENDENT = "Pairs of a square and a photograph. Six squares were taken, so the pairs are not independent."


def elsewhere(shape: tuple[int, ...], taken: list[Window], rng: np.random.Generator) -> Window:
    """A square at a place of chance, of those that overlap least with the taken ones."""
    rows, columns = (part.stop - part.start for part in taken[0])
    covered = np.zeros(shape)
    for window in taken:
        covered[window] = 1
    sums = np.pad(covered, ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    overlap = sums[rows:, columns:] - sums[:-rows, columns:] - sums[rows:, :-columns] + sums[:-rows, :-columns]
    top, left = rng.permutation(np.argwhere(overlap == overlap.min()))[0].tolist()
    return slice(top, top + rows), slice(left, left + columns)


@dataclass(frozen=True)
class Photographs:
    """Pictures that squares are put into, and what the model takes them for."""

    dataset: Dataset
    pixels: Array
    predicted: Array

    @classmethod
    def of(cls, model: OnnxClassifier, folder: Path) -> "Photographs":
        """All photographs of a folder."""
        dataset = Dataset.open(folder, model.signature.classes)
        pixels = load_images(range(len(dataset)), dataset, model.card, model.signature).pixels
        return cls(dataset, pixels, predictor(model)(list(pixels)).argmax(axis=1))

    def others(self, labels: Sequence[int], count: int, rng: np.random.Generator) -> list[Array]:
        """Some that are taken for none of these labels."""
        usable = np.flatnonzero(~np.isin(self.predicted, labels))
        return [self.pixels[index] for index in rng.permutation(usable)[:count]]


def carried(predict: Predict, pixels: Array, window: Window, recipients: list[Array], label: int) -> dict[str, int]:
    """In how many photographs the label is the likeliest, or one of five, after the square was put into them."""
    changed = [recipient.copy() for recipient in recipients]
    for picture in changed:
        picture[window] = pixels[window]
    ranks = (-predict(changed)).argsort(axis=1).argsort(axis=1)[:, label]
    return {"first": int((ranks == 0).sum()), "of_five": int((ranks < FIVE).sum())}


def of_picture(
    model: OnnxClassifier, one: Dataset, groups: Sequence[Sequence[int]], photographs: Photographs, out: Path,
    count: int,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """All squares of a picture."""
    predict, rng = predictor(model), np.random.default_rng([SEED, *one.ids[0].encode()])
    unit = load_images([0], one, model.card, model.signature)
    pixels, probabilities = unit.pixels[0], predict(list(unit.pixels))[0]
    labels = [max(group, key=lambda label: probabilities[label]) for group in groups]
    maps = auditkit.explain(model, one, out, "mask", labels=",".join(map(str, sorted(labels))),
                            pool=photographs.dataset)  # fmt: skip
    heatmaps = [fitted_map(maps, unit.ids[0], label, model.card, unit.sizes[0]) for label in labels]
    recipients = photographs.others([*chain.from_iterable(groups)], count, rng)
    for (size, share), number in product(SIZES.items(), (0, 1)):
        windows = [strongest_window(heatmap, share) for heatmap in heatmaps]
        squares = (windows[number], windows[1 - number], elsewhere(pixels.shape[:2], windows, rng))
        label = labels[number]
        for region, window in zip(REGIONS, squares, strict=True):
            yield {"picture": one.ids[0], "label": label, "probability": round(float(probabilities[label]), 4),
                   "size": size, "region": region, "top": window[0].start, "left": window[1].start,
                   "of": len(recipients), **carried(predict, pixels, window, recipients, label)}  # fmt: skip


def measured(model: OnnxClassifier, assets: Path, out: Path, count: int) -> Iterator[dict[str, Any]]:
    """All squares of all pictures."""
    photographs = Photographs.of(model, assets / "images" / "nips17_150")
    pictures = Dataset.open(assets / "images" / "multi_object", model.signature.classes)
    for name, groups in PICTURES.items():
        one = pictures.select([pictures.ids.index(name)])
        yield from of_picture(model, one, groups, photographs, out / Path(name).stem, count)


def two_objects_table(found: dict[str, Any]) -> str:
    """Shares over all pictures and labels, and each of them."""
    rows = []
    for model, size, region in dict.fromkeys((row["model"], row["size"], row["region"]) for row in found["rows"]):
        chosen = [row for row in found["rows"] if (row["model"], row["size"], row["region"]) == (model, size, region)]
        of = sum(row["of"] for row in chosen)
        shares = [share_interval(sum(row[key] for row in chosen), of) for key in ("first", "of_five")]
        rows.append([model, size, region, *(f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%})"
                                            for share in shares), str(of)])  # fmt: skip
    head = ["model", "square, of the side", "whose square", "label predicted", "among the five likeliest", "pairs"]
    return f"{DEPENDENT}\n\n{table(head, rows)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--assets", type=Path, required=True)
    parser.add_argument("--preset", default="imagenet")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--photographs", type=int, default=20)
    asked = parser.parse_args()
    model = auditkit.load(asked.model, preset=asked.preset, settings=auditkit.Settings(device=asked.device))
    assert isinstance(model, OnnxClassifier)
    found = origin("benchmarks.two_objects")
    with printed_at_end(found):
        found["rows"] = list[dict[str, Any]]()
        for row in measured(model, asked.assets, asked.out, asked.photographs):
            found["rows"].append({"model": asked.model.name, **row})
            log(row)


if __name__ == "__main__":
    main()
