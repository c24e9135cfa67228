"""Reads policies from TOML; nothing in them is ignored.

Unknown keys, wrong types, impossible limits and limits that nothing could miss are refused in a sentence that names the
file, the key and what is allowed.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from auditkit.errors import BadInput, unknown
from auditkit.metrics.curves import parse_steps
from auditkit.metrics.faithfulness import parse_labels
from auditkit.metrics.table import METRICS
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.folder.examination import CueKind
from auditkit.runs.folder.figures import Severity
from auditkit.runs.folder.results import SHIPPED
from auditkit.toml_tables import Table, is_number, parse_toml, read_text, shown
from auditkit.verdict.flags import CHEATS
from auditkit.verdict.policy import (
    BUILT_IN,
    CONTROLS,
    FAIL_ON,
    NOT_REPRODUCED,
    ONE_MAP_CONTROL,
    RULES,
    SEVERITIES,
    Check,
    ExaminationRules,
    Policy,
    Randomisation,
    Suppression,
    shipped_text,
)

SCHEMA_VERSION = 1
# Every map of a label is complete when eps1 is above the label's probability, and sound when eps2 is above what the map
# reaches; near 1 that is so of all maps. 0.1 is the most that is published.
MOST_EPS = 0.1
# Near its ends a curve hardly depends on the map: all pixels are hidden, or all shown. 0.2 to 0.6 is published.
LEAST_RANGE, LAST_START = 0.1, 0.5
MOST_RUNTIME_ERROR = 0.05  # of a probability or area
_RESERVED = re.compile(
    r"cheat-.*|not-above-.*|not-reproduced|some-.*|suppression-expired.*|heavy-ties|tie-order-matters|maps-missing"
)
_MARGIN = re.compile(r"control:(?:([a-z-]*[a-z]):)?([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)")


def read_policy(name_or_path: str | Path) -> Policy:
    """The shipped policy of this name, or the one in this file."""
    name, path = str(name_or_path), Path(name_or_path)
    if name in SHIPPED:
        return parse_policy(shipped_text(name), name)
    if not path.exists():
        raise BadInput(unknown("policy or file", name, SHIPPED))
    return parse_policy(read_text(path, "policy"), path.name)


def parse_policy(text: str, where: str) -> Policy:
    """The policy that a text states; `where` is the file's name in messages."""
    data = parse_toml(text, where)
    if type(data.get("schema_version")) is not int or data["schema_version"] != SCHEMA_VERSION:
        version = f"is {shown(data['schema_version'])}" if "schema_version" in data else "is missing"
        raise BadInput(f"{where}: schema_version {version}, expected {SCHEMA_VERSION}.")
    keys = (
        *("schema_version", "name", "description", "pass_means", "cannot_tell", "hints", "reproduce"),
        *("fail_on", "fail_on_finding", "evaluation", "randomisation", "examination", "allowed"),
        *("check", "suppression"),
    )
    top = Table(data, where, keys)
    settings_keys = ("labels", "infill", "eps1", "eps2", "steps", "range", "confidence", "seed", "controls",
                     "minimum_images", "max_failed_images")  # fmt: skip
    evaluation = Table(top.data.get("evaluation", {}), f"{where} [evaluation]", settings_keys)
    controls, randomisation = _controls(evaluation), _randomisation(top)
    settings = _evaluation(evaluation, controls)
    checks = _checks(top, controls, randomisation is not None)
    _assessable(checks, settings, top.where)
    if checks and "minimum_images" not in evaluation:
        raise BadInput(f"{evaluation.where}: minimum_images is missing; set how many images a verdict needs.")
    share = "a share from 0 up to, but not including, 1"
    failed = evaluation.number("max_failed_images", 0.0, share)
    if not 0 <= failed < 1:
        raise evaluation.refuse("max_failed_images", share)
    return Policy(
        _name(top), top.text("description", ""), settings,
        evaluation.whole("minimum_images", 1, 1), failed, controls, randomisation,
        top.choice("fail_on", FAIL_ON, "low"), checks, _suppressions(top, checks), text, top.text("pass_means", ""),
        _cannot_tell(top), top.truth("hints", default=False), _examination(top),
        top.truth("reproduce", default=False), _fail_on_finding(top),
    )  # fmt: skip


