import json

import pytest

from auditkit.methods.notes import Note, Range, Share, from_json, to_json, told


def test_notes_of_many_units_become_one_of_each_kind() -> None:
    first: tuple[Note, ...] = ("grad-cam at 'r'", Share("masks idle", 0, 8), Range("passes", (64, 128)))
    second: tuple[Note, ...] = ("grad-cam at 'r'", Share("masks idle", 3, 1992), Range("passes", (1024,)))
    assert told((*first, *second)) == ("grad-cam at 'r'", "3 of 2,000 masks idle", "passes: 64 to 1,024, median 128")


def test_what_holds_of_none_is_not_told() -> None:
    assert told([Share("masks idle", 0, 8)]) == ()


def test_a_figure_that_is_the_same_everywhere_is_told_once() -> None:
    assert told([Range("passes", (100, 100))]) == ("passes: 100",)
    assert told([Range("agreement", (0.5, 1.0))]) == ("agreement: 0.50 to 1.00, median 0.75",)


@pytest.mark.parametrize("note", ["plain", Share("idle", 1, 2), Range("passes", (1.0, 2.5))])
def test_notes_survive_being_written_down(note: Note) -> None:
    assert from_json(json.loads(json.dumps(to_json(note)))) == note
