"""The forms that a run can be shown in."""

from auditkit.errors import BadInput, unknown
from auditkit.report.load_run import Loaded
from auditkit.runs.folder.store import RESULTS

FORMATS = ("html", "md", "json", "junit", "sarif")


def render(loaded: Loaded, form: str) -> str:
    """The run in one of FORMATS; nothing is computed anew, and the model is not asked."""
    # What one form needs is slow to import for the others.
    if form == "html":
        from auditkit.report.html import render_html  # noqa: PLC0415

        return render_html(loaded)
    if form == "md":
        from auditkit.report.markdown import render_markdown as draw  # noqa: PLC0415
    elif form == "junit":
        from auditkit.report.junit import render_junit as draw  # noqa: PLC0415
    elif form == "sarif":
        from auditkit.report.sarif import render_sarif as draw  # noqa: PLC0415
    elif form == "json":
        return (loaded.folder / RESULTS).read_text(encoding="utf-8")
    else:
        raise BadInput(unknown("format", form, FORMATS))
    return draw(loaded)
