"""A run as one HTML page that needs nothing but itself: no network, no model, no second computation."""

import base64
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from auditkit.metrics.table import title
from auditkit.report import examination as relies
from auditkit.report import formatting, plots, sections, tables, wording
from auditkit.report.chart_data import Rows, rows_of
from auditkit.report.gallery_cards import ROLES, cards, sort_key
from auditkit.report.load_run import Loaded
from auditkit.runs.summary.wording import remark

TEMPLATES = Path(__file__).parent / "templates"
FILTERS = ("name", "last", "exact", "number", "measured", "percent", "signed", "source")  # functions of formatting
SECTIONS = {
    "checks": "Checks", "examination": relies.HEADING, "identity": "Identity and provenance",
    "figures": "Figures beside the controls",
    "curves": "Insertion curves", "spread": "How the figures are spread", "areas": "AUC against probability",
    "effort": "A map of its own for each label", "classes": "By class", "gallery": "Worst, median and best images",
    "randomisation": "Model randomisation", "failed": "Images that failed", "baseline": "Changes since the baseline",
    "flags": "Flags", "definitions": "Definitions", "limits": "What the figures may not be used to claim",
    "regulation": "Where this may be evidence",
}  # fmt: skip


def render_html(loaded: Loaded) -> str:
    """The report; the same run gives the same bytes."""
    return page("report.html", _context(loaded))


def page(template: str, context: Mapping[str, object], folder: Path = TEMPLATES) -> str:
    """A page in the report's style and in that of its template's folder; it may load and run nothing else."""
    page_style = (folder / "page.css",) if folder != TEMPLATES else ()
    style, script = _trusted(TEMPLATES / "report.css", *page_style), _trusted(TEMPLATES / "report.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        f"base-uri 'none'; form-action 'none'"
    )
    return _environment(folder).get_template(template).render(style=style, script=script, csp=policy, **context)


@cache
def _environment(folder: Path) -> Environment:
    """The templates of a folder, each compiled once."""
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]), autoescape=True, undefined=StrictUndefined, finalize=_shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {name: getattr(formatting, name) for name in FILTERS}
    environment.filters |= {"metric_title": title, "better": sections.better, "remark": remark, "sort_key": sort_key}
    environment.globals |= {"interval": formatting.interval, "wording": wording, "sections": sections,
                            "tables": tables, "headings": SECTIONS, "relies": relies}  # fmt: skip
    environment.tests["digest"] = tables.is_digest
    return environment


def _context(loaded: Loaded) -> dict[str, object]:
    """What the template shows beside the results themselves."""
    results, rows = loaded.results, rows_of(loaded)
    class_names = tables.names(results, loaded.gallery)
    gallery_cards, left_out = cards(loaded, class_names)
    available = sections.available(results, gallery=bool(gallery_cards))
    infill = sections.first_infill(results)
    series = results.randomisation.series if results.randomisation else None
    return {
        "results": results, "digest": loaded.digest, "gallery": loaded.gallery, "verdict": wording.headline(results),
        "flags": sections.flags(results), "uncounted": sections.uncounted(results), "infill": infill,
        "confidence": formatting.exact(results.settings.confidence * 100),
        "plane": plots.plane([*results.metrics, *results.controls], rows, infill),
        "curves": _each(rows, plots.curves, "curve"), "spread": _each(rows, plots.histograms, "spread"),
        "areas": _each(rows, plots.areas, "area"), "specificity": _each(rows, plots.specificity, "specificity"),
        "undrawn": 0 if rows is None else max(0, len(rows.bundles) - plots.MOST_BUNDLES),
        "classes": tables.classes(results, class_names),
        "cards": gallery_cards, "cards_left_out": left_out, "roles": ROLES, "chosen_by": _chosen_by(loaded),
        "class_names": results.subject.class_names, "exchange": loaded.exchange,
        "series": plots.randomisation(series, tables.randomisation_limit(results)) if series else None,
        "annex_iv": wording.evidence(wording.ANNEX_IV, available), "nist": wording.evidence(wording.NIST, available),
    }  # fmt: skip


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
