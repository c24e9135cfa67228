"""Checks of a run's stored rows by themselves: each belongs to a unit, and agrees with its curve and formulas."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

import numpy as np

from auditkit.errors import AuditError
from auditkit.metrics.curves import area, log_odds, sampled_errors, uniform_counts
from auditkit.metrics.faithfulness import completeness, soundness
from auditkit.metrics.label_specificity import MOST_LABELS
from auditkit.runs.evaluation.measure import Row
from auditkit.runs.evaluation.settings import CurvePair, curve_pairs
from auditkit.runs.folder.parquet import failed_images
from auditkit.runs.folder.store import MissingUnit
from auditkit.verdict.verify.run_record import ROW_KEY, Outcome, RecordedRun, StoredRow

FLOAT32 = 1e-6  # curves are stored in float32, their areas in float64
FORMULA = 1e-9
MOST_UNSATURATED = 0.5  # of a curve whose log-odds follow from its probabilities: their sum may be off 1 by 0.1
ODDS = 0.25  # what that makes of log-odds at most
ROUNDED = 0.01  # relative; estimated errors depend on the odds of probabilities close to 1
# Columns of a row without figures that have no value.
FIGURES = tuple(field.name for field in fields(Row) if field.default is None
                and field.name not in ("error", "truth", "prediction"))  # fmt: skip
BATCH = 1024  # rows that are looked at together: as Python objects they take much memory


def check_units(recorded: RecordedRun) -> Outcome:
    """Units that are missing, damaged, superfluous or of another run."""
    stored_keys, expected = recorded.store.keys(), set(recorded.units.values())
    others = [key for key in stored_keys if key not in expected]
    if recorded.results.run.preliminary is not None:
        others = []  # measured since
    problems = [f"items/{key}.parquet belongs to no unit of the run" for key in others]
    for unit, key in recorded.units.items():
        if key not in stored_keys:
            problems.append(f"the unit of images {unit.start} to {unit.stop - 1} is missing (items/{key}.parquet)")
        else:
            problems += _damage(recorded, key)
    return Outcome(f"{len(recorded.units)} units, each sealed with its key", problems)


def _damage(recorded: RecordedRun, key: str) -> list[str]:
    try:
        recorded.store.read(key)
    except MissingUnit:
        return [f"items/{key}.parquet is torn, was changed, or holds another unit"]
    except (KeyError, TypeError, OSError) as error:  # sealed, but not by auditkit
        return [f"items/{key}.parquet was not written by auditkit ({type(error).__name__})"]
    return []


def check_rows(recorded: RecordedRun) -> Outcome:
    """Rows that contradict themselves, occur twice or are missing."""
    count, problems = 0, list[str]()
    by_infill = {curves.insertion.infill: curves for curves in curve_pairs(recorded.settings)}
    for unit, table in zip(recorded.units, recorded.store.tables(recorded.units.values()), strict=True):
        counts = Counter(zip(*(table.column(name).to_pylist() for name in ROW_KEY), strict=True))
        images, labels = {key[0] for key in counts}, dict[str, set[int]]()
        for image, label, *_ in counts:
            labels.setdefault(image, set()).add(label)
        failed = [entry.image for entry in failed_images(table)]
        if len(images) + len(failed) != len(unit) or images & set(failed) or len(set(failed)) < len(failed):
            what = f"images {unit.start} to {unit.stop - 1} are {len(unit)}, but {len(images)} have rows"
            problems.append(f"{what} and {len(failed)} are said to be unusable")
        problems += [f"{_row_name(dict(zip(ROW_KEY, key, strict=True)))} occurs twice"
                     for key, number in counts.items() if number > 1]  # fmt: skip
        for batch in table.to_batches(BATCH):
            rows = batch.to_pylist()
            count += len(rows)
            for row in rows:
                texts = list(_contradictions(row, by_infill, recorded))
                texts = texts or list(_odds(row, labels[row["image"]], recorded))
                problems += [f"{_row_name(row)}: {text}" for text in texts]
            problems += _ratios(rows, recorded) + _errors(rows, recorded)
    return Outcome(f"{count:,} fit their curves and formulas", problems)


def _row_name(row: StoredRow) -> str:
    return f"image '{row['image']}', label {row['label']}, {row['bundle']}, {row['infill']}"


def _contradictions(row: StoredRow, by_infill: Mapping[str, CurvePair], recorded: RecordedRun) -> Iterator[str]:
    curves = by_infill.get(row["infill"])
    if curves is None:
        yield "the run has no such infill"
        return
    if row["error"] is not None:
        if any(row[name] is not None for name in FIGURES):
            yield "it has figures, and a reason for having none"
        return
    counts, values = np.asarray(row["keep_counts"] or (), np.int64), np.asarray(row["curve"] or (), np.float64)
    if row["insertion"] is None or row["prob"] is None or not 0 < len(counts) == len(values):
        yield "it has no figure and no reason for that"
        return
    protocol = curves.insertion.protocol
    curve_area = protocol.area(counts, values) if protocol is not None else area(counts - recorded.span.low, values)
    if not abs(curve_area - row["insertion"]) <= FLOAT32:
        yield f"insertion is {row['insertion']:.6g}, its curve's area {curve_area:.6g}"
    elif counts[-1] == recorded.span.pixels and not abs(values[-1] - row["prob"]) <= FLOAT32:
        yield f"the probability is {row['prob']:.6g}, its curve ends at {values[-1]:.6g}"


def _odds(row: StoredRow, labels: set[int], recorded: RecordedRun) -> Iterator[str]:
    """Areas of log-odds that are not those of the image's labels, or of the row's own label not that of its curve."""
    if row["error"] is not None:
        return
    odds, expected = row["log_odds"] or (), len(labels) if 1 < len(labels) <= MOST_LABELS else 0
    if {len(odds), len(row["log_odds_error"] or ())} != {expected} or not np.isfinite(odds).all():
        yield f"it has no areas of log-odds of {expected} labels"
        return
    values = np.asarray(row["curve"] or (), np.float64)
    if not expected or recorded.settings.protocol is not None or values.max(initial=0.0) > MOST_UNSATURATED:
        return
    curve_area = area(np.asarray(row["keep_counts"]) - recorded.span.low, log_odds(values, 1 - values))
    own = odds[sorted(labels).index(row["label"])]
    if not abs(curve_area - own) <= ODDS:
        yield f"its log-odds are {own:.6g}, those of its curve {curve_area:.6g}"


def _ratios(rows: Sequence[StoredRow], recorded: RecordedRun) -> list[str]:
    """Rows whose alpha or beta is not what the formulas give."""
    eps1, eps2 = recorded.settings.eps1, recorded.settings.eps2
    measured = [row for row in rows if row["error"] is None and None not in (row["insertion"], row["prob"])]
    if eps1 is None or eps2 is None:
        return [f"{_row_name(row)}: it has alpha or beta, which the run leaves out" for row in measured
                if (row["alpha"], row["beta"]) != (None, None)]  # fmt: skip
    if not measured:
        return []
    insertion, prob = np.array([(row["insertion"], row["prob"]) for row in measured]).T
    try:
        expected = {"alpha": completeness(insertion, prob, eps1), "beta": soundness(insertion, prob, eps2)}
    except AuditError as error:
        return [f"in the unit of image '{measured[0]['image']}': {error}"]
    problems = []
    for name, values in expected.items():
        problems += [
            f"{_row_name(row)}: {name} is {row[name]}, its insertion and probability give {value:.6g}"
            for row, value in zip(measured, values, strict=True)
            if row[name] is None or not abs(row[name] - value) <= FORMULA
        ]
    return problems


def _errors(rows: Sequence[StoredRow], recorded: RecordedRun) -> list[str]:
    """Rows of fixed steps whose points or error do not follow from their curves; other rules need the model."""
    steps, span = recorded.settings.steps, recorded.span
    if steps is None or steps.rule == "auto" or recorded.settings.protocol is not None:
        return []
    width = span.high - span.low
    counts = uniform_counts(width, steps.count if steps.rule == "uniform" else width) + span.low
    measured = [row for row in rows if row["error"] is None and row["curve"] is not None]
    fitting, problems = list[StoredRow](), list[str]()
    for row in measured:
        if row["keep_counts"] == counts.tolist() and len(row["curve"]) == len(counts):
            fitting.append(row)
        else:
            problems.append(f"{_row_name(row)}: its points are not those of steps {steps}")
    if not fitting:
        return problems
    expected = sampled_errors(counts, np.array([row["curve"] for row in fitting])[..., None])[:, 0]
    errors = np.array([row["insertion_error"] for row in fitting], np.float64)
    off = ~np.isclose(errors, expected, rtol=ROUNDED, atol=FLOAT32, equal_nan=True)
    return problems + [
        f"{_row_name(row)}: its error is {row['insertion_error']}, its curve gives {value:.6g}"
        for row, value, differs in zip(fitting, expected, off, strict=True) if differs
    ]  # fmt: skip
