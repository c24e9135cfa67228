"""All rows of a run as columns of numbers: thousands of images in some megabytes."""

from collections.abc import Iterable, Iterator
from copy import copy
from functools import cached_property
from typing import Any, Final

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import FailedImage
from auditkit.metrics.similarity import BYTES, first_similar
from auditkit.metrics.values import LABELS_PER_IMAGE
from auditkit.runs.folder.figures import CONTROL
from auditkit.runs.folder.parquet import failed_images

CODED = ("image", "bundle", "infill", "error", "flags")  # texts, kept once each
SMALL = ("label", "predicted", "prediction", "truth", "box_degenerate")  # float32 holds them
NUMBERS = (
    "prob", "insertion", "insertion_error", "insertion_low", "insertion_high", "deletion", "alpha", "beta",
    "saliency_metric", "pointing_hit", "iou",
)  # fmt: skip
LISTS = ("saliency_by_delta", "degenerate_by_delta", "log_odds", "log_odds_error")
EDGES = "control:edges"
COPIED = 0.95  # likeness of the edges of two images from which one is a copy of the other
DIGEST = "map_digest"  # of which 60 bits tell maps apart
SAME_MAP_FLAG: Final = "same-map-for-all-labels"  # flags of a map
CONSTANT: Final = "constant"
TIES: Final = "ties"
_ROWS_AT_ONCE = 2000  # of the tables that are read
TOP = "map_top"  # fingerprints, kept of the bundles' maps and of edges


class RowTable:
    """All rows of a run, a column at a time; tables are read one by one and not kept."""

    def __init__(self, tables: Iterable[Any], *, named: bool = False) -> None:
        """`named`: every label is one whose insertion, deletion and saliency metric are reported."""
        self.named = named
        codes: dict[str, dict[Any, int]] = {name: {} for name in CODED}
        parts: dict[str, list[Array]] = {name: [] for name in (*CODED, *SMALL, *NUMBERS, *LISTS, DIGEST)}
        tops, failed = list[tuple[Array, Array]](), list[FailedImage]()
        for table in _joined_tables(tables, failed):
            for name in CODED:
                parts[name].append(_codes(table.column(name), codes[name]))
            for name in (*SMALL, *NUMBERS):
                parts[name].append(_numbers(table.column(name), np.float32 if name in SMALL else np.float64))
            for name in LISTS:
                parts[name].append(_lists(table.column(name)))
            parts[DIGEST].append(_shortened(table.column(DIGEST)))
            tops.append(_tops(table))
        self._columns = {name: _joined(parts.pop(name)) for name in (*CODED, *SMALL, *NUMBERS, DIGEST)}
        self._lists = {name: _joined_lists(parts.pop(name)) for name in LISTS}
        has = np.concatenate([np.zeros(0, np.bool_), *(has for has, _ in tops)])
        self._top_numbers = np.where(has, np.cumsum(has) - 1, -1)
        self._tops = np.concatenate([np.zeros((0, BYTES), np.uint8), *(held for _, held in tops)])
        self.failed_images = tuple(failed)  # that cannot be used
        self.image, self.source, self.infill = (self._columns.pop(name).astype(np.int64) for name in CODED[:3])
        self.images, self.sources, self.infills = (list(codes[name]) for name in CODED[:3])
        self._texts = {name: list(codes[name]) for name in ("error", "flags")}
        self.label = self.column("label").astype(np.int64)
        self.predicted = np.asarray(self.column("predicted") == 1)  # whether a row is about the predicted label
        self.truth = self._by_image("truth")  # the given label by number of the image; NaN where it has none
        self.prediction = self._by_image("prediction")  # the model's label by number of the image

    def __len__(self) -> int:
        return len(self.image)

    @property
    def bundles(self) -> list[str]:
        """The sources other than controls."""
        return [source for source in self.sources if not source.startswith(CONTROL)]

    def positions(self, source: str, infill: int = 0) -> Array:
        """The rows of a source under the infill of that number."""
        return np.flatnonzero((self.source == self.sources.index(source)) & (self.infill == infill))

    def edge_rows(self) -> Array:
        """The rows with figures of the edges control, which tells pictures apart; none where it was not measured."""
        numbers = [number for number, source in enumerate(self.sources) if source == EDGES]
        return np.flatnonzero(np.isin(self.source, numbers) & ~self.failed())

    def column(self, name: str) -> Array:
        """A column of numbers, NaN where there is none."""
        return self._columns[name]

    def with_columns(self, columns: dict[str, Array], lists: dict[str, Array]) -> "RowTable":
        """The same rows with other numbers in these columns."""
        other = copy(self)
        other._columns, other._lists = self._columns | columns, self._lists | lists
        return other

    def lists(self, name: str) -> Array:
        """A column of lists [rows, greatest length] in float64, NaN where a row has none or a shorter one."""
        return self._lists[name]

    @cached_property
    def place(self) -> Array:
        """The place of each row's label among the labels of its image, ascending."""
        pairs, numbers = np.unique(self.image * LABELS_PER_IMAGE + self.label, return_inverse=True)
        images = pairs // LABELS_PER_IMAGE
        return np.asarray((np.arange(len(pairs)) - np.searchsorted(images, images))[numbers])

    def failed(self, why: str | None = None) -> Array:
        """Whether a row has no figure, for that reason or for any."""
        codes = [code for code, text in enumerate(self._texts["error"]) if text and why in (None, text)]
        return np.isin(self._columns["error"], codes)

    def flagged(self, flag: str) -> Array:
        """Whether a row has the flag."""
        codes = [code for code, flags in enumerate(self._texts["flags"]) if flag in flags]
        return np.isin(self._columns["flags"], codes)

    def tops(self, rows: Array) -> tuple[Array, Array]:
        """Those of the rows that have a fingerprint, and their fingerprints [rows, bytes]."""
        numbers = self._top_numbers[rows]
        return rows[numbers >= 0], self._tops[numbers[numbers >= 0]]

    def flags(self, rows: Array) -> dict[str, int]:
        """How many of these rows have each flag."""
        counts: dict[str, int] = {}
        for code, count in zip(*np.unique(self._columns["flags"][rows], return_counts=True), strict=True):
            for flag in self._texts["flags"][code]:
                counts[flag] = counts.get(flag, 0) + int(count)
        return counts

    @cached_property
    def pictures(self) -> Array:
        """What each image shows, by number of the image: one number for all copies, which are told by their edges."""
        pictures = -1 - np.arange(len(self.images), dtype=np.int64)
        rows = self.edge_rows()
        if len(rows):
            pictures[self.image[rows]] = self.column(DIGEST)[rows]
            rows, tops = self.tops(rows[np.unique(self.image[rows], return_index=True)[1]])
            pictures[self.image[rows]] = pictures[self.image[rows[first_similar(tops, COPIED)]]]
        return pictures

    @property
    def copies(self) -> int:
        """Images that look like another one."""
        return len(self.images) - len(np.unique(self.pictures))

    def _by_image(self, name: str) -> Array:
        values = np.full(len(self.images), np.nan)
        values[self.image] = self.column(name)
        return values


