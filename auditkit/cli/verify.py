"""`auditkit verify`: whether a run is what it says."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options

if TYPE_CHECKING:
    from auditkit.verdict.verify import Verification

MOVED = "Where the files are now (when they were moved)"


def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an audit or evaluation.", show_default=False)],
    model: Annotated[Path | None, typer.Option(help="The ONNX file.", rich_help_panel=MOVED)] = None,
    images: Annotated[Path | None, typer.Option(help="Folder, CSV or .npz.", rich_help_panel=MOVED)] = None,
    heatmaps: Annotated[list[str] | None, typer.Option(
        metavar="NAME=PATH", help="A bundle by its name in the run; may be given several times.",
        rich_help_panel=MOVED)] = None,
    pool: Annotated[Path | None, typer.Option(help="Images for random infill.", rich_help_panel=MOVED)] = None,
    sample: Annotated[float, typer.Option(help="Share of the images whose rows are computed again.")] = 0.05,
    maps: Annotated[int, typer.Option(help="Images whose maps are made again, where the audit made them.")] = 2,
    seed: Annotated[int | None, typer.Option(help="Seed of the sample; else drawn anew, and told.")] = None,
    recompute: Annotated[bool, typer.Option(help="Compute the sample again, not digests alone.")] = True,
    run_only: Annotated[bool, typer.Option(
        "--run-only", help="Check the run's folder alone, without model, images and heatmaps.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    card: options.Card = None,
    layout: options.Layout = None,
    device: options.Device = "auto",
    memory_limit: options.MemoryLimit = 1.0,
    time_limit: options.TimeLimit = 45.0,
) -> None:  # fmt: skip
    """Check that a run is what it says: no file changed, figures follow from rows, rows and maps come out again.

    Rows are computed again for a sample of the images and for those that decide most; maps that the audit made itself
    are made again for the first images of the sample. Maps that were supplied cannot be.

    Nothing is written. All that does not hold is listed, with exit code 5; so is what was not checked.
    """
    from auditkit.errors import IntegrityFailure  # noqa: PLC0415
    from auditkit.verdict.verify import Originals  # noqa: PLC0415
    from auditkit.verdict.verify import verify as verified  # noqa: PLC0415

    opening = options.opening(card, None, memory_limit, time_limit, None, layout=layout)
    named = dict(_pair(text) for text in heatmaps or [])
    where = Originals(model, images, named, pool, opening, options.settings(device).device)
    with console.progress("computing again") as progress:
        depth = "run" if run_only else "rows" if recompute else "digests"
        found = verified(run, where, depth=depth, share=sample, images_mapped=maps, seed=seed,  # type: ignore[arg-type]
                         progress=progress)  # fmt: skip
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)
    if found.problems:
        many = len(found.problems)
        told = f"({many} problems); the first" if many > 1 else "(1 problem)"
        raise IntegrityFailure(f"{run} does not hold {told}: {found.problems[0]}.")


def _pair(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise typer.BadParameter(f"--heatmaps {text} is not like NAME=PATH")
    return name, Path(path)


def _print(found: "Verification") -> None:
    rows = list[tuple[str, str]]()
    for check in found.checks:
        told = [f"DOES NOT HOLD: {problem}" for problem in check.problems]
        rows += [(check.name, text) for text in told or [check.about]]
    if found.sample is not None:
        rows.append(("chance", found.sample.escape))
        rows.append(("tolerance", f"{found.sample.tolerance:g} of a probability or area; {found.sample.why}"))
    end = "DOES NOT HOLD" if found.problems else "holds, as far as it was checked"
    console.table([*rows, *(("not checked", what) for what in found.not_checked), ("run", f"{found.run} {end}")])
