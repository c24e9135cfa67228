"""How alike the maps of two seeds, two methods and two models are: what tells reproduced maps from others.

    python -m benchmarks.reproduction > benchmarks/results/reproduction.json

Maps of the demo's two models for the two likeliest labels of each image; models are compared where both have a map.
Other devices are stood for by the honest model with weights rounded as in TF32. Prints one JSON object.
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
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.methods.registry import METHODS
from auditkit.metrics.similarity import rank_correlation
from auditkit.report.markdown import table
from benchmarks.reporting import log, origin, printed_at_end

_MODELS = (("honest", 0), ("honest", 1), ("rounded", 0), ("shortcut", 0))  # and seeds
_TF32 = np.uint32(0xFFFFE000)  # the bits of a float32 that are kept: 10 of its fraction
_LEFT_OUT = ("masker", "igos++")  # one reads a file, the other takes more passes than an audit allows
_METHODS = [name for name, method in METHODS.items() if method.needs != "nothing" and name not in _LEFT_OUT]


def agreement(first: HeatmapSet, second: HeatmapSet) -> dict[str, float]:
    """Least, median and greatest rank correlation over the maps that both have."""
    shared = [entry for entry in first.entries if entry.label in second.labels[entry.image]]
    values = [rank_correlation(first.read(entry), second.get(entry.image, entry.label)) for entry in shared]
    return {"least": round(min(values), 4), "median": round(float(np.median(values)), 4),
            "most": round(max(values), 4), "maps": len(values)}  # fmt: skip


def rounded(folder: Path) -> Path:
    """The honest model with its weights cut to the digits of TF32."""
    model = onnx.load(bundled_model("honest"))
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            cut = (np.ascontiguousarray(values).view(np.uint32) & _TF32).view(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(cut.reshape(values.shape), tensor.name))
    onnx.save(model, folder / "rounded.onnx")
    shutil.copy(bundled_model("honest").with_suffix(".toml"), folder / "rounded.toml")
    return folder / "rounded.onnx"


def made(folder: Path, count: int, methods: list[str]) -> dict[tuple[str, int, str], HeatmapSet]:
    """Bundles by model, seed and method."""
    images, bundles = draw(count, seed=7, tags="agree").images, dict[tuple[str, int, str], HeatmapSet]()
    for name, seed in _MODELS:
        model = auditkit.load(rounded(folder) if name == "rounded" else bundled_model(name))
        for method in methods:
            begin, out = time.perf_counter(), folder / f"{name}-{seed}-{method}"
            bundles[name, seed, method] = auditkit.explain(model, images, out, method, labels="top2", seed=seed)
            log({"maps": out.name, "seconds": round(time.perf_counter() - begin, 1)})
    return bundles


def compared(bundles: dict[tuple[str, int, str], HeatmapSet], methods: list[str]) -> list[dict[str, Any]]:
    """For each method, how its maps agree with those of another seed, of the nearest other method, of another model."""
    lines = []
    for method in methods:
        maps = bundles["honest", 0, method]
        others = {other: agreement(maps, bundles["honest", 0, other]) for other in methods if other != method}
        nearest = max(others, key=lambda name: others[name]["median"])
        lines.append({
            "method": method, "rounded": agreement(maps, bundles["rounded", 0, method]),
            "other_seed": agreement(maps, bundles["honest", 1, method]), "nearest": nearest,
            "other_method": others[nearest], "other_model": agreement(maps, bundles["shortcut", 0, method]),
        })  # fmt: skip
    return lines


def reproduction_table(results: dict[str, Any]) -> str:
    """Rank correlations: median, and in brackets least to greatest."""

    def text(entry: dict[str, float]) -> str:
        return f"{entry['median']:.2f} ({entry['least']:.2f} to {entry['most']:.2f})"

    rows = [[line["method"], text(line["rounded"]), text(line["other_seed"]),
             f"{line['nearest']}: {text(line['other_method'])}", text(line["other_model"])]
            for line in results["lines"]]  # fmt: skip
    return table(["method", "weights as in TF32", "another seed", "the nearest other method", "another model"], rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=[*_METHODS, "random"])
    arguments = parser.parse_args()
    results: dict[str, Any] = {**origin("benchmarks.reproduction"), "images": arguments.images, "lines": []}
    with printed_at_end(results), tempfile.TemporaryDirectory() as folder:
        bundles = made(Path(folder), arguments.images, arguments.methods)
        results["lines"] += compared(bundles, arguments.methods)


if __name__ == "__main__":
    main()
