"""attestation.sigstore.json: a signed statement about a finished run, which is an in-toto test result.

A Sigstore bundle holds one statement, and a statement one predicate. So the figures lie in the test result, in a field
of its own: in-toto lets producers add fields to a predicate, and readers who do not know one ignore it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from auditkit import __version__
from auditkit.data.atomic_write import write_whole
from auditkit.errors import BadInput, OtherVersion
from auditkit.evidence import envelope
from auditkit.evidence.timestamp import Stamp
from auditkit.records import Json, to_json
from auditkit.regular_files import read_named
from auditkit.report import pipeline
from auditkit.runs.folder import checksums
from auditkit.runs.folder.checksums import ATTESTATION, SIGNED_OFF, SUMS
from auditkit.runs.folder.contents import require_readable, require_unchanged
from auditkit.runs.folder.names import COMMITMENT, RESULTS
from auditkit.runs.folder.results import ModelFile, Results
from auditkit.runs.folder.store import Store

TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
_POLICY = "policy.toml"
# Files of a run that the statement names, where they are there; SHA256SUMS lists all but the last.
_NAMED = (SUMS, RESULTS, "report.html", _POLICY, COMMITMENT, SIGNED_OFF)
_MODEL = "model/"  # before the names of the model's files, which lie elsewhere
_RESULTS = {"passed": "PASSED", "failed": "FAILED", "open": "FAILED", "skipped": "WARNED"}
_MOST_BYTES = 1 << 25  # with thousands of figures


def sign(run: Path, key: envelope.Signer) -> Path:
    """Write the signed statement beside the files of a finished run."""
    if not (run / SUMS).is_file():
        raise BadInput(f"{run} has no {SUMS}, so it is not finished; sign what `auditkit audit` or `evaluate` wrote.")
    require_unchanged(run, "signed")
    payload = json.dumps(statement(run), sort_keys=True, separators=(",", ":")).encode()
    path = run / ATTESTATION
    write_whole(path, envelope.Bundle.signed(payload, key).to_json())
    return path


def add_stamp(run: Path, token: Path) -> Path:
    """Add a time stamp over the signature to the attestation of a run."""
    path = run / ATTESTATION
    require_readable(run)
    if not path.is_file():
        raise BadInput(f"{run} is not signed; a time stamp is one over its signature. Sign it first.")
    bundle = read(run)
    content = read_named(token, _MOST_BYTES)
    for problem in Stamp.parse(content, token).problems(bundle.signature, f"the signature of {run}"):
        raise BadInput(f"{token}: {problem}.")
    write_whole(path, replace(bundle, timestamps=(*bundle.timestamps, content)).to_json())
    return path


def statement(run: Path) -> dict[str, Json]:
    """What is stated about a run: its files and the model's by their digests, the checks, and the figures."""
    results = Store(run).results()
    subjects: list[Json] = [_descriptor(*entry) for entry in (_files(run) | _model_files(results)).items()]
    return {"_type": envelope.STATEMENT_TYPE, "subject": subjects, "predicateType": TEST_RESULT,
            "predicate": _predicate(results)}  # fmt: skip


def check(run: Path, trusted: Sequence[envelope.Verifier]) -> tuple[list[str], list[str]]:
    """Why the attestation of a run does not hold, and what of it could not be checked."""
    if not (run / ATTESTATION).is_file():
        return [f"{ATTESTATION} is missing, so nobody has signed the run"], []
    bundle = read(run)
    if not bundle.verified(trusted):
        return [f"{ATTESTATION} is not signed by a key that you trust"], []
    signed = envelope.statement_of(bundle.payload, TEST_RESULT, ATTESTATION)
    digests, files, unchecked = envelope.subjects_of(signed, ATTESTATION), _files(run), list[str]()
    try:
        results = Store(run).results()
        files |= _model_files(results)
    except OtherVersion as error:
        files |= {name: sha256 for name, sha256 in digests.items() if name.startswith(_MODEL)}
        return _differences(digests, files), [f"whether {ATTESTATION} states what {RESULTS} holds: {error}"]
    problems = _differences(digests, files)
    if not problems and signed.get("predicate") != _predicate(results):
        sentence = f"{ATTESTATION} states other checks or figures than {RESULTS}"
        if results.tool.version == __version__:
            problems.append(sentence)
        else:
            unchecked.append(f"{sentence}, as this version words them: auditkit {results.tool.version} wrote it")
    return problems, unchecked


def _differences(digests: Mapping[str, str], files: Mapping[str, str]) -> list[str]:
    """Files that are not signed, or not as they are now."""
    texts = [f"{name} is not signed; sign the run again" for name in files if name not in digests]
    return texts + [f"{name} is not the file that was signed" for name in digests if digests[name] != files.get(name)]


def read(run: Path) -> envelope.Bundle:
    """The attestation of a run; who signed it is not checked."""
    return envelope.Bundle.parse(read_named(run / ATTESTATION, _MOST_BYTES), ATTESTATION)


def _files(run: Path) -> dict[str, str]:
    return {name: checksums.digest(run / name) for name in _NAMED if (run / name).is_file()}


def _model_files(results: Results) -> dict[str, str]:
    model = results.subject.model
    if not isinstance(model, ModelFile):
        return {}
    files = {PurePath(model.path.replace("\\", "/")).name: model.sha256, **(model.external or {})}
    return {f"{_MODEL}{name}": sha256 for name, sha256 in files.items()}


def _descriptor(name: str, sha256: str) -> Json:
    return {"name": name, "digest": {"sha256": sha256}}


def _predicate(results: Results) -> dict[str, Json]:
    """The test result: an open check counts as failed, as in JUnit; without limits there is nothing but a warning."""
    verdict, *entries = pipeline.entries(results)
    tests: dict[str, list[Json]] = {"PASSED": [], "WARNED": [], "FAILED": []}
    for entry in entries:
        tests[_RESULTS[entry.outcome]].append(entry.id)
    policy, gate = results.policy, results.finding_gate
    names = ("bundle", "infill", "value", "low", "high", "interval", "n")
    figures = [{"metric": metric.name, **{name: getattr(metric, name) for name in names}} for metric in results.metrics]
    return {
        "result": "FAILED" if gate is not None and gate.status != "pass" else _RESULTS[verdict.outcome],
        "configuration": [_descriptor(_POLICY, policy.sha256)] if policy else [],
        "passedTests": tests["PASSED"], "warnedTests": tests["WARNED"], "failedTests": tests["FAILED"],
        "auditkit": {"version": results.tool.version, "verdict": results.verdict, "figures": to_json(figures)},
    }  # fmt: skip
