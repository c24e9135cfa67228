"""Runs an audit: makes or checks the heatmaps, measures them and the controls, applies the policy, reports."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

from auditkit.data import bundle_check
from auditkit.data.atomic_write import write_whole
from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.evidence import salt as salts
from auditkit.evidence.commitment import Commitment, carry, commit, salt_of, salt_of_run
from auditkit.metrics.curves import Steps
from auditkit.model.classifier import AnyClassifier, OnnxClassifier
from auditkit.recorded_names import path_name, with_path_name
from auditkit.records import to_object
from auditkit.report.formatting import count
from auditkit.report.html import render_html
from auditkit.report.load_run import load
from auditkit.runs.comparison.comparability import common_infills
from auditkit.runs.comparison.compare import compare
from auditkit.runs.comparison.finished_run import read_run
from auditkit.runs.evaluate import evaluate
from auditkit.runs.evaluation.plan import bundle_digest, environment, subject, unit_keys, without_paths
from auditkit.runs.evaluation.settings import Evaluation, resolved
from auditkit.runs.executor import Phase, silent_phase
from auditkit.runs.explain import Explanation, explain
from auditkit.runs.explanation.record import Record
from auditkit.runs.folder import checksums, provenance
from auditkit.runs.folder.figures import Batch, Explained, NotRandomised, Randomisation, Shortened, Taken, Taking
from auditkit.runs.folder.names import MAPS, POLICY, RANDOMISED, REPORT
from auditkit.runs.folder.results import Comparison, PolicyName, Preliminary, Refusal, Results
from auditkit.runs.folder.sittings import logged
from auditkit.runs.folder.store import Store
from auditkit.runs.pictures.gallery import showcase
from auditkit.runs.pictures.gallery_index import FOLDER as GALLERY
from auditkit.runs.randomisation import randomisation
from auditkit.runs.summary.results import results as run_results
from auditkit.runs.summary.results import without_figures
from auditkit.runs.summary.samples import Samples
from auditkit.runs.summary.summarise import Summary
from auditkit.verdict import reproduce
from auditkit.verdict.batches import Batches, is_open
from auditkit.verdict.decision import judge
from auditkit.verdict.examination import examined
from auditkit.verdict.hints import find_hints, should_search
from auditkit.verdict.policy import Policy, at_least, deciding
from auditkit.verdict.preconditions import changed_settings

CHANGEABLE = ("labels", "steps")  # settings of a policy that a request can replace


@dataclass(frozen=True)
class AuditRequest:
    """The policy of an audit, and its heatmaps or how to make them."""

    policy: Policy
    explanation: Explanation | None  # None: the heatmaps are supplied
    fail_on: str | None = None  # overrides the policy's
    baseline: Path | None = None  # an earlier run
    command: tuple[str, ...] = ()
    bundles: Mapping[str, HeatmapSet] = field(default_factory=dict)  # the supplied heatmaps
    pool: Dataset | None = None  # None: infills are drawn from the images
    taking: Taking = Taking()
    labels: str | None = None  # these and the steps replace those of the policy, which then cannot be passed
    steps: Steps | None = None
    salt: str | None = None  # None: that of the run in the folder, or a new one
    commitment: Mapping[str, bytes] = field(default_factory=dict)  # its files, which the run carries
    record_machine: bool = False  # whether to record full paths and the names of machines and processes
    shortened: Shortened | None = None  # how the taking and the method keep within a time; None: they were given
    fail_on_finding: str | None = None  # overrides the policy's

    def __post_init__(self) -> None:
        deciding(self.fail_on or self.policy.fail_on)  # refuses a bad value before the work
        if self.fail_on_finding is not None:
            deciding(self.fail_on_finding)
            if self.policy.examination is None:
                raise BadInput(
                    f"the policy {self.policy.name} does not examine the model, so no finding can fail the audit; "
                    "give a policy with a table [examination], such as standard, or leave --fail-on-finding out."
                )
        if self.taking.limit is not None and self.taking.limit < 1:
            raise BadInput(f"--limit {self.taking.limit} leaves no image; give 1 or more.")
        if self.taking.until_decided and not self.can_decide:
            raise BadInput(f"the policy {self.policy.name} sets no limits, so there is nothing to decide; leave "
                           "--until-decided out.")  # fmt: skip

    @property
    def can_decide(self) -> bool:
        """Whether a check counts, so that there can be a verdict."""
        level = deciding(self.fail_on or self.policy.fail_on)
        return any(at_least(check.severity, level) for check in self.policy.checks)

    def require_enough(self, images: int) -> None:
        """Refuse, before the work, an audit of so few images that its policy cannot decide."""
        needed, limit = self.policy.images_needed, self.taking.limit
        most = min(limit or images, images)
        if not self.can_decide or most >= needed:
            return
        few, remedy = f"{count(images, 'image')} cannot decide", "Add images"
        if limit is not None and limit < images:
            few, remedy = f"--limit {limit} leaves too few images", f"Give --limit {needed} or more"
        need = f"a verdict by the policy {self.policy.name} needs {needed}"
        raise BadInput(f"{few}: {need}. {remedy}, or give --policy explore for figures without a verdict.")

    @property
    def evaluation(self) -> Evaluation:
        """The settings of the policy, with those that replace some of them; the seed follows from the salt."""
        changes = {name: value for name in CHANGEABLE if (value := getattr(self, name)) is not None}
        if self.salt is not None:
            changes["seed"] = salts.seed_of(self.salt)
        return replace(self.policy.evaluation, **changes)

    @property
    def infill_pool(self) -> Dataset | None:
        """The pool if an infill is drawn from it; it may be there for the maps alone."""
        return self.pool if "random" in self.evaluation.infills else None


def audit(
    model: AnyClassifier, images: Dataset, request: AuditRequest, out: Path, phase: Phase = silent_phase,
    announce: Callable[[str], None] = lambda _text: None,
) -> Results:  # fmt: skip
    """The results with the verdict; the same call resumes an interrupted run.

    Finished maps, units of rows and stages of randomisation are kept in `out`. The report and the checksums are
    written last; a first report of a long audit is announced.
    """
    if request.taking.in_batches and request.pool is None:
        request = replace(request, pool=images)  # which does not grow from batch to batch
    about = about_run(model, images, request)
    require_startable(model, images, request, out)
    request = replace(request, salt=_salt(request, without_paths(about), out))
    log = logged(out, model, request.command, record_machine=request.record_machine)
    with Store.open(out, settings_of_run(about, request)) as store, log as started:
        sitting = _Sitting(model, request, store, started, announce)
        write_whole(out / POLICY, request.policy.text.encode())
        carry(request.commitment, out, sitting.started)
        images, results, samples = _measure(sitting, images, phase)
        results = sitting.judged(results, samples)
        if should_search(request.policy, results):
            usable = {name: maps.named_as(images) for name, maps in request.bundles.items() if name in results.bundles}
            results = replace(results, hints=find_hints(model, images, usable, request.evaluation))
        store.finish(results)
        baseline, problem = _changes_since(request.baseline, out)
        sitting.report(replace(results, baseline=baseline))
        provenance.write(out, model.graphs)
        checksums.write(out)
        if problem:
            raise BadInput(f"{problem} The run is finished in {out}, without a baseline.")
        return store.results()


def with_commitment(
    model: OnnxClassifier, images: Dataset, request: AuditRequest, path: Path, out: Path
) -> AuditRequest:  # fmt: skip
    """The request with the files of a commitment, which is written unless it is there, and with its salt."""
    about, policy = without_paths(about_run(model, images, request)), request.policy
    salt = request.salt or salt_of(path) or _salt(request, about, out)
    name = PolicyName(policy.name, policy.sha256)
    files = commit(path, Commitment(name, model.identity, images.digest(), len(images), salt))
    return replace(request, commitment=files, salt=salt_of_run(files))


def _salt(request: AuditRequest, about: Mapping[str, object], out: Path) -> str:
    """The salt that was given, or that of the run in the folder, or a new one."""
    return request.salt or salts.recorded_salt(out) or salts.draw_salt(about)


def settings_of_run(about: Mapping[str, object], request: AuditRequest) -> dict[str, object]:
    """What run.json holds of an audit that has its salt."""
    return {**without_paths(about), "salt": request.salt}


@dataclass(frozen=True)
class _Sitting:
    """An audit at work on its folder."""

    model: AnyClassifier
    request: AuditRequest
    store: Store
    started: str  # when the first sitting began
    announce: Callable[[str], None]

    @property
    def day(self) -> date:
        """That of the start, so that a resumed run stops at the same batch."""
        return date.fromisoformat(self.started[:10])

    def judged(self, results: Results, samples: Samples | None) -> Results:
        """The results with the facts of the run and the verdict."""
        request = self.request
        ended = provenance.now() if results.run.preliminary is None else None
        run = replace(
            results.run, started=self.started, ended=ended, command=request.command,
            git_commit=provenance.commit(Path.cwd()), fail_on=request.fail_on, salt=request.salt,
            shortened=request.shortened, fail_on_finding=request.fail_on_finding,
        )  # fmt: skip
        results = replace(results, run=run, software=provenance.facts(self.model), policy=request.policy.to_record())
        return judge(request.policy, results, samples, datetime.now(UTC).date(), request.fail_on)

    def first_look(self, measured: "_Measured", images: Dataset, taken: Taken, total: int) -> None:
        """A preliminary report before the other images are measured; the last one replaces it."""
        summary = measured.summary
        if summary is None or summary.record is None:
            return
        showcase(self.model, images, measured.usable, summary, self.store.folder / GALLERY)
        signature = self.model.signature
        pixels, batches = signature.height * signature.width, summary.record.batches(taken.earlier)
        units = unit_keys(batches, pixels, self.model.device, summary.settings)
        preliminary = Preliminary(len(images), total, provenance.now(), tuple(units.values()))
        run = replace(measured.results.run, taken=taken, preliminary=preliminary)
        self.report(self.judged(replace(measured.results, run=run), measured.samples))
        self.announce(
            f"first report: {self.store.folder / REPORT} ({len(images)} of {total} images; the audit continues)"
        )

    def report(self, results: Results) -> None:
        """Write the results and the page."""
        self.store.finish(results)
        write_whole(self.store.folder / REPORT, render_html(load(self.store.folder)).encode())


def _changes_since(baseline: Path | None, out: Path) -> tuple[Comparison | None, str]:
    """The changes since the baseline, or the reason why the two runs do not compare."""
    if baseline is None:
        return None, ""
    try:
        comparison = compare(baseline, out)
    except BadInput as error:
        return None, str(error)
    # The digest of the run itself is not known before its results are written.
    return replace(comparison, b=replace(comparison.b, results=None)), ""


def about_run(model: AnyClassifier, images: Dataset, request: AuditRequest) -> dict[str, object]:
    """Everything that identifies the run; a folder that holds another run is refused."""
    explanation = None if request.explanation is None else request.explanation.adapted_to(model)
    classes = model.signature.classes
    settings = resolved(request.evaluation, classes).to_record()
    changed = {name: used for name, (used, _asked) in changed_settings(request.policy, settings, classes).items()}
    return {
        **({"taking": to_object(request.taking)} if request.taking.in_batches else {}),
        **({"shortened": to_object(request.shortened)} if request.shortened else {}),
        **({"settings": changed} if changed else {}),
        "subject": to_object(subject(model, images)),
        "policy": request.policy.sha256,
        "fail_on": request.fail_on,
        "fail_on_finding": request.fail_on_finding,
        "maps": None if explanation is None else {"method": explanation.name(), "labels": explanation.labels},
        "bundles": {name: _bundle_digest(bundle) for name, bundle in request.bundles.items()},
        "pool": None if request.pool is None else request.pool.digest(),
        "environment": environment(model),
    }


def _bundle_digest(bundle: HeatmapSet) -> str:
    """Digest of a bundle's maps, or the error that prevents one."""
    try:
        return bundle_digest(bundle)
    except BadInput as error:
        return with_path_name(str(error), bundle.path)


