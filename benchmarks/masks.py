"""Learned masks: what the penalty on their variation does to completeness and soundness, and where they point.

    python benchmarks/masks.py effects -o FOLDER --assets FOLDER --images 100 --device cuda --precision tf32
    python benchmarks/masks.py planted -o FOLDER --images 40 --infill gray --infill distractors

`effects` learns masks for the two likeliest labels of images that a CIFAR-10 model gets right, with several weights of
the penalty, over other test images, and scores them as the paper's Appendix D does: the worse of the two labels, eps 0
and 0.1. The paper's own figures, of a ResNet-164 and 1,600 images, stand beside ours.

`planted` learns masks for what the two bundled models predict on drawn images whose tags name a class by chance, and
looks where they lie: whether the maximum is in the region that the model reads (its shape, or its tag), the same with
the usual tolerance, whether most of the first pixels are, as many as the region has, and in which of the two regions
they are denser, against the region's share of the image. Controls stand beside: shapes are often in the middle.

Both go on where they were cut short, and write a JSON object and a table in Markdown into FOLDER.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.data.heatmaps import open_bundle
from auditkit.data.images import ImageSet
from auditkit.data.ranks import ranks
from auditkit.demo.draw import Planted, draw
from auditkit.demo.planted import MODELS, bundled
from auditkit.metrics.localisation import pointing_hit, share_inside, tolerance_at
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.machine import describe

Array = np.ndarray[Any, Any]
Figures = dict[str, Any]
TV = (0.0, 0.001, 0.01, 0.1)
INFILLS = {"gray": "gray", "random": "random image"}  # ours, and what the paper calls them
FIGURES = ("worst_completeness", "worst_soundness")
# Table "Completeness and soundness for a ResNet-164 trained model on CIFAR-10", by weight of the penalty.
PAPER = {
    ("gray", "worst_completeness"): (0.92, 0.91, 0.83, 0.77),
    ("gray", "worst_soundness"): (0.17, 0.18, 0.39, 0.57),
    ("random", "worst_completeness"): (0.86, 0.85, 0.77, 0.70),
    ("random", "worst_soundness"): (0.20, 0.21, 0.44, 0.62),
}
CONTROLS = ("random", "centred-gaussian")
POOL = 64  # pictures to stand in for hidden pixels
SEED = 2022
DRAWN_SEED = 20220


def chosen(model: OnnxClassifier, path: Path, count: int) -> tuple[ImageSet, ImageSet]:
    """Images that the model gets right, and as a pool others; the first of them do not depend on how many there are."""
    with np.load(path) as held:
        pictures, labels = held["images"], held["labels"]
    order = np.random.default_rng(SEED).permutation(len(pictures))
    pool, rest = order[:POOL], order[POOL:]
    right = rest[model.probabilities(pictures[rest]).argmax(axis=1) == labels[rest]]
    return subset(path, pictures, right[:count]), subset(path, pictures, pool)


def subset(source: Path, pictures: Array, places: Array) -> ImageSet:
    """Some of the pictures, each named by its place."""
    return ImageSet(source, tuple(str(place) for place in places), lambda index: pictures[places[index]])


def learned(model: OnnxClassifier, images: ImageSet, pool: ImageSet, out: Path, **options: Any) -> Figures:
    """The bundle's own account of what it took, made if it is not there; masks settle at different steps."""
    begin = time.perf_counter()
    maps = auditkit.explain(model, images, out, "mask", pool=pool, **options)
    account = json.loads((out / "explained.json").read_bytes())
    count = sum(len(labels) for labels in maps.labels.values())
    rows = 10 if options.get("infill", "distractors") == "distractors" else 1
    return {
        "masks": count, "steps": round(account["passes"] / count / rows), "passes": account["passes"],
        "notes": account["notes"], "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def effects(asked: argparse.Namespace) -> tuple[Figures, str]:
    """Completeness and soundness of masks by the weight of the penalty."""
    settings = auditkit.Settings(device=asked.device, precision=asked.precision)
    model = auditkit.load(asked.assets / "models" / f"{asked.model}.onnx", preset="imagenet", settings=settings)
    images, pool = chosen(model, asked.assets / "images" / "cifar10_test_1000.npz", asked.images)
    places = {tv: asked.out / f"masks-tv{tv:g}" for tv in TV}
    made = {
        f"{tv:g}": learned(model, images, pool, place, labels="top2", tv=tv, steps=asked.steps)
        for tv, place in places.items()
    }
    maps = {f"tv{tv:g}": open_bundle(place) for tv, place in places.items()}
    found = auditkit.evaluate(model, images, maps, out=asked.out / "run", pool=pool, labels="top2", eps1=0.0, eps2=0.1,
                              infill=tuple(INFILLS), deletion=False, saliency="none")  # fmt: skip
    results = json.loads((asked.out / "run" / "results.json").read_bytes())
    figures = [
        {"tv": tv, "paper": PAPER[one["infill"], one["name"]][TV.index(tv)]}
        | {name: one[name] for name in ("name", "infill", "value", "low", "high", "n")}
        for one in results["metrics"] for tv in TV
        if one["bundle"] == f"tv{tv:g}" and one["name"] in FIGURES
    ]  # fmt: skip
    controls = [one for one in results["controls"] if one["name"] in FIGURES]
    told = {"model": asked.model, "model_sha256": model.file.identity, "device": model.settings.device,
            "precision": model.settings.precision, "images": len(images), "settings": found.measured(),
            "learned": made}  # fmt: skip
    told |= {"figures": figures, "controls": controls, "from_tv0": from_first(results["comparisons"])}
    return told, effects_table(figures, told["from_tv0"])


def from_first(comparisons: list[Figures]) -> list[Figures]:
    """Each weight's figure less that of no penalty, on the same images; results have the first less the others."""
    return [
        {"tv": tv, "name": one["name"], "infill": one["infill"], "n": one["n"], "value": -one["value"],
         "low": -one["high"], "high": -one["low"]}
        for one in comparisons for tv in TV[1:]
        if (one["bundle"], one["against"]) == ("tv0", f"tv{tv:g}") and one["name"] in FIGURES
    ]  # fmt: skip


def effects_table(figures: list[Figures], changes: list[Figures]) -> str:
    """Ours and how they differ from those without the penalty, with intervals, above the paper's."""
    lines = ["| infill | figure | " + " | ".join(f"TV {tv:g}" for tv in TV) + " |", "|---|---|" + "---|" * len(TV)]
    for (infill, name), papers in PAPER.items():
        ours, change = (
            [f"{one['value']:{form}} ({one['low']:{form}} to {one['high']:{form}})"
             for one in sorted(some, key=lambda one: one["tv"]) if (one["infill"], one["name"]) == (infill, name)]
            for some, form in ((figures, ".2f"), (changes, "+.2f"))
        )  # fmt: skip
        lines.append(f"| {INFILLS[infill]} | {name.replace('_', ' ')} | {' | '.join(ours)} |")
        lines.append(f"| | less that of TV 0 | | {' | '.join(change)} |")
        lines.append(f"| | the paper's | {' | '.join(f'{number:.2f}' for number in papers)} |")
    return "\n".join(lines)


def planted(asked: argparse.Namespace) -> tuple[Figures, str]:
    """Where the masks of the bundled models lie."""
    drawn, others = (draw(count, seed=seed, tags="random")
                     for count, seed in ((asked.images, DRAWN_SEED), (POOL, DRAWN_SEED + 1)))  # fmt: skip
    images, pool = (
        ImageSet(Path(name), tuple(f"{name}{index}" for index in range(len(some.images))), some.images.__getitem__)
        for name, some in (("drawn", drawn), ("other", others))
    )
    lines, settings = [], auditkit.Settings(device=asked.device, precision=asked.precision)
    for name in MODELS:
        model = auditkit.load(bundled(name), settings=settings)
        for infill in asked.infill or ["gray"]:
            out = asked.out / f"masks-{name}-{infill}"
            took = learned(model, images, pool, out, labels="top1", infill=infill, steps=asked.steps)
            lines.append({"model": name, "maps": infill, **located(out, images, drawn, name), "learned": took})
        for control in CONTROLS:
            out = asked.out / f"{control}-{name}"
            auditkit.explain(model, images, out, control, labels="top1")
            lines.append({"model": name, "maps": control, **located(out, images, drawn, name)})
    return {"images": asked.images, "lines": lines}, planted_table(lines)


def located(bundle: Path, images: ImageSet, drawn: Planted, name: str) -> Figures:
    """Shares of the images whose map points at the region that the model reads, in several senses."""
    both = (drawn.objects, drawn.tag_regions)
    read, other = both if name == "honest" else both[::-1]
    maps = open_bundle(bundle)
    tolerance = tolerance_at(drawn.objects.shape[1])
    found: dict[str, list[float]] = {key: [] for key in ("strict", "tolerant", "most", "denser", "share", "other")}
    for place, image in enumerate(images.ids):
        (label,) = maps.labels[image]
        heat = maps.get(image, label)
        order = ranks(heat[None], seed=SEED)[0]
        dense, dense_other = (density(order, region[place]) for region in (read, other))
        found["strict"].append(pointing_hit(heat, read[place]))
        found["tolerant"].append(pointing_hit(heat, read[place], tolerance))
        found["share"].append(dense * read[place].mean())
        found["most"].append(found["share"][-1] > 0.5)
        found["denser"].append(dense > dense_other)
        found["other"].append(pointing_hit(heat, other[place], tolerance))
    return {key: round(float(np.mean(values)), 4) for key, values in found.items()}


def density(order: Array, region: Array) -> float:
    """Share of the first pixels that lie in the region, as many as it has, over its share of the image."""
    return float(share_inside(order, region, int(region.sum())) / region.mean())


def planted_table(lines: list[Figures]) -> str:
    """Per cent of the images."""
    titles = {
        "strict": "maximum in it", "tolerant": "with the usual tolerance", "most": "most of the first pixels in it",
        "denser": "denser there than in the other", "share": "mean share", "other": "maximum in the other",
    }  # fmt: skip
    table = ["| model | reads | maps | " + " | ".join(titles.values()) + " |", "|---|---|---|" + "---|" * len(titles)]
    for line in lines:
        reads = "shape" if line["model"] == "honest" else "tag"
        shares = " | ".join(f"{100 * line[key]:.1f} %" for key in titles)
        table.append(f"| {line['model']} | {reads} | {line['maps']} | {shares} |")
    return "\n".join(table)


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("effects", "planted"))
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--assets", type=Path, help="folder with models/ and images/, for effects")
    parser.add_argument("--model", default="cifar10_resnet56")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--steps", type=int, default=2000, help="at most, for each mask")
    parser.add_argument("--infill", action="append", choices=("gray", "blur", "distractors"), help="for planted")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    if asked.study == "effects" and asked.assets is None:
        parser.error("effects needs --assets")
    asked.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    found, table = (effects if asked.study == "effects" else planted)(asked)
    command = ["python", "benchmarks/masks.py", *sys.argv[1:]]
    whole = {"machine": describe(), "command": command, "seconds": round(time.perf_counter() - begin, 1), **found}
    (asked.out / f"{asked.study}.json").write_text(json.dumps(whole, indent=2) + "\n")
    (asked.out / f"{asked.study}.md").write_text(f"{table}\n")
    print(table)


if __name__ == "__main__":
    main()
