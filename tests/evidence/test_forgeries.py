"""Forged runs with a signature: none is accepted by those who trust another key."""

import shutil
from pathlib import Path

from auditkit.errors import BadInput
from auditkit.evidence import attestation, keys
from auditkit.runs.folder import checksums
from auditkit.runs.folder.checksums import ATTESTATION
from auditkit.verdict.verify.verify import verify
from tests.support.forgeries import Forger
from tests.verdict.test_tampering import TAMPERED, UNCHANGED, _quick, audits

__all__ = ["_quick", "audits"]  # fixtures
FORGERIES = {**TAMPERED, **{name: UNCHANGED[name] for name in ("other versions", "another folder of the model")}}


def test_no_forged_run_is_accepted_by_those_who_trust_the_signer(audits: Path, tmp_path: Path) -> None:
    """Neither with the signature of the true run, nor with one of the forger's own."""
    for name in ("auditor", "forger"):
        keys.generate("ed25519", tmp_path / f"{name}.pem", None)
    auditor, forger = (keys.read_private(tmp_path / f"{name}.pem", bytes) for name in ("auditor", "forger"))
    true = Path(shutil.copytree(audits / "run", tmp_path / "true"))
    attestation.sign(true, auditor)
    assert attestation.check(true, [auditor.public]) == ([], [])
    for number, (name, change) in enumerate(FORGERIES.items()):
        run = Path(shutil.copytree(true, tmp_path / str(number)))
        change(Forger(run, audits))
        assert _refused(run, auditor.public), name
        (run / ATTESTATION).unlink(missing_ok=True)
        try:
            attestation.sign(run, forger)
        except BadInput:  # of a folder that does not even fit its own list
            continue
        assert attestation.check(run, [auditor.public])[0] == [f"{ATTESTATION} is not signed by a key that you trust"]


def _refused(run: Path, key: keys.PublicKey) -> bool:
    try:
        return bool(attestation.check(run, [key])[0] or checksums.check(run) or verify(run).problems)
    except BadInput:  # which `verify` reports as a problem
        return True
