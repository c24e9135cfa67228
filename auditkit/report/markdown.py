"""A run as Markdown, for a merge request or a wiki: names out of files stay names there."""

import re
from collections.abc import Callable, Iterable, Sequence

from auditkit.report import sections, tables, wording
from auditkit.report.formatting import exact, name, visible
from auditkit.report.load_run import Loaded
from auditkit.runs.folder.results import Results

# What Markdown, HTML, a link or the beginning of a list could be made of.
MARKS = re.compile(r"[\\`*_{}\[\]<>#|~!&$^]|^[-+=](?![\d.])|(?<=www)\.|:(?=//)")
MOST_LAYERS = 4  # named of a stage
NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


def render_markdown(loaded: Loaded) -> str:
    """Verdict, checks, figures beside controls and by class, randomisation, changes, flags, provenance and limits."""
    results, baseline = loaded.results, tables.baseline(loaded.results)
    parts = [
        *_head(results, baseline), _checks(results), *_figures(results), *_classes(loaded), *_randomisation(results),
        *_changes(baseline), *_flags(results), *_provenance(loaded), *_limits(results),
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


def _head(results: Results, baseline: tables.Baseline | None) -> list[str]:
    headline = wording.headline(results)
    return [
        f"# {'Audit' if results.policy else 'Evaluation'} of {plain(sections.subject_name(results))}",
        f"**{headline.symbol} {plain(headline.word)}.** {plain(results.verdict_reason or headline.means)}",
        _earlier_run(baseline) if baseline else "",
        table(("Of", "Which"), sections.subject_line(results)),
    ]


def _earlier_run(baseline: tables.Baseline) -> str:
    run = f"run {name(baseline.comparison.a.run)}" if baseline.comparison.a.run else "an earlier run"
    outcome = f"; {baseline.outcome}" if baseline.outcome else ""
    return plain(f"Baseline: {run}, {baseline.verdict.word}{outcome}.")


def _checks(results: Results) -> str:
    if not results.checks:
        return "## Checks\n\nNo policy was applied, or it asks nothing."
    head = ("Status", "Check", "Severity", "Observed", "Interval", "Limit", "n", "Reason")
    rows = [(f"{row.status.symbol} {row.status.word}{'' if row.check.counts else ' (not counted)'}", row.title,
             row.check.severity, row.observed, row.interval, row.limit, row.n if row.n != "0" else "–", _reason(row))
            for row in sections.checks(results)]  # fmt: skip
    counted = ", ".join(f"{count} {word.word.lower()}" for word, count in sections.tally(results))
    summary = "; ".join(filter(None, (counted, sections.uncounted(results))))
    return f"## Checks\n\n{plain(summary)}.\n\n{table(head, rows)}"


def _reason(row: sections.CheckRow) -> str:
    reason, suppression = row.check.reason, row.check.suppression
    if not suppression:
        return reason
    without = f" Without that: {row.would_be.word}. {reason}" if row.would_be else ""
    return f"Suppressed by {suppression.approver} until {suppression.expires}: {suppression.reason}.{without}"


def _figures(results: Results) -> list[str]:
    parts = []
    for figures in tables.figures(results):
        rows = [(f"{row.title} ({row.note})", *map(_figure, row.cells), _images(row.cells))
                for row in figures.rows]  # fmt: skip
        head = ("Metric", *(source for source, _ in figures.columns), "Images")
        parts.append(f"{plain(figures.caption)}\n\n{table(head, rows)}")
    about_model = [metric for metric in results.metrics if not metric.bundle]
    if about_model:
        rows = [(metric.name, _figure(sections.figure(metric)), str(metric.n)) for metric in about_model]
        parts.append(f"Of the model itself\n\n{table(('Metric', 'Value', 'Images'), rows)}")
    gaps = [f"{bundle}: {metric} is not assessed: {reason}"
            for bundle, metric, reason in sections.not_assessed(results)]  # fmt: skip
    return ["## Figures beside the controls", *parts, _bullets(gaps)] if parts else []


def _figure(cell: sections.Figure | tables.Stage | None) -> str:
    if cell is None:
        return ""
    return f"{cell.value} ({cell.interval})" if cell.interval else cell.value


def _images(cells: Iterable[sections.Figure | None]) -> str:
    """How many images figures rest on, each number once."""
    return ", ".join(dict.fromkeys(cell.n for cell in cells if cell and cell.assessed))


def _classes(loaded: Loaded) -> list[str]:
    parts = []
    for by_class in tables.classes(loaded.results, tables.names(loaded.results, loaded.gallery)):
        head = ("Class", "Images", *(f"{metric} ({direction})" for metric, direction in by_class.columns))
        rows = [(row.title, row.note, *map(_figure, row.cells)) for row in by_class.rows]
        parts.append(f"{plain(by_class.caption)}\n\n{table(head, rows)}")
    return ["## By class", *parts] if parts else []


def _randomisation(results: Results) -> list[str]:
    stages = tables.stages(results)
    if not stages:
        reason = sections.not_randomised(results)
        return ["## Model randomisation", plain(f"Not assessed: {reason}.")] if reason else []
    confidence = exact(results.settings.confidence * 100)
    caption = f"Rank correlation (Spearman) with the maps of the whole model, {confidence} % intervals"
    head = ("Stage", "Re-initialised here", "Share of parameters so far", "Spearman", "Images")
    rows = [(stage.stage, _layers(stage.layers), stage.share, _figure(stage), stage.n) for stage in stages]
    return ["## Model randomisation", plain(caption), table(head, rows)]


def _layers(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - MOST_LAYERS} more" if len(layers) > MOST_LAYERS else ""
    return f"{', '.join(layers[:MOST_LAYERS])}{more}"


def _changes(baseline: tables.Baseline | None) -> list[str]:
    if baseline is None:
        return []
    rows = [(row.title, row.after, row.infill, row.difference.value, row.difference.interval, row.difference.n,
             row.difference.shows) for row in baseline.differences]  # fmt: skip
    checks = [f"{check.id}: {wording.status(check.before).word} → {wording.status(check.after).word}"
              for check in baseline.comparison.checks if check.before != check.after]  # fmt: skip
    head = ("Metric", "Maps", "Infill", "This run less the baseline", "Interval", "Images", "Shown")
    compared = [(fact.what, fact.before, fact.after, "changed" if fact.changed else "") for fact in baseline.facts]
    facts = f"What was compared\n\n{table(('What', 'Baseline', 'This run', 'Changed'), compared, _fact)}"
    once = "; what is the same under each infill stands once" if baseline.repeated else ""
    return ["## Changes since the baseline", facts if compared else "", f"Paired differences{once}", table(head, rows),
            _bullets([*checks, *baseline.comparison.notes])]  # fmt: skip


def _fact(text: object) -> str:
    return f"`{text}`" if tables.is_digest(str(text)) else plain(text)


def _flags(results: Results) -> list[str]:
    failed = [f"{failure.image} was left out: {failure.reason}" for failure in results.failed_images]
    lines = [*sections.flags(results), *failed[: tables.MOST_FAILED]]
    if len(failed) > tables.MOST_FAILED:
        lines.append(f"and {len(failed) - tables.MOST_FAILED} more images were left out")
    return ["## Flags", _bullets(lines) or "None."]


def _provenance(loaded: Loaded) -> list[str]:
    rows: list[tuple[str, str, str]] = []
    for head, facts in sections.identity(loaded.results, loaded.digest):
        rows += [(head, what, value) for what, value, _ in facts]
    return ["## Provenance", table(("Of", "What", "Value"), rows)]


def _limits(results: Results) -> list[str]:
    claims = [f"It may not be claimed: {claim}" for claim in wording.MAY_NOT_CLAIM]
    return ["## What the figures may not be used to claim", _bullets([*results.limitations, *claims])]


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {plain(line)}" for line in lines)