def require_startable(model: AnyClassifier, images: Dataset, request: AuditRequest, out: Path) -> None:
    """Refuse, before the work, a folder that is not a run and a baseline that is not comparable."""
    Store(out).require_usable()
    baseline, classes = request.baseline, model.signature.classes
    if baseline is None:
        return
    if baseline.resolve() == out.resolve():
        raise BadInput(f"{baseline} cannot be its own baseline; give the folder of an earlier run.")
    run = read_run(baseline)
    before, subject = run.results, replace(run.results.subject, classes=classes)
    common_infills(before, replace(before, subject=subject, settings=resolved(request.evaluation, classes).to_record()))
    if not set(run.table.images) & set(images.ids):
        raise BadInput(f"{baseline} has none of these images, by their names; give a run on the same ones.")


def _measure(sitting: _Sitting, images: Dataset, phase: Phase) -> tuple[Dataset, Results, Samples | None]:
    """The images that were taken, the results without a verdict, and the values of each image."""
    model, request, store = sitting.model, sitting.request, sitting.store
    taking = request.taking
    batches = Batches(images, request.policy, request.evaluation.seed, taking) if taking.in_batches else [images]
    last = taking.ends(request.policy.images_needed, len(images))[-1]
    earlier, precisions = list[Batch](), set[str | None]()
    for taken in batches:
        measured = _measure_batch(model, taken, request, store, phase, earlier)
        results, samples = measured.results, measured.samples
        precisions.add(results.environment.get("precision"))
        if len(precisions) > 1:
            raise RuntimeFailure("some images need strict float32 and others do not; give --precision strict and a "
                                 "new folder.")  # fmt: skip
        if len(taken) == last:
            break
        if len(taken) == taking.first_look and isinstance(batches, Batches):
            if not (store.folder / REPORT).exists():
                sitting.first_look(measured, taken, batches.taken(tuple(earlier)), last)
        elif not is_open(request.policy, results, samples, sitting.day, request.fail_on):
            break
        earlier.append(Batch(len(taken), results.subject.images.digest, results.run.bundles))
    if measured.summary is not None:
        showcase(model, taken, measured.usable, measured.summary, store.folder / GALLERY)
    if isinstance(batches, Batches):
        results = replace(results, run=replace(results.run, taken=batches.taken(tuple(earlier))))
    randomised = _randomise(model, taken, request, store, measured.usable, phase)
    results = replace(results, randomisation=randomised)
    if request.policy.examination is not None:
        with phase("examining") as progress:
            results = examined(model, taken, measured.usable, request.policy, results, store.folder, progress)
    if reproduce.should_reproduce(request.policy, results):
        with phase("reproducing") as progress:
            reproductions = reproduce.reproduce(model, taken, measured.usable, request.pool, results, progress)
        results = replace(results, reproductions=reproductions)
    return taken, results, samples


