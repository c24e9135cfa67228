"""`auditkit evaluate`: how well heatmaps explain a model."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options

if TYPE_CHECKING:
    from auditkit.runs.summary.summarise import Summary

WHAT = "What is measured (part of every figure's name)"


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Folder, CSV or .npz.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results; given again, it goes on.")],
    heatmaps: Annotated[list[Path] | None, typer.Option(help="Bundle of heatmaps; may be given several times.")] = None,
    labels: Annotated[str | None, typer.Option(
        help="all, topK, f>=p or a list; all up to 20 classes, else top10.", rich_help_panel=WHAT)] = None,
    renormalise: Annotated[bool | None, typer.Option(
        "--renormalise/--whole", help="Probabilities over the label set alone.", rich_help_panel=WHAT)] = None,
    protocol: Annotated[str | None, typer.Option(
        help="A published tool's rules: paper, paper-code, rise, xplique, openvino or torchcam.",
        rich_help_panel=WHAT)] = None,
    infill: Annotated[list[str] | None, typer.Option(
        help="gray (unless told), blur, blur:SIGMA, random (images) or image:FILE; may be given several times.",
        rich_help_panel=WHAT)] = None,
    steps: Annotated[str | None, typer.Option(
        help="Points of a curve: a number, exact, auto (unless told) or auto:TOLERANCE.", rich_help_panel=WHAT)] = None,
    kept: Annotated[str, typer.Option(
        "--range", help="Kept fractions over which areas are taken, as 0.2:0.6.", rich_help_panel=WHAT)] = "0:1",
    eps1: Annotated[float | None, typer.Option(
        help="Least area that completeness sees; 0.01 unless told.", rich_help_panel=WHAT)] = None,
    eps2: Annotated[float | None, typer.Option(
        help="Least probability that soundness sees; 0.001 unless told.", rich_help_panel=WHAT)] = None,
    ties: Annotated[str | None, typer.Option(
        help="Order in ties: random (unless told), first or last.", rich_help_panel=WHAT)] = None,
    tie_orders: Annotated[int, typer.Option(
        help="More orders of tied pixels to try, to see what they change.", rich_help_panel=WHAT)] = 0,
    saliency: Annotated[str, typer.Option(
        help="Saliency metric by the largest component, by a tuned threshold, both or none.",
        rich_help_panel=WHAT)] = "component",
    deletion: Annotated[bool, typer.Option(help="Also measure deletion.", rich_help_panel=WHAT)] = True,
    seed: Annotated[int, typer.Option(help="Seed of ties, draws and intervals.", rich_help_panel=WHAT)] = 0,
    draws: Annotated[int, typer.Option(help="Random infill images a point.", rich_help_panel=WHAT)] = 4,
    pool: Annotated[Path | None, typer.Option(help="Images for random infill; else the audited ones.")] = None,
    controls: Annotated[bool, typer.Option(help="Also measure maps that know nothing of the model.")] = True,
    confidence: Annotated[float, typer.Option(help="Of the intervals.", rich_help_panel=WHAT)] = 0.95,
    interval: Annotated[str, typer.Option(
        help="Bootstrap interval: expanded, percentile or bca.", rich_help_panel=WHAT)] = "expanded",
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json instead of a table.")] = False,
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
    """Measure how well heatmaps explain a model: insertion and deletion, saliency metric, completeness, soundness.

    Every figure has an interval over the images and stands beside controls, maps that know nothing of the model. A run
    that was cut short goes on when the same command is given again.
    """
    from auditkit.data.dataset import Dataset  # noqa: PLC0415
    from auditkit.metrics.curves import parse_steps  # noqa: PLC0415
    from auditkit.model.classifier import open_file  # noqa: PLC0415
    from auditkit.runs import evaluate as runs  # noqa: PLC0415
    from auditkit.runs.evaluation.settings import Evaluation  # noqa: PLC0415

    settings = Evaluation(
        labels, renormalise, protocol, tuple(infill) if infill else None, parse_steps(steps) if steps else None,
        _range(kept), eps1, eps2, ties, tie_orders, seed, draws, controls, deletion, saliency, confidence, interval,  # type: ignore[arg-type]
    )  # fmt: skip
    opening = options.opening(card, preset, memory_limit, time_limit, size, input=input_, output=output, layout=layout,
                              kind=kind)  # fmt: skip
    opened = open_file(model, opening, options.settings(device, precision, batch, threads, memory))
    classes, names = opened.signature.classes, opened.card.names
    chosen = Dataset.open(images, classes, names)
    others = Dataset.open(pool, classes, names) if pool else None
    with console.progress("evaluating") as progress:
        found = runs.evaluate(opened, chosen, runs.named(heatmaps or []), settings, out, progress, others)
    if as_json:
        print(json.dumps(json.loads((out / "results.json").read_text()), indent=2))
    else:
        _print(found, out, opened.card.warnings)


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise typer.BadParameter(f"--range {text} is not like 0.2:0.6") from None
    return low, high


def _print(found: "Summary", out: Path, warnings: tuple[str, ...]) -> None:
    head, rows = found.grid()
    console.grid(head, rows, names=1 + ("infill" in head))
    about_model = [(metric.name, metric.text()) for metric in found.metrics if not metric.bundle]
    flags = [("warning", text) for text in warnings] + [("flag", text) for text in found.flags]
    last = [("measured", found.measured()), ("results", str(out / "results.json"))]
    console.table([*about_model, *found.remarks(), *flags, *last])
