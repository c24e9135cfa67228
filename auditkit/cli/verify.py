"""`auditkit verify`: check that a run is what it says."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options
from auditkit.cli.progress import shown

if TYPE_CHECKING:
    from auditkit.verdict.verify import Trust, Verification

_original = partial(typer.Option, rich_help_panel="What else the run was made from")


@options.with_model_options("card", "layout", "device", "workers", "engine", "memory_limit", "time_limit")
def verify(
    run: Annotated[Path, typer.Argument(
        metavar="RUN", help="Folder of an audit or evaluation, or its archive.", show_default=False)],
    model_options: options.ModelOptions,
    model: Annotated[Path | None, typer.Option(help="The ONNX file that the run was made from.")] = None,
    images: Annotated[Path | None, typer.Option(help="Its images: folder, CSV or .npz.")] = None,
    heatmaps: Annotated[list[str] | None, _original(
        metavar="NAME=PATH", help="A bundle by its name in the run; repeatable.")] = None,
    pool: Annotated[Path | None, _original(help="Images for random infill.")] = None,
    infill: Annotated[list[Path] | None, _original(
        metavar="FILE", help="Picture of an infill image:FILE; repeatable.")] = None,
    baseline: Annotated[Path | None, _original(help="The earlier run that the audit compared with.")] = None,
    trust: Annotated[list[Path] | None, typer.Option(
        metavar="FILE", help="Public key of a signer; one of those given must have signed. Repeatable.")] = None,
    tsa: Annotated[list[Path] | None, typer.Option(
        metavar="FILE", help="Certificate of an authority whose time stamps you trust; repeatable.")] = None,
    sample: Annotated[float | None, typer.Option(
        help="Share of the images whose rows are recomputed; by default 0.05, and at least 32 images.")] = None,
    maps: Annotated[int | None, typer.Option(
        help="Images whose maps are recomputed, if the audit made them; by default 32, or 2 of costly ones.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sample; a new one by default, and printed.")] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List all problems, not only the first.")] = False,
) -> None:  # fmt: skip
    """Check that a run is what it says: no file changed, figures follow from rows, rows and maps can be reproduced.

    There are three answers. The run holds (exit code 0): all of it was checked. It does not hold (5): something was
    changed or cannot be reproduced. It could not be checked (3): nothing wrong was found, but something is missing,
    such as the model; each gap is listed with what to do.

    Rows are recomputed for a sample of the images and for those that decide most; so are maps that the audit made
    itself. No path that the run records is opened: name the files yourself. Nothing is written.

    With --trust, the run must be signed by one of those keys (see auditkit sign); without, a signature is not checked.

    Example: auditkit verify run --model vendor.onnx --images images/ --trust auditor.pub
    """
    from auditkit.engines.start import Workers
    from auditkit.errors import IntegrityFailure, NotChecked
    from auditkit.verdict import verify as verifying

    bundles = {name: Path(path) for name, path in options.parse_pairs(heatmaps, "--heatmaps", "NAME=PATH")}
    originals = verifying.Originals(
        model, images, bundles, pool, tuple(infill or ()), baseline, model_options.opening(),
        model_options.settings().device, Workers(model_options.workers, model_options.engine),
    )  # fmt: skip
    trusted = _trust(trust, tsa) if trust or tsa else verifying.Trust()
    with shown("recomputing", quiet=quiet) as progress:
        verification = verifying.verify(run, originals, verifying.Sampling(sample, maps, seed), progress, trusted)
    console.show(as_json, verification.to_json(), _fields(verification, verbose))
    problems, unchecked = verification.problems, verification.unchecked
    if problems:
        raise IntegrityFailure(f"{run} does not hold {_counted(problems, 'problem')}.")
    if unchecked:
        raise NotChecked(f"{run} could not be checked in full {_counted(unchecked, 'gap')}.")


def _trust(keys: list[Path] | None, certificates: list[Path] | None) -> "Trust":
    from auditkit.evidence.keys import read_certificate, read_public
    from auditkit.verdict.verify import Trust

    return Trust([read_public(path) for path in keys or ()], [read_certificate(path) for path in certificates or ()])


def _counted(texts: list[str], noun: str) -> str:
    first = texts[0].removesuffix(".")
    return f"(1 {noun}): {first}" if len(texts) == 1 else f"({len(texts):,} {noun}s); the first: {first}"


def _fields(verification: "Verification", verbose: bool) -> list[tuple[str, str]]:
    from auditkit.verdict.verify.verify import NOT_PROVEN, shown

    few, fields = tuple if verbose else shown, list[tuple[str, str]]()
    for check in verification.checks:
        texts = [f"DOES NOT HOLD: {problem}" for problem in few(check.problems)]
        texts += [f"COULD NOT BE CHECKED: {text}" for text in few(check.unchecked)]
        fields += [(check.name, text) for text in texts or [check.about]]
    sample = verification.sample
    if sample is not None:
        tolerance = f"{sample.tolerance:g} of a probability or area; {sample.why}"
        fields += [("chance", sample.escape), ("tolerance", tolerance)]
    answer = verification.answer if verification.answer == "holds" else verification.answer.upper()
    return [*fields, ("not proven", NOT_PROVEN), ("run", f"{verification.run} {answer}")]
