"""A run as Markdown, for a merge request or a wiki: names out of files stay names there."""

import re
from collections.abc import Callable, Iterable, Sequence

from auditkit.metrics.table import title
from auditkit.report import answers, groups, sections, tables, wording
from auditkit.report import examination as relies
from auditkit.report.formatting import exact, interval, marked_interval, name, number, percent, signed, source, visible
from auditkit.report.load_run import Loaded
from auditkit.report.notices import notices
from auditkit.report.tables import Cell
from auditkit.runs.folder.results import CheckResult, Comparison, Results

# What Markdown, HTML, a link or the beginning of a list could be made of.
MARKS = re.compile(r"[\\`*_{}\[\]<>#|~!&$^]|^[-+=](?![\d.])|(?<=www)\.|:(?=//)")
MOST_LAYERS = 4  # named of a stage
NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


def render_markdown(loaded: Loaded) -> str:
    """Verdict, checks, figures beside controls and by class, randomisation, changes, flags, provenance and limits."""
    results = sections.with_tested_intervals(loaded.results)
    parts = [
        *_head(results), _checks(results), *_figures(results), *_classes(loaded), *_groups(results),
        *_randomisation(results),
        *(_changes(results.baseline) if results.baseline else ()), *_flags(results), *_provenance(loaded),
        *_limits(results),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: object) -> str:
    """Text on one line that Markdown shows as it is."""
    one_line = " ".join(visible(str(text)).split())
    return NUMBERED.sub(r"\1\\\2", MARKS.sub(r"\\\g<0>", one_line))


