"""`auditkit examine`: find out what a model relies on."""

from pathlib import Path
from typing import Annotated

import typer

from auditkit.cli import console, options, plans
from auditkit.cli.progress import scheduled


@options.with_model_options()
def examine(
    model: options.ModelFile,
    images: options.ImagesPath,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the run; run again to resume.")],
    model_options: options.ModelOptions,
    heatmaps: Annotated[Path | None, typer.Option(
        help="Bundle with maps of the predicted labels; by default they are made here.")] = None,
    method: Annotated[str, typer.Option(help="Make the maps by this method (see auditkit explain).")] = "differences",
    option: options.MethodOption = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers, such as which half proposes.")] = 0,
    limit: options.Limit = None,
    record_machine: options.RecordMachine = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:  # fmt: skip
    """Find out what a model relies on: a corner, the border, the colour, a fine pattern, the background, a small mark.

    Parts are exchanged between images with different predicted labels; if the model relies on a part, its prediction
    follows the part. One half of the images proposes, the other confirms. Exit code 0: no finding, 1: a finding,
    2: bad input, 4: the machine failed.

    Example: auditkit examine vendor.onnx images/ -o examined
    """
    from auditkit.records import to_object
    from auditkit.report import examination as words
    from auditkit.report.examination_page import render_page
    from auditkit.runs.examination import run
    from auditkit.runs.examination.examine import FEWEST_IMAGES, MOST_IMAGES
    from auditkit.runs.explain import Explanation
    from auditkit.runs.folder.names import REPORT
    from auditkit.runs.folder.store import Store
    from auditkit.verdict import estimate
    from auditkit.verdict.plan import CHEAP_METHOD

    explanation = Explanation(method, "top1", options.method_options(option, None), seed)
    explanation.resolved()  # refuses unknown options before the model is opened
    Store(out).require_usable()
    classifier, dataset, _ = model_options.open_with_images(model, images, None, limit, quiet=quiet)
    schedule = None
    if dry_run or not out.exists():
        output = plans.Output(dry_run, as_json, quiet)
        with plans.trial(output):
            number = min(len(dataset), MOST_IMAGES)
            rate = estimate.forward_rate(classifier, dataset)
            costs = [estimate.examining(rate, classifier.engine)]
            if heatmaps is None:
                maker = run.few_passes(explanation, classifier)
                costs.insert(0, estimate.explaining(classifier, dataset, maker, None, rate))

            def cheap() -> estimate.Cost:
                return estimate.explaining(classifier, dataset, Explanation(CHEAP_METHOD, "top1"), None, rate)

            ways = plans.shorter_examination(costs, number, FEWEST_IMAGES, cheap)
            what = f"{number} images, maps of their predictions {'by ' + method if heatmaps is None else 'as supplied'}"
            schedule = plans.announce(output, what, costs, number, ways)
    if dry_run:
        return
    examined = run.examine(
        classifier, dataset, explanation, heatmaps, out, scheduled(schedule, quiet), render_page,
        record_machine=record_machine,
    )  # fmt: skip
    names, examination = examined.subject.class_names, examined.examination
    if as_json:
        console.print_json(to_object(examined))
    else:
        console.print_fields([
            ("relies on", words.summary(examination, names)), ("how sure", words.how(examination)),
            *((finding.severity, words.seen(finding, names)) for finding in examination.findings),
            *(("next step", words.to_do(finding)) for finding in examination.findings),
            *([("note", words.everywhere(examination))] if words.everywhere(examination) else []),
            ("report", str(out / REPORT)),
            *(console.identifiers(classifier, dataset) if verbose else []),
        ])  # fmt: skip
    raise typer.Exit(1 if examination.findings else 0)
