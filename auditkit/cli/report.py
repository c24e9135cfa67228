"""`auditkit report`: show a run's results in another form."""

from pathlib import Path
from typing import Annotated

import typer

_PAGE = "report.html"


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.", show_default=False)],
    form: Annotated[str, typer.Option("--format", "-f", help="html, md, json, junit or sarif.")] = "html",
    out: Annotated[Path | None, typer.Option(
        "--out", "-o", help="File to write; by default stdout, and for html report.html in an audit's run, or RUN.html "
        "beside an evaluation's.")] = None,
) -> None:  # fmt: skip
    """Show the results of a run in another form: a page to read, Markdown, JSON, JUnit or SARIF for a pipeline.

    Nothing is measured again and no model is needed. The exit code is 0 whatever the verdict.
    """
    from auditkit.errors import BadInput  # noqa: PLC0415
    from auditkit.report.formats import FORMATS, render  # noqa: PLC0415
    from auditkit.report.load_run import load  # noqa: PLC0415
    from auditkit.runs.folder.store import RUN  # noqa: PLC0415

    if form not in FORMATS:
        raise BadInput(f"there is no format '{form}'; use {', '.join(FORMATS)}.")
    if run.is_dir() and not (run / RUN).exists():
        raise BadInput(f"{run} is not a run (it has no {RUN}); give the folder that audit or evaluate wrote.")
    text = render(load(run), form)
    if out is None and form != "html":
        print(text, end="")
    else:
        _write(run, out or _page(run), text.encode("utf-8", "backslashreplace"))


def _page(run: Path) -> Path:
    """Where the page of a run goes: into its folder, unless that is sealed without a page."""
    from auditkit.runs.folder.checksums import SUMS  # noqa: PLC0415

    if (run / SUMS).exists() and not (run / _PAGE).exists():
        return run.resolve().with_name(f"{run.resolve().name}.html")
    return run / _PAGE


def _write(run: Path, path: Path, content: bytes) -> None:
    """Write the file and print its path; a file that the run's list of digests seals stays as it is."""
    from auditkit.data.atomic_write import write_errors, write_whole  # noqa: PLC0415
    from auditkit.errors import BadInput  # noqa: PLC0415
    from auditkit.runs.folder.checksums import SUMS  # noqa: PLC0415

    with write_errors(path, BadInput):
        same = path.is_file() and path.read_bytes() == content
        sealed = (run / SUMS).exists() and run.resolve() in path.resolve().parents
        if sealed and not same:
            raise BadInput(f"{run} is sealed by its {SUMS}, which {path} would break; name a file elsewhere with -o.")
        if not same:
            write_whole(path, content)
    print(path)
