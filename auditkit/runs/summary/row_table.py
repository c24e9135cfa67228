"""All rows of a run as columns of numbers, source by source.

Parts are read one after the other and not kept. What takes most room in them, areas of log-odds and fingerprints, is
read when it is first asked for.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from auditkit.arrays import Array
from auditkit.data.dataset import FailedImage
from auditkit.metrics.label_specificity import MARGINS, MOST_LABELS, Matrices
from auditkit.metrics.per_image import MetricRows, taken
from auditkit.metrics.saliency_metric import DELTAS
from auditkit.metrics.similarity import BYTES, first_similar
from auditkit.metrics.values import LABELS_PER_IMAGE
from auditkit.runs.evaluation.settings import NO_LABEL
from auditkit.runs.folder.figures import CONTROL
from auditkit.runs.folder.parquet import failed_images
from auditkit.runs.summary.columns import Column, codes, fingerprints, lists, numbers, shortened

if TYPE_CHECKING:
    import pyarrow as pa

Source = tuple[str, str]  # a bundle or control, and an infill
EDGES = "control:edges"
COPIED = 0.95  # likeness of the edges of two images from which one is a copy of the other
SAME_MAP_FLAG: Final = "same-map-for-all-labels"  # flags of a map
CONSTANT: Final = "constant"
TIES: Final = "ties"
USUAL = 0.4  # of their errors, by which areas are off on average; see sampling_error
_TEXTS = ("image", "bundle", "infill", "error", "flags")  # kept once each
_NUMBERS = (
    "prob", "insertion", "insertion_error", "insertion_low", "insertion_high", "deletion", "alpha", "beta",
    "saliency_metric", "pointing_hit", "iou", "box_degenerate",
)  # fmt: skip
_BY_DELTA = ("saliency_by_delta", "degenerate_by_delta")
_OF_IMAGE = ("truth", "prediction")
_FLAT = ("label", "predicted", "map_digest", *_OF_IMAGE)
_TOP, _ODDS = "map_top", ("log_odds", "log_odds_error")
_ROWS_AT_ONCE = 20_000  # of the tables that are read


class Tables(Protocol):
    """The rows of a run: a pyarrow.Table for each unit, with at least the columns that are asked for."""

    def __call__(self, columns: Sequence[str] | None = None, /) -> "Iterable[pa.Table]":
        """The tables one by one, from the first on at each call."""


class Pairs(NamedTuple):
    """The (image, label) pairs of a source's rows: most often those of all sources, and then kept once."""

    image: Array
    label: Array
    predicted: Array
    keys: Array  # as Values have them
    positions: Array  # of all rows


class _Part(NamedTuple):
    """Rows of a source in a table, and which of all rows of the source they are."""

    source: Source
    rows: Array
    span: slice


class SourceRows:
    """The rows of one source under one infill."""

    def __init__(self, codes_of: Mapping[str, dict[str, int]], *, digests: bool) -> None:
        """`codes_of`: texts by column; `digests`: whether those of the maps are kept."""
        self._codes, self.pairs = codes_of, Pairs(*[np.zeros(0, np.int64)] * 5)
        self._columns = {name: Column(np.int32, None) for name in ("image", "label")}
        self._columns |= {name: Column(np.int32, 0) for name in ("error", "flags")}
        self._columns["predicted"] = Column(np.bool_, None)
        self._columns |= {name: Column() for name in _NUMBERS}
        self._columns |= {name: Column(width=len(DELTAS)) for name in _BY_DELTA}
        if digests:
            self._columns["map_digest"] = Column(np.int64, None)

    def add(self, values: Mapping[str, Array], rows: Array) -> None:
        """Append some of the rows of a table."""
        for name, column in self._columns.items():
            column.add(values[name][rows])

    def finish(self, others: Iterable[Pairs]) -> None:
        """All rows are there; share the pairs of another source, if they are the same."""
        columns = [self._columns.pop(name).array() for name in ("image", "label", "predicted")]
        for pairs in others:
            if all(map(np.array_equal, columns, pairs)):
                self.pairs = pairs
                return
        image, label = (column.astype(np.int64) for column in columns[:2])
        self.pairs = Pairs(image, label, columns[2], image * LABELS_PER_IMAGE + label, np.arange(len(image)))

    def column(self, name: str) -> Array:
        """A column of numbers, NaN where there is none."""
        return self._columns[name].array()

    def lists(self, name: str, positions: Array) -> Array:
        """The lists of some rows, NaN where a row has none."""
        return self._columns[name].of(positions)

    def failed(self, why: str | None = None) -> Array:
        """Whether a row has no figure, for that reason or for any."""
        reasons = [code for text, code in self._codes["error"].items() if text and why in (None, text)]
        return np.isin(self.column("error"), reasons)

    def flagged(self, flag: str) -> Array:
        """Whether a row has the flag."""
        sets = [code for flags, code in self._codes["flags"].items() if flag in flags.split("\0")]
        return np.isin(self.column("flags"), sets)


