"""`auditkit audit`: judge a model's heatmaps by a policy."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import console, options
from auditkit.cli.last_screen import print_last_screen
from auditkit.cli.plans import Output, announce, announce_audit, taken, trial
from auditkit.cli.progress import scheduled, shown
from auditkit.cli.sign import PasswordVariable, read_key

if TYPE_CHECKING:
    from auditkit.data.dataset import Dataset
    from auditkit.model.classifier import OnnxClassifier
    from auditkit.runs.executor import Shard
    from auditkit.verdict.audit import AuditRequest


@options.with_model_options()
def audit(
    model: options.ModelFile,
    images: options.ImagesPath,
    model_options: options.ModelOptions,
    out: Annotated[Path | None, typer.Option("--out", "-o", help=(
        "Folder for the run; run again to resume. By default MODEL-audit."))] = None,
    policy: Annotated[str, typer.Option(
        help="explore, standard, strict, or a TOML file (see auditkit policy).")] = "standard",
    heatmaps: Annotated[list[Path] | None, typer.Option(
        metavar="BUNDLE", help="The vendor's heatmaps; repeatable. Some are remade if the bundle says how.")] = None,
    method: Annotated[str | None, typer.Option(
        help="Make heatmaps by this method (see auditkit explain); mask if you supply none.")] = None,
    quality: options.Quality = None,
    option: options.MethodOption = None,
    gradient: options.Gradient = "auto",
    pool: Annotated[Path | None, typer.Option(help="Images to fill in with; by default the audited ones.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="An earlier run, to show what has changed since.")] = None,
    fail_on: Annotated[str | None, typer.Option(
        help="Lowest severity that fails: low, medium, high or critical; overrides the policy.")] = None,
    fail_on_finding: Annotated[str | None, typer.Option(metavar="SEVERITY", help=(
        "Lowest severity of a finding about the model that ends with exit code 1: low, medium, high or critical; "
        "overrides the policy. Without it, and with the shipped policies, none does."))] = None,
    until_decided: Annotated[bool, typer.Option("--until-decided", help=(
        "Take images batch by batch, in an order that nobody can choose, until every check is decided."))] = False,
    budget: Annotated[str | None, typer.Option(help=(
        "Time limit, such as 90s, 10m or 1h; the plan says what is left out to keep it. "
        "On a CPU, 20m by default and 3m for a first look; none sets no limit."))] = None,
    limit: options.Limit = None,
    labels: Annotated[str | None, typer.Option(help="all, topK, f>=p or a list, in place of the policy's.")] = None,
    steps: Annotated[str | None, typer.Option(help="Points of a curve, in place of the policy's.")] = None,
    salt: Annotated[str | None, typer.Option(metavar="HEX", help=(
        "The salt of an earlier audit, to repeat its random draws; by default a new one is drawn."))] = None,
    shard: options.ShardOption = None,
    commit_to: Annotated[Path | None, typer.Option(metavar="FILE", help=(
        "Write the digests of policy, model and images, and the salt, to this file before the model sees an image."
        ))] = None,
    sign: Annotated[Path | None, typer.Option(
        metavar="KEY", help="Sign the finished run with this private key (see auditkit sign).")] = None,
    password_variable: PasswordVariable = None,
    record_machine: options.RecordMachine = False,
    dry_run: options.DryRun = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 whatever the verdict.")] = False,
    as_json: options.AsResultsJson = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:  # fmt: skip
    """Judge a model's heatmaps, supplied or made here, by a policy, and write a report that can be filed.

    It first prints a plan with the time that it will take. With labels or steps other than the policy's, it cannot
    pass. Exit code 0: passed, 1: the maps failed, or the model with --fail-on-finding, 2: bad input, 3: undecided,
    4: the machine failed. Run the same command again to resume a run that was cut short.

    Example: auditkit audit vendor.onnx images/ --heatmaps maps --policy standard -o run
    """
    from auditkit.evidence import attestation
    from auditkit.evidence.salt import parse_salt
    from auditkit.metrics.curves import parse_steps
    from auditkit.runs.evaluate import open_bundles, units_of
    from auditkit.runs.executor import Shard
    from auditkit.runs.explain import Explanation
    from auditkit.runs.folder.contents import require_readable
    from auditkit.runs.folder.figures import Taking
    from auditkit.runs.folder.store import Store
    from auditkit.verdict import audit as audits
    from auditkit.verdict import plan as plans
    from auditkit.verdict import shards
    from auditkit.verdict.policy_file import read_policy

    if shard is not None and sign is not None:
        raise typer.BadParameter("--shard computes a part of a run; give --sign with the command that finishes it")
    rules, key = read_policy(policy), read_key(sign, password_variable) if sign else None
    makers = {"--method": method, "--quality": quality, "--option": option, "--gradient": gradient != "auto"}
    for name, is_set in makers.items():
        if heatmaps and is_set:
            raise typer.BadParameter(f"give --heatmaps or {name}, not both: a bundle names its own method")
    any_method, folder = not any(makers.values()), out or Path(f"{model.stem}-audit")
    request = audits.AuditRequest(
        rules, None, fail_on, baseline, options.command_line(record_machine=record_machine),
        open_bundles(heatmaps or []), None, Taking(until_decided, limit), labels, parse_steps(steps) if steps else None,
        None if salt is None else parse_salt(salt), record_machine=record_machine, fail_on_finding=fail_on_finding,
    )  # fmt: skip
    if not heatmaps:
        chosen = options.method_options(option, quality)
        explanation = Explanation(method or "mask", None, chosen, rules.evaluation.seed, gradient)
        explanation.resolved()  # refuses unknown options before the model is opened
        request = replace(request, explanation=explanation)
    plans.budget_of(budget or "none", request, "cpu")  # refuses a bad one before the model is opened
    part = None if shard is None else Shard.parse(shard)
    if part is not None:
        shards.require_divisible(request)
        if not dry_run:
            shards.require_salt(request)
    Store(folder).require_usable()
    if baseline is not None:
        require_readable(baseline)
    classifier, dataset, infill_pool = model_options.open_with_images(model, images, pool, quiet=quiet)
    request, output = replace(request, pool=infill_pool), Output(dry_run, as_json, quiet)
    request.require_enough(len(dataset))
    audits.require_startable(classifier, dataset, request, folder)
    units_of(classifier, dataset, request.evaluation, part)  # refuses too many shards before anything is written
    if commit_to is not None and not dry_run:
        request = audits.with_commitment(classifier, dataset, request, commit_to, folder)
    if part is not None:
        _audit_shard(classifier, dataset, request, folder, part, output)
        return
    seconds, schedule = plans.budget_of(budget, request, classifier.device.name), None
    begun = None if dry_run else plans.resumed(request, folder, any_method=any_method)
    if begun is not None:
        request = begun
    else:
        with trial(output):
            plan = plans.plan_audit(classifier, dataset, request, seconds, any_method=any_method)
            schedule = announce_audit(output, plan)
            request = plan.request
    if dry_run:
        return
    if request.explanation is not None:
        explanation = request.explanation.adapted_to(classifier)
        console.print_notes(explanation.notes, quiet)
        request = replace(request, explanation=explanation)

    def announce(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    results = audits.audit(classifier, dataset, request, folder, scheduled(schedule, quiet), announce)
    if key is not None:
        attestation.sign(folder, key)
    if as_json:
        console.print_json(results.to_json(), sort_keys=True)
    else:
        print_last_screen(results, folder, verbose=verbose)
        console.print_fields(console.identifiers(classifier, dataset) if verbose else [])
    if not exit_zero:
        raise typer.Exit(results.exit_code)


def _audit_shard(
    classifier: "OnnxClassifier", dataset: "Dataset", request: "AuditRequest", folder: Path, shard: "Shard",
    output: Output,
) -> None:  # fmt: skip
    """Say what a shard of an audit takes and, unless that is all, measure it."""
    from auditkit.runs.evaluate import units_of
    from auditkit.verdict import estimate
    from auditkit.verdict.shards import audit_shard

    schedule = None
    if output.dry_run or not folder.exists():
        with trial(output):
            cost = estimate.evaluating(
                classifier, dataset, request.evaluation, len(request.bundles), request.infill_pool
            )
            count = sum(map(len, units_of(classifier, dataset, request.evaluation, shard)))
            what = f"{taken(count, len(dataset))}, supplied maps, policy {request.policy.name}"
            schedule = announce(output, what, [cost], count)
    if output.dry_run:
        return
    with shown("evaluating", schedule=schedule, quiet=output.quiet) as progress:
        units = audit_shard(classifier, dataset, request, folder, shard, progress)
    console.show_shard(output.as_json, str(shard), folder, *units)
