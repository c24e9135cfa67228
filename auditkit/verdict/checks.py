"""Judges one check of a policy by the measurements."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from auditkit.metrics.faithfulness import ROUNDING  # of probabilities in float32: a smaller margin is none
from auditkit.metrics.table import METRICS
from auditkit.runs.folder.figures import STATUSES, Severity, Status
from auditkit.runs.folder.results import CheckResult
from auditkit.runs.summary.wording import why_not_randomised
from auditkit.verdict.flags import oddities
from auditkit.verdict.measurements import Figure, Measurements
from auditkit.verdict.policy import Check, Policy, Suppression

FEWEST_IMAGES = 30  # that an interval needs to be worth its name, see metrics.statistics
HEADROOM = 0.05  # between a control and the largest value; with less, no map can be shown to be better
NO_FIGURE = Figure("")


class Outcome(NamedTuple):
    """The status of one figure, and the reason."""

    status: Status
    reason: str = ""
    by_nature: bool = False  # the model's probabilities, not the supplied maps, prevent an assessment
    no_room: bool = False  # no map could have failed


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
    left_out: tuple[str, ...] = ()  # controls that the model's probabilities make useless
    part_of: str = ""  # the policy's check that includes it in the verdict
    suppression: Suppression | None = None
    would_be: Status | None = None

    @property
    def reason(self) -> str:
        """The result in words."""
        return " ".join(self.sentences)

    def to_record(self, *, counts: bool) -> CheckResult:
        """The entry of results.json; `counts` says whether it affects the verdict."""
        figure, suppression = self.figure, self.suppression
        return CheckResult(
            self.id, self.title, self.metric, self.status, figure.value, figure.low, figure.high, figure.n, self.limit,
            self.rule, self.severity, self.required, self.reason, counts, self.part_of or None,
            None if suppression is None else suppression.to_record(), self.would_be,
        )  # fmt: skip


def judge_check(check: Check, policy: Policy, measurements: Measurements, allowed: Collection[str] = ()) -> Finding:
    """The worst finding of a check over every bundle and infill.

    A margin "over the control" must hold over every control that the policy has. The best one is among them, and none
    was picked by looking at the figures, so the intervals keep their meaning. `allowed` are the cheats that are
    suppressed by name.
    """
    outcomes = [(figure, _outcome(check, policy, figure)) for figure in _figures(check, policy, measurements, allowed)]
    assessable = [(figure, outcome) for figure, outcome in outcomes if not outcome.by_nature]
    left_out: dict[str, str] = {}
    if len(check.over) > 1 and assessable:
        left_out = {figure.against: outcome.reason for figure, outcome in outcomes if outcome.by_nature}
    sign = -1 if check.rule == "max" else 1
    findings = [_finding(check, figure, outcome) for figure, outcome in (assessable if left_out else outcomes)]
    worst = min(findings, key=lambda finding: (
        STATUSES.index(finding.status), not finding.required, sign * (finding.figure.value or 0)
    ))  # fmt: skip
    notes = (f"{control} is left out: {reason}." for control, reason in left_out.items())
    return replace(worst, sentences=(*worst.sentences, *notes), left_out=tuple(left_out))


def _figures(check: Check, policy: Policy, measurements: Measurements, allowed: Collection[str]) -> list[Figure]:
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
    counted = [oddity for oddity in oddities(results.flags, results.subject.classes) if oddity.id not in allowed]
    cheats = [oddity.id for oddity in counted if oddity.cheat]
    possible = [oddity.id for oddity in counted if oddity.open]
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
    figure = Figure(of, last.spearman, n=last.n)
    if last.spearman is not None and last.low != last.high:
        figure = replace(figure, low=last.low, high=last.high)
    needed = min(settings.images, policy.minimum_images)
    if figure.n < needed:
        return replace(figure, short=f"{needed} images are needed")
    stages = len(randomisation.series)
    if stages < settings.stages and len(last.layers) != randomisation.layers:
        return replace(figure, short=f"the policy asks for {settings.stages} stages, {stages} were run")
    return figure


def _finding(check: Check, figure: Figure, outcome: Outcome) -> Finding:
    # Completeness and soundness lack maps, unless the model's probabilities are the reason.
    for_want_of_maps = METRICS[check.metric].of_every_label and not outcome.by_nature
    required = not outcome.no_room and (check.required or for_want_of_maps)
    return Finding(check.id, check.title, check.metric, outcome.status, check.severity,
                   _explain(check, figure, outcome.reason), figure, check.limit, check.rule_text,
                   required or outcome.status != "not assessed")  # fmt: skip


def _outcome(check: Check, policy: Policy, figure: Figure) -> Outcome:
    if figure.value is None:
        return Outcome("not assessed", figure.reason, figure.by_nature)
    if figure.short:
        return Outcome("inconclusive", figure.short)
    few = _too_few(check, policy, figure)
    if few:
        # There are enough images, but the model's probabilities leave few that count.
        by_nature = bool(figure.resting_on) and figure.images >= policy.minimum_images
        return Outcome("not assessed" if by_nature else "inconclusive", few, by_nature)
    if not figure.exact and (figure.low is None or figure.high is None):
        return Outcome("inconclusive", figure.reason or "there is no interval")
    side, no_room = _side(check, figure), _no_room(check, figure)
    if no_room and side == "pass" and check.limit < 0:
        return Outcome("not assessed", no_room, by_nature=True, no_room=True)
    if no_room and side != "pass" and check.limit >= 0:
        return Outcome("inconclusive" if check.required else "not assessed", no_room, by_nature=not check.required)
    if figure.equal and side == "fail" and check.over:
        return Outcome(side, "on every image it equals the control's")
    return Outcome(side, figure.reason)


def _too_few(check: Check, policy: Policy, figure: Figure) -> str:
    """Why the images are too few; empty if they are not."""
    if figure.exact or check.metric == "randomisation":
        return ""
    needed, reason = policy.minimum_images, f"the policy needs {policy.minimum_images} images"
    if figure.resting_on and figure.images >= policy.minimum_images:
        needed = min(FEWEST_IMAGES, policy.minimum_images)
        reason = f"{figure.n} of {figure.images} images {figure.resting_on}, {needed} are needed"
    return reason if figure.n < needed else ""


def _no_room(check: Check, figure: Figure) -> str:
    """Why no map, however bad or good, could come out on the other side of the margin; empty when some could.

    The worst map has the least value, and is shown to be too far below a control only if the lower end of the
    control's own interval is that far above it. If maps and control are both near the largest value, the margin shows
    nothing.
    """
    if figure.control is None or figure.control.value is None or figure.control.low is None:
        return ""
    (least, most), of, at = METRICS[check.metric].limits, figure.control.of, figure.control.value
    if check.limit < 0 and figure.control.low + check.limit < least:
        return f"{of} is itself at {at:.3g}, so nothing can be shown to lie {-check.limit:g} below it"
    near = most - max(check.limit, HEADROOM) - ROUNDING
    if check.limit >= 0 and at >= near and at + (figure.value or 0) >= near:
        return f"{of} is itself at {at:.3g}, so nothing can be shown to lie {check.limit or HEADROOM:g} above it"
    return ""


def _side(check: Check, figure: Figure) -> Status:
    """On which side of the limit the whole interval lies."""
    low, high, limit = figure.low, figure.high, check.limit
    if figure.exact or low is None or high is None:
        low = high = figure.value or 0.0
    if check.rule == "max":
        good, bad = high <= limit, low > limit
    elif check.rule == "min":
        good, bad = low >= limit, high < limit
    else:
        good, bad = low > limit + ROUNDING, high <= limit or (figure.equal and limit >= 0)
    if good:
        return "pass"
    return "fail" if bad else "inconclusive"


def _explain(check: Check, figure: Figure, reason: str) -> tuple[str, ...]:
    """The figure and its limit, and a remark; or why there is none."""
    if figure.value is None:
        return (f"{figure.of}: {reason}.",)
    ends = "" if figure.low is None or figure.high is None else f" ({_decimal(figure.low)} to {_decimal(figure.high)})"
    value = f"{figure.value:.3g}" if figure.exact else _decimal(figure.value)
    counted = "rows" if check.metric == "runtime_error" else "images"
    on = f" on {figure.n} {counted}" if figure.n else ""
    bound = {"min": "at least", "max": "at most"}.get(check.rule, "more than")
    observed = f"{figure.of}: {value}{ends}{on}; the policy asks for {bound} {check.limit:g}."
    return (observed, f"{reason[:1].upper()}{reason[1:]}.") if reason else (observed,)


def _decimal(value: float) -> str:
    """Three decimals; one significant digit if they would round it to 0."""
    return f"{value:.1g}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"
