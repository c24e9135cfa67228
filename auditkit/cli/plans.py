"""What a verb says before it begins: rows to run, the time they take, and how it can be shorter."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from auditkit.cli import console
from auditkit.cli.progress import Schedule, duration
from auditkit.errors import BadInput, RuntimeFailure

if TYPE_CHECKING:
    from auditkit.runs.explain import Explanation
    from auditkit.verdict.estimate import Cost
    from auditkit.verdict.plan import Plan

_MAKING_MAPS = ("explaining", "randomising")
_LONG = 600.0  # seconds of work, from which on the plan says how it can be shorter
_WORK = {"explaining": "make maps", "evaluating": "measure", "randomising": "randomise", "examining": "examine"}


@dataclass(frozen=True)
class Output:
    """What the command line asks to see."""

    dry_run: bool  # the plan alone
    as_json: bool
    quiet: bool


def trial(output: Output) -> AbstractContextManager[None]:
    """A block that may fail unless only the plan is asked for: the work itself says on which image the model fails."""
    return nullcontext() if output.dry_run else suppress(RuntimeFailure)


def announce(
    output: Output, what: str, costs: Sequence["Cost"], images: int, shorter: Iterable[str] = (),
    further: Iterable[tuple[str, str]] = (),
) -> Schedule:  # fmt: skip
    """Print the plan, unless that would be noise or no JSON; returns it for the progress."""
    rows = {cost.phase: cost.rows_for(images) for cost in costs}
    seconds = {cost.phase: cost.seconds(images) for cost in costs}
    total = sum(seconds.values())
    fields = [("plan", what)]
    fields += [(_WORK[phase], f"{count:,.0f} rows, about {duration(seconds[phase])}")
               for phase, count in rows.items() if count]  # fmt: skip
    engine = next(filter(None, (cost.engine for cost in costs)), None)
    where = "on this machine" if engine is None else f"with {engine.count} worker{'s' * (engine.count > 1)}"
    fields += [("total", f"about {duration(total)} {where}"), *further]
    ways = list(shorter)
    if ways:
        fields.append(("shorter", "; ".join(ways)))
    if not output.as_json and (output.dry_run or not output.quiet):
        console.print_fields(fields)
    elif output.as_json and output.dry_run:
        phases = [{"phase": phase, "rows": round(rows[phase]), "seconds": round(seconds[phase], 1)} for phase in rows]
        console.print_json({"schema_version": 1, "plan": what, "images": images, "phases": phases,
                            "seconds": round(total, 1), **dict(further), "shorter": ways})  # fmt: skip
    return Schedule(rows, seconds, images)


def taken(count: int, of: int) -> str:
    """How many of the images are taken, in words."""
    return f"{count} of {of} images" if count < of else f"{of} images"


def announce_audit(output: Output, plan: "Plan") -> Schedule:
    """The same for an audit, with what decides and what the budget chose; refused where it cannot decide."""
    request = plan.request
    if request.shortened is not None:
        _require_enough(plan, request.shortened.seconds)
    method = request.explanation.method if request.explanation else ""
    maps = f"maps of the labels {plan.labels} by {method}" if method else "supplied maps"
    further = [("decides", plan.decision)]
    if request.taking.until_decided:
        further.insert(0, ("at most", "images are taken until every check is decided, so it may end sooner"))
    if request.taking.first_look is not None:
        look = request.taking.first_look
        further.insert(0, ("first report", f"after {look} images, about {duration(plan.seconds_for(look))}"))
    if request.shortened is not None:
        further.append(("shortened", request.shortened.text))
    what = f"{taken(plan.most_images, plan.images)}, {maps}, policy {request.policy.name}"
    return announce(output, what, plan.costs, plan.most_images, shorter_audit(plan), further)


def _require_enough(plan: "Plan", budget: float) -> None:
    """Refuse an audit that would take fewer images within the budget than its policy needs."""
    policy, images = plan.request.policy, plan.most_images
    if not plan.request.can_decide or images >= policy.images_needed:
        return
    needed, explanation = policy.images_needed, plan.request.explanation
    fits = f"within {duration(budget)}, this machine measures about {images} of {plan.images} images"
    ways = [f"Give --budget none --limit {needed} (about {duration(plan.seconds_for(needed))})"]
    maps = sum(cost.seconds(needed) for cost in plan.costs if cost.phase in _MAKING_MAPS)
    if explanation is not None and maps > plan.seconds_for(needed) / 2:
        ways.append(f"a --method that costs less than {explanation.method}")
    ways.append("or --policy explore for figures without a verdict")
    raise BadInput(f"{fits}, and a verdict by the policy {policy.name} needs {needed}. {', '.join(ways)}.")


def shorter_maps(cost: "Cost", images: int, explanation: "Explanation") -> Iterator[str]:
    """Options that make the making of maps shorter."""
    from auditkit.verdict.plan import QUICK_METHOD

    if cost.seconds(images) > _LONG:
        yield from shorter_figures(cost, images)
        if dict(explanation.options).get("quality", "fast") != "fast":
            yield "--quality fast"
        if explanation.method != QUICK_METHOD:
            yield f"--method {QUICK_METHOD}"


def shorter_figures(cost: "Cost", images: int) -> Iterator[str]:
    """Options that make the measuring of maps shorter."""
    if cost.seconds(images) > _LONG:
        few = max(images // 4, 1)
        yield f"--limit {few} (about {duration(cost.seconds(few))})"
        yield "--labels top2"


def shorter_examination(
    costs: Sequence["Cost"], images: int, fewest: int, cheap: Callable[[], "Cost"]
) -> Iterator[str]:  # fmt: skip
    """Options that make an examination shorter; a method of little cost where the maps take most of the time."""
    from auditkit.verdict.plan import CHEAP_METHOD

    total = _seconds(costs, images)
    maps = _seconds([cost for cost in costs if cost.phase == "explaining"], images)
    if total <= _LONG:
        return
    few, cheaper = max(images // 4, fewest), list["Cost"]()
    if maps > total / 2:
        with suppress(BadInput):  # a model that the method cannot explain
            cheaper = [cheap(), *(cost for cost in costs if cost.phase != "explaining")]
    if 0 < _seconds(cheaper, images) < total / 2:
        time = f"about {duration(_seconds(cheaper, images))}; the maps take {duration(maps)} of the above"
        yield f"--method {CHEAP_METHOD} ({time})"
        yield f"--method {CHEAP_METHOD} --limit {few} (about {duration(_seconds(cheaper, few))})"
    else:
        yield f"--limit {few} (about {duration(_seconds(costs, few))})"


def _seconds(costs: Sequence["Cost"], images: int) -> float:
    return sum(cost.seconds(images) for cost in costs)


def shorter_audit(plan: "Plan") -> Iterator[str]:
    """Options that make long work shorter, with the time that they leave."""
    from auditkit.verdict.plan import QUICK_METHOD

    request, needed = plan.request, plan.images_to_decide
    if plan.seconds <= _LONG:
        return
    if request.can_decide and not request.taking.until_decided and needed is not None and needed < plan.most_images:
        yield f"--until-decided (about {duration(plan.seconds_for(needed))})"
    half = max(plan.most_images // 2, 1)
    yield f"--limit {half} (about {duration(plan.seconds_for(half))})"
    maps = sum(cost.seconds(plan.most_images) for cost in plan.costs if cost.phase in _MAKING_MAPS)
    if request.explanation is not None and maps > plan.seconds / 2:
        yield f"--method {QUICK_METHOD} (about {duration(plan.seconds - maps)}, and a few minutes for the maps)"
    if request.policy.name != "explore":
        yield "--policy explore (a first look without a verdict)"
