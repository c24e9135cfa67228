"""Columns of numbers that grow while parts are read, and what is taken from the columns of a part."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from auditkit.arrays import Array
from auditkit.metrics.per_image import taken
from auditkit.metrics.similarity import BYTES

if TYPE_CHECKING:
    import pyarrow as pa


class Column:
    """A column of numbers, or of lists of one width: only the rows that are not `empty` take room."""

    def __init__(
        self, kind: npt.DTypeLike = np.float64, empty: float | None = np.nan, width: int | None = None
    ) -> None:
        """`empty`: None where no row is."""
        self._kind, self._empty, self._shape = kind, empty, () if width is None else (width,)
        self._content, self._filled, self._full = bytearray(), bytearray(), True
        self.rows = 0

    def add(self, values: Array) -> None:
        """Append the values [rows] or lists [rows, width]."""
        has = self._positions(values)
        if self._full and len(has) < len(values):
            self._filled, self._full = bytearray(np.arange(self.rows, dtype=np.int32).tobytes()), False
        if not self._full:
            self._filled += (has + self.rows).astype(np.int32).tobytes()
        self._content += taken(values, has).astype(self._kind, copy=False).tobytes()
        self.rows += len(values)

    def _positions(self, values: Array) -> Array:
        """Those of the values, or lists, that are not empty."""
        if self._empty is None:
            return np.arange(len(values))
        empty = np.isnan(values) if np.isnan(self._empty) else values == self._empty
        return np.flatnonzero(~empty.reshape(len(values), -1).all(axis=1)) if len(values) else np.zeros(0, np.int64)

    def array(self) -> Array:
        """All values."""
        return self._values if self._full else self.of(np.arange(self.rows))

    def of(self, positions: Array) -> Array:
        """The values of some rows."""
        if self._full:
            return taken(self._values, positions)
        filled = np.frombuffer(self._filled, np.int32)
        values = np.full((len(positions), *self._shape), self._empty, self._kind)
        if len(filled):
            index = np.searchsorted(filled, positions).clip(max=len(filled) - 1)
            has = filled[index] == positions
            values[has] = self._values[index[has]]
        return values

    @property
    def _values(self) -> Array:
        values = np.frombuffer(self._content, self._kind).reshape(-1, *self._shape)
        values.flags.writeable = False  # it is not copied for those who read it
        return values


def codes(column: "pa.ChunkedArray", known: dict[str, int]) -> Array:
    """The number of each text, counted in the order in which they first come; of lists of texts, joined by \\0."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import
    import pyarrow.compute as pc  # noqa: PLC0415

    joined = pc.binary_join(column, "\0") if pa.types.is_list(column.type) else column
    texts = pc.fill_null(joined, "").combine_chunks().dictionary_encode()
    numbers = [known.setdefault(text, len(known)) for text in texts.dictionary.to_pylist()]
    return np.asarray(np.array(numbers, np.int32)[texts.indices.to_numpy()])


def numbers(column: "pa.ChunkedArray") -> Array:
    """The numbers, NaN where there is none."""
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    return np.asarray(column.to_numpy(), np.float64)


def lists(column: "pa.ChunkedArray", width: int) -> Array:
    """The first numbers of each list [rows, width] in float64, NaN where a row has none or a shorter one."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    widest = max(width, int(lengths.max(initial=0)))
    values = np.full((len(column), widest), np.nan)
    values[np.arange(widest) < lengths[:, None]] = pc.list_flatten(column).cast(pa.float64()).to_numpy()
    return values[:, :width]


def shortened(column: "pa.ChunkedArray") -> Array:
    """60 bits of digests, which tell maps apart."""
    return np.array([int((text or "0")[:15], 16) for text in column.to_pylist()], np.int64)


def fingerprints(column: "pa.ChunkedArray") -> Array:
    """Fingerprints [rows, bytes], of which each row has one."""
    return np.frombuffer(b"".join(column.to_pylist()), np.uint8).reshape(-1, BYTES)
