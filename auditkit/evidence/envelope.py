"""A signed statement: a DSSE envelope in a Sigstore bundle, which stock tools check.

Whatever is read here comes from a stranger. A reader must not be able to take it for anything else than another reader
does, so every form but the one is refused: one envelope, one signature, one spelling of base64.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from auditkit.errors import BadInput
from auditkit.records import Json, parse_object

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"


class Verifier(Protocol):
    """A public key."""

    def verifies(self, signature: bytes, content: bytes) -> bool:
        """Whether the signature is this key's, over this content."""
        ...


class Signer(Protocol):
    """A private key."""

    @property
    def hint(self) -> str:
        """What a bundle names the key by."""
        ...

    def sign(self, content: bytes) -> bytes:
        """The signature over this content."""
        ...


@dataclass(frozen=True)
class Bundle:
    """A statement, its signature, and the time stamps over that signature."""

    payload: bytes
    signature: bytes
    hint: str  # names the key, and proves nothing
    timestamps: tuple[bytes, ...] = ()

    @classmethod
    def signed(cls, payload: bytes, key: Signer) -> "Bundle":
        """The bundle with a new signature."""
        return cls(payload, key.sign(signed_bytes(payload)), key.hint)

    @classmethod
    def parse(cls, content: bytes, where: object) -> "Bundle":
        """The bundle in a JSON text; BadInput for any form that readers could take differently."""
        plain = parse_object(content, where)
        try:
            return _parsed(plain)
        except (LookupError, TypeError, ValueError) as error:
            reason = str(error) if type(error) is ValueError else "a part of it is missing or malformed"
            raise BadInput(f"{where} is not a Sigstore bundle with one signed statement: {reason}.") from None

    def to_json(self) -> bytes:
        """The JSON text; each value has its own line, so that `sed` can take it out."""
        material: dict[str, Json] = {"publicKey": {"hint": self.hint}}
        if self.timestamps:
            stamps: list[Json] = [{"signedTimestamp": _base64(stamp)} for stamp in self.timestamps]
            material["timestampVerificationData"] = {"rfc3161Timestamps": stamps}
        envelope: dict[str, Json] = {"payload": _base64(self.payload), "payloadType": PAYLOAD_TYPE,
                                     "signatures": [{"sig": _base64(self.signature)}]}  # fmt: skip
        plain = {"mediaType": MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope}
        return f"{json.dumps(plain, indent=2)}\n".encode()

    def verified(self, keys: Sequence[Verifier]) -> bool:
        """Whether one of the keys signed the statement."""
        content = signed_bytes(self.payload)
        return any(key.verifies(self.signature, content) for key in keys)


def signed_bytes(payload: bytes) -> bytes:
    """What is signed: the payload after its type and the lengths of both (DSSE's pre-authentication encoding)."""
    return f"DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} ".encode() + payload


def statement_of(payload: bytes, predicate_type: str, where: object) -> dict[str, Json]:
    """The in-toto statement in a payload whose signature was checked."""
    statement = parse_object(payload, where)
    if statement.get("_type") != STATEMENT_TYPE or statement.get("predicateType") != predicate_type:
        raise BadInput(f"{where} does not hold a statement of the type {predicate_type}.")
    return statement


def subjects_of(statement: dict[str, Json], where: object) -> dict[str, str]:
    """The sha256 of each file that a statement is about, by name."""
    digests, subjects = dict[str, str](), statement.get("subject")
    for subject in subjects if isinstance(subjects, list) else []:
        name, digest = (subject.get("name"), subject.get("digest")) if isinstance(subject, dict) else (None, None)
        sha256 = digest.get("sha256") if isinstance(digest, dict) else None
        if not (isinstance(name, str) and isinstance(sha256, str)) or name in digests:
            raise BadInput(f"{where} names a file twice, or without its sha256.")
        digests[name] = sha256
    return digests


def _parsed(plain: dict[str, Json]) -> Bundle:
    if plain["mediaType"] != MEDIA_TYPE:
        raise ValueError(f"its media type is not {MEDIA_TYPE}")
    if "messageSignature" in plain:
        raise ValueError("it holds a signature over something else too")
    material, envelope = _object(plain["verificationMaterial"]), _object(plain["dsseEnvelope"])
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise ValueError(f"its payload is not of the type {PAYLOAD_TYPE}")
    signatures = envelope["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise ValueError("it has not exactly one signature")
    hint = _object(material["publicKey"]).get("hint") or ""
    stamps = _object(material.get("timestampVerificationData") or {}).get("rfc3161Timestamps") or []
    if not (isinstance(hint, str) and isinstance(stamps, list)):
        raise TypeError
    tokens = tuple(_bytes(_object(stamp)["signedTimestamp"]) for stamp in stamps)
    return Bundle(_bytes(envelope["payload"]), _bytes(_object(signatures[0])["sig"]), hint, tokens)


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError
    return value


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(text: Json) -> bytes:
    """The bytes in base64, of which there is one spelling."""
    try:
        content = base64.b64decode(str(text), validate=True)
    except binascii.Error:
        raise ValueError("a value is not base64") from None
    if not content or _base64(content) != text:
        raise ValueError("a value is not base64 in its one spelling")
    return content
