"""Recomputes rows from the originals and compares them with those of the run."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.faithfulness import parse_labels
from auditkit.runs.evaluation import runtime_check
from auditkit.runs.evaluation.batch import prepare
from auditkit.runs.evaluation.measure import measure
from auditkit.runs.evaluation.plan import EvaluationPlan, environment
from auditkit.runs.executor import Progress, Tick
from auditkit.runs.folder.figures import CONTROL, Runtime
from auditkit.verdict.verify.run_record import Outcome, RecordedRun, StoredRow

Name = tuple[int, str, str]  # label, bundle, infill
SAME = 1e-5  # tolerance of a probability in the same environment, strict float32
OTHER = 1e-3  # between two machines or versions
LOOSEST = 0.05  # the largest tolerance, in other precisions
FEW_SEEN = 4  # times the runtime's error, which is measured on some dozens of rows only
LEAST_AREA = 0.05  # of a box in the saliency metric
ERROR_OFF = 0.2  # relative; an area's estimated error depends on the odds of tiny probabilities
NOISE = 1e-4  # a smaller error of the runtime is rounding
ALWAYS = ("truth", "prediction", "predicted", "error")
EXACT = ("map_digest", "map_top", "tied_fraction", "pointing_hit", "iou", "box_degenerate", "degenerate_by_delta")


@dataclass(frozen=True)
class Tolerance:
    """How far a probability or an area may be off, and why."""

    value: float
    same: bool  # environment as in the run: computed maps are equal bit for bit
    why: str

    @classmethod
    def of(cls, recorded: RecordedRun, runtime_problems: Runtime, plan: EvaluationPlan) -> "Tolerance":
        """The tightest tolerance that the two environments allow."""
        then, now = recorded.about["environment"], environment(plan.model)
        if then["precision"] != "strict":
            value = min(max(OTHER, FEW_SEEN * (runtime_problems.largest or 0.0)), LOOSEST)
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
    for position in positions:
        image = plan.images.ids[position]
        stored = {_name(row): row for row in _rows(recorded, position) if row["image"] == image}
        recomputed = {_name(row): row for row in _recompute(plan, position, tick)}
        count += len(recomputed)
        differences = list(_ImageRows(plan, stored, recomputed, tolerance).differences())
        if differences:
            problems.append(f"image '{image}': {'; '.join(differences)}")
        tick(1)
    return count, problems


def _name(row: StoredRow) -> Name:
    return row["label"], row["bundle"], row["infill"]


def _rows(recorded: RecordedRun, position: int) -> list[StoredRow]:
    return list(recorded.store.read(recorded.units[recorded.unit_of(position)]).to_pylist())


def _recompute(plan: EvaluationPlan, position: int, tick: Tick) -> list[StoredRow]:
    """The rows of one image; no figure depends on the other images of its unit."""
    images = plan.load([position])
    if not images.ids:
        return []
    batch = prepare(plan, images)
    return [vars(row) for row in measure(plan, batch, lambda count: tick(0, count))]


@dataclass(frozen=True)
class _ImageRows:
    """The rows of one image, stored and recomputed."""

    plan: EvaluationPlan
    stored: Mapping[Name, StoredRow]
    made: Mapping[Name, StoredRow]
    tolerance: Tolerance

    def differences(self) -> Iterator[str]:
        """The columns that differ."""
        if not self.stored:
            if self.made:
                yield "it has no row in its unit"
            return
        unmatched = sorted(name for name in self.stored.keys() ^ self.made.keys() if not self._borderline(name))
        if unmatched:
            label, bundle, _ = unmatched[0]
            yield f"{len(unmatched)} rows are missing or too many, such as label {label} of {bundle}"
        shared = [name for name in self.made if name in self.stored]
        undecided = self._undecided(shared)
        by_column: dict[str, list[float]] = {}
        for name in shared:
            for column, off in self._off(self.stored[name], self.made[name], only_prob=undecided):
                by_column.setdefault(column, []).append(off)
        for column, offs in by_column.items():
            by = f", by up to {max(offs):.2g}" if np.isfinite(max(offs)) else ""
            yield f"{column} of {len(offs)} of {len(shared)} rows differs{by}"

    def _borderline(self, name: Name) -> bool:
        """Whether a rounding error can decide if a label is measured at all."""
        rule, slack = parse_labels(str(self.plan.settings.labels)), 2 * self.tolerance.value
        prob = (self.stored.get(name) or self.made[name])["prob"]
        if rule.floor is not None:
            return bool(abs(prob - rule.floor) <= slack)
        both = [row["prob"] for other, row in self.made.items() if other in self.stored]
        alike = len({label for label, *_ in self.stored}) == len({label for label, *_ in self.made})
        return bool(rule.top is not None and alike and both and prob <= min(both) + slack)

    def _undecided(self, shared: Sequence[Name]) -> bool:
        """Whether a rounding error can decide which of two labels is predicted."""
        predictions = {self.stored[name]["prediction"] for name in shared}
        predictions |= {self.made[name]["prediction"] for name in shared}
        prob = [self.made[name]["prob"] for name in shared if name[0] in predictions]
        return len(predictions) == 2 and len(set(prob)) > 1 and max(prob) - min(prob) <= 2 * self.tolerance.value

    def _off(self, stored: StoredRow, made: StoredRow, *, only_prob: bool) -> Iterator[tuple[str, float]]:
        """The columns of a row that differ, and by how much."""
        yield from _apart("prob", stored, made, self.tolerance.value)
        if only_prob:
            return
        exact = self.tolerance.same or not made["bundle"].startswith(CONTROL)
        for name in (*ALWAYS, *(EXACT if exact else ())):
            if not _alike(stored[name], made.get(name)):
                yield name, np.inf
        if sorted(stored["flags"] or ()) != sorted(made["flags"]):
            yield "flags", np.inf
        yield from self._areas(stored, made)
        for name in ("saliency_metric", "saliency_by_delta"):
            most = self.tolerance.value / LEAST_AREA
            yield from _apart(name, _as_share(stored, name), _as_share(made, name), most)

    def _areas(self, stored: StoredRow, made: StoredRow) -> Iterator[tuple[str, float]]:
        """The curve and its areas; where rounding moved its points, the sampling error adds to the tolerance."""
        most, steps = self.tolerance.value, self.plan.settings.steps
        fixed = steps is not None and steps.rule != "auto"
        moved, off = _on_curve(stored, made)
        if not off <= most or (moved and fixed):
            yield "curve", off
        error = made["insertion_error"] or 0.0
        for name in ("insertion", "insertion_low", "insertion_high"):
            yield from _apart(name, stored, made, most + (2 * error if moved else 0.0))
        if not moved:
            yield from _apart("insertion_error", stored, made, most + ERROR_OFF * error)
        settled = fixed or not list(_apart("deletion_error", stored, made, most))
        yield from _apart("deletion", stored, made, most + (0.0 if settled else 2 * (made["deletion_error"] or 0.0)))


def _apart(name: str, stored: StoredRow, made: StoredRow, most: float) -> Iterator[tuple[str, float]]:
    """The column if it is off by more than `most`; it holds a number or a list of them, None counts as NaN."""
    first, second = (np.atleast_1d(np.array(row.get(name), np.float64)) for row in (stored, made))
    if first.shape != second.shape or (np.isnan(first) != np.isnan(second)).any():
        yield name, np.inf
    elif not np.isnan(first).all():
        off = float(np.nanmax(np.abs(first - second)))
        if not off <= most:
            yield name, off


def _as_share(row: StoredRow, name: str) -> StoredRow:
    """The saliency metric log(area / probability) as a share, which is as exact as the probability."""
    value = row.get(name)
    return {name: None if value is None else np.exp(-np.asarray(value, np.float64))}


def _alike(stored: object, made: object) -> bool:
    if isinstance(made, float):
        value = np.array(np.nan if stored is None else stored)
        return bool(np.isclose(value, made, rtol=0, atol=1e-12, equal_nan=True))
    return bool(stored == made)


def _curve(row: StoredRow) -> list[Array]:
    return [np.asarray(() if row.get(name) is None else row[name]) for name in ("keep_counts", "curve")]


def _on_curve(stored: StoredRow, made: StoredRow) -> tuple[bool, float]:
    """Whether the points differ, and the largest difference at the points that both curves have."""
    kept, values = _curve(stored)
    counts, curve = _curve(made)
    if np.array_equal(kept, counts):
        return False, float(np.abs(values - curve).max(initial=0.0))
    _, first, second = np.intersect1d(kept, counts, return_indices=True)
    return True, float(np.abs(values[first] - curve[second]).max(initial=0.0))


def check_runtime(then: Runtime, plan: EvaluationPlan) -> Outcome:
    """Errors of the runtime that differ from the recorded ones by more than chance explains."""
    with ThreadPoolExecutor(1) as executor:
        now = runtime_check.checked(plan, executor, lambda _: plan)[1].result()
    problems = list[str]()
    if now.rows != then.rows:
        problems.append(f"its error was measured on {then.rows} rows, expected {now.rows}")
    for name in ("repeated", "largest", "mean", "insertion", "alpha", "beta"):
        recorded, measured = getattr(then, name), getattr(now, name)
        if recorded is None or measured is None or not measured / 2 - NOISE <= recorded <= 2 * measured + NOISE:
            problems.append(f"its error '{name}' is {recorded}, measured anew {measured}")
    return "has the error that is recorded", problems
