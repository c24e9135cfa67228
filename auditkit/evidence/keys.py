"""Keys that sign runs: Ed25519 and ECDSA P-256, in PEM files as openssl writes them (PKCS#8)."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args

from auditkit.data.atomic_write import create, remove, write_errors
from auditkit.errors import BadInput, unknown
from auditkit.regular_files import read_named

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
except ImportError:
    raise BadInput("signatures need the package cryptography; run: pip install 'onnx-auditkit[sign]'") from None

Kind = Literal["ed25519", "p256"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_MOST_BYTES = 1 << 16  # of a file with a key
_ECDSA = ec.ECDSA(hashes.SHA256())
_HASHES = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}
_USABLE = "use an Ed25519 or ECDSA P-256 key, such as `auditkit keygen` makes"


@dataclass(frozen=True)
class PublicKey:
    """A key that checks signatures. Its own type says how, never the file that was signed."""

    key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey

    @property
    def pem(self) -> bytes:
        """The key as PEM."""
        return self.key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    @property
    def hint(self) -> str:
        """What a bundle names the key by: sha256 of its PEM file, as `sha256sum` prints it."""
        return hashlib.sha256(self.pem).hexdigest()

    def verifies(self, signature: bytes, content: bytes) -> bool:
        """Whether the signature is this key's, over this content."""
        try:
            if isinstance(self.key, ed25519.Ed25519PublicKey):
                self.key.verify(signature, content)
            else:
                self.key.verify(signature, content, _ECDSA)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class PrivateKey:
    """A key that signs."""

    key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey

    @property
    def public(self) -> PublicKey:
        """The key that checks what this one signs."""
        return PublicKey(self.key.public_key())

    @property
    def hint(self) -> str:
        """See PublicKey."""
        return self.public.hint

    def sign(self, content: bytes) -> bytes:
        """The signature over this content."""
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(content)
        return self.key.sign(content, _ECDSA)


@dataclass(frozen=True)
class Certificate:
    """The certificate of a time-stamping authority, which you trust as it is."""

    certificate: x509.Certificate

    def signed(self, signature: bytes, content: bytes, algorithm: str, time: datetime) -> bool:
        """Whether its key signed the content, at a time when the certificate was valid."""
        certificate, key = self.certificate, self.certificate.public_key()
        if not certificate.not_valid_before_utc <= time <= certificate.not_valid_after_utc:
            return False
        try:
            if isinstance(key, rsa.RSAPublicKey):
                key.verify(signature, content, padding.PKCS1v15(), _HASHES[algorithm])
            elif isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, content, ec.ECDSA(_HASHES[algorithm]))
            else:
                return False
        except InvalidSignature:
            return False
        return True


def read_certificate(path: Path) -> Certificate:
    """The certificate in a PEM file; it must be one for time stamps."""
    refusal = BadInput(f"{path} is not the certificate (PEM) of a time-stamping authority.")
    try:
        certificate = x509.load_pem_x509_certificate(read_named(path, _MOST_BYTES))
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        raise refusal from None
    if x509.oid.ExtendedKeyUsageOID.TIME_STAMPING not in usage:
        raise refusal
    return Certificate(certificate)


def generate(kind: str, private: Path, password: bytes | None) -> Path:
    """Write a new key to a file that only its owner can read; the file with its public key is written next to it."""
    public = private.with_suffix(".pub")
    if kind not in KINDS:
        raise BadInput(unknown("type of key", kind, KINDS))
    if private.suffix.lower() == public.suffix:
        raise BadInput(f"{private} would be the name of both keys; choose another, such as {private.stem}.pem.")
    for path in (private, public):
        if os.path.lexists(path):
            raise BadInput(f"{path} already exists and will not be overwritten; choose another name.")
    key = PrivateKey(
        ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())
    )
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem = key.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    with write_errors(private, BadInput):
        create(private, pem, mode=0o600)
    with write_errors(public, BadInput):
        try:
            create(public, key.public.pem)
        except BaseException:
            remove(private)  # so that the command can be given again
            raise
    return public


def read_private(path: Path, password: Callable[[], bytes]) -> PrivateKey:
    """The key in a PEM file; `password` is asked only where the key has one."""
    content = read_named(path, _MOST_BYTES)
    try:
        key = serialization.load_pem_private_key(content, None)
    except TypeError:  # it has a password
        try:
            key = serialization.load_pem_private_key(content, password())
        except ValueError:
            raise BadInput(f"{path} does not open with this password.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise BadInput(f"{path} is not a private key in PEM form; {_USABLE}.") from None
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return PrivateKey(key)
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return PrivateKey(key)
    raise BadInput(f"{path} is a key of another type; {_USABLE}.")


def read_public(path: Path) -> PublicKey:
    """The public key in a PEM file."""
    try:
        key = serialization.load_pem_public_key(read_named(path, _MOST_BYTES))
    except (ValueError, UnsupportedAlgorithm):
        raise BadInput(f"{path} is not a public key in PEM form; give the .pub file of the signer.") from None
    if isinstance(key, ed25519.Ed25519PublicKey):
        return PublicKey(key)
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return PublicKey(key)
    raise BadInput(f"{path} is a key of another type; {_USABLE}.")