def table(head: Sequence[object], rows: Iterable[Sequence[object]], draw: Callable[[object], str] = plain) -> str:
    """A table of plain cells, or of cells shown otherwise."""
    lines = [[*map(plain, head)], ["---"] * len(head), *([*map(draw, row)] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _head(results: Results) -> list[str]:
    faithful, relying = answers.faithful(results), answers.relies_on(results)
    return [
        f"# {wording.report_title(results)} {plain(sections.subject_name(results))}",
        *(f"> **{plain(notice.title)}.** {plain(notice.text)}" for notice in notices(results)),
        f"**{faithful.word.symbol} {plain(faithful.word.word)}.** {answers.FAITHFUL} {plain(faithful.text)}",
        _bullets(f"{reason.word.word}: {reason.text} {reason.figures}" for reason in faithful.reasons),
        plain(f"How sure: {faithful.sure}"), plain(f"Compared with: {faithful.compared}"),
        plain(f"{answers.RELIES_ON} {relying.text} {relying.sure}"),
        *map(plain, answers.gate(results)),
        _earlier_run(results.baseline) if results.baseline else "",
        table(("Of", "Which"), sections.subject_line(results)),
        "## What to do next", _bullets(answers.next_steps(results)),
        "## What was not assessed", _bullets(answers.not_assessed(results)),
    ]  # fmt: skip


def _earlier_run(comparison: Comparison) -> str:
    run = f"run {name(comparison.a.run)}" if comparison.a.run else "an earlier run"
    outcome = tables.outcome(comparison)
    return plain(f"Baseline: {run}, {wording.verdict(comparison.a.verdict).word}{f'; {outcome}' if outcome else ''}.")


def _checks(results: Results) -> str:
    if not results.checks:
        return ""
    head = ("Status", "Check", "Severity", "Observed", "Interval", "Limit", "n", "Reason")
    rows = map(_check_row, results.checks)
    return (
        f"## Checks\n\n{plain(results.verdict_reason)}\n\n{plain(sections.judged_by(results))}\n\n{table(head, rows)}"
    )


def _check_row(check: CheckResult) -> tuple[str, ...]:
    status, counted = wording.status(check.status), "" if check.counts else " (not counted)"
    return (f"{status.symbol} {status.word}{counted}", check.title or check.id, check.severity,
            sections.observed(check), marked_interval(check), sections.limit(check), exact(check.n or None),
            _reason(check))  # fmt: skip


def _reason(check: CheckResult) -> str:
    suppression = check.suppression
    if not suppression:
        return check.reason
    without = f" Without that: {wording.status(check.would_be).word}. {check.reason}" if check.would_be else ""
    return f"Suppressed by {suppression.approver} until {suppression.expires}: {suppression.reason}.{without}"


def _figures(results: Results) -> list[str]:
    parts = []
    for figures in tables.figures(results):
        rows = [(f"{words} ({note})", *map(_figure, cells), _images(cells)) for words, note, cells in figures.rows]
        head = ("Metric", *map(source, figures.columns), "Images")
        parts.append(f"{plain(figures.caption)}\n\n{table(head, rows)}")
    about_model = [metric for metric in results.metrics if not metric.bundle]
    if about_model:
        rows = [(metric.name, _figure(metric), str(metric.n)) for metric in about_model]
        parts.append(f"Of the model itself\n\n{table(('Metric', 'Value', 'Images'), rows)}")
    return ["## Figures compared with the controls", *parts] if parts else []


def _figure(metric: Cell) -> str:
    if metric is None or metric.value is None:
        return "" if metric is None else "not assessed"
    return _value(metric.value, marked_interval(metric))


def _class_figure(metric: Cell) -> str:
    text = _figure(metric)
    return f"{text} ({tables.TOO_FEW})" if metric and tables.class_interval(metric) == tables.TOO_FEW else text


def _value(value: float | None, ends: str) -> str:
    return f"{number(value)} ({ends})" if ends else number(value)


def _images(cells: Iterable[Cell]) -> str:
    """How many images figures rest on, each number once."""
    return ", ".join(dict.fromkeys(exact(cell.n) for cell in cells if cell and cell.value is not None))


def _classes(loaded: Loaded) -> list[str]:
    parts = _cut("Class", tables.classes(loaded.results, tables.names(loaded.results, loaded.gallery)))
    return ["## By class", *parts] if parts else []


def _groups(results: Results) -> list[str]:
    parts = _cut("Group", groups.tables(results))
    return ["## By group", *parts, _bullets(groups.notes(results))] if results.groups else []


def _cut(what: str, by_part: Iterable[tables.Table]) -> list[str]:
    """Tables of figures by class or group."""
    parts = []
    for part in by_part:
        head = (what, "Images", *(f"{title(metric)} ({sections.better(metric)})" for metric in part.columns))
        rows = [(words, images, *map(_class_figure, cells)) for words, images, cells in part.rows]
        parts.append(f"{plain(part.caption)}\n\n{table(head, rows)}")
    return parts


def _randomisation(results: Results) -> list[str]:
    stages = tables.stages(results)
    if not stages:
        return []
    confidence = exact(results.settings.confidence * 100)
    caption = f"Rank correlation (Spearman) with the maps of the whole model, {confidence} % bootstrap intervals"
    head = ("Stage", "Re-initialised here", "Share of parameters so far", "Spearman", "Images")
    rows = [(stage.stage, _layers(layers), percent(stage.share),
             _value(stage.spearman, interval(stage.low, stage.high)), exact(stage.n))
            for stage, layers in stages]  # fmt: skip
    return ["## Model randomisation", plain(caption), table(head, rows)]


def _layers(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - MOST_LAYERS} more" if len(layers) > MOST_LAYERS else ""
    return f"{', '.join(layers[:MOST_LAYERS])}{more}"


def _changes(comparison: Comparison) -> list[str]:
    differences, compared = tables.distinct(comparison.differences), tables.compared(comparison)
    rows = [(title(pair.name), source(pair.bundle_b), tables.difference_infill(pair), signed(pair.value),
             sections.difference_interval(pair), exact(pair.n), sections.change(pair).word)
            for pair in differences]  # fmt: skip
    checks = [f"{check.id}: {wording.status(check.before).word} → {wording.status(check.after).word}"
              for check in comparison.checks if check.before != check.after]  # fmt: skip
    head = ("Metric", "Maps", "Infill", "This run minus the baseline", "Interval", "Images", "Shown")
    facts = [(what, before, after, "changed" if changed else "") for what, before, after, changed in compared]
    once = "; what is the same under each infill is listed once" if len(rows) < len(comparison.differences) else ""
    return ["## Changes since the baseline",
            _bullets(relies.changes(comparison, relies.BASELINE_SIDES)),
            f"What was compared\n\n{table(('What', 'Baseline', 'This run', 'Changed'), facts, _fact)}" if facts else "",
            f"Paired differences{once}", table(head, rows), _bullets([*checks, *comparison.notes])]  # fmt: skip


def _fact(text: object) -> str:
    return f"`{text}`" if tables.is_digest(str(text)) else plain(text)


def _flags(results: Results) -> list[str]:
    failed = [f"{failure.image} was left out: {failure.reason}" for failure in results.failed_images]
    lines = [*sections.flags(results), *failed[: tables.MOST_FAILED]]
    if len(failed) > tables.MOST_FAILED:
        lines.append(f"and {len(failed) - tables.MOST_FAILED} more images were left out")
    return ["## Flags", _bullets(lines)] if lines else []


def _provenance(loaded: Loaded) -> list[str]:
    rows: list[tuple[str, str, str]] = []
    for head, facts in sections.identity(loaded.results, loaded.digest):
        rows += [(head, what, value) for what, value, _ in facts]
    return ["## Provenance", table(("Of", "What", "Value"), rows)]


def _limits(results: Results) -> list[str]:
    return ["## Limits", _bullets(wording.limits(results))]


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {plain(line)}" for line in lines)
