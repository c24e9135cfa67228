"""`auditkit policy`: what an audit must find."""

import os
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditkit.cli import console, options

if TYPE_CHECKING:
    from auditkit.runs.evaluation.settings import Evaluation
    from auditkit.verdict.policy import Policy, Suppression

app = typer.Typer(
    no_args_is_help=True,
    cls=options.Verbs,
    help="Show, check and write policies: what an audit must find. Explore, standard and strict come with auditkit; "
    "others are TOML files.",
)


@options.verb(app, "init")
def init(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="explore, standard or strict.")] = "standard",
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")] = Path("policy.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a commented policy to start from. It gets the name of the file, since it is not one of auditkit's own.

    Example: auditkit policy init strict -o ours.toml
    """
    from auditkit.data.atomic_write import write_whole
    from auditkit.errors import BadInput, unknown
    from auditkit.runs.folder.results import SHIPPED
    from auditkit.verdict.policy import shipped_text
    from auditkit.verdict.policy_file import parse_policy

    if name not in SHIPPED:
        raise BadInput(unknown("policy", name, SHIPPED))
    if os.path.lexists(out) and not force:
        raise BadInput(f"{out} already exists; choose another file with -o, or overwrite it with --force.")
    if out.is_dir() or not out.parent.is_dir():
        raise BadInput(f"{out} cannot be written: {'it is a folder' if out.is_dir() else 'its folder does not exist'}.")
    new_name = re.sub(r"[^A-Za-z0-9_.-]", "-", out.stem) or "policy"
    new_name = f"our-{new_name}" if new_name in SHIPPED else new_name
    text = shipped_text(name).replace(f'\nname = "{name}"\n', f'\nname = "{new_name}"\n', 1)
    check_command = f"auditkit policy check {shlex.quote(out.name if out.name.isprintable() else new_name)}"
    text = f"# Started from auditkit's policy {name}. To see what it asks, run: {check_command}\n\n{text}"
    parse_policy(text, out.name)
    write_whole(out, text.encode(), BadInput)
    console.print_fields([("policy", str(out)), ("next", f"auditkit policy check {shlex.quote(str(out))}")])


@options.verb(app, "check")
def check(
    policy: Annotated[str, typer.Argument(metavar="FILE", help="A TOML file, or explore, standard or strict.",
                                          show_default=False)],
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Show what a policy requires, or, with exit code 2, what is wrong with it.

    Example: auditkit policy check ours.toml
    """
    from auditkit.verdict.policy_file import read_policy

    rules = read_policy(policy)
    if as_json:
        console.print_json({"schema_version": 1, **_to_json(rules)})
    else:
        _print(rules)


