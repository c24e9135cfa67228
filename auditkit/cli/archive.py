"""`auditkit archive`: put a finished run into one file."""

from pathlib import Path
from typing import Annotated

import typer


def archive(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of an audit.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file; by default RUN.tar.")] = None,
) -> None:
    """Put a finished run, with its attestation and sign-off, into one file that `auditkit verify` accepts.

    It is a plain tar archive. The same run gives the same bytes, so that its digest can be filed.

    Example: auditkit archive run -o run.tar
    """
    from auditkit.evidence.archive import write

    path = out or Path(f"{run.resolve().name}.tar")
    write(run, path)
    print(path)
