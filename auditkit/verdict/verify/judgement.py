"""Checks of what an audit adds to an evaluation: its verdict, its randomisation stages and its report."""

from datetime import date

from auditkit.data.bundles import open_bundle
from auditkit.records import to_json
from auditkit.report.html import render_html
from auditkit.report.load_run import load
from auditkit.runs.folder import provenance
from auditkit.runs.folder.figures import RandomisationStage
from auditkit.runs.randomisation import stage_result
from auditkit.verdict.decision import judge
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify.run_record import Outcome, RecordedRun, differences

POLICY, REPORT, MAPS, RANDOMISED = "policy.toml", "report.html", "maps", "randomised"  # in the run's folder


def check_verdict(recorded: RecordedRun) -> Outcome:
    """Checks, verdict and policy that do not follow from the results."""
    results = recorded.results
    if results.policy is None:
        raise ValueError("the run has no policy")
    policy = parse_policy(results.policy.text, POLICY)
    problems = list(differences(recorded.plain["policy"], to_json(policy.to_record()), "policy"))
    if (recorded.store.folder / POLICY).read_bytes() != policy.text.encode():
        problems.append(f"the policy is not that of {POLICY}")
    day = date.fromisoformat((results.run.ended or "")[:10])  # on which suppressions were in force or not
    judgement = judge(policy, results, day, results.run.fail_on)
    expected = {"checks": to_json(judgement.checks), "verdict": judgement.verdict, "verdict_reason": judgement.reason}
    problems += differences(recorded.plain, expected)
    about = f"follows from results and policy, {len(judgement.checks)} checks"
    return about, [f"results.json: {problem}" for problem in problems]


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
        expected = stage_result(entry.stage, entry.layers, entry.share, originals, maps, confidence)
        problems += differences(to_json(entry), to_json(expected), f"randomisation, stage {entry.stage}")
    about = f"{len(stages(recorded))} follow from the maps of re-initialised models"
    return about, [f"results.json: {problem}" for problem in problems]


def unchecked(recorded: RecordedRun) -> list[str]:
    """Contents of an audit that nothing recomputes."""
    parts = [(stages(recorded), "how the maps of re-initialised models were made"),
             (recorded.results.baseline, "what has changed since the baseline")]  # fmt: skip
    metadata = "times, command, commit and versions, which nothing but a signature on SHA256SUMS vouches for"
    return [*(text for value, text in parts if value), "the pictures of the gallery", metadata]


def rendering_obstacle(recorded: RecordedRun) -> str:
    """Why the report cannot be rendered as it was; empty if it can."""
    then, now = recorded.results.software or {}, provenance.software()
    changed = [name for name in now if name != "platform" and then.get(name) != now[name]]
    return f"{changed[0]} was {then.get(changed[0])}, and is {now[changed[0]]} here" if changed else ""


def check_report(recorded: RecordedRun) -> Outcome:
    """Whether the report shows the stored results."""
    return "shows these results, byte for byte", _report_problems(recorded)


def _report_problems(recorded: RecordedRun) -> list[str]:
    folder = recorded.store.folder
    try:
        drawn = render_html(load(folder)).encode()
    except Exception as error:  # results that auditkit wrote always render
        return [f"{REPORT} cannot be drawn from these results ({type(error).__name__}: {error})"]
    return [] if (folder / REPORT).read_bytes() == drawn else [f"{REPORT} shows something else than the results say"]
