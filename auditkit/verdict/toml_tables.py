"""Tables of a TOML file read key by key: what is unknown, of the wrong type or impossible is refused with a way out."""

import difflib
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from auditkit.errors import BadInput

_REQUIRED: Any = object()
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
MOST_CHARACTERS = 2000  # of a text that ends up in reports


def _legible(text: str) -> bool:
    """Whether there is anything to be seen in a text."""
    return any(unicodedata.category(sign)[0] not in "CZ" for sign in text)


class Table:
    """One table, whose keys are all known."""

    def __init__(self, data: Any, where: str, keys: Iterable[str]) -> None:
        self.where, self.data = where, data
        if not isinstance(data, Mapping):
            raise BadInput(f"{where} is {_shown(data)}, expected a table with the keys {', '.join(keys)}.")
        for key in data:
            if key not in keys:
                hint = nearest(key, keys) or f"known keys: {', '.join(keys)}."
                raise BadInput(f"{where}: unknown key '{key}'; {hint}")

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def refuse(self, key: str, expected: str) -> BadInput:
        """The error that says what a key holds and what it should."""
        end = "" if expected.endswith("?") else "."
        return BadInput(f"{self.where}: {key} is {_shown(self.data[key])}, expected {expected}{end}")

    def _value(self, key: str, default: Any, expected: str) -> Any:
        if key not in self.data and default is _REQUIRED:
            raise BadInput(f"{self.where}: {key} is missing, expected {expected}.")
        return self.data.get(key, default)

    def text(self, key: str, default: Any = _REQUIRED, expected: str = "a text in quotes, not blank") -> Any:
        """A text that is not blank, nor endless."""
        value = self._value(key, default, expected)
        if key in self.data and not (isinstance(value, str) and _legible(value) and len(value) <= MOST_CHARACTERS):
            raise self.refuse(key, expected)
        return value

    def name(self, key: str) -> str:
        """A text that can be typed, searched for and put into a file's name."""
        expected = "a name of lower-case letters, digits, '-', '_' and '.'"
        value = self.text(key, expected=expected)
        if not _NAME.fullmatch(value):
            raise self.refuse(key, expected)
        return str(value)

    def choice(self, key: str, allowed: Iterable[str], default: Any = _REQUIRED) -> Any:
        """One of some words."""
        expected = f"one of {', '.join(allowed)}"
        value = self._value(key, default, expected)
        if key in self.data and value not in list(allowed):  # a table cannot be looked up in a set
            hint = nearest(value, allowed) if isinstance(value, str) else ""
            raise self.refuse(key, f"{expected}; {hint}" if hint else expected)
        return value

    def number(self, key: str, default: Any = _REQUIRED, expected: str = "a finite number") -> Any:
        """A finite number as a float; a whole one and a fraction are the same."""
        value = self._value(key, default, expected)
        if key not in self.data:
            return value
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.refuse(key, expected)
        return float(value)

    def whole(self, key: str, least: int, default: Any = _REQUIRED) -> Any:
        """A whole number of at least so much."""
        expected = f"a whole number from {least} up"
        value = self._value(key, default, expected)
        if key in self.data and not (type(value) is int and least <= value < 2**31):
            raise self.refuse(key, expected)
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
        value = self._value(key, _REQUIRED, expected)
        if type(value) is not date:
            raise self.refuse(key, expected)
        return value


def nearest(word: str, known: Iterable[str]) -> str:
    """A question about the known word that comes nearest, if one does."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean '{close[0]}'?" if close else ""


def _shown(value: Any) -> str:
    """A value as TOML has it, short enough for a sentence."""
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else repr(value)
    if isinstance(value, date):
        text = str(value)
    return text if text is not None and len(text) <= 80 else f"{text}"[:77] + "..."
