"""What a verb says before it begins: rows to run, the time they take, and how it can be shorter."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from auditkit.cli import console
from auditkit.cli.progress import Schedule, duration
from auditkit.errors import RuntimeFailure

if TYPE_CHECKING:
    from auditkit.runs.explain import Explanation
    from auditkit.verdict.estimate import Cost
    from auditkit.verdict.plan import Plan

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


def announce_audit(output: Output, plan: "Plan", budget: float | None) -> Schedule:
    """The same for an audit, with what decides and what the budget chose."""
    request = plan.request
    method = request.explanation.method if request.explanation else ""
    maps = f"maps of the labels {plan.labels} by {method}" if method else "supplied maps"
    further = [("decides", plan.decision)]
    if request.taking.until_decided:
        further.insert(0, ("at most", "images are taken until every check is decided, so it may end sooner"))
    if request.taking.first_look is not None:
        look = request.taking.first_look
        further.insert(0, ("first report", f"after {look} images, about {duration(plan.seconds_for(look))}"))
    if plan.chosen and budget is not None:
        further.append(("budget", f"to keep within {duration(budget)}: {' '.join(plan.chosen)}; for everything: "
                                  "--budget none"))  # fmt: skip
    what = f"{taken(plan.most_images, plan.images)}, {maps}, policy {request.policy.name}"
    return announce(output, what, plan.costs, plan.most_images, shorter_audit(plan), further)


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
    maps = sum(cost.seconds(plan.most_images) for cost in plan.costs if cost.phase in ("explaining", "randomising"))
    if request.explanation is not None and maps > plan.seconds / 2:
        yield f"--method {QUICK_METHOD} (about {duration(plan.seconds - maps)}, and a few minutes for the maps)"
    if request.policy.name != "explore":
        yield "--policy explore (a first look without a verdict)"
