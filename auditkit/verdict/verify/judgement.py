"""What an audit adds to an evaluation: its verdict judged again, its stages compared again, its report drawn again."""

from datetime import date

from auditkit.data.bundles import open_bundle
from auditkit.records import to_json
from auditkit.report.html import render_html
from auditkit.report.load_run import load
from auditkit.runs.folder import provenance
from auditkit.runs.folder.results import RandomisationStage
from auditkit.runs.randomisation import stage_result
from auditkit.verdict.decision import judge
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify.run_record import Recorded, differences

POLICY, REPORT, MAPS, RANDOMISED = "policy.toml", "report.html", "maps", "randomised"  # in the run's folder


def verdict(recorded: Recorded) -> tuple[int, list[str]]:
    """How many checks there are, and what of them, of the verdict or of the policy is not as it should be."""
    results = recorded.results
    if results.policy is None:
        return 0, []
    policy = parse_policy(results.policy.text, POLICY)
    found = list(differences(recorded.plain["policy"], to_json(policy.to_record()), "policy"))
    if (recorded.store.folder / POLICY).read_bytes() != policy.text.encode():
        found.append(f"the policy is not that of {POLICY}")
    day = date.fromisoformat((results.run.ended or "")[:10])  # suppressions hold or not as they did then
    judgement = judge(policy, results, day, results.run.fail_on)
    expected = {"checks": to_json(judgement.checks), "verdict": judgement.verdict, "verdict_reason": judgement.reason}
    return len(judgement.checks), [f"results.json: {text}" for text in
                                   [*found, *differences(recorded.plain, expected)]]  # fmt: skip


def stages(recorded: Recorded) -> tuple[RandomisationStage, ...]:
    """The figures of re-initialised models, where there are some."""
    randomisation = recorded.results.randomisation
    return () if randomisation is None else randomisation.series or ()


def series(recorded: Recorded) -> list[str]:
    """Stages of re-initialised models whose figures are not those of the maps that the run keeps of them."""
    folder, found = recorded.store.folder, list[str]()
    randomisation = recorded.results.randomisation
    confidence = (None if randomisation is None else randomisation.confidence) or 0.0
    true = open_bundle(folder / MAPS)
    for entry in stages(recorded):
        changed = open_bundle(folder / RANDOMISED / f"stage-{entry.stage}")
        pairs = [(true.get(one.image, one.label), changed.read(one)) for one in changed.entries]
        originals, maps = [first for first, _ in pairs], [second for _, second in pairs]
        expected = stage_result(entry.stage, entry.layers, entry.share, originals, maps, confidence)
        found += differences(to_json(entry), to_json(expected), f"randomisation, stage {entry.stage}")
    return [f"results.json: {said}" for said in found]


def beyond(recorded: Recorded) -> list[str]:
    """What an audit tells that is not computed again."""
    parts = [(stages(recorded), "how the maps of re-initialised models were made"),
             (recorded.results.baseline, "what has changed since the baseline")]  # fmt: skip
    told = "times, command, commit and versions, which nothing but a signature on SHA256SUMS vouches for"
    return [*(what for there, what in parts if there), "the pictures of the gallery", told]


def cannot_render(recorded: Recorded) -> str:
    """Why the report cannot be drawn as it was; empty when it can."""
    then, now = recorded.results.software or {}, provenance.software()
    changed = [name for name in now if name != "platform" and then.get(name) != now[name]]
    return f"{changed[0]} was {then.get(changed[0])}, and is {now[changed[0]]} here" if changed else ""


def report(recorded: Recorded) -> list[str]:
    """Whether the report was drawn from the results that are there."""
    folder = recorded.store.folder
    try:
        drawn = render_html(load(folder)).encode()
    except Exception as error:  # what the page stumbles over, results of auditkit's own do not hold
        return [f"{REPORT} cannot be drawn from these results ({type(error).__name__}: {error})"]
    return [] if (folder / REPORT).read_bytes() == drawn else [f"{REPORT} shows something else than the results say"]
