"""`auditkit bundle`: heatmaps in, checked."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditkit.cli import console, options
from auditkit.cli.command import Verb

if TYPE_CHECKING:
    from auditkit.data.bundle_check import Problem

ANY_CLASS = 2**31  # without a model, every label of the images is as good as another
SHOWN = 20  # problems in the table; --json has them all

app = typer.Typer(
    no_args_is_help=True,
    help="Bring heatmaps into the form that auditkit reads, and check them. A bundle is a folder with bundle.json (what"
    " the maps are), manifest.csv (image,label,heatmap) and the maps. From Python: auditkit.Bundle(path, "
    "model='vendor.onnx').add(ids, labels, array).",
)

Images = Annotated[
    Path | None,
    typer.Option(help="The images that the maps explain (folder, CSV or .npz): checks names and, for maps over the "
                      "photograph, sizes."),
]  # fmt: skip


@app.command(cls=Verb)
def check(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle's folder.", show_default=False)],
    images: Images = None,
    model: Annotated[Path | None, typer.Option(
        help="The ONNX file that the maps explain: checks its digest, the labels and the maps' sizes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    card: options.Card = None,
    preset: options.Preset = None,
) -> None:  # fmt: skip
    """Say whether a bundle can be used: every map is read, every problem named with its file and value.

    Ends with exit code 2 when there are errors, with 0 when there are warnings only.
    """
    from auditkit.data.bundle_check import check as problems_of  # noqa: PLC0415
    from auditkit.data.bundles import open_bundle  # noqa: PLC0415

    found, beside = open_bundle(bundle), _beside(images, model, card, preset)
    with console.progress("reading maps", "maps") as progress:
        problems = problems_of(found, progress=progress, **beside)
    errors = sum(problem.severity == "error" for problem in problems)
    if as_json:
        print(json.dumps({
            "schema_version": 1, "bundle": str(bundle), **_counts(found.labels), **_described(found.header.to_json()),
            "errors": errors, "warnings": len(problems) - errors, "problems": [each.to_json() for each in problems],
        }, indent=2))  # fmt: skip
    else:
        counted = ", ".join(f"{number} {what}" for what, number in _counts(found.labels).items())
        said = [(key, str(value)) for key, value in _described(found.header.to_json()).items() if value]
        console.table(
            [("bundle", f"{bundle}: {counted}"), *said, *_rows(problems), ("result", _result(errors, problems))]
        )
    if errors:
        raise typer.Exit(2)


@app.command("import", cls=Verb)
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:  # fmt: skip
    """Make a bundle of maps that lie in files. Labels come from the files, never from a guess.

    Image ids are those of the image set: the file's name relative to its folder, or its number in an .npz.

    Colour pictures are refused, since the order of the scores cannot be had back from them.
    """
    from auditkit.data.bundle_import import import_maps  # noqa: PLC0415
    from auditkit.data.bundles import Bundle  # noqa: PLC0415

    bundle = Bundle(out, model, method, frame)
    before = len(bundle)
    with console.progress("importing", "maps") as progress:
        notes = import_maps(source, bundle, channels, progress)
    warnings = [*notes, *bundle.header.notes]
    if as_json:
        print(json.dumps({
            "schema_version": 1, "bundle": str(out), "added": len(bundle) - before, "maps": len(bundle),
            "constant": bundle.constant, **_described(bundle.header.to_json()), "warnings": warnings,
        }, indent=2))  # fmt: skip
    else:
        said = [(key, str(value)) for key, value in _described(bundle.header.to_json()).items() if value]
        console.table([("bundle", f"{out}: {len(bundle) - before} maps added, {len(bundle)} in all"), *said,
                    *(("warning", text) for text in warnings)])  # fmt: skip


def _beside(images: Path | None, model: Path | None, card: Path | None, preset: str | None) -> dict[str, Any]:
    """What the bundle is checked against, as far as it is given."""
    from auditkit.data.dataset import Dataset  # noqa: PLC0415
    from auditkit.model.classifier import Opening, open_file  # noqa: PLC0415

    if model is None:
        return {} if images is None else {"images": Dataset.open(images, ANY_CLASS)}
    opened = open_file(model, Opening(card, preset), options.settings("cpu"))
    classes, names = opened.signature.classes, opened.card.names
    return {
        "images": None if images is None else Dataset.open(images, classes, names),
        "model_identity": opened.file.identity, "classes": classes, "card": opened.card,
    }  # fmt: skip


def _counts(labels: dict[str, tuple[int, ...]]) -> dict[str, int]:
    different = {label for row in labels.values() for label in row}
    return {"maps": sum(map(len, labels.values())), "images": len(labels), "labels": len(different)}


def _described(header: dict[str, Any]) -> dict[str, Any]:
    return {key: header[key] for key in ("method", "model", "frame", "channels", "sign", "producer")}


def _rows(problems: "list[Problem]") -> list[tuple[str, str]]:
    ordered = sorted(problems, key=lambda problem: problem.severity)
    rows = [(problem.severity, f"{problem.file}: {problem.message}") for problem in ordered[:SHOWN]]
    return rows + ([("", f"and {len(ordered) - SHOWN} more; --json has them all")] if len(ordered) > SHOWN else [])


def _result(errors: int, problems: "list[Problem]") -> str:
    warnings = len(problems) - errors
    return f"{'cannot' if errors else 'can'} be used: {errors} errors, {warnings} warnings"
