"""`auditkit compare`: what changed from one run to another."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console

WHEN = ("before", "after")

if TYPE_CHECKING:
    from auditkit.runs.comparison.compare import Comparison, Difference


def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="The earlier run.", show_default=False)],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="The later run.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write that object to a file.")] = None,
) -> None:
    """Show what changed from one run to another: paired differences, B less A, on the images that both have.

    Runs whose figures are not of the same kind are refused, with all that differs. That runs differ is no failure: the
    exit code is 0.
    """
    from auditkit.data.atomic_write import write_whole  # noqa: PLC0415
    from auditkit.errors import BadInput  # noqa: PLC0415
    from auditkit.runs.comparison.compare import compare  # noqa: PLC0415

    found = compare(run_a, run_b)
    text = json.dumps(found.to_json(), indent=2, allow_nan=False)
    if out is not None:
        try:
            write_whole(out, f"{text}\n".encode())
        except OSError as error:
            raise BadInput(f"{out} cannot be written: {error.strerror or error}.") from None
    if as_json:
        print(text)
    else:
        _print(found)


def _print(found: "Comparison") -> None:
    several = len({one.infill for one in found.differences if one.infill}) > 1
    head = ["metric", "maps", *(["infill"] if several else []), "A", "B", "B - A", "images", "reading"]
    rows = [_row(one, several) for one in found.differences]
    console.table([("A", _run(found.a)), ("B", _run(found.b)), ("images", _images(found))])
    console.grid(head, rows, names=2 + several)
    changed = [
        ("check", f"{check['id']}: {' → '.join(check[when] or _absent(str(check['id'])) for when in WHEN)}")
        for check in found.checks
        if check["before"] != check["after"]
    ]
    if found.checks and not changed:
        changed = [("checks", f"none of {len(found.checks)} changed")]
    console.table([*changed, *(("note", said) for said in found.notes)])


def _absent(name: str) -> str:
    """What it means that a run has no such finding."""
    from auditkit.verdict.flags import is_named  # noqa: PLC0415

    return "no such finding" if is_named(name) else "not asked"


def _run(identity: "dict[str, object]") -> str:
    model = identity["model"]
    file = f"{Path(model['path']).name} {model['sha256'][:12]}" if isinstance(model, dict) else str(model)
    verdict, suppressed = identity["verdict"], identity["suppressed"]
    rests = f" with {', '.join(suppressed)} suppressed" if isinstance(suppressed, list) and suppressed else ""
    return f"{identity['run']}: {file}{f', verdict {verdict}{rests}' if verdict else ''}"


def _images(found: "Comparison") -> str:
    alone = [f"{count} only in {name}" for name, count in (("A", found.only_a), ("B", found.only_b)) if count]
    return ", ".join([f"{found.shared_images} in both", *alone])


def _row(one: "Difference", several: bool) -> list[str]:
    maps = one.bundle_b if one.bundle_a == one.bundle_b else f"{one.bundle_a} → {one.bundle_b}"
    low, high = one.interval.low, one.interval.high
    ends = "" if low is None or high is None else f" ({low:+.4f} to {high:+.4f})"
    return [
        one.name.replace("_", " "), maps or "", *([one.infill] if several else []), f"{one.value_a:.4f}",
        f"{one.value_b:.4f}", f"{one.interval.value:+.4f}{ends}", str(one.interval.n), _reading(one),
    ]  # fmt: skip


def _reading(one: "Difference") -> str:
    """Better or worse where the interval excludes 0; of the others nothing is known."""
    if one.better is None:
        return "no difference shown"
    return f"{'↑' if one.interval.value > 0 else '↓'} {'better' if one.better else 'worse'}"
