"""What an audit will do and how long it will take; and what to leave out to keep within a time."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.metrics.faithfulness import default_labels, parse_labels
from auditkit.metrics.statistics import FEWEST_VALUES
from auditkit.model.classifier import AnyClassifier
from auditkit.records import from_json
from auditkit.runs.explain import Explanation
from auditkit.runs.folder.figures import Shortened, Taking
from auditkit.runs.folder.store import Store
from auditkit.verdict.audit import AuditRequest
from auditkit.verdict.estimate import Cost, evaluating, examining, explaining
from auditkit.verdict.sample_size import expected_images

MINUTE, HOUR = 60.0, 3600.0
CPU_BUDGETS = {True: 20 * MINUTE, False: 3 * MINUTE}  # of an audit that can decide, or is a first look, on a CPU
FIRST_REPORT = 3 * MINUTE  # after which there is a first report of a longer audit
SAFETY = 0.85  # of a budget may be planned: curves can need more points than the first ones did
QUICK_METHOD = "occlusion"  # black-box and cheap, and its maps pass `standard` (docs/policies.md)
CHEAP_METHOD = "grad-cam"  # one gradient a label, where the model has a gradient and a tensor with a grid
_BACKWARD = 3  # forward passes that a gradient takes, at least
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])")


@dataclass(frozen=True)
class Plan:
    """An audit before it begins."""

    request: AuditRequest  # with what was chosen to keep within the budget
    images: int  # at hand
    labels: str  # whose maps are made
    costs: tuple[Cost, ...]

    @property
    def chosen(self) -> tuple[str, ...]:
        """Options that the budget added, as they are written on the command line."""
        return () if self.request.shortened is None else self.request.shortened.options

    @property
    def most_images(self) -> int:
        """Images that are taken at most."""
        return self.request.taking.ends(self.request.policy.images_needed, self.images)[-1]

    @property
    def seconds(self) -> float:
        """For all of them."""
        return self.seconds_for(self.most_images)

    def seconds_for(self, images: int) -> float:
        """For that many images."""
        return sum(cost.seconds(images) for cost in self.costs)

    @property
    def images_to_decide(self) -> int | None:
        """Images that decide every check in 80 % of the cases studied; None if that is not known."""
        numbers = [entry.usual for entry in expected_images(self.request.policy)]
        return None if not numbers or None in numbers else max(filter(None, numbers))

    @property
    def decision(self) -> str:
        """Whether these images can decide, in a sentence."""
        policy, needed = self.request.policy, self.images_to_decide
        if not self.request.can_decide:
            return f"The policy {policy.name} sets no limits: there will be metrics but no verdict."
        if needed is None:
            return "It is not known how many images are needed; after 20, the report gives an estimate."
        enough = "so these should be enough" if self.most_images >= needed else "so some checks may stay undecided"
        return f"In 80 % of the cases studied, {needed} images decided every check, {enough}."


def budget_of(text: str | None, request: AuditRequest, device: str) -> float | None:
    """Seconds of a budget such as 90s, 10m or 1.5h; None for 'none', and by default unless the device is a CPU."""
    if text is None and device == "cpu":
        return CPU_BUDGETS[request.can_decide]
    if text in (None, "none"):
        return None
    match = _BUDGET.fullmatch(str(text))
    if match is None or not float(match[1]):
        raise BadInput(f"the budget '{text}' is neither a time such as 90s, 10m or 1h, nor none.")
    return float(match[1]) * {"s": 1.0, "m": MINUTE, "h": HOUR}[match[2]]


def plan_audit(
    model: AnyClassifier, images: Dataset, request: AuditRequest, budget: float | None, *, any_method: bool
) -> Plan:
    """The plan of an audit; within a budget, options are chosen that keep it, the method only if any will do."""
    rule = request.evaluation.labels or str(default_labels(model.signature.classes))
    measuring = evaluating(model, images, request.evaluation, len(request.bundles) or 1, request.infill_pool)
    candidates = [request.explanation]
    if any_method and budget is not None and request.explanation is not None:
        quick = replace(request.explanation, method=QUICK_METHOD)
        candidates = [*candidates, quick] if _may_learn(model, request, rule, measuring, budget) else [quick]
    plans = [_plan(model, images, replace(request, explanation=each), rule, measuring) for each in candidates]
    if budget is None:
        return _with_first_look(plans[0])
    return _with_first_look(_recorded(_within(plans, SAFETY * budget), request, budget))


def _plan(model: AnyClassifier, images: Dataset, request: AuditRequest, rule: str, measuring: Cost) -> Plan:
    costs, policy = [measuring], request.policy
    if request.explanation is not None:
        explanation = replace(request.explanation, labels=request.explanation.labels or rule).adapted_to(model)
        maps = explaining(model, images, explanation, request.pool, measuring.rate)
        costs.insert(0, maps)
        if policy.randomisation is not None:
            stages, most = policy.randomisation.stages, policy.randomisation.images
            rows = stages * maps.rows / _count(rule, model)
            costs.append(replace(maps, phase="randomising", rows=rows, most=most))
        request = replace(request, explanation=request.explanation.adapted_to(model))
    if policy.examination is not None:
        costs.append(examining(measuring.rate, measuring.engine))
    return Plan(request, len(images), rule, tuple(costs))


def _count(rule: str, model: AnyClassifier) -> int:
    """Labels of an image, at most."""
    labels = parse_labels(rule)
    return min(labels.top or len(labels.labels or ()) or model.signature.classes, model.signature.classes)


def _may_learn(model: AnyClassifier, request: AuditRequest, rule: str, measuring: Cost, budget: float) -> bool:
    """Whether learned masks may fit; to see more, their gradient has to be derived, which takes a while."""
    explanation = request.explanation
    if explanation is None or explanation.method != "mask" or not model.can_differentiate:
        return True
    options = explanation.resolved()[1]
    rows = _count(rule, model) * options.steps * options.distractors
    return replace(measuring, rows=rows * _BACKWARD).seconds(request.policy.images_needed) <= budget


def _within(plans: list[Plan], budget: float) -> Plan:
    """The first plan that keeps the budget with all images, else one that takes fewer."""
    for plan in plans:
        if plan.seconds <= budget:
            return plan
    for plan in plans:
        if plan.seconds_for(min(plan.most_images, plan.images_to_decide or plan.most_images)) <= budget:
            return _fewer(plan, budget)
    return _fewer(plans[-1], budget)


def _fewer(plan: Plan, budget: float) -> Plan:
    """The same with no more images than the budget allows, and no more than are needed.

    Without limits to decide about, there are at least as many as intervals take.
    """
    fitting = next((count for count in range(plan.most_images, 1, -1) if plan.seconds_for(count) <= budget), 1)
    if not plan.request.can_decide:
        fitting = min(max(fitting, FEWEST_VALUES), plan.most_images)
    limit = fitting if fitting < plan.most_images else plan.request.taking.limit
    decides = plan.request.can_decide and fitting > plan.request.policy.images_needed
    taking = replace(plan.request.taking, limit=limit, until_decided=plan.request.taking.until_decided or decides)
    return replace(plan, request=replace(plan.request, taking=taking))


def _recorded(plan: Plan, asked: AuditRequest, budget: float) -> Plan:
    """The plan with a record of what differs from what was asked."""
    request, shortened = plan.request, Shortened(budget, total=plan.images)
    method = request.explanation.method if request.explanation else None
    before = asked.explanation.method if asked.explanation else None
    if method != before:
        shortened = replace(shortened, method=method, instead_of=before)
    if request.taking.limit != asked.taking.limit:
        shortened = replace(shortened, images=request.taking.limit)
    if request.taking.until_decided and not asked.taking.until_decided:
        shortened = replace(shortened, until_decided=True)
    return replace(plan, request=replace(request, shortened=shortened)) if shortened.options else plan


def _with_first_look(plan: Plan) -> Plan:
    """The same with a report after a few minutes, if it takes longer than twice that."""
    if plan.seconds <= 2 * FIRST_REPORT:
        return plan
    most = range(2, plan.most_images)
    look = next((count for count in reversed(most) if plan.seconds_for(count) <= FIRST_REPORT), 2)
    return replace(plan, request=replace(plan.request, taking=replace(plan.request.taking, first_look=look)))


def resumed(request: AuditRequest, out: Path, *, any_method: bool) -> AuditRequest | None:
    """The request with what was chosen when this folder's run began; None if it holds no run."""
    try:
        settings = Store(out).settings()
        taking = from_json(Taking, settings.get("taking", {}), str(out))
        shortened = settings.get("shortened")
        if shortened is not None:
            request = replace(request, shortened=from_json(Shortened, shortened, str(out)))
        maps = settings.get("maps")
        if any_method and request.explanation is not None and maps is not None:
            explanation = replace(Explanation.parse(maps["method"]), gradient=request.explanation.gradient)
            request = replace(request, explanation=explanation)
    except (BadInput, OSError, KeyError, TypeError, AttributeError):
        return None
    asked = request.taking
    agrees = asked.limit in (None, taking.limit) and (taking.until_decided or not asked.until_decided)
    return replace(request, taking=taking) if agrees else request
