"""Recomputes rows from the originals and compares them with those of the run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from auditkit import elsewhere
from auditkit.errors import ModelFailure
from auditkit.metrics.faithfulness import as_probable, choose_labels
from auditkit.runs.evaluation import runtime_check
from auditkit.runs.evaluation.batch import Choice, prepare
from auditkit.runs.evaluation.images import UnitImages, probabilities
from auditkit.runs.evaluation.measure import Row, measure
from auditkit.runs.evaluation.plan import EvaluationPlan, environment
from auditkit.runs.evaluation.settings import NO_LABEL
from auditkit.runs.executor import InOrder, Progress, Tick, as_sentence, execute, raise_failure
from auditkit.runs.folder.figures import CONTROL, Runtime
from auditkit.runs.folder.store import Store
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
TIMES_OFF = 2  # a recorded error of the runtime, larger or smaller than the one measured now
TIMES_UNDECIDED = 8  # in TF32 and float16, where kernels change it: by 4.5 times at most (two ResNets, H200)
_OF_THE_IMAGE = ("truth", "prediction", "predicted", "error")  # columns that are equal on all machines
_LOGARITHMS = ("saliency_metric", "saliency_by_delta")  # log(area / probability)
_AREAS = ("insertion", "insertion_low", "insertion_high", "insertion_error", "deletion", "deletion_error")
_LOG_ODDS = ("log_odds", "log_odds_error")
_INEXACT = ("prob", "alpha", "beta", "keep_counts", "curve", "flags", *_AREAS, *_LOGARITHMS, *_LOG_ODDS)
# All other columns are exact functions of the map.
_MAY_BE_MISSING = ("alpha", "beta", "keep_counts", "curve")  # the others are compared where one has a value
_OF_THE_MAP = tuple(column.name for column in fields(Row) if column.name not in (*ROW_KEY, *_OF_THE_IMAGE, *_INEXACT))


@dataclass(frozen=True)
class Tolerance:
    """How far a probability or an area may be off, and why."""

    value: float
    same: bool  # environment as in the run: computed maps are equal bit for bit
    points_move: bool  # whether rounding often moves the points of refined curves
    why: str

    @classmethod
    def of(cls, recorded: RecordedRun, plan: EvaluationPlan) -> "Tolerance":
        """The tightest tolerance that the two environments allow."""
        runtime = recorded.results.runtime
        then, now = recorded.about["environment"], environment(plan.model)
        if then["precision"] != "strict":
            value = min(max(OTHER, FEW_SEEN * ((runtime and runtime.largest) or 0.0)), LOOSEST)
            why = f"the run is in {then['precision']}; {FEW_SEEN} times the largest error that it measured on a sample"
            return cls(value, then == now, True, why)
        points_move = "cuda" in (then["device"], now["device"])
        if then == now:
            return cls(SAME, True, points_move, "the same versions, device and precision as the run's")
        changed = [name for name in now | then if then.get(name) != now.get(name)]
        why = ", ".join(f"{name} {then.get(name)} then, {now.get(name)} now" for name in changed)
        return cls(OTHER, False, points_move, why)


def compare_rows(
    recorded: RecordedRun, plan: EvaluationPlan, positions: Sequence[int], tolerance: Tolerance, progress: Progress,
    take: Callable[[str, list[Row]], None],
) -> tuple[int, list[str], list[str]]:  # fmt: skip
    """How many rows were recomputed, the images with rows that differ, and those about which rounding decides.

    `take` gets the key of each unit and its rows.
    """
    tick, count, problems, unchecked = progress(len(positions)), 0, list[str](), list[str]()
    positions = [position for position in positions if plan.images.ids[position] not in recorded.failed_by_model]
    chosen = {key: tuple(position for position in positions if position in unit)
              for unit, key in recorded.units.items()}  # fmt: skip
    units = [_Part(key, some) for key, some in chosen.items() if some]
    work = _Recomputing(plan, recorded.store, tolerance)

    def keep(unit: _Part, again: _Recomputed) -> None:
        nonlocal count, problems, unchecked
        count += len(again.rows)
        take(unit.key, again.rows)
        unchecked += [f"image '{image}': the run measured or predicted other labels, whose probabilities differ "
                      f"by at most {2 * tolerance.value:g}; check it yourself" for image in again.as_then]  # fmt: skip
        for image, rows in work.stored(unit).items():
            recomputed = {_name(row): row for row in map(vars, again.rows) if row["image"] == image}
            compared = _ImageRows(image, plan, rows, recomputed, tolerance)
            problems += compared.differences(undecided=False)
            unchecked += compared.differences(undecided=True)
        tick(len(unit.positions))

    failed, _ = execute(plan.model, work, units, InOrder(units, keep).keep, tick)
    if failed:
        raise_failure(work, failed[0])
    return count, problems, unchecked


class _Part(NamedTuple):
    """Some images of a unit."""

    key: str
    positions: tuple[int, ...]


class _Recomputed(NamedTuple):
    """Rows, and the images whose labels or prediction are those of the run, where rounding alone chose others."""

    rows: list[Row]
    as_then: tuple[str, ...]


@dataclass(frozen=True)
class _Recomputing:
    """Measures images again; no figure depends on the other images of a unit."""

    plan: EvaluationPlan
    store: Store
    tolerance: Tolerance

    def __call__(self, unit: _Part, device: AbstractContextManager[None], tick: Tick) -> _Recomputed:
        """The rows of the images."""
        loaded = self.plan.load(unit.positions)
        if not loaded.ids:
            return _Recomputed([], ())
        choices = _choices(self.plan, loaded, self.stored(unit), self.tolerance)
        batch = prepare(self.plan, loaded, choices)
        return _Recomputed(measure(self.plan, batch, lambda rows: tick(0, rows), device), tuple(choices))

    def stored(self, unit: _Part) -> dict[str, dict[Name, StoredRow]]:
        """The rows of the run, by image."""
        read = _stored_rows if elsewhere.asker is None else partial(elsewhere.asker, _stored_rows)
        return read(self.store, unit.key, [self.plan.images.ids[position] for position in unit.positions])


def _stored_rows(store: Store, key: str, images: Sequence[str]) -> dict[str, dict[Name, StoredRow]]:
    stored: dict[str, dict[Name, StoredRow]] = {image: {} for image in images}
    for row in store.read(key).to_pylist():
        if row["image"] in stored:
            stored[row["image"]][_name(row)] = row
    return stored


def check_failed(recorded: RecordedRun, plan: EvaluationPlan) -> Outcome:
    """Whether the model fails on those images that the run left out because it did."""
    problems, unchecked, failed = list[str](), list[str](), recorded.failed_by_model
    for position, image in enumerate(plan.images.ids):
        if image not in failed:
            continue
        try:
            measure(plan, prepare(plan, plan.load([position])))
        except ModelFailure as error:
            if (reason := as_sentence(error)) != failed[image]:
                unchecked.append(f"why the model failed on image '{image}': here, {reason} Look at it yourself")
        else:
            problems.append(f"image '{image}' is left out by the run, but the model does not fail on it")
    return Outcome(f"the model fails on {len(failed)} images, as in the run", problems, unchecked)


def _name(row: StoredRow) -> Name:
    return row["label"], row["bundle"], row["infill"]


def _choices(
    plan: EvaluationPlan, images: UnitImages, stored: Mapping[str, Mapping[Name, StoredRow]], tolerance: Tolerance
) -> dict[str, Choice]:
    """The labels and predictions of the run, of those images where rounding alone may have chosen others here."""
    prob, choices, slack = probabilities(plan.model, images.inputs), dict[str, Choice](), 2 * tolerance.value
    for image, scores, labels in zip(images.ids, prob, choose_labels(prob, plan.settings.labels), strict=True):
        rows = stored[image].values()
        taken = {row["label"] for row in rows if row["error"] != NO_LABEL}
        predictions = {row["prediction"] for row in rows}
        if len(predictions) != 1 or not taken | predictions <= set(range(len(scores))):
            continue  # no model gives such rows
        choice = Choice(tuple(sorted(taken, key=lambda label: -scores[label])), predictions.pop())
        among = list(choice.labels if plan.settings.renormalise and taken else range(len(scores)))
        here = Choice(tuple(labels.tolist()), max(among, key=lambda label: scores[label]))
        alike = choice.prediction in among and scores[here.prediction] - scores[choice.prediction] <= slack
        changed = set(here.labels) != taken or here.prediction != choice.prediction
        if changed and alike and as_probable(plan.settings.labels, scores, here.labels, taken, slack):
            choices[image] = choice
    return choices


class _Off(NamedTuple):
    """A column that differs."""

    column: str
    by: float = np.inf
    undecided: bool = False  # whether an honest run may differ so


@dataclass(frozen=True)
class _ImageRows:
    """The rows of one image, stored and recomputed."""

    image: str
    plan: EvaluationPlan
    stored: Mapping[Name, StoredRow]
    recomputed: Mapping[Name, StoredRow]
    tolerance: Tolerance

    def differences(self, *, undecided: bool) -> list[str]:
        """The columns that differ, or those about which rounding decides, in a sentence; none if there are none."""
        texts = list(self._texts(undecided=undecided))
        return [f"image '{self.image}': {'; '.join(texts)}"] if texts else []

    def _texts(self, *, undecided: bool) -> Iterator[str]:
        unmatched = [] if undecided else sorted(self.stored.keys() ^ self.recomputed.keys())
        if unmatched:
            label, bundle, _ = unmatched[0]
            yield f"{len(unmatched)} rows are missing or too many, such as label {label} of {bundle}"
        by_column: dict[str, list[float]] = {}
        shared = [name for name in self.recomputed if name in self.stored]
        for off in chain.from_iterable(self._off(self.stored[name], self.recomputed[name]) for name in shared):
            if off.undecided == undecided:
                by_column.setdefault(off.column, []).append(off.by)
        for column, offs in by_column.items():
            by = f", by up to {max(offs):.2g}" if np.isfinite(max(offs)) else ""
            yield f"{column} of {len(offs)} of {len(shared)} rows differs{by}"

    def _off(self, stored: StoredRow, recomputed: StoredRow) -> Iterator[_Off]:
        """The columns of a row that differ, and by how much."""
        yield from _apart("prob", stored, recomputed, self.tolerance.value)
        yield from (_Off(name) for name in _OF_THE_IMAGE if not _alike(stored[name], recomputed.get(name)))
        yield from (_Off(name) for name in _MAY_BE_MISSING if (stored[name] is None) != (recomputed[name] is None))
        drawn_here = not self.tolerance.same and recomputed["bundle"].startswith(CONTROL)
        if drawn_here and stored["map_digest"] != recomputed["map_digest"]:
            yield _Off("a control's map, drawn on another machine,", undecided=True)
            return
        yield from (_Off(name) for name in _OF_THE_MAP if not _alike(stored[name], recomputed.get(name)))
        if sorted(stored["flags"] or ()) != sorted(recomputed["flags"]):
            yield _Off("flags")
        yield from self._curves(stored, recomputed)
        for name in _LOGARITHMS:
            yield from _apart(name, stored, recomputed, self.tolerance.value / LEAST_AREA)

    def _curves(self, stored: StoredRow, recomputed: StoredRow) -> Iterator[_Off]:
        """The curve and the areas; the points of a curve that is refined may move by rounding."""
        steps = self.plan.settings.steps
        refined = steps is not None and steps.rule == "auto"
        moved, off = _on_curve(stored, recomputed)
        if not off <= self.tolerance.value or (moved and not refined):
            yield _Off("curve", off)
        elif moved and not self.tolerance.points_move:
            yield _Off("curve", off, undecided=True)
        names = ("insertion", "insertion_low", "insertion_high")
        yield from self._areas(names, "insertion_error", stored, recomputed, moved=moved and refined)
        yield from self._areas(("log_odds",), "log_odds_error", stored, recomputed, moved=moved and refined)
        largest = self.tolerance.value + ERROR_OFF * _error(recomputed, "deletion_error")
        moved = refined and bool(list(_apart("deletion_error", stored, recomputed, largest)))  # its points are not kept
        yield from self._areas(("deletion",), "deletion_error", stored, recomputed, moved=moved)

    def _areas(
        self, names: Sequence[str], error_name: str, stored: StoredRow, recomputed: StoredRow, *, moved: bool
    ) -> Iterator[_Off]:
        """Areas and their sampling error, which excuses a difference where points have moved."""
        most, error = self.tolerance.value * (ODDS_OFF if names[0] in _LOG_ODDS else 1), _error(recomputed, error_name)
        for name in names:
            for off in _apart(name, stored, recomputed, most):
                excused = moved and off.by <= most + 2 * error
                if not (excused and self.tolerance.points_move):
                    yield off._replace(undecided=excused)
        for off in _apart(error_name, stored, recomputed, most + (error if moved else ERROR_OFF * error)):
            yield off._replace(undecided=moved)


def _error(row: StoredRow, name: str) -> float:
    """The error of an area, or the largest of several; 0 if there is none."""
    return float(np.nan_to_num(np.array(row[name], np.float64)).max(initial=0.0))


def _apart(name: str, stored: StoredRow, recomputed: StoredRow, most: float) -> Iterator[_Off]:
    """The column if it is off by more than `most`; it holds a number or a list of them, None counts as NaN."""
    first, second = (np.atleast_1d(np.array(row.get(name), np.float64)) for row in (stored, recomputed))
    if name in _LOGARITHMS:  # compared as shares, which are as exact as the probability
        first, second = np.exp(-first), np.exp(-second)
    if first.shape != second.shape or (np.isnan(first) != np.isnan(second)).any():
        yield _Off(name)
    elif not np.isnan(first).all():
        off = float(np.nanmax(np.abs(first - second)))
        if not off <= most:
            yield _Off(name, off)


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
    slack, problems, unchecked = noise if where == here else OTHER, list[str](), list[str]()
    undecided = TIMES_OFF if where.get("precision") == "strict" else TIMES_UNDECIDED
    for name in ("reference", "rows"):
        if getattr(now, name) != getattr(then, name):
            problems.append(f"the {name} of its error is {getattr(then, name)}, expected {getattr(now, name)}")
    for name in (field.name for field in fields(Runtime) if field.name not in ("reference", "rows", "note")):
        stored, measured = getattr(then, name), getattr(now, name)
        if not _within(stored, measured, undecided, slack):
            problems.append(f"its error '{name}' is {stored}, measured anew {measured}")
        elif not _within(stored, measured, TIMES_OFF, slack):
            unchecked.append(f"the runtime's error '{name}' is {stored}, measured anew {measured}: the GPU may have "
                             "used other kernels; verify again with as many workers as the run had")  # fmt: skip
    raised = recorded.run["environment"].get("precision") != where.get("precision")
    if (then.note is not None) != raised:
        problems.append(f"its note is {then.note!r}, but the precision was {'' if raised else 'not '}raised")
    if raised and then.note:
        unchecked.append(f"why the precision was raised, '{then.note}': look at it yourself")
    return Outcome("has the error that is recorded", problems, unchecked)


def _within(stored: float | None, measured: float | None, times: float, slack: float) -> bool:
    if stored is None or measured is None:
        return False
    return measured / times - slack <= stored <= times * measured + slack
