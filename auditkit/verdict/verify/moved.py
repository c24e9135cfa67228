"""What becomes of a run's figures when all of its rows are computed anew, perhaps with other versions years later."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import date
from typing import TYPE_CHECKING

import numpy as np

from auditkit.runs.evaluation.measure import Row
from auditkit.runs.evaluation.plan import RunRecord
from auditkit.runs.folder import provenance
from auditkit.runs.folder.figures import MetricResult, Runtime
from auditkit.runs.folder.names import POLICY
from auditkit.runs.folder.parquet import failed_images, fitted, with_failed_images
from auditkit.runs.folder.results import Results
from auditkit.runs.summary.results import results as results_of
from auditkit.runs.summary.samples import Samples
from auditkit.runs.summary.summarise import summarise
from auditkit.verdict.decision import judge
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify.consistency import NOT_SUMMED_UP
from auditkit.verdict.verify.run_record import Outcome, RecordedRun

if TYPE_CHECKING:
    import pyarrow as pa

Tables = dict[str, "pa.Table"]  # rows of the run's units, by key
_MOST_NAMED = 3  # figures, of those that moved most
_ROUNDING = 1e-8  # versions of scipy and numpy differ by less
_GROUPS = ("metrics", "controls", "comparisons", "classes")


def check_figures(recorded: RecordedRun, runtime: Runtime, tables: Tables, graphs: Mapping[str, str]) -> Outcome:
    """Which figures moved, by how much, and whether the verdict would be another; never a problem by itself."""
    then, rows = recorded.results, [tables[key] for key in recorded.units.values()]
    with np.errstate(all="ignore"):
        summary = summarise(lambda _=None: rows, recorded.settings, runtime, RunRecord.of(then))
    unchanged = {name: getattr(then, name) for name in NOT_SUMMED_UP}
    now = replace(results_of(summary, then.explained), **unchanged, run=then.run)
    moved, count = _moved(then, now), sum(len(getattr(then, group)) for group in _GROUPS)
    about = f"{count:,} figures from all rows, computed anew{_others(recorded, graphs)}: {_described(moved)}"
    if then.policy is None:
        return Outcome(about)
    changes = _changes(then, now, summary.samples)
    if changes:
        return Outcome(about, (), [f"the verdict: {about}; {'; '.join(changes)}; look at these checks yourself"])
    return Outcome(f"{about}; the verdict would be the same, {then.verdict}")


def table(recorded: RecordedRun, key: str, rows: Sequence[Row]) -> "pa.Table":
    """The rows of a unit as the run would store them, with the images that it left out."""
    columns = fitted({field.name: [getattr(row, field.name) for row in rows] for field in fields(Row)})
    return with_failed_images(columns, failed_images(recorded.store.read(key)))


def _moved(then: Results, now: Results) -> dict[str, float]:
    """How far each figure moved that did, the furthest first."""
    moved = dict[str, float]()
    for group in _GROUPS:
        for before, after in zip(getattr(then, group), getattr(now, group), strict=True):
            name = f"{before.name} of {before.bundle or 'the model'} {before.infill}".strip()
            if before.class_index is not None:
                name += f" in class {before.class_index}"
            off = _off(before, after)
            if off > _ROUNDING:
                moved[name] = max(off, moved.get(name, 0.0))
    return dict(sorted(moved.items(), key=lambda entry: -entry[1]))


def _off(before: MetricResult, after: MetricResult) -> float:
    pairs = zip((before.value, before.low, before.high), (after.value, after.low, after.high), strict=True)
    return max(np.inf if (a is None) != (b is None) else abs((a or 0.0) - (b or 0.0)) for a, b in pairs)


def _described(moved: Mapping[str, float]) -> str:
    if not moved:
        return f"none moved by more than {_ROUNDING:g}"
    furthest = ", ".join(f"{name} by {off:.1e}" for name, off in list(moved.items())[:_MOST_NAMED])
    return f"{len(moved):,} moved, furthest {furthest}"


def _others(recorded: RecordedRun, graphs: Mapping[str, str]) -> str:
    """The versions and derived graphs that differ from those of the run."""
    here, then = provenance.software(), recorded.results.software or {}
    texts = [f"{name} {here[name]} in place of {version}" for name, version in then.items()
             if name in here and here[name] != version]  # fmt: skip
    if (recorded.store.folder / provenance.PROVENANCE).exists():
        before = provenance.read(recorded.store.folder).graphs
        texts += [f"another graph '{name}'" for name in graphs if before.get(name, graphs[name]) != graphs[name]]
    return f" with {', '.join(texts)}" if texts else ""


def _changes(then: Results, now: Results, samples: Samples | None) -> list[str]:
    """The verdict and the checks that would be others."""
    policy = parse_policy(then.policy.text if then.policy else "", POLICY)
    day = date.fromisoformat((then.run.ended or "")[:10])
    judged = judge(policy, now, samples, day, then.run.fail_on)
    before, after = ({check.id: check.status for check in each.checks} for each in (then, judged))
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    changes = [f"{name} would be '{after.get(name)}', not '{before.get(name)}'" for name in names]
    verdict = [f"it would be '{judged.verdict}', not '{then.verdict}'"] if judged.verdict != then.verdict else []
    return verdict + changes
