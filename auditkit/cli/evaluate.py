"""`auditkit evaluate`: measure how well heatmaps explain a model."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from auditkit.cli import console, options, plans
from auditkit.cli.progress import shown

_setting = partial(typer.Option, rich_help_panel="What is measured (part of every figure's name)")


@options.with_model_options()
def evaluate(
    model: options.ModelFile,
    images: options.ImagesPath,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results; run again to resume.")],
    model_options: options.ModelOptions,
    heatmaps: Annotated[list[Path] | None, typer.Option(metavar="BUNDLE", help="Heatmaps; repeatable.")] = None,
    labels: Annotated[str | None, _setting(
        help="all, topK, f>=p or a list; all for up to 20 classes, otherwise top10.")] = None,
    renormalise: Annotated[bool | None, _setting(
        "--renormalise/--whole", help="Probabilities over the label set alone.")] = None,
    protocol: Annotated[str | None, _setting(
        help="A published tool's rules: paper, paper-code, rise, xplique, openvino or torchcam.")] = None,
    infill: Annotated[list[str] | None, _setting(
        metavar="INFILL", help="gray (the default), blur, blur:SIGMA, random or image:FILE; repeatable.")] = None,
    steps: Annotated[str | None, _setting(
        help="Points of a curve: a number, exact, auto (the default) or auto:TOLERANCE.")] = None,
    kept_range: Annotated[str, _setting(
        "--range", help="Kept fractions over which areas are taken, such as 0.2:0.6.")] = "0:1",
    eps1: Annotated[float | None, _setting(help="Smallest area that completeness uses; 0.01 by default.")] = None,
    eps2: Annotated[float | None, _setting(help="Smallest probability that soundness uses; 0.001 by default.")] = None,
    ties: Annotated[str | None, _setting(help="Order of tied pixels: random (the default), first or last.")] = None,
    tie_orders: Annotated[int, _setting(help="Further orders of tied pixels to try, to see what they change.")] = 0,
    saliency: Annotated[str, _setting(
        help="Saliency metric: component (the largest), tuned (a threshold), both or none.")] = "component",
    deletion: Annotated[bool, _setting(help="Also measure deletion.")] = True,
    seed: Annotated[int, _setting(help="Seed of ties, draws and intervals.")] = 0,
    draws: Annotated[int, _setting(help="Random infill images per point.")] = 4,
    pool: Annotated[Path | None, typer.Option(help="Images for random infill; by default the audited ones.")] = None,
    controls: Annotated[bool, typer.Option(help="Also measure maps that know nothing of the model.")] = True,
    confidence: Annotated[float, _setting(help="Confidence of the intervals.")] = 0.95,
    interval: Annotated[str, _setting(help="Bootstrap interval: expanded, percentile or bca.")] = "expanded",
    limit: options.Limit = None,
    shard: options.ShardOption = None,
    record_machine: options.RecordMachine = False,
    dry_run: options.DryRun = False,
    as_json: options.AsResultsJson = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:  # fmt: skip
    """Measure how well heatmaps explain a model: insertion and deletion, saliency metric, completeness, soundness.

    Every figure has an interval over the images and is shown next to controls, maps that ignore the model. Run the
    same command again to resume an interrupted run.

    Example: auditkit evaluate vendor.onnx images/ --heatmaps maps -o run
    """
    from auditkit.metrics.curves import parse_steps
    from auditkit.runs import evaluate as runs
    from auditkit.runs.evaluation.settings import Evaluation
    from auditkit.runs.executor import Shard
    from auditkit.runs.folder.store import Store
    from auditkit.runs.summary.wording import figure_text, remarks
    from auditkit.verdict import estimate

    settings = Evaluation(
        labels=labels, renormalise=renormalise, protocol=protocol, infill=tuple(infill) if infill else None,
        steps=parse_steps(steps) if steps else None, range=_parse_range(kept_range), eps1=eps1, eps2=eps2,
        ties=ties, tie_orders=tie_orders, seed=seed, draws=draws, controls=controls, deletion=deletion,  # type: ignore[arg-type]
        saliency=saliency, confidence=confidence, interval=interval,  # type: ignore[arg-type]
    )  # fmt: skip
    part = None if shard is None else Shard.parse(shard)
    Store(out).require_usable()
    bundles = runs.open_bundles(heatmaps or [])
    classifier, dataset, infill_pool = model_options.open_with_images(model, images, pool, limit, quiet=quiet)
    count, schedule = sum(map(len, runs.units_of(classifier, dataset, settings, part))), None
    if dry_run or not out.exists():
        output = plans.Output(dry_run, as_json, quiet)
        with plans.trial(output):
            cost = estimate.evaluating(classifier, dataset, settings, len(bundles), infill_pool)
            what = f"{plans.taken(count, len(dataset))}, {', '.join(bundles) or 'controls alone'}"
            ways = plans.shorter_figures(cost, count) if part is None else ()
            schedule = plans.announce(output, what, [cost], count, ways)
    if dry_run:
        return
    if part is not None:
        with shown("evaluating", schedule=schedule, quiet=quiet) as progress:
            units = runs.evaluate_shard(
                classifier, dataset, bundles, settings, out, part, progress, infill_pool,
                options.command_line(record_machine=record_machine), record_machine=record_machine,
            )  # fmt: skip
        console.show_shard(as_json, str(part), out, *units)
        return
    with shown("evaluating", schedule=schedule, quiet=quiet) as progress:
        summary = runs.evaluate(
            classifier, dataset, bundles, settings, out, progress, infill_pool, record_machine=record_machine
        )
    if as_json:
        console.print_json(json.loads((out / "results.json").read_text()))
        return
    head, rows = summary.grid()
    console.print_table(head, rows, names=1 + ("infill" in head))
    console.print_fields([
        *((metric.name, figure_text(metric)) for metric in summary.metrics if not metric.bundle),
        *remarks(summary.metrics),
        *(("warning", text) for text in classifier.card.warnings),
        *(("flag", text) for text in summary.flag_texts()),
        ("measured", summary.settings_text()),
        ("results", str(out / "results.json")),
        *(console.identifiers(classifier, dataset) if verbose else []),
    ])  # fmt: skip


def _parse_range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise typer.BadParameter(f"--range {text} is not a range such as 0.2:0.6") from None
    return low, high
