"""`auditkit differentiate`: write a model that also returns its gradient."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options

if TYPE_CHECKING:
    from auditkit.model.gradient import Differentiated

_MAX_OPERATORS = 8  # that the table names; --json has them all


@options.with_model_options(without=("vendor_key", "precision", "batch", "memory", "workers", "engine", "allow_failed"))
def differentiate(
    model: options.ModelFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.", show_default=False)],
    model_options: options.ModelOptions,
    wrt: Annotated[str | None, typer.Option(help="Differentiate with respect to this tensor, not the image.")] = None,
    gradient_output: Annotated[str | None, typer.Option(
        help="Output of the file that already is its gradient, if its name is not 'gradient'.")] = None,
    as_json: options.AsJson = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:  # fmt: skip
    """Write a model that also returns the gradient of its scores: 'seed' [N, classes] in, 'gradient' out.

    The gradient is that of sum(seed · scores), and has the shape of the input. Any onnxruntime runs the file. The
    gradient is checked against changes of the scores on noise images; a wrong one is not written.

    Example: auditkit differentiate vendor.onnx -o vendor-gradient.onnx
    """
    from auditkit.errors import BadInput
    from auditkit.model import gradient
    from auditkit.model.classifier import open_file

    for path in (out, out.with_name(f"{out.name}.data")):
        if os.path.lexists(path) and not force:
            raise BadInput(f"{path} already exists; choose another file with -o, or overwrite it with --force.")
    settings = replace(model_options, precision="strict").settings()
    classifier = open_file(model, model_options.opening(gradient_output), settings)
    derived = gradient.differentiate(classifier, wrt, gradient_output)
    write(derived, out)
    console.show(as_json, {"schema_version": 1, "out": str(out), **derived.to_json()}, _fields(derived, out))


def write(derived: "Differentiated", out: Path) -> None:
    """Write the model, and its large weights beside it."""
    from auditkit.data.atomic_write import write_whole
    from auditkit.errors import BadInput
    from auditkit.model.gradient import encoded

    for name, content in encoded(derived, out.name).items():
        write_whole(out.with_name(name), content, BadInput)


def _fields(derived: "Differentiated", out: Path) -> list[tuple[str, str]]:
    check = derived.check
    counts = [f"{count} {operator}" for operator, count in derived.operators.items()]
    more = f" and {len(counts) - _MAX_OPERATORS} more" if len(counts) > _MAX_OPERATORS else ""
    operators = ", ".join(counts[:_MAX_OPERATORS]) + more
    fields = [
        ("written", f"{out}  {out.stat().st_size:,} bytes"),
        ("gradient", f"of the scores with respect to '{derived.wrt}'"),
        ("operators", "the file has its own gradient" if derived.vendors_own else operators),
        ("nodes", f"{derived.nodes_before} before, {derived.nodes_after} after"),
        ("check", f"off by {100 * check.error:.2g} % on {check.lines} lines through noise images"),
    ]
    if derived.surrogate:
        text = "the model rounds its numbers; the gradient is that of the same model without rounding"
        fields.append(("surrogate", text))
    if derived.scores_were:
        text = f"seed, scores and gradient are float32; the model's own scores {derived.scores_were}"
        fields.append(("precision", text))
    return fields
