"""Two runs side by side: paired differences on the images that both have, and what prevents them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import BadInput
from auditkit.metrics.protocols import infill_of
from auditkit.metrics.statistics import Interval, paired_difference
from auditkit.metrics.table import METRICS, title
from auditkit.metrics.values import LABELS_PER_IMAGE, NotAssessed, Values, paired
from auditkit.runs.comparison.comparability import SIDES, caveats, common_infills, same_model, shared_images
from auditkit.runs.comparison.finished_run import FinishedRun, read_run
from auditkit.runs.folder.examination import CueKind, Finding
from auditkit.runs.folder.figures import Severity
from auditkit.runs.folder.results import CheckChange, Comparison, DifferenceResult, FindingChange, Results
from auditkit.runs.summary.wording import why_not_assessed

_Cue = tuple[CueKind, int | None, str, int]  # kind, label, place, number


@dataclass(frozen=True)
class _Pair:
    """Two runs, and the number that each of their images has among the shared ones; -1 where it is not shared."""

    a: FinishedRun
    b: FinishedRun
    numbers: tuple[Array, Array]
    images: int  # shared


def compare(run_a: Path, run_b: Path) -> Comparison:
    """What changed from the run in one folder to that in another; refused where figures are not comparable."""
    a, b = read_run(run_a), read_run(run_b)
    infills, notes = common_infills(a.results, b.results)
    bundles = _common_bundles(a, b, notes)
    images = shared_images(a, b, notes)
    pair = _Pair(a, b, (_numbers(a, images), _numbers(b, images)), len(images))
    accuracy = _difference(pair, _hits(a), _hits(b))
    differences = [] if accuracy is None else [accuracy]
    for names in bundles:
        for infill in infills:
            differences += _differences(pair, names, infill, notes)
    if not differences:
        raise BadInput(f"the runs have no metric in common: {'; '.join(notes)}.")
    notes += caveats(a, b, images)
    if any(entry.change is not None for entry in differences):
        what = "differences are shown, each with its own interval; some may exclude 0 by chance"
        notes.append(f"{len(differences)} {what}")
    only_a, only_b = (len(run.table.images) - len(images) for run in (a, b))
    before, after = ({check.id: check.status for check in run.results.checks} for run in (a, b))
    checks = tuple(CheckChange(name, before.get(name), after.get(name)) for name in before | after)
    return Comparison(
        a.identity(),
        b.identity(),
        len(images),
        only_a,
        only_b,
        tuple(differences),
        checks,
        tuple(notes),
        _finding_changes(a.results, b.results),
    )


def _finding_changes(a: Results, b: Results) -> tuple[FindingChange, ...]:
    """What became of each finding about the model, the most severe first."""
    before, after = _by_cue(a), _by_cue(b)
    names, changes = b.subject.class_names or a.subject.class_names, list[FindingChange]()
    for cue in before | after:
        label = cue[1]
        label_name = None if label is None or label >= len(names) else names[label]
        changes.append(FindingChange(before.get(cue), after.get(cue), label_name))
    severities = get_args(Severity)
    return tuple(sorted(changes, key=lambda change: -max(
        severities.index(finding.severity) for finding in (change.before, change.after) if finding
    )))  # fmt: skip


def _by_cue(results: Results) -> dict[_Cue, Finding]:
    """The findings by kind, label, place and number among those with all of these."""
    by_cue = dict[_Cue, Finding]()
    for finding in results.examination.findings if results.examination else ():
        what = (finding.kind, finding.label, finding.place)
        number = sum(cue[:3] == what for cue in by_cue)
        by_cue[*what, number] = replace(finding, examples=(), groups=None)
    return by_cue


def _common_bundles(a: FinishedRun, b: FinishedRun, notes: list[str]) -> list[tuple[str, str]]:
    """Bundles by name where both runs have it; else the only ones."""
    both, sides = [name for name in a.table.bundles if name in b.table.bundles], list(zip(SIDES, (a, b), strict=True))
    if not both and len(a.table.bundles) == len(b.table.bundles) == 1:
        return [(a.table.bundles[0], b.table.bundles[0])]
    if not both:
        names = " and ".join(f"{side} has {', '.join(run.table.bundles) or 'no heatmaps'}" for side, run in sides)
        raise BadInput(f"no bundle is in both runs: {names}; give runs with bundles of the same name, or one each.")
    for side, run in sides:
        alone = [name for name in run.table.bundles if name not in both]
        if alone:
            notes.append(f"only {side} has {', '.join(alone)}")
    return [(name, name) for name in both]


def _numbers(run: FinishedRun, images: list[str]) -> Array:
    """The number of each of a run's images among those that are shared; -1 where it is not."""
    numbers = {name: number for number, name in enumerate(images)}
    return np.array([numbers.get(name, -1) for name in run.table.images])


