"""`auditkit demo`: audit two bundled models whose truth is known."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from auditkit.cli import console, options
from auditkit.cli.progress import shown


@options.with_model_options("device")
def demo(
    model_options: options.ModelOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the audits and the page.")]
    = Path("auditkit-demo"),
    count: Annotated[int, typer.Option(help="Images to audit on.", min=20, max=10_000)] = 30,
    answered: Annotated[int, typer.Option(
        help="Images of each kind to count correct answers on.", min=10, max=100_000)] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the drawings.", min=0)] = 7,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:  # fmt: skip
    """Audit two vendors' models, one honest and one that reads a tag in the corner, on images drawn here.

    Both are right on ordinary images; where their evidence lies shows the difference. The exit code is 0 when both
    audits ran, whatever they found.

    Example: auditkit demo -o demo-output
    """
    from auditkit.data.atomic_write import write_whole
    from auditkit.demo import page, planted

    result = planted.run(out, count, answered, seed, model_options.settings(), partial(shown, quiet=quiet))
    write_whole(out / "report.html", page.render(result).encode())
    images = f"{len(result.audited.images)} audited, {result.answered} of each kind answered, seed {result.seed}"
    console.show(as_json, result.to_json(), [
        ("images", images), *((vendor.model, vendor.sentence()) for vendor in result.vendors),
        ("conclusion", page.headline(result)), ("report", str(result.folder / "report.html")),
        *((f"audit of {vendor.model}", str(result.folder / vendor.model)) for vendor in result.vendors if verbose),
    ])  # fmt: skip
