"""`auditkit inspect`: say what a model file is."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options
from auditkit.cli.progress import shown

if TYPE_CHECKING:
    from auditkit.model.card import Card
    from auditkit.runs.inspection import Inspection

_MAX_NAMES = 3  # class names that the table shows


@options.with_model_options(without=("vendor_key", "memory", "workers", "engine", "allow_failed"))
def inspect(
    model: options.ModelFile,
    model_options: options.ModelOptions,
    images: Annotated[Path | None, typer.Option(
        help="Labelled images (folder of class folders, CSV image,label or .npz): measures accuracy, checks the card.")]
    = None,
    as_json: options.AsJson = False,
    write_card: Annotated[bool, typer.Option(
        "--write-card", help="Write a card to start from, to --card or else next to the model.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Let --write-card overwrite a card.")] = False,
) -> None:  # fmt: skip
    """Show what an ONNX file is: input, output, preprocessing, device and, with labelled images, accuracy.

    The file is treated as hostile: it is first opened in a guarded child process, and a file that it names is
    read only if it is a plain file in the same folder.

    Example: auditkit inspect vendor.onnx --images labelled/
    """
    from auditkit.runs import inspection

    card = model_options.card
    if write_card and card is not None and not card.exists():
        model_options = replace(model_options, card=None)  # the card is yet to be written
    with shown("measuring accuracy") as progress:
        result = inspection.inspect(model, model_options.opening(), model_options.settings(), images, progress)
    target = card or model.with_suffix(".toml")
    if write_card:
        inspection.write_card(result, target, force=force)
    written = [("card", f"written to {target}")] if write_card else []
    console.show(as_json, result.to_json(), _fields(result) + written)


def _fields(result: "Inspection") -> list[tuple[str, str]]:
    model, accuracy = result.model, result.accuracy
    file, signature, card, settings = model.file, model.signature, model.card, model.settings
    more_names = ", ..." if len(card.names) > _MAX_NAMES else ""
    names = f" ({', '.join(card.names[:_MAX_NAMES])}{more_names})" if card.names else ""
    fields = [
        ("model", f"{file.path}  {file.bytes:,} bytes  opset {file.opset}  {file.producer}".rstrip()),
        ("sha256", file.sha256),
        ("input", f"'{signature.input}' {signature.dtype} {list(signature.shape)}  {signature.layout}"),
        ("size", f"{signature.height} x {signature.width}, {signature.channels} channels"),
        ("batch", f"{signature.batch}, rows {signature.rows}"),
        ("output", f"'{signature.output}'  {signature.kind}, {signature.classes} classes{names}"),
        ("preprocessing", f"from {card.origin}"),
        ("", f"{_resize(card)} ({card.interpolation}), crop {card.crop}, "
             f"{card.channels}, scale {card.scale:.6g}, mean {_short(card.mean)}, std {_short(card.std)}"
             f"{'' if card.exif_orientation else ', EXIF orientation ignored'}"),
        ("gray", _short(card.gray)),
        ("device", f"{settings.device}, precision {settings.precision}"),
    ]  # fmt: skip
    if accuracy is not None:
        text = f"{accuracy.correct} of {accuracy.n} top-1 ({accuracy.top1:.3f}), top-5 {accuracy.top5:.3f}"
        fields.append(("accuracy", text))
    trial = result.trial
    if trial is not None and trial.card_fits and trial.presets:
        right = f"{trial.accuracy.correct} of {trial.accuracy.n} right with {card.origin}"
        fields.append(("presets", f"{right}; {trial.alike(list(trial.presets))}"))
    fields += [("guessed", text) for text in result.guesses]
    return fields + [("warning", text) for text in result.warnings]


def _resize(card: "Card") -> str:
    if card.resize is None:
        return "no resize"
    return f"shorter side to {card.resize}" if isinstance(card.resize, int) else f"to {card.resize}"


def _short(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values) + "]"
