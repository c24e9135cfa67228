"""All rows of a run as columns of numbers: thousands of images in some megabytes."""

from collections.abc import Iterable, Iterator, Sequence
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
        parts: dict[str, list[Array]] = {name: [] for name in (*CODED, *SMALL, *NUMBERS, DIGEST)}
        sparse: dict[str, list[tuple[Array, Array]]] = {name: [] for name in (*LISTS, TOP)}
        failed = list[FailedImage]()
        for table in _joined_tables(tables, failed):
            for name in CODED:
                parts[name].append(_codes(table.column(name), codes[name]))
            for name in (*SMALL, *NUMBERS):
                parts[name].append(_numbers(table.column(name), np.float32 if name in SMALL else np.float64))
            for name in LISTS:
                sparse[name].append(_lists(table.column(name)))
            parts[DIGEST].append(_shortened(table.column(DIGEST)))
            sparse[TOP].append(_tops(table))
        self._columns = {name: _joined(parts.pop(name)) for name in (*CODED, *SMALL, *NUMBERS, DIGEST)}
        self._sparse = {name: _Sparse(sparse.pop(name)) for name in (*LISTS, TOP)}
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

    def lists(self, name: str, rows: Array) -> Array:
        """Lists of these rows [rows, greatest length] in float64, NaN where a row has none or a shorter one."""
        column = self._sparse[name]
        lists = np.full((len(rows), column.held.shape[1]), np.nan)
        has = column.numbers[rows] >= 0
        lists[has] = column.held[column.numbers[rows[has]]]
        return lists

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
        numbers = self._sparse[TOP].numbers[rows]
        return rows[numbers >= 0], self._sparse[TOP].held[numbers[numbers >= 0]]

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
            rows, tops = self.tops(rows)  # one of each image
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


class _Sparse:
    """A column of arrays that some rows have, those alone: `held[numbers[row]]`, where the number is not -1."""

    def __init__(self, parts: Sequence[tuple[Array, Array]]) -> None:
        has = np.concatenate([np.zeros(0, np.bool_), *(has for has, _ in parts)])
        self.numbers = np.where(has, np.cumsum(has) - 1, -1).astype(np.int32)
        width = max((held.shape[1] for _, held in parts), default=0)
        kind = parts[0][1].dtype if parts else np.float64
        self.held = np.full((int(has.sum()), width), 0 if kind == np.uint8 else np.nan, kind)
        start = 0
        for _, held in parts:
            self.held[start : start + len(held), : held.shape[1]] = held
            start += len(held)


def _codes(column: Any, codes: dict[Any, int]) -> Array:
    """The number of each text, or list of texts, counted in the order in which they first come."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    lists = pa.types.is_list(column.type)
    texts = pc.fill_null(pc.binary_join(column, "\0") if lists else column, "").combine_chunks().dictionary_encode()
    distinct = texts.dictionary.to_pylist()
    keys = [tuple(filter(None, text.split("\0"))) for text in distinct] if lists else distinct
    numbers = np.fromiter((codes.setdefault(key, len(codes)) for key in keys), np.int32, len(distinct))
    return np.asarray(numbers[texts.indices.to_numpy()])


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
    """Which rows have a fingerprint that is kept, and the fingerprints: those of bundles, and one of edges an image."""
    import pyarrow.compute as pc  # noqa: PLC0415

    top, source = table.column(TOP), table.column("bundle")
    has = pc.is_valid(top).to_numpy()
    edges = has & pc.equal(source, EDGES).to_numpy()
    images = table.column("image").combine_chunks().dictionary_encode().indices.to_numpy()
    first = np.flatnonzero(edges)[np.unique(images[edges], return_index=True)[1]]
    has &= ~pc.starts_with(source, CONTROL).to_numpy()
    has[first] = True
    regions = np.frombuffer(b"".join(top.filter(has).to_pylist()), np.uint8)
    return has, regions.reshape(-1, BYTES)


def _lists(column: Any) -> tuple[Array, Array]:
    """Which rows have a list, and the lists [rows, greatest length]; float32 where that holds them."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = np.float64 if column.type.value_type == pa.float64() else np.float32
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    has = lengths > 0
    lists = np.full((int(has.sum()), int(lengths.max(initial=0))), np.nan, kind)
    values = pc.list_flatten(column).cast(pa.float64()).to_numpy()  # NaN for null
    lists[np.arange(lists.shape[1]) < lengths[has][:, None]] = values
    return has, lists
