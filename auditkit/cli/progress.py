"""How far long work is: a bar in a terminal, a line a minute elsewhere, and one estimate of the time that is left."""

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from auditkit.runs.executor import Phase, Progress, Tick
_MINUTE, _HOUR = 60.0, 3600.0
_LINE_SECONDS = 60.0  # between two lines of progress
_SAMPLE_SECONDS, _SAMPLES = 5.0, 60  # the pace is that of the last five minutes
_BY_IMAGE = ("explaining", "evaluating")  # phases that come back for each batch of images
_FEW = 0.1  # a share below which percents have a decimal


class Schedule:
    """The phases of a run with what each is planned to take, to say how much of the whole is left."""

    def __init__(self, rows: Mapping[str, float], seconds: Mapping[str, float], images: int) -> None:
        self.rows, self.seconds, self.images = rows, seconds, images
        self.done = dict.fromkeys(seconds, 0.0)  # shares of each phase
        self.worked = dict.fromkeys(seconds, 0.0)  # the same without what an earlier sitting or batch has kept
        self.rows_done, self.began = 0, time.monotonic()

    def begin(self, phase: str) -> None:
        """Count a phase from its start: each batch of images counts those of earlier ones as kept."""
        self.done[phase] = 0.0

    def count(self, phase: str, share: float, rows: int, *, kept: bool) -> None:
        """Count work of a phase; what is kept takes no time now."""
        self.done[phase] += share
        self.worked[phase] += 0.0 if kept else share
        self.rows_done += rows

    @property
    def share(self) -> float:
        """How much of the whole is done, by planned time."""
        return self._planned(self.done) / max(sum(self.seconds.values()), 1e-9)

    def seconds_left(self) -> float:
        """At the planned pace until a twentieth is done, then at the pace so far."""
        in_all, done = sum(self.seconds.values()), self._planned(self.done)
        worked = self._planned(self.worked)
        pace = (time.monotonic() - self.began) / worked if worked > in_all / 20 else 1.0
        return max(in_all - done, 0.0) * pace

    def _planned(self, shares: Mapping[str, float]) -> float:
        return sum(self.seconds[phase] * min(share, 1.0) for phase, share in shares.items())

    def text(self) -> str:
        """Rows done of rows planned."""
        return f"{self.share:.0%}, {self.rows_done:,} of about {sum(self.rows.values()):,.0f} rows"


def scheduled(schedule: Schedule | None, quiet: bool) -> "Phase":
    """The phases of a run as `shown` shows them, within the schedule of the whole."""
    return lambda what: shown(what, schedule=schedule, quiet=quiet)


@contextmanager
def shown(
    what: str, unit: str = "images", schedule: Schedule | None = None, quiet: bool = False
) -> Iterator["Progress"]:
    """A function that takes the total and returns a counter; unless quiet, the counter shows how far it is.

    A terminal shows a bar with rate and time left; elsewhere, such as in a pipeline's log, a line appears every
    minute. The rate is in rows per second if the work counts them.
    """
    if quiet:
        yield lambda _total: lambda _done, _rows=0: None
        return
    if not sys.stderr.isatty() or Console(stderr=True).is_dumb_terminal:
        yield lambda total: _Lines(what, _Pace(what, unit, total, schedule)).tick
        return
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            pace: _Pace = task.fields["pace"]
            return Text(", ".join(filter(None, [pace.share(), pace.rate(), pace.time_left()])))

    columns = (TextColumn("{task.description}"), BarColumn(), Rate())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:

        def begin(total: int) -> "Tick":
            pace = _Pace(what, unit, total, schedule)
            task = bar.add_task(what, total=total, pace=pace)

            def tick(done: float, rows: int = 0) -> None:
                pace.count(done, rows)
                bar.update(task, completed=pace.done)

            return tick

        yield begin


class _Pace:
    """How much is done, how fast, and how long the rest will take: by the schedule of the whole, if there is one.

    Without one, it is at the pace of the last minutes: work that an earlier run has done is counted at once, so the
    mean since the beginning would say too little.
    """

    def __init__(self, phase: str, unit: str, total: int, schedule: Schedule | None = None) -> None:
        self.phase, self.unit, self.total = phase, unit, total
        self.schedule = schedule if schedule is not None and phase in schedule.seconds else None
        if self.schedule is not None:
            self.schedule.begin(phase)
        self.done, self.rows = 0.0, 0
        self.began = time.monotonic()
        self._lock = Lock()  # units that run at the same time count in threads
        self.samples = deque([(self.began, 0.0)], maxlen=_SAMPLES)  # time, and how much was done

    def count(self, done: float, rows: int) -> None:
        """Count work, and take a sample from time to time."""
        with self._lock:
            self.done, self.rows, now = self.done + done, self.rows + rows, time.monotonic()
            if self.schedule is not None:
                total = self.schedule.images if self.phase in _BY_IMAGE else self.total
                self.schedule.count(self.phase, done / max(total, 1), rows, kept=not self.rows)
            if now - self.samples[-1][0] >= _SAMPLE_SECONDS:
                self.samples.append((now, self.done))
            elif not self.rows:  # at the beginning: what an earlier run has done
                self.samples[-1] = (now, self.done)

    def share(self) -> str:
        """How much is done: of the whole, if there is a schedule."""
        if self.schedule is not None:
            return self.schedule.text()
        share = self.done / max(self.total, 1)
        return f"{share:.1%}" if 0 < share < _FEW else f"{share:.0%}"

    def rate(self) -> str:
        """Rows per second, or units per second of work without rows."""
        elapsed = max(time.monotonic() - self.began, 1e-3)
        return f"{self.rows / elapsed:,.0f} rows/s" if self.rows else f"{self.done / elapsed:,.2g} {self.unit}/s"

    def time_left(self) -> str:
        """How long the rest will take; empty if nothing is known yet."""
        if self.schedule is not None:
            return f"about {duration(self.schedule.seconds_left())} left"
        since, before = self.samples[0]
        progress = self.done - before
        if progress <= 0:
            return ""
        return f"{duration((time.monotonic() - since) * (self.total - self.done) / progress)} left"


class _Lines:
    """Progress as lines on stderr."""

    def __init__(self, what: str, pace: _Pace) -> None:
        self.what, self.pace = what, pace
        self.last_line = time.monotonic()

    def tick(self, done: float, rows: int = 0) -> None:
        """Count work that is done, and print a line if a minute has passed."""
        pace, now = self.pace, time.monotonic()
        pace.count(done, rows)
        if now - self.last_line < _LINE_SECONDS or pace.done >= pace.total:
            return
        self.last_line = now
        of = "" if pace.schedule is not None else f" of {pace.total:,} {pace.unit}"
        facts = filter(None, [f"{pace.share()}{of}", pace.rate(), pace.time_left()])
        sys.stderr.write(f"{self.what}: {', '.join(facts)}\n")
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 2 * _MINUTE:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"
