"""The last screen of an audit: the answers, five figures beside their best control, and where the report is."""

from pathlib import Path
from typing import TYPE_CHECKING

from auditkit.cli import console

if TYPE_CHECKING:
    from auditkit.runs.folder.figures import MetricResult
    from auditkit.runs.folder.results import Results

_FIGURES = ("accuracy", "insertion", "worst_completeness", "worst_soundness", "label_specificity")
_INTERVALS = "bootstrap or Wilson: describes these images; test: decides a check, and is wider"
_INSTEAD = {"label_specificity": "relevance_gain"}  # where the first was not assessed


def print_last_screen(results: "Results", out: Path, *, verbose: bool = False) -> None:
    """Print what an audit found; identifiers of checks only if `verbose`."""
    from auditkit.report import answers, sections
    from auditkit.report.notices import notices

    shown = sections.with_tested_intervals(results)
    faithful, relying = answers.faithful(shown), answers.relies_on(shown)
    taken = [("images", sections.taken(results))] if results.run.taken else []
    console.print_fields([
        (faithful.word.word.upper(), f"{answers.FAITHFUL} {faithful.text}"), *taken,
        *((notice.title.lower(), notice.text) for notice in notices(results)),
        *((reason.word.word.lower(), f"{reason.text} {reason.figures}") for reason in faithful.reasons
          if reason.word.tone != "pass"),
        ("how sure", faithful.sure),
        ("relies on", f"{relying.text} {relying.sure}".strip()),
        *(("exit code", text) for text in answers.gate(shown)),
    ])  # fmt: skip
    rows = [_row(metric, shown) for metric in _chosen(shown)]
    if rows:
        console.print_table(["figure", "value", "best control", "difference", "which control"], rows)
    if verbose:
        ids = [[check.id, check.status, sections.observed(check), sections.limit(check)] for check in results.checks]
        console.print_table(["check", "status", "observed", "limit"], ids)
    legend = [("intervals", _INTERVALS)] if rows else []
    console.print_fields([
        *legend,
        *(("next", step) for step in answers.next_steps(shown)),
        *(("reproduction", entry.text) for entry in results.reproductions),
        *(("flag", text) for text in sections.flags(results)),
        ("report", str(out / "report.html")),
    ])  # fmt: skip


def _chosen(results: "Results") -> "list[MetricResult]":
    """The five figures of each set of heatmaps, as far as they are known."""
    from auditkit.report.sections import key_figures

    known = {(metric.bundle, metric.name): metric for metric in key_figures(results) if metric.value is not None}
    chosen = []
    for bundle in dict.fromkeys(bundle for bundle, _ in sorted(known, key=lambda key: key[0] is not None)):
        for name in _FIGURES:
            metric = known.get((bundle, name)) or known.get((bundle, _INSTEAD.get(name, "")))
            chosen += [metric] if metric else []
    return chosen


def _row(metric: "MetricResult", results: "Results") -> list[str]:
    """A figure, its best control and the difference, for a table."""
    from auditkit.metrics.table import title
    from auditkit.report import sections
    from auditkit.report.formatting import marked_interval, number, signed, source

    control, pair = sections.best_control(metric, results)
    several = len(sections.bundles(results)) > 1 and metric.bundle
    name = f"{title(metric.name)}, {source(metric.bundle)}" if several else title(metric.name)
    value, beside = number(metric.value), ["", "", ""]
    ends = marked_interval(metric)
    if control:
        ends_of_pair = marked_interval(pair) if pair else ""
        difference = f"{signed(pair.value)} ({ends_of_pair})" if pair and ends_of_pair else ""
        beside = [number(control.value), difference, source(control.bundle)]
    return [name, f"{value} ({ends})" if ends else value, *beside]
