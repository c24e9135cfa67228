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
from auditkit.runs.folder.store import RESULTS

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
VERDICT = "auditkit:verdict"  # a policy's own checks have no colon in their names
LEVELS = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "note"}
KINDS = {"pass": "pass", "fail": "fail", "inconclusive": "open", "not assessed": "review", "error": "open"}
# The verdict's rule asks for a pass: an inconclusive one fails it, for a reader that looks for failures alone.
VERDICT_KINDS = {"pass": "pass", "measured": "informational", "None": "open"}
EXIT_CODES = {"pass": 0, "measured": 0, "None": 0, "fail": 1, "inconclusive": 3}


def render_sarif(loaded: Loaded) -> str:
    """The log, whose results a code scanning service can show."""
    results = loaded.results
    told = [(one, sections.checks({"checks": [one]})[0]) for one in results["checks"]]
    rules = [_verdict_rule(), *(_rule(one, text) for one, text in told)]
    found = [_verdict(results), *(_result(one, text) for one, text in told)]
    where = _artifact(results)
    for index, one in enumerate(found):
        one |= {"ruleIndex": index, "locations": [_location(where)], "partialFingerprints": _fingerprint(one["ruleId"])}
    driver = {"name": "auditkit", "version": str(results["tool"].get("version")), "rules": rules}
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


def _rule(one: sections.Results, told: dict[str, Any]) -> dict[str, Any]:
    asks = " ".join(filter(None, (told["metric"] or told["title"], told["limit"])))
    return {
        "id": visible(str(one["id"])), "shortDescription": _text(told["title"]), "fullDescription": _text(asks),
        "help": _text(asks), "defaultConfiguration": {"level": _level(one)},
        "properties": {"metric": one.get("metric"), "severity": one.get("severity"), "rule": one.get("rule"),
                       "limit": one.get("limit")},
    }  # fmt: skip


def _level(one: sections.Results) -> str:
    return LEVELS.get(str(one.get("severity")), "error")


def _verdict(results: sections.Results) -> dict[str, Any]:
    said = wording.headline(results)
    kind = VERDICT_KINDS.get(str(results["verdict"]), "fail")
    return {
        "ruleId": VERDICT, "kind": kind, "level": "error" if kind == "fail" else "none", "suppressions": [],
        "message": _text(f"{said.word}: {results['verdict_reason'] or said.means}"),
        "properties": {"verdict": results["verdict"]},
    }  # fmt: skip


def _result(one: sections.Results, told: dict[str, Any]) -> dict[str, Any]:
    held = one.get("suppression") if one["status"] == "suppressed" else None
    kind = KINDS.get(str(one.get("would_be") if held else one["status"]), "fail")
    said = ("status", "would_be", "observed", "low", "high", "n", "limit", "severity")
    return {
        "ruleId": visible(str(one["id"])), "kind": kind, "level": _level(one) if kind == "fail" else "none",
        "message": _text(f"{told['title']}: {told['reason'] or told['status'].word}"),
        "suppressions": [_suppression(held)] if held else [],
        "properties": {key: one[key] for key in said if key in one},
    }  # fmt: skip


def _suppression(held: sections.Results) -> dict[str, Any]:
    said = {key: held.get(key) for key in ("approver", "expires")}
    return {"kind": "external", "status": "accepted", "justification": visible(str(held.get("reason"))),
            "properties": said}  # fmt: skip


def _artifact(results: sections.Results) -> dict[str, Any]:
    """The model's file; the results where the model is a function."""
    model = results["subject"]["model"]
    if not isinstance(model, dict):
        return {"location": {"uri": RESULTS}, "roles": ["resultFile"]}
    return {
        "location": {"uri": _uri(str(model["path"]))}, "roles": ["analysisTarget"],
        "hashes": {"sha-256": model["sha256"]},
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


def _invocation(results: sections.Results) -> dict[str, Any]:
    run, said = results["run"], str(results["verdict"])
    command = [visible(str(word)) for word in run.get("command") or ()]
    found = {
        "executionSuccessful": True, "exitCode": 0 if "--exit-zero" in command else EXIT_CODES.get(said, 1),
        "exitCodeDescription": wording.headline(results).word, "commandLine": shlex.join(command),
        "arguments": command[1:], "startTimeUtc": _utc(run.get("started")), "endTimeUtc": _utc(run.get("ended")),
        "toolExecutionNotifications": [*_notices(results)],
    }  # fmt: skip
    return {key: value for key, value in found.items() if value is not None and value != ""}


def _utc(text: Any) -> str | None:
    return None if text is None else str(text).replace("+00:00", "Z")


def _notices(results: sections.Results) -> Any:
    """What a reader of the results must know: checks that broke down, images left out, flags."""
    for one in results["checks"]:
        if one["status"] == "error":
            yield {"level": "error", "message": _text(f"{one['id']}: {one.get('reason')}"),
                   "associatedRule": {"id": visible(str(one["id"]))}}  # fmt: skip
    for one in results["failed_images"]:
        yield {"level": "warning", "message": _text(f"{one['image']} was left out: {one['reason']}")}
    yield from ({"level": "warning", "message": _text(flag)} for flag in results["flags"])


def _properties(loaded: Loaded) -> dict[str, Any]:
    """Provenance and limits, as in the results."""
    results = loaded.results
    policy = {key: value for key, value in (results["policy"] or {}).items() if key != "text"}
    said = {key: results.get(key) for key in ("subject", "settings", "environment", "software", "runtime", "run")}
    return {**said, "policy": policy, "limitations": results["limitations"], "results": {"sha256": loaded.digest}}
