"""Honest methods and cheats in the cross-label matrix.

    python -m benchmarks.label_specificity MODEL.onnx IMAGES -o FOLDER [--images 40] [--labels top3] [--steps 16]
        [--rise 1024] [--stride 0.0625] [--mask-steps 100]

Maps of some methods are made, and cheats from the maps of RISE: one map for all labels as it is, with noise or shifted
by label; the maps of other labels; inverted maps; the right map for the prediction and noise for all others. Each set
is measured by label specificity and by other-label evidence, over the prediction's map and over every blind control.
Goes on where it was cut short, and prints one JSON object.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.arrays import Array
from auditkit.data.bundles import Bundle, HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.methods.controls import CONTROLS
from auditkit.model.classifier import OnnxClassifier
from auditkit.report.markdown import table
from auditkit.runs.folder.figures import CONTROL, MetricResult
from auditkit.runs.summary.summarise import Summary
from benchmarks.reporting import log, origin, printed_at_end

Figures = dict[str, Any]
LabelMaps = Mapping[int, Array]  # of one image, the predicted label first
METRICS = ("label_specificity", "other_label_evidence")
BLIND = [f"{CONTROL}{name}" for name in CONTROLS]
SHIFT = 1 / 16  # of the side, by label: 2 of 32 pixels


def one_map(maps: LabelMaps, rng: np.random.Generator, noise: float = 0.0) -> LabelMaps:
    """The predicted label's map for all labels, with noise in shares of its range."""
    shared = next(iter(maps.values()))
    return {label: shared + noise * np.ptp(shared) * rng.standard_normal(shared.shape) for label in maps}


def shifted(maps: LabelMaps, _rng: np.random.Generator) -> LabelMaps:
    """The predicted label's map, moved along the diagonal by label."""
    shared = next(iter(maps.values()))
    step = round(SHIFT * shared.shape[0])
    return {label: np.roll(shared, (step * number, step * number), (0, 1)) for number, label in enumerate(maps)}


def shuffled(maps: LabelMaps, _rng: np.random.Generator) -> LabelMaps:
    """Each label with the map of the next one."""
    values = list(maps.values())
    return dict(zip(maps, values[1:] + values[:1], strict=True))


def inverted(maps: LabelMaps, _rng: np.random.Generator) -> LabelMaps:
    """The least important pixels first."""
    return {label: -values for label, values in maps.items()}


def right_for_prediction(maps: LabelMaps, rng: np.random.Generator) -> LabelMaps:
    """The predicted label's own map, and noise for the others."""
    return {label: np.asarray(rng.standard_normal(values.shape)) if number else values
            for number, (label, values) in enumerate(maps.items())}  # fmt: skip


Cheat = Callable[[LabelMaps, np.random.Generator], LabelMaps]
CHEATS: dict[str, Cheat] = {
    "one map": one_map,
    "one map, noise 0.05": lambda maps, rng: one_map(maps, rng, 0.05),
    "one map, noise 0.1": lambda maps, rng: one_map(maps, rng, 0.1),
    "one map, shifted by label": shifted,
    "maps of other labels": shuffled,
    "inverted maps": inverted,
    "right for the prediction, noise else": right_for_prediction,
}


def cheated(honest: HeatmapSet, predicted: Mapping[str, int], cheat: Cheat, folder: Path) -> HeatmapSet:
    """The maps of a cheat, in a bundle of their own."""
    rng, bundle = np.random.default_rng(0), Bundle(folder)
    for image, labels in honest.labels.items():
        ordered = sorted(labels, key=lambda label: label != predicted[image])
        maps = cheat({label: honest.get(image, label) for label in ordered}, rng)
        bundle.add([image] * len(maps), list(maps), np.stack(list(maps.values())).astype(np.float32), layout="NHW")
    return open_bundle(folder)


def honest_maps(model: OnnxClassifier, images: Dataset, asked: argparse.Namespace) -> dict[str, HeatmapSet]:
    """The maps of the methods."""
    methods: dict[str, dict[str, Any]] = {
        "rise": {"passes": asked.rise}, "occlusion": {"stride": asked.stride}, "grad-cam": {}, "gradient-input": {},
    }  # fmt: skip
    if asked.mask_steps:
        methods["mask"] = {"steps": asked.mask_steps, "distractors": 3}
    maps = {}
    for method, options in methods.items():
        maps[method] = auditkit.explain(model, images, asked.out / method, method, labels=asked.labels, **options)
        log({"method": method})
    return maps


