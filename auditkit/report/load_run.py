"""A run's folder as the renderers read it: results, rows, and the pictures of the gallery."""

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from auditkit.errors import BadInput, IntegrityFailure
from auditkit.records import from_json, parse_object
from auditkit.regular_files import read_regular
from auditkit.runs.folder import checksums
from auditkit.runs.folder.contents import require_readable
from auditkit.runs.folder.examination import FOLDER as EXAMINATION
from auditkit.runs.folder.names import RESULTS
from auditkit.runs.folder.parquet import SCHEMA_VERSION
from auditkit.runs.folder.results import Results
from auditkit.runs.folder.store import Store
from auditkit.runs.pictures.gallery_index import FOLDER, INDEX, GalleryIndex
from auditkit.runs.summary.row_table import RowTable

if TYPE_CHECKING:
    import pyarrow

_MOST_BYTES = 2**28  # of a file
_PICTURES = {".jpg": ("image/jpeg", b"\xff\xd8\xff"), ".png": ("image/png", b"\x89PNG\r\n\x1a\n")}


@dataclass(frozen=True)
class Loaded:
    """A run with results, which may be preliminary."""

    folder: Path
    results: Results
    gallery: GalleryIndex | None  # None where none was kept

    @cached_property
    def table(self) -> RowTable | None:
        """The rows as columns, read when first asked for; None where they were not kept."""
        if not self._keys:
            return None
        table = RowTable(self.tables, named=self.results.settings.targets_listed_labels)
        if len(table) != self.results.run.rows:
            rows = f"{self.folder / 'items'} holds {len(table)} rows, and the results are of {self.results.run.rows}"
            raise IntegrityFailure(f"{rows}; `auditkit verify` says which are missing.")
        return table

    @property
    def _keys(self) -> Sequence[str]:
        """The units that the results follow from."""
        preliminary = self.results.run.preliminary
        return Store(self.folder).keys() if preliminary is None else preliminary.units

    @cached_property
    def digest(self) -> str:
        """sha256 of the results file."""
        return checksums.digest(self.folder / RESULTS)

    def tables(self, columns: Sequence[str] | None = None) -> "Iterator[pyarrow.Table]":
        """The rows, one unit's pyarrow.Table at a time, with some of the columns or with all."""
        return Store(self.folder).tables(self._keys, columns)

    def picture(self, name: str) -> str:
        """A picture of the gallery as a data URI."""
        return picture(self.folder / FOLDER, name)

    def exchange(self, name: str) -> str:
        """A picture of the examination as a data URI."""
        return picture(self.folder / EXAMINATION, name)


def picture(folder: Path, name: str) -> str:
    """A picture as a data URI; empty if the file does not exist or is not a picture."""
    path, (kind, magic) = folder / name, _PICTURES.get(Path(name).suffix, ("", b""))
    if not kind or not re.fullmatch(r"[\w-]+\.\w+", name) or not path.is_file():
        return ""
    content = read_regular(path, _MOST_BYTES)
    return f"data:{kind};base64,{base64.b64encode(content).decode()}" if content.startswith(magic) else ""


def load(run: "str | Path", results: Results | None = None) -> Loaded:
    """The run in a folder, its rows not yet read; its results are read unless they are given."""
    folder = Path(run)
    if not folder.is_dir():
        raise BadInput(f"there is no run {folder}; give the folder that audit or evaluate wrote.")
    require_readable(folder)
    return Loaded(folder, results or Store(folder).results(), _gallery(folder / FOLDER / INDEX))


def _gallery(path: Path) -> GalleryIndex | None:
    if not path.exists():
        return None
    try:
        index = from_json(GalleryIndex, parse_object(read_regular(path, _MOST_BYTES), INDEX), INDEX)
        if index.schema_version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {index.schema_version}, not {SCHEMA_VERSION}")
    except (OSError, ValueError, RecursionError, BadInput) as error:
        raise BadInput(f"{path} cannot be read: {error}; remove it to get a report without a gallery.") from None
    return index
