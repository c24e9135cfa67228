"""Time stamps (RFC 3161): a token in which an authority states that it saw a digest, and when.

Tokens are read offline. What is not checked: whether the authority's certificate was revoked, and who issued it. You
name the certificate that you trust.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from auditkit.errors import BadInput

_SIGNED_DATA = bytes.fromhex("2a864886f70d010702")
_STAMP_INFO = bytes.fromhex("2a864886f70d0109100104")
_MESSAGE_DIGEST, _CONTENT_TYPE = bytes.fromhex("2a864886f70d010904"), bytes.fromhex("2a864886f70d010903")
_SHA2 = bytes.fromhex("6086480165030402")
_HASHES = {_SHA2 + b"\1": "sha256", _SHA2 + b"\2": "sha384", _SHA2 + b"\3": "sha512"}
_OCTETS, _SEQUENCE, _SET, _TIME = 0x04, 0x30, 0x31, 0x18


class Authority(Protocol):
    """A certificate of a time-stamping authority."""

    def signed(self, signature: bytes, content: bytes, algorithm: str, time: datetime) -> bool:
        """Whether the certificate's key signed the content, at a time when it was valid."""
        ...


@dataclass(frozen=True)
class Stamp:
    """What a token states, and the authority's signature over it."""

    algorithm: str
    imprint: bytes  # the digest that the authority saw
    time: datetime
    signer_algorithm: str
    attributes: bytes
    signature: bytes

    @classmethod
    def parse(cls, content: bytes, where: object) -> "Stamp":
        """The stamp in the reply of an authority; BadInput where it is none."""
        try:
            return _parsed(content)
        except (LookupError, ValueError) as error:
            raise BadInput(f"{where} is not a granted time stamp (RFC 3161): {error}.") from None

    def problems(self, stamped: bytes, what: str) -> list[str]:
        """Why the token is not a stamp over these bytes."""
        if hashlib.new(self.algorithm, stamped).digest() != self.imprint:
            return [f"the time stamp is over something else than {what}"]
        return []

    def unchecked(self, authorities: Sequence[Authority]) -> list[str]:
        """What is left open if no named authority vouches for the time."""
        if any(authority.signed(self.signature, self.attributes, self.signer_algorithm, self.time)
               for authority in authorities):  # fmt: skip
            return []
        return [f"who stamped the time {self}: give --tsa FILE with the authority's certificate"]

    def __str__(self) -> str:
        return self.time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _parsed(content: bytes) -> Stamp:
    status, token = _children(_only(content, _SEQUENCE))
    granted = _children(status[1])[0]
    if granted[1] not in (b"\0", b"\1"):
        raise ValueError("the authority refused it")
    kind, wrapped = _children(token[1])
    signed = _children(_only(wrapped[1], _SEQUENCE))
    content_kind, inner = _children(signed[2][1])
    if (kind[1], content_kind[1]) != (_SIGNED_DATA, _STAMP_INFO):
        raise ValueError("it holds something else")
    info = _only(inner[1], _OCTETS)
    _version, _policy, imprint, _serial, time, *_rest = _children(_only(info, _SEQUENCE))
    method, digest = _children(imprint[1])
    if time[0] != _TIME:
        raise ValueError("it has no time")
    (signer,) = _children(signed[-1][1])
    _version, _sid, hashing, attributes, _signing, signature, *_more = _children(signer[1])
    algorithm = _hash(hashing[1])
    _check_attributes(attributes[1], hashlib.new(algorithm, info).digest())
    signed_bytes = bytes([_SET]) + attributes[2][1:]  # which is signed as a set, whatever its tag
    return Stamp(_hash(method[1]), digest[1], _time(time[1]), algorithm, signed_bytes, signature[1])


def _check_attributes(attributes: bytes, digest: bytes) -> None:
    """The authority signs attributes, of which one is the digest of what it states."""
    values = {}
    for _, attribute, _ in _children(attributes):
        name, value = _children(attribute)
        values[name[1]] = _children(value[1])[0][1]
    if values.get(_MESSAGE_DIGEST) != digest or values.get(_CONTENT_TYPE) != _STAMP_INFO:
        raise ValueError("its signature is over something else")


def _hash(algorithm: bytes) -> str:
    name = _children(algorithm)[0][1]
    if name not in _HASHES:
        raise ValueError("it uses another hash than SHA-256, SHA-384 or SHA-512")
    return _HASHES[name]


def _time(text: bytes) -> datetime:
    seconds = text.decode("ascii").removesuffix("Z").partition(".")[0]
    return datetime.strptime(seconds, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


_Value = tuple[int, bytes, bytes]  # tag, content, and both with the length between


def _only(content: bytes, tag: int) -> bytes:
    """The content of the one value that the bytes hold."""
    ((kind, value, _),) = _children(content)
    if kind != tag:
        raise ValueError("a part of it has another type")
    return value


def _children(content: bytes) -> list[_Value]:
    """The values, one after the other, in DER."""
    values, position = list[_Value](), 0
    while position < len(content):
        start, length = position, content[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(content[position : position + size])
            position += size
        if not 0 < position + length <= len(content) or content[start + 1] == 0x80:
            raise ValueError("it is cut short")
        values.append((content[start], content[position : position + length], content[start : position + length]))
        position += length
    return values