def _cannot_tell(top: Table) -> tuple[str, ...]:
    sentences = top.data.get("cannot_tell", [])
    if not isinstance(sentences, list) or not all(isinstance(each, str) and each.strip() for each in sentences):
        raise top.refuse("cannot_tell", "a list of texts in quotes, not blank")
    return tuple(sentences)


def _name(top: Table) -> str:
    """The policy's name, which must not look like that of another."""
    name = top.text("name")
    if name != name.strip() or not (name.isascii() and name.isprintable()):
        raise top.refuse("name", "printable ASCII characters, without spaces around them")
    if name.casefold() in SHIPPED and name not in SHIPPED:
        raise BadInput(f"{top.where}: the name '{name}' looks like that of auditkit's own policy; choose another.")
    return name


def _evaluation(table: Table, controls: Sequence[str]) -> Evaluation:
    steps = table.data.get("steps")
    if "steps" in table and not (isinstance(steps, str) or (type(steps) is int and is_number(steps))):
        raise table.refuse("steps", "a number of points, 'exact', 'auto' or 'auto:TOLERANCE'")
    labels_expected = "'all', 'topK', 'f>=p' or a list of labels in one text, such as '3,7'"
    labels = table.text("labels", expected=labels_expected) if "labels" in table else None
    eps_expected = "a number from 0 up to, but not including, 1"
    eps1, eps2 = (table.number(key, expected=eps_expected) if key in table else None for key in ("eps1", "eps2"))
    confidence = table.number("confidence", 0.95, "a number from 0.5 up to, but not including, 1")
    infill, kept_range, seed = _infill(table), _range(table), table.whole("seed", 0, 0)
    try:
        return Evaluation(
            labels=labels, infill=infill, eps1=eps1, eps2=eps2, confidence=confidence, range=kept_range, seed=seed,
            controls=bool(controls), steps=None if steps is None else parse_steps(str(steps)),
        )  # fmt: skip
    except BadInput as error:
        raise BadInput(f"{table.where}: {error}") from None


def _infill(table: Table) -> tuple[str, ...] | None:
    if "infill" not in table:
        return None
    value = table.data["infill"]
    names = [value] if isinstance(value, str) else value
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise table.refuse("infill", "'gray', 'blur', 'blur:SIGMA', 'random' or 'image:FILE', or a list of them")
    return tuple(names)


def _range(table: Table) -> tuple[float, float]:
    value = table.data.get("range", [0.0, 1.0])
    if not (isinstance(value, list) and len(value) == 2 and all(map(is_number, value))):
        raise table.refuse("range", "two kept fractions, such as [0.2, 0.6]")
    return float(value[0]), float(value[1])


def _controls(table: Table) -> tuple[str, ...]:
    value = table.data.get("controls", "all")
    if value == "all" or value is True:
        return CONTROLS
    if not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise table.refuse("controls", f"'all' or a list of {', '.join(CONTROLS)}; [] is none")
    for name in value:
        if name not in CONTROLS:
            raise BadInput(f"{table.where}: {unknown('control', name, CONTROLS)}")
    return tuple(name for name in CONTROLS if name in value)


def _randomisation(top: Table) -> Randomisation | None:
    if "randomisation" not in top:
        return None
    table = Table(top.data["randomisation"], f"{top.where} [randomisation]", ("images", "stages"))
    return Randomisation(table.whole("images", 2, 32), table.whole("stages", 1, 4))


