"""Time stamps of an authority that openssl plays: over these bytes, at that time, by a named certificate."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from auditkit.errors import BadInput
from auditkit.evidence import attestation, keys
from auditkit.evidence.timestamp import Stamp
from auditkit.verdict.verify import Trust, verify
from tests.support.commands import auditkit, refused

CONFIG = """[req]
distinguished_name = dn
[dn]
[tsa]
extendedKeyUsage = critical,timeStamping
keyUsage = critical,digitalSignature
[server]
extendedKeyUsage = serverAuth
[tsa_config]
serial = {folder}/serial
crypto_device = builtin
signer_digest = {digest}
default_policy = 1.2.3.4.1
digests = sha256, sha512
ess_cert_id_alg = sha256
"""


class OpensslAuthority:
    """A time-stamping authority in a folder."""

    def __init__(self, folder: Path, kind: str, digest: str = "sha256") -> None:
        self.folder, self.certificate = folder, folder / "tsa.crt"
        folder.mkdir()
        (folder / "config").write_text(CONFIG.format(folder=folder, digest=digest))
        (folder / "serial").write_text("01\n")
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384"] if kind == "ec" else ["-newkey", "rsa:2048"]
        self._openssl("req", "-x509", "-nodes", *curve, "-keyout", "key", "-out", "tsa.crt", "-subj", "/CN=TSA",
                      "-days", "2", "-config", "config", "-extensions", "tsa")  # fmt: skip

    def stamp(self, content: bytes) -> Path:
        (self.folder / "data").write_bytes(content)
        self._openssl("ts", "-query", "-data", "data", "-sha256", "-cert", "-out", "query")
        self._openssl("ts", "-reply", "-queryfile", "query", "-signer", "tsa.crt", "-inkey", "key", "-config", "config",
                      "-section", "tsa_config", "-out", "reply.tsr")  # fmt: skip
        return self.folder / "reply.tsr"

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)  # noqa: S607


@pytest.fixture(scope="module", params=[("rsa", "sha256"), ("ec", "sha512")], ids="-".join)
def tsa(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpensslAuthority:
    return OpensslAuthority(tmp_path_factory.mktemp("tsa") / "tsa", *request.param)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> OpensslAuthority:
    return OpensslAuthority(tmp_path_factory.mktemp("tsa") / "stranger", "rsa")


def test_a_stamp_holds_for_its_bytes_and_its_authority(tsa: OpensslAuthority, stranger: OpensslAuthority) -> None:
    content = tsa.stamp(b"content").read_bytes()
    stamp = Stamp.parse(content, "reply.tsr")
    assert stamp.problems(b"content", "it") == []
    assert stamp.problems(b"contend", "it") == ["the time stamp is over something else than it"]
    assert stamp.unchecked([keys.read_certificate(tsa.certificate)]) == []
    for others in ([], [keys.read_certificate(stranger.certificate)]):
        (gap,) = stamp.unchecked(others)
        assert gap == f"who stamped the time {stamp}: give --tsa FILE with the authority's certificate"


def test_no_byte_of_a_stamp_can_be_changed(stranger: OpensslAuthority) -> None:
    """The name of the policy and such are signed, too; certificates that travel along are not used."""
    content, certificate = stranger.stamp(b"content").read_bytes(), keys.read_certificate(stranger.certificate)
    stamp = Stamp.parse(content, "")
    for position in range(0, len(content), 7):
        try:
            changed = Stamp.parse(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :], "")
        except BadInput:
            continue
        holds = not changed.problems(b"content", "") and not changed.unchecked([certificate])
        assert not holds or (changed.time, changed.imprint) == (stamp.time, stamp.imprint)
    for end in range(0, len(content), 50):
        with pytest.raises(BadInput, match="is not a granted time stamp"):
            Stamp.parse(content[:end], "reply.tsr")


def test_a_signature_can_be_stamped(run: Path, key: Path, tsa: OpensslAuthority, tmp_path: Path) -> None:
    refused(auditkit("sign", run, "--timestamp", key), "is not signed; a time stamp is one over its signature")
    refused(auditkit("sign", run), "give --key FILE to sign a run, or --timestamp FILE")
    attestation.sign(run, keys.read_private(key, bytes))
    refused(auditkit("sign", run, "--timestamp", key), "is not a granted time stamp")
    refused(auditkit("sign", run, "--timestamp", tsa.stamp(b"else")), "over something else than the signature")
    token = tsa.stamp(attestation.read(run).signature)
    assert auditkit("sign", run, "--timestamp", token).returncode == 0
    public, certificate = keys.read_public(key.with_suffix(".pub")), keys.read_certificate(tsa.certificate)
    checks = {check.name: check for check in verify(run, trust=Trust([public], [certificate])).checks}
    assert (checks["signature"].problems, checks["signature"].unchecked) == ((), ())
    assert f"stamped {Stamp.parse(token.read_bytes(), '')}" in checks["signature"].about
    checks = {check.name: check for check in verify(run, trust=Trust([public])).checks}
    assert "who stamped the time" in checks["signature"].unchecked[0]


def test_only_certificates_for_time_stamps_are_taken(run: Path, stranger: OpensslAuthority, tmp_path: Path) -> None:
    shutil.copytree(stranger.folder, tmp_path / "server")
    words = shlex.split("req -x509 -key key -out server.crt -subj /CN=S -config config -extensions server")
    subprocess.run(["openssl", *words], cwd=tmp_path / "server", check=True, capture_output=True)  # noqa: S607
    refused(
        auditkit("verify", run, "--tsa", tmp_path / "server" / "server.crt"), "certificate (PEM) of a time-stamping"
    )
    refused(auditkit("verify", run, "--tsa", tmp_path / "server" / "key"), "certificate (PEM) of a time-stamping")
