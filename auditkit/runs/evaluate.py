"""Evaluates heatmaps over a set of images: every unit is measured once, its rows are kept, and all are summed up."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from auditkit.data.bundles import HeatmapSet, open_bundle
from auditkit.data.dataset import Dataset, FailedImage
from auditkit.model.classifier import AnyClassifier
from auditkit.records import to_object
from auditkit.runs.evaluation import runtime_check
from auditkit.runs.evaluation.batch import prepare
from auditkit.runs.evaluation.curves import expected_rows
from auditkit.runs.evaluation.measure import Row, measure
from auditkit.runs.evaluation.plan import EvaluationPlan, RunRecord, plan_evaluation, unit_keys, without_paths
from auditkit.runs.evaluation.settings import Evaluation, resolved, units
from auditkit.runs.executor import (
    Progress,
    Shard,
    SkippedImages,
    Tick,
    UnitProgress,
    execute,
    retry_without_failing_images,
    silent,
)
from auditkit.runs.folder import checksums
from auditkit.runs.folder.figures import Batch as EarlierBatch
from auditkit.runs.folder.figures import Runtime
from auditkit.runs.folder.parquet import fitted, with_failed_images
from auditkit.runs.folder.sittings import units_logged
from auditkit.runs.folder.store import MissingUnit, Store
from auditkit.runs.summary.results import results
from auditkit.runs.summary.summarise import Summary, summarise

if TYPE_CHECKING:
    import pyarrow as pa


def open_bundles(paths: Sequence[Path]) -> dict[str, HeatmapSet]:
    """Bundles by the names of their folders, numbered where two are the same."""
    bundles: dict[str, HeatmapSet] = {}
    for path in paths:
        name, number = path.resolve().name, 2
        unique = name
        while unique in bundles:
            unique, number = f"{name}-{number}", number + 1
        bundles[unique] = open_bundle(path)
    return bundles


def evaluate(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], settings: Evaluation,
    out: "Path | Store | None" = None, progress: Progress = silent, pool: Dataset | None = None,
    earlier: Sequence[EarlierBatch] = (), *, record_machine: bool = False,
) -> Summary:  # fmt: skip
    """Every metric of every bundle and control, with intervals over the images.

    Rows are kept in memory without `out`. Results are written into a folder, but not into an open store. The first
    images may have been measured in `earlier` batches, whose units are kept. Only with `record_machine` are full paths
    and the names of machines and processes recorded.
    """
    with _checked_plan(model, images, bundles, settings, pool) as (plan, runtime):
        pixels, device, tick = plan.span.pixels, plan.model.device, progress(len(images))
        if out is None:
            every_unit = units_of(model, images, settings)
            tables: dict[range, pa.Table] = {}
            _measure_units(plan, every_unit, tables.__setitem__, tick)
            return summarise(lambda _=None: (tables[unit] for unit in every_unit), plan.settings, runtime.result())
        record = plan.record(full_paths=record_machine)
        log = partial(units_logged, model=model, record_machine=record_machine)
        with _opened(out, record) as store, log(store.folder):
            keys = unit_keys(record.batches(earlier), pixels, device, plan.settings)
            stored = set(store.keys())
            missing = [unit for unit, key in keys.items() if key not in stored]
            tick(len(images) - sum(map(len, missing)))

            def measure_missing(pending: Sequence[range]) -> Summary:
                _measure_units(plan, pending, lambda unit, table: store.write(keys[unit], table), tick)
                return summarise(partial(store.tables, keys.values()), plan.settings, runtime.result(), record)

            try:
                summary = measure_missing(missing)
            except MissingUnit:  # a part that an earlier run has left is damaged: now all of them are looked at
                summary = measure_missing([unit for unit, key in keys.items() if not store.has(key)])
            SkippedImages(model).check(summary.failed_images)  # also those of earlier sittings
            if store is not out:
                store.finish(results(summary))
                checksums.write(store.folder)
    return summary


def evaluate_shard(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], settings: Evaluation,
    out: "Path | Store", shard: Shard, progress: Progress = silent, pool: Dataset | None = None,
    command: tuple[str, ...] = (), *, record_machine: bool = False,
) -> tuple[int, int]:  # fmt: skip
    """Measure a shard of the units into `out`, to be merged with the others; its number of units, and that of all."""
    share = units_of(model, images, settings, shard)  # refuses too many shards before a folder is created
    with _checked_plan(model, images, bundles, settings, pool) as (plan, runtime):
        record = plan.record(full_paths=record_machine)
        log = partial(units_logged, model=model, command=command, shard=True, record_machine=record_machine)
        with _opened(out, record) as store, log(store.folder):
            keys = unit_keys([record], plan.span.pixels, plan.model.device, plan.settings)
            missing, images_of_shard = [unit for unit in share if not store.has(keys[unit])], sum(map(len, share))
            tick = progress(images_of_shard)
            tick(images_of_shard - sum(map(len, missing)))
            _measure_units(plan, missing, lambda unit, table: store.write(keys[unit], table), tick)
        runtime.result()  # the shard that finds the runtime at fault says so
    return len(share), len(keys)


def units_of(
    model: AnyClassifier, images: Dataset, settings: Evaluation, shard: Shard | None = None
) -> Sequence[range]:
    """The units that the images are cut into; those of a shard alone, if one is given."""
    signature = model.signature
    pixels, classes = signature.height * signature.width, signature.classes
    every_unit = units(range(len(images)), pixels, classes, model.device, resolved(settings, classes))
    return every_unit if shard is None else shard.part(every_unit)


@contextmanager
def _checked_plan(
    model: AnyClassifier, images: Dataset, bundles: Mapping[str, HeatmapSet], settings: Evaluation,
    pool: Dataset | None,
) -> "Iterator[tuple[EvaluationPlan, Future[Runtime]]]":  # fmt: skip
    """The plan in the precision that it is carried out in, and what its runtime is worth, found out meanwhile."""

    def plan_for(classifier: AnyClassifier) -> EvaluationPlan:
        return plan_evaluation(classifier, images, bundles, settings, pool)

    with ThreadPoolExecutor(1) as aside:
        plan, runtime = runtime_check.checked(plan_for(model), aside, plan_for)
        runtime_check.check_other_kinds(plan)
        yield plan, runtime


def _opened(out: "Path | Store", record: RunRecord) -> AbstractContextManager[Store]:
    """The store of a run in a folder; one that is open already stays so."""
    return nullcontext(out) if isinstance(out, Store) else Store.open(out, without_paths(to_object(record)))


def _measure_units(
    plan: EvaluationPlan, pending: Sequence[range], keep: "Callable[[range, pa.Table], None]", tick: Tick
) -> None:
    work = Measuring(plan)

    def keep_rows(unit: range, measured: Measured, left_out: Sequence[FailedImage] = ()) -> None:
        keep(unit, with_failed_images(measured.table, [*measured.failed, *left_out]))
        tick(len(unit))

    left_out = SkippedImages(plan.model)
    while pending:
        failed, pending = execute(plan.model, work, pending, keep_rows, tick)
        for unit in failed:
            before = len(left_out.images)
            measured = retry_without_failing_images(
                unit, plan.images.ids, lambda unit: work(unit, nullcontext(), tick), left_out
            )
            keep_rows(unit, measured, left_out.images[before:])


class Measured(NamedTuple):
    """The rows of a unit, and its images that cannot be read."""

    table: "pa.Table"
    failed: tuple[FailedImage, ...]


@dataclass(frozen=True)
class Measuring:
    """Measures a unit of images."""

    plan: EvaluationPlan
    name: ClassVar[str] = "rows of images"

    def __call__(self, unit: Sequence[int], device: AbstractContextManager[None], tick: Tick) -> Measured:
        """The rows of a unit."""
        images, rows = self.plan.load(unit), list[Row]()
        if images.ids:
            batch = prepare(self.plan, images)
            with UnitProgress(tick, len(batch.ids)) as progress:
                progress.expect(expected_rows(batch.curves.values(), self.plan.span))
                rows = measure(self.plan, batch, progress.count, device)
        # `fitted` refuses a field that is no column of the Parquet file, and the other way round.
        table = fitted({field.name: [getattr(row, field.name) for row in rows] for field in fields(Row)})
        return Measured(table, images.failed)