def _examination(top: Table) -> ExaminationRules | None:
    """What the examination may find; without a table [examination] there is none."""
    allowed = dict[str, str]()
    for table in _tables(top, "allowed", ("kind", "reason")):
        kind = table.choice("kind", get_args(CueKind))
        if kind in allowed:
            raise BadInput(f"{table.where}: '{kind}' is allowed twice; keep one of them.")
        allowed[kind] = table.text("reason")
    if "examination" not in top:
        if allowed:
            raise BadInput(f"{top.where}: the model is not examined; add a table [examination], or leave allowed out.")
        return None
    table = Table(top.data["examination"], f"{top.where} [examination]", ("severity",))
    return ExaminationRules(table.choice("severity", SEVERITIES) if "severity" in table else None, allowed)


def _fail_on_finding(top: Table) -> Severity | None:
    """The least severity of a finding about the model that fails an audit; None: no finding does."""
    if "fail_on_finding" not in top:
        return None
    if "examination" not in top:
        remedy = "add a table [examination], or leave fail_on_finding out"
        raise BadInput(f"{top.where}: fail_on_finding is set, but the model is not examined; {remedy}.")
    return top.choice("fail_on_finding", FAIL_ON)


def _tables(top: Table, key: str, keys: Sequence[str]) -> list[Table]:
    """The tables of an array, each named by its id if it has one, else by its number."""
    value = top.data.get(key, [])
    if not isinstance(value, list):
        raise BadInput(f"{top.where}: {key} must be an array of tables, each written as [[{key}]].")
    tables = []
    for number, entry in enumerate(value, 1):
        name = entry.get("id", entry.get("check")) if isinstance(entry, dict) else None
        name = name if isinstance(name, str) else f"number {number}"
        tables.append(Table(entry, f"{top.where} [[{key}]] {name}", keys))
    return tables


def _checks(top: Table, controls: tuple[str, ...], randomised: bool) -> tuple[Check, ...]:
    keys = ("id", "title", "metric", *RULES, "severity", "required", "what_to_do", "every_group")
    checks = tuple(_check(table, controls, randomised) for table in _tables(top, "check", keys))
    for index, check in enumerate(checks):
        if check.id in [other.id for other in checks[:index]]:
            raise BadInput(f"{top.where}: two checks have the id '{check.id}'; every check needs one of its own.")
    return checks


def _assessable(checks: Sequence[Check], settings: Evaluation, where: str) -> None:
    """Refuse checks that no map could ever meet or miss under the policy's own settings."""
    labels = None if settings.labels is None else parse_labels(settings.labels)
    alone = labels is not None and (labels.top == 1 or len(labels.labels or ()) == 1)
    for check in checks:
        metric = METRICS[check.metric]
        if alone and metric.of_every_label:
            raise BadInput(f"{where} [[check]] {check.id}: {check.metric} needs maps for more labels than labels = "
                           f"'{settings.labels}' has.")  # fmt: skip
        for name, value in (("eps1", settings.eps1), ("eps2", settings.eps2)):
            if metric.of_every_label and value is not None and value > MOST_EPS:
                raise BadInput(f"{where} [evaluation]: with {name} = {value:g} all maps come out alike, so that "
                               f"[[check]] {check.id} shows nothing; it may be {MOST_EPS:g} at most.")  # fmt: skip
        start, end = settings.range
        if metric.curve and (end - start < LEAST_RANGE - 1e-9 or start > LAST_START):
            raise BadInput(f"{where} [evaluation]: over the range {start:g} to {end:g} all maps come out alike, so "
                           f"that [[check]] {check.id} shows nothing; it must begin at {LAST_START:g} at most and be "
                           f"{LEAST_RANGE:g} wide or more.")  # fmt: skip