def figure(metric: MetricResult) -> Figures:
    """A figure with its interval and the share of clipped images."""
    clipped = metric.note.count or 0 if metric.note and metric.note.kind == "clipped" else 0
    return {"value": metric.value, "low": metric.low, "high": metric.high, "clipped": round(clipped / metric.n, 3)}


def measured(summary: Summary, name: str) -> Figures:
    """The figures of one set of maps; of its differences to blind controls, each."""
    values = {metric.name: figure(metric) for metric in summary.metrics
              if metric.bundle == name and metric.name in METRICS}  # fmt: skip
    over = {str(pair.against): figure(pair) for pair in summary.comparisons
            if (pair.bundle, pair.name) == (name, METRICS[1]) and pair.against in BLIND}  # fmt: skip
    return {"maps": name, **{metric: values[metric] for metric in METRICS}, "over_controls": over}


def specificity_table(found: Figures) -> str:
    """Label specificity and other-label evidence of honest methods and of cheats."""

    def text(entry: Figures) -> str:
        ends = "" if entry["low"] is None else f" ({entry['low']:+.2f} to {entry['high']:+.2f})"
        return f"{entry['value']:+.2f}{ends}"

    rows = []
    for one in found["sets"]:
        name, least = min(one["over_controls"].items(), key=lambda pair: pair[1]["value"])
        rows.append([one["maps"], text(one[METRICS[0]]), f"{one[METRICS[0]]['clipped']:.0%}", text(one[METRICS[1]]),
                     f"{text(least)}, {name.removeprefix('control:')}"])  # fmt: skip
    head = ["maps", "label specificity", "clipped", "other labels: over the prediction's map",
            "over the control that comes closest"]  # fmt: skip
    what = f"{found['model']}, {found['images']} images, labels {found['labels']}, {found['steps']} steps over gray."
    chosen = (
        f"Cheats are made from the maps of RISE. The last column is the least of {len(BLIND)} differences, chosen "
        "after they were measured; its interval does not allow for that choice. Margins are clipped at ±6 an image: "
        "where most images are clipped, the figure says no more than that."
    )
    return "\n\n".join([f"{what} {chosen}", table(head, rows)])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--preset", default="imagenet")
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--labels", default="top3")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rise", type=int, default=1024, help="masks of RISE for an image")
    parser.add_argument("--stride", type=float, default=0.0625, help="of occlusion, in shares of the side")
    parser.add_argument("--mask-steps", type=int, default=100, help="0 leaves learned masks out")
    asked = parser.parse_args()
    model = auditkit.load(asked.model, preset=asked.preset)
    assert isinstance(model, OnnxClassifier)
    every = Dataset.open(asked.pictures, model.signature.classes)
    at = np.linspace(0, len(every) - 1, asked.images).astype(int).tolist()
    images = Dataset(every.source, tuple(every.ids[one] for one in at), [every.images[one] for one in at])
    found = {
        **origin("benchmarks.label_specificity"), "model": asked.model.name, "images": len(images),
        "labels": asked.labels, "steps": asked.steps, "sets": [],
    }  # fmt: skip
    with printed_at_end(found):
        maps = honest_maps(model, images, asked)
        first = auditkit.evaluate(model, images, maps, out=asked.out / "honest", labels=asked.labels, steps=asked.steps,
                                  deletion=False, saliency="none")  # fmt: skip
        predicted = dict(zip(first.table.images, first.table.prediction.astype(int).tolist(), strict=True))
        found["sets"] += [measured(first, name) for name in maps]
        cheats = {name: cheated(maps["rise"], predicted, cheat, asked.out / f"cheat{number}")
                  for number, (name, cheat) in enumerate(CHEATS.items())}  # fmt: skip
        second = auditkit.evaluate(model, images, cheats, out=asked.out / "cheats", labels=asked.labels,
                                   steps=asked.steps, deletion=False, saliency="none")  # fmt: skip
        found["sets"] += [measured(second, name) for name in cheats]


if __name__ == "__main__":
    main()
