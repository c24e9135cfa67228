"""Frozen dataclasses to JSON and back: what others wrote is checked against the fields' types once, when it is read.

A field's JSON name is its own, unless `optional` gives another.
"""

import json
import math
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache, partial
from itertools import cycle
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from auditkit.errors import BadInput

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
T = TypeVar("T")
_Parser = Callable[[Any], Any]  # refuses with _Misfit
_JSON_NAME = "json_name"  # in the metadata of optional fields
_MAX_INTEGER = 2**53  # larger ones may change when they are read as float
_NAMES = {str: "a text", int: "an integer", float: "a finite number", bool: "true or false"}


def optional(name: str | None = None) -> Any:
    """A field that is left out of JSON while it is None; its name there may differ."""
    return field(default=None, metadata={_JSON_NAME: name})


def to_json(value: Any) -> Json:
    """Plain JSON of a dataclass and all that it holds; a number that is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        entries = [(item, getattr(value, item.attribute)) for item in _members(type(value))]
        return {item.name: to_json(entry) for item, entry in entries if not (item.left_out and entry is None)}
    if isinstance(value, Mapping):
        return {str(name): to_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r:.80}")


class _Member(NamedTuple):
    """A field of a dataclass."""

    attribute: str
    name: str  # in JSON
    left_out: bool  # while it is None
    required: bool


@cache
def _members(kind: type) -> tuple[_Member, ...]:
    return tuple(_Member(item.name, field_name(item), _JSON_NAME in item.metadata, item.default is MISSING)
                 for item in fields(kind))  # fmt: skip


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


class _Misfit(BadInput):
    """Why a value does not fit its type. Its position is put together on the way out: most values need none."""

    position: tuple[str | int, ...] = ()

    def sentence(self, where: object) -> str:
        """The refusal of the whole."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.position)
        return f"{where}{''.join(steps)} {self}"


def from_json(kind: type[T], value: object, where: object) -> T:
    """The dataclass that `value` holds; BadInput names `where`, usually a file, and the key that does not fit."""
    try:
        return _parser(kind)(value)  # type: ignore[no-any-return]
    except _Misfit as misfit:
        raise BadInput(misfit.sentence(where)) from misfit.__cause__


def _parser(kind: Any) -> _Parser:
    """What turns plain values into a type's."""
    if is_dataclass(kind):
        return _dataclass_parser(kind)  # type: ignore[arg-type]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_parser(arguments)
    if origin is Literal:
        return partial(_parse_choice, arguments)
    if origin is tuple:
        return _tuple_parser(arguments)
    if origin in (dict, Mapping):
        return _mapping_parser(_parser(arguments[1]))
    return _parse_float if kind is float else partial(_parse_scalar, kind)


def _parse_choice(choices: tuple[Any, ...], value: Any) -> Any:
    return value if value in choices else _refuse(value, f"one of {', '.join(map(str, choices))}")


def _parse_scalar(kind: Any, value: Any) -> Any:
    return value if type(value) is kind else _refuse(value, _NAMES[kind])


def _parse_float(value: Any) -> Any:
    if type(value) is int:
        return float(value) if abs(value) < _MAX_INTEGER else _refuse(value, f"a finite number below {_MAX_INTEGER}")
    return value if type(value) is float and math.isfinite(value) else _refuse(value, _NAMES[float])


@cache  # by class: other types do not tell `int | float` from `float | int`
def _dataclass_parser(kind: Any) -> _Parser:
    members, hints = {item.name: item for item in _members(kind)}, get_type_hints(kind)
    parsers = {name: _parser(hints[item.attribute]) for name, item in members.items()}

    def parse(value: Any) -> Any:
        _check_keys(value, members)
        attributes = {
            members[name].attribute: _parse_entry(parsers[name], entry, name) for name, entry in value.items()
        }
        try:
            return kind(**attributes)
        except ValueError as error:  # of __post_init__: fields that do not go together
            raise _Misfit(str(error)) from error

    return parse


def _check_keys(value: Any, members: Mapping[str, _Member]) -> None:
    """Refuse what is not an object with the keys of a dataclass."""
    if not isinstance(value, dict):
        _refuse(value, "an object")
    unknown = [name for name in value if name not in members]
    if unknown:
        raise _Misfit(f"has an unknown key '{unknown[0]}'; this auditkit does not write it.")
    missing = [name for name, item in members.items() if item.required and name not in value]
    if missing:
        raise _Misfit(f"lacks '{missing[0]}'; it is not what auditkit wrote.")


def _parse_entry(parse: _Parser, value: Any, step: str | int) -> Any:
    """A value inside another; `step` is its key or index there."""
    try:
        return parse(value)
    except _Misfit as misfit:
        misfit.position = (step, *misfit.position)
        raise


def _union_parser(kinds: tuple[Any, ...]) -> _Parser:
    """The first kind that fits; an object is tried against the dataclass, so that its own sentence is the error."""
    rest = [kind for kind in kinds if kind is not type(None)]
    of_objects = [kind for kind in rest if is_dataclass(kind)] or rest
    parsers, object_parsers = [*map(_parser, rest)], [*map(_parser, of_objects)]

    def parse(value: Any) -> Any:
        if value is None and len(rest) < len(kinds):
            return None
        attempts = object_parsers if isinstance(value, dict) else parsers
        for attempt in attempts[:-1]:
            with suppress(BadInput):
                return attempt(value)
        return attempts[-1](value)

    return parse


def _mapping_parser(parse_value: _Parser) -> _Parser:
    def parse(value: Any) -> Any:
        if not isinstance(value, dict):
            _refuse(value, "an object")
        return {name: _parse_entry(parse_value, entry, name) for name, entry in value.items()}

    return parse


def _tuple_parser(kinds: tuple[Any, ...]) -> _Parser:
    """Reads a list of one kind, of any length, or of some kinds in their order."""
    of_any_length, parsers = kinds[-1] is Ellipsis, [_parser(kind) for kind in kinds if kind is not Ellipsis]

    def parse(value: Any) -> Any:
        if not isinstance(value, list):
            _refuse(value, "a list")
        if not of_any_length and len(parsers) != len(value):
            _refuse(value, f"a list of {len(parsers)}")
        pairs = zip(cycle(parsers), value)
        return tuple([_parse_entry(parse, entry, index) for index, (parse, entry) in enumerate(pairs)])

    return parse


def _refuse(value: Any, expected: str) -> Any:
    raise _Misfit(f"is {value!r:.60}, expected {expected}.")


def field_name(item: "Field[Any]") -> str:
    """The name of a dataclass's field in JSON."""
    return str(item.metadata.get(_JSON_NAME) or item.name)
