"""Recomputes rows from the originals and compares them with those of the run."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np

from auditkit.metrics.faithfulness import parse_labels
from auditkit.runs.evaluation import runtime_check
from auditkit.runs.evaluation.batch import prepare
from auditkit.runs.evaluation.measure import Row, measure
from auditkit.runs.evaluation.plan import EvaluationPlan, environment
from auditkit.runs.executor import Progress
from auditkit.runs.folder.figures import CONTROL, Runtime
from auditkit.verdict.verify.run_record import ROW_KEY, Outcome, RecordedRun, StoredRow

Name = tuple[int, str, str]  # label, bundle, infill
SAME = 1e-5  # tolerance of a probability in the same environment, strict float32
OTHER = 1e-3  # between two machines or versions
LOOSEST = 0.05  # the largest tolerance, in other precisions
FEW_SEEN = 4  # times the runtime's error, which is measured on some dozens of rows only
LEAST_AREA = 0.05  # of a box in the saliency metric
ERROR_OFF = 0.2  # relative; an area's estimated error depends on the odds of tiny probabilities
ODDS_OFF = 20  # times a probability's tolerance: log-odds change by 4 times as much at p = 0.5, by more near 0 and 1
NOISE = 1e-4  # a smaller error of a GPU is rounding; on a CPU that is SAME
_OF_THE_IMAGE = ("truth", "prediction", "predicted", "error")  # columns that are equal on all machines
_LOGARITHMS = ("saliency_metric", "saliency_by_delta")  # log(area / probability)
_AREAS = ("insertion", "insertion_low", "insertion_high", "insertion_error", "deletion", "deletion_error")
_LOG_ODDS = ("log_odds", "log_odds_error")
_INEXACT = ("prob", "alpha", "beta", "keep_counts", "curve", "flags", *_AREAS, *_LOGARITHMS, *_LOG_ODDS)
# All other columns are exact functions of the map.
_OF_THE_MAP = tuple(column.name for column in fields(Row) if column.name not in (*ROW_KEY, *_OF_THE_IMAGE, *_INEXACT))


@dataclass(frozen=True)
class Tolerance:
    """How far a probability or an area may be off, and why."""

    value: float
    same: bool  # environment as in the run: computed maps are equal bit for bit
    why: str

    @classmethod
    def of(cls, recorded: RecordedRun, runtime: Runtime, plan: EvaluationPlan) -> "Tolerance":
        """The tightest tolerance that the two environments allow."""
        then, now = recorded.about["environment"], environment(plan.model)
        if then["precision"] != "strict":
            value = min(max(OTHER, FEW_SEEN * (runtime.largest or 0.0)), LOOSEST)
            why = f"the run is in {then['precision']}; {FEW_SEEN} times the largest error that it measured on a sample"
            return cls(value, then == now, why)
        if then == now:
            return cls(SAME, True, "the same versions, device and precision as the run's")
        changed = [name for name in now | then if then.get(name) != now.get(name)]
        return cls(OTHER, False, ", ".join(f"{name} {then.get(name)} then, {now.get(name)} now" for name in changed))


def compare_rows(
    recorded: RecordedRun, plan: EvaluationPlan, positions: Sequence[int], tolerance: Tolerance, progress: Progress
) -> tuple[int, list[str]]:  # fmt: skip
    """How many rows were recomputed, and the images with rows that differ."""
    tick, count, problems = progress(len(positions)), 0, list[str]()
    for unit, key in recorded.units.items():
        chosen = [position for position in positions if position in unit]
        if not chosen:
            continue
        loaded = plan.load(chosen)  # no figure depends on the other images of its unit
        measured = measure(plan, prepare(plan, loaded), lambda count: tick(0, count)) if loaded.ids else []
        count += len(measured)
        stored_rows = recorded.store.read(key).to_pylist()
        for image in (plan.images.ids[position] for position in chosen):
            stored = {_name(row): row for row in stored_rows if row["image"] == image}
            recomputed = {_name(row): row for row in map(vars, measured) if row["image"] == image}
            differences = list(_ImageRows(plan, stored, recomputed, tolerance).differences())
            if differences:
                problems.append(f"image '{image}': {'; '.join(differences)}")
        tick(len(chosen))
    return count, problems


def _name(row: StoredRow) -> Name:
    return row["label"], row["bundle"], row["infill"]


@dataclass(frozen=True)
class _ImageRows:
    """The rows of one image, stored and recomputed."""

    plan: EvaluationPlan
    stored: Mapping[Name, StoredRow]
    recomputed: Mapping[Name, StoredRow]
    tolerance: Tolerance

    def differences(self) -> Iterator[str]:
        """The columns that differ."""
        if not self.stored:
            if self.recomputed:
                yield "it has no row in its unit"
            return
        unmatched = sorted(name for name in self.stored.keys() ^ self.recomputed.keys() if not self._borderline(name))
        if unmatched:
            label, bundle, _ = unmatched[0]
            yield f"{len(unmatched)} rows are missing or too many, such as label {label} of {bundle}"
        shared = [name for name in self.recomputed if name in self.stored]
        undecided = self._undecided(shared)
        by_column: dict[str, list[float]] = {}
        for name in shared:
            for column, off in self._off(self.stored[name], self.recomputed[name], only_prob=undecided):
                by_column.setdefault(column, []).append(off)
        for column, offs in by_column.items():
            by = f", by up to {max(offs):.2g}" if np.isfinite(max(offs)) else ""
            yield f"{column} of {len(offs)} of {len(shared)} rows differs{by}"

    def _borderline(self, name: Name) -> bool:
        """Whether a rounding error can decide if a label is measured at all."""
        rule, slack = parse_labels(str(self.plan.settings.labels)), 2 * self.tolerance.value
        prob = (self.stored.get(name) or self.recomputed[name])["prob"]
        if rule.floor is not None:
            return bool(abs(prob - rule.floor) <= slack)
        both = [row["prob"] for other, row in self.recomputed.items() if other in self.stored]
        alike = len({label for label, *_ in self.stored}) == len({label for label, *_ in self.recomputed})
        return bool(rule.top is not None and alike and both and prob <= min(both) + slack)

    def _undecided(self, shared: Sequence[Name]) -> bool:
        """Whether a rounding error can decide which of two labels is predicted."""
        predictions = {self.stored[name]["prediction"] for name in shared}
        predictions |= {self.recomputed[name]["prediction"] for name in shared}
        prob = [self.recomputed[name]["prob"] for name in shared if name[0] in predictions]
        return len(predictions) == 2 and len(set(prob)) > 1 and max(prob) - min(prob) <= 2 * self.tolerance.value

    def _off(self, stored: StoredRow, recomputed: StoredRow, *, only_prob: bool) -> Iterator[tuple[str, float]]:
        """The columns of a row that differ, and by how much."""
        yield from _apart("prob", stored, recomputed, self.tolerance.value)
        if only_prob:
            return
        exact = self.tolerance.same or not recomputed["bundle"].startswith(CONTROL)
        for name in (*_OF_THE_IMAGE, *(_OF_THE_MAP if exact else ())):
            if not _alike(stored[name], recomputed.get(name)):
                yield name, np.inf
        if sorted(stored["flags"] or ()) != sorted(recomputed["flags"]):
            yield "flags", np.inf
        yield from self._areas(stored, recomputed)
        for name in _LOGARITHMS:
            yield from _apart(name, stored, recomputed, self.tolerance.value / LEAST_AREA)

    def _areas(self, stored: StoredRow, recomputed: StoredRow) -> Iterator[tuple[str, float]]:
        """The curve and its areas; where rounding moved its points, the sampling error adds to the tolerance."""
        most, steps = self.tolerance.value, self.plan.settings.steps
        fixed = steps is not None and steps.rule != "auto"
        moved, off = _on_curve(stored, recomputed)
        if not off <= most or (moved and fixed):
            yield "curve", off
        error = recomputed["insertion_error"] or 0.0
        odds_errors = recomputed["log_odds_error"]
        odds_error = 0.0 if odds_errors is None else float(np.nan_to_num(odds_errors).max())
        for name in ("insertion", "insertion_low", "insertion_high"):
            yield from _apart(name, stored, recomputed, most + (2 * error if moved else 0.0))
        if not moved:
            yield from _apart("insertion_error", stored, recomputed, most + ERROR_OFF * error)
            yield from _apart("log_odds_error", stored, recomputed, ODDS_OFF * most + ERROR_OFF * odds_error)
        yield from _apart("log_odds", stored, recomputed, ODDS_OFF * most + (2 * odds_error if moved else 0.0))
        settled = fixed or not list(_apart("deletion_error", stored, recomputed, most))
        yield from _apart(
            "deletion", stored, recomputed, most + (0.0 if settled else 2 * (recomputed["deletion_error"] or 0.0))
        )


def _apart(name: str, stored: StoredRow, recomputed: StoredRow, most: float) -> Iterator[tuple[str, float]]:
    """The column if it is off by more than `most`; it holds a number or a list of them, None counts as NaN."""
    first, second = (np.atleast_1d(np.array(row.get(name), np.float64)) for row in (stored, recomputed))
    if name in _LOGARITHMS:  # compared as shares, which are as exact as the probability
        first, second = np.exp(-first), np.exp(-second)
    if first.shape != second.shape or (np.isnan(first) != np.isnan(second)).any():
        yield name, np.inf
    elif not np.isnan(first).all():
        off = float(np.nanmax(np.abs(first - second)))
        if not off <= most:
            yield name, off


def _alike(stored: object, recomputed: object) -> bool:
    if isinstance(recomputed, float):
        value = np.array(np.nan if stored is None else stored)
        return bool(np.isclose(value, recomputed, rtol=0, atol=1e-12, equal_nan=True))
    return bool(stored == recomputed)


def _on_curve(stored: StoredRow, recomputed: StoredRow) -> tuple[bool, float]:
    """Whether the points differ, and the largest difference at the points that both curves have."""
    counts, others = (
        np.array([] if row["keep_counts"] is None else row["keep_counts"]) for row in (stored, recomputed)
    )
    curve, other = (np.array([] if row["curve"] is None else row["curve"]) for row in (stored, recomputed))
    if np.array_equal(counts, others):
        return False, float(np.abs(curve - other).max(initial=0.0))
    _, first, second = np.intersect1d(counts, others, return_indices=True)
    return True, float(np.abs(curve[first] - other[second]).max(initial=0.0))


def check_runtime(recorded: RecordedRun, then: Runtime, plan: EvaluationPlan) -> Outcome:
    """Errors of the runtime that differ from the recorded ones by more than chance explains."""
    where, here = recorded.about["environment"], environment(plan.model)
    changed = [name for name in ("device", "precision") if where.get(name) != here.get(name)]
    if changed:
        reason = f"the run is on {where.get('device')} in {where.get('precision')}; verify it on such a device"
        return Outcome("", (), [f"the runtime's error: {reason}"])
    with ThreadPoolExecutor(1) as executor:
        now = runtime_check.checked(plan, executor, lambda _: plan)[1].result()
    noise = SAME if where.get("device") == "cpu" else NOISE
    slack, problems = noise if where == here else OTHER, list[str]()
    for name in ("reference", "rows"):
        if getattr(now, name) != getattr(then, name):
            problems.append(f"the {name} of its error is {getattr(then, name)}, expected {getattr(now, name)}")
    for name in (field.name for field in fields(Runtime) if field.name not in ("reference", "rows", "note")):
        stored, measured = getattr(then, name), getattr(now, name)
        if stored is None or measured is None or not measured / 2 - slack <= stored <= 2 * measured + slack:
            problems.append(f"its error '{name}' is {stored}, measured anew {measured}")
    raised = recorded.run["environment"].get("precision") != where.get("precision")
    if (then.note is not None) != raised:
        problems.append(f"its note is {then.note!r}, but the precision was {'' if raised else 'not '}raised")
    unchecked = [f"why the precision was raised, '{then.note}': look at it yourself"] if raised and then.note else []
    return Outcome("has the error that is recorded", problems, unchecked)
