"""Judges one check of a policy by the measurements."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np

from auditkit.metrics.betting import DECISIVE, FEWEST_IMAGES, Sample, images_to_decide
from auditkit.metrics.faithfulness import ROUNDING  # of probabilities in float32: a smaller margin is none
from auditkit.metrics.statistics import Bounds
from auditkit.metrics.table import METRICS, title
from auditkit.runs.folder.figures import STATUSES, Evidence, MoreImages, Severity, Status
from auditkit.runs.folder.results import CheckResult
from auditkit.runs.summary.wording import more_images_text, source_text, why_not_randomised
from auditkit.verdict.flags import flag_findings
from auditkit.verdict.measurements import Figure, Measurements
from auditkit.verdict.policy import Check, Policy, Suppression

NO_GROUPS = "they have no groups; name the group of each image in a column of their CSV"
HEADROOM = 0.05  # between a control and the largest value; with less, no map can be shown to be better
NO_FIGURE = Figure("")

_MORE_POINTS = 'Curves with more points would decide it: set steps = "auto:0.001" in a policy of your own.'


class Outcome(NamedTuple):
    """The status of one figure, and the reason."""

    status: Status
    reason: str = ""
    by_nature: bool = False  # the model's probabilities, not the supplied maps, prevent an assessment
    no_room: bool = False  # no map could have failed
    e_holds: float = 0.0  # the e-value for a limit that is kept; 0 where there was no test
    e_fails: float = 0.0  # and for one that is missed
    few_points: bool = False  # more points would decide it


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    id: str
    title: str
    metric: str
    status: Status
    severity: Severity
    sentences: tuple[str, ...]  # the figure and its limit first, then remarks
    figure: Figure = NO_FIGURE
    limit: float | None = None
    rule: str = ""
    required: bool = True  # False: the verdict does not wait for it if it is not assessed
    evidence: Evidence | None = None  # None: chance does not affect it
    left_out: tuple[str, ...] = ()  # controls that the model's probabilities make useless
    part_of: str = ""  # the policy's check that includes it in the verdict
    suppression: Suppression | None = None
    would_be: Status | None = None
    what_to_do: str = ""  # in a sentence
    more_images: MoreImages | None = None  # that would decide it

    @property
    def reason(self) -> str:
        """The result in words."""
        return " ".join(self.sentences)

    @property
    def certain(self) -> bool:
        """Whether it is a fact about this run, which chance does not affect."""
        return self.evidence is None or self.figure.same_curves

    def to_record(self, *, counts: bool) -> CheckResult:
        """The entry of results.json; `counts` says whether it affects the verdict."""
        figure, suppression = self.figure, self.suppression
        low, high = figure.interval or (None, None)
        return CheckResult(
            self.id, self.title, self.metric, self.status, figure.value, low, high, figure.n, self.limit,
            self.rule, self.severity, self.required, self.reason, counts, self.evidence, self.part_of or None,
            self.figure.against or None, self.what_to_do.removeprefix("What to do: ") or None,
            None if suppression is None else suppression.to_record(), self.would_be, figure.group or None,
            figure.of or None, self.more_images,
        )  # fmt: skip


def judge_check(check: Check, policy: Policy, measurements: Measurements, allowed: Collection[str] = ()) -> Finding:
    """The worst finding of a check over every bundle and infill.

    A margin "over the control" must hold over every control that the policy has. The best one is among them, and none
    was picked by looking at the figures, so the tests keep their meaning. `allowed` are the cheats that are suppressed
    by name.
    """
    figures = _figures(check, policy, measurements, allowed)
    outcomes = [(figure, _outcome(check, policy, figure, len(figures))) for figure in figures]
    judged = assessable = [(figure, outcome) for figure, outcome in outcomes if not outcome.by_nature]
    left_out: dict[str, str] = {}
    if len(check.over) > 1 and assessable:
        left_out = {figure.against: outcome.reason for figure, outcome in outcomes if outcome.by_nature}
    if not left_out:
        judged = outcomes
    sign = -1 if check.rule == "max" else 1
    worst = min(judged, key=lambda pair: (
        STATUSES.index(pair[1].status), not _required(check, pair[1]), sign * (pair[0].value or 0)
    ))  # fmt: skip
    evidence = None
    if check.metric not in ("flags", "runtime_error"):
        least = min(outcome.e_holds for _, outcome in judged)
        evidence = Evidence(least, fmean(outcome.e_fails for _, outcome in outcomes), len(outcomes))
    notes = (f"Left out: {source_text(control)}, because {reason}." for control, reason in left_out.items())
    finding, to_do = _finding(check, *worst), ""
    more_images: MoreImages | None = None
    if finding.status == "fail" and check.what_to_do:
        to_do = f"What to do: {check.what_to_do}"
    elif finding.status == "inconclusive" and check.metric != "randomisation":  # whose images the policy counts
        untold = [figure for figure, outcome in judged
                  if outcome.status == "inconclusive" and outcome.e_fails and not outcome.few_points]  # fmt: skip
        more_images = _images_to_decide(check, untold)
        if more_images is None:
            to_do = _MORE_POINTS * any(outcome.few_points for _, outcome in judged)
    outlook = "" if more_images is None else more_images_text(more_images)
    sentences = tuple(filter(None, (*finding.sentences, to_do, outlook, *notes)))
    return replace(finding, sentences=sentences, evidence=evidence, left_out=tuple(left_out), what_to_do=to_do,
                   more_images=more_images)  # fmt: skip


def _figures(check: Check, policy: Policy, measurements: Measurements, allowed: Collection[str]) -> list[Figure]:
    if check.every_group:
        of_all = replace(check, every_group=False)
        parts = [_figures(of_all, policy, part, allowed) for part in measurements.by_group()]
        return list(chain.from_iterable(parts)) or [Figure("the images", reason=NO_GROUPS)]
    if check.rule == "min_margin_over":
        return list(chain.from_iterable(measurements.margins(check.metric, control) for control in check.over))
    if check.metric == "flags":
        return [_cheats(measurements, allowed, check.limit)]
    if check.metric == "runtime_error":
        return [_runtime(measurements)]
    if check.metric == "randomisation":
        return [_randomised(measurements, policy)]
    return measurements.figures(check.metric)


def _cheats(measurements: Measurements, allowed: Collection[str], limit: float) -> Figure:
    """How many kinds of cheat were flagged; a possible cheat leaves it open unless there are too many anyway."""
    of = "kinds of cheat"
    if not measurements.bundles:
        return Figure(of, reason="no heatmaps were measured")
    results = measurements.results
    findings = flag_findings(results.flags, results.subject.classes)
    counted = [finding for finding in findings if finding.id not in allowed]
    cheats = [finding.id for finding in counted if finding.cheat]
    possible = [finding.id for finding in counted if finding.open]
    short = f"there may be one more: {', '.join(possible)}" if possible and len(cheats) <= limit else ""
    return Figure(of, float(len(cheats)), exact=True, reason=", ".join(cheats), short=short)


def _runtime(measurements: Measurements) -> Figure:
    """The largest mean change of a figure against strict float32 on the CPU."""
    of, runtime = "the runtime", measurements.results.runtime
    if runtime is None:
        return Figure(of, reason="the runtime was not checked")
    if runtime.largest_change is None:
        return Figure(of, reason="there is no file to run on the CPU as a reference")
    return Figure(of, runtime.largest_change, n=runtime.rows, exact=True)


def _randomised(measurements: Measurements, policy: Policy) -> Figure:
    """How alike the maps of the model and of its last randomisation stage are."""
    of = "rank correlation at the last stage"
    settings, randomisation = policy.randomisation, measurements.results.randomisation
    if randomisation is None or not randomisation.series or settings is None:
        missing = None if randomisation is None else randomisation.not_assessed
        reason = why_not_randomised(missing) if missing else "the model was not randomised"
        return Figure(of, reason=reason.removesuffix("."))
    last = randomisation.series[-1]
    bounds, correlations = METRICS["randomisation"].limits, np.array(last.correlations)
    figure = Figure(of, last.spearman, last.n, sample=Sample(correlations, bounds) if last.n else None)
    needed = max(min(settings.images, policy.minimum_images), FEWEST_IMAGES)
    if figure.n < needed:
        return replace(figure, short=f"{needed} images are needed")
    stages = len(randomisation.series)
    if stages < settings.stages and len(last.layers) != randomisation.layers:
        return replace(figure, short=f"the policy asks for {settings.stages} stages, {stages} were run")
    return figure


def _finding(check: Check, figure: Figure, outcome: Outcome) -> Finding:
    return Finding(check.id, check.title, check.metric, outcome.status, check.severity,
                   _explain(check, figure, outcome.reason), figure, check.limit, check.rule_text,
                   _required(check, outcome))  # fmt: skip


def _required(check: Check, outcome: Outcome) -> bool:
    """Whether the verdict waits for the check if it is not assessed."""
    # Completeness and soundness lack maps, unless the model's probabilities are the reason.
    for_want_of_maps = METRICS[check.metric].of_every_label and not outcome.by_nature
    return outcome.status != "not assessed" or (not outcome.no_room and (check.required or for_want_of_maps))


def _outcome(check: Check, policy: Policy, figure: Figure, tests: int) -> Outcome:
    if figure.value is None:
        return Outcome("not assessed", figure.reason, figure.by_nature)
    if figure.short:
        return Outcome("inconclusive", figure.short)
    if figure.exact:
        return Outcome("pass" if figure.value <= check.limit else "fail", figure.reason)
    few = _too_few(check, policy, figure)
    if few:
        # There are enough images, but the model's probabilities leave few that count.
        by_nature = bool(figure.resting_on) and figure.images >= policy.images_needed
        return Outcome("not assessed" if by_nature else "inconclusive", few, by_nature)
    if figure.sample is None:
        return Outcome("inconclusive", figure.reason or "the values of its images are not known")
    if figure.error is None:
        return Outcome("inconclusive", "its error due to the number of points is not known")
    outcome, no_room = _tested(check, figure, figure.sample, figure.error), _no_room(check, figure)
    if check.every_group and outcome.status == "fail" and outcome.e_fails < DECISIVE * tests:
        outcome = outcome._replace(status="inconclusive", reason=f"in one of {tests} tests, this may be chance")
    if no_room and outcome.status == "pass" and check.limit < 0:
        return outcome._replace(status="not assessed", reason=no_room, by_nature=True, no_room=True)
    if no_room and outcome.status != "pass" and check.limit >= 0:
        status: Status = "inconclusive" if check.required else "not assessed"
        return outcome._replace(status=status, reason=no_room, by_nature=not check.required, e_fails=0.0)
    return outcome


def _too_few(check: Check, policy: Policy, figure: Figure) -> str:
    """Why the images are too few; empty if they are not."""
    if check.metric == "randomisation" or check.every_group:  # whose small groups are not assessed
        return ""
    needed, reason = policy.images_needed, f"a verdict by this policy needs {policy.images_needed} images"
    if figure.resting_on and figure.images >= policy.images_needed:
        needed = FEWEST_IMAGES
        reason = f"{figure.n} of {figure.images} images {figure.resting_on}, {needed} are needed"
    return reason if figure.n < needed else ""


def _tested(check: Check, figure: Figure, sample: Sample, error: float) -> Outcome:
    """On which side of the limit the mean over all images lies, if the test of one side or the other decides.

    A limit that is kept or missed by no more than the `error` of the curves is not kept or missed for certain.
    """
    holds, fails = _e_values(check, sample, error)
    if figure.same_curves and check.limit >= 0:
        return Outcome("fail", "on every image its curves are the control's", e_holds=holds, e_fails=fails)
    outcome = Outcome("inconclusive", figure.reason, e_holds=holds, e_fails=fails)
    if holds >= DECISIVE:
        return outcome._replace(status="pass")
    if fails >= DECISIVE:
        return outcome._replace(status="fail")
    if max(_e_values(check, sample, 0.0)) >= DECISIVE:
        reason = f"its curves have too few points to tell: it may be off by {error:.2g}"
        return outcome._replace(reason=reason, few_points=True)
    return outcome


def _e_values(check: Check, sample: Sample, error: float) -> tuple[float, float]:
    """The e-values for a limit that is kept by more than `error`, and for one that is missed by more."""
    below, above = _limits(check, error)
    evidence = sample.e_above(above), sample.e_below(below)
    return evidence[::-1] if check.rule == "max" else evidence


def _limits(check: Check, error: float) -> Bounds:
    """The limits that the mean must be shown to lie below, or above, to decide a check."""
    return check.limit - error, check.limit + (ROUNDING if check.over else 0.0) + error


def _images_to_decide(check: Check, figures: Sequence[Figure]) -> MoreImages | None:
    """How many images would decide a check with these open figures; None if there are none.

    One figure that misses the limit decides it, or all that keep it.
    """
    missed, kept = list[float](), list[float]()
    for figure in figures:
        if figure.sample is not None:
            number = images_to_decide(figure.sample, *_limits(check, figure.error or 0.0)) or math.inf
            keeps = (figure.value or 0.0) <= check.limit if check.rule == "max" else (figure.value or 0.0) > check.limit
            (kept if keeps else missed).append(number)
    if not missed and not kept:
        return None
    number = min(missed, default=math.inf) if missed else max(kept)
    if math.isinf(number):
        return MoreImages(None, check.every_group)
    step = 10 ** max(1, len(str(int(number))) - 2)  # two digits tell enough
    return MoreImages(-(-int(number) // step) * step, check.every_group)


def _no_room(check: Check, figure: Figure) -> str:
    """Why no map, however bad or good, could come out on the other side of the margin; empty when some could.

    The worst map has the least value, and is shown to be too far below a control only if the lower end of the
    control's own interval is that far above it. If maps and control are both near the largest value, the margin shows
    nothing.
    """
    control = figure.control
    if control is None or control.value is None:
        return ""
    (least, most), at = METRICS[check.metric].limits, control.value
    if check.limit < 0 and control.interval is not None and control.interval[0] + check.limit < least:
        return f"the control itself is at {at:.3g}, so nothing can be shown to lie {-check.limit:g} below it"
    near = most - max(check.limit, HEADROOM) - ROUNDING
    if check.limit >= 0 and at >= near and at + (figure.value or 0) >= near:
        return f"the control itself is at {at:.3g}, so nothing can be shown to lie {check.limit or HEADROOM:g} above it"
    return ""


def _explain(check: Check, figure: Figure, reason: str) -> tuple[str, ...]:
    """The figure and its limit, and a remark; or why there is none."""
    if figure.value is None:
        return (f"{figure.of}: {reason}.",)
    counted = "rows" if check.metric == "runtime_error" else "images"
    on = f" on {figure.n} {counted}" if figure.n else ""
    if figure.exact:
        of = f"{figure.of[:1].upper()}{figure.of[1:]}"
        observed = f"{of}: {figure.value:.3g}{on}; at most {check.limit:g} is allowed."
    else:
        ends = (
            ""
            if figure.interval is None
            else " (interval of the test {} to {})".format(*map(_decimal, figure.interval))
        )
        less = f" minus that of {source_text(figure.against)}" if figure.against else ""
        asked = {"max": "at most", "min": "at least"}.get(check.rule, "more than")
        observed = (
            f"{_of_metric(check, figure)}{less}{on}: {_decimal(figure.value)}{ends}; required: {asked} {check.limit:g}."
        )
    return (observed, f"{reason[:1].upper()}{reason[1:]}.") if reason else (observed,)


def _of_metric(check: Check, figure: Figure) -> str:
    name = title(check.metric)
    return f"{name[:1].upper()}{name[1:]} of {figure.of}"


def _decimal(value: float) -> str:
    """Three decimals; one significant digit if they would round it to 0."""
    return f"{value:.1g}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"
