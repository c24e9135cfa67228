"""Pictures of a run's best, median and worst images, kept small beside its results for the report to show."""

import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

import numpy as np
from PIL import Image

from auditkit.arrays import Array
from auditkit.data.atomic_write import remove, remove_left_overs, write_errors, write_whole
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.data.ranks import Order, map_seed
from auditkit.model.card import Card
from auditkit.model.classifier import AnyClassifier
from auditkit.records import to_json
from auditkit.runs.evaluation.images import picture_digest
from auditkit.runs.evaluation.maps import fitted_map
from auditkit.runs.evaluation.measure import Row
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.parquet import SCHEMA_VERSION
from auditkit.runs.pictures.gallery_index import INDEX, GalleryEntry, GalleryIndex, LabelMatrix, Pictures, ThinnedCurve
from auditkit.runs.pictures.heatmap_panels import KEPT, gray_pixel, heat, in_colour, kept, shares
from auditkit.runs.summary.source_rows import image_means
from auditkit.runs.summary.summarise import Summary

LONGEST = 160  # pixels of a side: a report of some dozens of pictures stays below a few megabytes
TINY = 96  # pixels of a side, up to which a picture is kept without loss
HEAT_LEVELS = 32  # colours of a map: a noisy one stays small
MOST_POINTS = 65  # of a curve: a plot of the gallery's size shows no more
JPEG_QUALITY = 80
CURVE_DIGITS = 5  # after the point
CHOSEN_BY = ("worst_completeness", "insertion")  # images are ordered by the first that was assessed
PER_ROLE = 8  # images shown as worst, median and best each, of all bundles together
SHOWN_LABELS = 2  # of an image: the predicted one and the runner-up
MATRIX_LABELS, MATRIX_DIGITS = 5, 3  # of an image's matrix: what a card has room for
_PICTURE = re.compile(r"[0-9]{4,}-([0-9]+-(map|kept)|image)\.(png|jpg)")  # the name of a picture's file
_SHOWN = (
    "image", "label", "bundle", "infill", "prob", "predicted", "insertion", "alpha", "beta", "keep_counts", "curve",
    "error", "truth", "log_odds",
)  # fmt: skip # columns of the rows of an image


@dataclass(frozen=True)
class _Chosen:
    """An image to show, and why."""

    bundle: str
    image: str
    role: str
    figures: Mapping[str, float | None]  # of the image as a whole


def showcase(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], summary: Summary, out: Path,
    per_role: int = PER_ROLE,
) -> int:  # fmt: skip
    """Write the gallery into `out`, the predicted label and the runner-up of each chosen image; how many entries."""
    index = gallery_index(summary, list(bundles), model.card, per_role)
    run = out.parent
    for name, picture in pictures(model, images, bundles, summary.settings, index):
        write_whole(out / name, encoded(name, picture), root=run)
    write_whole(out / INDEX, encoded_index(index), root=run)
    used = {INDEX, *chain.from_iterable(vars(entry.pictures).values() for entry in index.entries)}
    with write_errors(out):
        for path in sorted(out.iterdir()):
            if path.name not in used and _PICTURE.fullmatch(path.name):
                remove(path, root=run)
        remove_left_overs(out, root=run)
    return len(index.entries)


def gallery_index(summary: Summary, bundles: Sequence[str], card: Card, per_role: int = PER_ROLE) -> GalleryIndex:
    """The images to show with their figures and the names of their pictures; it follows from the rows alone."""
    each = max(1, per_role // max(1, len(bundles)))
    means = {bundle: image_means(summary.table, bundle) for bundle in bundles}
    bases = {bundle: next((name for name in CHOSEN_BY if name in figures), "") for bundle, figures in means.items()}
    chosen_by = {bundle: basis for bundle, basis in bases.items() if basis}
    chosen = list(chain.from_iterable(_chosen(summary.table.images, bundle, means[bundle], basis, each)
                                      for bundle, basis in chosen_by.items()))  # fmt: skip
    rows = _rows(summary, {(choice.bundle, choice.image) for choice in chosen})
    entries: list[GalleryEntry] = []
    for number, choice in enumerate(chosen, start=1):
        ordered = _likeliest_first(rows.get((choice.bundle, choice.image), []))
        shown = [row for row in ordered[:SHOWN_LABELS] if not row.error]
        matrices = [_matrix(ordered), *[None] * SHOWN_LABELS]
        entries += [_entry(choice, row, card, number, matrix) for row, matrix in zip(shown, matrices, strict=False)]
    return GalleryIndex(SCHEMA_VERSION, KEPT, tuple(entries), chosen_by)


def pictures(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], settings: Evaluation, index: GalleryIndex
) -> Iterator[tuple[str, Image.Image]]:
    """Every picture that the index names, with the name of its file."""
    positions, gray = {image: position for position, image in enumerate(images.ids)}, gray_pixel(model.card)
    for name, group in groupby(index.entries, key=lambda entry: entry.pictures.image):
        entries = list(group)
        decoded = images.decode(positions[entries[0].image], model.card)
        pixels, digest = in_colour(decoded.pixels), picture_digest(decoded.pixels)
        yield name, _small(Image.fromarray(np.ascontiguousarray(pixels)))
        for entry in entries:
            order = Order(fitted_map(bundles[entry.bundle], entry.image, entry.label, model.card, decoded.size))
            # Tied pixels are shuffled as they were for the curve.
            seed = map_seed(settings.seed, digest + order.digest(), 0)
            ranks = order.ranks(settings.ties or "random", seed)
            yield entry.pictures.map, _heat_picture(shares(order))
            yield entry.pictures.kept, _small(Image.fromarray(np.ascontiguousarray(kept(pixels, ranks, gray))))


