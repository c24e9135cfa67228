"""The first screen in words: are the heatmaps faithful, what does the model rely on, what is open, what to do next."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from auditkit.metrics.table import METRICS, title
from auditkit.report import examination as relies
from auditkit.report import groups, sections, wording
from auditkit.report.formatting import count, name, prose, sentence
from auditkit.report.notices import FINISH_IT
from auditkit.runs.folder.figures import CONTROL, ONE_MAP_PREFIX, STATUSES
from auditkit.runs.folder.results import PREPROCESSING, CheckResult, Results
from auditkit.runs.summary.wording import BY_CHANCE, images_to_add, more_images_text, remark, source_text

FAITHFUL, RELIES_ON = "Are the heatmaps faithful?", "What does the model rely on?"
_VERDICTS = {
    "pass": "Yes. The heatmaps meet {policy}.",
    "fail": "No. The heatmaps do not meet {policy}.",
    "inconclusive": "Not settled. These images do not decide whether the heatmaps meet {policy}. This is not a pass.",
    "measured": "Not judged. The metrics were measured, but {policy} sets no limit that decides.",
}
_SHOW = {
    "relevance_gain": "the heatmaps show the prediction",
    "other_label_evidence": "the heatmaps of labels that are not predicted show these labels",
}
_CLAIMS = {  # where the limit is kept, and where it is missed
    "label_specificity": ("the heatmaps of different labels show different evidence",
                          "the heatmaps of different labels show much the same evidence"),
    "randomisation": ("the heatmaps change when the model is re-initialised",
                      "the heatmaps hardly change when the model is re-initialised, so they do not show what it has "
                      "learned"),
    "flags": ("no heatmaps are reused or constant", "heatmaps are reused or constant"),
    "runtime_error": ("the machine does not change the figures", "the machine changes the figures"),
}  # fmt: skip
_NOT_EXAMINED, _NOTHING_FOUND = wording.Word("Not examined", "–", "none"), wording.Word("Nothing found", "●", "none")
_ONE_MAP = "cheat-one-map-for-all-labels"  # a finding
_QUIET = ("flags", "runtime_error")  # checks that are not worth a line where they pass


class Reason(NamedTuple):
    """What a check says, in a sentence and in figures."""

    word: wording.Word
    text: str
    figures: str


class Answer(NamedTuple):
    """An answer in a sentence, why, how sure it is, and compared with what."""

    word: wording.Word
    text: str
    reasons: list[Reason]
    sure: str
    compared: str = ""


def faithful(results: Results) -> Answer:
    """Whether the heatmaps show what the model uses."""
    policy = f"the policy “{name(results.policy.name)}”" if results.policy else ""
    text = _VERDICTS.get(results.verdict or "", "This verdict is not known: {policy}.").format(policy=policy)
    if results.run.preliminary is not None:
        return Answer(wording.headline(results), "Not known yet.", [], results.run.preliminary.text, _compared(results))
    if not results.verdict:
        text = "Not judged. No policy was applied, so the metrics have no verdict."
    elif _rests_on_a_guess(results):
        text = f"Not settled. The preprocessing is a guess, so nothing decides about {policy}. This is not a pass."
    reasons = [_reason(check, results) for check in _deciding(results) if check.id != PREPROCESSING]
    return Answer(wording.headline(results), text, reasons, _sure(results), _compared(results))


def _rests_on_a_guess(results: Results) -> bool:
    """Whether nothing is settled, and more images would not settle it."""
    return results.verdict == "inconclusive" and results.subject.card_origin.assumption is not None


def _deciding(results: Results) -> list[CheckResult]:
    """The checks that say something about the maps, and others that did not pass; the worst first.

    Maps that are the same for all labels show no label's own evidence, whether or not a test says so too.
    """
    judged = results.verdict in ("pass", "fail", "inconclusive")
    one_map = any(check.id == _ONE_MAP and check.status == "fail" for check in results.checks)
    checks = [check for check in results.checks if not check.part_of and (check.counts or (not judged and check.rule))
              and not check.id.startswith("not-above-")
              and (check.status != "pass" or (check.metric in METRICS and check.metric not in _QUIET))]  # fmt: skip
    if one_map:
        checks = [check for check in checks if (check.metric, check.status) != ("label_specificity", "inconclusive")]
    return sorted(checks, key=lambda check: STATUSES.index(check.status))


def _reason(check: CheckResult, results: Results) -> Reason:
    flagged = check.metric == "flags" and results.flags
    figures = " ".join(sections.flags(results)) if flagged else _without_advice(check)
    metric = METRICS.get(check.metric)
    if metric and metric.phrase:
        begins = f"{metric.title[:1].upper()}{metric.title[1:]}"
        figures = figures.replace(begins, f"{begins} ({metric.phrase})", 1)
    return Reason(wording.status(check.status), _claim(check), prose(figures))


def _without_advice(check: CheckResult) -> str:
    """The reason of a check without what to do, which has a place of its own."""
    reason = check.reason
    outlook = None if check.more_images is None else more_images_text(check.more_images)
    for advice in filter(None, (f"What to do: {check.what_to_do}", check.what_to_do, outlook)):
        reason = reason.replace(advice, "").strip()
    return reason


def _claim(check: CheckResult) -> str:
    """What a check shows, in a sentence that needs no figure."""
    if check.metric in _CLAIMS and check.status in ("pass", "fail", "inconclusive"):
        kept, missed = _CLAIMS[check.metric]
        text = {"pass": kept, "fail": missed}.get(check.status, f"It is undecided whether {kept}")
        return sentence(text)
    if check.rule.startswith("margin over ") and check.status in ("pass", "fail", "inconclusive"):
        return _beside_controls(check)
    name_of = check.title or check.id
    prefix = {"pass": "", "suppressed": "", "not assessed": "not assessed: "}.get(check.status, "not met: ")
    return sentence(f"{prefix}{name_of}")


def _beside_controls(check: CheckResult) -> str:
    show = _SHOW.get(check.metric, f"the heatmaps have {title(check.metric)}")
    control = source_text(check.against) if check.against else "the controls"
    if check.status == "pass":
        return sentence(f"{show} better than each control, a map that ignores the model")
    if check.status == "inconclusive":
        return sentence(f"it is undecided whether {show} better than {control}")
    blind = bool(check.against) and not (check.against or "").startswith(ONE_MAP_PREFIX)
    word = "worse" if (check.observed or 0) < 0 else "hardly better"
    return sentence(f"{show} {word} than {control}{', a map that ignores the model' if blind else ''}")


def _sure(results: Results) -> str:
    images = count(results.subject.images.count, "image")
    counted = [check for check in results.checks if check.counts]
    if results.verdict == "fail":
        failed = [check for check in counted if check.status == "fail"]
        certain = any(check.evidence is None for check in failed)
        fact = "What failed without an interval is a fact about these maps; chance plays no part in it."
        chance = fact if certain else BY_CHANCE["fail"]
        return f"{images}. {chance}"
    if results.verdict == "pass" and any(check.evidence for check in counted):
        return f"{images}. {BY_CHANCE['pass']}"
    if _rests_on_a_guess(results):
        return f"{images}. As long as the preprocessing is a guess, more of them settle nothing."
    if any(check.id == "images" and check.status != "pass" for check in counted):
        return f"{images}, too few to decide."
    if results.verdict == "inconclusive":
        return f"{images}. They are too few, or too different, to decide either way."
    return f"{images}. Nothing was tested; the intervals say how far metrics may change with other images."


def _compared(results: Results) -> str:
    """Which maps the heatmaps were compared with."""
    sources = dict.fromkeys(control.bundle or "" for control in results.controls)
    blind = [source for source in sources if source.startswith(CONTROL) and not source.startswith(ONE_MAP_PREFIX)]
    if not blind:
        return "Nothing: no maps that ignore the model were measured."
    few = " or ".join(map(source_text, blind[:2]))
    return f"{count(len(blind), 'map')} per image, made without looking at the model, such as {few}."


def relies_on(results: Results) -> Answer:
    """What the model was found to rely on."""
    examination, names = results.examination, results.subject.class_names
    if results.run.preliminary is not None:
        return Answer(_NOT_EXAMINED, "Not known yet.", [], "")
    if examination is None:
        reason = f": {results.not_examined.removesuffix('.')}" if results.not_examined else ""
        return Answer(_NOT_EXAMINED, f"Not known: the model was not examined{reason}.", [], "")
    counted = [finding for finding in examination.findings if not finding.allowed]
    if not counted:
        allowed = " beyond what the policy allows" if examination.findings else ""
        text = f"No shortcut was found{allowed}. This does not show that there is none."
        how = "Parts were exchanged between images, and the prediction seldom followed the part."
        return Answer(_NOTHING_FOUND, text, [], f"{how} {relies.how(examination)}")
    high = any(finding.severity in ("high", "critical") for finding in counted)
    word = wording.Word(f"Finding, severity {counted[0].severity}", "✕" if high else "!", "fail" if high else "open")
    return Answer(word, relies.summary(examination, names), [], relies.seen(counted[0], names))


def gate(results: Results) -> list[str]:
    """Whether findings about the model fail the audit, in a sentence; none where nobody asked for that."""
    if results.finding_gate is None:
        return []
    policy = name(results.policy.name) if results.policy else ""
    asked_by = "--fail-on-finding" if results.run.fail_on_finding else f"fail_on_finding of the policy “{policy}”"
    why = "The preprocessing is a guess" if results.examination else "The model was not examined"
    texts = {
        "pass": "No finding of severity {} or above about the model, so none fails the audit ({}).",
        "fail": "A finding of severity {} or above about the model fails the audit, whatever the maps ({}).",
        "not assessed": f"{why}, so it is not known whether the model has a finding of severity {{}} or above, which "
                        "would fail the audit ({}).",
    }  # fmt: skip
    return [texts[results.finding_gate.status].format(results.finding_gate.fail_on, asked_by)]


def not_assessed(results: Results) -> list[str]:
    """What this run does not say, a line each."""
    return list(dict.fromkeys(map(sentence, _gaps(results))))


def _gaps(results: Results) -> Iterator[str]:
    for check in results.checks:
        if check.status == "not assessed" and not check.part_of:
            yield f"{check.title or check.id}: {_without_advice(check)}"
    for metric in results.metrics:
        if metric.value is None:
            phrase = METRICS[metric.name].phrase
            yield f"{title(metric.name)}{f' ({phrase})' if phrase else ''}: {remark(metric)}"
    if results.not_examined:
        yield f"what the model relies on: {results.not_examined}"
    assessed = {metric.name for metric in results.metrics}
    why = sections.not_randomised(results)
    if why or results.randomisation is None:
        yield f"whether the heatmaps change when the model is re-initialised: {why or 'not asked for'}"
    if "pointing_game" not in assessed:
        yield "whether the heatmaps point at the object: no regions were given"
    if "accuracy" not in assessed:
        yield "whether the predictions are right: no labels were given"
    yield from groups.left_out(results)
    if results.failed_images:
        yield f"{count(len(results.failed_images), 'image')} that could not be used"


def next_steps(results: Results) -> list[str]:
    """What to do now, the most urgent first."""
    if results.run.preliminary is not None:
        return [f"Let the audit finish. {FINISH_IT}"]
    failed = results.verdict == "fail"  # which no image more undoes
    settled = ("pass", "suppressed", *(("inconclusive", "not assessed") if failed else ()))
    open_checks = [check for check in _deciding(results) if check.status not in settled]
    findings = results.examination.findings if results.examination else ()
    steps = [f"About the model: {relies.to_do(finding)}" for finding in findings if not finding.allowed]
    more_images = _more_images(results)
    steps += _advice(open_checks, results)
    outlooks = [(_name_of(check, results), check.more_images) for check in open_checks if check.more_images]
    if outlooks:
        helps = all(more.total is not None for _, more in outlooks)
        steps.append(f"{more_images if helps else ''} {images_to_add(outlooks)}".strip())
    steps += [f"Find out why. {gap}" for gap in groups.shown_gaps(results)]
    steps += [f"Hint: {hint.text}" for hint in results.hints]
    steps += [f"{more_images} {check.reason}" for check in open_checks if check.id == "images"]
    if results.policy and not results.examination and not results.not_examined:
        steps.append("Examine the model: auditkit examine MODEL IMAGES -o RUN.")
    if results.verdict == "measured":
        steps.append("For a verdict, audit by a policy that sets limits, such as --policy standard.")
    if not results.policy:
        steps.append("Judge the heatmaps: auditkit audit MODEL IMAGES --heatmaps BUNDLE -o RUN.")
    if results.verdict == "pass":
        steps.append("Look at the worst images of the gallery and at the limits, then sign.")
    elif not steps:
        advice = [more_images] if results.verdict == "inconclusive" else []
        steps.append(" ".join([*advice, "The checks below say what is undecided and why."]))
    return list(dict.fromkeys(map(prose, steps)))


def _advice(checks: Sequence[CheckResult], results: Results) -> list[str]:
    """What the policy says to do about checks, each piece of advice once, with the checks that it is about."""
    by_advice: dict[str, list[str]] = {}
    for check in checks:
        if check.what_to_do:
            by_advice.setdefault(check.what_to_do, []).append(f"“{_name_of(check, results)}”")
    return [f"About {' and '.join(names)}: {advice}" for advice, names in by_advice.items()]


def _name_of(check: CheckResult, results: Results) -> str:
    """A check by its title, and by its heatmaps where there are several sets."""
    name_of = check.title or check.id
    return f"{name_of}, of {check.of}" if check.of and len(results.bundles) > 1 else name_of


def _more_images(results: Results) -> str:
    """How to have more images measured."""
    taken = results.run.taken
    left_out = taken.count - results.subject.images.count if taken else 0
    if taken is None or not left_out:
        return "Add images."
    way = "Audit all of them with --budget none, or more of them with --limit, in another folder."
    return f"Take more images: {left_out} of {taken.count} were left out. {way}"
