"""The schema of results.json from the types that it is read with.

To write it anew: python -m tests.support.results_schema > auditkit/schemas/results.schema.json
"""

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from auditkit.records import Json, field_name
from auditkit.runs.folder.results import SCHEMA_VERSION, Results

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def results_schema() -> str:
    """The text of results.schema.json."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:auditkit:schema:results:{SCHEMA_VERSION}",
        "title": "results.json",
        "description": "What an evaluation or an audit found: figures with their intervals, flags, checks, the verdict "
        "and where all of it comes from.",
    }
    schema = _json_schema(Results)
    required, properties = schema["required"], schema["properties"]
    assert isinstance(required, list)
    assert isinstance(properties, dict)
    required.insert(0, "schema_version")
    properties["schema_version"] = {"const": SCHEMA_VERSION}
    return json.dumps({**head, **schema}, indent=2) + "\n"


def _json_schema(kind: Any) -> dict[str, Json]:
    """The JSON schema of what `to_json` writes for a dataclass; those that it holds are defined in `$defs` by name."""
    definitions: dict[str, Json] = {}
    schema = _object_schema(kind, definitions)
    return {**schema, "$defs": dict(sorted(definitions.items()))} if definitions else schema


def _object_schema(kind: Any, definitions: dict[str, Json]) -> dict[str, Json]:
    hints, items = get_type_hints(kind), fields(kind)
    return {
        "type": "object", "required": [field_name(item) for item in items if item.default is MISSING],
        "additionalProperties": False,
        "properties": {field_name(item): _schema(hints[item.name], definitions) for item in items},
    }  # fmt: skip


def _schema(kind: Any, definitions: dict[str, Json]) -> dict[str, Json]:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        name = str(getattr(kind, "__name__", kind))
        if name not in definitions:
            definitions[name] = None  # so that a dataclass may hold its own kind
            definitions[name] = _object_schema(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin in (Union, types.UnionType):
        kinds = [_schema(argument, definitions) for argument in arguments]
        plain = all(set(schema) == {"type"} for schema in kinds)
        return {"type": [schema["type"] for schema in kinds]} if plain else {"anyOf": list(kinds)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is tuple:
        entries: list[Json] = [_schema(argument, definitions) for argument in arguments]
        return {"type": "array", "prefixItems": entries, "minItems": len(entries), "maxItems": len(entries)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    return {"type": "null"} if kind is type(None) else {"type": _TYPES[kind]}


if __name__ == "__main__":
    print(results_schema(), end="")
