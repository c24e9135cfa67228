"""An audit's salt: it seeds all that an audit leaves to chance, and nobody knows it before the audit begins.

Otherwise whoever supplies images or maps could work out which images are taken, and with which noise they are
compared, and change the files until these suit them.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from auditkit.errors import BadInput
from auditkit.runs.folder.names import RUN
from auditkit.runs.folder.store import Store, canonical

_BYTES = 16
_SALT = re.compile(f"[0-9a-f]{{{2 * _BYTES}}}")
_SEED_BYTES = 6  # a number of JSON is exact up to 53 bits


def parse_salt(text: object) -> str:
    """The salt in a text; BadInput where it is none."""
    salt = str(text).lower()
    if not _SALT.fullmatch(salt):
        remedy = f"give {2 * _BYTES} hexadecimal digits, such as {random_salt()}"
        raise BadInput(f"'{text!s:.80}' is not the salt of an audit: {remedy}.")
    return salt


def random_salt() -> str:
    """A salt that nobody knows yet."""
    return secrets.token_hex(_BYTES)


def draw_salt(about: Mapping[str, object]) -> str:
    """A salt of fresh random bytes and of all that identifies the run."""
    facts = json.dumps(canonical(about), sort_keys=True)
    return _hashed(random_salt(), facts.encode())


def stamped_salt(salt: str, signed: bytes) -> str:
    """The salt that a commitment to `salt` has once an authority has signed a time stamp over it."""
    return _hashed(salt, signed)


def seed_of(salt: str) -> int:
    """The seed of an audit with this salt."""
    digest = hashlib.sha256(bytes.fromhex(parse_salt(salt))).digest()
    return int.from_bytes(digest[:_SEED_BYTES])


def recorded_salt(run: Path) -> str | None:
    """The salt of the audit in a folder; None if there is none."""
    settings = Store(run).settings() if (run / RUN).exists() else None
    salt = settings.get("salt") if isinstance(settings, dict) else None
    return None if salt is None else parse_salt(salt)


def _hashed(salt: str, facts: bytes) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + facts).hexdigest()[: 2 * _BYTES]
