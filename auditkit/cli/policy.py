"""`auditkit policy`: what an audit must find."""

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditkit.cli import console
from auditkit.cli.command import Verb

if TYPE_CHECKING:
    from auditkit.verdict.policy_file import Policy

app = typer.Typer(
    no_args_is_help=True,
    help="What an audit must find: policies that come with auditkit (explore, standard, strict), or your own in TOML.",
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.command(cls=Verb)
def init(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="explore, standard or strict.")] = "standard",
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")] = Path("policy.toml"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a commented policy to start from. It gets the file's name: what is changed is no longer auditkit's."""
    from auditkit.data.atomic_write import write_whole  # noqa: PLC0415
    from auditkit.errors import BadInput, RuntimeFailure  # noqa: PLC0415
    from auditkit.verdict.policy import SHIPPED, shipped_text  # noqa: PLC0415
    from auditkit.verdict.policy_file import parse_policy  # noqa: PLC0415

    if name not in SHIPPED:
        raise BadInput(f"there is no policy '{name}' to start from; there are {', '.join(SHIPPED)}.")
    if (out.exists() or out.is_symlink()) and not force:
        raise BadInput(f"{out} is there already; give another -o FILE, or --force to write over it.")
    if out.is_dir() or not out.parent.is_dir():
        raise BadInput(f"{out} cannot be written: {'it is a folder' if out.is_dir() else 'its folder is not there'}.")
    own = re.sub(r"[^A-Za-z0-9_.-]", "-", out.stem) or "policy"
    text = shipped_text(name).replace(f'\nname = "{name}"\n', f'\nname = "{own}"\n', 1)
    asks = f"auditkit policy check {shlex.quote(out.name if out.name.isprintable() else own)}"
    text = f"# Started from auditkit's policy {name}. What it asks is shown by: {asks}\n\n{text}"
    parse_policy(text, out.name)
    try:
        write_whole(out, text.encode())
    except OSError as error:
        raise RuntimeFailure(f"{out} cannot be written ({error.strerror}).") from None
    console.table([("policy", str(out)), ("next", f"auditkit policy check {shlex.quote(str(out))}")])


@app.command(cls=Verb)
def check(
    policy: Annotated[str, typer.Argument(metavar="FILE", help="A TOML file, or explore, standard or strict.",
                                          show_default=False)],
    as_json: Json = False,
) -> None:  # fmt: skip
    """Say what a policy asks, or, with exit code 2, what is wrong with it."""
    from datetime import UTC, datetime  # noqa: PLC0415

    from auditkit.verdict.policy_file import read_policy  # noqa: PLC0415

    found, today = read_policy(policy), datetime.now(UTC).date().isoformat()
    if as_json:
        print(json.dumps({"schema_version": 1, **_object(found)}, indent=2))
        return
    told = _object(found)
    console.table([
        ("policy", f"{found.name}{'' if found.shipped else ', not one of those that come with auditkit'}"),
        *([("about", found.description)] if found.description else []), ("sha256", found.sha256),
        ("measured", _measured(told)), ("images", f"{found.minimum_images} or more; {found.max_failed_images:.1%} of "
                                        "them may be without figures"),
        ("controls", ", ".join(found.controls) or "none"),
        ("randomised", _randomised(found)), ("fails on", f"{found.fail_on} and above"),
    ])  # fmt: skip
    if found.checks:
        console.grid(["check", "asks", "severity", "required"], _rows(found))
    notes = [("note", "nothing is asked: the verdict will be 'measured'")] if not _asks(found) else []
    notes += [("suppressed", _suppression(one, today)) for one in told["suppressions"]]
    if notes:
        console.table(notes)


@app.command("list", cls=Verb)
def list_(as_json: Json = False) -> None:
    """List the policies that come with auditkit."""
    from auditkit.verdict.policy import SHIPPED  # noqa: PLC0415
    from auditkit.verdict.policy_file import read_policy  # noqa: PLC0415

    found = [read_policy(name) for name in SHIPPED]
    if as_json:
        listed = [{"name": one.name, "description": one.description, "sha256": one.sha256} for one in found]
        print(json.dumps({"schema_version": 1, "policies": listed}, indent=2))
    else:
        console.table([(one.name, one.description) for one in found])


def _object(policy: "Policy") -> dict[str, Any]:
    """A policy as a plain object."""
    about = {key: value for key, value in policy.to_json().items() if key != "text"}
    randomisation = policy.randomisation
    return about | {
        "evaluation": policy.evaluation().to_json(), "max_failed_images": policy.max_failed_images,
        "controls": list(policy.controls),
        "randomisation": {"images": randomisation.images, "stages": randomisation.stages} if randomisation else None,
        "checks": [{"id": check.id, "title": check.title, "metric": check.metric, "rule": check.said,
                    "limit": check.limit, "severity": check.severity, "required": check.required}
                   for check in policy.checks],
        "suppressions": [{"check": one.check, **one.to_json()} for one in policy.suppressions],
    }  # fmt: skip


def _measured(told: dict[str, Any]) -> str:
    said = told["evaluation"]
    eps = [f"{name} {said[name]:g}" for name in ("eps1", "eps2") if said[name] is not None]
    steps = "auto" if said["steps"] == "None" else said["steps"]
    labels = said["labels"] or "all up to 20 classes, else top10"
    return "; ".join([f"labels {labels}", f"infill {', '.join(said['infill'])}", f"steps {steps}", *eps,
                      "range {:g} to {:g}".format(*said["range"]), f"seed {said['seed']}",
                      f"{said['confidence']:.3g} confidence"])  # fmt: skip


def _randomised(policy: "Policy") -> str:
    found = policy.randomisation
    return f"{found.images} images in {found.stages} stages" if found else "no"


def _rows(policy: "Policy") -> list[list[str]]:
    return [[check.id, check.asks, check.severity, "yes" if check.required else "no"] for check in policy.checks]


def _asks(policy: "Policy") -> bool:
    from auditkit.verdict.policy import at_least  # noqa: PLC0415

    return any(at_least(check.severity, policy.fail_on) for check in policy.checks)


def _suppression(one: dict[str, str], today: str) -> str:
    over = "; EXPIRED, so the check counts again" if one["expires"] < today else ""
    return f"{one['check']} until {one['expires']} by {one['approver']}: {one['reason']}{over}"
