"""Measure honest heatmaps, fakes and damaged ones on a model.

    python -m benchmarks.calibration MODEL.onnx IMAGES -o FOLDER [--preset imagenet] [--images 100] [--labels top3]
        [--other MODEL.onnx [--other-preset caffe]] [--wrong-preset unit]

Maps of every method are made; fakes and damaged maps are made from some of them; `--other` adds the maps of another
model, `--wrong-preset` those of the same model fed wrongly. FOLDER/values.json then has every metric of every set of
maps and of every control for each image; rules are chosen and judged from these numbers alone. The command goes on
where it was cut short.
"""

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.arrays import Array
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.metrics.values import NotAssessed
from auditkit.model.classifier import OnnxClassifier
from auditkit.runs.comparison.finished_run import FinishedRun, read_run
from auditkit.runs.evaluation.images import load_images, probabilities
from benchmarks.calibration.fakes import BLIND, DAMAGES, FAKES, Case, Fake, LabelMaps, damaged, rivals_inverted
from benchmarks.calibration.search import searched
from benchmarks.reporting import log, origin

SEED = 2022
HONEST: dict[str, dict[str, Any]] = {
    "mask": {}, "differences": {}, "rise": {}, "occlusion": {}, "grad-cam": {}, "integrated-gradients": {},
    "smoothgrad": {}, "gradient-input": {},
}  # fmt: skip
COPIED = ["mask", "rise"]  # methods whose maps are faked and damaged
TOGETHER = 6  # sets in one evaluation
FEW_LABELS = 20  # in all: more are lent in small groups of images, since a lender maps every label of a group
GROUP = 5  # images
Values = dict[str, dict[str, list[float | None]]]  # by source and metric, one number for each image


def opened(path: Path, preset: str | None, asked: argparse.Namespace) -> OnnxClassifier:
    """A model."""
    settings = auditkit.Settings(device=asked.device, precision=asked.precision)
    model = auditkit.load(path, preset=preset, settings=settings)
    assert isinstance(model, OnnxClassifier)
    return model


def chosen_images(model: OnnxClassifier, path: Path, count: int) -> Dataset:
    """Some images in an order of chance: the first of them do not depend on how many there are."""
    every = Dataset.open(path, model.signature.classes)
    order = np.random.default_rng(SEED).permutation(len(every))[:count]
    return every.select(order.tolist())


def predictions(model: OnnxClassifier, images: Dataset) -> dict[str, tuple[int, Any]]:
    """The predicted label and the pixels of every image."""
    unit = load_images(range(len(images)), images, model.card, model.signature)
    best = probabilities(model, unit.inputs).argmax(axis=1).tolist()
    return {image: (label, pixels) for image, label, pixels in zip(unit.ids, best, unit.pixels, strict=True)}


def faked(honest: HeatmapSet, seen: Mapping[str, tuple[int, Any]], fake: Fake, folder: Path) -> HeatmapSet:
    """The maps of a fake in a bundle of their own, made if it is not there."""
    if (folder / "done").exists():
        return open_bundle(folder / "maps")
    names, made = list(honest.labels), dict[str, LabelMaps]()
    for number, image in enumerate(names):
        rng, before = np.random.default_rng([SEED, number]), names[number - 1]
        case = Case(seen[image][1], _maps(honest, image, seen[image][0]), _maps(honest, before, seen[before][0]), rng)
        made[image] = fake(case)
    return kept(made, folder)


def kept(maps: Mapping[str, LabelMaps], folder: Path) -> HeatmapSet:
    """Maps by image and label in a bundle of their own; one that is there already is taken as it is."""
    if not (folder / "done").exists():
        bundle = Bundle(folder / "maps")
        for image, made in maps.items():
            bundle.add([image] * len(made), list(made), np.stack(list(made.values())).astype(np.float32))
        (folder / "done").touch()
    return open_bundle(folder / "maps")


def _maps(honest: HeatmapSet, image: str, predicted: int) -> LabelMaps:
    ordered = sorted(honest.labels[image], key=lambda label: label != predicted)
    return {label: honest.get(image, label) for label in ordered}


def fakes_of(copied: Sequence[str]) -> dict[str, tuple[str, Fake]]:
    """All fakes and damaged maps by name, with the method they are made from; FOLDER numbers them in this order."""
    fakes: dict[str, tuple[str, Fake]] = {f"blind/{name}": (copied[0], fake) for name, fake in BLIND.items()}
    for method in copied:
        fakes |= {f"fake/{name}, of {method}": (method, fake) for name, fake in FAKES.items()}
        fakes |= {f"damaged/{name}, of {method}": (method, lambda case, damage=damage: damaged(case, damage))
                  for name, damage in DAMAGES.items()}  # fmt: skip
        fakes[f"damaged/the rival's, inverted, of {method}"] = method, rivals_inverted
    return fakes


def every_set(model: OnnxClassifier, images: Dataset, asked: argparse.Namespace) -> dict[str, HeatmapSet]:
    """All sets of maps by name; the name says the family before a slash."""
    sets = {}
    for method, options in HONEST.items():
        if method in (asked.without or ()):
            continue
        out = asked.out / "honest" / method
        sets[f"honest/{method}"] = auditkit.explain(model, images, out, method, labels=asked.labels, **options)
        log({"made": method})
    seen = predictions(model, images)
    for number, (name, (method, fake)) in enumerate(fakes_of(asked.copied).items()):
        if name.partition("/")[0] in (asked.without or ()):
            continue
        sets[name] = faked(sets[f"honest/{method}"], seen, fake, asked.out / "fakes" / str(number))
    borrowed = {"another model's": (asked.other, asked.other_preset or asked.preset),
                "of wrong pixels": (asked.model, asked.wrong_preset)}  # fmt: skip
    for name, (path, preset) in borrowed.items():
        if path is None or preset is None:
            continue
        lender = opened(path, preset, asked)
        for method in asked.copied:
            out = asked.out / "borrowed" / f"{name} {method}".replace(" ", "-")
            sets[f"borrowed/{name}, {method}"] = kept(lent(lender, images, sets[f"honest/{method}"], method, out), out)
    if "search" not in (asked.without or ()):
        sets["damaged/found by search"] = searched(model, images, sets["honest/rise"], asked.out / "search")
    return sets


