"""`auditkit report`: show a run's results in another form."""

from pathlib import Path
from typing import Annotated

import typer

from auditkit.data.atomic_write import write_errors, write_whole
from auditkit.errors import BadInput, unknown


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.", show_default=False)],
    form: Annotated[str, typer.Option("--format", "-f", help="html, md, json, junit or sarif.")] = "html",
    out: Annotated[Path | None, typer.Option(
        "--out", "-o", help="File to write; by default stdout, and for html report.html in an audit's run, or RUN.html "
        "beside an evaluation's.")] = None,
) -> None:  # fmt: skip
    """Show the results of a run in another form: a page to read, Markdown, JSON, JUnit or SARIF for a pipeline.

    Nothing is measured again and no model is needed. The exit code is 0 whatever the verdict.

    Example: auditkit report run -f junit -o run.xml
    """
    from auditkit.report.formats import FORMATS, render
    from auditkit.report.load_run import load
    from auditkit.runs.folder.checksums import SUMS
    from auditkit.runs.folder.store import RUN

    if form not in FORMATS:
        raise BadInput(unknown("format", form, FORMATS))
    if run.is_dir() and not (run / RUN).exists():
        raise BadInput(f"{run} is not a run (it has no {RUN}); give the folder that audit or evaluate wrote.")
    text = render(load(run), form)
    if out is None and form != "html":
        print(text, end="")
        return
    sealed, path = (run / SUMS).exists(), out or run / "report.html"
    if out is None and sealed and not path.exists():
        path = run.resolve().with_name(f"{run.resolve().name}.html")
    with write_errors(path, BadInput):
        content = text.encode("utf-8", "backslashreplace")
        same = path.is_file() and path.read_bytes() == content
        if sealed and not same and run.resolve() in path.resolve().parents:
            raise BadInput(f"{run} is sealed by its {SUMS}, which {path} would break; name a file elsewhere with -o.")
        if not same:
            write_whole(path, content)
    print(path)
