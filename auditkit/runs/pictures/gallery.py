"""Pictures of a run's best, median and worst images, kept small beside its results for the report to show."""

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.data.atomic_write import write_whole
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import Order, Ties, map_seed
from auditkit.model.classifier import AnyClassifier
from auditkit.runs.evaluation.maps import fitted_map
from auditkit.runs.folder.parquet import SCHEMA_VERSION
from auditkit.runs.pictures.heatmap_panels import KEPT, heat, in_colour, kept, shares
from auditkit.runs.summary.per_image import Group, Values, image_means
from auditkit.runs.summary.summarise import Summary

INDEX = "gallery.json"
LONGEST = 160  # pixels of a side
TINY = 96  # up to here a picture is kept as it is, pixel for pixel
HEAT_LEVELS = 32  # colours of a map: a noisy one stays small
MOST_POINTS = 65  # of a curve
CHOSEN_BY = ("worst_completeness", "insertion")  # the first that was assessed


@dataclass(frozen=True)
class Chosen:
    """An image to show, and why."""

    bundle: str
    image: str
    role: str
    figures: Mapping[str, float | None]  # of the image as a whole


def showcase(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], summary: Summary, out: Path,
    per_role: int = 8,
) -> int:  # fmt: skip
    """Write the gallery into the folder `out`: the predicted label and the runner-up of each chosen image.

    How many entries there are; pictures of an earlier gallery that are no longer named are removed.
    """
    each = max(1, per_role // max(1, len(bundles)))
    chosen = [one for name in bundles for one in _chosen(summary, name, each)]
    rows = _rows(summary, {(one.bundle, one.image) for one in chosen})
    drawing, entries = _Drawing(model, images, summary.settings.seed, summary.settings.ties or "random"), []
    out.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(chosen, start=1):
        seen, size = drawing.seen(one.image)
        shown = _picture_file(out, f"{number:04}-image", seen)
        for row in _two(rows.get((one.bundle, one.image), [])):
            values = fitted_map(bundles[one.bundle], one.image, row["label"], model.card, size)
            drawn = {"image": shown} | drawing.save(out, f"{number:04}-{row['label']}", seen, values, one.image)
            entries.append(_entry(one, row, model, drawn))
    index = {"schema_version": SCHEMA_VERSION, "kept": KEPT, "chosen_by": _basis(summary, bundles), "entries": entries}
    text = json.dumps(index, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=True)
    write_whole(out / INDEX, (text + "\n").encode())
    named = {INDEX} | {name for entry in entries for name in entry["pictures"].values()}
    for stale in sorted(path for path in out.iterdir() if path.is_file() and path.name not in named):
        stale.unlink()
    return len(entries)


def _basis(summary: Summary, bundles: Mapping[str, HeatmapSet]) -> dict[str, str]:
    """What the images of each bundle were ordered by."""
    found = {name: _ordering(_per_image(summary, name)) for name in bundles}
    return {name: basis for name, basis in found.items() if basis}


def _per_image(summary: Summary, bundle: str) -> dict[str, Array]:
    """Figures of a bundle by number of the image, under the first infill; NaN where an image has none."""
    items = summary.items
    if bundle not in items.sources:
        return {}
    at = np.flatnonzero((items.source == items.sources.index(bundle)) & (items.infill == 0))
    wanted = (*CHOSEN_BY, "worst_soundness")
    return {metric.name: image_means(metric, len(items.images)) for metric in Group(items, at).metrics()
            if isinstance(metric, Values) and metric.name in wanted}  # fmt: skip


def _ordering(figures: Mapping[str, Array]) -> str:
    return next((name for name in CHOSEN_BY if name in figures), "")


def _chosen(summary: Summary, bundle: str, each: int) -> list[Chosen]:
    """The worst, median and best images of a bundle, none of them twice."""
    figures = _per_image(summary, bundle)
    basis = _ordering(figures)
    if not basis:
        return []
    names, values = summary.items.images, figures[basis]
    order = sorted(np.flatnonzero(np.isfinite(values)), key=lambda at: (values[at], names[at]))
    count = min(each, max(1, len(order) // 3))
    worst, rest = order[:count], order[count:]
    best, middle = rest[-count:], rest[:-count]
    start = max(0, (len(middle) - count) // 2)
    median = middle[start : start + count]
    roles = (("worst", worst), ("median", median), ("best", best))
    return [Chosen(bundle, names[at], role, {name: _number(held[at]) for name, held in figures.items()})
            for role, positions in roles for at in positions]  # fmt: skip


def _rows(summary: Summary, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of the chosen images with their curves, read a unit at a time."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    infill = next(iter(summary.items.infills), "")
    for table in summary.tables():
        keys = zip(table.column("bundle").to_pylist(), table.column("image").to_pylist(), strict=True)
        mine = [at for at, key in enumerate(keys) if key in wanted]
        for row in table.take(mine).to_pylist() if mine else []:
            if row["infill"] == infill:
                found.setdefault((row["bundle"], row["image"]), []).append(row)
    return found


def _two(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The predicted label and the one after it, those of them that have a map; the likeliest two where it has none."""
    ordered = sorted(rows, key=lambda row: (not row["predicted"], -(row["prob"] or 0.0), row["label"]))
    return [row for row in ordered[:2] if not row["error"]]


def _entry(one: Chosen, row: dict[str, Any], model: AnyClassifier, drawn: dict[str, str]) -> dict[str, Any]:
    names, label = model.card.names, row["label"]
    figures = {name: _number(row[name]) for name in ("prob", "insertion", "alpha", "beta")}
    of_image = {name: one.figures.get(name) for name in ("worst_completeness", "worst_soundness")}
    return {
        "image": one.image, "label": label, "label_name": names[label] if label < len(names) else None,
        "bundle": one.bundle, "role": one.role, "predicted": bool(row["predicted"]), "truth": row["truth"], **figures,
        **of_image, "pictures": drawn,
        "curve": _thinned(row["keep_counts"], row["curve"], model.signature.height * model.signature.width),
    }  # fmt: skip


def _thinned(counts: list[int] | None, scores: list[float] | None, pixels: int) -> dict[str, list[float]]:
    held = list(zip(counts or (), scores or (), strict=True))
    places = np.unique(np.linspace(0, len(held) - 1, min(MOST_POINTS, len(held))).round().astype(int)) if held else ()
    kept_points = [held[at] for at in places]
    return {"keep": [round(count / pixels, 5) for count, _ in kept_points],
            "score": [round(float(score), 5) for _, score in kept_points]}  # fmt: skip


class _Drawing:
    """Pictures of what the network saw."""

    def __init__(self, model: AnyClassifier, images: Dataset, seed: int, ties: Ties) -> None:
        self.model, self.images, self.seed, self.ties = model, images, seed, ties
        self.positions = {name: place for place, name in enumerate(images.ids)}
        self.gray = np.array(model.card.gray, np.float64).round().clip(0, 255).astype(np.uint8)

    def seen(self, image: str) -> tuple[Array, tuple[int, int]]:
        """Pixels in colour, and the photograph's height and width."""
        decoded = self.images.decode(self.positions[image], self.model.card)
        return in_colour(decoded.pixels), decoded.size

    def save(self, out: Path, name: str, seen: Array, values: Array, image: str) -> dict[str, str]:
        """The map, and the pixels that it kept when its curve was measured."""
        order = Order(values)
        seed = map_seed(self.seed, image + order.digest(), 0)  # the shuffle within ties that the curve had
        first = order.ranks(self.ties, seed)
        return {"map": _heat_file(out, f"{name}-map", shares(order)),
                "kept": _picture_file(out, f"{name}-kept", kept(seen, first, self.gray))}  # fmt: skip


def _picture_file(out: Path, name: str, pixels: Array) -> str:
    """Write a small photograph, or a tiny picture as it is; its file's name."""
    picture = _small(Image.fromarray(np.ascontiguousarray(pixels)))
    if max(picture.size) <= TINY:
        return _written(out, f"{name}.png", picture, "PNG")
    return _written(out, f"{name}.jpg", picture, "JPEG", quality=80)


def _heat_file(out: Path, name: str, share: Array) -> str:
    """Write a small map in the colours of heat; shares are brought to size before they are coloured."""
    small = np.asarray(_small(Image.fromarray(share.astype(np.float32))))
    levels = (small.clip(0, 1) * (HEAT_LEVELS - 1)).round().astype(np.uint8)
    picture = Image.frombytes("P", (small.shape[1], small.shape[0]), levels.tobytes())
    picture.putpalette(heat(np.linspace(0, 1, HEAT_LEVELS)).tobytes())
    return _written(out, f"{name}.png", picture, "PNG")


def _small(picture: Image.Image) -> Image.Image:
    share = LONGEST / max(picture.size)
    if share >= 1:
        return picture
    size = (max(1, round(picture.width * share)), max(1, round(picture.height * share)))
    return picture.resize(size, Image.Resampling.LANCZOS)


def _written(out: Path, name: str, picture: Image.Image, kind: str, **options: Any) -> str:
    stream = io.BytesIO()
    picture.save(stream, kind, optimize=True, **options)
    write_whole(out / name, stream.getvalue())
    return name


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
