"""A run as SARIF 2.1.0: a rule and a result for the verdict and for each check, all about the model's file."""

import hashlib
import json
import shlex
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote

from auditkit.report import sections, wording
from auditkit.report.formatting import visible
from auditkit.report.load_run import Loaded
from auditkit.runs.folder.results import CheckResult, ModelFile, RecordedSuppression, Results, Verdict
from auditkit.runs.folder.store import RESULTS

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
VERDICT = "auditkit:verdict"  # a policy's own checks have no colon in their names
LEVELS = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "note"}
KINDS = {"pass": "pass", "fail": "fail", "inconclusive": "open", "not assessed": "review", "error": "open"}
# The verdict's rule asks for a pass: an inconclusive one fails it, for a reader that looks for failures alone.
VERDICT_KINDS: dict[Verdict | None, str] = {
    "pass": "pass", "measured": "informational", None: "open", "fail": "fail", "inconclusive": "fail",
}  # fmt: skip
EXIT_CODES: dict[Verdict | None, int] = {"pass": 0, "measured": 0, None: 0, "fail": 1, "inconclusive": 3}


def render_sarif(loaded: Loaded) -> str:
    """The log, whose results a code scanning service can show."""
    results = loaded.results
    told = [(one, sections.check(one)) for one in results.checks]
    rules = [_verdict_rule(), *(_rule(one, text) for one, text in told)]
    found = [_verdict(results), *(_result(one, text) for one, text in told)]
    where = _artifact(results)
    for index, one in enumerate(found):
        one |= {"ruleIndex": index, "locations": [_location(where)], "partialFingerprints": _fingerprint(one["ruleId"])}
    driver = {"name": "auditkit", "version": results.tool.version, "rules": rules}
    run = {
        "tool": {"driver": driver}, "invocations": [_invocation(results)], "artifacts": [where], "results": found,
        "properties": _properties(loaded),
    }  # fmt: skip
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def _text(said: Any) -> dict[str, str]:
    """A message; braces would be places to fill in, and a name in brackets a link."""
    return {"text": visible(str(said)).replace("{", "{{").replace("}", "}}").replace("](", "] (")}


def _verdict_rule() -> dict[str, Any]:
    asks = "The policy gives the run its verdict: every check that it counts was passed."
    return {
        "id": VERDICT, "shortDescription": _text("Verdict of the policy"), "fullDescription": _text(asks),
        "help": _text(asks), "defaultConfiguration": {"level": "error"},
    }  # fmt: skip


def _rule(one: CheckResult, told: dict[str, Any]) -> dict[str, Any]:
    asks = " ".join(filter(None, (told["metric"] or told["title"], told["limit"])))
    return {
        "id": visible(one.id), "shortDescription": _text(told["title"]), "fullDescription": _text(asks),
        "help": _text(asks), "defaultConfiguration": {"level": _level(one)},
        "properties": {"metric": one.metric, "severity": one.severity, "rule": one.rule, "limit": one.limit},
    }  # fmt: skip


def _level(one: CheckResult) -> str:
    return LEVELS[one.severity]


def _verdict(results: Results) -> dict[str, Any]:
    said = wording.headline(results)
    kind = VERDICT_KINDS[results.verdict]
    return {
        "ruleId": VERDICT, "kind": kind, "level": "error" if kind == "fail" else "none", "suppressions": [],
        "message": _text(f"{said.word}: {results.verdict_reason or said.means}"),
        "properties": {"verdict": results.verdict},
    }  # fmt: skip


def _result(one: CheckResult, told: dict[str, Any]) -> dict[str, Any]:
    held = one.suppression if one.status == "suppressed" else None
    kind = KINDS.get((one.would_be or "") if held else one.status, "fail")
    facts = {"status": one.status, "observed": one.observed, "low": one.low, "high": one.high, "n": one.n,
             "limit": one.limit, "severity": one.severity}  # fmt: skip
    if one.would_be is not None:
        facts["would_be"] = one.would_be
    return {
        "ruleId": visible(one.id), "kind": kind, "level": _level(one) if kind == "fail" else "none",
        "message": _text(f"{told['title']}: {told['reason'] or told['status'].word}"),
        "suppressions": [_suppression(held)] if held else [],
        "properties": facts,
    }  # fmt: skip


def _suppression(held: RecordedSuppression) -> dict[str, Any]:
    return {"kind": "external", "status": "accepted", "justification": visible(held.reason),
            "properties": {"approver": held.approver, "expires": held.expires}}  # fmt: skip


def _artifact(results: Results) -> dict[str, Any]:
    """The model's file; the results where the model is a function."""
    model = results.subject.model
    if not isinstance(model, ModelFile):
        return {"location": {"uri": RESULTS}, "roles": ["resultFile"]}
    return {
        "location": {"uri": _uri(model.path)}, "roles": ["analysisTarget"],
        "hashes": {"sha-256": model.sha256},
    }  # fmt: skip


def _uri(path: str) -> str:
    windows = PureWindowsPath(path)
    whole = windows.drive and windows.root
    plain = windows.as_posix() if whole or "\\" in path else path
    quoted = quote(plain, safe="/:" if whole else "/", errors="surrogatepass")
    if whole:
        return f"file:///{quoted}" if not plain.startswith("//") else f"file:{quoted}"
    return f"file://{quoted}" if PurePosixPath(plain).is_absolute() else quoted


def _location(artifact: dict[str, Any]) -> dict[str, Any]:
    # A model has no lines, but code scanning shows nothing without one.
    where = {"uri": artifact["location"]["uri"], "index": 0}
    return {"physicalLocation": {"artifactLocation": where, "region": {"startLine": 1}}}


def _fingerprint(rule: str) -> dict[str, str]:
    """The same for the same check of the next run, so that it stays one alert."""
    return {"primaryLocationLineHash": f"{hashlib.sha256(rule.encode()).hexdigest()[:16]}:1"}


def _invocation(results: Results) -> dict[str, Any]:
    run = results.run
    command = [visible(word) for word in run.command or ()]
    found = {
        "executionSuccessful": True, "exitCode": 0 if "--exit-zero" in command else EXIT_CODES[results.verdict],
        "exitCodeDescription": wording.headline(results).word, "commandLine": shlex.join(command),
        "arguments": command[1:], "startTimeUtc": _utc(run.started), "endTimeUtc": _utc(run.ended),
        "toolExecutionNotifications": [*_notices(results)],
    }  # fmt: skip
    return {key: value for key, value in found.items() if value is not None and value != ""}


def _utc(text: Any) -> str | None:
    return None if text is None else str(text).replace("+00:00", "Z")


def _notices(results: Results) -> Any:
    """What a reader of the results must know: checks that broke down, images left out, flags."""
    for check in results.checks:
        if check.status == "error":
            yield {"level": "error", "message": _text(f"{check.id}: {check.reason}"),
                   "associatedRule": {"id": visible(check.id)}}  # fmt: skip
    for failed in results.failed_images:
        yield {"level": "warning", "message": _text(f"{failed.image} was left out: {failed.reason}")}
    yield from ({"level": "warning", "message": _text(flag)} for flag in sections.flags(results))


def _properties(loaded: Loaded) -> dict[str, Any]:
    """Provenance and limits, as in the results."""
    plain: Any = loaded.results.to_json()
    policy = {key: value for key, value in (plain["policy"] or {}).items() if key != "text"}
    keys = ("subject", "settings", "environment", "software", "runtime", "run", "limitations")
    return {**{key: plain[key] for key in keys}, "policy": policy, "results": {"sha256": loaded.digest}}
