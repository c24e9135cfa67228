"""Checks what was added to a run after it was written, or before: signature and sign-off."""

from collections.abc import Sequence
from pathlib import Path

from auditkit.evidence import attestation
from auditkit.evidence.envelope import Verifier
from auditkit.runs.folder import signoff
from auditkit.verdict.verify.run_record import Outcome


def check_signature(run: Path, trusted: Sequence[Verifier]) -> Outcome:
    """Whether a trusted key signed the run."""
    if not trusted:
        return Outcome("", (), ["who signed the run: give --trust FILE with the signer's public key"])
    return Outcome("is that of a key that you trust, for these files", *attestation.check(run, trusted))


def check_sign_off(run: Path) -> Outcome:
    """Whether the decision is about these files."""
    signed, problems = signoff.checked(run)
    return Outcome(f"{signed.decision} by {signed.name}, {signed.role}, on {signed.date}, for these files", problems)
