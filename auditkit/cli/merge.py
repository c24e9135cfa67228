"""`auditkit merge`: put shards together that were computed apart."""

from pathlib import Path
from typing import Annotated

import typer

from auditkit.cli import console, options


def merge(
    shards: Annotated[list[Path], typer.Argument(
        metavar="SHARD...", help="Folders that --shard wrote.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the combined result.")],
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Combine shards that `explain`, `evaluate` or `audit` computed with --shard.

    Shards of maps become one bundle. Shards of a run become one run: run the same command again without --shard to
    write its results. What the folder already has is kept, so a late shard can be added. What is damaged or missing is
    named on stderr.

    Example: auditkit merge shards/maps-* -o maps
    """
    from auditkit.runs.folder.merge import merge

    merged = merge(shards, out)
    for warning in merged.warnings:
        typer.echo(f"warning: {console.plain(warning)}", err=True)
    content = {
        "schema_version": 1, "out": str(out), "summary": merged.summary, "warnings": list(merged.warnings),
        "images_without_maps": {str(number): count for number, count in merged.images_without_maps.items()},
    }  # fmt: skip
    console.show(as_json, content, [("merged", merged.summary)])