class RowTable:
    """All rows of a run."""

    def __init__(self, tables: Tables, *, named: bool = False) -> None:
        """`named`: every label is one whose insertion, deletion and saliency metric are reported."""
        self.named, self._tables = named, tables
        self._codes: dict[str, dict[str, int]] = {name: {} for name in _TEXTS} | {name: {"": 0} for name in _TEXTS[3:]}
        self.truth = self.prediction = np.zeros(0)  # labels by number of the image; NaN where it has none
        failed, rows = list[FailedImage](), dict[Source, SourceRows]()
        for table, parts in self._parts((*_TEXTS, *_FLAT, *_NUMBERS, *_BY_DELTA), failed):
            values = self._decoded(table)
            for part in parts:
                rows.setdefault(part.source, self._empty(part.source)).add(values, part.rows)
        self.failed_images = tuple(failed)  # that cannot be used
        self.images, self.sources, self.infills = (list(self._codes[name]) for name in _TEXTS[:3])
        order = [(source, infill) for infill, source in product(self.infills, self.sources)]
        self.rows = {source: rows.get(source) or self._empty(source) for source in order}
        pairs = dict[int, Pairs]()
        for source_rows in self.rows.values():
            source_rows.finish(pairs.values())
            pairs[id(source_rows.pairs)] = source_rows.pairs
        self._pairs = list(pairs.values())
        self.metric_rows = {source: self._metric_rows(source) for source in order}

    def __len__(self) -> int:
        return sum(len(rows.image) for rows in self.metric_rows.values())

    @property
    def bundles(self) -> list[str]:
        """The sources other than controls."""
        return [source for source in self.sources if not source.startswith(CONTROL)]

    def _empty(self, source: Source) -> SourceRows:
        return SourceRows(self._codes, digests=source[0] == EDGES or not source[0].startswith(CONTROL))

    def _parts(self, columns: Sequence[str], failed: list[FailedImage]) -> "Iterator[tuple[pa.Table, list[_Part]]]":
        """The tables of several units joined, and the rows of each source in them."""
        ends = defaultdict[Source, int](int)
        for table in _joined(self._tables(tuple(dict.fromkeys(("bundle", "infill", *columns)))), failed):
            sources, infills = (codes(table.column(name), self._codes[name]) for name in ("bundle", "infill"))
            parts = []
            for (infill, at), (name, number) in product(self._codes["infill"].items(), self._codes["bundle"].items()):
                rows, start = np.flatnonzero((sources == number) & (infills == at)), ends[name, infill]
                ends[name, infill] += len(rows)
                parts.append(_Part((name, infill), rows, slice(start, ends[name, infill])))
            yield table, parts

    def _decoded(self, table: "pa.Table") -> dict[str, Array]:
        """The columns of a table; labels by image are kept."""
        values = {name: codes(table.column(name), self._codes[name]) for name in ("image", "error", "flags")}
        values |= {name: numbers(table.column(name)) for name in ("label", "predicted", *_NUMBERS)}
        values |= {name: lists(table.column(name), len(DELTAS)) for name in _BY_DELTA}
        values |= {"predicted": values["predicted"] == 1, "map_digest": shortened(table.column("map_digest"))}
        for name in _OF_IMAGE:
            labels = np.full(len(self._codes["image"]), np.nan)
            labels[: len(getattr(self, name))] = getattr(self, name)
            labels[values["image"]] = numbers(table.column(name))
            setattr(self, name, labels)
        return values

    def _metric_rows(self, source: Source) -> MetricRows:
        """The rows of a source as metrics take them."""
        rows = self.rows[source]
        image, label, predicted, keys, positions = rows.pairs
        measured, in_label_set = (taken(positions, np.flatnonzero(~rows.failed(why))) for why in (None, NO_LABEL))
        margins = partial(self._margins_of, source) if len(measured) else lambda _shift: None
        return MetricRows(image, label, keys, predicted, self.prediction, rows.column, rows.lists, margins, measured,
                          in_label_set, self.named)  # fmt: skip

    def _margins_of(self, source: Source, shift: float) -> Array | None:
        return self._margins[source][shift] if self._margins else None

    @cached_property
    def _margins(self) -> dict[Source, dict[float, Array]]:
        """The margins of each image [images, MARGINS] with areas moved by so many errors; none without log-odds."""
        margins = dict[Source, dict[float, Array]]()
        for source, matrices in self.matrices():
            for name in self.rows if not margins else ():
                margins[name] = {shift: np.full((len(self.images), MARGINS), np.nan) for shift in (0.0, USUAL, -USUAL)}
            for shift, values in margins[source].items():
                values[matrices.images] = matrices.shifted(shift).margins()
        return margins

    def matrices(self) -> Iterator[tuple[Source, Matrices]]:
        """The cross-label matrices of each source, of some images at a time; none without log-odds."""
        keys = np.unique(np.concatenate([np.zeros(0, np.int64), *(pairs.keys for pairs in self._pairs)]))
        images = keys // LABELS_PER_IMAGE
        ranks = np.arange(len(keys)) - np.searchsorted(images, images)  # of a label among those of its image
        labels = np.unique(images, return_counts=True)[1]
        width = int(labels[labels <= MOST_LABELS].max(initial=0))
        failed = {source: rows.failed() for source, rows in self.rows.items()}
        for table, parts in self._parts(_ODDS, []) if width > 1 else ():
            odds, errors = (lists(table.column(name), width) for name in _ODDS)
            for source, rows, span in parts if np.isfinite(odds).any() else ():
                image, _, predicted, pair, _ = (column[span] for column in self.rows[source].pairs)
                measured = np.flatnonzero(~failed[source][span])
                rank, at = ranks[np.searchsorted(keys, pair[measured])], rows[measured]
                yield source, Matrices.of(image[measured], rank, predicted[measured], odds[at], errors[at])

    def tops(self, source: str) -> tuple[Array, Array]:
        """Positions of rows under the first infill that have a fingerprint, and the fingerprints [rows, bytes].

        All rows of a bundle, and one of each image of the edges control. They are read at each call, and not kept.
        """
        positions, tops, of = Column(np.int64, None), Column(np.uint8, None, BYTES), (source, self.infills[0])
        for table, parts in self._parts((_TOP,), []):
            for rows, span in [(part.rows, part.span) for part in parts if part.source == of]:
                column = table.column(_TOP).take(rows)
                has = np.flatnonzero(column.is_valid().to_numpy())
                if source == EDGES:
                    has = has[np.unique(self.rows[of].pairs.image[span][has], return_index=True)[1]]
                positions.add(has + span.start)
                tops.add(fingerprints(column.take(has)))
        return positions.array(), tops.array()

    def edges(self) -> Iterator[tuple[Array, Array]]:
        """Images and digests of their edges, which tell pictures apart; none where edges were not measured."""
        for infill in self.infills if EDGES in self.sources else ():
            measured = self.metric_rows[EDGES, infill].measured
            yield (
                self.metric_rows[EDGES, infill].image[measured],
                self.rows[EDGES, infill].column("map_digest")[measured],
            )

    @cached_property
    def pictures(self) -> Array:
        """What each image shows, by number of the image: one number for all copies, which are told by their edges."""
        pictures = -1 - np.arange(len(self.images), dtype=np.int64)
        for images, digests in self.edges():
            pictures[images] = digests
        if EDGES in self.sources:
            rows, (positions, tops) = self.metric_rows[EDGES, self.infills[0]], self.tops(EDGES)
            measured = np.isin(positions, rows.measured)
            images = rows.image[positions[measured]]
            pictures[images] = pictures[images[first_similar(tops[measured], COPIED)]]
        return pictures

    @property
    def copies(self) -> int:
        """Images that look like another one."""
        return len(self.images) - len(np.unique(self.pictures))


def _joined(tables: "Iterable[pa.Table]", failed: list[FailedImage]) -> "Iterator[pa.Table]":
    """The tables of many units joined into fewer ones; the images that cannot be used are appended to `failed`."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    waiting, rows = [], 0
    for table in tables:
        failed += failed_images(table)
        waiting.append(table)
        rows += len(table)
        if rows >= _ROWS_AT_ONCE:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)
