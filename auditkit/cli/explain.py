"""`auditkit explain`: make heatmaps for every label, from the model's file alone."""

from pathlib import Path
from typing import Annotated

import typer

from auditkit.cli import console, options, plans
from auditkit.cli.progress import shown

_METHODS = (
    "mask, differences, gradient, gradient-input, smoothgrad, integrated-gradients, grad-cam, fong, igos++, rise, "
    "occlusion, masker, random, centred-gaussian, constant, edges, blurred-edges, noisy-gaussian or noisy-edges."
)


@options.with_model_options()
def explain(
    model: options.ModelFile,
    images: options.ImagesPath,
    out: Annotated[Path, typer.Option("--out", "-o", help="Bundle to write; run again to resume.")],
    model_options: options.ModelOptions,
    method: Annotated[str, typer.Option(help=_METHODS)] = "mask",
    labels: Annotated[str | None, typer.Option(
        help="all, topK, f>=p or a list; all for up to 20 classes, otherwise top10.")] = None,
    quality: options.Quality = None,
    option: options.MethodOption = None,
    gradient: options.Gradient = "auto",
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    pool: Annotated[Path | None, typer.Option(help="Images to fill in with; by default the explained ones.")] = None,
    pictures: Annotated[Path | None, typer.Option(
        help="Folder for pictures: the image, the order of its pixels, the first 5 %.")] = None,
    limit: options.Limit = None,
    shard: options.ShardOption = None,
    record_machine: options.RecordMachine = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:  # fmt: skip
    """Make heatmaps for every label of every image by one method, in a bundle for `auditkit evaluate`.

    Maps that the bundle already has are kept: run the same command again to resume.

    Example: auditkit explain vendor.onnx images/ -o maps --method grad-cam --labels top2
    """
    from auditkit.errors import BadInput
    from auditkit.runs import explain as runs
    from auditkit.runs.executor import Shard
    from auditkit.runs.explanation.record import Record
    from auditkit.runs.folder.contents import require_resumable
    from auditkit.verdict import estimate

    request = runs.Explanation(method, labels, options.method_options(option, quality), seed, gradient)
    request.resolved()  # refuses unknown options before the model is opened
    if pictures is not None and pictures.exists() and not pictures.is_dir():
        raise BadInput(f"--pictures {pictures} is a file; name a folder.")
    part = None if shard is None else Shard.parse(shard)
    require_resumable(out)
    classifier, dataset, infill_pool = model_options.open_with_images(model, images, pool, limit, quiet=quiet)
    explanation = request.adapted_to(classifier)
    console.print_notes(explanation.notes, quiet)
    count, schedule = len(runs.share_of(classifier, dataset, explanation, part)), None
    if dry_run or not out.exists():
        output = plans.Output(dry_run, as_json, quiet)
        with plans.trial(output):
            what = f"{plans.taken(count, len(dataset))}, maps by {explanation.method}"
            cost = estimate.explaining(classifier, dataset, explanation, infill_pool)
            ways = plans.shorter_maps(cost, count, explanation) if part is None else ()
            schedule = plans.announce(output, what, [cost], count, ways)
    if dry_run:
        return
    with shown("explaining", schedule=schedule, quiet=quiet) as progress:
        maps = runs.explain(
            classifier, dataset, explanation, out, infill_pool, progress, part, record_machine=record_machine
        )
    if pictures is not None:
        from auditkit.runs.pictures import heatmap_panels

        heatmap_panels.draw(classifier, dataset, maps, pictures)
    record = Record.of(out)
    facts = {
        "bundle": str(out), "method": maps.header.method, "maps": len(maps), "images": len(maps.labels),
        "passes": record.passes, "gradients": record.gradients, "computed": "; ".join(record.computed),
    }  # fmt: skip
    notes = [*record.notes, *maps.notes]
    fields = [(name, str(value)) for name, value in facts.items()]
    fields += [("warning", text) for text in classifier.card.warnings] + [("note", note) for note in notes]
    fields += console.identifiers(classifier, dataset) if verbose else []
    console.show(as_json, {"schema_version": 1, **facts, "notes": notes}, fields)
