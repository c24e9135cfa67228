"""`auditkit explain`: heatmaps for every label, from the model's file alone."""

import json
from pathlib import Path
from typing import Annotated

import typer

from auditkit.cli import console, options

ALL_METHODS = (
    "mask, differences, gradient, gradient-input, smoothgrad, integrated-gradients, grad-cam, fong, igos++, rise, "
    "occlusion, masker, random, centred-gaussian, constant, edges, blurred-edges, noisy-gaussian or noisy-edges."
)


def explain(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Folder, CSV or .npz.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Bundle to write; given again, it is gone on with.")],
    method: Annotated[str, typer.Option(help=ALL_METHODS)] = "mask",
    labels: Annotated[str | None, typer.Option(
        help="all, topK, f>=p or a list; all up to 20 classes, else top10.")] = None,
    option: Annotated[list[str] | None, typer.Option(
        "--option", help="An option of the method, as steps=300; may be given several times.")] = None,
    gradient: Annotated[str, typer.Option(
        help="How a mask is learned: by the graph's gradient, by differences, or auto (the first that can).")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of all that is drawn.")] = 0,
    pool: Annotated[Path | None, typer.Option(help="Images to fill in with; else the explained ones.")] = None,
    drawn: Annotated[Path | None, typer.Option(
        "--pictures", help="Folder for pictures: image, order of its pixels, first 30 %.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
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
    memory: options.Memory = None,
    memory_limit: options.MemoryLimit = 1.0,
    time_limit: options.TimeLimit = 45.0,
) -> None:  # fmt: skip
    """Make heatmaps for every label of every image, by one method, into a bundle that `auditkit evaluate` takes.

    Maps that the bundle has already are kept, so a command that was cut short goes on when it is given again.
    """
    from auditkit.data.dataset import Dataset  # noqa: PLC0415
    from auditkit.errors import BadInput  # noqa: PLC0415
    from auditkit.model.classifier import open_file  # noqa: PLC0415
    from auditkit.runs import explain as runs  # noqa: PLC0415
    from auditkit.runs.explain_record import Record  # noqa: PLC0415

    what = runs.Explanation(method, labels, options.pairs(option), seed, gradient)
    what.chosen()  # told before the model is opened
    if drawn is not None and drawn.exists() and not drawn.is_dir():
        raise BadInput(f"--pictures {drawn} is a file; name a folder.")
    opening = options.opening(card, preset, memory_limit, time_limit, size, input=input_, output=output, layout=layout,
                              kind=kind)  # fmt: skip
    opened = open_file(model, opening, options.settings(device, precision, batch, threads, memory))
    classes, names = opened.signature.classes, opened.card.names
    chosen = Dataset.open(images, classes, names)
    others = Dataset.open(pool, classes, names) if pool else None
    used = what.fitting(opened)
    with console.progress("explaining") as progress:
        found = runs.explain(opened, chosen, used, out, others, progress)
    if drawn is not None:
        from auditkit.runs.pictures import heatmap_panels  # noqa: PLC0415

        heatmap_panels.draw(opened, chosen, found, drawn)
    record = Record.of(out)
    told = {"bundle": str(out), "method": found.header.method, "maps": len(found), "images": len(found.labels),
            "passes": record.passes, "gradients": record.gradients, "computed": "; ".join(record.computed)}  # fmt: skip
    said = [*record.notes, *found.notes]
    if used.method != what.method:
        said.insert(0, f"{what.method} without a gradient: {used.method} is used")
    if as_json:
        print(json.dumps({"schema_version": 1, **told, "notes": said}, indent=2))
    else:
        notes = [("warning", text) for text in opened.card.warnings] + [("note", note) for note in said]
        console.table([*((name, str(value)) for name, value in told.items()), *notes])
