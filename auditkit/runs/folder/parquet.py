"""Rows of figures as Parquet files, each sealed with its key and a digest of its own bytes."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from auditkit.data.dataset import FailedImage
from auditkit.metrics.similarity import BYTES
from auditkit.records import from_json, to_json

SCHEMA_VERSION = 1
COLUMNS = {
    "image": "string", "label": "int32", "bundle": "string", "infill": "string", "prob": "float64", "predicted": "bool",
    "insertion": "float64", "insertion_error": "float64", "deletion": "float64", "deletion_error": "float64",
    "alpha": "float64", "beta": "float64", "saliency_metric": "float64", "box_degenerate": "bool",
    "pointing_hit": "float64", "iou": "float64", "tied_fraction": "float64", "flags": "list<string>",
    "keep_counts": "list<int32>", "curve": "list<float32>", "error": "string", "map_digest": "string", "truth": "int32",
    "prediction": "int32",
    "insertion_low": "float64", "insertion_high": "float64", "saliency_by_delta": "list<float64>",
    "degenerate_by_delta": "list<bool>", "map_top": f"binary[{BYTES}]",
    "log_odds": "list<float32>", "log_odds_error": "list<float32>",
}  # fmt: skip
FAILED = "auditkit.failed_images"  # metadata of a unit
SEAL, BLANK = b"auditkit:sha256:", b"0" * 64  # the part's digest stands after the mark, over zeros while it is taken


@cache
def schema() -> Any:
    """The columns as a pyarrow.Schema."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    def arrow_type(name: str) -> Any:
        kind, _, inner = name.rstrip(">]").replace("<", "[").partition("[")
        if kind == "list":
            return pa.list_(arrow_type(inner))
        return pa.binary(int(inner)) if kind == "binary" else pa.type_for_alias(kind)

    return pa.schema([(column, arrow_type(name)) for column, name in COLUMNS.items()])


def fitted(table: Any) -> Any:
    """The columns of the schema, in their order and in one piece, whatever order and pieces they come in."""
    import pyarrow as pa  # noqa: PLC0415

    names = list(getattr(table, "column_names", table))
    if sorted(names) != sorted(COLUMNS):
        raise ValueError(f"columns missing or unknown: {sorted(set(names) ^ set(COLUMNS)) or 'some are there twice'}")
    arrays = [_column(table[field.name], field) for field in schema()]
    metadata = table.schema.metadata if isinstance(table, pa.Table) else None
    return pa.Table.from_arrays(arrays, schema=schema()).combine_chunks().replace_schema_metadata(metadata)


def _column(values: Any, field: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    try:
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            pa.array(values).cast(field.type)  # refuses 1.5 for an integer and a text for a list of texts
            values = pa.array(values, field.type)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise ValueError(f"column '{field.name}' does not hold {field.type}: {error}") from None
    if values.type != field.type:
        raise ValueError(f"column '{field.name}' is {values.type}, expected {field.type}")
    return values


def with_failed_images(table: Any, failed: Sequence[FailedImage]) -> Any:
    """The rows of a unit with the images that have none because they cannot be used."""
    return table.replace_schema_metadata({FAILED: json.dumps(to_json(tuple(failed)))})


def failed_images(table: Any) -> tuple[FailedImage, ...]:
    """The images of a unit that cannot be used."""
    text = (table.schema.metadata or {}).get(FAILED.encode(), b"[]")
    return from_json(tuple[FailedImage, ...], json.loads(text), "failed images")


def encoded(key: str, table: Any) -> bytes:
    """The file that holds a unit's rows under its key; equal rows give equal bytes."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    sink = pa.BufferOutputStream()
    seal = {"auditkit.schema_version": str(SCHEMA_VERSION), "auditkit.key": key, "auditkit.seal": SEAL + BLANK}
    failed = (table.schema.metadata or {}).get(FAILED.encode(), b"[]")
    with pq.ParquetWriter(sink, schema(), compression="zstd") as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({FAILED: failed, **seal})
    return _sealed(sink.getvalue().to_pybytes())


def _sealed(content: bytes) -> bytes:
    """The file with the digest of itself, taken over zeros in the digest's place: readers see plain metadata."""
    start, digest = _seal(content)
    return content[:start] + digest + content[start + 64 :]


def _seal(content: bytes) -> tuple[int, bytes]:
    """Where a file's digest stands or belongs, and the digest."""
    start, view = content.rfind(SEAL) + len(SEAL), memoryview(content)
    digest = hashlib.sha256(view[:start])
    digest.update(BLANK)
    digest.update(view[start + 64 :])
    return start, digest.hexdigest().encode()


def decoded(key: str, content: bytes, columns: Sequence[str] | None = None) -> Any:
    """The table of a part, with some of the columns or with all.

    ValueError, with the end of a sentence, when it is not what was written under the key.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    start, digest = _seal(content)
    if content[start : start + 64] != digest:
        raise ValueError("is cut short, or was changed after it was written")
    file = pq.ParquetFile(pa.BufferReader(content))
    metadata = file.metadata.metadata
    if metadata[b"auditkit.key"] != key.encode():
        raise ValueError(f"holds another unit, {metadata[b'auditkit.key'].decode()[:12]}")
    if metadata[b"auditkit.schema_version"] != b"%d" % SCHEMA_VERSION or file.schema_arrow != schema():
        raise ValueError("has other columns than this auditkit writes")
    names = list(COLUMNS if columns is None else columns)
    # Parquet has its own name for a list's items.
    table = file.read(names, use_threads=False).cast(pa.schema([schema().field(name) for name in names]))
    return table.replace_schema_metadata({FAILED: metadata[FAILED.encode()]})
