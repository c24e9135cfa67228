"""Frozen dataclasses to JSON and back: what others wrote is checked against the fields' types once, when it is read.

A field's JSON name is its own, unless `optional` gives another.
"""

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from auditkit.errors import BadInput

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
T = TypeVar("T")
_JSON_NAME = "json_name"  # in the metadata of optional fields
_MAX_INTEGER = 2**53  # larger ones may change when they are read as float
_hints = cache(get_type_hints)
_NAMES = {str: "a text", int: "an integer", float: "a finite number", bool: "true or false"}


def optional(name: str | None = None) -> Any:
    """A field that is left out of JSON while it is None; its name there may differ."""
    return field(default=None, metadata={_JSON_NAME: name})


def to_json(value: Any) -> Json:
    """Plain JSON of a dataclass and all that it holds; a number that is not finite becomes null."""
    if is_dataclass(value) and not isinstance(value, type):
        absent = {item for item in fields(value) if _JSON_NAME in item.metadata and getattr(value, item.name) is None}
        return {field_name(item): to_json(getattr(value, item.name)) for item in fields(value) if item not in absent}
    if isinstance(value, Mapping):
        return {str(name): to_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r:.80}")


def to_object(record: object) -> dict[str, Json]:
    """Plain JSON of a dataclass."""
    plain = to_json(record)
    assert isinstance(plain, dict)  # noqa: S101 - a dataclass is an object
    return plain


def parse_object(content: bytes, where: object) -> dict[str, Json]:
    """The object in a JSON text; `where` names the file in the refusal of any other text."""
    try:
        value: Json = json.loads(content, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise BadInput(f"{where} holds a {type(value).__name__}, expected an object.")
    return value


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """An object whose keys are all different; readers do not agree on which of two equal ones counts."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("an object has a duplicate key")
    return entries


def from_json(kind: type[T], value: object, where: object) -> T:
    """The dataclass that `value` holds; BadInput names `where`, usually a file, and the key that does not fit."""
    return _parse(kind, value, str(where))  # type: ignore[no-any-return]


def _parse(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _parse_dataclass(kind, value, where)
    if origin in (Union, types.UnionType):
        return _parse_union(arguments, value, where)
    if origin is Literal:
        return value if value in arguments else _refuse(where, value, f"one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        return _parse_tuple(arguments, value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            return _refuse(where, value, "an object")
        return {name: _parse(arguments[1], entry, f"{where}.{name}") for name, entry in value.items()}
    return _parse_scalar(kind, value, where)


def _parse_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and type(value) is int:
        if abs(value) >= _MAX_INTEGER:
            return _refuse(where, value, f"a finite number below {_MAX_INTEGER}")
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        return _refuse(where, value, _NAMES[kind])
    return value


def _parse_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        return _refuse(where, value, "an object")
    hints, items = _hints(kind), {field_name(item): item for item in fields(kind)}
    unknown = [name for name in value if name not in items]
    if unknown:
        raise BadInput(f"{where} has an unknown key '{unknown[0]}'; this auditkit does not write it.")
    missing = [name for name, item in items.items() if name not in value and item.default is MISSING]
    if missing:
        raise BadInput(f"{where} lacks '{missing[0]}'; it is not what auditkit wrote.")
    entries = ((items[name].name, entry, f"{where}.{name}") for name, entry in value.items())
    attributes = {name: _parse(hints[name], entry, position) for name, entry, position in entries}
    try:
        return kind(**attributes)
    except ValueError as error:  # of __post_init__: fields that do not go together
        raise BadInput(f"{where} {error}") from error


def _parse_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """The first kind that fits; an object is tried against the dataclass, so that its own sentence is the error."""
    if value is None and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    if isinstance(value, dict):
        rest = [kind for kind in rest if is_dataclass(kind)] or rest
    for kind in rest[:-1]:
        try:
            return _parse(kind, value, where)
        except BadInput:
            continue
    return _parse(rest[-1], value, where)


def _parse_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list):
        return _refuse(where, value, "a list")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        return _refuse(where, value, f"a list of {len(kinds)}")
    pairs = zip(kinds, value, strict=True)
    return tuple(_parse(kind, entry, f"{where}[{index}]") for index, (kind, entry) in enumerate(pairs))


def _refuse(where: str, value: Any, expected: str) -> Any:
    raise BadInput(f"{where} is {value!r:.60}, expected {expected}.")


def field_name(item: "Field[Any]") -> str:
    """The name of a dataclass's field in JSON."""
    return str(item.metadata.get(_JSON_NAME) or item.name)
