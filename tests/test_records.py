"""Files that anyone may have written: read as dataclasses, or refused in one sentence."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from auditkit.errors import BadInput
from auditkit.records import from_json, optional, parse_object, to_json


@dataclass(frozen=True)
class Inner:
    count: int


@dataclass(frozen=True)
class Record:
    text: str
    kind: Literal["a", "b"]
    share: float
    inner: Inner
    rows: tuple[Inner, ...] = ()
    pair: tuple[int, str] | None = None
    counts: Mapping[str, int] | None = None
    class_index: int | None = optional("class")


GOOD: dict[str, Any] = {"text": "x", "kind": "a", "share": 0.5, "inner": {"count": 1}}


def test_good_values_are_read_as_their_types() -> None:
    values = GOOD | {"share": 3, "rows": [{"count": 2}], "pair": [1, "x"], "counts": {"cat": 4}, "class": 7}
    record = from_json(Record, values, "file.json")
    assert record == Record("x", "a", 3.0, Inner(1), (Inner(2),), (1, "x"), {"cat": 4}, 7)
    assert isinstance(record.share, float)
    assert to_json(record) == values
    assert to_json(from_json(Record, GOOD, "file.json")) == GOOD | {"rows": [], "pair": None, "counts": None}


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ({"text": 3}, ".text is 3, expected a text."),
        ({"text": None}, ".text is None, expected a text."),
        ({"kind": "c"}, ".kind is 'c', expected one of a, b."),
        ({"share": "x"}, ".share is 'x', expected a finite number."),
        ({"share": float("nan")}, ".share is nan, expected a finite number."),
        ({"share": True}, ".share is True, expected a finite number."),
        ({"share": 10**400}, f".share is 1{'0' * 59}, expected a finite number below 9007199254740992."),
        ({"share": -(10**400)}, f".share is -1{'0' * 58}, expected a finite number below 9007199254740992."),
        ({"inner": {"count": 0.5}}, ".inner.count is 0.5, expected an integer."),
        ({"inner": [1]}, ".inner is [1], expected an object."),
        ({"inner": {}}, ".inner lacks 'count'; it is not what auditkit wrote."),
        ({"inner": {"count": 1, "x": 2}}, ".inner has an unknown key 'x'; this auditkit does not write it."),
        ({"rows": {"count": 2}}, ".rows is {'count': 2}, expected a list."),
        ({"rows": [{"count": 2}, {"count": "x"}]}, ".rows[1].count is 'x', expected an integer."),
        ({"pair": [1]}, ".pair is [1], expected a list of 2."),
        ({"counts": {"cat": "x"}}, ".counts.cat is 'x', expected an integer."),
        ({"extra": 1}, " has an unknown key 'extra'; this auditkit does not write it."),
    ],
)
def test_a_wrong_value_is_refused_with_its_file_and_key(wrong: dict[str, Any], refusal: str) -> None:
    with pytest.raises(BadInput) as refused:
        from_json(Record, GOOD | wrong, "file.json")
    assert str(refused.value) == f"file.json{refusal}"


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"[" * 99_999, "is not JSON"),
     (b"[1]", "holds a list, expected"), (b'{"share": 1' + b"0" * 9999 + b"}", "is not JSON")],
)  # fmt: skip
def test_a_file_that_is_no_object_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(BadInput, match=rf"^file\.json {words}"):
        parse_object(content, "file.json")


def test_an_object_is_read_from_its_text() -> None:
    assert parse_object(json.dumps(GOOD).encode(), "file.json") == GOOD
