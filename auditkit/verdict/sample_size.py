"""How many images a policy is expected to need, and what an audit costs, before any image is measured."""

import math
from dataclasses import dataclass

import numpy as np

from auditkit.errors import BadInput
from auditkit.methods.controls import CONTROLS
from auditkit.metrics.betting import DECISIVE, FEWEST_IMAGES, MOST_TIMES, Sample, images_to_decide
from auditkit.metrics.curves import Steps
from auditkit.metrics.faithfulness import parse_labels
from auditkit.metrics.table import METRICS
from auditkit.runs.evaluation.settings import resolved, usual_points
from auditkit.verdict.policy import Check, Policy

Typical = tuple[float, float]
# Mean and standard deviation over images of the hardest test of each check of `standard`, from a study of honest maps
# (benchmarks/calibration): a ResNet-20 for CIFAR-10 on 100 images, then the demo's honest model on 60, each with mask,
# differences, rise, occlusion and grad-cam. Margins are those over the control that comes nearest.
MARGINS: dict[str, tuple[Typical, ...]] = {
    "relevance_gain": (
        (0.13, 0.29), (0.17, 0.28), (0.10, 0.34), (0.18, 0.30), (0.18, 0.34),
        (0.20, 0.25), (0.13, 0.13), (-0.36, 0.38), (0.14, 0.18), (0.11, 0.12),
    ),
    "other_label_evidence": (
        (2.39, 1.43), (1.94, 1.72), (1.81, 1.85), (2.23, 1.49), (1.54, 1.98),
        (2.48, 1.08), (2.79, 0.64), (2.93, 0.26), (2.90, 0.46), (0.64, 2.06),
    ),
}  # fmt: skip
FIGURES: dict[str, tuple[Typical, ...]] = {
    "label_specificity": (
        (2.98, 0.14), (2.60, 0.95), (2.80, 0.65), (2.86, 0.42), (2.14, 1.37),
        (3.00, 0.00), (2.96, 0.24), (2.88, 0.37), (2.98, 0.14), (1.92, 1.00),
    ),
}  # fmt: skip
MOST_IMAGES = FEWEST_IMAGES * MOST_TIMES  # beyond which nothing is said
_USUAL_PIXELS = 224 * 224  # of an image, where every pixel is a point
_USUAL_CLASSES, _USUAL_LABELS = 1000, 10  # of a model; and of an image where the policy leaves them open
_TYPICAL_SHARE = 0.8  # of the cases studied


@dataclass(frozen=True)
class Expected:
    """How many images decide a check: in half and in 80 % of the cases studied; None: not known, or too many."""

    check: str
    median: int | None
    usual: int | None
    seen: int  # cases; 0 where none was seen, or where chance does not affect the check

    @property
    def text(self) -> str:
        """The numbers in words."""
        if not self.seen:
            return "not known; the audit gives an estimate after 20 images"
        if self.median is None:
            return f"more than {MOST_IMAGES} images in most cases studied"
        if self.usual is None:
            return f"about {self.median} images; more than {MOST_IMAGES} in 20 % of the cases studied"
        return f"about {self.median} images; {self.usual} are enough in 80 % of the cases studied"


@dataclass(frozen=True)
class Passes:
    """Forward passes of an audit, roughly, without those that make maps."""

    images: int
    labels: int  # of each image
    controls: int
    insertion_curves: int  # of each image: one for every map
    deletion_curves: int  # of each image: one for every source, of the prediction's map
    infills: int  # pictures behind hidden pixels
    points: int  # of a curve, usually

    @property
    def total(self) -> int:
        """All of them."""
        return self.images * (self.insertion_curves + self.deletion_curves) * self.infills * self.points


def expected_passes(policy: Policy, images: int, labels: int | None = None) -> Passes:
    """What an audit of one bundle costs; `labels` of each image replaces the policy's number where that is open."""
    if images < 1 or (labels is not None and labels < 1):
        raise BadInput("give 1 or more images, and 1 or more labels of each.")
    settings = resolved(policy.evaluation, _USUAL_CLASSES)
    rule = parse_labels(settings.labels or "all")
    labels = labels or rule.top or len(rule.labels or ()) or _USUAL_LABELS
    drawn = sum(labels if per_label else 1 for _, per_label in CONTROLS.values())
    controls = CONTROLS if settings.controls else {}
    infills = sum(settings.draws if infill == "random" else 1 for infill in settings.infills)
    points = usual_points(settings.steps or Steps("exact"), _USUAL_PIXELS)
    return Passes(images, labels, len(controls), labels + (drawn if controls else 0),
                  1 + len(controls) if settings.deletion else 0, infills, points)  # fmt: skip


def expected_images(policy: Policy) -> list[Expected]:
    """For each check that chance affects, how many images are expected to decide it."""
    tested = [check for check in policy.checks if check.metric not in ("flags", "runtime_error", "randomisation")]
    return [_expected(check, policy) for check in tested]


def _expected(check: Check, policy: Policy) -> Expected:
    cases = (MARGINS if check.over else FIGURES).get(check.metric, ())
    numbers = sorted(max(_images(check, *case), policy.images_needed) for case in cases)
    if not numbers:
        return Expected(check.id, None, None, 0)
    median, usual = numbers[(len(numbers) - 1) // 2], numbers[math.ceil(_TYPICAL_SHARE * len(numbers)) - 1]
    return Expected(check.id, _if_few(median), _if_few(usual), len(numbers))


def _if_few(images: float) -> int | None:
    return int(images) if images <= MOST_IMAGES else None


def _images(check: Check, mean: float, deviation: float) -> float:
    """How many images decide a check whose values have this mean and standard deviation; infinite if too many.

    Two values, equally frequent, stand for all.
    """
    metric = METRICS[check.metric]
    low, high = metric.limits
    bounds = low, high
    if check.over and not metric.of_other_labels:  # whose margins have the bounds of the metric
        bounds = metric.margin_bounds or (low - high, high - low)
    pair = np.clip([mean - deviation, mean + deviation], *bounds)
    sample = Sample(np.tile(pair, FEWEST_IMAGES // 2), bounds)
    if max(sample.e_above(check.limit), sample.e_below(check.limit)) >= DECISIVE:
        return FEWEST_IMAGES
    return images_to_decide(sample, check.limit, check.limit) or math.inf
