"""Edits of bytes, of TOML and JSON text, and of CSV tables, drawn at random."""

import json
import random
import re
from collections.abc import Callable
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

# Values that a field of one type is replaced with, as TOML or JSON write them.
VALUES = (
    "0", "-1", "1", "2", "true", "false", '""', '"x"', "[]", "[1, 2, 3]", "[[[]]]", '["a", 1]', "1e400", "-1e400",
    "1e-400", "0.1", "9" * 400, "9" * 5000, "-" + "9" * 400,
    '"\\u0000"', '"\\ud800"', '"\\u202e"', '"../../etc/passwd"',
    '"/dev/zero"', '"' + "a" * 5000 + '"', '"\\u0007\\u001b[2J"', '"<script>alert(1)</script>"',
)  # fmt: skip
TOML_VALUES = (
    *VALUES,
    "nan",
    "inf",
    "-inf",
    "0x" + "f" * 5000,
    "2030-01-01",
    "07:32:00",
    "{ a = 1 }",
    "[" * 200,
    "'''",
)
JSON_VALUES = (*VALUES, "null", "NaN", "Infinity", "{}", '{"a": {"b": []}}', "[" * 100_000, '{"a":' * 3000)
CELLS = ("", "-1", "0", "9" * 400, "1e400", "nan", "inf", "a\nb", '"', "../x", "/dev/zero", "a" * 200_000, "\0",
         "\ufeff", "é", "\u202e", "maps/0.npy#99", "maps/0.npy#-1", "#", "=cmd()", "0x10", "1_0", "\u0661")  # fmt: skip


