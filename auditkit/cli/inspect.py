"""`auditkit inspect`: what a model file is."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options

if TYPE_CHECKING:
    from auditkit.runs.inspection.inspect_model import Inspection


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    images: Annotated[Path | None, typer.Option(
        help="Labelled images (folder of class folders, CSV image,label or .npz): measures accuracy, checks the card.")]
    = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    write_card: Annotated[bool, typer.Option(
        "--write-card", help="Write a card to start from: to --card, or else beside the model.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Let --write-card overwrite a card.")] = False,
    card: options.Card = None,
    preset: options.Preset = None,
    input_: options.Input = None,
    output: options.Output = None,
    layout: options.Layout = None,
    kind: options.Kind = None,
    size: options.Size = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    batch: options.Batch = None,
    threads: options.Threads = 0,
    memory_limit: options.MemoryLimit = 1.0,
    time_limit: options.TimeLimit = 45.0,
) -> None:  # fmt: skip
    """Say what an ONNX file is: input, output, preprocessing, device and, with labelled images, accuracy.

    The file is treated as hostile: it is first opened in a guarded child process, and no other file that it names is
    read unless it is a plain file beside it.
    """
    from auditkit.model.card import path_beside  # noqa: PLC0415
    from auditkit.runs.inspection import inspect_model  # noqa: PLC0415

    used = None if write_card and card is not None and not card.exists() else card
    opening = options.opening(used, preset, memory_limit, time_limit, size, input=input_, output=output, layout=layout,
                              kind=kind)  # fmt: skip
    settings = options.settings(device, precision, batch, threads)
    with console.progress("measuring accuracy") as progress:
        found = inspect_model.inspect(model, opening, settings, images, progress)
    target = card or path_beside(model)
    if write_card:
        inspect_model.write_card(found, target, force=force)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        console.table(_rows(found) + ([("card", f"written to {target}")] if write_card else []))


def _rows(found: "Inspection") -> list[tuple[str, str]]:
    file, signature, card = found.model.file, found.model.signature, found.model.card
    settings, classes = found.model.settings, found.model.signature.classes
    names = f" ({', '.join(card.names[:3])}{', ...' if classes > 3 else ''})" if card.names else ""
    resize = f"shorter side to {card.resize}" if isinstance(card.resize, int) else f"to {card.resize}"
    rows = [
        ("model", f"{file.path}  {file.bytes:,} bytes  opset {file.opset}  {file.producer}".rstrip()),
        ("sha256", file.sha256),
        ("input", f"'{signature.input}' {signature.dtype} {list(signature.shape)}  {signature.layout}"),
        ("size", f"{signature.height} x {signature.width}, {signature.channels} channels"),
        ("batch", f"{signature.batch}, rows {signature.rows}"),
        ("output", f"'{signature.output}'  {signature.kind}, {classes} classes{names}"),
        ("preprocessing", f"from {card.source}"),
        ("", f"{'no resize' if card.resize is None else resize} ({card.interpolation}), crop {card.crop}, "
             f"{card.channels}, scale {card.scale:.6g}, mean {_short(card.mean)}, std {_short(card.std)}"),
        ("gray", _short(card.gray)),
        ("device", f"{settings.device}, precision {settings.precision}"),
    ]  # fmt: skip
    if found.accuracy is not None:
        result = found.accuracy
        rows.append(("accuracy", f"{result.correct} of {result.n} top-1 ({result.top1:.3f}), top-5 {result.top5:.3f}"))
    rows += [("guessed", text) for text in found.guesses]
    return rows + [("warning", text) for text in found.warnings]


def _short(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values) + "]"
