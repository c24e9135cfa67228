"""`auditkit compare`: show what changed from one run to another."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options

if TYPE_CHECKING:
    from auditkit.runs.folder.results import Comparison, DifferenceResult, RunIdentity


def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="The earlier run.", show_default=False)],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="The later run.", show_default=False)],
    as_json: options.AsJson = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the JSON object to a file, or replace it.")
    ] = None,
) -> None:
    """Show what changed from one run to another: findings about the model, and paired differences, B minus A.

    Differences are taken on the images that both runs have. They are called better or worse only if both runs are of
    the same model, prepared alike; of two models, the higher figure is not the better one.

    Runs whose figures are not comparable are refused, with the list of what differs. The exit code is 0 even if the
    runs differ.

    Example: auditkit compare last-year this-year
    """
    from auditkit.data.atomic_write import write_whole
    from auditkit.errors import BadInput
    from auditkit.records import to_json
    from auditkit.runs.comparison.compare import compare

    comparison = compare(run_a, run_b)
    text = json.dumps(to_json(comparison), indent=2, allow_nan=False)
    if out is not None:
        write_whole(out, f"{text}\n".encode(), BadInput)
    if as_json:
        print(text)
    else:
        _print(comparison)


def _print(comparison: "Comparison") -> None:
    from auditkit.report import examination as relies
    from auditkit.verdict.flags import is_named

    by_infill = len({difference.infill for difference in comparison.differences if difference.infill}) > 1
    only = [f"{count} only in {name}" for name, count in (("A", comparison.only_a), ("B", comparison.only_b)) if count]
    console.print_fields([
        ("A", _run(comparison.a)), ("B", _run(comparison.b)),
        ("images", ", ".join([f"{comparison.shared_images} in both", *only])),
        *(("model", text) for text in relies.changes(comparison, ("A", "B"))),
    ])  # fmt: skip
    head = ["metric", "maps", *(["infill"] if by_infill else []), "A", "B", "B - A (bootstrap)", "images", "reading"]
    rows = [_row(difference, by_infill) for difference in comparison.differences]
    console.print_table(head, rows, names=2 + by_infill)
    changed = [check for check in comparison.checks if check.before != check.after]
    fields = [("checks", f"none of {len(comparison.checks)} changed")] if comparison.checks and not changed else []
    for check in changed:
        absent = "no such finding" if is_named(check.id) else "not in the policy"
        fields.append(("check", f"{check.id}: {check.before or absent} → {check.after or absent}"))
    console.print_fields([*fields, *(("note", text) for text in comparison.notes)])


def _run(identity: "RunIdentity") -> str:
    model = identity.model
    file = model if isinstance(model, str) else f"{Path(model.path).name} {model.sha256[:12]}"
    suppressed = f" with {', '.join(identity.suppressed)} suppressed" if identity.suppressed else ""
    return f"{identity.run}: {file}" + (f", verdict {identity.verdict}{suppressed}" if identity.verdict else "")


def _change(difference: "DifferenceResult") -> str:
    """What became of a figure: better or worse, or of another model higher or lower."""
    if difference.better is None:
        return str(difference.change)
    return "better" if difference.better else "worse"


def _row(difference: "DifferenceResult", by_infill: bool) -> list[str]:
    from auditkit.metrics.table import title

    maps = difference.bundle_b
    if difference.bundle_a != difference.bundle_b:
        maps = f"{difference.bundle_a} → {difference.bundle_b}"
    reading, ends = "too few images", ""
    if difference.low is not None and difference.high is not None:
        reading = "no difference shown"  # the interval includes 0
        ends = f" ({difference.low:+.4f} to {difference.high:+.4f})"
    if difference.change is not None:
        reading = f"{'↑' if difference.value > 0 else '↓'} {_change(difference)}"
    figures = [f"{difference.value_a:.4f}", f"{difference.value_b:.4f}", f"{difference.value:+.4f}{ends}"]
    names = [title(difference.name), maps or "", *([difference.infill] if by_infill else [])]
    return [*names, *figures, str(difference.n), reading]
