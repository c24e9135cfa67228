"""A run looked at by itself: its parts are its own, its rows fit, and its results follow from them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.errors import AuditError
from auditkit.metrics.curves import area, sampled_errors, uniform_counts
from auditkit.metrics.faithfulness import alpha, beta
from auditkit.runs.evaluation.plan import without_paths
from auditkit.runs.evaluation.settings import CurvePair
from auditkit.runs.summary.results import results, without_figures
from auditkit.runs.summary.summarise import summarise
from auditkit.verdict.verify.run_record import Recorded, differences

FLOAT32 = 1e-6  # curves are stored in float32, their areas in float64
FORMULA = 1e-9
ROUNDED = 0.01  # of an error, which the odds of probabilities close to 1 go into
NOT_SUMMED_UP = ("tool", "runtime", "checks", "verdict", "verdict_reason", "policy", "software", "explained",
                 "randomisation", "baseline")  # entries of results.json that rows do not tell  # fmt: skip


def settings(recorded: Recorded) -> list[str]:
    """What run.json, which was written first, says otherwise than results.json, and the latter than itself."""
    about, results = without_paths(recorded.about), recorded.results
    if results.policy is None:
        return [f"run.json: {said}" for said in differences(recorded.run, about)]
    # In the course of a run, the precision may be raised and maps come to be.
    machine = {name: value for name, value in about["environment"].items() if name != "precision"}
    expected = {"subject": about["subject"], "policy": results.policy.sha256, "environment": machine}
    if results.explained is None:
        expected["bundles"] = about["bundles"]
    else:
        expected["maps"] = {"method": results.explained.method}
    versions = {name: about["environment"][name] for name in ("auditkit", "onnxruntime")}
    in_results = differences(recorded.plain["software"], versions, "software")
    return [*(f"run.json: {text}" for text in differences(recorded.run, expected)),
            *(f"results.json: {text}" for text in in_results)]  # fmt: skip


def parts(recorded: Recorded) -> list[str]:
    """Units that are missing, damaged, of another run, or too many."""
    there, expected = recorded.store.keys(), set(recorded.units.values())
    found = [f"items/{key}.parquet belongs to no unit of the run" for key in there if key not in expected]
    for unit, key in recorded.units.items():
        if key not in there:
            found.append(f"the unit of images {unit.start} to {unit.stop - 1} is missing (items/{key}.parquet)")
        elif why := _unsound(recorded, key):
            found.append(f"items/{key}.parquet {why}")
    return found


def _unsound(recorded: Recorded, key: str) -> str:
    try:
        if recorded.store.has(key):
            return ""
    except (KeyError, TypeError, OSError) as error:  # sealed, but not by auditkit
        return f"was not written by auditkit ({type(error).__name__})"
    return "is torn, was changed, or holds another unit"


def rows(recorded: Recorded) -> tuple[int, list[str]]:
    """How many rows there are, and those whose figures contradict each other or stand there twice."""
    count, found = 0, list[str]()
    by_infill = {lane.insertion.infill: lane for lane in recorded.curve_pairs}
    for table in recorded.store.tables(recorded.units.values()):
        listed = table.to_pylist()
        count += len(listed)
        names = [(row["image"], row["label"], row["bundle"], row["infill"]) for row in listed]
        found += [f"{_told(row)} stands there twice" for row, name in zip(listed, names, strict=True)
                  if names.count(name) > 1] if len(set(names)) < len(names) else []  # fmt: skip
        found += [f"{_told(row)}: {said}" for row in listed for said in _contradictions(row, by_infill, recorded)]
        found += _ratios(listed, recorded) + _errors(listed, recorded)
    return count, found


def _told(row: Mapping[str, Any]) -> str:
    return f"image '{row['image']}', label {row['label']}, {row['bundle']}, {row['infill']}"


def _contradictions(row: Mapping[str, Any], by_infill: Mapping[str, CurvePair], recorded: Recorded) -> Iterator[str]:
    """What a row says against itself."""
    lane = by_infill.get(row["infill"])
    if lane is None:
        yield "the run has no such infill"
        return
    if row["error"] is not None:
        return
    counts, values = np.asarray(row["keep_counts"] or (), np.int64), np.asarray(row["curve"] or (), np.float64)
    if row["insertion"] is None or row["prob"] is None or not 0 < len(counts) == len(values):
        yield "it has no figure and no reason for that"
    elif not abs(_area(counts, values, lane, recorded) - row["insertion"]) <= FLOAT32:
        yield f"insertion is {row['insertion']:.6g}, its curve's area {_area(counts, values, lane, recorded):.6g}"
    elif counts[-1] == recorded.span.pixels and not abs(values[-1] - row["prob"]) <= FLOAT32:
        yield f"the probability is {row['prob']:.6g}, its curve ends at {values[-1]:.6g}"


def _area(counts: Array, values: Array, lane: CurvePair, recorded: Recorded) -> float:
    protocol, low = lane.insertion.protocol, recorded.span.low
    return float(protocol.area(counts, values) if protocol is not None else area(counts - low, values))


def _ratios(listed: Sequence[Mapping[str, Any]], recorded: Recorded) -> list[str]:
    """Rows whose alpha or beta is not what the formulas give."""
    eps1, eps2 = recorded.settings.eps1, recorded.settings.eps2
    good = [row for row in listed if row["error"] is None and None not in (row["insertion"], row["prob"])]
    if eps1 is None or eps2 is None or not good:
        return []
    shown, whole = (np.array([row[name] for row in good]) for name in ("insertion", "prob"))
    try:
        expected = {"alpha": alpha(shown, whole, eps1), "beta": beta(shown, whole, eps2)}
    except AuditError as error:
        return [f"in the unit of image '{good[0]['image']}': {error}"]
    return [
        f"{_told(row)}: {name} is {row[name]}, its insertion and probability give {value:.6g}"
        for name, values in expected.items() for row, value in zip(good, values, strict=True)
        if row[name] is None or not abs(row[name] - value) <= FORMULA
    ]  # fmt: skip


def _errors(listed: Sequence[Mapping[str, Any]], recorded: Recorded) -> list[str]:
    """Rows by a given number of steps whose points or error are not those of their curves; other rules ask more."""
    steps, span = recorded.settings.steps, recorded.span
    if steps is None or steps.rule == "auto" or recorded.settings.protocol is not None:
        return []
    width = span.high - span.low
    counts = uniform_counts(width, steps.count if steps.rule == "uniform" else width) + span.low
    good = [row for row in listed if row["error"] is None and row["curve"] is not None]
    fits = [row["keep_counts"] == counts.tolist() and len(row["curve"]) == len(counts) for row in good]
    whole = [row for row, fit in zip(good, fits, strict=True) if fit]
    found = [f"{_told(row)}: its points are not those of steps {steps}"
             for row, fit in zip(good, fits, strict=True) if not fit]  # fmt: skip
    if not whole:
        return found
    expected = sampled_errors(counts, np.array([row["curve"] for row in whole])[..., None])[:, 0]
    said = np.array([row["insertion_error"] for row in whole], np.float64)
    off = ~np.isclose(said, expected, rtol=ROUNDED, atol=FLOAT32, equal_nan=True)
    return found + [
        f"{_told(row)}: its error is {row['insertion_error']}, its curve gives {value:.6g}"
        for row, value, differs in zip(whole, expected, off, strict=True) if differs
    ]  # fmt: skip


def summed_up(recorded: Recorded) -> tuple[int, list[str]]:
    """How many figures there are, and entries of results.json that are not what the stored rows give."""
    runtime, about = recorded.runtime, recorded.about
    if runtime is None:
        summary = without_figures(about["subject"], recorded.settings, about["environment"])
    else:
        tables = recorded.store.tables
        summary = results(summarise(lambda: tables(recorded.units.values()), recorded.settings, runtime, about))
    left_out = {*NOT_SUMMED_UP, *(("limitations",) if recorded.results.tool != summary.tool else ())}
    expected = {name: value for name, value in summary.to_json().items() if name not in left_out}
    entries = (summary.metrics, summary.controls, summary.comparisons, summary.classes)
    return sum(map(len, entries)), [f"results.json: {text}" for text in differences(recorded.plain, expected)]