@dataclass(frozen=True)
class _Measured:
    """Images that were measured; a bundle that cannot be used becomes a finding."""

    usable: Mapping[str, HeatmapSet]
    results: Results
    summary: Summary | None  # None: no bundle can be used

    @property
    def samples(self) -> Samples | None:
        return None if self.summary is None else self.summary.samples


def _measure_batch(
    model: AnyClassifier, images: Dataset, request: AuditRequest, store: Store, phase: Phase, earlier: Sequence[Batch]
) -> _Measured:  # fmt: skip
    """Measure these images, of which the `earlier` batches are done."""
    settings, pool, bundles = request.evaluation, request.pool, request.bundles
    explained, summary = None, None
    refused = refusals(model, bundles)
    if request.explanation is not None:
        explanation = replace(request.explanation, labels=request.explanation.labels or settings.labels).adapted_to(
            model
        )
        with phase("explaining") as progress:
            maps = explain(model, images, explanation, store.folder / MAPS, pool, progress, root=store.folder)
        # A run that was cut short may have maps of the next batch.
        bundles, record = {explanation.method: maps.of_images(set(images.ids))}, Record.of(store.folder / MAPS)
        explained = Explained(explanation.name(), explanation.to_record(pool), record.passes, record.gradients,
                              record.computed, record.notes)  # fmt: skip
    usable = {name: bundle.named_as(images) for name, bundle in bundles.items() if name not in refused}
    if not usable:
        about = subject(model, images, full_paths=request.record_machine)
        results = without_figures(about, resolved(settings, model.signature.classes), environment(model))
    else:
        with phase("evaluating") as progress:
            summary = evaluate(
                model, images, usable, settings, store, progress, request.infill_pool, earlier,
                record_machine=request.record_machine,
            )  # fmt: skip
        results = run_results(summary, explained)
    name_of = partial(path_name, full=request.record_machine)
    run = replace(
        results.run,
        refused_bundles={
            name: _recorded(problems, bundles[name].path, full_paths=request.record_machine)
            for name, problems in refused.items()
        },
        bundle_models={name: bundle.header.model for name, bundle in bundles.items()},
        bundle_methods={name: bundle.header.method for name, bundle in bundles.items()},
        bundle_paths={name: name_of(bundle.path) for name, bundle in request.bundles.items()},  # of supplied ones
        pool_path=None if pool is None else name_of(pool.source),
    )  # fmt: skip
    return _Measured(usable, replace(results, run=run, explained=explained), summary)


