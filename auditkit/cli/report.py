"""`auditkit report`: show a run's results in another form."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.data.atomic_write import write_errors, write_whole
from auditkit.errors import BadInput, unknown

if TYPE_CHECKING:
    from auditkit.report.load_run import Loaded


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.", show_default=False)],
    form: Annotated[str, typer.Option(
        "--format", "-f", help="html, pdf, md, json, junit, sarif, oscal or cyclonedx.")] = "html",
    out: Annotated[Path | None, typer.Option(
        "--out", "-o", help="File to write or replace; by default stdout, for html report.html in an audit's "
        "run or RUN.html beside an evaluation's, and for pdf RUN.pdf beside the run.")] = None,
    gallery: Annotated[int | None, typer.Option(
        min=0, help="Images of the gallery that are open in html and pdf; 6 by default, up to 24 were kept.")] = None,
) -> None:  # fmt: skip
    """Show the results of a run in another format: HTML or PDF to read, Markdown, JSON, or formats for other systems.

    JUnit and SARIF are for pipelines, OSCAL (assessment results) and CycloneDX (a bill of materials with a model card)
    for compliance systems.

    Nothing is measured again and no model is needed. A page outside the run's folder also shows its sign-off. pdf
    needs an installed Chromium. The exit code is 0 whatever the verdict.

    Example: auditkit report run -f junit -o run.xml
    """
    from auditkit.report.formats import FORMATS, render
    from auditkit.report.load_run import load
    from auditkit.runs.folder.names import RUN

    if form not in (*FORMATS, "pdf"):
        raise BadInput(unknown("format", form, (*FORMATS, "pdf")))
    if gallery is not None and form not in ("html", "pdf"):
        raise BadInput(f"{form} has no gallery; use --gallery with html or pdf.")
    if run.is_dir() and not (run / RUN).exists():
        raise BadInput(f"{run} is not a run (it has no {RUN}); give the folder that audit or evaluate wrote.")
    loaded = load(run)
    if form in ("html", "pdf"):
        _write(run, out or _default_path(run, form), _page(loaded, form, gallery, elsewhere=bool(out)))
    elif out is None:
        print(render(loaded, form), end="")
    else:
        _write(run, out, render(loaded, form).encode("utf-8", "backslashreplace"))


def _default_path(run: Path, form: str) -> Path:
    """Where a page goes: beside the run, or into it where it is not sealed or has a page already."""
    from auditkit.runs.folder.checksums import SUMS

    inside = run / "report.html"
    if form == "html" and (inside.exists() or not (run / SUMS).exists()):
        return inside
    return run.resolve().with_name(f"{run.resolve().name}.{form}")


def _page(loaded: "Loaded", form: str, gallery: int | None, *, elsewhere: bool) -> bytes:
    """The report as HTML or PDF."""
    from auditkit.report.html import FIRST_CARDS, render_html
    from auditkit.report.pdf import print_pdf
    from auditkit.runs.folder.signoff import read_sign_off

    signed = read_sign_off(loaded.folder) if elsewhere or form == "pdf" else None
    page = render_html(loaded, FIRST_CARDS if gallery is None else gallery, signed)
    return print_pdf(page, _warn) if form == "pdf" else page.encode("utf-8", "backslashreplace")


def _warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)


def _write(run: Path, path: Path, content: bytes) -> None:
    """Write a file, but not into a sealed run, unless it says the same there."""
    from auditkit.runs.folder.checksums import SUMS

    with write_errors(path, BadInput):
        same = path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
        if (run / SUMS).exists() and not same and run.resolve() in path.resolve().parents:
            raise BadInput(f"{run} is sealed by its {SUMS}, which {path} would break; name a file elsewhere with -o.")
        if not same:
            write_whole(path, content, BadInput)
    print(path)