def _check(table: Table, controls: tuple[str, ...], randomised: bool) -> Check:
    name = table.name("id")
    if name in BUILT_IN or _RESERVED.fullmatch(name):
        raise BadInput(f"{table.where}: the id '{name}' is that of a finding of auditkit's own; choose another.")
    metric = table.choice("metric", [name for name, entry in METRICS.items() if entry.in_policies])
    rules = [rule for rule in RULES if rule in table]
    if len(rules) != 1:
        names = " and ".join(rules) or "none of them"
        raise BadInput(f"{table.where}: a check needs exactly one of {', '.join(RULES)}, found {names}.")
    if metric == "randomisation" and not randomised:
        raise BadInput(f"{table.where}: randomisation is not run; add a table [randomisation], or leave the check out.")
    (rule,) = rules
    over, limit = _margin(table, metric, controls) if rule == "min_margin_over" else ((), _limit(table, metric, rule))
    check = Check(name, metric, rule, limit, table.choice("severity", SEVERITIES),
                  required=table.truth("required", True), over=over,
                  every_group=table.truth("every_group", False))  # fmt: skip
    if check.every_group and METRICS[metric].needs == "nothing":
        raise BadInput(f"{table.where}: {metric} is one figure of the whole run; leave every_group out.")
    return replace(check, title=table.text("title", check.requirement), what_to_do=table.text("what_to_do", ""))


def _limit(table: Table, metric: str, rule: str) -> float:
    """A limit that some results meet and others miss."""
    least, most = METRICS[metric].limits
    if METRICS[metric].needs == "nothing" and rule != "max":
        raise BadInput(f"{table.where}: {metric} is better the lower it is; give max, not {rule}.")
    limit = table.number(rule)
    if metric == "flags" and not (limit >= 0 and limit.is_integer()):
        raise table.refuse(rule, "a whole number from 0 up")
    if not least <= limit <= most:
        raise table.refuse(rule, f"a number from {least:g} to {most:g}, the values that {metric} can have")
    if limit == (least if rule == "min" else most):
        raise BadInput(f"{table.where}: {rule} is {limit:g}, which no {metric} can miss; a check must be able to fail.")
    if metric == "runtime_error" and limit > MOST_RUNTIME_ERROR:
        raise BadInput(f"{table.where}: {rule} is {limit:g}, but a machine that far off computes something else; it "
                       f"may be {MOST_RUNTIME_ERROR:g} at most.")  # fmt: skip
    return limit


def _margin(table: Table, metric: str, controls: tuple[str, ...]) -> tuple[tuple[str, ...], float]:
    """The controls that a margin is taken over, and the margin."""
    if not METRICS[metric].has_margin:
        known = ", ".join(name for name, entry in METRICS.items() if entry.has_margin)
        raise BadInput(f"{table.where}: {metric} has no margin over controls; these have one: {known}.")
    expected = "'control:MARGIN', over every control, or 'control:NAME:MARGIN', such as 'control:random:-0.05'"
    match = _MARGIN.fullmatch(table.text("min_margin_over", expected=expected))
    if match is None or not -1 < float(match[2]) < 1:
        raise table.refuse("min_margin_over", f"{expected}, with a margin between -1 and 1")
    # one-map is the bundle's own map of the predicted label, so it shows nothing about metrics of that label alone.
    available = tuple(name for name in controls if name != ONE_MAP_CONTROL or METRICS[metric].of_every_label)
    if match[1] is None and available:
        return available, float(match[2])
    if match[1] not in available:
        control = f"control '{match[1]}'" if match[1] else "controls"
        hint = f"; it has {', '.join(available)}" if available else ""
        raise BadInput(f"{table.where}: the policy has no {control} for {metric}{hint}.")
    return (match[1],), float(match[2])


def _suppressions(top: Table, checks: tuple[Check, ...]) -> tuple[Suppression, ...]:
    keys, suppressions = ("check", "reason", "approver", "expires"), list[Suppression]()
    known = (*(check.id for check in checks), *CHEATS, NOT_REPRODUCED)
    for table in _tables(top, "suppression", keys):
        name = table.text("check")
        if name in BUILT_IN:
            raise BadInput(f"{table.where}: '{name}' is a precondition of every verdict and cannot be suppressed.")
        if name not in known:
            raise BadInput(f"{table.where}: {unknown('check', name, known)}")
        if name in [other.check for other in suppressions]:
            raise BadInput(f"{table.where}: '{name}' is suppressed twice; keep one of them.")
        suppressions.append(Suppression(name, table.text("reason"), table.text("approver"), table.day("expires")))
    return tuple(suppressions)
