"""Where learned masks lie on images whose truth is known.

    python -m benchmarks.planted -o FOLDER [--images 40] [--infill gray] [--infill distractors] [--infill untagged]

Masks are learned for what the two bundled models predict on drawn images whose tags name a class by chance. Whether the
maximum is in the region that the model reads (its shape, or its tag), the same with the usual tolerance, whether most
of the first pixels are, as many as the region has, and in which of the two regions they are denser, against the
region's share of the image. Controls stand beside: shapes are often in the middle. Distractors carry tags of their
own: a model that reads tags must be kept from seeing those, so that masks keep corners without a tag, too. It is told
whether the maximum is in any such corner; `untagged` distractors have their tags painted over.

Goes on where it was cut short, writes a JSON object into FOLDER and prints a table in Markdown.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.arrays import Array
from auditkit.data.bundles import open_bundle
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import ranks
from auditkit.demo.draw import Planted, draw
from auditkit.demo.planted import MODELS, bundled_model
from auditkit.metrics.localisation import pointing_hit, share_inside
from auditkit.model.classifier import OnnxClassifier
from auditkit.report.markdown import table
from auditkit.runs.explanation.record import Record
from benchmarks.reporting import origin

Figures = dict[str, Any]
TITLES = {
    "strict": "maximum in it", "tolerant": "with the usual tolerance", "most": "most of the first pixels in it",
    "denser": "denser there than in the other", "share": "mean share", "other": "maximum in the other",
    "corner": "maximum where any image has its tag",
}  # fmt: skip
GRAY = 128
CONTROLS = ("random", "centred-gaussian")
TOLERANCE_PX_AT_224 = 15  # of the pointing game in Zhang et al. 2018
POOL = 64  # pictures to stand in for hidden pixels
SEED = 2022
DRAWN_SEED = 20220


def learned(model: OnnxClassifier, images: Dataset, pool: Dataset, out: Path, **options: Any) -> Figures:
    """The bundle's own account of what it took, made if it is not there."""
    begin = time.perf_counter()
    maps = auditkit.explain(model, images, out, "mask", pool=pool, quality="full", **options)
    record = Record.of(out)
    count = sum(len(labels) for labels in maps.labels.values())
    rows = 10 if options["infill"] == "distractors" else 1
    return {
        "masks": count, "steps": round(record.passes / count / rows), "passes": record.passes,
        "notes": list(record.notes), "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def planted(asked: argparse.Namespace) -> Figures:
    """Where the masks of the bundled models lie."""
    drawn, others = (draw(count, seed=seed, tags="random")
                     for count, seed in ((asked.images, DRAWN_SEED), (POOL, DRAWN_SEED + 1)))  # fmt: skip
    images, pool, plain = (
        Dataset(Path(name), tuple(f"{name}{index}" for index in range(len(some))), some)
        for name, some in (("drawn", drawn.images), ("other", others.images), ("plain", without_tags(others)))
    )
    corners = drawn.tag_regions.any(axis=0) | others.tag_regions.any(axis=0)
    lines, settings = [], auditkit.Settings(device=asked.device, precision=asked.precision)
    for name in MODELS:
        model = auditkit.load(bundled_model(name), settings=settings)
        for infill in asked.infill or ["gray"]:
            out = asked.out / f"masks-{name}-{infill}"
            hidden = {"untagged": (plain, "distractors")}.get(infill, (pool, infill))
            took = learned(model, images, hidden[0], out, labels="top1", infill=hidden[1], steps=asked.steps)
            lines.append({"model": name, "maps": infill, **located(out, images, drawn, corners, name), "learned": took})
        for control in CONTROLS:
            out = asked.out / f"{control}-{name}"
            auditkit.explain(model, images, out, control, labels="top1")
            lines.append({"model": name, "maps": control, **located(out, images, drawn, corners, name)})
    return {"images": asked.images, "lines": lines}


def without_tags(drawn: Planted) -> Array:
    """The images with gray where their tags are."""
    return np.where(drawn.tag_regions[..., None], np.uint8(GRAY), drawn.images)


def located(bundle: Path, images: Dataset, drawn: Planted, corners: Array, name: str) -> Figures:
    """Shares of the images whose map points at the region that the model reads, in several senses."""
    both = (drawn.objects, drawn.tag_regions)
    read, other = both if name == "honest" else both[::-1]
    maps = open_bundle(bundle)
    tolerance = TOLERANCE_PX_AT_224 * drawn.objects.shape[1] / 224
    found: dict[str, list[float]] = {key: [] for key in TITLES}
    for place, image in enumerate(images.ids):
        (label,) = maps.labels[image]
        heat = maps.get(image, label)
        order = ranks(heat, seed=SEED)
        dense, dense_other = (density(order, region[place]) for region in (read, other))
        found["strict"].append(pointing_hit(heat, read[place]))
        found["tolerant"].append(pointing_hit(heat, read[place], tolerance))
        found["share"].append(dense * read[place].mean())
        found["most"].append(found["share"][-1] > 0.5)
        found["denser"].append(dense > dense_other)
        found["other"].append(pointing_hit(heat, other[place], tolerance))
        found["corner"].append(pointing_hit(heat, corners, tolerance))
    return {key: round(float(np.mean(values)), 4) for key, values in found.items()}


def density(order: Array, region: Array) -> float:
    """Share of the first pixels that lie in the region, as many as it has, over its share of the image."""
    return float(share_inside(order, region, int(region.sum())) / region.mean())


def planted_table(found: Figures) -> str:
    """Shares of the images."""
    reads = {"honest": "shape", "shortcut": "tag"}
    rows = [[line["model"], reads[line["model"]], line["maps"], *(f"{line[key]:.1%}" for key in TITLES)]
            for line in found["lines"]]  # fmt: skip
    drawn = table(["model", "reads", "maps", *TITLES.values()], rows)
    if not any(line["maps"] == "untagged" for line in found["lines"]):
        return drawn
    return (
        f"{drawn}\n\nDistractors have tags, too, in any corner: a mask for a model that reads tags keeps corners "
        "without one, lest another's tag be seen there. `untagged` distractors have theirs painted over."
    )


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1000, help="for each mask")
    parser.add_argument("--infill", action="append", choices=("gray", "blur", "distractors", "untagged"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    found = planted(asked)
    whole = {**origin("benchmarks.planted"), "seconds": round(time.perf_counter() - begin, 1), **found}
    (asked.out / "planted.json").write_text(json.dumps(whole, indent=2) + "\n")
    print(planted_table(whole))


if __name__ == "__main__":
    main()