@options.verb(app, "plan")
def plan(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="standard, strict, explore, or a TOML file.",
                                          show_default=False)],
    images: Annotated[int | None, typer.Option(
        help="Images in the audit; by default as many as decide in 80 % of the cases studied.")] = None,
    labels: Annotated[int | None, typer.Option(help="Labels of each image, if the policy leaves them open.")] = None,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Estimate how many images decide each check of a policy, and what an audit costs. Nothing is run.

    The estimate is based on honest maps of two models; after 20 images, the audit itself gives a better one.

    Example: auditkit policy plan standard --images 200
    """
    from auditkit.verdict.policy_file import read_policy
    from auditkit.verdict.sample_size import expected_images, expected_passes

    rules = read_policy(policy)
    expected = expected_images(rules)
    numbers = [entry.usual or entry.median or rules.images_needed for entry in expected]
    passes = expected_passes(rules, max(numbers, default=rules.images_needed) if images is None else images, labels)
    entries = [vars(entry) | {"text": entry.text} for entry in expected]
    curves = f"{passes.insertion_curves} insertion and {passes.deletion_curves} deletion curves each"
    of = f"{passes.images} images, {curves} (labels: {passes.labels}, controls: {passes.controls})"
    cost = f"about {passes.total:,}: {of}, {passes.points} points a curve, infills: {passes.infills}; maps not included"
    console.show(
        as_json,
        {"schema_version": 1, "policy": rules.name, "minimum_images": rules.images_needed, "checks": entries,
         "passes": vars(passes) | {"total": passes.total}},
        [("policy", rules.name), ("least", f"{rules.images_needed} images"),
         *((entry.check, entry.text) for entry in expected), ("passes", cost)],
    )  # fmt: skip


@options.verb(app, "list")
def list_(as_json: options.AsJson = False) -> None:
    """List the policies that come with auditkit.

    Example: auditkit policy list
    """
    from auditkit.runs.folder.results import SHIPPED
    from auditkit.verdict.policy_file import read_policy

    policies = [read_policy(name) for name in SHIPPED]
    entries = [{"name": rules.name, "description": rules.description, "sha256": rules.sha256} for rules in policies]
    fields = [(rules.name, rules.description) for rules in policies]
    console.show(as_json, {"schema_version": 1, "policies": entries}, fields)


def _to_json(policy: "Policy") -> dict[str, Any]:
    from auditkit.runs.evaluation.settings import CONVENTIONS

    settings = policy.evaluation
    steps = None if settings.steps is None else str(settings.steps)
    evaluation = vars(settings) | {"infill": settings.infills, "steps": steps, "conventions": CONVENTIONS}
    entry = {key: value for key, value in vars(policy.to_record()).items() if key != "text"}
    return entry | {
        "evaluation": evaluation, "max_failed_images": policy.max_failed_images, "controls": list(policy.controls),
        "randomisation": vars(policy.randomisation) if policy.randomisation else None,
        "checks": [{"id": check.id, "title": check.title, "metric": check.metric, "rule": check.rule_text,
                    "limit": check.limit, "severity": check.severity, "required": check.required,
                    **({"every_group": True} if check.every_group else {})}
                   for check in policy.checks],
        "suppressions": [{"check": each.check, **vars(each.to_record())} for each in policy.suppressions],
    }  # fmt: skip


def _print(policy: "Policy") -> None:
    from auditkit.verdict.policy import at_least

    randomisation = policy.randomisation
    stages = f"{randomisation.images} images in {randomisation.stages} stages" if randomisation else "no"
    console.print_fields([
        ("policy", ", ".join(filter(None, (policy.name, policy.to_record().origin)))),
        *([("about", policy.description)] if policy.description else []),
        ("sha256", policy.sha256),
        ("measured", _measured(policy.evaluation)),
        ("images", f"{policy.minimum_images} or more; {policy.max_failed_images:.1%} of them may be without results"),
        ("controls", ", ".join(policy.controls) or "none"),
        ("randomised", stages),
        ("fails on", f"{policy.fail_on} and above"),
        ("findings", _findings(policy)),
    ])  # fmt: skip
    if policy.checks:
        rows = [[check.id, check.requirement, check.severity, "yes" if check.required else "no"]
                for check in policy.checks]  # fmt: skip
        console.print_table(["check", "requirement", "severity", "required"], rows)
    notes = [("suppressed", _suppression(each)) for each in policy.suppressions]
    if not any(at_least(check.severity, policy.fail_on) for check in policy.checks):
        notes.insert(0, ("note", "no check can fail: the verdict will be 'measured'"))
    if notes:
        console.print_fields(notes)


def _findings(policy: "Policy") -> str:
    if policy.examination is None:
        return "the model is not examined"
    if policy.fail_on_finding is None:
        return "about the model, none fails"
    return f"about the model, of severity {policy.fail_on_finding} and above, fail"


def _measured(settings: "Evaluation") -> str:
    floors = [f"{name} {eps:g}" for name, eps in (("eps1", settings.eps1), ("eps2", settings.eps2)) if eps is not None]
    low, high = settings.range
    return "; ".join([
        f"labels {settings.labels or 'all for up to 20 classes, otherwise top10'}",
        f"infill {', '.join(settings.infills)}", f"steps {settings.steps or 'auto'}", *floors,
        f"range {low:g} to {high:g}", f"seed {settings.seed} of own maps", f"{settings.confidence:.3g} confidence",
    ])  # fmt: skip


def _suppression(suppression: "Suppression") -> str:
    expired = suppression.expires < datetime.now(UTC).date()
    text = f"{suppression.check} until {suppression.expires} by {suppression.approver}: {suppression.reason}"
    return f"{text}; EXPIRED, so the check counts again" if expired else text
