"""signoff.json: who decided what about a finished run, beside its files."""

import json
import os
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal, get_args

from auditkit.data.atomic_write import write_whole
from auditkit.errors import BadInput
from auditkit.records import from_json, parse_object, to_object
from auditkit.regular_files import read_regular
from auditkit.runs.folder.checksums import SIGNED_OFF, SUMS, digest
from auditkit.runs.folder.contents import require_unchanged

Decision = Literal["accepted", "accepted with conditions", "rejected"]
DECISIONS: tuple[Decision, ...] = get_args(Decision)
_MOST_BYTES = 2**20
_LONGEST = 2000  # characters of a name, a role or a comment


@dataclass(frozen=True)
class SignOff:
    """A decision about a run, and the digest of the list of its files."""

    name: str
    role: str
    decision: Decision
    date: str
    sums_sha256: str
    comment: str = ""
    schema_version: int = 1

    def __post_init__(self) -> None:
        for term in ("name", "role", "comment"):
            text = getattr(self, term)
            if len(text) > _LONGEST or not (text.isprintable() and (text.strip() or term == "comment")):
                raise ValueError(f"{term} must be text of at most {_LONGEST} characters on one line.")
        date.fromisoformat(self.date)


def sign_off(run: Path, name: str, role: str, decision: str, day: date, comment: str = "") -> SignOff:
    """Write a decision into the folder of a sealed run; an earlier one is never overwritten."""
    path = run / SIGNED_OFF
    if os.path.lexists(path):
        raise BadInput(f"{path} already exists. To decide again, remove it first.")
    if not (run / SUMS).is_file():
        raise BadInput(f"{run} has no {SUMS}, so it is not a finished audit; sign off what `auditkit audit` wrote.")
    require_unchanged(run, "signed off")
    if decision not in DECISIONS:
        raise BadInput(f"there is no decision '{decision}'; use {', '.join(DECISIONS)}.")
    signed = from_json(SignOff, {"name": name, "role": role, "decision": decision, "date": day.isoformat(),
                                 "sums_sha256": digest(run / SUMS), "comment": comment}, "sign-off")  # fmt: skip
    write_whole(path, f"{json.dumps(to_object(signed), indent=2, sort_keys=True)}\n".encode(), BadInput)
    return signed


def read_sign_off(run: Path) -> SignOff | None:
    """The decision about a run; None where there is none."""
    path = run / SIGNED_OFF
    if not path.is_file():
        return None
    return from_json(SignOff, parse_object(read_regular(path, _MOST_BYTES), SIGNED_OFF), SIGNED_OFF)


def checked(run: Path) -> tuple[SignOff, list[str]]:
    """The decision about a run, and why it does not hold for the files that it lies beside."""
    signed = read_sign_off(run)
    if signed is None:
        raise BadInput(f"{run} has no {SIGNED_OFF}.")
    other = signed.sums_sha256 != digest(run / SUMS)
    return signed, [f"{SIGNED_OFF} was written for another {SUMS}"] if other else []
