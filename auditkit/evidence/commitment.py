"""commitment.json: what an audit fixed before the model saw the first image.

A policy that was chosen after the figures were known is visible where somebody else can say when this file existed: the
one it was sent to, or a time stamp.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from auditkit.data.atomic_write import write_whole
from auditkit.errors import BadInput
from auditkit.evidence import salt as salts
from auditkit.evidence.timestamp import Stamp
from auditkit.records import from_json, parse_object, to_object
from auditkit.regular_files import read_named
from auditkit.runs.folder import provenance
from auditkit.runs.folder.names import COMMITMENT, STAMP
from auditkit.runs.folder.results import ModelFile, PolicyName, Results

_MOST_BYTES = 1 << 20
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


@dataclass(frozen=True)
class Commitment:
    """Digests of what decides an audit, and when they were written down."""

    policy: PolicyName
    model: str  # its identity, external data included
    images: str  # the digest of their list
    count: int
    salt: str
    written: str = ""
    schema_version: int = 2

    @classmethod
    def of(cls, results: Results) -> "Commitment":
        """What the results should have been committed to."""
        subject, taken, policy = results.subject, results.run.taken, results.policy
        images, count = (taken.digest, taken.count) if taken else (subject.images.digest, subject.images.count)
        name = PolicyName(policy.name, policy.sha256) if policy else PolicyName(None, None)
        model = subject.model.identity if isinstance(subject.model, ModelFile) else subject.model
        return cls(name, model, images, count, results.run.salt or "")

    def difference(self, other: "Commitment") -> str:
        """What another one fixes differently; empty if they agree but for the time."""
        names = ("policy", "model", "images", "count", "salt")
        return next((name for name in names if getattr(self, name) != getattr(other, name)), "")


def parse(content: bytes, where: object) -> Commitment:
    """The commitment in a JSON text."""
    commitment = from_json(Commitment, parse_object(content, where), where)
    if not _TIME.fullmatch(commitment.written):  # times are compared as texts
        raise BadInput(f"{where} does not say when it was written, such as 2026-01-31T09:30:00Z.")
    return commitment


def salt_of(path: Path) -> str | None:
    """The salt that a file commits to; None if there is no file."""
    return parse(read_named(path, _MOST_BYTES), path).salt if path.exists() else None


def salt_of_run(files: Mapping[str, bytes]) -> str:
    """The salt of a run that carries these files; a time stamp changes it, so that it cannot be known before."""
    salt = salts.parse_salt(parse(files[COMMITMENT], COMMITMENT).salt)
    if STAMP not in files:
        return salt
    return salts.stamped_salt(salt, Stamp.parse(files[STAMP], STAMP).attributes)


def commit(path: Path, commitment: Commitment) -> dict[str, bytes]:
    """Write the commitment to a file, or read the one that agrees with it; the files that the run should carry."""
    if not path.exists():
        plain = to_object(replace(commitment, written=provenance.now()))
        write_whole(path, f"{json.dumps(plain, indent=2, sort_keys=True)}\n".encode(), BadInput)
    content = read_named(path, _MOST_BYTES)
    difference = commitment.difference(parse(content, path))
    if difference:
        raise BadInput(f"{path} commits to another {difference} and will not be overwritten; choose another file.")
    stamp = path.with_suffix(Path(STAMP).suffix)
    if not stamp.exists():
        return {COMMITMENT: content}
    token = read_named(stamp, _MOST_BYTES)
    for problem in Stamp.parse(token, stamp).problems(content, path.name):
        raise BadInput(f"{stamp} cannot be used: {problem}. Have {path} stamped, or remove {stamp}.")
    return {COMMITMENT: content, STAMP: token}


def carry(files: Mapping[str, bytes], run: Path, started: str) -> None:
    """Put the commitment into the folder of a run, which must have been started after it was written."""
    for name, content in files.items():
        if name == COMMITMENT and parse(content, name).written > started:
            raise BadInput(f"{run} was started before the commitment was written; give a new folder.")
        write_whole(run / name, content)
