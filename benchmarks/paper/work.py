"""Images of the studies, maps made for them, and what an evaluation says of those maps."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import auditkit
from auditkit.arrays import Array
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.metrics.statistics import paired_difference
from auditkit.metrics.values import NotAssessed
from auditkit.model.classifier import OnnxClassifier
from auditkit.records import from_json, to_json
from auditkit.runs.comparison.finished_run import read_run
from auditkit.runs.explanation.record import Record
from auditkit.runs.folder.figures import MetricResult
from auditkit.runs.summary.wording import remark, why_not_assessed

Figure = dict[str, Any]
FAITHFUL = ("worst_completeness", "worst_soundness")
INFILLS = {"gray": "gray", "random": "other images"}  # of tables on CIFAR-10, and what they are called
POOL = 64  # pictures to stand in for hidden pixels
SEED = 2022
RESIZED, CUT = 256, 180  # of a photograph's shorter side, and of the corner taken from it
CARD_CROP = 224


@dataclass
class Study:
    """A model, images that it gets right, others to hide them behind, and the folder that all goes into."""

    model: OnnxClassifier
    images: Dataset
    pool: Dataset
    out: Path
    steps: int  # of a mask
    quality: str = "fast"  # of the masks, but for their steps
    options: Mapping[str, str] = field(default_factory=dict)  # and for these
    account: dict[str, Figure] = field(default_factory=dict)  # what making each kind of maps took

    def beside(self, folder: str, **changed: Any) -> "Study":
        """Another study in a folder of this one, with an account of its own."""
        return replace(self, out=self.out / folder, account={}, **changed)

    def made(self, name: str, method: str, labels: str, images: Dataset | None = None, **options: Any) -> HeatmapSet:
        """The maps of that name; those that are there already are kept."""
        images, place, begin = images or self.images, self.out / "maps" / name.replace(" ", "-"), time.perf_counter()
        if method == "mask":
            options = {"quality": self.quality, "steps": self.steps, **self.options, **options}
        kept = sum(map(len, Record.of(place).maps.values()))
        maps = auditkit.explain(self.model, images, place, method, labels=labels, pool=self.pool, **options)
        record = Record.of(place)
        self.account[name] = {"maps": len(maps), "kept": kept, "seconds": round(time.perf_counter() - begin, 1),
                              "passes": record.passes, "gradients": record.gradients, "computed": record.computed,
                              "notes": to_json(record.notes)}  # fmt: skip
        return maps

    def scored(self, name: str, maps: Mapping[str, HeatmapSet], images: Dataset | None = None, **settings: Any) -> Any:
        """results.json of an evaluation of that name, which goes on where it was cut short."""
        place = self.out / name
        pool = self.pool if "random" in settings.get("infill", ()) else None
        auditkit.evaluate(self.model, images or self.images, maps, out=place, pool=pool, **settings)
        return json.loads((place / "results.json").read_bytes())


def cifar(model: OnnxClassifier, path: Path, count: int, skip: int = 0) -> tuple[Dataset, Dataset]:
    """Images that the model gets right, and as a pool others; the first of them do not depend on how many there are.

    If images are skipped, the pool is another one too.
    """
    with np.load(path) as held:
        pictures, labels = held["images"], held["labels"]
    order = np.random.default_rng(SEED).permutation(len(pictures))
    pool, rest = order[:POOL], order[POOL:]
    right = rest[model.probabilities(pictures[rest]).argmax(axis=1) == labels[rest]]
    return _some(path, pictures, right[skip : skip + count]), _some(path, pictures, rest[-POOL:] if skip else pool)


def photographs(model: OnnxClassifier, path: Path, count: int) -> tuple[Dataset, Dataset]:
    """The same of photographs in a folder."""
    every = Dataset.open(path, model.signature.classes, model.card.names)
    if every.labels is None:
        raise SystemExit(f"{path} has no labels.csv.")
    order = np.random.default_rng(SEED).permutation(len(every))
    pool, right = order[:POOL], list[int]()
    for place in order[POOL:]:
        if len(right) < count and model.probabilities([every.images[place]]).argmax() == every.labels[place]:
            right.append(int(place))
    return every.select(right), every.select([int(place) for place in pool])


def first(images: Dataset, count: int) -> Dataset:
    """The first few of some images."""
    return Dataset(images.source, images.ids[:count], images.images[:count])


def corners(images: Dataset) -> Dataset:
    """One corner of each photograph, by chance, as large as the whole (the paper's Imagenette-Corner)."""
    which = np.random.default_rng(SEED).integers(0, 4, len(images))
    return Dataset(
        images.source, images.ids, [_corner(images.images[index], int(corner)) for index, corner in enumerate(which)]
    )


def _corner(picture: Path | Array, which: int) -> Array:
    """A corner of the photograph with a border that the model's own centre crop takes off again."""
    whole = Image.open(picture) if isinstance(picture, Path) else Image.fromarray(picture)
    square = whole.convert("RGB").resize((RESIZED, RESIZED), Image.Resampling.BICUBIC)
    left, top = (which % 2) * (RESIZED - CUT), (which // 2) * (RESIZED - CUT)
    stretched = square.crop((left, top, left + CUT, top + CUT)).resize((CARD_CROP,) * 2, Image.Resampling.BICUBIC)
    border = (RESIZED - CARD_CROP) // 2
    return np.pad(np.asarray(stretched), ((border, border), (border, border), (0, 0)), mode="edge")


def _some(source: Path, pictures: Array, places: Array) -> Dataset:
    return Dataset(source, tuple(str(place) for place in places), pictures[places])


def figure(results: Any, name: str, bundle: str, infill: str) -> Figure:
    """One figure of an evaluation, of a bundle or a control."""
    for one in (*results["metrics"], *results["controls"]):
        if (one["name"], one["bundle"], one["infill"]) == (name, bundle, infill):
            reason = remark(from_json(MetricResult, one, "results")) or None
            return {key: one[key] for key in ("name", "bundle", "infill", "value", "low", "high", "n")} | {
                "reason": reason
            }
    raise SystemExit(f"the evaluation has no {name} of {bundle} over {infill}.")


def change(results: Any, name: str, bundle: str, against: str, infill: str) -> Figure:
    """A bundle's figure less another's, on the same images."""
    for one in results["comparisons"]:
        if (one["name"], one["infill"]) == (name, infill) and {one["bundle"], one["against"]} == {bundle, against}:
            kept = {key: one[key] for key in ("value", "low", "high")}
            if one["bundle"] != bundle:
                kept = {key: None if one[other] is None else -one[other]
                        for key, other in zip(kept, ("value", "high", "low"), strict=True)}  # fmt: skip
            return {"name": name, "bundle": bundle, "against": against, "infill": infill, "n": one["n"], **kept}
    raise SystemExit(f"the evaluation does not compare {name} of {bundle} with {against} over {infill}.")


def moved(before: Path, after: Path, name: str, bundle: str, infill: str = "gray") -> Figure:
    """A bundle's figure in the later of two runs less that in the earlier, image by image, whatever became of these."""
    means = list[dict[str, float]]()
    for run in map(read_run, (before, after)):
        values = run.metrics(bundle, infill)[name]
        if isinstance(values, NotAssessed):
            raise SystemExit(f"{run.name} has no {name}: {why_not_assessed(values)}.")
        means.append(dict(zip(run.table.images, values.image_means(len(run.table.images)), strict=True)))
    both = [image for image, value in means[0].items() if np.isfinite([value, means[1].get(image, np.nan)]).all()]
    later, earlier = ([own[image] for image in both] for own in reversed(means))
    found = paired_difference(later, earlier)
    return {"name": name, "bundle": bundle, "infill": infill, "value": found.value, "low": found.low,
            "high": found.high, "n": found.n}  # fmt: skip
