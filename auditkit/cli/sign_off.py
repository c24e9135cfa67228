"""`auditkit sign-off`: record a person's decision about a run."""

from pathlib import Path
from typing import Annotated

import typer


def sign_off(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of an audit.", show_default=False)],
    name: Annotated[str, typer.Option(help="Who decides.", show_default=False)],
    role: Annotated[str, typer.Option(help="In which role.", show_default=False)],
    decision: Annotated[str, typer.Option(
        help="accepted, accepted with conditions, or rejected.", show_default=False)],
    comment: Annotated[str, typer.Option(help="Conditions or reasons, on one line.")] = "",
) -> None:  # fmt: skip
    """Write signoff.json into a run's folder: who decided what, when, and for which files.

    It holds the digest of SHA256SUMS and changes no other file; `auditkit verify` checks that it fits. A decision is
    not a signature: run `auditkit sign` afterwards.

    Example: auditkit sign-off run --name "A. Auditor" --role "lead auditor" --decision accepted
    """
    from datetime import UTC, datetime

    from auditkit.runs.folder.checksums import SIGNED_OFF
    from auditkit.runs.folder.signoff import sign_off as write

    write(run, name, role, decision, datetime.now(UTC).date(), comment)
    print(run / SIGNED_OFF)
