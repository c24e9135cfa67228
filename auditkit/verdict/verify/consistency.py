"""Checks of a run by itself: its settings, results, verdict, gallery and report belong together."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, date, datetime
from functools import partial
from itertools import chain, takewhile, zip_longest

from auditkit.data.bundle_files import HEADER, OWN_PRODUCER, Header
from auditkit.data.bundles import CONSTANT_NOTE, HeatmapSet, open_bundle
from auditkit.evidence.salt import seed_of
from auditkit.metrics.faithfulness import same_rule
from auditkit.model.device import PROFILES
from auditkit.records import to_json, to_object
from auditkit.report.html import render_html
from auditkit.report.load_run import Loaded
from auditkit.runs.evaluation.plan import RunRecord, bundle_digest, without_paths
from auditkit.runs.explanation.record import FUNCTION, RECORD, Record, encoded, map_digest
from auditkit.runs.folder import provenance, sittings
from auditkit.runs.folder.checksums import SUMS
from auditkit.runs.folder.figures import NotRandomised, Randomisation, RandomisationStage, Taking
from auditkit.runs.folder.names import MAPS, POLICY, RANDOMISED, REPORT, RESULTS, RUN
from auditkit.runs.folder.parquet import SCHEMA_VERSION
from auditkit.runs.folder.results import SHIPPED, Results, RunFacts
from auditkit.runs.folder.store import digest
from auditkit.runs.pictures.gallery import encoded_index, gallery_index
from auditkit.runs.pictures.gallery_index import FOLDER as GALLERY
from auditkit.runs.pictures.gallery_index import INDEX, GalleryIndex
from auditkit.runs.randomisation import stage_result
from auditkit.runs.summary.results import results, without_figures
from auditkit.runs.summary.summarise import Summary, summarise
from auditkit.verdict import reproduce
from auditkit.verdict.audit import CHANGEABLE
from auditkit.verdict.decision import judge
from auditkit.verdict.policy import Policy
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.preconditions import changed_settings
from auditkit.verdict.verify import page
from auditkit.verdict.verify.examination import contradictions
from auditkit.verdict.verify.run_record import Outcome, PlainRecord, RecordedRun, differences

_MOST_CHARACTERS = 100  # of a fact about the machine
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,39}")
OTHERWISE = "is not written as auditkit writes it"
_DIGEST = re.compile("[0-9a-f]{32}")
NOT_SUMMED_UP = (
    "tool", "runtime", "checks", "verdict", "verdict_reason", "policy", "software", "explained", "randomisation",
    "baseline", "hints", "reproductions", "examination", "not_examined", "finding_gate",
)  # entries of results.json that do not follow from rows  # fmt: skip
SUMMED_UP = tuple(field.name for field in fields(RunFacts) if field.name in
                  ("rows", "bundles", "pool", "infill_images", "copies"))  # entries of its `run` that do  # fmt: skip


def check_settings(recorded: RecordedRun) -> Outcome:
    """Whether run.json, which is written first, and results.json agree."""
    results, problems = recorded.results, list[str]()
    run = {"schema_version": SCHEMA_VERSION, "settings": recorded.run, "settings_digest": digest(recorded.run)}
    for name, plain in ((RESULTS, recorded.plain), (RUN, run)):
        if (recorded.store.folder / name).read_bytes() != canonical(plain):
            problems.append(f"{name} {OTHERWISE}")  # such as an entry that stands there twice
    problems += [f"{name} does not belong in such a run" for name in _superfluous(recorded)]
    expected = without_paths(recorded.about) if results.policy is None else _expected_settings(recorded)
    problems += [f"run.json: {text}" for text in differences(recorded.run, expected)]
    problems += sittings.problems(recorded.store.folder)
    problems += [f"{RESULTS}: {text}" for text in _shortened_otherwise(results)]
    if results.run.preliminary is not None and (recorded.store.folder / SUMS).exists():
        problems.append(f"{RESULTS}: the run is sealed, but not finished")
    if results.policy is not None:
        problems += [f"{RESULTS}: {text}" for text in _provenance(recorded)]
    if not recorded.other_version:
        problems += [f"{RESULTS}: {text}" for text in _unlike_ours(recorded)]
    unchecked = [f"the words of results and report: {recorded.other_version}"] if recorded.other_version else []
    return Outcome("agree in run.json and results.json", problems, unchecked)


def _superfluous(recorded: RecordedRun) -> list[str]:
    """Files and folders that only other runs have."""
    results, names, folder = recorded.results, set[str](), recorded.store.folder
    if results.policy is None:
        names |= {POLICY, REPORT, GALLERY, MAPS, RANDOMISED}
    if results.explained is None:
        names |= {MAPS, RANDOMISED}
    expected = {f"{RANDOMISED}/stage-{entry.stage}" for entry in stages(recorded)}
    names |= {f"{RANDOMISED}/{path.name}" for path in (folder / RANDOMISED).glob("*")} - expected
    bundles = [folder / name for name in {MAPS, *expected} - names]
    unnamed = chain.from_iterable(open_bundle(path).unnamed_files() for path in bundles if path.is_dir())
    names |= {path.relative_to(folder).as_posix() for path in unnamed}
    return [name for name in sorted(names) if (folder / name).exists()]


def canonical(plain: object) -> bytes:
    """An object as the store writes it."""
    return (json.dumps(plain, sort_keys=True, indent=2) + "\n").encode()


def _expected_settings(recorded: RecordedRun) -> PlainRecord:
    """What run.json holds of an audit; what only the originals can show stays as it is."""
    results, run = recorded.results, recorded.run
    about, explained = without_paths(recorded.about), results.explained
    policy = None if results.policy is None else parse_policy(results.policy.text, POLICY)
    bundles = {name: run["bundles"].get(name) for name in results.run.refused_bundles or {}}
    environment = about["environment"]
    if results.runtime is not None and results.runtime.note is not None and environment["precision"] == "strict":
        environment = {**environment, "precision": run["environment"]["precision"]}  # raised after run.json was written
    subject, taken, classes = about["subject"], results.run.taken, results.subject.classes
    others = changed_settings(policy, results.settings, classes) if policy else {}
    changed = {name: used for name, (used, _asked) in others.items()}
    maps, pool, shortened = None, run["pool"], results.run.shortened
    if explained is not None:
        measured = str(changed.get("labels") or (policy and policy.evaluation.labels) or "")
        default = same_rule(explained.request.labels, measured, classes)
        labels = None if run["maps"]["labels"] is None and default else explained.request.labels
        maps, pool = {"method": explained.method, "labels": labels}, explained.request.pool
    if taken is not None:
        subject = {**subject, "images": {"count": taken.count, "digest": taken.digest}}
    return {
        **({} if shortened is None else {"shortened": to_object(shortened)}),
        **({} if taken is None else {"taking": to_object(taken.taking)}), **({"settings": changed} if changed else {}),
        "subject": subject, "policy": policy and policy.sha256, "fail_on": results.run.fail_on,
        "fail_on_finding": results.run.fail_on_finding, "maps": maps,
        "bundles": {**bundles, **(about["bundles"] if explained is None else {})},
        "pool": pool, "environment": environment, "salt": results.run.salt,
    }  # fmt: skip


def _unlike_ours(recorded: RecordedRun) -> Iterator[str]:
    """Facts about software and machine that are not written as auditkit writes them."""
    software: Mapping[str, str | None] = recorded.results.software or {}
    environment: Mapping[str, str | None] = recorded.results.environment
    commit, packages = recorded.results.run.git_commit, provenance.software().keys() - {"platform"}
    if commit is not None and not provenance.COMMIT.fullmatch(commit):
        yield f"run.git_commit is {commit!r:.80}, which is no commit"
    on_a_device = ("device", "precision")
    kinds = (("environment", environment, {"auditkit", "onnxruntime", "system", *on_a_device}),
             ("software", software, {*provenance.software(), *on_a_device, "device_name", "provider"}))  # fmt: skip
    for where, facts, names in kinds:
        for name, value in facts.items():
            if name not in names:
                yield f"{where} has an entry '{name:.80}', which is not expected"
            elif value is not None and not (value.isprintable() and len(value) <= _MOST_CHARACTERS):
                yield f"{where}.{name} is not a line of at most {_MOST_CHARACTERS} characters"
            elif name in packages and not _VERSION.fullmatch(value or ""):
                yield f"{where}.{name} is '{value}', which is no version"


def _provenance(recorded: RecordedRun) -> Iterator[str]:
    """Facts about how an audit was made that contradict others of its folder."""
    results, run = recorded.results, recorded.results.run
    if run.salt is None:
        if not recorded.other_version:  # earlier versions took the policy's seed
            yield "run.salt is missing, so nothing shows what was left to chance"
    elif results.settings.seed != seed_of(run.salt):
        yield f"settings.seed is {results.settings.seed}, which does not follow from run.salt, {run.salt}"
    starts = [entry for entry in sittings.entries(recorded.store.folder) if "started" in entry]
    first = min((str(entry["started"]) for entry in starts), default=None)
    command = starts[-1]["command"] if starts else None
    yield from differences([run.started, list(run.command or ())], [first, command], "run")
    yield from _asked_otherwise(run)
    if run.preliminary is not None and run.ended is not None:
        yield "the run ended, and is preliminary"
    for name, text in (("started", run.started), ("written" if run.preliminary else "ended", run.written)):
        if text is None or datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) > datetime.now(UTC):
            yield f"run.{name} is {text}, which is not a time in the past"
    if (run.started or "") > (run.written or ""):
        yield f"the run started at {run.started} and ended before, at {run.written}"
    environment, software = recorded.run["environment"], results.software or {}
    facts = {
        name: environment[name] for name in ("auditkit", "onnxruntime", "device", "precision") if name in environment
    }
    if "device" in facts:
        facts["provider"] = PROFILES[facts["device"]].provider
    yield from differences({name: software.get(name) for name in facts}, facts, "software")
    yield from differences([results.tool.name, results.tool.version], ["auditkit", environment["auditkit"]], "tool")
    if results.runtime is None and (results.explained is not None or not run.refused_bundles or run.bundles):
        yield "the run has no rows, though not all of its bundles were refused"
    names = {*run.bundles, *(run.refused_bundles or {})}
    supplied = names if results.explained is None else set()
    for entry, expected in (("bundle_methods", names), ("bundle_models", names), ("bundle_paths", supplied)):
        if set(getattr(run, entry) or ()) != expected:
            yield f"run.{entry} is not about the run's bundles, which are {', '.join(sorted(expected)) or 'none'}"


def _asked_otherwise(run: RunFacts) -> Iterator[str]:
    """Severities that fail the audit and are not those of the recorded command."""
    if not run.command:
        return
    for name in ("fail_on", "fail_on_finding"):
        option = f"--{name.replace('_', '-')}"
        recorded, asked = getattr(run, name), _option_value(run.command, option)
        if recorded != asked:
            yield (
                f"run.{name} is {recorded or 'not set':.80}, "
                f"but {option} of the recorded command is {asked or 'not set':.80}"
            )


def _option_value(command: Sequence[str], option: str) -> str | None:
    """The last value that a command line gives an option; None where it gives none."""
    words = list(takewhile(lambda word: word != "--", command))
    value = None
    for word, following in zip_longest(words, words[1:]):
        name, equals, text = word.partition("=")
        if name == option:
            value = text if equals else following
    return value


def _shortened_otherwise(results: Results) -> Iterator[str]:
    """What a budget is said to have left out, where that is not what the audit did."""
    shortened, taken, explained = results.run.shortened, results.run.taken, results.explained
    if shortened is None:
        return
    if not shortened.options:
        yield "run.shortened leaves nothing out"
    taking = Taking() if taken is None else taken.taking
    method = None if explained is None else explained.request.method
    recorded = to_object(shortened)
    expected = {
        **recorded,
        "total": results.subject.images.count if taken is None else taken.count,
        "images": None if shortened.images is None else taking.limit,
        "until_decided": shortened.until_decided and taking.until_decided,
        "method": None if shortened.method is None else method,
    }
    yield from differences(recorded, expected, "run.shortened")


def _computed(recorded: RecordedRun) -> str:
    """Where maps were computed; re-initialised models are never run in float16."""
    environment = recorded.run["environment"]
    return f"{environment['device']}, {environment['precision']}" if "device" in environment else FUNCTION


def check_own_maps(recorded: RecordedRun) -> Outcome:
    """Whether the maps that an audit made are those that its results name."""
    explained, run, folder = recorded.results.explained, recorded.results.run, recorded.store.folder / MAPS
    if explained is None:
        raise ValueError("the run did not make its maps")
    bundle, record, computed = open_bundle(folder), Record.of(folder), _computed(recorded)
    facts = to_object(replace(explained, passes=record.passes, gradients=record.gradients, computed=(computed,),
                              notes=record.notes, method=bundle.header.method))  # fmt: skip
    problems = list(differences(recorded.plain["explained"], facts, "explained"))
    problems += _bundle_problems(recorded, bundle, computed)
    name = explained.request.method
    expected = {"bundles": {name: bundle_digest(bundle, fresh=True)}, "bundle_methods": {name: bundle.header.method},
                "bundle_models": {name: bundle.header.model}}  # fmt: skip
    problems += differences({entry: to_json(getattr(run, entry)) for entry in expected}, expected, "run")
    return Outcome(f"{len(bundle)} are those of the results and of their record", problems)


def _bundle_problems(recorded: RecordedRun, bundle: HeatmapSet, computed: str) -> Iterator[str]:
    """Contradictions between maps that the audit made, their header, and the record beside them."""
    where, record, digests = bundle.path.name, Record.of(bundle.path), dict[str, dict[str, str]]()
    signed, constant, read = False, False, bundle.stored_reader()
    for entry in bundle.entries:
        values, _ = read(entry)
        signed, constant = signed or bool(values.min() < 0), constant or bool(values.min() == values.max())
        digests.setdefault(entry.image, {})[str(entry.label)] = map_digest(values)
    header = Header(
        producer=f"{OWN_PRODUCER}{recorded.results.tool.version}", model=bundle.header.model, frame="model-input",
        method="" if recorded.results.explained is None else recorded.results.explained.method, layout=("NHW",),
        channels="none", sign="signed" if signed else "unsigned", notes=(CONSTANT_NOTE,) if constant else (),
        upsampling=bundle.header.upsampling,
    )  # fmt: skip
    yield from differences(to_json(bundle.header), to_json(header), f"{where}/{HEADER}")
    if (bundle.path / RECORD).read_bytes() != b"".join(map(encoded, record.parts)):
        yield f"{where}/{RECORD} {OTHERWISE}"
    expected = {"maps": digests, "images": sorted(digests), "computed": [computed]}
    entries = {"maps": record.maps, "images": sorted(record.images), "computed": list(record.computed)}
    yield from differences(entries, expected, f"{where}/{RECORD}")
    texts = [*record.images.values(), *(part.infill for part in record.parts if part.infill)]
    yield from (f"{where}/{RECORD} has '{text:.40}' for a digest" for text in texts if not _DIGEST.fullmatch(text))


def summed_up(recorded: RecordedRun) -> Summary | None:
    """The figures that the stored rows give; None where there are no rows."""
    runtime, tables = recorded.results.runtime, partial(recorded.store.tables, recorded.units.values())
    if runtime is None:
        return None
    return summarise(tables, recorded.settings, runtime, RunRecord.of(recorded.results))


def check_summary(recorded: RecordedRun, summary: Summary | None) -> Outcome:
    """Entries of results.json that do not follow from the stored rows."""
    record = RunRecord.of(recorded.results)
    expected_results = without_figures(record.subject, recorded.settings, record.environment)
    if summary is not None:
        expected_results = results(summary, recorded.results.explained)
    expected, plain = expected_results.to_json(), dict(recorded.plain)
    left_out = {*NOT_SUMMED_UP, *(("limitations",) if recorded.other_version else ())}
    runs = [{name: to_object(facts).get(name) for name in SUMMED_UP}
            for facts in (recorded.results.run, expected_results.run)]  # fmt: skip
    plain["run"], expected["run"] = runs
    for name in left_out:
        plain.pop(name, None)
        expected.pop(name, None)
    figures = sum(map(len, (expected_results.metrics, expected_results.controls, expected_results.comparisons,
                            expected_results.classes)))  # fmt: skip
    problems = [f"{RESULTS}: {text}" for text in differences(plain, expected)]
    return Outcome(f"{figures:,} figures follow from the rows", problems)


def check_verdict(recorded: RecordedRun, summary: Summary | None) -> Outcome:
    """Checks, verdict and policy that do not follow from the results."""
    results, unchecked = recorded.results, list[str]()
    if results.policy is None:
        raise ValueError("the run has no policy")
    policy = parse_policy(results.policy.text, POLICY)
    record, plain = to_object(policy.to_record()), dict(to_object(results.policy))
    if policy.name in SHIPPED and not policy.shipped and recorded.other_version:
        unchecked.append(f"whether the policy is auditkit's own '{policy.name}': {recorded.other_version}")
        del record["shipped"], plain["shipped"]
    problems = [f"{RESULTS}: {text}" for text in differences(plain, record, "policy")]
    if policy.name in SHIPPED and not policy.shipped and not recorded.other_version:
        problems.append(f"the policy calls itself '{policy.name}' and is not the one that auditkit ships")
    if (recorded.store.folder / POLICY).read_bytes() != policy.text.encode():
        problems.append(f"the policy is not that of {POLICY}")
    others = changed_settings(policy, results.settings, results.subject.classes).keys() - set(CHANGEABLE)
    problems += [f"the policy asks for another setting '{name}'" for name in sorted(others)]
    problems += _taken_otherwise(recorded, policy)
    if results.run.preliminary is not None:
        judged = judge(policy, results, None, date.today(), results.run.fail_on)
        return Outcome("there is none yet", [*problems, *_judged_otherwise(recorded, judged)])
    problems += _randomisation_facts(recorded, asked=policy.randomisation is not None)
    bundles = sorted(results.run.bundles) if reproduce.should_reproduce(policy, results) else []
    if sorted(entry.bundle for entry in results.reproductions) != bundles:
        problems.append(f"{RESULTS}: reproductions of {', '.join(bundles) or 'no bundle'} are expected, no other")
    problems += contradictions(results, policy)
    day = date.fromisoformat((results.run.ended or "")[:10])  # on which suppressions were in force or not
    unchecked += [f"whether {entry.check} was judged before its suppression expired, on {entry.expires}: that rests on "
                  f"the recorded time; run the audit again" for entry in policy.suppressions
                  if day <= entry.expires < datetime.now(UTC).date()]  # fmt: skip
    samples = None if summary is None else summary.samples
    judged = judge(policy, results, samples, day, results.run.fail_on)
    about = f"follows from results and policy, {len(results.checks)} checks"
    return Outcome(about, [*problems, *_judged_otherwise(recorded, judged)], unchecked)


def _judged_otherwise(recorded: RecordedRun, judged: Results) -> list[str]:
    """Differences between the recorded checks and verdict and those of results that were judged again."""
    names, plain = ("checks", "verdict", "verdict_reason", "finding_gate"), judged.to_json()
    stored = {name: recorded.plain.get(name) for name in names}
    wrong = differences(stored, {name: plain.get(name) for name in names})
    return [f"{RESULTS}: {text}" for text in wrong]


def _taken_otherwise(recorded: RecordedRun, policy: Policy) -> Iterator[str]:
    """Batches of images other than those that an audit until it is decided takes."""
    taken, count = recorded.results.run.taken, recorded.results.subject.images.count
    if taken is not None:
        sizes = [*(batch.images for batch in taken.earlier), count]
        expected = taken.taking.ends(policy.images_needed, taken.count)[: len(sizes)]
        if count > taken.count or sizes != expected:
            yield f"{RESULTS}: run.taken has batches up to {sizes} of {taken.count} images, expected {expected}"


def _randomisation_facts(recorded: RecordedRun, *, asked: bool) -> Iterator[str]:
    """Contradictions about whether models were re-initialised; how alike the maps are needs the originals."""
    expected: object = recorded.plain["randomisation"]
    if not asked:
        expected = None
    elif recorded.results.explained is None:
        expected = to_json(Randomisation(NotRandomised("supplied")))
    elif expected is None:
        yield f"{RESULTS}: randomisation is missing, which the policy asks for"
    for text in differences(recorded.plain["randomisation"], expected, "randomisation"):
        yield f"{RESULTS}: {text}"


def stages(recorded: RecordedRun) -> tuple[RandomisationStage, ...]:
    """The stages of re-initialised models; none if the run has none."""
    randomisation = recorded.results.randomisation
    return () if randomisation is None else randomisation.series or ()


def check_stages(recorded: RecordedRun) -> Outcome:
    """Stages of re-initialised models whose figures do not follow from their stored maps."""
    folder, problems = recorded.store.folder, list[str]()
    randomisation = recorded.results.randomisation
    confidence = (None if randomisation is None else randomisation.confidence) or 0.0
    original = open_bundle(folder / MAPS)
    for entry in stages(recorded):
        changed = open_bundle(folder / RANDOMISED / f"stage-{entry.stage}")
        originals = [original.get(heatmap.image, heatmap.label) for heatmap in changed.entries]
        maps = [changed.read(heatmap) for heatmap in changed.entries]
        problems += _bundle_problems(recorded, changed, _computed(recorded).replace("float16", "strict"))
        expected = stage_result(entry.stage, entry.layers, entry.share, originals, maps, confidence)
        problems += differences(to_json(entry), to_json(expected), f"{RESULTS}: randomisation, stage {entry.stage}")
    return Outcome(f"{len(stages(recorded))} follow from the maps of re-initialised models", problems)


def check_gallery(recorded: RecordedRun, summary: Summary | None, gallery: GalleryIndex | None) -> Outcome:
    """Whether the gallery shows the images that the rows choose, with their figures."""
    folder = recorded.store.folder / GALLERY
    if summary is None or gallery is None:
        missing = [f"{GALLERY} is missing"] if summary is not None else []
        return Outcome("there is none", [f"{GALLERY} shows images without figures"] if gallery is not None else missing)
    card = replace(recorded.card, names=recorded.results.subject.class_names)
    expected = gallery_index(summary, list(recorded.results.run.bundles), card)
    problems = [f"{GALLERY}: {text}" for text in differences(to_json(gallery), to_json(expected))]
    if (folder / INDEX).read_bytes() != encoded_index(gallery):
        problems.append(f"{GALLERY}/{INDEX} {OTHERWISE}")
    names = set[str]().union(*(vars(entry.pictures).values() for entry in expected.entries))
    present = {path.name for path in folder.iterdir() if path.suffix != ".json"}
    problems += [f"{GALLERY}/{name} is missing or not one of its pictures" for name in sorted(names ^ present)]
    return Outcome(f"{len(expected.entries)} entries follow from the rows", problems)


def check_report(recorded: RecordedRun, loaded: Loaded) -> Outcome:
    """Whether the report shows the stored results."""
    about, folder = "shows these results, character by character", recorded.store.folder
    try:
        expected = render_html(loaded)
    except Exception as error:  # results that auditkit wrote always render
        return Outcome(about, [f"{REPORT} cannot be rendered from these results ({type(error).__name__}: {error})"])
    problem = page.difference((folder / REPORT).read_bytes().decode("utf-8", "backslashreplace"), expected)
    if problem and recorded.other_version:
        return Outcome(about, (), [f"whether {REPORT} shows these results: {recorded.other_version}"])
    return Outcome(about, [f"{REPORT} does not show these results: {problem}"] if problem else [])
