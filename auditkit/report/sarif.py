"""A run as SARIF 2.1.0: a rule and a result for the verdict and for each check, all about the model's file."""

import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath, PureWindowsPath
from urllib.parse import quote

from auditkit.metrics.table import title
from auditkit.report import sections, wording
from auditkit.report.formatting import visible
from auditkit.report.load_run import Loaded
from auditkit.runs.folder.figures import Verdict
from auditkit.runs.folder.results import CheckResult, ModelFile, Results
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

_Object = dict[str, object]  # of JSON


def render_sarif(loaded: Loaded) -> str:
    """The log, whose results a code scanning service can show."""
    results = loaded.results
    rules = [_verdict_rule(), *map(_rule, results.checks)]
    uri, artifact = _artifact(results)
    outcomes = [_verdict(results), *map(_result, results.checks)]
    entries = [_located(entry, index, uri) for index, entry in enumerate(outcomes)]
    driver = {"name": "auditkit", "version": results.tool.version, "rules": rules}
    run = {
        "tool": {"driver": driver}, "invocations": [_invocation(results)], "artifacts": [artifact],
        "results": entries, "properties": _properties(loaded),
    }  # fmt: skip
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def _text(text: str) -> dict[str, str]:
    """A message; braces would be places to fill in, and a name in brackets a link."""
    return {"text": visible(text).replace("{", "{{").replace("}", "}}").replace("](", "] (")}


def _verdict_rule() -> _Object:
    asks = "The policy gives the run its verdict: every check that it counts was passed."
    return {
        "id": VERDICT, "shortDescription": _text("Verdict of the policy"), "fullDescription": _text(asks),
        "help": _text(asks), "defaultConfiguration": {"level": "error"},
    }  # fmt: skip


def _rule(check: CheckResult) -> _Object:
    asks = " ".join(filter(None, (title(check.metric) or check.title or check.id, sections.limit(check))))
    return {
        "id": visible(check.id), "shortDescription": _text(check.title or check.id), "fullDescription": _text(asks),
        "help": _text(asks), "defaultConfiguration": {"level": LEVELS[check.severity]},
        "properties": {"metric": check.metric, "severity": check.severity, "rule": check.rule, "limit": check.limit},
    }  # fmt: skip


def _verdict(results: Results) -> _Object:
    headline, kind = wording.headline(results), VERDICT_KINDS[results.verdict]
    return {
        "ruleId": VERDICT, "kind": kind, "level": "error" if kind == "fail" else "none", "suppressions": [],
        "message": _text(f"{headline.word}: {results.verdict_reason or headline.means}"),
        "properties": {"verdict": results.verdict},
    }  # fmt: skip


def _result(check: CheckResult) -> _Object:
    suppression = check.suppression if check.status == "suppressed" else None
    suppressions = [{"kind": "external", "status": "accepted", "justification": visible(suppression.reason),
                     "properties": {"approver": suppression.approver, "expires": suppression.expires}}
                    ] if suppression else []  # fmt: skip
    kind = KINDS.get((check.would_be or "") if suppression else check.status, "fail")
    facts: _Object = {"status": check.status, "observed": check.observed, "low": check.low, "high": check.high,
                      "n": check.n, "limit": check.limit, "severity": check.severity}  # fmt: skip
    if check.would_be is not None:
        facts["would_be"] = check.would_be
    return {
        "ruleId": visible(check.id), "kind": kind, "level": LEVELS[check.severity] if kind == "fail" else "none",
        "message": _text(f"{check.title or check.id}: {check.reason or wording.status(check.status).word}"),
        "suppressions": suppressions, "properties": facts,
    }  # fmt: skip


def _artifact(results: Results) -> tuple[str, _Object]:
    """The model's file; the results where the model is a function. Its URI, and what SARIF says of it."""
    model = results.subject.model
    if not isinstance(model, ModelFile):
        return RESULTS, {"location": {"uri": RESULTS}, "roles": ["resultFile"]}
    uri = _uri(model.path)
    return uri, {"location": {"uri": uri}, "roles": ["analysisTarget"], "hashes": {"sha-256": model.sha256}}


def _uri(path: str) -> str:
    windows = PureWindowsPath(path)
    absolute = windows.drive and windows.root
    plain = windows.as_posix() if absolute or "\\" in path else path
    quoted = quote(plain, safe="/:" if absolute else "/", errors="surrogatepass")
    if absolute:
        return f"file:///{quoted}" if not plain.startswith("//") else f"file:{quoted}"
    return f"file://{quoted}" if PurePosixPath(plain).is_absolute() else quoted


def _located(entry: _Object, index: int, uri: str) -> _Object:
    # A model has no lines, but code scanning shows nothing without one.
    location = {"artifactLocation": {"uri": uri, "index": 0}, "region": {"startLine": 1}}
    # The same for the same check of the next run, so that it stays one alert.
    fingerprint = f"{hashlib.sha256(str(entry['ruleId']).encode()).hexdigest()[:16]}:1"
    return {**entry, "ruleIndex": index, "locations": [{"physicalLocation": location}],
            "partialFingerprints": {"primaryLocationLineHash": fingerprint}}  # fmt: skip


def _invocation(results: Results) -> _Object:
    run = results.run
    command = [visible(word) for word in run.command or ()]
    invocation = {
        "executionSuccessful": True, "exitCode": 0 if "--exit-zero" in command else EXIT_CODES[results.verdict],
        "exitCodeDescription": wording.headline(results).word, "commandLine": shlex.join(command),
        "arguments": command[1:], "startTimeUtc": (run.started or "").replace("+00:00", "Z"),
        "endTimeUtc": (run.ended or "").replace("+00:00", "Z"), "toolExecutionNotifications": [*_notices(results)],
    }  # fmt: skip
    return {key: value for key, value in invocation.items() if value != ""}


def _notices(results: Results) -> Iterator[_Object]:
    """What a reader of the results must know: checks that broke down, images left out, flags."""
    for check in results.checks:
        if check.status == "error":
            yield {"level": "error", "message": _text(f"{check.id}: {check.reason}"),
                   "associatedRule": {"id": visible(check.id)}}  # fmt: skip
    for failed in results.failed_images:
        yield {"level": "warning", "message": _text(f"{failed.image} was left out: {failed.reason}")}
    for flag in sections.flags(results):
        yield {"level": "warning", "message": _text(flag)}


def _properties(loaded: Loaded) -> _Object:
    """Provenance and limits, as in the results."""
    plain = loaded.results.to_json()
    policy = plain["policy"] if isinstance(plain["policy"], dict) else {}
    policy.pop("text", None)
    keys = ("subject", "settings", "environment", "software", "runtime", "run", "limitations")
    return {**{key: plain[key] for key in keys}, "policy": policy, "results": {"sha256": loaded.digest}}
