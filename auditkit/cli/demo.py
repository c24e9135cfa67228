"""`auditkit demo`: the planted truth."""

import json
from pathlib import Path
from typing import Annotated

import typer

from auditkit.cli import options, show


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the picture.")] = Path("auditkit-demo"),
    count: Annotated[int, typer.Option(help="Images to draw for each measurement.", min=10, max=100_000)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the drawings.", min=0)] = 7,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Meet two vendors' models, one honest and one that reads a tag in the corner, on images drawn here.

    Both look equally good on ordinary images. Images whose tags lie tell them apart.
    """
    from auditkit.demo import planted  # noqa: PLC0415

    with show.progress("asking both models") as progress:
        result = planted.run(out, count, seed, options.settings(device), progress)
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        show.table(result.rows())
