"""A run as Markdown, for a merge request or a wiki: names out of files stay names there."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from auditkit.report import sections, tables, wording
from auditkit.report.formatting import exact, last, name, visible
from auditkit.report.load_run import Loaded
from auditkit.runs.folder.results import ModelFile, Results

# What Markdown, HTML, a link or the beginning of a list could be made of.
MARKS = re.compile(r"[\\`*_{}\[\]<>#|~!&$^]|^[-+=](?![\d.])|(?<=www)\.|:(?=//)")
MOST_LAYERS = 4  # named of a stage
NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


def render_markdown(loaded: Loaded) -> str:
    """Verdict, checks, figures beside controls and by class, randomisation, changes, flags, provenance and limits."""
    results = loaded.results
    parts = [
        _head(results), _checks(results), *_figures(results), *_classes(loaded), *_randomisation(results),
        *_changes(results), *_flags(results), *_provenance(loaded), _limits(results),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: Any) -> str:
    """Text on one line that Markdown shows as it is."""
    one_line = " ".join(visible(str(text)).split())
    return NUMBERED.sub(r"\1\\\2", MARKS.sub(r"\\\g<0>", one_line))


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], shown: Callable[[Any], str] = plain) -> str:
    """A table of plain cells, or of cells shown otherwise."""
    lines = [[*map(plain, head)], ["---"] * len(head), *([*map(shown, row)] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _head(results: Results) -> str:
    said = wording.headline(results)
    model = results.subject.model
    subject = last(model.path) if isinstance(model, ModelFile) else "a function"
    reason = results.verdict_reason or said.means
    lines = [
        f"# {'Audit' if results.policy else 'Evaluation'} of {plain(subject)}",
        f"**{said.symbol} {plain(said.word)}.** {plain(reason)}",
        *_baseline(results),
    ]
    return "\n\n".join([*lines, table(("Of", "Which"), sections.subject_line(results))])


def _baseline(results: Results) -> list[str]:
    """That an earlier run was compared, and how that had ended."""
    told = tables.baseline(results)
    if told is None:
        return []
    run = f"run {name(told['run'])}" if told["run"] else "an earlier run"
    verdict = f", {told['verdict'].word}" if told["verdict"] else ""
    return [plain(f"Baseline: {run}{verdict}{'; ' if told['said'] else ''}{told['said']}.")]


def _checks(results: Results) -> str:
    if not results.checks:
        return "## Checks\n\nNo policy was applied, or it asks nothing."
    head = ("Status", "Check", "Severity", "Observed", "Interval", "Limit", "n", "Reason")
    rows = [(f"{told['status'].symbol} {told['status'].word}{'' if told['counts'] else ' (not counted)'}",
             told["title"], told["severity"], told["observed"], told["interval"], told["limit"],
             told["n"] if told["n"] != "0" else "–", _reason(told)) for told in sections.checks(results)]  # fmt: skip
    counted = ", ".join(f"{count} {word.word.lower()}" for word, count in sections.tally(results))
    said = "; ".join(filter(None, (counted, sections.beside(results))))
    return f"## Checks\n\n{plain(said)}.\n\n{table(head, rows)}"


def _reason(told: dict[str, Any]) -> str:
    suppression = told["suppression"]
    if not suppression:
        return str(told["reason"])
    without = f" Without that: {told['would_be'].word}. {told['reason']}" if told["would_be"] else ""
    return f"Suppressed by {suppression.approver} until {suppression.expires}: {suppression.reason}.{without}"


def _figures(results: Results) -> list[str]:
    found = []
    for made in tables.figures(results):
        rows = [(f"{name} ({which})", *map(_figure, cells), _images(cells)) for name, which, cells in made.rows]
        found.append(f"{plain(made.caption)}\n\n{table(('Metric', *made.head, 'Images'), rows)}")
    about_model = [one for one in results.metrics if not one.bundle]
    if about_model:
        rows = [(one.name, _figure(sections.figure(one)), str(one.n)) for one in about_model]
        found.append(f"Of the model itself\n\n{table(('Metric', 'Value', 'Images'), rows)}")
    return ["## Figures beside the controls", *found, *_reasons(results)] if found else []


def _figure(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    return f"{cell['value']} ({cell['interval']})" if cell["interval"] else str(cell["value"])


def _images(cells: Iterable[dict[str, Any] | None]) -> str:
    """How many images figures rest on, each number once."""
    return ", ".join(dict.fromkeys(cell["n"] for cell in cells if cell and cell["assessed"]))


def _reasons(results: Results) -> list[str]:
    """Why figures of the maps are not assessed."""
    gaps = sections.not_assessed(results)
    return [_listed(f"{bundle}: {metric} is not assessed: {reason}" for bundle, metric, reason in gaps)] if gaps else []


def _classes(loaded: Loaded) -> list[str]:
    known, found = tables.names(loaded.results, loaded.gallery), []
    for made in tables.classes(loaded.results, known):
        head = ("Class", "Images", *(f"{words} ({which})" for words, which in made.head))
        rows = [(words, n, *map(_figure, cells)) for words, n, cells in made.rows]
        found.append(f"{plain(made.caption)}\n\n{table(head, rows)}")
    return ["## By class", *found] if found else []


def _randomisation(results: Results) -> list[str]:
    stages = tables.stages(results)
    if not stages:
        why = sections.not_randomised(results)
        return ["## Model randomisation", plain(f"Not assessed: {why}.")] if why else []
    confidence = exact(results.settings.confidence * 100)
    caption = f"Rank correlation (Spearman) with the maps of the whole model, {confidence} % intervals"
    head = ("Stage", "Re-initialised here", "Share of parameters so far", "Spearman", "Images")
    rows = [(one["stage"], _layers(one["layers"]), one["share"], _figure(one), one["n"]) for one in stages]
    return ["## Model randomisation", plain(caption), table(head, rows)]


def _layers(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - MOST_LAYERS} more" if len(layers) > MOST_LAYERS else ""
    return f"{', '.join(layers[:MOST_LAYERS])}{more}"


def _changes(results: Results) -> list[str]:
    told = tables.baseline(results)
    if told is None:
        return []
    rows = [(one["title"], one["after"], one["infill"], one["value"], one["interval"], one["n"], one["shows"])
            for one in told["differences"]]  # fmt: skip
    checks = [f"{one['id']}: {one['before'].word} → {one['after'].word}" for one in told["checks"] if one["changed"]]
    head = ("Metric", "Maps", "Infill", "This run less the baseline", "Interval", "Images", "Shown")
    compared = [(one["what"], *(text for text, _ in one["cells"]), "changed" if one["changed"] else "")
                for one in told["compared"]]  # fmt: skip
    what = f"What was compared\n\n{table(('What', 'Baseline', 'This run', 'Changed'), compared, _fact)}"
    once = "; what is the same under each infill stands once" if told["repeated"] else ""
    return ["## Changes since the baseline", what if compared else "", f"Paired differences{once}", table(head, rows),
            _listed([*checks, *told["notes"]])]  # fmt: skip


def _fact(text: str) -> str:
    return f"`{text}`" if tables.digest(text) else plain(text)


def _flags(results: Results) -> list[str]:
    failed = [f"{one.image} was left out: {one.reason}" for one in results.failed_images]
    said = [*sections.flags(results), *failed[: tables.MOST_FAILED]]
    if len(failed) > tables.MOST_FAILED:
        said.append(f"and {len(failed) - tables.MOST_FAILED} more images were left out")
    return ["## Flags", _listed(said) if said else "None."]


def _provenance(loaded: Loaded) -> list[str]:
    groups = sections.identity(loaded.results, loaded.digest)
    rows = [(head, what, value) for head, facts in groups for what, value, _ in facts]
    return ["## Provenance", table(("Of", "What", "Value"), rows)]


def _limits(results: Results) -> str:
    listed = _listed([*results.limitations, *(f"It may not be claimed: {said}" for said in wording.MAY_NOT_CLAIM)])
    return f"## What the figures may not be used to claim\n\n{listed}"


def _listed(said: Iterable[Any]) -> str:
    return "\n".join(f"- {plain(one)}" for one in said)
