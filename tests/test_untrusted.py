"""Values of files that anyone may have written: read as their type, or refused in one sentence."""

from collections.abc import Callable

import pytest

from auditkit.errors import BadInput
from auditkit.untrusted import UntrustedObject

GOOD = '{"text": "a", "list": ["a", "b"], "count": 3, "share": 0.5, "inner": {"count": 1}, "rows": [{"count": 2}]}'


def test_good_values_are_read_as_their_types() -> None:
    data = UntrustedObject.from_json("file.json", GOOD)
    assert (data.text("text"), data.optional_text("none"), data.texts("list")) == ("a", None, ("a", "b"))
    assert (data.texts("text"), data.texts("none"), data.choice("text", ("a", "b"))) == (("a",), (), "a")
    assert (data.integer("count"), data.number("count"), data.number("share")) == (3, 3.0, 0.5)
    assert data.object("inner").integer("count") == 1
    assert [row.integer("count") for row in data.objects("rows")] == [2]
    assert "text" in data
    assert "none" not in data


@pytest.mark.parametrize(
    ("read", "refusal"),
    [
        (lambda data: data.text("count"), "file.json: count is 3, expected a text."),
        (lambda data: data.text("none"), "file.json: none is missing, expected a text."),
        (lambda data: data.optional_text("count"), "file.json: count is 3, expected a text or null."),
        (lambda data: data.texts("count"), "file.json: count is 3, expected a list of texts."),
        (lambda data: data.texts("rows"), "file.json: rows is [{'count': 2}], expected a list of texts."),
        (lambda data: data.choice("text", ("b", "c")), "file.json: text is 'a', expected b or c."),
        (lambda data: data.integer("share"), "file.json: share is 0.5, expected an integer of at least 0."),
        (lambda data: data.integer("count", 4), "file.json: count is 3, expected an integer of at least 4."),
        (lambda data: data.number("text"), "file.json: text is 'a', expected a finite number."),
        (lambda data: data.object("list"), "file.json: list is ['a', 'b'], expected an object."),
        (lambda data: data.object("inner").text("count"), "file.json, inner: count is 1, expected a text."),
        (lambda data: list(data.objects("list")), "file.json: list is ['a', 'b'], expected a list of objects."),
        (lambda data: [row.text("count") for row in data.objects("rows")],
         "file.json, rows[0]: count is 2, expected a text."),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_file_and_key(
    read: Callable[[UntrustedObject], object], refusal: str
) -> None:
    with pytest.raises(BadInput) as refused:
        read(UntrustedObject.from_json("file.json", GOOD))
    assert str(refused.value) == refusal


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "is not JSON"), (b"\xff", "is not JSON"), ("[" * 99_999, "is not JSON"), ("[1]", "holds a list, expected"),
     ('{"share": NaN}', "share is nan, expected a finite number")],
)  # fmt: skip
def test_a_file_that_is_no_object_is_refused(content: "str | bytes", words: str) -> None:
    with pytest.raises(BadInput, match=words):
        UntrustedObject.from_json("file.json", content).number("share")
