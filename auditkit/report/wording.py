"""What the report says in words: verdicts, definitions and limits."""

from typing import NamedTuple

from auditkit.metrics.table import METRICS
from auditkit.runs.folder.results import Results

TEST_INTERVAL = (
    "The interval of a test contains the limits that the test of a check rules out on neither side. "
    "Each end errs in at most 5 % of audits, so both hold in at least 90 %, also if you add images and audit again."
)


class Word(NamedTuple):
    """How a verdict or a status looks: never by colour alone."""

    word: str
    symbol: str
    tone: str  # class of the style sheet
    means: str = ""


VERDICTS = {
    "pass": Word("Pass", "✓", "pass", "These heatmaps explain the model as well as the policy asks."),
    "fail": Word("Fail", "✕", "fail", "These heatmaps do not explain the model as well as the policy asks."),
    "inconclusive": Word(
        "Inconclusive", "?", "open", "It is not settled whether these heatmaps explain the model. This is not a pass."
    ),
    "measured": Word("Measured", "●", "none", "The policy sets no limits, so there is no verdict."),
}
PRELIMINARY = Word("Preliminary", "…", "open", "The run is not finished, and nothing is decided.")
NO_VERDICT = Word("No verdict", "–", "none", "No policy was applied: this run has metrics and no verdict.")
STATUSES = {
    "pass": Word("Pass", "✓", "pass"), "fail": Word("Fail", "✕", "fail"),
    "inconclusive": Word("Inconclusive", "?", "open"), "not assessed": Word("Not assessed", "–", "none"),
    "suppressed": Word("Suppressed", "◌", "held"), "error": Word("Error", "!", "fail"),
}  # fmt: skip


def verdict(name: str | None) -> Word:
    """A verdict's looks; one that is not known is shown as it is and never as a pass."""
    return NO_VERDICT if name is None else VERDICTS.get(name, Word(name, "!", "fail", "This verdict is not known."))


def headline(results: Results) -> Word:
    """The looks of a run's verdict; findings that were suppressed and could have changed it are counted in its name."""
    if results.run.preliminary is not None:
        return PRELIMINARY
    word = verdict(results.verdict)
    suppressed = [check.id for check in results.checks if check.status == "suppressed"]
    count = sum(check.id in suppressed and check.part_of not in suppressed for check in results.checks)
    if not count or results.verdict not in ("pass", "inconclusive"):
        return word
    return word._replace(word=f"{word.word}, with {count} finding{'' if count == 1 else 's'} suppressed")


def report_title(results: Results) -> str:
    """What the report is about, before the name of the model."""
    title = "Audit of" if results.policy else "Evaluation of"
    return title if results.run.preliminary is None else f"{PRELIMINARY.word} {title.lower()}"


def status(name: str | None) -> Word:
    """A check's looks."""
    return Word("Not there", "–", "none") if name is None else STATUSES.get(name, Word(name, "!", "fail"))


Definition = tuple[str, str, str]  # a term, its meaning in a sentence, and its formula
_TERMS = (
    ("Probability f", "What the model gives a label on the whole image: softmax over all classes, unless a "
     "label set was renormalised over.", ""),
    ("Heatmap", "One score for each pixel, higher is more important. Only the order of the pixels matters "
     "to the curves.", ""),
    ("Infill", "What hidden pixels are replaced with: gray, a blur of the image, a random other image, or a "
     "given one. A metric applies to its infill only.", ""),
)  # fmt: skip
_METHODS = (
    ("Controls", "Maps that ignore the model (random, centred Gaussian, constant, edges, blurred "
     "edges, and the Gaussian and the blurred edges with noise), measured on the same images with the same "
     "settings; and the method's own map of the predicted label used for all labels. A method that does not beat "
     "them shows nothing.", ""),
    ("Model randomisation", "Layers are re-initialised from the last to the first and maps made again. "
     "Spearman's rank correlation with the original maps must fall: a map that stays the same does not "
     "depend on the model.", ""),
    ("Test by betting", "Decides whether a mean keeps the policy's limit. Capital grows or shrinks with each "
     "image, and reaches 20 times its start by chance in at most 5 % of audits, whatever the values are, and "
     "even if images are added later and the audit is repeated. A check passes at 20, fails when the "
     "opposite test reaches 20, and is inconclusive otherwise. A verdict fails when the mean over all its tests "
     f"reaches 20. {TEST_INTERVAL}",
     "e = mean over bets of ∏ (1 + bet · (x − limit)),  one x per image"),
    ("Bootstrap and Wilson intervals", "Describe a metric and do not affect the verdict. Bootstrap over images, at the "
     "stated confidence; Wilson's for accuracy; where all images have the same value, what that many equal images do "
     "not rule out. Fewer than 5 images have none. Differences are paired: both maps on the same images. If the "
     "interval of a difference includes 0, no difference is shown.", ""),
)  # fmt: skip


def definitions(results: Results) -> list[Definition]:
    """The terms that a reader of these results needs, every metric among them."""
    measured = {metric.name for metric in results.metrics}
    metrics = [metric for metric in METRICS.values() if metric.name in measured]
    needed = {"Controls": results.controls, "Model randomisation": results.randomisation,
              "Test by betting": any(check.evidence for check in results.checks),
              "Bootstrap and Wilson intervals": measured}  # fmt: skip
    return [*_TERMS, *((f"{metric.title[:1].upper()}{metric.title[1:]}",
                        f"{metric.definition} {metric.direction.capitalize()} is better.", metric.formula)
                       for metric in metrics), *(term for term in _METHODS if needed[term[0]])]  # fmt: skip


def limits(results: Results) -> list[str]:
    """What these results may not be used to claim."""
    measured, images = {metric.name for metric in results.metrics}, results.subject.images.count
    infills = " and ".join(results.infills)
    claims = {
        "The figures are about heatmaps of this model file. They do not show that the model is right, safe, fair or "
        "robust.": True,
        f"The figures hold for these {images:,} images and their kind, the infill {infills} and this preprocessing; "
        "figures measured with other settings are not comparable.": bool(infills),
        "Faithful maps show what the model relies on, not whether it should. Where the evidence lies was not compared "
        "with where it should lie.": not measured & {"pointing_game", "iou"},
        "“Worst” figures are means over images of the worst label of each; a single image may be far worse, and "
        "adversarial images were not searched for.": bool(measured & {"worst_completeness", "worst_soundness"}),
        "A high figure alone says little: maps that ignore the model were not measured with these.":
            not results.controls,
        "One set of heatmaps is better than another only where the interval of their paired difference excludes 0.":
            len(results.bundles) > 1,
        "An examination that finds nothing does not show that the model takes no shortcut.":
            bool(results.examination and not results.examination.findings),
    }  # fmt: skip
    of_policy = results.policy.cannot_tell if results.policy and results.verdict == "pass" else ()
    return [*(claim for claim, applies in claims.items() if applies), *of_policy]
