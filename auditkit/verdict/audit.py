"""The whole audit: maps made or checked, measured beside controls, judged by a policy, and kept with its report."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from auditkit.data import bundle_check
from auditkit.data.atomic_write import flush, write_whole
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.model.classifier import AnyClassifier
from auditkit.records import from_json
from auditkit.report.html import render_html
from auditkit.report.load_run import load
from auditkit.runs.comparison.comparability import Conditions, common_infills
from auditkit.runs.comparison.compare import compare
from auditkit.runs.comparison.finished_run import read_run
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.plan import bundle_digest, environment, subject, without_paths
from auditkit.runs.evaluation.settings import Evaluation, resolved
from auditkit.runs.executor import Progress, silent
from auditkit.runs.explain import Explanation, explain
from auditkit.runs.explain_record import Record
from auditkit.runs.folder import checksums, provenance
from auditkit.runs.folder.results import Comparison, Explained, ExplanationRequest, Randomisation, Refusal, Results
from auditkit.runs.folder.store import Store
from auditkit.runs.pictures.gallery import showcase
from auditkit.runs.randomisation import randomisation
from auditkit.runs.randomisation_record import NotAssessed
from auditkit.runs.summary.results import recorded_settings, without_figures
from auditkit.runs.summary.results import results as run_results
from auditkit.verdict.decision import judge
from auditkit.verdict.policy import deciding
from auditkit.verdict.policy_file import Policy

Phase = Callable[[str], AbstractContextManager[Progress]]
POLICY, MAPS, GALLERY, RANDOMISED, REPORT, SITTINGS = (
    "policy.toml", "maps", "gallery", "randomised", "report.html", "sittings.jsonl",
)  # fmt: skip
EXIT_CODES = {"pass": 0, "measured": 0, "fail": 1, "inconclusive": 3}


@dataclass(frozen=True)
class Asked:
    """What is to be audited by, and how its maps come about."""

    policy: Policy
    explanation: Explanation | None  # None: maps are supplied
    fail_on: str | None = None  # instead of the policy's
    baseline: Path | None = None  # an earlier run
    command: tuple[str, ...] = ()
    today: date | None = None  # that suppressions are judged by

    def __post_init__(self) -> None:
        if self.fail_on is not None:
            deciding(self.fail_on)  # told before the work


@dataclass(frozen=True)
class Given:
    """The maps of an audit: those that can be used, and what is wrong with each of the others."""

    good: Mapping[str, HeatmapSet]
    refused: Mapping[str, tuple[Refusal, ...]]


def unwatched(_what: str) -> AbstractContextManager[Progress]:
    """Phases that nobody watches."""
    return nullcontext(silent)


def audit(
    model: AnyClassifier, images: Dataset, asked: Asked, out: Path, bundles: Mapping[str, HeatmapSet],
    pool: Dataset | None = None, phase: Phase = unwatched,
) -> Results:  # fmt: skip
    """The results, verdict included; the same call resumes a run that was interrupted.

    Whatever is finished is kept in `out` as it comes: maps, units of rows, stages of randomisation. The report and the
    list of digests are written last.
    """
    if bool(bundles) == (asked.explanation is not None):
        raise BadInput("give heatmaps, or a method to make them by; one of the two.")
    about = _about(model, images, asked, bundles, pool)
    if asked.baseline is not None:
        _comparable(asked.baseline, out, images, about, resolved(asked.policy.evaluation(), model.signature.classes))
    with Store.open(out, without_paths(about)) as store:
        began = _sitting(out, asked.command)
        write_whole(out / POLICY, asked.policy.text.encode())
        results = _measured(model, images, asked, store, bundles, pool, phase)
        run = replace(
            results.run, started=began, ended=provenance.now(), command=asked.command,
            git_commit=provenance.commit(Path.cwd()), fail_on=asked.fail_on,
        )  # fmt: skip
        results = replace(results, run=run, software=provenance.facts(model), policy=asked.policy.to_record())
        judgement = judge(asked.policy, results, asked.today or datetime.now(UTC).date(), asked.fail_on)
        results = replace(results, checks=judgement.checks, verdict=judgement.verdict, verdict_reason=judgement.reason)
        store.finish(results)
        baseline, problem = _since(asked.baseline, out)
        store.finish(replace(results, baseline=baseline))
        write_whole(out / REPORT, render_html(load(out)).encode())
        checksums.write(out)
        if problem:
            raise BadInput(f"{problem} The run is finished in {out}, without a baseline.")
        return store.results()


def _since(baseline: Path | None, out: Path) -> tuple[Comparison | None, str]:
    """What changed since the baseline; or why that cannot be said."""
    if baseline is None:
        return None, ""
    try:
        comparison = compare(baseline, out)
    except BadInput as error:
        return None, str(error)
    # The digest of the run itself is not known before its results are written.
    return replace(comparison, b=replace(comparison.b, results=None)), ""


def _about(
    model: AnyClassifier, images: Dataset, asked: Asked, bundles: Mapping[str, HeatmapSet], pool: Dataset | None
) -> dict[str, Any]:
    """All that decides what the run is: a folder with another one is refused."""
    what = None if asked.explanation is None else asked.explanation.fitting(model)
    return {
        "subject": subject(model, images.usable(model.card)[0]),
        "policy": asked.policy.sha256,
        "fail_on": asked.fail_on,
        "maps": None if what is None else {"method": what.name(), "labels": what.labels},
        "bundles": {name: _content(bundle) for name, bundle in bundles.items()},
        "pool": None if pool is None else pool.digest(),
        "environment": environment(model),
    }


def _content(bundle: HeatmapSet) -> str:
    """Digest of a bundle's maps, or why there is none."""
    try:
        return bundle_digest(bundle)
    except BadInput as error:
        return str(error)