def bytes_edited(rng: random.Random, content: bytes) -> bytes:
    """The content after one to four edits of its bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(_BYTE_EDITS)(rng, content)
    return content


def _span(rng: random.Random, content: bytes) -> tuple[int, int]:
    start = rng.randrange(len(content) + 1)
    return start, min(len(content), start + rng.choice((1, 2, 4, 8, 64, 1024)))


def _flip(rng: random.Random, content: bytes) -> bytes:
    edited = bytearray(content)
    for _ in range(rng.choice((1, 1, 8)) if edited else 0):
        edited[rng.randrange(len(edited))] ^= 1 << rng.randrange(8)
    return bytes(edited)


def _truncate(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _delete(rng: random.Random, content: bytes) -> bytes:
    start, end = _span(rng, content)
    return content[:start] + content[end:]


def _overwrite(rng: random.Random, content: bytes) -> bytes:
    start, end = _span(rng, content)
    run = rng.choice(
        (b"\x00" * (end - start), b"\xff" * (end - start), b"\x7f" * (end - start), rng.randbytes(end - start))
    )
    return content[:start] + run + content[end:]


def _insert(rng: random.Random, content: bytes) -> bytes:
    start, _ = _span(rng, content)
    return content[:start] + rng.randbytes(rng.choice((1, 2, 8, 256))) + content[start:]


def _repeat(rng: random.Random, content: bytes) -> bytes:
    start, end = _span(rng, content)
    return content[:end] + content[start:end] * rng.choice((1, 2, 50)) + content[end:]


_BYTE_EDITS = (_flip, _truncate, _delete, _overwrite, _insert, _repeat)


def toml_edited(rng: random.Random, text: str) -> bytes:
    """A TOML text after one or two edits of its lines."""
    for _ in range(rng.choice((1, 1, 2))):
        text = rng.choice(_TOML_EDITS)(rng, text)
    edited = text.encode("utf-8", "surrogatepass")
    return edited if rng.random() < 0.9 else bytes_edited(rng, edited)


def _line(rng: random.Random, lines: list[str]) -> int:
    filled = [index for index, line in enumerate(lines) if line.strip() and not line.startswith("#")]
    return rng.choice(filled) if filled else 0


def _toml_value(rng: random.Random, text: str) -> str:
    lines = text.splitlines() or [""]
    index = _line(rng, lines)
    key, _, _ = lines[index].partition("=")
    lines[index] = f"{key}= {rng.choice(TOML_VALUES)}"
    return "\n".join(lines) + "\n"


def _toml_number(rng: random.Random, text: str) -> str:
    numbers = list(re.finditer(r"-?\d+(\.\d+)?", text))
    if not numbers:
        return text
    match = rng.choice(numbers)
    return (
        text[: match.start()] + rng.choice(("0", "-1", "9" * 400, "1e400", "nan", "0.5", "65537")) + text[match.end() :]
    )


def _toml_key(rng: random.Random, text: str) -> str:
    lines = text.splitlines() or [""]
    index = _line(rng, lines)
    lines[index] = rng.choice(
        (f"x{lines[index]}", f"'' {lines[index]}", f'"\\u0000" = 1\n{lines[index]}', f"a.b.c.d.{lines[index]}")
    )
    return "\n".join(lines) + "\n"


def _toml_repeat(rng: random.Random, text: str) -> str:
    lines = text.splitlines() or [""]
    index = _line(rng, lines)
    lines.insert(rng.randrange(len(lines) + 1), lines[index])
    return "\n".join(lines) + "\n"


def _toml_drop(rng: random.Random, text: str) -> str:
    lines = text.splitlines() or [""]
    del lines[_line(rng, lines)]
    return "\n".join(lines) + "\n"


def _toml_nest(rng: random.Random, text: str) -> str:
    depth = rng.choice((50, 500, 5000))
    return text + rng.choice(
        (f"[{'.'.join('a' * depth)}]\n", f"deep = {'[' * depth}{']' * depth}\n", f"{'a.' * depth}b = 1\n")
    )


def _toml_surround(rng: random.Random, text: str) -> str:
    return rng.choice(
        ("\ufeff" + text, text.replace("\n", "\r\n"), text + "\0", text + "#" * 2_000_000, "\ud800" + text, "")
    )


_TOML_EDITS: tuple[Callable[[random.Random, str], str], ...] = (
    _toml_value, _toml_value, _toml_value, _toml_number, _toml_key, _toml_repeat, _toml_drop, _toml_nest,
    _toml_surround,
)  # fmt: skip


def json_edited(rng: random.Random, text: str) -> bytes:
    """A JSON text with one value, one key or its frame changed."""
    mark = '"@@"'
    value: Json = json.loads(text)
    kind = rng.randrange(5)
    if kind < 3 and isinstance(value, dict):
        key = rng.choice(list(value))
        value[key] = "@@"
        return json.dumps(value).replace(mark, rng.choice(JSON_VALUES)).encode("utf-8", "surrogatepass")
    if kind == 3 and isinstance(value, dict):
        key = rng.choice(list(value))
        renamed = {rng.choice(("", "x", key + "x", "\0", key.upper())) if name == key else name: entry
                   for name, entry in value.items()}  # fmt: skip
        twice = json.dumps(renamed)[:-1] + f", {json.dumps(key)}: {rng.choice(JSON_VALUES)}}}"
        return rng.choice((json.dumps(renamed), twice)).encode("utf-8", "surrogatepass")
    return rng.choice((bytes_edited(rng, text.encode()), rng.choice(JSON_VALUES).encode("utf-8", "surrogatepass"), b""))


def csv_edited(rng: random.Random, text: str) -> bytes:
    """A table with cells, lines or columns changed."""
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(rng.choice((1, 1, 3))):
        row = rng.choice(rows)
        kind = rng.randrange(5)
        if kind < 2:
            row[rng.randrange(len(row))] = rng.choice(CELLS)
        elif kind == 2:
            rows.insert(rng.randrange(len(rows) + 1), list(row))
        elif kind == 3:
            row.append(rng.choice(CELLS))
        else:
            row.pop()
            row.append("")
    edited = rng.choice(("\n", "\n", "\r\n", "\r")).join(",".join(row) for row in rows) + rng.choice(("\n", ""))
    content = edited.encode("utf-8", "surrogatepass")
    return bytes_edited(rng, content) if rng.random() < 0.2 else content