def _joined_tables(tables: Iterable[Any], failed: list[FailedImage]) -> Iterator[Any]:
    """The tables of many units joined into fewer ones; the images that cannot be used are appended to `failed`."""
    import pyarrow as pa  # noqa: PLC0415

    waiting, rows = list[Any](), 0
    for table in tables:
        failed += failed_images(table)
        waiting.append(table)
        rows += len(table)
        if rows >= _ROWS_AT_ONCE:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _codes(column: Any, codes: dict[Any, int]) -> Array:
    """The number of each text, or list of texts, counted in the order in which they first come."""
    values = column.to_pylist()
    keys = (tuple(value) if isinstance(value, list) else value or "" for value in values)
    return np.fromiter((codes.setdefault(key, len(codes)) for key in keys), np.int32, len(values))


def _numbers(column: Any, kind: Any) -> Array:
    if column.null_count == len(column):
        return np.broadcast_to(kind(np.nan), len(column))  # takes no memory
    return np.asarray(column.to_numpy(), np.float64).astype(kind)


def _joined(parts: list[Array]) -> Array:
    if all(part.strides == (0,) for part in parts):
        return np.broadcast_to(parts[0][:1], sum(map(len, parts))) if parts else np.zeros(0)
    return np.concatenate(parts)


def _shortened(column: Any) -> Array:
    return np.array([int((text or "0")[:15], 16) for text in column.to_pylist()], np.int64)


def _tops(table: Any) -> tuple[Array, Array]:
    """Which rows are of a bundle, or of edges, and have a fingerprint, and the fingerprints."""
    pairs = zip(table.column("bundle").to_pylist(), table.column(TOP).to_pylist(), strict=True)
    held = [None if bundle.startswith(CONTROL) and bundle != EDGES else top for bundle, top in pairs]
    joined = np.frombuffer(b"".join(filter(None, held)), np.uint8)
    return np.array([top is not None for top in held], np.bool_), joined.reshape(-1, BYTES)


def _lists(column: Any) -> Array:
    values = [value or () for value in column.to_pylist()]
    lists = np.full((len(values), max(map(len, values), default=0)), np.nan)
    for row, value in zip(lists, values, strict=True):
        row[: len(value)] = value
    return lists


def _joined_lists(parts: list[Array]) -> Array:
    width = max((part.shape[1] for part in parts), default=0)
    padded = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=np.nan) for part in parts]
    return np.concatenate([np.zeros((0, width)), *padded])
