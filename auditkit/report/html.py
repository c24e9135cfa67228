"""A run as one HTML page that needs nothing but itself: no network, no model, no second computation."""

import base64
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from auditkit.metrics.table import METRICS, title
from auditkit.report import answers, formatting, groups, norms, notices, plots, sections, tables, wording
from auditkit.report import examination as relies
from auditkit.report.chart_data import Rows, rows_of
from auditkit.report.gallery_cards import cards
from auditkit.report.load_run import Loaded
from auditkit.runs.folder.results import Results
from auditkit.runs.folder.signoff import SignOff
from auditkit.runs.summary.wording import remark

TEMPLATES = Path(__file__).parent / "templates"
FILTERS = (
    "name",
    "last",
    "exact",
    "number",
    "measured",
    "percent",
    "signed",
    "source",
    "prose",
    "marked_interval",
)  # functions of formatting
SECTIONS = {
    "figures": "Figures compared with the best control", "curves": "Insertion curves",
    "effort": "A map of its own for each label", "classes": "By class", "groups": "By group", "checks": "Checks",
    "examination": relies.HEADING, "randomisation": "Model randomisation", "flags": "Flags",
    "failed": "Images that failed", "baseline": "Changes since the baseline",
    "gallery": "Worst, median and best images", "definitions": "Definitions", "limits": "Limits",
    "identity": "Identity and provenance", "regulation": "Where this may be evidence", "sign-off": "Sign-off",
}  # fmt: skip
FIRST_CARDS = 6  # of the gallery that are open; the others unfold


def render_html(loaded: Loaded, first_cards: int = FIRST_CARDS, signed: SignOff | None = None) -> str:
    """The report; the same run gives the same bytes."""
    return page("report.html", {**_context(loaded), "first_cards": first_cards, "signature": _signature(signed)})


def page(template: str, context: Mapping[str, object], folder: Path = TEMPLATES) -> str:
    """A page in the report's style and in that of its template's folder; it may load and run nothing."""
    page_style = (folder / "page.css",) if folder != TEMPLATES else ()
    style = _trusted(TEMPLATES / "report.css", *page_style)
    policy = f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    return _environment(folder).get_template(template).render(style=style, csp=policy, **context)


@cache
def _environment(folder: Path) -> Environment:
    """The templates of a folder, each compiled once."""
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]), autoescape=True, undefined=StrictUndefined, finalize=_shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {name: getattr(formatting, name) for name in FILTERS}
    environment.filters |= {"metric_title": title, "better": sections.better, "remark": remark,
                            "phrase": lambda metric: METRICS[metric].phrase}  # fmt: skip
    environment.globals |= {"interval": formatting.interval, "wording": wording, "sections": sections,
                            "tables": tables, "headings": SECTIONS, "relies": relies, "answers": answers,
                            "notices": notices}  # fmt: skip
    environment.tests["digest"] = tables.is_digest
    return environment


def _context(loaded: Loaded) -> dict[str, object]:
    """What the template shows beside the results themselves."""
    results, rows = sections.with_tested_intervals(loaded.results), rows_of(loaded)
    class_names = tables.names(results, loaded.gallery)
    gallery_cards, left_out = cards(loaded, class_names)
    available = sections.available(results, gallery=bool(gallery_cards))
    infill = sections.first_infill(results)
    series = results.randomisation.series if results.randomisation else None
    context = {
        "results": results, "version": results.tool.version, "digest": loaded.digest, "gallery": loaded.gallery,
        "verdict": wording.headline(results), "flags": sections.flags(results), "infill": infill,
        "confidence": formatting.exact(results.settings.confidence * 100), "figure_tables": tables.figures(results),
        "plane": plots.plane([*results.metrics, *results.controls], rows, infill),
        "curves": _each(rows, plots.curves, "curve"), "spread": _each(rows, plots.histograms, "spread"),
        "areas": _each(rows, plots.areas, "area"), "specificity": _each(rows, plots.specificity, "specificity"),
        "undrawn": 0 if rows is None else max(0, len(rows.bundles) - plots.MOST_BUNDLES),
        "classes": tables.classes(results, class_names), "group_tables": groups.tables(results),
        "group_notes": groups.notes(results),
        "cards": gallery_cards, "cards_left_out": left_out, "chosen_by": _chosen_by(loaded),
        "class_names": results.subject.class_names, "exchange": loaded.exchange,
        "series": plots.randomisation(series, tables.randomisation_limit(results)) if series else None,
        "norms": [(caption, column, norms.evidence(items, available)) for caption, column, items in norms.TABLES],
    }  # fmt: skip
    return {**context, "shown": _with_content(context, results)}


def _with_content(context: Mapping[str, object], results: Results) -> list[str]:
    """The sections that have something to show, in their order."""
    content = {
        "curves": context["curves"], "effort": context["specificity"], "classes": context["classes"],
        "groups": results.groups,
        "checks": results.checks or results.verdict_reason, "examination": results.examination,
        "randomisation": context["series"], "flags": results.flags, "failed": results.failed_images,
        "baseline": results.baseline, "gallery": context["cards"],
        **dict.fromkeys(("checks", "regulation", "sign-off") if results.run.preliminary else (), False),
    }  # fmt: skip
    return [section for section in SECTIONS if content.get(section, True)]


def _signature(signed: SignOff | None) -> list[tuple[str, str]]:
    """Who answers for the report, or empty lines for a pen."""
    terms = ("name", "role", "decision", "date", "comment")
    if signed is None:
        return [(term.capitalize(), "") for term in terms]
    return [(term.capitalize(), getattr(signed, term)) for term in terms]


def _chosen_by(loaded: Loaded) -> str:
    """The figures that the images of the gallery were chosen by."""
    chosen_by = loaded.gallery.chosen_by if loaded.gallery else None
    metrics = chosen_by.values() if chosen_by else ("worst_completeness",)
    return " or ".join(dict.fromkeys(map(title, metrics)))


def _each(rows: Rows | None, draw: Callable[[Rows, str, str], plots.Drawn], key: str) -> list[tuple[str, plots.Drawn]]:
    """A figure for each of the first bundles that has one."""
    if rows is None:
        return []
    drawn = [(bundle, draw(rows, bundle, f"{key}{index}"))
             for index, bundle in enumerate(rows.bundles[: plots.MOST_BUNDLES])]  # fmt: skip
    return [(bundle, figure) for bundle, figure in drawn if figure.panels]


def _shown(value: object) -> object:
    """What a template prints: no text hides or reorders others, and nothing is missing in silence."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return "–" if value is None else value
    return formatting.visible(value)


def _trusted(*files: Path) -> Markup:
    return Markup("".join(file.read_text(encoding="utf-8") for file in files))  # noqa: S704 - our own files


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
