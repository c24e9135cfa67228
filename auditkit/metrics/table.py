"""Every metric in one table: what it is called, what it means, which way is better, and how it is computed.

Results, tables, policies and comparisons read this table. To add a metric, write a function from MetricRows to values
and add an entry here (docs/CONTRIBUTING.md has the steps). Rules about a single metric name it where they apply.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from auditkit.metrics import label_specificity, per_image
from auditkit.metrics.per_image import MetricRows, Result
from auditkit.metrics.statistics import Bounds
from auditkit.metrics.values import NotAssessed, Values

SHARE: Bounds = (0.0, 1.0)
_CORRELATION: Bounds = (-1.0, 1.0)
_KINDS_OF_CHEAT: Bounds = (0.0, 3.0)  # one map for all labels, one map for all images, constant maps


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    title: str
    definition: str
    compute: Callable[[MetricRows, str], Result] | None = None  # None: measured on the model or the run, not on maps
    formula: str = ""
    direction: Literal["higher", "lower"] = "higher"  # which is better
    bounds: Bounds | None = SHARE  # None: any number, which no test of a policy can decide about
    margin_bounds: Bounds | None = None  # to which margins over a control are clipped; None: those that bounds allow
    needs: Literal["one label", "all labels", "regions", "given labels", "nothing"] = "one label"
    of_other_labels: bool = False  # whether other labels than the predicted one decide it
    curve: str = ""  # the column of rows that it is taken from, where the points of curves decide how far it may be off
    compared: Literal["always", "between runs", "never"] = "always"  # always: with controls and other bundles, too
    by_class: bool = False  # whether the report breaks it down by class
    by_group: bool = False  # and by group of images, such as a site
    depends_on_infill: bool = True  # False: no pixel is replaced for it
    key_figure: bool = False  # whether the first screen of the report shows it, and verify recomputes its extremes
    in_policies: bool = True  # whether a policy may set a limit
    phrase: str = ""  # the definition in a few words, for where the name first appears

    @property
    def limits(self) -> Bounds:
        """The values between which the limit of a policy may lie."""
        if self.bounds is None:
            raise ValueError(f"{self.name} has no bounds")
        return self.bounds

    @property
    def of_every_label(self) -> bool:
        """Whether it needs a map for every label of an image."""
        return self.needs == "all labels"

    @property
    def rests_on_predicted_label(self) -> bool:
        """Whether one map for all labels scores as well as the bundle's own where no second label counts."""
        return self.of_every_label and not self.of_other_labels

    @property
    def has_margin(self) -> bool:
        """Whether a policy may ask how far it lies above a control."""
        return self.compared == "always" and not self.lower_is_better and self.in_policies

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller figure is the better one."""
        return self.direction == "lower"


_ENTRIES = (
    Metric("accuracy", "accuracy", "Share of the images whose given label is the predicted one.", needs="given labels",
           compared="never", by_group=True, key_figure=True, phrase="share of images that the model gets right"),
    Metric("insertion", "insertion", "The mean of the label's probability while pixels are uncovered from none to all, "
           "the most important first.", per_image.insertion, "AUC = mean of f(kept s pixels) over s = 1 … n",
           curve="insertion", by_class=True, key_figure=True,
           phrase="mean probability of the prediction while pixels appear, the most important first"),
    Metric("deletion", "deletion", "The mean of the label's probability while pixels are hidden from the whole image "
           "on, the most important first.", per_image.deletion, direction="lower", curve="deletion",
           phrase="mean probability of the prediction while pixels disappear, the most important first"),
    Metric("relevance_gain", "relevance gain", "Insertion less deletion: how much sooner the label appears than it "
           "disappears, the most important pixels first. 0 for random maps, whatever the model and the infill.",
           per_image.relevance_gain, "AUC of insertion − AUC of deletion", bounds=_CORRELATION,
           margin_bounds=(-1.0, 1.0), curve="insertion", by_group=True, key_figure=True,
           phrase="how much sooner the prediction appears than it disappears"),
    Metric("tie_spread", "spread by tie order", "How much insertion depends on the order of tied pixels.",
           per_image.tie_spread, direction="lower", compared="never", in_policies=False),
    Metric("saliency_metric", "saliency metric", "How small a box around the map's largest bright component still "
           "lets the model see the label.", per_image.saliency_metric,
           "SM = log max(area fraction, 0.05) − log p(label on the crop)", "lower", None, in_policies=False,
           depends_on_infill=False, phrase="how small a box around the brightest part still shows the label"),
    Metric("degenerate_boxes", "degenerate boxes", "Share of the saliency metric's boxes that are empty or smaller "
           "than 5 % of the image.", per_image.degenerate_boxes, direction="lower", compared="never",
           in_policies=False, depends_on_infill=False),
    Metric("saliency_metric_tuned", "saliency metric, tuned", "The saliency metric with a threshold tuned on one half "
           "of the images and reported on the other.", per_image.saliency_metric_tuned, direction="lower", bounds=None,
           compared="between runs", in_policies=False, depends_on_infill=False),
    Metric("degenerate_boxes_tuned", "degenerate boxes, tuned", "Share of degenerate boxes with the tuned threshold.",
           per_image.degenerate_boxes_tuned, direction="lower", compared="never", in_policies=False,
           depends_on_infill=False),
    Metric("completeness", "completeness", "How much of a label's probability its own map recovers: the mean of α over "
           "all pairs of an image and a label. An incomplete map hides evidence that the model uses.",
           partial(per_image.every_pair, column="alpha"), "α = min( max(AUC, ε₁) ∕ f , 1 );  1 where f = 0",
           needs="all labels", curve="alpha", phrase="how much of a label's probability its map recovers"),
    Metric("soundness", "soundness", "Whether maps raise a label's probability beyond what the whole image gives it: "
           "the mean of β over all pairs of an image and a label. An unsound map makes evidence up.",
           partial(per_image.every_pair, column="beta"), "β = min( max(f, ε₂) ∕ AUC , 1 );  1 where AUC = 0",
           needs="all labels", of_other_labels=True, curve="beta", phrase="1 where maps make no evidence up"),
    Metric("worst_completeness", "worst completeness", "The minimum of α over the labels of each image, then the mean "
           "over images. A mean of minima, not an adversarial bound.", partial(per_image.worst_label, column="alpha"),
           needs="all labels", curve="alpha", by_class=True, key_figure=True,
           phrase="how much of a label's probability its map recovers, for the worst label of each image"),
    Metric("worst_soundness", "worst soundness", "The minimum of β over the labels of each image, then the mean over "
           "images. A mean of minima, not an adversarial bound.", partial(per_image.worst_label, column="beta"),
           needs="all labels", of_other_labels=True, curve="beta", by_class=True, key_figure=True,
           phrase="1 where no map makes evidence up; the worst label of each image counts"),
    Metric("best_effort", "best effort", "Over images whose second-best label has f ≥ 0.01: the mean of the minimum α "
           "over the labels with f ≥ 0.01 that are not the prediction. One map for all labels scores badly here.",
           per_image.best_effort, needs="all labels", of_other_labels=True, curve="alpha", key_figure=True,
           phrase="completeness of likely labels that are not predicted"),
    Metric("label_specificity", "label specificity", "How much more a label's own map shows it than the maps of the "
           "image's other labels do, in log-odds: the mean over labels, then over images, clipped at ±3 for an image. "
           "One map for all labels scores 0.", label_specificity.label_specificity,
           "S[a, a] − mean of S[a, b] over b ≠ a;  S[a, b] = mean of log p(a) ∕ p(not a) over the curve of b’s map",
           bounds=label_specificity.CLIPPED, needs="all labels", of_other_labels=True,
           curve="log_odds", by_group=True, key_figure=True,
           phrase="how much more a label's own map shows it than other labels' maps do, in log-odds"),
    Metric("other_label_evidence", "other-label evidence", "How much more the maps of labels that are not predicted "
           "show them than the predicted label's map does, in log-odds, clipped at ±3 for an image. Against a control: "
           "how much more than the control's map does.", label_specificity.other_label_evidence,
           "S[a, a] − S[a, map of the prediction];  against a control: S[a, a] − S[a, control]",
           bounds=label_specificity.CLIPPED, needs="all labels", of_other_labels=True,
           curve="log_odds", by_group=True,
           phrase="how much more the maps of labels that are not predicted show them, in log-odds"),
    Metric("pointing_game", "pointing game", "Share of images whose most important pixel lies in the given region.",
           partial(per_image.localised, column="pointing_hit"), needs="regions", by_group=True,
           key_figure=True, depends_on_infill=False,
           phrase="share of images whose most important pixel lies in the given region"),
    Metric("iou", "overlap (IoU)", "Overlap of the given region with as many of the map's most important pixels.",
           partial(per_image.localised, column="iou"), needs="regions", by_group=True, key_figure=True,
           depends_on_infill=False, phrase="overlap of the most important pixels with the given region"),
    Metric("flags", "flags", "How many known ways of faking the maps show.", needs="nothing", direction="lower",
           bounds=_KINDS_OF_CHEAT, compared="never"),
    Metric("runtime_error", "runtime error", "The largest mean change of a figure against strict float32 on the CPU.",
           needs="nothing", direction="lower", compared="never"),
    Metric("randomisation", "randomisation", "Rank correlation of the maps with those of the re-initialised model at "
           "the last stage.", needs="nothing", direction="lower", bounds=_CORRELATION,
           compared="never", phrase="how similar the maps stay when the model is re-initialised"),
)  # fmt: skip
METRICS = {metric.name: metric for metric in _ENTRIES}


def compute_all(rows: MetricRows) -> list[Values | NotAssessed]:
    """Every metric of a source that is part of the evaluation, in the order of the table."""
    results = [metric.compute(rows, metric.name) for metric in METRICS.values() if metric.compute is not None]
    return [result for result in results if result is not None]


def title(name: str) -> str:
    """A metric's name in words; other words stay as they are."""
    return METRICS[name].title if name in METRICS else name.replace("_", " ")
