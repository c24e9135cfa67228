"""Screen output: tables and JSON on stdout, progress on stderr."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from auditkit.runs.executor import Progress, Tick

_FIGURE_WIDTH = 14  # of a column, such as -1.156 to 1.592
_LOG_WIDTH = 110  # of a table of two columns where there is no terminal
_WIDE_LOG_WIDTH = 140  # of a table with many columns
_MAX_CHARACTERS = 2000  # of a text out of a vendor's file
_MINUTE, _HOUR = 60, 3600


@contextmanager
def progress(what: str, unit: str = "images") -> Iterator["Progress"]:
    """A function that takes the total and returns a counter.

    A terminal shows a bar with rate and time left; elsewhere, such as in a pipeline's log, a line appears every
    minute. The rate is in rows per second if the work counts them.
    """
    if not sys.stderr.isatty():
        yield lambda total: _Lines(what, unit, total).tick
        return
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            if rows := task.fields["rows"]:
                return Text(f"{rows / max(time.monotonic() - task.fields['began'], 1e-3):,.0f} rows/s")
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), Rate(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:

        def begin(total: int) -> "Tick":
            task = bar.add_task(what, total=total, rows=0, began=time.monotonic())

            def tick(done: int, rows: int = 0) -> None:
                bar.update(task, advance=done, rows=bar.tasks[task].fields["rows"] + rows)

            return tick

        yield begin


class _Lines:
    """Progress as lines on stderr, one a minute: how much is done, how fast, and how long it will take."""

    def __init__(self, what: str, unit: str, total: int) -> None:
        self.what, self.unit, self.total = what, unit, total
        self.done = self.rows = 0
        self.began = self.last_line = time.monotonic()

    def tick(self, done: int, rows: int = 0) -> None:
        """Count work that is done, and print a line if a minute has passed."""
        self.done, self.rows, now = self.done + done, self.rows + rows, time.monotonic()
        if now - self.last_line < _MINUTE or self.done >= self.total:
            return
        self.last_line, elapsed = now, now - self.began
        rate = f"{self.rows / elapsed:,.0f} rows/s" if self.rows else f"{self.done / elapsed:,.2g} {self.unit}/s"
        left = f", {_duration(elapsed * (self.total - self.done) / self.done)} left" if self.done else ""
        sys.stderr.write(f"{self.what}: {self.done / self.total:.0%}, {rate}{left}\n")
        sys.stderr.flush()


def _duration(seconds: float) -> str:
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


def plain(text: str) -> str:
    """Text out of a vendor's file, made harmless: without terminal control sequences, and cut if it is very long."""
    text = text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "..."
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def print_json(content: Mapping[str, object], sort_keys: bool = False) -> None:
    """Print an object as indented JSON."""
    print(json.dumps(content, indent=2, sort_keys=sort_keys))


def show(as_json: bool, content: Mapping[str, object], fields: list[tuple[str, str]]) -> None:
    """Print an object as JSON, or its fields in two columns."""
    if as_json:
        print_json(content)
    else:
        print_fields(fields)


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
