"""`auditkit audit`: a model judged by a policy."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from auditkit.cli import console, options


def audit(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Folder, CSV or .npz.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the run; given again, it goes on.")],
    policy: Annotated[str, typer.Option(
        help="explore, standard, strict, or a TOML file (see auditkit policy).")] = "standard",
    heatmaps: Annotated[list[Path] | None, typer.Option(
        help="Bundle of the vendor's heatmaps; may be given several times.")] = None,
    method: Annotated[str | None, typer.Option(
        help="Make heatmaps by this method (see auditkit explain); mask, where none are supplied.")] = None,
    option: Annotated[list[str] | None, typer.Option(
        "--option", help="An option of the method, as steps=300; may be given several times.")] = None,
    gradient: Annotated[str, typer.Option(
        help="How a mask is learned: by the graph's gradient, by differences, or auto (the first that can).")] = "auto",
    pool: Annotated[Path | None, typer.Option(help="Images to fill in with; else the audited ones.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="An earlier run, to show what has changed since.")] = None,
    fail_on: Annotated[str | None, typer.Option(
        help="Least severity that fails: low, medium, high or critical; instead of the policy's.")] = None,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 whatever the verdict.")] = False,
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
    """Judge a model's heatmaps, supplied or made here, by a policy, and write a report that can be filed.

    Exit code 0: passed, 1: failed, 2: bad input, 3: the figures do not decide, 4: the machine failed. A run that was
    cut short goes on when the same command is given again.
    """
    from auditkit.data.dataset import Dataset  # noqa: PLC0415
    from auditkit.model.classifier import open_file  # noqa: PLC0415
    from auditkit.runs.evaluate import named  # noqa: PLC0415
    from auditkit.runs.explain import Explanation  # noqa: PLC0415
    from auditkit.verdict import audit as whole  # noqa: PLC0415
    from auditkit.verdict.policy_file import read_policy  # noqa: PLC0415

    making = {"--method": method, "--option": option, "--gradient": gradient != "auto"}
    if heatmaps and (said := next((name for name, given in making.items() if given), None)):
        raise typer.BadParameter(f"give --heatmaps or {said}, not both: supplied maps are not made again")
    rules = read_policy(policy)
    what = None if heatmaps else Explanation(method or "mask", None, options.pairs(option), rules.seed, gradient)
    if what:
        what.chosen()  # told before the model is opened
    bundles = named(heatmaps or [])
    asked = whole.Asked(rules, what, fail_on, baseline, tuple(sys.argv))
    opening = options.opening(card, preset, memory_limit, time_limit, size, input=input_, output=output, layout=layout,
                              kind=kind)  # fmt: skip
    opened = open_file(model, opening, options.settings(device, precision, batch, threads, memory))
    classes, names = opened.signature.classes, opened.card.names
    chosen = Dataset.open(images, classes, names)
    others = Dataset.open(pool, classes, names) if pool else None
    found = whole.audit(opened, chosen, asked, out, bundles, others, console.progress)
    if as_json:
        print(json.dumps(found, indent=2, sort_keys=True))
    else:
        _print(found, out)
    if not exit_zero:
        raise typer.Exit(whole.EXIT_CODES[found["verdict"]])


def _print(found: dict[str, Any], out: Path) -> None:
    rows = [
        [check["id"], check["status"], _figure(check), _limit(check), check["severity"]] for check in found["checks"]
    ]
    if rows:
        console.grid(["check", "status", "observed", "limit", "severity"], rows)
    why = [(check["status"], f"{check['id']}: {check['reason']}") for check in found["checks"]
           if check["status"] != "pass" and check["reason"]]  # fmt: skip
    console.table([
        ("verdict", _headline(found)), ("because", found["verdict_reason"]), *why,
        *(("flag", text) for text in found["flags"]),
        ("report", str(out / "report.html")), ("results", str(out / "results.json")),
    ])  # fmt: skip


def _headline(found: dict[str, Any]) -> str:
    from auditkit.report.wording import headline  # noqa: PLC0415

    word, comma, aside = headline(found).word.partition(",")
    return f"{word.upper()}{comma}{aside}"


def _figure(check: dict[str, Any]) -> str:
    if check["observed"] is None:
        return ""
    if check["low"] is None or check["high"] is None:
        return f"{check['observed']:.3g}"
    return f"{check['observed']:.3f} ({check['low']:.3f} to {check['high']:.3f})"


def _limit(check: dict[str, Any]) -> str:
    return "" if check["limit"] is None else f"{check['rule']} {check['limit']:g}"