def lent(
    lender: OnnxClassifier, images: Dataset, honest: HeatmapSet, method: str, out: Path
) -> Mapping[str, LabelMaps]:
    """Another model's maps for the images and labels that a set has maps for."""
    every, found = set().union(*honest.labels.values()), dict[str, LabelMaps]()
    group = len(images) if len(every) <= FEW_LABELS else GROUP
    for start in range(0, len(images), group):
        some = images.select(list(range(start, min(start + group, len(images)))))
        labels = sorted(set().union(*(honest.labels[image] for image in some.ids)))
        folder = out / "lent" if group == len(images) else out / "lent" / str(start)
        maps = auditkit.explain(lender, some, folder, method, labels=",".join(map(str, labels)), pool=images,
                                **HONEST[method])  # fmt: skip
        found |= {image: {label: maps.get(image, label) for label in honest.labels[image]} for image in some.ids}
    return found


def values_of(run: FinishedRun, source: str, images: Sequence[str]) -> dict[str, list[float | None]]:
    """Every metric of a source on every image, in the order of these images; None where it has none."""
    found = {}
    for name, metric in run.metrics(source, run.table.infills[0]).items():
        if not isinstance(metric, NotAssessed):
            means = metric.image_means(len(run.table.images)).tolist()
            found[name] = in_order(dict(zip(run.table.images, means, strict=True)), images)
    for name, predicted in (("predicted_log_odds", True), ("other_log_odds", False)):
        levels = dict[str, float]()
        for of, matrices in run.table.matrices():
            if of == (source, run.table.infills[0]):
                own = np.where((matrices.predicted == predicted) & np.isfinite(matrices.own), matrices.own, np.nan)
                levels |= {run.table.images[image]: _mean(row) for image, row in zip(matrices.images, own, strict=True)}
        found[name] = in_order(levels, images)
    return found


def in_order(values: Mapping[str, float], images: Sequence[str]) -> list[float | None]:
    """Values by image in the order of these images: a run reads its units in an order of its own."""
    ordered = [values.get(image, math.nan) for image in images]
    return [None if math.isnan(value) else round(value, 5) for value in ordered]


def _mean(levels: Array) -> float:
    """The mean of the numbers that there are."""
    known = levels[np.isfinite(levels)].tolist()
    return statistics.fmean(known) if known else math.nan


def together(sets: Mapping[str, HeatmapSet]) -> list[list[str]]:
    """Names of sets that are evaluated together: they have maps for the same labels.

    Where two labels are equally probable, one method may have mapped the one and another method the other; an
    evaluation takes one of the two for all its sets.
    """
    by_labels: dict[object, list[str]] = {}
    for name, maps in sets.items():
        labels = tuple((image, tuple(sorted(maps.labels[image]))) for image in sorted(maps.labels))
        by_labels.setdefault(labels, []).append(name)
    return [names[start : start + TOGETHER] for names in by_labels.values() for start in range(0, len(names), TOGETHER)]


def measure(model: OnnxClassifier, images: Dataset, sets: Mapping[str, HeatmapSet], asked: argparse.Namespace) -> None:
    """Keep the values of all sets and controls, as they are measured."""
    names, values = list(sets), Values()
    for number, some in enumerate(together(sets)):
        out = asked.out / "runs" / str(number)
        auditkit.evaluate(model, images, {f"set{names.index(name)}": sets[name] for name in some}, out=out,
                          labels=asked.labels, saliency="none", infill=asked.infill,
                          controls=not number)  # fmt: skip
        run = read_run(out)
        for source in run.table.sources:
            place = source.rpartition("set")[2]
            known = names[int(place)] if place.isdecimal() else ""
            values[source.replace(f"set{place}", known) if known else source] = values_of(run, source, images.ids)
        log({"measured": some})
        record = {**origin("benchmarks.calibration"), "model": asked.model.name, "labels": asked.labels}
        (asked.out / "values.json").write_text(json.dumps({**record, "images": images.ids, "values": values}))


def main() -> None:
    """Make, measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--preset", help="how images are prepared; else as the card beside the model says")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--labels", default="top3")
    parser.add_argument("--infill", default="gray")
    parser.add_argument("--other", type=Path, help="another model, whose maps are borrowed")
    parser.add_argument("--other-preset", help="how images are prepared for it, if not as for the first")
    parser.add_argument("--wrong-preset", help="a way to prepare images that is not the model's")
    parser.add_argument(
        "--without", action="append", choices=[*HONEST, "blind", "search"], help="to leave out; repeatable"
    )
    parser.add_argument("--copied", nargs="+", default=COPIED, help="methods whose maps are faked and damaged")
    asked = parser.parse_args()
    model = opened(asked.model, asked.preset, asked)
    images = chosen_images(model, asked.data, asked.images)
    measure(model, images, every_set(model, images, asked), asked)


if __name__ == "__main__":
    main()
