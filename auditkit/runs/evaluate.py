"""Heatmaps evaluated over a set of images: every unit run once, its rows kept, and all of them summed up."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event, Semaphore
from typing import Any, Protocol

from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset
from auditkit.data.usable import usable
from auditkit.model.classifier import AnyClassifier
from auditkit.model.hard_masks import masked
from auditkit.runs.evaluation import runtime_check
from auditkit.runs.evaluation.curves import run_curves
from auditkit.runs.evaluation.measure import ready
from auditkit.runs.evaluation.plan import Work, placeless, planned, unit_keys
from auditkit.runs.evaluation.rows import Row, rows
from auditkit.runs.evaluation.settings import Evaluation, units
from auditkit.runs.folder import checksums
from auditkit.runs.folder.parquet import COLUMNS, fitted
from auditkit.runs.folder.store import Store
from auditkit.runs.summary.results import results
from auditkit.runs.summary.summarise import Summary, summarise

FEWEST_AHEAD, MOST_AHEAD = 1, 3  # units made ready meanwhile; more threads than that wait for each other


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
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], settings: Evaluation,
    out: "Path | Store | None" = None, progress: Progress = silent, pool: Dataset | None = None,
) -> Summary:  # fmt: skip
    """Every metric of every bundle and control, with intervals over the images; kept in `out` when one is named.

    Without `out` the curves stay in memory, with it they are on the disk alone. Who gives an open store also finishes
    it; in a folder, the results are written here.
    """
    images, failed = usable(images, model.card)
    others = None if pool is None else usable(pool, model.card)[0]
    work = planned(model, images, bundles, settings, others, failed)
    with _quick_handover(), ThreadPoolExecutor(1) as aside:
        work, runtime = runtime_check.checked(
            work, aside, lambda other: planned(other, images, bundles, settings, others, failed)
        )
        every = units(len(images), work.span.pixels, work.model.device)
        tick = progress(len(images))
        if out is None:
            tables: dict[range, Any] = {}
            _run(work, every, lambda unit, made: tables.update({unit: _table(made)}), tick)
            return summarise(lambda: (tables[unit] for unit in every), work.settings, runtime.result(),
                             {"failed_images": work.failures()})  # fmt: skip
        about = work.about()
        with nullcontext(out) if isinstance(out, Store) else Store.open(out, placeless(about)) as store:
            keys = unit_keys(about, every)
            todo = [unit for unit in every if not store.has(keys[unit])]
            tick(len(images) - sum(len(unit) for unit in todo))
            _run(work, todo, lambda unit, made: store.write(keys[unit], _table(made)), tick)
            reader = Store(store.folder)
            summary = summarise(lambda: reader.tables(keys.values()), work.settings, runtime.result(), about)
            if store is not out:
                store.finish(results(summary))
                checksums.write(store.folder)
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
    """Every unit made ready, measured and kept, several at a time: the device always has one more waiting."""
    over, at_once = masked(work.model), work.model.device.units_at_once
    turns, stop = Semaphore(at_once), Event()

    def whole(unit: range) -> None:
        if stop.is_set():
            return
        made = ready(work, over, unit)
        with turns:
            if stop.is_set():
                return
            found = run_curves(over, made.banks, list(made.curves.values()), work.span, work.settings, made.among,
                               lambda count: tick(0, count))  # fmt: skip
        keep(unit, rows(made, found, work.lanes, work.settings))
        tick(len(unit))

    ahead = min(max(FEWEST_AHEAD, (os.cpu_count() or 1) // 2), MOST_AHEAD)
    with ThreadPoolExecutor(at_once + ahead) as workers:
        try:
            for done in [workers.submit(whole, unit) for unit in todo]:
                done.result()
        except BaseException:
            stop.set()  # what waits is not begun
            raise
