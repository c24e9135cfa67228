"""`auditkit demo`: the planted truth."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options

if TYPE_CHECKING:
    from auditkit.demo.planted import Demo


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the audits and the page.")] = Path(
        "auditkit-demo"
    ),
    count: Annotated[int, typer.Option(help="Images to audit on.", min=20, max=10_000)] = 30,
    answered: Annotated[int, typer.Option(help="Images of each kind to ask about.", min=10, max=100_000)] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the drawings.", min=0)] = 7,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Audit two vendors' models, one honest and one that reads a tag in the corner, on images drawn here.

    Both are right on ordinary images. Where their evidence lies tells them apart. The exit code is 0 when both audits
    ran, whatever they found.
    """
    from auditkit.data.atomic_write import write_whole  # noqa: PLC0415
    from auditkit.demo import page, planted  # noqa: PLC0415

    found = planted.run(out, count, answered, seed, options.settings(device), console.progress)
    write_whole(out / "report.html", page.render(found).encode())
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        console.table(_rows(found, page.headline(found)))


def _rows(found: "Demo", headline: str) -> list[tuple[str, str]]:
    def said(model: str, right: float, lied: float, on_object: float, on_tag: float) -> tuple[str, str]:
        return model, (
            f"{right:.0%} right on ordinary images, {lied:.0%} when tags lie; {on_object:.0%} of its evidence on the "
            f"shape, {on_tag:.0%} on the tag"
        )

    return [
        ("images", f"{len(found.audited.images)} audited, {found.answered} of each kind asked, seed {found.seed}"),
        *(said(vendor.model, vendor.correct_when_agree, vendor.correct_when_disagree, vendor.on_object.share.value,
               vendor.on_tag.share.value) for vendor in found.vendors),
        ("so", headline),
        ("report", str(found.folder / "report.html")),
    ]  # fmt: skip