def _comparable(baseline: Path, out: Path, images: Dataset, about: Mapping[str, Any], settings: Evaluation) -> None:
    """Refuse a baseline that will not compare, before the work."""
    if baseline.resolve() == out.resolve():
        raise BadInput(f"{baseline} cannot be its own baseline; give the folder of an earlier run.")
    run = read_run(baseline)
    before = Conditions.of(run.results)
    common_infills(before, replace(before, settings=recorded_settings(settings), classes=about["subject"]["classes"]))
    if not set(run.items.images) & set(images.ids):
        raise BadInput(f"{baseline} has none of these images, by their names; give a run on the same ones.")


def _sitting(out: Path, command: tuple[str, ...]) -> str:
    """Note that work begins, and say when it first did."""
    path = out / SITTINGS
    line = json.dumps({"started": provenance.now(), "command": list(command)})
    try:
        with path.open("ab") as stream:
            stream.write(line.encode() + b"\n")
            flush(stream)
        return str(json.loads(path.read_text().splitlines()[0])["started"])
    except (OSError, ValueError, KeyError) as error:
        way_out = "" if isinstance(error, OSError) else "; remove this file and give the command again"
        raise RuntimeFailure(
            f"{path} cannot be written or read ({error}); what was finished before is kept{way_out}."
        ) from None


def _measured(
    model: AnyClassifier, images: Dataset, asked: Asked, store: Store, bundles: Mapping[str, HeatmapSet],
    pool: Dataset | None, phase: Phase,
) -> Results:  # fmt: skip
    """The results before they are judged."""
    settings = asked.policy.evaluation()
    others = pool if "random" in settings.infills else None
    if asked.explanation is None:
        given, explained = _checked(model, bundles), None
    else:
        what = replace(asked.explanation, labels=asked.explanation.labels or settings.labels).fitting(model)
        with phase("explaining") as progress:
            maps = explain(model, images, what, store.folder / MAPS, pool, progress)
        given, record = Given({what.method: maps}, {}), Record.of(store.folder / MAPS)
        request = what.to_json() | {"pool": None if pool is None else pool.digest()}
        explained = Explained(what.name(), from_json(ExplanationRequest, request, "request"), record.passes,
                              record.gradients, tuple(record.computed), tuple(record.notes))  # fmt: skip
    if not given.good:
        about = subject(model, images.usable(model.card)[0])
        results = without_figures(about, resolved(settings, model.signature.classes), environment(model))
    else:
        with phase("evaluating") as progress:
            summary = evaluate(model, images, given.good, settings, store, progress, others)
        results = run_results(summary)
        showcase(model, images.usable(model.card)[0], given.good, summary, store.folder / GALLERY)
    headers = {name: bundle.header for name, bundle in (bundles or given.good).items()}
    run = replace(
        results.run, refused_bundles=given.refused,
        bundle_models={name: header.model for name, header in headers.items()},
        bundle_methods={name: header.method for name, header in headers.items()},
        bundle_paths={name: str(bundle.path) for name, bundle in bundles.items()},  # of supplied ones
        pool_path=None if pool is None else str(pool.source),
    )  # fmt: skip
    randomised = _randomised(model, images, asked, store, given, pool, phase)
    return replace(results, run=run, explained=explained, randomisation=randomised)


def _checked(model: AnyClassifier, bundles: Mapping[str, HeatmapSet]) -> Given:
    """Supplied maps, each read once: evidence that cannot be used is a finding of the audit, not the end of it."""
    refused = {}
    for name, bundle in bundles.items():
        problems = bundle_check.check(bundle, None, model.identity, model.signature.classes)
        errors = [Refusal(problem.kind, problem.message) for problem in problems if problem.severity == "error"]
        if errors:
            refused[name] = tuple(errors)
    return Given({name: bundle for name, bundle in bundles.items() if name not in refused}, refused)


def _randomised(
    model: AnyClassifier, images: Dataset, asked: Asked, store: Store, given: Given, pool: Dataset | None,
    phase: Phase,
) -> Randomisation | None:  # fmt: skip
    """How maps fare when the model forgets, where the policy wants to know and the maps were made here."""
    wanted, what = asked.policy.randomisation, asked.explanation
    if wanted is None:
        return None
    if what is None:
        return from_json(Randomisation, NotAssessed("supplied").to_json(), "randomisation")
    maps = next(iter(given.good.values()))
    with phase("randomising") as progress:
        stages = randomisation(
            model, images, what, pool, maps, images_wanted=wanted.images, stages=wanted.stages,
            confidence=asked.policy.evaluation().confidence, out=store.folder / RANDOMISED, progress=progress,
        )  # fmt: skip
    return from_json(Randomisation, stages.to_json(), "randomisation")
