"""A run as OSCAL 1.1 assessment results: an observation for each entry of a pipeline, a finding where it is decided.

OSCAL knows two states. Satisfied is what passed; not satisfied is also what the verdict counts and does not know to
hold, with the reason "other". What somebody answers for, what is for information and what was not assessed without
being required is an observation alone, which says so.
"""

import json
import re

from auditkit.errors import BadInput
from auditkit.report import answers, pipeline, sections, wording
from auditkit.report.identifiers import identifier, line
from auditkit.report.load_run import Loaded
from auditkit.report.markdown import plain
from auditkit.report.notices import notices
from auditkit.report.pipeline import Entry
from auditkit.runs.folder.names import RESULTS
from auditkit.runs.folder.results import ModelFile

VERSION = "1.1.3"
_NAMESPACE = "urn:auditkit:oscal"
_REASONS = {"passed": "pass", "failed": "fail"}
_NOT_IN_TOKENS = re.compile(r"[^A-Za-z0-9._-]+")

_Object = dict[str, object]  # of JSON


def render_oscal(loaded: Loaded) -> str:
    """The assessment results."""
    run, name = loaded.results.run, plain(sections.subject_name(loaded.results))
    title = f"{wording.report_title(loaded.results)} {name}"
    if run.started is None or run.written is None:
        raise BadInput(f"{loaded.folder} has no times, which OSCAL needs; give a run of audit, not of evaluate.")
    results: _Object = {
        "uuid": identifier(loaded, "assessment-results"),
        "metadata": {"title": title, "last-modified": run.written, "version": loaded.results.tool.version,
                     "oscal-version": VERSION},
        "import-ap": {"href": f"#{identifier(loaded, 'policy')}"},
        "results": [_result(loaded, title, run.started, run.written)],
        "back-matter": {"resources": _resources(loaded)},
    }  # fmt: skip
    return json.dumps({"assessment-results": results}, indent=2, allow_nan=False) + "\n"


def _result(loaded: Loaded, title: str, started: str, written: str) -> _Object:
    results, entries = loaded.results, pipeline.entries(loaded.results)
    decided = [entry for entry in entries if entry.status == "pass" or entry.outcome in pipeline.RED]
    gaps = " ".join(answers.not_assessed(results))
    remarks = [
        *answers.gate(results),
        *map(str, notices(results)),
        *([f"Not assessed: {gaps}"] if gaps else []),
    ]
    component: _Object = {
        "uuid": identifier(loaded, "model"), "type": "software", "title": plain(sections.subject_name(results)),
        "description": "The audited model.", "status": {"state": "other", "remarks": "As it was given to the audit."},
    }  # fmt: skip
    model = results.subject.model
    if isinstance(model, ModelFile):
        component["props"] = [_property("sha256", model.sha256)]
    controls = [{"control-id": _token(entry.id)} for entry in {_token(entry.id): entry for entry in entries}.values()]
    return {
        "uuid": identifier(loaded, "result"), "title": title, "start": started,
        **({"end": written} if results.run.preliminary is None else {}),
        "description": plain(f"{wording.headline(results).word}: {results.verdict_reason or 'no policy was applied.'}"),
        "props": [_property("verdict", entries[0].status)],
        "local-definitions": {"components": [component]},
        "reviewed-controls": {
            "description": "Controls are the checks of the policy, the preconditions of a verdict and the examination.",
            "control-selections": [{"include-controls": controls}],
        },
        "observations": [_observation(loaded, entry, written) for entry in entries],
        **({"findings": [_finding(loaded, entry) for entry in decided]} if decided else {}),
        **({"remarks": plain(" ".join(remarks))} if remarks else {}),
    }  # fmt: skip


def _observation(loaded: Loaded, entry: Entry, collected: str) -> _Object:
    accepted = " ".join(f"{what}: {value}." for what, value in entry.accepted.items())
    return {
        "uuid": identifier(loaded, "observation", entry.id), "title": plain(entry.requirement),
        "description": plain(entry.message), "methods": ["TEST"], "collected": collected,
        "props": [_property("id", entry.id), _property("status", entry.status), _property("outcome", entry.outcome),
                  *(_property(_token(what), value) for what, value in entry.facts.items() if line(value))],
        "subjects": [{"subject-uuid": identifier(loaded, "model"), "type": "component"}],
        "relevant-evidence": [{"href": f"#{identifier(loaded, RESULTS)}", "description": "The figures of the run."}],
        **({"remarks": f"Accepted. {plain(accepted)}"} if accepted else {}),
    }  # fmt: skip


def _finding(loaded: Loaded, entry: Entry) -> _Object:
    status: _Object = {"state": "satisfied" if entry.status == "pass" else "not-satisfied",
                       "reason": _REASONS.get(entry.outcome, "other")}  # fmt: skip
    if entry.outcome == "open":
        status["remarks"] = f"{wording.status(entry.status).word}: it is not known to hold."
    return {
        "uuid": identifier(loaded, "finding", entry.id), "title": plain(entry.requirement),
        "description": plain(entry.message),
        "props": [_property("id", entry.id), _property("status", entry.status)],
        "target": {"type": "objective-id", "target-id": _token(entry.id), "status": status},
        "related-observations": [{"observation-uuid": identifier(loaded, "observation", entry.id)}],
    }  # fmt: skip


def _resources(loaded: Loaded) -> list[_Object]:
    policy = loaded.results.policy
    plan: _Object = {"uuid": identifier(loaded, "policy"),
                     "title": plain(f"Policy {policy.name if policy else 'none'}"),
                     "description": plain(policy.description if policy else "") or "What the audit asks."}  # fmt: skip
    if policy:
        plan["rlinks"] = [_file("policy.toml", policy.sha256)]
    return [plan, {"uuid": identifier(loaded, RESULTS), "title": "Results of the run",
                   "rlinks": [_file(RESULTS, loaded.digest)]}]  # fmt: skip


def _file(name: str, sha256: str) -> _Object:
    return {"href": name, "hashes": [{"algorithm": "SHA-256", "value": sha256}]}


def _property(name: str, value: str) -> _Object:
    return {"name": name, "ns": _NAMESPACE, "value": line(value)}


def _token(text: str) -> str:
    """A name as OSCAL's identifiers are written."""
    token = _NOT_IN_TOKENS.sub("-", text).strip("-")
    return token if token[:1].isalpha() else f"_{token}"
