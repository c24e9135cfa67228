"""Reads objects from files that anyone may have written: each value is checked where it is read.

Every refusal is one sentence that names the file, the key, what was found and what is expected.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from auditkit.errors import BadInput

_SHOWN = 80  # characters of a value in a refusal


@dataclass(frozen=True)
class UntrustedObject:
    """An object of unknown content; `where` names its file, and its key if it lies inside another object."""

    where: str
    values: Mapping[str, object]

    @classmethod
    def from_json(cls, where: object, content: "str | bytes") -> "UntrustedObject":
        """The object in a JSON text."""
        try:
            values: object = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{where} is not JSON: {error}.") from None
        if not isinstance(values, dict):
            raise BadInput(f"{where} holds a {type(values).__name__}, expected an object.")
        return cls(str(where), values)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str:
        """A text."""
        value = self.values.get(key)
        return value if isinstance(value, str) else self._refuse(key, "a text")

    def optional_text(self, key: str) -> str | None:
        """A text, or None where the key is missing or null."""
        value = self.values.get(key)
        return value if value is None or isinstance(value, str) else self._refuse(key, "a text or null")

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where the key is missing or null, and one text counts as a list of one."""
        value = self.values.get(key) or []
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list):
            return self._refuse(key, "a list of texts")
        texts = tuple(text for text in value if isinstance(text, str))
        return texts if len(texts) == len(value) else self._refuse(key, "a list of texts")

    def choice(self, key: str, options: Sequence[str]) -> str:
        """One of some texts."""
        value = self.values.get(key)
        return value if isinstance(value, str) and value in options else self._refuse(key, " or ".join(options))

    def integer(self, key: str, least: int = 0) -> int:
        """An integer that is not below `least`."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        return self._refuse(key, f"an integer of at least {least}")

    def number(self, key: str) -> float:
        """A finite number."""
        value = self.values.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        return self._refuse(key, "a finite number")

    def object(self, key: str) -> "UntrustedObject":
        """An object inside this one."""
        value = self.values.get(key)
        return (
            UntrustedObject(f"{self.where}, {key}", value)
            if isinstance(value, dict)
            else self._refuse(key, "an object")
        )

    def objects(self, key: str) -> "Iterator[UntrustedObject]":
        """The objects of a list."""
        value = self.values.get(key)
        for position, entry in enumerate(value if isinstance(value, list) else self._refuse(key, "a list of objects")):
            if not isinstance(entry, dict):
                self._refuse(key, "a list of objects")
            yield UntrustedObject(f"{self.where}, {key}[{position}]", entry)

    def _refuse(self, key: str, expected: str) -> NoReturn:
        found = repr(self.values[key]) if key in self.values else "missing"
        raise BadInput(f"{self.where}: {key} is {found:.{_SHOWN}}, expected {expected}.")
