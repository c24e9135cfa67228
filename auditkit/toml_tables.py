"""Reads the tables of a TOML file key by key; refuses unknown keys and wrong types, and says how to mend them."""

import re
import sys
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TypeGuard, TypeVar

from auditkit.errors import BadInput, unknown
from auditkit.regular_files import read_regular, reason

T = TypeVar("T", bound=str)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
MOST_CHARACTERS = 2000  # of a text that ends up in reports
_MOST_BYTES = 1 << 18  # of a file
_MOST_DOTS = 100  # in a line: reading a key takes the square of its parts


class Table:
    """A table without unknown keys; a key without a default is required."""

    def __init__(self, data: object, where: str, keys: Iterable[str]) -> None:
        if not isinstance(data, Mapping):
            raise BadInput(f"{where} is {shown(data)}, expected a table with the keys {', '.join(keys)}.")
        self.where, self.data = where, data
        for key in data:
            if key not in keys:
                raise BadInput(f"{where}: {unknown('key', key, keys)}")

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def refuse(self, key: str, expected: str) -> BadInput:
        """The error that names a key's value and what is expected."""
        return BadInput(f"{self.where}: {key} is {shown(self.data[key])}, expected {expected}.")

    def _value(self, key: str, default: object, expected: str) -> object:
        if key not in self.data and default is None:
            raise BadInput(f"{self.where}: {key} is missing, expected {expected}.")
        return self.data.get(key, default)

    def text(self, key: str, default: str | None = None, expected: str = "a text in quotes, not blank") -> str:
        """A text of limited length that is not blank."""
        value = self._value(key, default, expected)
        if isinstance(value, str) and key not in self.data:
            return value
        visible = isinstance(value, str) and any(unicodedata.category(sign)[0] not in "CZ" for sign in value)
        if not isinstance(value, str) or not visible or len(value) > MOST_CHARACTERS:
            raise self.refuse(key, expected)
        return value

    def name(self, key: str) -> str:
        """A text that is easy to type and safe in a file name."""
        expected = "a name of lower-case letters, digits, '-', '_' and '.'"
        value = self.text(key, expected=expected)
        if not _NAME.fullmatch(value):
            raise self.refuse(key, expected)
        return value

    def choice(self, key: str, options: Sequence[T], default: T | None = None) -> T:
        """One of the options."""
        expected = f"one of {', '.join(options)}"
        value = self._value(key, default, expected)
        for option in options:
            if option == value:
                return option
        name = value if isinstance(value, str) else shown(value)
        raise BadInput(f"{self.where}: {unknown(key, name, options)}")

    def number(self, key: str, default: float | None = None, expected: str = "a finite number") -> float:
        """A finite number."""
        value = self._value(key, default, expected)
        if not is_number(value):
            raise self.refuse(key, expected)
        return float(value)

    def whole(self, key: str, least: int, default: int) -> int:
        """A whole number of at least `least`."""
        value = self.data.get(key, default)
        if type(value) is not int or not least <= value < 2**31:
            raise self.refuse(key, f"a whole number from {least} up")
        return value

    def truth(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false, without quotes")
        return value

    def day(self, key: str) -> date:
        """A date without a time."""
        expected = "a date without quotes, such as 2030-12-31"
        value = self._value(key, None, expected)
        if not isinstance(value, date) or isinstance(value, datetime):
            raise self.refuse(key, expected)
        return value


def read_text(path: Path, what: str) -> str:
    """Text of a TOML file, its bytes unchanged: a digest is of what is on the disk."""
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the {what} {path} cannot be read: {reason(error)}.") from None


def parse_toml(text: str, where: str) -> dict[str, object]:
    """The tables of a TOML text; `where` is the file's name in messages."""
    if len(text) > _MOST_BYTES or max(line.count(".") for line in text.split("\n")) > _MOST_DOTS:
        raise BadInput(f"{where}: over {_MOST_BYTES:,} characters, or {_MOST_DOTS} dots in a line, are not read.")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also an integer of more digits than Python reads
        raise BadInput(f"{where} is not TOML: {error}.") from None


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number that a float can hold; TOML has integers of any length."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def shown(value: object) -> str:
    """A value as TOML writes it, short enough for a sentence."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return "an integer that is too large"
    try:
        text = str(value) if isinstance(value, date) else repr(value)
    except ValueError:  # Python prints at most 4,300 digits
        return "a value with an integer that is too large"
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 80 else text[:77] + "..."
