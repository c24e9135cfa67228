"""Rows computed once more from the originals, and compared with those of the run."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.metrics.faithfulness import parse_labels
from auditkit.runs.evaluation import runtime_check
from auditkit.runs.evaluation.batch import prepare
from auditkit.runs.evaluation.measure import measure
from auditkit.runs.evaluation.plan import EvaluationPlan, environment
from auditkit.runs.evaluation.runtime_check import Runtime
from auditkit.runs.evaluation.settings import CONTROL
from auditkit.runs.executor import Progress, Tick
from auditkit.verdict.verify.run_record import Recorded

Stored = Mapping[str, Any]
Name = tuple[int, str, str]  # label, bundle, infill
SAME, OTHER = 1e-5, 1e-3  # of a probability: in the same strict float32, and between two machines or versions
LOOSEST, FEW_SEEN = 0.05, 4  # in other precisions: the runtime's error is known of some dozens of rows alone
LEAST_AREA = 0.05  # of a box, in the saliency metric
ERROR_OFF = 0.2  # of an area's estimated error, which the odds of tiny probabilities go into
NOISE = 1e-4  # of a runtime's error, below which it is rounding
ALWAYS = ("truth", "prediction", "predicted", "error")
EXACT = ("map_digest", "map_top", "tied_fraction", "pointing_hit", "iou", "box_degenerate", "degenerate_by_delta")


@dataclass(frozen=True)
class Tolerance:
    """How far a probability or an area may be off, and why so far."""

    value: float
    same: bool  # the run's own environment: maps that are computed come out alike to the last bit
    why: str

    @classmethod
    def of(cls, recorded: Recorded, runtime: Runtime, work: EvaluationPlan) -> "Tolerance":
        """As tight as the two environments allow."""
        then, now = recorded.about["environment"], environment(work.model)
        if then["precision"] != "strict":
            value = min(max(OTHER, FEW_SEEN * (runtime.largest or 0.0)), LOOSEST)
            why = f"the run is in {then['precision']}; {FEW_SEEN} times the largest error that it measured on a sample"
            return cls(value, then == now, why)
        if then == now:
            return cls(SAME, True, "the same versions, device and precision as the run's")
        changed = [name for name in now | then if then.get(name) != now.get(name)]
        return cls(OTHER, False, ", ".join(f"{name} {then.get(name)} then, {now.get(name)} now" for name in changed))


def compared(
    recorded: Recorded, work: EvaluationPlan, positions: Sequence[int], tolerance: Tolerance, progress: Progress
) -> tuple[int, list[str]]:  # fmt: skip
    """How many rows were computed anew, and the images of which some differ."""
    tick, count, found = progress(len(positions)), 0, list[str]()
    for position in positions:
        image = work.images.ids[position]
        stored = {_name(row): row for row in _rows(recorded, position) if row["image"] == image}
        made = {_name(row): row for row in _computed(work, position, tick)}
        count += len(made)
        if said := list(_Image(work, stored, made, tolerance).differences()):
            found.append(f"image '{image}': {'; '.join(said)}")
        tick(1)
    return count, found


def _name(row: Stored) -> Name:
    return row["label"], row["bundle"], row["infill"]


def _rows(recorded: Recorded, position: int) -> list[Stored]:
    return list(recorded.store.read(recorded.units[recorded.unit_of(position)]).to_pylist())


def _computed(work: EvaluationPlan, position: int, tick: Tick) -> list[Stored]:
    """The rows of one image: no figure depends on the images that shared a unit with it."""
    batch = prepare(work, range(position, position + 1))
    return [vars(row) for row in measure(work, batch, lambda count: tick(0, count))]


@dataclass(frozen=True)
class _Image:
    """The rows of one image, stored and computed anew."""

    work: EvaluationPlan
    stored: Mapping[Name, Stored]
    made: Mapping[Name, Stored]
    tolerance: Tolerance

    def differences(self) -> Iterator[str]:
        """What differs, a column a time."""
        if not self.stored:
            yield "it has no row in its unit"
            return
        if odd := sorted(name for name in self.stored.keys() ^ self.made.keys() if not self._borderline(name)):
            yield f"{len(odd)} rows are missing or too many, such as label {odd[0][0]} of {odd[0][1]}"
        shared = [name for name in self.made if name in self.stored]
        undecided = self._undecided(shared)
        found: dict[str, list[float]] = {}
        for name in shared:
            for column, off in self._off(self.stored[name], self.made[name], only_prob=undecided):
                found.setdefault(column, []).append(off)
        for column, offs in found.items():
            by = f", by up to {max(offs):.2g}" if np.isfinite(max(offs)) else ""
            yield f"{column} of {len(offs)} of {len(shared)} rows differs{by}"

    def _borderline(self, name: Name) -> bool:
        """Whether a label that one side alone looked at is one that a rounding error can bring in."""
        rule, slack = parse_labels(str(self.work.settings.labels)), 2 * self.tolerance.value
        prob = (self.stored.get(name) or self.made[name])["prob"]
        if rule.floor is not None:
            return bool(abs(prob - rule.floor) <= slack)
        both = [row["prob"] for other, row in self.made.items() if other in self.stored]
        alike = len({label for label, *_ in self.stored}) == len({label for label, *_ in self.made})
        return bool(rule.top is not None and alike and both and prob <= min(both) + slack)

    def _undecided(self, shared: Sequence[Name]) -> bool:
        """Whether two labels are so likely that a rounding error decides which of them is predicted."""
        predictions = {rows[name]["prediction"] for name in shared for rows in (self.stored, self.made)}
        prob = [self.made[name]["prob"] for name in shared if name[0] in predictions]
        return len(predictions) == 2 and len(set(prob)) > 1 and max(prob) - min(prob) <= 2 * self.tolerance.value

    def _off(self, stored: Stored, made: Stored, *, only_prob: bool) -> Iterator[tuple[str, float]]:
        """Columns of a row that differ, and by how much."""
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

    def _areas(self, stored: Stored, made: Stored) -> Iterator[tuple[str, float]]:
        """The curve and what is taken from it; points that a rounding error moved bring the error between points."""
        most, steps = self.tolerance.value, self.work.settings.steps
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


def _apart(name: str, stored: Stored, made: Stored, most: float) -> Iterator[tuple[str, float]]:
    """The column, when it is off by more than it may be; numbers or lists of them, None and NaN are no number."""
    mine, other = (np.atleast_1d(np.array(row.get(name), np.float64)) for row in (stored, made))
    if mine.shape != other.shape or (np.isnan(mine) != np.isnan(other)).any():
        yield name, np.inf
    elif not np.isnan(mine).all() and not (off := float(np.nanmax(np.abs(mine - other)))) <= most:
        yield name, off


def _as_share(row: Stored, name: str) -> dict[str, Any]:
    """The saliency metric log(area / probability) as a share, whose error is that of the probability."""
    value = row.get(name)
    return {name: None if value is None else np.exp(-np.asarray(value, np.float64))}


def _alike(stored: Any, made: Any) -> bool:
    if isinstance(made, float):
        return bool(np.isclose(np.nan if stored is None else stored, made, rtol=0, atol=1e-12, equal_nan=True))
    return bool(stored == made)


def _on_curve(stored: Stored, made: Stored) -> tuple[bool, float]:
    """Whether the points are elsewhere, and the largest difference at those that both have."""
    (kept, values), (counts, curve) = (
        [np.asarray(() if row.get(name) is None else row[name]) for name in ("keep_counts", "curve")]
        for row in (stored, made)
    )
    if np.array_equal(kept, counts):
        return False, float(np.abs(values - curve).max(initial=0.0))
    _, mine, others = np.intersect1d(kept, counts, return_indices=True)
    return True, float(np.abs(values[mine] - curve[others]).max(initial=0.0))


def runtime(then: Runtime, work: EvaluationPlan) -> list[str]:
    """Measured errors of the runtime that are not what the run says of them, by more than chance explains."""
    with ThreadPoolExecutor(1) as aside:
        now = runtime_check.checked(work, aside, lambda _: work)[1].result()
    found = list[str]()
    if now.rows != then.rows:
        found.append(f"its error was measured on {then.rows} rows, expected {now.rows}")
    for name in ("repeated", "largest", "mean", "insertion", "alpha", "beta"):
        said, measured = getattr(then, name), getattr(now, name)
        if said is None or measured is None or not measured / 2 - NOISE <= said <= 2 * measured + NOISE:
            found.append(f"its error '{name}' is {said}, measured anew {measured}")
    return found
