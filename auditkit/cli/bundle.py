"""`auditkit bundle`: check heatmaps, and bring them into the form that auditkit reads."""

from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options
from auditkit.cli.progress import shown

if TYPE_CHECKING:
    from auditkit.data.bundle_files import Header

_ANY_CLASS = 2**31  # without a model, every class index is allowed
_MAX_PROBLEMS = 20  # in the table; --json has them all

app = typer.Typer(
    no_args_is_help=True,
    cls=options.Verbs,
    help="Import heatmaps into a bundle, which auditkit reads, and check bundles.\n\n"
    "A bundle is a folder with bundle.json (what the maps are), manifest.csv (image,label,heatmap) and the maps. From "
    "Python: auditkit.Bundle(path, model='vendor.onnx').add(ids, {label: maps}).",
)


@options.verb(app, "check")
@options.with_model_options("card", "preset", "ignore_exif", "input", "output", "layout", "kind", "size")
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
    """Check whether a bundle can be used: read every map, and list every problem with its file and value.

    The exit code is 2 if there are errors, and 0 if there are only warnings.

    Example: auditkit bundle check maps --model vendor.onnx --images images/
    """
    from auditkit.data import bundle_check
    from auditkit.data.bundles import open_bundle
    from auditkit.data.dataset import Dataset

    maps = open_bundle(bundle)
    dataset = identity = classes = card = None
    model_options = replace(model_options, device="cpu")
    if model is None and images is not None:
        dataset = Dataset.open(images, _ANY_CLASS)
    elif model is not None:
        if images is None:
            classifier = model_options.open(model)
        else:
            classifier, dataset, _ = model_options.open_with_images(model, images, None)
        identity, classes, card = classifier.identity, classifier.signature.classes, classifier.card
    with shown("reading maps", "maps") as progress:
        problems = bundle_check.check(maps, dataset, identity, classes, card, progress)
    first = sorted(problems, key=lambda problem: problem.severity)[:_MAX_PROBLEMS]
    rows = [(problem.severity, f"{problem.file}: {problem.message}") for problem in first]
    if len(problems) > _MAX_PROBLEMS:
        rows.append(("", f"and {len(problems) - _MAX_PROBLEMS} more; --json lists them all"))
    errors = sum(problem.severity == "error" for problem in problems)
    warnings = len(problems) - errors
    labels = set(chain.from_iterable(maps.labels.values()))
    counts = {"maps": len(maps), "images": len(maps.labels), "labels": len(labels)}
    about = f"{bundle}: {', '.join(f'{number} {what}' for what, number in counts.items())}"
    result = f"{'cannot' if errors else 'can'} be used: {errors} errors, {warnings} warnings"
    options_left = ((model, "labels and sizes (--model)"), (images, "names of images (--images)"))
    unchecked = [text for value, text in options_left if value is None]
    result += f"; not checked: {', '.join(unchecked)}" if unchecked else ""
    console.show(as_json, {
        "schema_version": 1, "bundle": str(bundle), **counts, **_facts(maps.header), "errors": errors,
        "warnings": warnings, "problems": [asdict(problem) for problem in problems],
    }, [
        ("bundle", about), *_header_fields(maps.header), *rows, ("result", result),
    ])  # fmt: skip
    if errors:
        raise typer.Exit(2)


@options.verb(app, "import")
def import_(
    source: Annotated[Path, typer.Argument(
        metavar="SOURCE", show_default=False,
        help="A folder of maps named like cat.jpg__281.npy (or grey .png), a CSV (image,label,heatmap) next to its maps"
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
    """Make a bundle from heatmaps in files. Labels come from the files, never from a guess.

    Image ids are those of the image set: the file's name relative to its folder, or its number in an .npz.

    Colour pictures are refused, because the order of the scores cannot be recovered from them.

    Example: auditkit bundle import heatmaps/ -o maps --model vendor.onnx --method 'Grad-CAM layer4'
    """
    from auditkit.data.bundle_import import import_maps
    from auditkit.data.bundles import Bundle

    bundle = Bundle(out, model, method, frame)
    before = len(bundle)
    with shown("importing", "maps") as progress:
        notes = import_maps(source, bundle, channels, progress)
    added, warnings = len(bundle) - before, [*notes, *bundle.header.notes]
    console.show(as_json, {
        "schema_version": 1, "bundle": str(out), "added": added, "maps": len(bundle), "constant": bundle.constant,
        **_facts(bundle.header), "warnings": warnings,
    }, [
        ("bundle", f"{out}: {added} maps added, {len(bundle)} in total"), *_header_fields(bundle.header),
        *(("warning", text) for text in warnings),
    ])  # fmt: skip


def _facts(header: "Header") -> dict[str, str | None]:
    return {name: getattr(header, name) for name in ("method", "model", "frame", "channels", "sign", "producer")}


def _header_fields(header: "Header") -> list[tuple[str, str]]:
    return [(name, value) for name, value in _facts(header).items() if value]
