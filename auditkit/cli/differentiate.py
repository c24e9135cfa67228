"""`auditkit differentiate`: a model that also returns its gradient."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options

if TYPE_CHECKING:
    from auditkit.model.gradient import Differentiated

MOST_SHOWN = 8  # operators


def differentiate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.", show_default=False)],
    wrt: Annotated[str | None, typer.Option(help="Tensor to differentiate by; otherwise the image input.")] = None,
    gradient_output: Annotated[str | None, typer.Option(
        help="Output of the file that already is its gradient, where it is not named 'gradient'.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file to write.")] = False,
    card: options.Card = None,
    preset: options.Preset = None,
    input_: options.Input = None,
    output: options.Output = None,
    layout: options.Layout = None,
    kind: options.Kind = None,
    size: options.Size = None,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    memory_limit: options.MemoryLimit = 1.0,
    time_limit: options.TimeLimit = 45.0,
) -> None:  # fmt: skip
    """Write a model that also returns the gradient of its scores: 'seed' [N, classes] in, 'gradient' out.

    The gradient is that of sum(seed · scores), and has the shape of the input. Any onnxruntime runs the file. The
    gradient is checked against changes of the scores on noise images; a wrong one is not written.
    """
    from auditkit.errors import BadInput  # noqa: PLC0415
    from auditkit.model import gradient  # noqa: PLC0415
    from auditkit.model.classifier import open_file  # noqa: PLC0415

    if out.exists() and not force:
        raise BadInput(f"{out} exists already; name another file with -o, or overwrite it with --force.")
    opening = options.opening(card, preset, memory_limit, time_limit, size, input=input_, output=output, layout=layout,
                              kind=kind, gradient_output=gradient_output)  # fmt: skip
    classifier = open_file(model, opening, options.settings(device, "strict", None, threads))
    found = gradient.differentiate(classifier, wrt, gradient_output)
    gradient.write(found, out)
    if as_json:
        print(json.dumps({"schema_version": 1, "out": str(out), **found.to_json()}, indent=2))
    else:
        console.table(_rows(found, out))


def _rows(found: "Differentiated", out: Path) -> list[tuple[str, str]]:
    shown = [f"{count} {operator}" for operator, count in list(found.operators.items())[:MOST_SHOWN]]
    more = len(found.operators) - len(shown)
    by = (
        "brought along by the file" if found.vendors_own else f"{', '.join(shown)}{f' and {more} more' if more else ''}"
    )
    rows = [
        ("written", f"{out}  {out.stat().st_size:,} bytes"),
        ("gradient", f"of the scores with respect to '{found.wrt}'"),
        ("operators", by),
        ("nodes", f"{found.nodes_before} before, {found.nodes_after} after"),
        ("check", f"off by {100 * found.check.error:.2g} % on {found.check.lines} lines through noise images"),
    ]
    if found.surrogate:
        said = "the model rounds its numbers; the gradient is that of the same model without rounding"
        rows.append(("surrogate", said))
    if found.scores_were:
        rows.append(("precision", f"seed, scores and gradient are float32; the model's own scores {found.scores_were}"))
    return rows