def _chosen(names: list[str], bundle: str, figures: Mapping[str, Array], basis: str, each: int) -> Iterator[_Chosen]:
    """The worst, median and best images of a bundle by the figure `basis`, none of them twice."""
    values = figures[basis]
    order = sorted(np.flatnonzero(np.isfinite(values)), key=lambda image: (values[image], names[image]))
    count = min(each, max(1, len(order) // 3))
    worst, rest = order[:count], order[count:]
    best, middle = rest[-count:], rest[:-count]
    start = max(0, (len(middle) - count) // 2)
    for role, images in (("worst", worst), ("median", middle[start : start + count]), ("best", best)):
        for image in images:
            of_image = {name: _number(column[image]) for name, column in figures.items()}
            yield _Chosen(bundle, names[image], role, of_image)


def _rows(summary: Summary, chosen: set[tuple[str, str]]) -> dict[tuple[str, str], list[Row]]:
    """The rows of the chosen (bundle, image) pairs with their curves, read a unit at a time."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import
    import pyarrow.compute as pc  # noqa: PLC0415

    rows: dict[tuple[str, str], list[Row]] = {}
    infill, images = next(iter(summary.table.infills), ""), pa.array([image for _, image in chosen], pa.string())
    for table in summary.tables(_SHOWN):
        of_images = pc.and_(pc.is_in(table.column("image"), images), pc.equal(table.column("infill"), infill))
        for columns in table.filter(of_images).to_pylist():
            row = Row(**columns)
            if (row.bundle, row.image) in chosen:
                rows.setdefault((row.bundle, row.image), []).append(row)
    return rows


def _likeliest_first(rows: list[Row]) -> list[Row]:
    """The rows of an image, the predicted label first, then the runner-up."""
    return sorted(rows, key=lambda row: (not row.predicted, -(row.prob or 0.0), row.label))


def _matrix(rows: list[Row]) -> LabelMatrix | None:
    """The cross-label matrix of an image's likeliest labels; None where it has one label, or lacks a map."""
    indices = {label: index for index, label in enumerate(sorted(row.label for row in rows))}
    columns = [row.log_odds for row in rows[:MATRIX_LABELS] if row.log_odds is not None]
    shown = tuple(row.label for row in rows[:MATRIX_LABELS])
    if not columns or len(columns) < len(shown):
        return None
    areas = [tuple(round(float(odds[indices[label]]), MATRIX_DIGITS) for odds in columns) for label in shown]
    return LabelMatrix(shown, tuple(areas))


def _entry(choice: _Chosen, row: Row, card: Card, number: int, matrix: LabelMatrix | None) -> GalleryEntry:
    names, prefix = card.names, f"{number:04}-{row.label}"
    suffix = "png" if max(card.size) <= TINY else "jpg"
    return GalleryEntry(
        choice.image, row.label, names[row.label] if row.label < len(names) else None, choice.bundle, choice.role,
        bool(row.predicted), row.truth, prob=_number(row.prob), insertion=_number(row.insertion),
        alpha=_number(row.alpha), beta=_number(row.beta),
        worst_completeness=choice.figures.get("worst_completeness"),
        worst_soundness=choice.figures.get("worst_soundness"),
        pictures=Pictures(f"{number:04}-image.{suffix}", f"{prefix}-map.png", f"{prefix}-kept.{suffix}"),
        curve=_thinned(row, card.size[0] * card.size[1]), matrix=matrix,
    )  # fmt: skip


def _thinned(row: Row, pixels: int) -> ThinnedCurve:
    """At most MOST_POINTS points of the curve, evenly spread over those that were measured."""
    if row.keep_counts is None or row.curve is None:
        return ThinnedCurve((), ())
    counts, scores = row.keep_counts, row.curve
    positions = np.unique(np.linspace(0, len(counts) - 1, min(MOST_POINTS, len(counts))).round().astype(int)).tolist()
    return ThinnedCurve(
        tuple(round(counts[position] / pixels, CURVE_DIGITS) for position in positions),
        tuple(round(float(scores[position]), CURVE_DIGITS) for position in positions),
    )


def _heat_picture(share: Array) -> Image.Image:
    """A small map in heat colours, resized before it is coloured."""
    small = np.asarray(_small(Image.fromarray(share.astype(np.float32))))
    levels = (small.clip(0, 1) * (HEAT_LEVELS - 1)).round().astype(np.uint8)
    picture = Image.frombytes("P", (small.shape[1], small.shape[0]), levels.tobytes())
    picture.putpalette(heat(np.linspace(0, 1, HEAT_LEVELS)).tobytes())
    return picture


def _small(picture: Image.Image) -> Image.Image:
    share = LONGEST / max(picture.size)
    if share >= 1:
        return picture
    size = (max(1, round(picture.width * share)), max(1, round(picture.height * share)))
    return picture.resize(size, Image.Resampling.LANCZOS)


def encoded_index(index: GalleryIndex) -> bytes:
    """The content of the index's file."""
    text = json.dumps(to_json(index), sort_keys=True, indent=1, allow_nan=False, ensure_ascii=True)
    return (text + "\n").encode()


def encoded(name: str, picture: Image.Image) -> bytes:
    """The content of a picture's file; a photograph that is not tiny loses a little."""
    stream = io.BytesIO()
    if name.endswith(".png"):
        picture.save(stream, "PNG", optimize=True)
    else:
        picture.save(stream, "JPEG", optimize=True, quality=JPEG_QUALITY)
    return stream.getvalue()


def _number(value: float | None) -> float | None:
    """Six digits; None for NaN and infinity."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
