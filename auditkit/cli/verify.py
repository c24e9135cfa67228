"""`auditkit verify`: check that a run is what it says."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options

if TYPE_CHECKING:
    from auditkit.verdict.verify import Verification
    from auditkit.verdict.verify.verify import Depth

_moved_option = partial(typer.Option, rich_help_panel="Where the files are now (when they were moved)")


@options.with_model_options("card", "layout", "device", "memory_limit", "time_limit")
def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an audit or evaluation.", show_default=False)],
    model_options: options.ModelOptions,
    model: Annotated[Path | None, _moved_option(help="The ONNX file.")] = None,
    images: Annotated[Path | None, _moved_option(help="Folder, CSV or .npz.")] = None,
    heatmaps: Annotated[list[str] | None, _moved_option(
        metavar="NAME=PATH", help="A bundle by its name in the run; repeatable.")] = None,
    pool: Annotated[Path | None, _moved_option(help="Images for random infill.")] = None,
    sample: Annotated[float, typer.Option(help="Share of the images whose rows are recomputed.")] = 0.05,
    maps: Annotated[int, typer.Option(help="Images whose maps are made again, if the audit made them.")] = 2,
    seed: Annotated[int | None, typer.Option(help="Seed of the sample; a new one by default, and printed.")] = None,
    recompute: Annotated[bool, typer.Option(help="Recompute the sample, not only digests.")] = True,
    run_only: Annotated[bool, typer.Option(
        "--run-only", help="Check only the run's folder, without model, images and heatmaps.")] = False,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Check that a run is what it says: no file changed, figures follow from rows, rows and maps can be reproduced.

    Rows are recomputed for a sample of the images and for those that decide most; maps that the audit made itself are
    made again for the first images of the sample. Maps that were supplied cannot be.

    Nothing is written. Everything that does not hold is listed, with exit code 5; so is what was not checked.
    """
    from auditkit.errors import IntegrityFailure
    from auditkit.verdict import verify as verifying

    bundles = {name: Path(path) for name, path in options.parse_pairs(heatmaps, "--heatmaps", "NAME=PATH")}
    device = model_options.settings().device
    originals = verifying.Originals(model, images, bundles, pool, model_options.opening(), device)
    depth: Depth = "rows" if recompute else "digests"
    if run_only:
        depth = "run"
    with console.progress("recomputing") as progress:
        verification = verifying.verify(
            run, originals, depth=depth, share=sample, images_mapped=maps, seed=seed, progress=progress
        )
    console.show(as_json, verification.to_json(), _fields(verification))
    problems = verification.problems
    if problems:
        count = f"({len(problems)} problems); the first" if len(problems) > 1 else "(1 problem)"
        raise IntegrityFailure(f"{run} does not hold {count}: {problems[0]}.")


def _fields(verification: "Verification") -> list[tuple[str, str]]:
    fields = list[tuple[str, str]]()
    for check in verification.checks:
        problems = [f"DOES NOT HOLD: {problem}" for problem in check.problems]
        fields += [(check.name, text) for text in problems or [check.about]]
    sample = verification.sample
    if sample is not None:
        tolerance = f"{sample.tolerance:g} of a probability or area; {sample.why}"
        fields += [("chance", sample.escape), ("tolerance", tolerance)]
    fields += [("not checked", text) for text in verification.not_checked]
    result = "DOES NOT HOLD" if verification.problems else "holds, as far as it was checked"
    return [*fields, ("run", f"{verification.run} {result}")]
