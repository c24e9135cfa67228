"""Checks of a run by itself: its units, rows, results, verdict and report belong together."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date

import numpy as np

from auditkit.data.bundles import open_bundle
from auditkit.errors import AuditError
from auditkit.metrics.curves import area, sampled_errors, uniform_counts
from auditkit.metrics.faithfulness import completeness, soundness
from auditkit.records import to_json
from auditkit.report.html import render_html
from auditkit.report.load_run import load
from auditkit.runs.evaluation.plan import RunRecord, without_paths
from auditkit.runs.evaluation.settings import CurvePair, curve_pairs
from auditkit.runs.folder import provenance
from auditkit.runs.folder.figures import RandomisationStage
from auditkit.runs.randomisation import stage_result
from auditkit.runs.summary.results import results, without_figures
from auditkit.runs.summary.summarise import summarise
from auditkit.verdict.audit import MAPS, POLICY, RANDOMISED, REPORT
from auditkit.verdict.decision import judge
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify.run_record import ROW_KEY, Outcome, RecordedRun, StoredRow, differences

FLOAT32 = 1e-6  # curves are stored in float32, their areas in float64
FORMULA = 1e-9
ROUNDED = 0.01  # relative; estimated errors depend on the odds of probabilities close to 1
NOT_SUMMED_UP = ("tool", "runtime", "checks", "verdict", "verdict_reason", "policy", "software", "explained",
                 "randomisation", "baseline")  # entries of results.json that do not follow from rows  # fmt: skip


def check_settings(recorded: RecordedRun) -> Outcome:
    """Whether run.json, which is written first, and results.json agree."""
    agree, about, results = "agree in run.json and results.json", without_paths(recorded.about), recorded.results
    if results.policy is None:
        return agree, [f"run.json: {difference}" for difference in differences(recorded.run, about)]
    # A run may raise the precision and make maps after run.json is written.
    machine = {name: value for name, value in about["environment"].items() if name != "precision"}
    expected = {"subject": about["subject"], "policy": results.policy.sha256, "environment": machine}
    if results.explained is None:
        expected["bundles"] = about["bundles"]
    else:
        expected["maps"] = {"method": results.explained.method}
    versions = {name: about["environment"][name] for name in ("auditkit", "onnxruntime")}
    problems = [f"run.json: {text}" for text in differences(recorded.run, expected)]
    problems += [f"results.json: {text}" for text in differences(recorded.plain["software"], versions, "software")]
    return agree, problems


def check_units(recorded: RecordedRun) -> Outcome:
    """Units that are missing, damaged, superfluous or of another run."""
    stored_keys, expected = recorded.store.keys(), set(recorded.units.values())
    problems = [f"items/{key}.parquet belongs to no unit of the run" for key in stored_keys if key not in expected]
    for unit, key in recorded.units.items():
        if key not in stored_keys:
            problems.append(f"the unit of images {unit.start} to {unit.stop - 1} is missing (items/{key}.parquet)")
        else:
            problems += _damage(recorded, key)
    return f"{len(recorded.units)} units, each sealed with its key", problems


def _damage(recorded: RecordedRun, key: str) -> list[str]:
    try:
        intact = recorded.store.has(key)
    except (KeyError, TypeError, OSError) as error:  # sealed, but not by auditkit
        return [f"items/{key}.parquet was not written by auditkit ({type(error).__name__})"]
    return [] if intact else [f"items/{key}.parquet is torn, was changed, or holds another unit"]


def check_rows(recorded: RecordedRun) -> Outcome:
    """Rows that contradict themselves or occur twice."""
    count, problems = 0, list[str]()
    by_infill = {curves.insertion.infill: curves for curves in curve_pairs(recorded.settings)}
    for table in recorded.store.tables(recorded.units.values()):
        rows = table.to_pylist()
        count += len(rows)
        keys = [tuple(row[name] for name in ROW_KEY) for row in rows]
        counts = Counter(keys)
        for key, row in zip(keys, rows, strict=True):
            problems += [f"{_row_name(row)} occurs twice"] if counts[key] > 1 else []
            problems += [f"{_row_name(row)}: {problem}" for problem in _contradictions(row, by_infill, recorded)]
        problems += _ratios(rows, recorded) + _errors(rows, recorded)
    return f"{count:,} fit their curves and formulas", problems


def _row_name(row: StoredRow) -> str:
    return f"image '{row['image']}', label {row['label']}, {row['bundle']}, {row['infill']}"


def _contradictions(row: StoredRow, by_infill: Mapping[str, CurvePair], recorded: RecordedRun) -> Iterator[str]:
    curves = by_infill.get(row["infill"])
    if curves is None:
        yield "the run has no such infill"
        return
    if row["error"] is not None:
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


def _ratios(rows: Sequence[StoredRow], recorded: RecordedRun) -> list[str]:
    """Rows whose alpha or beta is not what the formulas give."""
    eps1, eps2 = recorded.settings.eps1, recorded.settings.eps2
    measured = [row for row in rows if row["error"] is None and None not in (row["insertion"], row["prob"])]
    if eps1 is None or eps2 is None or not measured:
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


def check_summary(recorded: RecordedRun) -> Outcome:
    """Entries of results.json that do not follow from the stored rows."""
    runtime, record = recorded.results.runtime, RunRecord.of(recorded.results)
    if runtime is None:
        summary = without_figures(record.subject, recorded.settings, record.environment)
    else:
        tables = recorded.store.tables
        summary = results(summarise(lambda: tables(recorded.units.values()), recorded.settings, runtime,
                                    record))  # fmt: skip
    left_out = {*NOT_SUMMED_UP, *(("limitations",) if recorded.results.tool != summary.tool else ())}
    expected = {name: value for name, value in summary.to_json().items() if name not in left_out}
    figures = sum(map(len, (summary.metrics, summary.controls, summary.comparisons, summary.classes)))
    problems = [f"results.json: {text}" for text in differences(recorded.plain, expected)]
    return f"{figures:,} figures follow from the rows", problems


def check_verdict(recorded: RecordedRun) -> Outcome:
    """Checks, verdict and policy that do not follow from the results."""
    results = recorded.results
    if results.policy is None:
        raise ValueError("the run has no policy")
    policy = parse_policy(results.policy.text, POLICY)
    problems = list(differences(recorded.plain["policy"], to_json(policy.to_record()), "policy"))
    if (recorded.store.folder / POLICY).read_bytes() != policy.text.encode():
        problems.append(f"the policy is not that of {POLICY}")
    day = date.fromisoformat((results.run.ended or "")[:10])  # on which suppressions were in force or not
    judged = judge(policy, results, day, results.run.fail_on).to_json()
    expected = {name: judged[name] for name in ("checks", "verdict", "verdict_reason")}
    problems += differences(recorded.plain, expected)
    about = f"follows from results and policy, {len(results.checks)} checks"
    return about, [f"results.json: {problem}" for problem in problems]


def stages(recorded: RecordedRun) -> tuple[RandomisationStage, ...]:
    """The stages of re-initialised models; none if the run has none."""
    randomisation = recorded.results.randomisation
    return () if randomisation is None else randomisation.series or ()


def check_stages(recorded: RecordedRun) -> Outcome:
    """Stages of re-initialised models whose figures do not follow from their stored maps."""
    folder, problems = recorded.store.folder, list[str]()
    randomisation = recorded.results.randomisation
    confidence = (None if randomisation is None else randomisation.confidence) or 0.0
    original = open_bundle(folder / MAPS)
    for entry in stages(recorded):
        changed = open_bundle(folder / RANDOMISED / f"stage-{entry.stage}")
        originals = [original.get(heatmap.image, heatmap.label) for heatmap in changed.entries]
        maps = [changed.read(heatmap) for heatmap in changed.entries]
        expected = stage_result(entry.stage, entry.layers, entry.share, originals, maps, confidence)
        problems += differences(to_json(entry), to_json(expected), f"randomisation, stage {entry.stage}")
    about = f"{len(stages(recorded))} follow from the maps of re-initialised models"
    return about, [f"results.json: {problem}" for problem in problems]


def unchecked(recorded: RecordedRun) -> list[str]:
    """Contents of an audit that nothing recomputes."""
    parts = [(stages(recorded), "how the maps of re-initialised models were made"),
             (recorded.results.baseline, "what has changed since the baseline")]  # fmt: skip
    metadata = "times, command, commit and versions, which nothing but a signature on SHA256SUMS vouches for"
    return [*(text for value, text in parts if value), "the pictures of the gallery", metadata]


def rendering_obstacle(recorded: RecordedRun) -> str:
    """Why the report cannot be rendered as it was; empty if it can."""
    then, now = recorded.results.software or {}, provenance.software()
    changed = [name for name in now if name != "platform" and then.get(name) != now[name]]
    return f"{changed[0]} was {then.get(changed[0])}, and is {now[changed[0]]} here" if changed else ""


def check_report(recorded: RecordedRun) -> Outcome:
    """Whether the report shows the stored results."""
    about, folder = "shows these results, byte for byte", recorded.store.folder
    try:
        report = render_html(load(folder)).encode()
    except Exception as error:  # results that auditkit wrote always render
        return about, [f"{REPORT} cannot be rendered from these results ({type(error).__name__}: {error})"]
    return about, [] if (folder / REPORT).read_bytes() == report else [f"{REPORT} does not show these results"]