def _recorded(refused: Iterable[Refusal], bundle: Path, *, full_paths: bool) -> tuple[Refusal, ...]:
    """The refusals of a bundle as records have them."""
    return tuple(
        replace(refusal, message=with_path_name(refusal.message, bundle, full=full_paths)) for refusal in refused
    )


def refusals(model: AnyClassifier, bundles: Mapping[str, HeatmapSet]) -> dict[str, tuple[Refusal, ...]]:
    """The errors of the bundles that cannot be used."""
    refusals = {}
    for name, bundle in bundles.items():
        problems = bundle_check.check(bundle, None, model.identity, model.signature.classes)
        errors = [Refusal(problem.kind, problem.message) for problem in problems if problem.severity == "error"]
        if errors:
            refusals[name] = tuple(errors)
    return refusals


def _randomise(
    model: AnyClassifier, images: Dataset, request: AuditRequest, store: Store, bundles: Mapping[str, HeatmapSet],
    phase: Phase,
) -> Randomisation | None:  # fmt: skip
    """Compare the maps with those of re-initialised models, if the policy asks for it and the audit made the maps."""
    settings = request.policy.randomisation
    if settings is None:
        return None
    if request.explanation is None:
        return Randomisation(NotRandomised("supplied"))
    (maps,) = bundles.values()
    with phase("randomising") as progress:
        return randomisation(
            model, images, request.explanation, request.pool, maps, images_wanted=settings.images,
            stages=settings.stages, seed=request.evaluation.seed, confidence=request.evaluation.confidence,
            out=store.folder / RANDOMISED, progress=progress,
        )  # fmt: skip
