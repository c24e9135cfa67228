"""Keys: what openssl reads and writes, passwords, and refusals in a sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from auditkit.data.atomic_write import create
from auditkit.errors import BadInput
from auditkit.evidence import keys
from tests.support.commands import auditkit, refused


def _no_password() -> bytes:
    raise AssertionError("the key has none")


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)  # noqa: S607


def test_a_key_signs_and_only_its_public_key_verifies(any_key: Path, tmp_path: Path) -> None:
    signature = keys.read_private(any_key, _no_password).sign(b"content")
    public = keys.read_public(any_key.with_suffix(".pub"))
    assert public.verifies(signature, b"content")
    assert not public.verifies(signature, b"contend")
    assert not public.verifies(signature[:-1], b"content")
    for kind in keys.KINDS:  # of another type, too
        other = keys.read_public(keys.generate(kind, tmp_path / f"{kind}.pem", None))
        assert not other.verifies(signature, b"content")


def test_the_private_key_is_its_owners_alone(key: Path) -> None:
    assert key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["alice.pub", "alice.PUB"])
def test_both_keys_never_have_one_name(tmp_path: Path, name: str) -> None:
    refused(auditkit("keygen", "-o", tmp_path / name, "--no-password"), "the name of both keys", "alice.pem")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("taken", ["k.pem", "k.pub"])
def test_no_key_is_written_over_a_file_or_through_a_link(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).symlink_to(tmp_path / "elsewhere")
    refused(auditkit("keygen", "-o", tmp_path / "k.pem", "--no-password"), taken, "already exists")
    assert [path.name for path in tmp_path.iterdir()] == [taken]


def test_without_its_public_key_no_private_key_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes, **options: int) -> None:
        if path.suffix == ".pub":
            raise OSError(28, "No space left on device")
        create(path, content, **options)

    monkeypatch.setattr(keys, "create", full)
    refused(auditkit("keygen", "-o", tmp_path / "k.pem", "--no-password"), "k.pub", "No space left")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", keys.KINDS)
def test_a_password_protects_the_key(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "correct horse")
    path = tmp_path / "k.pem"
    done = auditkit("keygen", "-o", path, "--type", kind, "--password-env", "SECRET")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'k.pub'}\n")
    assert b"ENCRYPTED" in path.read_bytes()
    assert keys.read_private(path, lambda: b"correct horse").hint == keys.read_public(tmp_path / "k.pub").hint
    with pytest.raises(BadInput, match="does not open with this password"):
        keys.read_private(path, lambda: b"wrong")


def test_keys_of_openssl_are_read(tmp_path: Path) -> None:
    plain, locked, public = (tmp_path / name for name in ("plain.pem", "locked.pem", "k.pub"))
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", plain)
    _openssl("pkcs8", "-topk8", "-in", plain, "-out", locked, "-passout", "pass:abcd")
    _openssl("pkey", "-in", plain, "-pubout", "-out", public)
    signature = keys.read_private(locked, lambda: b"abcd").sign(b"content")
    assert keys.read_public(public).verifies(signature, b"content")
    assert keys.read_private(plain, _no_password).hint == keys.read_public(public).hint


@pytest.mark.parametrize(
    "options", [("RSA", "rsa_keygen_bits:2048"), ("EC", "ec_paramgen_curve:P-384")], ids=lambda options: str(options[1])
)
def test_keys_of_other_types_are_refused(options: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "k.pem"
    _openssl("genpkey", "-algorithm", options[0], "-pkeyopt", options[1], "-out", path)
    _openssl("pkey", "-in", path, "-pubout", "-out", tmp_path / "k.pub")
    with pytest.raises(BadInput, match="another type; use an Ed25519 or ECDSA P-256 key"):
        keys.read_private(path, _no_password)
    with pytest.raises(BadInput, match="another type"):
        keys.read_public(tmp_path / "k.pub")


def test_what_is_no_key_is_refused_in_a_sentence(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.generate("ed25519", tmp_path / "k.pem", b"abcd")
    (tmp_path / "text").write_text("no key")
    refused(auditkit("sign", run, "--key", tmp_path / "text"), "is not a private key")
    refused(auditkit("sign", run, "--key", tmp_path / "none"), "cannot be read")
    refused(auditkit("sign", run, "--key", tmp_path / "k.pub"), "is not a private key")
    refused(auditkit("sign", run, "--key", tmp_path / "k.pem"), "no terminal to ask on", "--password-env NAME")
    refused(auditkit("sign", run, "--key", tmp_path / "k.pem", "--password-env", "NO_SUCH"), "NO_SUCH is not set")
    refused(auditkit("verify", run, "--trust", tmp_path / "k.pem"), "is not a public key", ".pub")
    refused(auditkit("keygen", "-o", tmp_path / "k.pem", "--no-password"), "will not be overwritten")
    refused(auditkit("keygen", "-o", tmp_path / "l.pem"), "--password-env NAME", "--no-password")
    refused(auditkit("keygen", "-o", tmp_path / "l.pem", "--no-password", "--type", "rsa"), "unknown type of key 'rsa'")


def test_without_the_package_one_sentence_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "auditkit.evidence.keys")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    refused(auditkit("sign", run, "--key", "k.pem"), "pip install 'onnx-auditkit[sign]'")
    assert auditkit("verify", run).returncode == 3  # which needs no package
