"""What a verb says before it begins: rows to run, the time they take, and how it can be shorter."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from auditkit.cli import console

if TYPE_CHECKING:
    from auditkit.runs.explain import Explanation
    from auditkit.verdict.estimate import Cost
    from auditkit.verdict.plan import Plan

_WORK = {"explaining": "make maps", "evaluating": "measure", "randomising": "randomise", "examining": "examine"}


def announce(
    what: str, costs: Sequence["Cost"], images: int, shorter: Iterable[str] = (),
    further: Iterable[tuple[str, str]] = (), *, dry_run: bool, as_json: bool, quiet: bool,
) -> console.Schedule:  # fmt: skip
    """Print the plan, unless it is quiet or JSON is the output of the work that follows; returns it for the progress."""
    from auditkit.verdict.plan import duration

    rows = {cost.phase: cost.rows_for(images) for cost in costs}
    seconds = {cost.phase: cost.seconds(images) for cost in costs}
    in_all = sum(seconds.values())
    fields = [("plan", what)]
    fields += [(_WORK[phase], f"{count:,.0f} rows, about {duration(seconds[phase])}")
               for phase, count in rows.items() if count]  # fmt: skip
    fields += [("in all", f"about {duration(in_all)} on this machine"), *further]
    ways = list(shorter)
    if ways:
        fields.append(("shorter", "; ".join(ways)))
    if not as_json and (dry_run or not quiet):
        console.print_fields(fields)
    elif as_json and dry_run:
        phases = [{"phase": phase, "rows": round(rows[phase]), "seconds": round(seconds[phase], 1)} for phase in rows]
        console.print_json({"schema_version": 1, "plan": what, "images": images, "phases": phases,
                            "seconds": round(in_all, 1), **dict(further), "shorter": ways})  # fmt: skip
    return console.Schedule(rows, seconds, images)


def announce_audit(plan: "Plan", budget: float | None, *, dry_run: bool, as_json: bool, quiet: bool) -> console.Schedule:
    """The same for an audit, with what decides and what the budget chose."""
    from auditkit.verdict.plan import duration, shorter

    request = plan.request
    taken = f"{plan.most_images} of {plan.images} images" if plan.most_images < plan.images else f"{plan.images} images"
    made = (
        f"maps of the labels {plan.labels} by {request.explanation.method}" if request.explanation else "supplied maps"
    )
    further = [("decides", plan.decision)]
    if request.taking.until_decided:
        further.insert(0, ("at most", "images are taken until every check is decided, so it may end sooner"))
    if request.taking.first_look is not None:
        look = request.taking.first_look
        further.insert(0, ("first report", f"after {look} images, about {duration(plan.seconds_for(look))}"))
    if plan.chosen and budget is not None:
        further.append(("budget", f"to keep within {duration(budget)}: {' '.join(plan.chosen)}; for everything: "
                                  "--budget none"))  # fmt: skip
    what = f"{taken}, {made}, policy {request.policy.name}"
    return announce(what, plan.costs, plan.most_images, shorter(plan), further, dry_run=dry_run, as_json=as_json, quiet=quiet)


def shorter_maps(cost: "Cost", images: int, explanation: "Explanation") -> Iterator[str]:
    """Options that make the making of maps shorter."""
    from auditkit.verdict.plan import LONG, QUICK_METHOD

    if cost.seconds(images) > LONG:
        yield from shorter_figures(cost, images)
        if dict(explanation.options).get("quality", "fast") != "fast":
            yield "--quality fast"
        if explanation.method != QUICK_METHOD:
            yield f"--method {QUICK_METHOD}"


def shorter_figures(cost: "Cost", images: int) -> Iterator[str]:
    """Options that make the measuring of maps shorter."""
    from auditkit.verdict.plan import LONG, duration

    if cost.seconds(images) > LONG:
        few = max(images // 4, 1)
        yield f"--limit {few} (about {duration(cost.seconds(few))})"
        yield "--labels top2"
