"""`auditkit bundle`: check heatmaps, and bring them into the form that auditkit reads."""

from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options

if TYPE_CHECKING:
    from auditkit.data.bundle_check import Problem
    from auditkit.data.bundle_files import Header
    from auditkit.data.bundles import HeatmapSet
    from auditkit.runs.executor import Progress

_ANY_CLASS = 2**31  # without a model, every class index is allowed
_MAX_PROBLEMS = 20  # in the table; --json has them all

app = typer.Typer(
    no_args_is_help=True,
    help="Bring heatmaps into the form that auditkit reads, and check them. A bundle is a folder with bundle.json (what"
    " the maps are), manifest.csv (image,label,heatmap) and the maps. From Python: auditkit.Bundle(path, "
    "model='vendor.onnx').add(ids, labels, array).",
)


@app.command(cls=options.Verb)
@options.with_model_options("card", "preset")
def check(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle's folder.", show_default=False)],
    model_options: options.ModelOptions,
    images: Annotated[Path | None, typer.Option(
        help="The images that the maps explain (folder, CSV or .npz): checks names and, for maps over the photograph, "
             "sizes.")] = None,
    model: Annotated[Path | None, typer.Option(
        help="The ONNX file that the maps explain: checks its digest, the labels and the maps' sizes.")] = None,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Say whether a bundle can be used: read every map, and list every problem with its file and value.

    The exit code is 2 if there are errors, and 0 if there are only warnings.
    """
    from auditkit.data.bundles import open_bundle  # noqa: PLC0415

    maps = open_bundle(bundle)
    with console.progress("reading maps", "maps") as progress:
        problems = _problems(maps, images, model, replace(model_options, device="cpu"), progress)
    errors = sum(problem.severity == "error" for problem in problems)
    warnings = len(problems) - errors
    labels = set(chain.from_iterable(maps.labels.values()))
    counts = {"maps": len(maps), "images": len(maps.labels), "labels": len(labels)}
    about = f"{bundle}: {', '.join(f'{number} {what}' for what, number in counts.items())}"
    result = f"{'cannot' if errors else 'can'} be used: {errors} errors, {warnings} warnings"
    console.show(as_json, {
        "schema_version": 1, "bundle": str(bundle), **counts, **_facts(maps.header), "errors": errors,
        "warnings": warnings, "problems": [asdict(problem) for problem in problems],
    }, [
        ("bundle", about), *_header_fields(maps.header), *_problem_fields(problems), ("result", result),
    ])  # fmt: skip
    if errors:
        raise typer.Exit(2)


@app.command("import", cls=options.Verb)
def import_(
    source: Annotated[Path, typer.Argument(
        metavar="SOURCE", show_default=False,
        help="A folder of maps named like cat.jpg__281.npy (or grey .png), a CSV (image,label,heatmap) beside its maps"
             ", or an .npz (heatmaps, labels, images).")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="BUNDLE", show_default=False,
                                      help="Folder of the bundle to write or continue.")],
    model: Annotated[Path | None, typer.Option(
        help="The ONNX file that the maps explain; its digest goes into the bundle.")] = None,
    frame: Annotated[str, typer.Option(
        help="What the maps lie over: model-input (what the network saw) or original-image (the photograph).")]
    = "model-input",
    method: Annotated[str, typer.Option(help="What made the maps, such as 'Grad-CAM layer4'.")] = "",
    channels: Annotated[str | None, typer.Option(
        help="How three channels become one score: sum (the default), mean, abs-sum or max-abs.")] = None,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Make a bundle of maps that lie in files. Labels come from the files, never from a guess.

    Image ids are those of the image set: the file's name relative to its folder, or its number in an .npz.

    Colour pictures are refused, because the order of the scores cannot be recovered from them.
    """
    from auditkit.data.bundle_import import import_maps  # noqa: PLC0415
    from auditkit.data.bundles import Bundle  # noqa: PLC0415

    bundle = Bundle(out, model, method, frame)
    before = len(bundle)
    with console.progress("importing", "maps") as progress:
        notes = import_maps(source, bundle, channels, progress)
    added, warnings = len(bundle) - before, [*notes, *bundle.header.notes]
    console.show(as_json, {
        "schema_version": 1, "bundle": str(out), "added": added, "maps": len(bundle), "constant": bundle.constant,
        **_facts(bundle.header), "warnings": warnings,
    }, [
        ("bundle", f"{out}: {added} maps added, {len(bundle)} in all"), *_header_fields(bundle.header),
        *(("warning", text) for text in warnings),
    ])  # fmt: skip


def _problems(
    maps: "HeatmapSet", images: Path | None, model: Path | None, model_options: options.ModelOptions,
    progress: "Progress",
) -> "list[Problem]":  # fmt: skip
    """Problems of the bundle, checked against the images and the model if there are any."""
    from auditkit.data.bundle_check import check  # noqa: PLC0415
    from auditkit.data.dataset import Dataset  # noqa: PLC0415

    if model is None:
        return check(maps, None if images is None else Dataset.open(images, _ANY_CLASS), progress=progress)
    classifier = model_options.open(model)
    dataset = None if images is None else options.open_dataset(images, classifier)
    return check(maps, dataset, classifier.file.identity, classifier.signature.classes, classifier.card, progress)


def _facts(header: "Header") -> dict[str, str | None]:
    return {name: getattr(header, name) for name in ("method", "model", "frame", "channels", "sign", "producer")}


def _header_fields(header: "Header") -> list[tuple[str, str]]:
    return [(name, value) for name, value in _facts(header).items() if value]


def _problem_fields(problems: "list[Problem]") -> list[tuple[str, str]]:
    ordered = sorted(problems, key=lambda problem: problem.severity)
    fields = [(problem.severity, f"{problem.file}: {problem.message}") for problem in ordered[:_MAX_PROBLEMS]]
    rest = len(problems) - len(fields)
    return [*fields, ("", f"and {rest} more; --json lists them all")] if rest else fields
