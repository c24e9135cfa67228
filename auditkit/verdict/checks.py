"""One check of a policy against what was measured."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from auditkit.metrics.faithfulness import ROUNDING  # of probabilities in float32: a smaller margin is none
from auditkit.runs.summary.per_image import FAITHFUL
from auditkit.verdict.flags import oddities
from auditkit.verdict.measurements import Figure, Measured, interval, largest, part
from auditkit.verdict.policy import METRICS, Check, Policy, Suppression

STATUSES = ("fail", "error", "inconclusive", "not assessed", "suppressed", "pass")  # the worst first
FEWEST = 30  # images that an interval needs to be worth its name, see metrics.statistics
LEAST_ROOM = 0.05  # above a control, for maps that are no better than it to be told from maps that could not be
NO_FIGURE = Figure("")


class Status(NamedTuple):
    """What became of one figure."""

    word: str  # one of STATUSES
    why: str = ""
    by_nature: bool = False  # nobody could have supplied what it lacks
    no_room: bool = False  # it could not have come out otherwise


@dataclass(frozen=True)
class Finding:
    """What became of one check."""

    id: str
    title: str
    metric: str
    status: str  # one of STATUSES
    severity: str
    reason: str
    figure: Figure = NO_FIGURE
    limit: float | None = None
    rule: str = ""
    required: bool = True  # whether not being assessed holds the verdict up
    left_out: tuple[str, ...] = ()  # controls that could not be told from the maps, by the model's nature
    part_of: str = ""  # the policy's check that it is a detail of, and that stands for it in the verdict
    suppression: Suppression | None = None
    would_be: str = ""

    def to_json(self) -> dict[str, Any]:
        """The entry of results.json."""
        figure = self.figure
        entry: dict[str, Any] = {
            "id": self.id, "title": self.title, "metric": self.metric, "status": self.status, "observed": figure.value,
            "low": figure.low, "high": figure.high, "n": figure.n, "limit": self.limit, "rule": self.rule,
            "severity": self.severity, "required": self.required, "reason": self.reason,
        }  # fmt: skip
        if self.part_of:
            entry["part_of"] = self.part_of
        if self.suppression is None:
            return entry
        return entry | {"suppression": self.suppression.to_json(), "would_be": self.would_be}


def judged(check: Check, policy: Policy, measured: Measured, allowed: Collection[str] = ()) -> Finding:
    """A check of every bundle under every infill; the worst counts.

    A margin "over the control" must hold over every control that the policy has. The best one is among them, and none
    was picked by looking at the figures, so the intervals keep their meaning. `allowed` are the cheats that are
    suppressed by name.
    """
    every = [(figure, _status(check, policy, figure)) for figure in _figures(check, policy, measured, allowed)]
    kept = [(figure, status) for figure, status in every if not status.by_nature]
    aside: dict[str, str] = {}
    if len(check.over) > 1 and kept:
        aside = {figure.of.rpartition(" over ")[2]: status.why for figure, status in every if status.by_nature}
    sign = -1 if check.rule == "max" else 1
    found = [_finding(check, figure, status) for figure, status in (kept if aside else every)]
    worst = min(found, key=lambda one: (STATUSES.index(one.status), not one.required, sign * (one.figure.value or 0)))
    said = [worst.reason, *(f"{control} is left out: {why}." for control, why in aside.items())]
    return replace(worst, reason=" ".join(said), left_out=tuple(aside))


def _figures(check: Check, policy: Policy, measured: Measured, allowed: Collection[str]) -> list[Figure]:
    if check.rule == "min_margin_over":
        return [figure for control in check.over for figure in measured.margins(check.metric, control)]
    special = {"runtime_error": _runtime, "randomisation": _randomised}
    if check.metric == "flags":
        return [_cheats(measured, allowed, check.limit)]
    if check.metric in special:
        return [special[check.metric](measured, policy)]
    return measured.figures(check.metric)


def _cheats(measured: Measured, allowed: Collection[str], limit: float) -> Figure:
    """How many kinds of cheat were flagged; what may be one leaves it open, unless there are too many anyway."""
    of = "kinds of cheat"
    if not isinstance(measured.results.get("flags"), list):
        return Figure(of, reason="the results hold no flags")
    if not measured.bundles:
        return Figure(of, reason="no heatmaps were measured")
    odd = [odd for odd in oddities(measured.results) if odd.id not in allowed]
    found, maybe = [one.id for one in odd if one.cheat], [one.id for one in odd if one.open]
    short = f"there may be one more: {', '.join(maybe)}" if maybe and len(found) <= limit else ""
    return Figure(of, float(len(found)), exact=True, reason=", ".join(found), short=short)


def _runtime(measured: Measured, _policy: Policy) -> Figure:
    """The largest mean change of a figure against strict float32 on the CPU."""
    of, found = "the runtime", part(measured.results, "runtime")
    if found.get("reference") is None:
        why = "there is no file to run on the CPU as a reference" if found else "the runtime was not checked"
        return Figure(of, reason=why)
    value = largest(found.get(name) for name in ("insertion", "alpha", "beta"))
    rows = found.get("rows")
    if value is None:
        return Figure(of, reason="its entry in the results is damaged", broken=True)
    return Figure(of, value, n=rows if isinstance(rows, int) else 0, exact=True)


def _randomised(measured: Measured, policy: Policy) -> Figure:
    """How alike the maps of the model and of the model that has forgotten most are."""
    of, wanted = "rank correlation at the last stage", policy.randomisation
    found = part(measured.results, "randomisation")
    series = found.get("series")
    if not isinstance(series, list) or not series or wanted is None:
        return Figure(of, reason=str(found.get("not_assessed") or "the model was not randomised").removesuffix("."))
    last = series[-1] if isinstance(series[-1], dict) else {}
    figure = interval(of, last, "spearman")
    needed = min(wanted.images, policy.minimum_images)
    if not figure.broken and figure.n < needed:
        return replace(figure, short=f"{needed} images are needed")
    whole = isinstance(last.get("layers"), list) and len(last["layers"]) == found.get("layers")
    if not figure.broken and len(series) < wanted.stages and not whole:
        return replace(figure, short=f"{wanted.stages} stages are asked for, {len(series)} were run")
    return figure


def _finding(check: Check, figure: Figure, status: Status) -> Finding:
    told, why = _told(check, figure), status.why
    # Completeness and soundness are missing for want of maps, unless the model's probabilities are the reason.
    required = not status.no_room and (check.required or (check.metric in FAITHFUL and not status.by_nature))
    reason = f"{told}: {why}." if figure.value is None else f"{told}.{f' {why[:1].upper()}{why[1:]}.' if why else ''}"
    return Finding(check.id, check.title, check.metric, status.word, check.severity, reason, figure, check.limit,
                   check.said, required or status.word != "not assessed")  # fmt: skip


def _status(check: Check, policy: Policy, figure: Figure) -> Status:
    """The status, and what must be known beside the figure."""
    if figure.broken:
        return Status("error", figure.reason)
    if figure.value is None:
        return Status("not assessed", figure.reason, figure.by_nature)
    if figure.short:
        return Status("inconclusive", figure.short)
    if why := _too_few(check, policy, figure):
        few = bool(figure.resting_on) and figure.images >= policy.minimum_images  # by the model's probabilities
        return Status("not assessed" if few else "inconclusive", why, few)
    if not figure.exact and (figure.low is None or figure.high is None):
        return Status("inconclusive", figure.reason or "there is no interval")
    side, full = _side(check, figure), _no_room(check, figure)
    if full and side == "pass" and check.limit < 0:
        return Status("not assessed", full, by_nature=True, no_room=True)
    if full and side != "pass" and check.limit >= 0:
        return Status("inconclusive" if check.required else "not assessed", full, by_nature=not check.required)
    if figure.equal and side == "fail" and check.over:
        return Status(side, "on every image it is that of the control")
    return Status(side, figure.reason)


def _too_few(check: Check, policy: Policy, figure: Figure) -> str:
    """Why the images are too few to go by; empty when they are not."""
    if figure.exact or check.metric == "randomisation":
        return ""
    needed, said = policy.minimum_images, f"the policy needs {policy.minimum_images} images"
    if figure.resting_on and figure.images >= policy.minimum_images:
        needed = min(FEWEST, policy.minimum_images)
        said = f"{figure.n} of {figure.images} images {figure.resting_on}, {needed} are needed"
    return said if figure.n < needed else ""


def _no_room(check: Check, figure: Figure) -> str:
    """Why no map, however bad or good, could come out on the other side of the margin; empty when some could.

    The worst there is lies at the least value, and is shown to be too far below a control only when the lower end of
    the control's own interval is that far above it. Near the largest value, maps and control alike, nothing is told.
    """
    if figure.control is None or figure.control.value is None or figure.control.low is None:
        return ""
    (least, most), of, at = METRICS[check.metric], figure.control.of, figure.control.value
    if check.limit < 0 and figure.control.low + check.limit < least:
        return f"{of} is at {at:.3g} itself, so nothing can be shown to lie {-check.limit:g} below it"
    near = most - max(check.limit, LEAST_ROOM) - ROUNDING
    if check.limit >= 0 and at >= near and at + (figure.value or 0) >= near:
        return f"{of} is at {at:.3g} itself, so there is no room to lie {check.limit or LEAST_ROOM:g} above it"
    return ""


def _side(check: Check, figure: Figure) -> str:
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
    return "pass" if good else "fail" if bad else "inconclusive"


def _written(value: float) -> str:
    """Three decimals; one figure where they would hide that it is not 0."""
    return f"{value:.1g}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


def _told(check: Check, figure: Figure) -> str:
    """The figure beside what is asked."""
    if figure.value is None:
        return figure.of
    ends = "" if figure.low is None or figure.high is None else f" ({_written(figure.low)} to {_written(figure.high)})"
    value = f"{figure.value:.3g}" if figure.exact else _written(figure.value)
    on = "" if not figure.n else f" on {figure.n} {'rows' if check.metric == 'runtime_error' else 'images'}"
    asked = {"min": "at least", "max": "at most"}.get(check.rule, "more than")
    return f"{figure.of}: {value}{ends}{on}; {asked} {check.limit:g} is asked"
