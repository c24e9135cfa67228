"""Screen output: tables and JSON on stdout, progress on stderr."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from auditkit.data.dataset import Dataset
    from auditkit.model.classifier import OnnxClassifier

_FIGURE_WIDTH = 14  # of a column, such as -1.156 to 1.592
_LOG_WIDTH = 110  # of a table of two columns where there is no terminal
_WIDE_LOG_WIDTH = 140  # of a table with many columns
_MAX_CHARACTERS = 2000  # of a text out of a vendor's file


def plain(text: str) -> str:
    """Text out of a vendor's file, made harmless: without terminal control sequences, and cut if it is very long."""
    text = text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "..."
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def print_notes(notes: Iterable[object], quiet: bool = False) -> None:
    """Print what the user should know before the work begins, on stderr, unless quiet."""
    for note in () if quiet else notes:
        sys.stderr.write(f"note: {plain(str(note))}\n")


def identifiers(model: "OnnxClassifier", images: "Dataset") -> list[tuple[str, str]]:
    """Fields for --verbose: digests of the model's file and of the images."""
    return [("model sha256", model.file.sha256), ("images digest", images.digest())]


def print_json(content: Mapping[str, object], sort_keys: bool = False) -> None:
    """Print an object as indented JSON."""
    print(json.dumps(content, indent=2, sort_keys=sort_keys))


def show(as_json: bool, content: Mapping[str, object], fields: list[tuple[str, str]]) -> None:
    """Print an object as JSON, or its fields in two columns."""
    if as_json:
        print_json(content)
    else:
        print_fields(fields)


def show_shard(as_json: bool, shard: str, out: object, units: int, of: int) -> None:
    """Print that a shard is done."""
    summary = f"shard {shard} is done: {units} of {of} units in {out}; combine the shards with auditkit merge"
    facts = {"schema_version": 1, "shard": shard, "out": str(out), "units": units, "of": of}
    show(as_json, facts, [("shard", summary)])


def print_table(head: list[str], rows: list[list[str]], names: int = 1) -> None:
    """Print a table whose first columns are names; figures that do not fit beside each other follow below."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE_LOG_WIDTH)
    name_width = max((sum(len(cell) + 2 for cell in row[:names]) for row in rows), default=0)
    fitting = max(1, (console.width - name_width) // _FIGURE_WIDTH)
    for start in range(names, len(head), fitting):
        columns = [*range(1, names), *range(start, min(start + fitting, len(head)))]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.add_column(head[0], overflow="fold", no_wrap=True)
        for column in columns:
            table.add_column(head[column], justify="right", overflow="fold")
        for row in rows:
            table.add_row(Text(plain(row[0])), *(Text(_stacked(plain(row[column]))) for column in columns))
        console.print(table)


def _stacked(cell: str) -> str:
    """The cell with its interval on a second line; otherwise ten metrics would not fit a screen."""
    value, _, interval = cell.partition(" (")
    return f"{value}\n{interval.removesuffix(')')}" if interval else value


def print_fields(fields: list[tuple[str, str]]) -> None:
    """Print names and texts in two aligned columns; long texts wrap within theirs."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in fields:
        # Names out of a vendor's file must not be read as markup or as terminal control.
        table.add_row(name, Text(plain(text)))
    Console(width=None if sys.stdout.isatty() else _LOG_WIDTH).print(table)
