"""How alike the maps of two seeds, two methods and two models are: what tells reproduced maps from others.

    python -m benchmarks.reproduction > benchmarks/results/reproduction.json
    python -m benchmarks.reproduction --model cifar10_resnet20.onnx --other cifar10_resnet56.onnx --preset imagenet \\
        --pictures cifar10_test_1000.npz --images 12 --methods mask gradient smoothgrad grad-cam occlusion

Maps for the two likeliest labels of each image; models are compared where both have a map. The default models are the
demo's two. Other devices are stood for by the first model with weights rounded as in TF32; for learned masks also by
brighter pictures, which is how an audit finds out how well a method repeats itself. Prints one JSON object.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import auditkit
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.methods.registry import METHODS
from auditkit.metrics.similarity import rank_correlation
from auditkit.report.markdown import table
from auditkit.runs.evaluation.images import load_images
from auditkit.runs.explain import Explanation, drawn_pool, recompute_in_units
from auditkit.verdict.reproduce import steadiness
from benchmarks.reporting import log, origin, printed_at_end

_MADE = (("model", 0), ("model", 1), ("rounded", 0), ("other", 0))  # of which model, with which seed
_TF32 = np.uint32(0xFFFFE000)  # the bits of a float32 that are kept: 10 of its fraction
_LEFT_OUT = ("masker", "igos++")  # one reads a file, the other takes more passes than an audit allows
_METHODS = [name for name, method in METHODS.items() if method.needs != "nothing" and name not in _LEFT_OUT]


def agreement(first: HeatmapSet, second: HeatmapSet) -> dict[str, float]:
    """Least, median and greatest rank correlation over the maps that both have."""
    shared = [entry for entry in first.entries if entry.label in second.labels[entry.image]]
    return summed_up([rank_correlation(first.read(entry), second.get(entry.image, entry.label)) for entry in shared])


def summed_up(values: list[float]) -> dict[str, float]:
    """Least, median and greatest of some rank correlations."""
    return {"least": round(min(values), 4), "median": round(float(np.median(values)), 4),
            "most": round(max(values), 4), "maps": len(values)}  # fmt: skip


def rounded(path: Path, folder: Path) -> Path:
    """A model with its weights cut to the digits of TF32."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            cut = (np.ascontiguousarray(values).view(np.uint32) & _TF32).view(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(cut.reshape(values.shape), tensor.name))
    onnx.save(model, folder / "rounded.onnx")
    if path.with_suffix(".toml").exists():
        shutil.copy(path.with_suffix(".toml"), folder / "rounded.toml")
    return folder / "rounded.onnx"


def made(
    folder: Path, paths: dict[str, Path], preset: str | None, images: Dataset, methods: list[str]
) -> dict[tuple[str, int, str], HeatmapSet]:
    """Bundles by model, seed and method."""
    bundles = dict[tuple[str, int, str], HeatmapSet]()
    for name, seed in _MADE:
        model = auditkit.load(paths[name], preset=preset)
        for method in methods:
            begin, out = time.perf_counter(), folder / f"{name}-{seed}-{method}"
            bundles[name, seed, method] = auditkit.explain(model, images, out, method, labels="top2", seed=seed)
            log({"maps": out.name, "seconds": round(time.perf_counter() - begin, 1)})
    return bundles


def brighter(path: Path, preset: str | None, images: Dataset, maps: HeatmapSet, method: str) -> dict[str, float]:
    """How alike maps are with those of brighter pictures."""
    model, explanation = auditkit.load(path, preset=preset), Explanation(method)
    unit = load_images(range(len(images)), images, model.card, model.signature)
    by_label = tuple({label: maps.get(image, label) for label in maps.labels[image]} for image in unit.ids)
    labels, pool = [tuple(each) for each in by_label], drawn_pool(model, images, explanation)
    return summed_up(steadiness(
        lambda images, others: recompute_in_units(model, images, labels, others, explanation), unit, pool, by_label
    ))  # fmt: skip


def compared(bundles: dict[tuple[str, int, str], HeatmapSet], methods: list[str]) -> list[dict[str, Any]]:
    """For each method, how its maps agree with those of another seed, of the nearest other method, of another model."""
    lines = []
    for method in methods:
        maps = bundles["model", 0, method]
        others = {other: agreement(maps, bundles["model", 0, other]) for other in methods if other != method}
        nearest = max(others, key=lambda name: others[name]["median"])
        lines.append({
            "method": method, "rounded": agreement(maps, bundles["rounded", 0, method]),
            "other_seed": agreement(maps, bundles["model", 1, method]), "nearest": nearest,
            "other_method": others[nearest], "other_model": agreement(maps, bundles["other", 0, method]),
        })  # fmt: skip
    return lines


def reproduction_table(results: dict[str, Any]) -> str:
    """Rank correlations: median, and in brackets least to greatest."""

    def text(entry: dict[str, float] | None) -> str:
        return "-" if entry is None else f"{entry['median']:.2f} ({entry['least']:.2f} to {entry['most']:.2f})"

    rows = [[line["method"], text(line["rounded"]), text(line.get("brighter")), text(line["other_seed"]),
             f"{line['nearest']}: {text(line['other_method'])}", text(line["other_model"])]
            for line in results["lines"]]  # fmt: skip
    head = ["method", "weights as in TF32", "brighter pictures", "another seed", "the nearest other method"]
    return table([*head, "another model"], rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=bundled_model("honest"))
    parser.add_argument("--other", type=Path, default=bundled_model("shortcut"))
    parser.add_argument("--preset", help="of both models, where they have no card")
    parser.add_argument("--pictures", type=Path, help="of which the first are taken; by default, drawn ones")
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=[*_METHODS, "random"])
    arguments = parser.parse_args()
    results: dict[str, Any] = {**origin("benchmarks.reproduction"), "images": arguments.images, "lines": []}
    images = Dataset.from_array(draw(arguments.images, seed=7, tags="agree").images)
    if arguments.pictures:
        classes = auditkit.load(arguments.model, preset=arguments.preset).signature.classes
        images = Dataset.open(arguments.pictures, classes).select(range(arguments.images))
    with printed_at_end(results), tempfile.TemporaryDirectory() as folder:
        paths = {"model": arguments.model, "other": arguments.other}
        paths["rounded"] = rounded(arguments.model, Path(folder))
        bundles = made(Path(folder), paths, arguments.preset, images, arguments.methods)
        results["lines"] += compared(bundles, arguments.methods)
        for line in results["lines"]:
            if METHODS[line["method"]].learns:
                maps = bundles["model", 0, line["method"]]
                line["brighter"] = brighter(arguments.model, arguments.preset, images, maps, line["method"])


if __name__ == "__main__":
    main()