def _differences(pair: _Pair, bundles: tuple[str, str], infill: str, notes: list[str]) -> Iterator[DifferenceResult]:
    first, second = pair.a.metrics(bundles[0], infill), pair.b.metrics(bundles[1], infill)
    missing: dict[str, list[str]] = {}
    for name in dict.fromkeys((*first, *second)):
        before, after = first.get(name), second.get(name)
        if METRICS[name].compared == "never":
            continue
        if isinstance(before, Values) and isinstance(after, Values):
            measured_infill = infill_of(name, infill, pair.a.results.settings.protocol)
            result = _difference(pair, before, after, bundles, measured_infill)
            if result is not None:
                yield result
                continue
        missing.setdefault(_why_missing(before, after), []).append(title(name))
    notes += [f"{bundles[1]} ({infill}), not compared: {', '.join(names)} ({why})" for why, names in missing.items()]


def _why_missing(before: Values | NotAssessed | None, after: Values | NotAssessed | None) -> str:
    """Why a metric has no difference."""
    reasons = {}
    for side, metric in zip(SIDES, (before, after), strict=True):
        if not isinstance(metric, Values):
            reasons[side] = "not measured" if metric is None else why_not_assessed(metric)
    if len(reasons) == len(SIDES) and len(set(reasons.values())) == 1:
        reasons = {"both runs": reasons[SIDES[0]]}
    return "; ".join(f"in {side}: {reason}" for side, reason in reasons.items()) or "no image has it in both runs"


def _noise(pair: _Pair, name: str) -> float:
    """How far both runtimes together were from strict float32 on the CPU, in such a figure."""
    if METRICS[name].compute is None:  # it does not follow from rows
        return 0.0
    runtimes = [run.results.runtime for run in (pair.a, pair.b) if run.results.runtime is not None]
    if METRICS[name].curve == "log_odds":
        return 2 * sum(runtime.log_odds or 0.0 for runtime in runtimes)  # a margin is a difference of two areas
    # Insertion's change stands in for metrics that are not taken from alpha or beta.
    return sum(runtime.changes.get(METRICS[name].curve, runtime.changes["insertion"]) for runtime in runtimes)


def _on_shared(values: Values, numbers: Array) -> Values:
    """The values on shared images, under the numbers that these have in both runs."""
    images = numbers[values.images]
    shared = images >= 0
    keys = images[shared] * LABELS_PER_IMAGE + values.keys[shared] % LABELS_PER_IMAGE
    return replace(values, keys=keys, images=images[shared], values=values.values[shared])


def _difference(
    pair: _Pair, before: Values, after: Values, bundles: tuple[str | None, str | None] = (None, None), infill: str = ""
) -> DifferenceResult | None:
    """Both means and the paired difference: by label where both have the same ones, else by image."""
    first, second = _on_shared(before, pair.numbers[0]), _on_shared(after, pair.numbers[1])
    if not np.array_equal(np.sort(first.keys), np.sort(second.keys)):
        first, second = _by_image(first, pair.images), _by_image(second, pair.images)
    settings = pair.a.results.settings

    def compute(later: Array, earlier: Array, images: Array) -> tuple[float, float, Interval]:
        interval = paired_difference(later, earlier, images, confidence=settings.confidence, method=settings.interval,
                                     seed=settings.seed)  # fmt: skip
        return float(earlier.mean()), float(later.mean()), interval

    result = paired(second, first, compute)
    if result is None:
        return None
    value_a, value_b, interval = result
    change = _change(interval, _noise(pair, before.name))
    better = None
    if change is not None and same_model(pair.a.results, pair.b.results):
        better = (change == "lower") == METRICS[before.name].lower_is_better
    return DifferenceResult(before.name, *bundles, infill, value_a, value_b, interval.value, interval.low,
                            interval.high, interval.confidence, interval.n, change, better, interval.note)  # fmt: skip


def _change(interval: Interval, noise: float) -> Literal["higher", "lower"] | None:
    """How the second run differs; None unless the interval excludes 0 and what runtimes may cause."""
    if interval.low is None or interval.high is None or not (interval.low > noise or interval.high < -noise):
        return None
    return "lower" if interval.value < 0 else "higher"


def _by_image(values: Values, images: int) -> Values:
    means = values.image_means(images)
    finite = np.flatnonzero(np.isfinite(means))
    return replace(values, keys=finite * LABELS_PER_IMAGE, images=finite, values=means[finite])


def _hits(run: FinishedRun) -> Values:
    """Whether the model is right on each image whose true label is given."""
    labelled = np.flatnonzero(np.isfinite(run.table.truth))
    right = (run.table.truth == run.table.prediction)[labelled].astype(np.float64)
    return Values("accuracy", labelled * LABELS_PER_IMAGE, labelled, right)
