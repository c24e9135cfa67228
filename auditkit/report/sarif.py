"""A run as SARIF 2.1.0: a rule for each entry of a pipeline, and a result for each problem, all about the model's file.

Code scanning of GitHub shows every result as an alert, also one that passed. So only what the verdict counts is a
result, and what somebody answers for; a failed or open verdict is one where no failed check accounts for it.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from urllib.parse import quote

from auditkit.report import answers, pipeline, sections, wording
from auditkit.report.formatting import visible
from auditkit.report.load_run import Loaded
from auditkit.report.markdown import plain
from auditkit.report.notices import notices
from auditkit.report.pipeline import VERDICT, Entry
from auditkit.runs.folder.names import RESULTS
from auditkit.runs.folder.results import ModelFile, Results

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "note"}
KINDS = {"inconclusive": "open", "not assessed": "review", "error": "open"}
ROOT = "%SRCROOT%"

_Object = dict[str, object]  # of JSON


def render_sarif(loaded: Loaded) -> str:
    """The log, whose results a code scanning service can show."""
    results = loaded.results
    entries = pipeline.entries(results)
    rules = [_rule(entry) for entry in {entry.rule: entry for entry in entries}.values()]
    indices = {rule["id"]: index for index, rule in enumerate(rules)}
    location, artifact = _artifact(results)
    shown = [entry for entry in entries if _is_problem(entry, results)]
    driver = {"name": "auditkit", "version": results.tool.version, "rules": rules}
    run: _Object = {
        "tool": {"driver": driver}, "invocations": [_invocation(results, entries)], "artifacts": [artifact],
        "results": [_result(entry, location) | {"ruleIndex": indices[visible(entry.rule)]} for entry in shown],
        "properties": _properties(loaded) | {"statuses": {visible(entry.id): entry.status for entry in entries}},
    }  # fmt: skip
    if "uriBaseId" in location:
        run["originalUriBaseIds"] = {ROOT: {"description": {"text": "The folder that the command was run in."}}}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def _text(text: str) -> dict[str, str]:
    """A message; braces would be places to fill in, and a name in brackets a link."""
    return {"text": _unfilled(visible(text)).replace("](", "] (")}


def _unfilled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _rule(entry: Entry) -> _Object:
    markdown = (
        f"**{plain(entry.requirement)}**\n\n{plain(entry.help)}\n\nSee `{entry.page}` in the documentation of auditkit."
    )
    return {
        "id": visible(entry.rule), "shortDescription": _text(entry.requirement), "fullDescription": _text(entry.help),
        "help": {**_text(f"{entry.requirement}. {entry.help} See {entry.page}."), "markdown": _unfilled(markdown)},
        "helpUri": entry.page, "defaultConfiguration": {"level": LEVELS[entry.severity]},
    }  # fmt: skip


def _is_problem(entry: Entry, results: Results) -> bool:
    if entry.rule == VERDICT:
        return entry.outcome in pipeline.RED and not pipeline.accounts_for(results, "failed")
    return entry.outcome in pipeline.RED or bool(entry.accepted) or entry.status == pipeline.FOUND


def _result(entry: Entry, location: _Object) -> _Object:
    # The verdict's rule asks for a pass: an inconclusive one fails it, for a reader that looks for failures alone.
    kind = "fail" if entry.rule == VERDICT else KINDS.get(entry.status, "fail")
    alert = entry.outcome in pipeline.RED or entry.status == pipeline.FOUND
    level = LEVELS[entry.severity] if alert else "note"
    accepted = dict(entry.accepted)
    suppressions = [{"kind": "external", "status": "accepted", "justification": visible(accepted.pop("reason")),
                     "properties": accepted}] if accepted else []  # fmt: skip
    # A model has no lines, but code scanning shows nothing without one.
    at = {"artifactLocation": {**location, "index": 0}, "region": {"startLine": 1}}
    # The same for the same check of the next run, so that it stays one alert.
    fingerprint = f"{hashlib.sha256(entry.id.encode(errors='surrogatepass')).hexdigest()[:16]}:1"
    return {
        "ruleId": visible(entry.rule), "kind": kind, "level": level if kind == "fail" else "none",
        "message": _text(entry.message), "suppressions": suppressions,
        "locations": [{"physicalLocation": at}], "partialFingerprints": {"primaryLocationLineHash": fingerprint},
        "properties": {"status": entry.status, **entry.facts},
    }  # fmt: skip


def _artifact(results: Results) -> tuple[_Object, _Object]:
    """The location of the model's file, or of the results where the model is a function, and what SARIF says of it."""
    model = results.subject.model
    if not isinstance(model, ModelFile):
        return {"uri": RESULTS}, {"location": {"uri": RESULTS}, "roles": ["resultFile"]}
    uri = _uri(model.path)
    location: _Object = {"uri": uri} if uri.startswith("file:") else {"uri": uri, "uriBaseId": ROOT}
    return location, {"location": location, "roles": ["analysisTarget"], "hashes": {"sha-256": model.sha256}}


def _uri(path: str) -> str:
    windows = PureWindowsPath(path)
    absolute = windows.drive and windows.root
    plain = windows.as_posix() if absolute or "\\" in path else path
    quoted = quote(plain, safe="/:" if absolute else "/", errors="surrogatepass")
    if absolute:
        return f"file:///{quoted}" if not plain.startswith("//") else f"file:{quoted}"
    return f"file://{quoted}" if PurePosixPath(plain).is_absolute() else quoted


def _invocation(results: Results, entries: Sequence[Entry]) -> _Object:
    run = results.run
    command = [visible(word) for word in run.command or ()]
    passes = "--exit-zero" in command or results.policy is None
    finished = run.preliminary is None
    code = 0 if passes else results.exit_code
    invocation = {
        "executionSuccessful": finished, **({"exitCode": code} if finished else {}),
        "exitCodeDescription": ". ".join([wording.headline(results).word, *answers.gate(results)]),
        "commandLine": shlex.join(command),
        "arguments": command[1:], "startTimeUtc": (run.started or "").replace("+00:00", "Z"),
        "endTimeUtc": (run.ended or "").replace("+00:00", "Z"),
        "toolExecutionNotifications": [*_notices(results, entries)],
    }  # fmt: skip
    return {key: value for key, value in invocation.items() if value != ""}


def _notices(results: Results, entries: Sequence[Entry]) -> Iterator[_Object]:
    """What a reader of the results must know: notices, checks that broke down, images left out, flags."""
    for notice in notices(results):
        yield {"level": "warning", "message": _text(str(notice))}
    for entry in entries:
        if entry.status == "error":
            yield {"level": "error" if entry.outcome in pipeline.RED else "warning",
                   "message": _text(entry.message),
                   "associatedRule": {"id": visible(entry.rule)}}  # fmt: skip
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
