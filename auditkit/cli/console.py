"""What verbs put on the screen: tables on stdout, progress on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FIGURE_WIDTH = 14  # of a column, such as -1.156 to 1.592
MINUTE, HOUR = 60, 3600
LINE_SECONDS = MINUTE  # between two lines that tell of progress


@contextmanager
def progress(what: str, unit: str = "images") -> Iterator[Callable[[int], Any]]:
    """A function that, told the total, gives one that counts on; a bar with rate and time left on a terminal.

    Work that also counts the rows a model has seen is told by rows a second. Elsewhere than on a terminal, as in a
    pipeline's log, a line says so every minute.
    """
    if not sys.stderr.isatty():
        yield lambda total: Lines(what, unit, total).tick
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            if rows := task.fields["rows"]:
                return Text(f"{rows / max(time.monotonic() - task.fields['began'], 1e-3):,.0f} rows/s")
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), Rate(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:

        def begin(total: int) -> Any:
            task = bar.add_task(what, total=total, rows=0, began=time.monotonic())
            seen = 0

            def tick(done: int, rows: int = 0) -> None:
                nonlocal seen
                seen += rows
                bar.update(task, advance=done, rows=seen)

            return tick

        yield begin


class Lines:
    """Progress as lines on stderr, one a minute: how much is done, how fast, and for how long still."""

    def __init__(self, what: str, unit: str, total: int) -> None:
        self.what, self.unit, self.total = what, unit, total
        self.done = self.rows = 0
        self.began = self.told = time.monotonic()

    def tick(self, done: int, rows: int = 0) -> None:
        """So much more is done."""
        self.done, self.rows, now = self.done + done, self.rows + rows, time.monotonic()
        if now - self.told < LINE_SECONDS or self.done >= self.total:
            return
        self.told, took = now, now - self.began
        rate = f"{self.rows / took:,.0f} rows/s" if self.rows else f"{self.done / took:,.2g} {self.unit}/s"
        left = f", {_span(took * (self.total - self.done) / self.done)} left" if self.done else ""
        sys.stderr.write(f"{self.what}: {self.done / self.total:.0%}, {rate}{left}\n")
        sys.stderr.flush()


def _span(seconds: float) -> str:
    """About how long, in the unit that suits."""
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.1f} h"


def plain(text: str, most: int = 2000) -> str:
    """Text out of a vendor's file as one harmless stretch: no control of the terminal, no megabytes."""
    text = text if len(text) <= most else text[:most] + "..."
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def grid(head: list[str], rows: list[list[str]], names: int = 1) -> None:
    """A table with a head; the first columns are names, the others figures, which go on below where they are many."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(width=None if sys.stdout.isatty() else 140)
    taken = max((sum(len(cell) + 2 for cell in row[:names]) for row in rows), default=0)
    fit = max(1, (console.width - taken) // FIGURE_WIDTH)
    for start in range(names, len(head), fit):
        shown = [*range(names), *range(start, min(start + fit, len(head)))]
        _grid(console, [head[place] for place in shown], [[row[place] for place in shown] for row in rows])


def _grid(console: Any, head: list[str], rows: list[list[str]]) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, name in enumerate(head):
        drawn.add_column(name, justify="left" if place == 0 else "right", overflow="fold", no_wrap=place == 0)
    for row in rows:
        drawn.add_row(*(Text(_stacked(plain(cell)) if place else plain(cell)) for place, cell in enumerate(row)))
    console.print(drawn)


def _stacked(cell: str) -> str:
    """The interval of a figure beneath it, or ten metrics would not fit a screen."""
    value, _, interval = cell.partition(" (")
    return f"{value}\n{interval.removesuffix(')')}" if interval else value


def table(rows: list[tuple[str, str]]) -> None:
    """Two aligned columns; long texts wrap beneath their own column."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        # Names out of a vendor's file must not be read as markup or as terminal control.
        grid.add_row(name, Text(plain(text)))
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(grid)
