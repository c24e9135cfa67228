"""Checks what vouches for a run: signature, sign-off, commitment, and the time stamps of signature and commitment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from auditkit.evidence import attestation, commitment
from auditkit.evidence.envelope import Verifier
from auditkit.evidence.timestamp import Authority, Stamp
from auditkit.runs.folder import provenance, signoff
from auditkit.runs.folder.checksums import ATTESTATION, SIGNED_OFF
from auditkit.runs.folder.names import COMMITMENT, STAMP
from auditkit.runs.folder.results import Results
from auditkit.verdict.verify.run_record import Outcome


@dataclass(frozen=True)
class Trust:
    """Whom the reader trusts: signers, one of whom must have signed, and authorities that stamp times."""

    keys: Sequence[Verifier] = ()
    authorities: Sequence[Authority] = ()


def checks_of(run: Path, trust: Trust) -> dict[str, Callable[[], Outcome]]:
    """The checks of what lies in the folder, by name."""
    checks = dict[str, Callable[[], Outcome]]()
    if trust.keys or (run / ATTESTATION).exists():
        checks["signature"] = lambda: _check_signature(run, trust)
    if (run / SIGNED_OFF).exists():
        checks["sign-off"] = lambda: _check_sign_off(run)
    if (run / provenance.PROVENANCE).exists():
        checks["provenance"] = lambda: _check_provenance(run)
    return checks


def _check_signature(run: Path, trust: Trust) -> Outcome:
    """Whether a trusted key signed the run, and when an authority saw the signature."""
    problems, unchecked, times = list[str](), list[str](), list[str]()
    if trust.keys:
        problems, unchecked = attestation.check(run, trust.keys)
    else:
        unchecked.append("who signed the run: give --trust FILE with the signer's public key")
    if (run / ATTESTATION).is_file():
        bundle = attestation.read(run)
        for token in bundle.timestamps:
            stamp = Stamp.parse(token, f"a time stamp in {ATTESTATION}")
            problems += stamp.problems(bundle.signature, "the signature")
            unchecked += stamp.unchecked(trust.authorities)
            times.append(f", stamped {stamp}")
    return Outcome("".join(["is that of a key that you trust, for these files", *times]), problems, unchecked)


def _check_sign_off(run: Path) -> Outcome:
    """Whether the decision is about these files."""
    signed, problems = signoff.checked(run)
    return Outcome(f"{signed.decision} by {signed.name}, {signed.role}, on {signed.date}, for these files", problems)


def _check_provenance(run: Path) -> Outcome:
    """Whether what the run was computed with is listed as auditkit lists it."""
    recorded = provenance.read(run)
    return Outcome(f"{len(recorded.packages)} packages and {len(recorded.graphs)} graphs are listed, as the run says")


def check_commitment(run: Path, results: Results, trust: Trust) -> Outcome:
    """Whether the run is what was committed to, before it began."""
    content, started = (run / COMMITMENT).read_bytes(), results.run.started or ""
    fixed, problems, unchecked = commitment.parse(content, COMMITMENT), list[str](), list[str]()
    names = (COMMITMENT, STAMP)
    files = {name: (run / name).read_bytes() for name in names if (run / name).exists()}
    promised = replace(fixed, salt=commitment.salt_of_run(files))
    difference = promised.difference(commitment.Commitment.of(results))
    if difference:
        problems.append(f"{COMMITMENT} commits to another {difference} than the run has")
    time, clock = fixed.written, "by the run's own clock"
    if STAMP in files:
        stamp = Stamp.parse(files[STAMP], STAMP)
        problems += stamp.problems(content, COMMITMENT)
        unchecked += stamp.unchecked(trust.authorities)
        time, clock = max(time, str(stamp)), f"stamped {stamp}"
    if time > started:
        problems.append(f"the commitment is of {time}, and the run began on {started}, before it")
    return Outcome(f"policy, model, images and salt were fixed on {fixed.written} ({clock})", problems, unchecked)
