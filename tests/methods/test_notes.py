"""Notes about maps: merged over requests, written as sentences, stored as JSON."""

import json

import pytest

from auditkit.methods.notes import Note, sentences
from auditkit.records import from_json, to_json

IDLE = "masks delete nothing: blurring lowers the probability of their labels too little"


def test_notes_of_many_requests_become_one_of_each_kind() -> None:
    first = (Note("layer", "r"), Note("idle", hits=0, total=8), Note("passes", values=(64, 128)))
    second = (Note("layer", "r"), Note("idle", hits=3, total=1992), Note("passes", values=(1024,)))
    expected = ("grad-cam at 'r'", f"3 of 2,000 {IDLE}", "passes an image: 64 to 1,024, median 128")
    assert sentences((*first, *second)) == expected


def test_notes_with_another_detail_are_kept_apart() -> None:
    assert sentences([Note("layer", "r"), Note("layer", "s")]) == ("grad-cam at 'r'", "grad-cam at 's'")


def test_a_share_of_none_is_left_out() -> None:
    assert sentences([Note("idle", hits=0, total=8)]) == ()


def test_a_value_that_is_the_same_everywhere_is_written_once() -> None:
    assert sentences([Note("passes", values=(100, 100))]) == ("passes an image: 100",)
    expected = "split-half agreement of ranks: 0.50 to 1.00, median 0.75"
    assert sentences([Note("agreement", values=(0.5, 1.0))]) == (expected,)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no note 'other'"):
        Note("other")


@pytest.mark.parametrize(
    "note",
    [Note("layer", "r"), Note("idle", hits=1, total=2), Note("passes", values=(1.0, 2.5))],
    ids=lambda note: note.kind,
)
def test_notes_survive_json(note: Note) -> None:
    assert from_json(Note, json.loads(json.dumps(to_json(note))), "note") == note
