"""Heatmaps evaluated over a set of images: every unit run once, its rows kept, and all of them summed up."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from auditkit.data.heatmaps import HeatmapSet, open_bundle
from auditkit.data.images import ImageSet
from auditkit.model.classifier import AnyClassifier
from auditkit.model.masked import masked
from auditkit.runs import sanity
from auditkit.runs.curves import Found, run_curves
from auditkit.runs.parts import COLUMNS, LIGHT, fitted
from auditkit.runs.plan import Evaluation, unit_size, units
from auditkit.runs.ready import ready
from auditkit.runs.record import results
from auditkit.runs.store import Store
from auditkit.runs.summary import Summary, summarise
from auditkit.runs.unit import Ready, Row, rows
from auditkit.runs.work import Work, device_of, planned

FEWEST_AHEAD, MOST_AHEAD = 2, 6  # units made ready while one runs


class Tick(Protocol):
    """Told how many images are done, and how many rows the model has seen meanwhile."""

    def __call__(self, done: int, rows: int = 0) -> None:
        """Count on."""


Progress = Callable[[int], Tick]


def named(paths: Sequence[Path]) -> dict[str, HeatmapSet]:
    """Bundles by the names of their folders, numbered where two are the same."""
    found: dict[str, HeatmapSet] = {}
    for path in paths:
        name, number = path.resolve().name, 2
        unique = name
        while unique in found:
            unique, number = f"{name}-{number}", number + 1
        found[unique] = open_bundle(path)
    return found


def silent(_total: int) -> Tick:
    """Progress that nobody watches."""

    def tick(done: int, rows: int = 0) -> None:
        del done, rows

    return tick


def evaluate(
    model: AnyClassifier, images: ImageSet, bundles: Mapping[str, HeatmapSet], settings: Evaluation,
    out: Path | None = None, progress: Progress = silent, pool: ImageSet | None = None,
) -> Summary:  # fmt: skip
    """Every metric of every bundle and control, with intervals over the images; kept in `out` when one is named.

    Without `out` the curves stay in memory, with it they are on the disk alone.
    """
    work = planned(model, images, bundles, settings, pool)
    with _quick_handover(), ThreadPoolExecutor(1) as aside:
        work, runtime = sanity.checked(work, aside, lambda other: planned(other, images, bundles, settings, pool))
        every = list(units(len(images), unit_size(work.span.pixels, device_of(work.model))))
        tick = progress(len(images))
        if out is None:
            tables: list[Any] = []
            _run(work, every, lambda _unit, made: tables.append(_table(made)), tick)
            return summarise(tables, work.settings, runtime.result())
        about = work.about()
        with Store.open(out, about) as store:
            keys = {unit: Store.key({"about": about, "unit": [unit.start, unit.stop]}) for unit in every}
            todo = [unit for unit in every if not store.has(keys[unit])]
            tick(len(images) - sum(len(unit) for unit in todo))
            _run(work, todo, lambda unit, made: store.write(keys[unit], _table(made)), tick)
            light = [table.select(LIGHT) for table in store.tables(keys.values())]
            summary = summarise(light, work.settings, runtime.result())
            store.finish(results(about, summary))
    return summary


def _table(made: Sequence[Row]) -> Any:
    return fitted({name: [row.get(name) for row in made] for name in COLUMNS})


@contextmanager
def _quick_handover() -> Iterator[None]:
    """Let threads take turns often: the one that feeds the device must not wait for the one that prepares."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _run(work: Work, todo: Sequence[range], keep: Callable[[range, list[Row]], None], tick: Tick) -> None:
    """Measure the units in order: while one runs, the next are made ready and the one before is written down."""
    over = masked(work.model)
    ahead = min(max(FEWEST_AHEAD, (os.cpu_count() or 1) // 2), MOST_AHEAD)

    def keep_rows(unit: range, made: Ready, found: list[Found]) -> None:
        keep(unit, rows(made, found, work.lanes, work.settings))
        tick(len(unit))

    with ThreadPoolExecutor(ahead) as makers, ThreadPoolExecutor(1) as keeper:
        coming = deque(makers.submit(ready, work, over, unit) for unit in todo[:ahead])
        kept: deque[Future[None]] = deque()
        for place, unit in enumerate(todo):
            made = coming.popleft().result()
            coming.extend(makers.submit(ready, work, over, later) for later in todo[place + ahead : place + ahead + 1])
            found = run_curves(over, made.banks, list(made.curves.values()), work.span, work.settings, made.among,
                               lambda count: tick(0, count))  # fmt: skip
            kept.append(keeper.submit(keep_rows, unit, made, found))
            if len(kept) > 1:
                kept.popleft().result()
        for last in kept:
            last.result()
